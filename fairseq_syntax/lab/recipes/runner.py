"""Running a recipe's stages: what is not done yet, several at a time, each once."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.stages import Command, Stage, dependencies, user_dir
from fairseq_syntax.runtime.console import on_termination, progress, say
from fairseq_syntax.runtime.files import atomic_open_binary, make_folder
from fairseq_syntax.runtime.jobs import read_record

if TYPE_CHECKING:
    from fairseq_syntax.runtime.ray_workers import RayWorkers

# Training on CPUs is faster where freed memory is kept: docs/how-to.md.
_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647"}
# Ends a command with this process, even if that is killed (Linux): Python cannot tell a child to, but a child can ask.
_ATTACHED = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])"
)
_PROGRESS = re.compile(r"epoch (\d+):\s+(\d+) / (\d+)|num_updates=(\d+)|end of epoch (\d+)")


def environment(threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The variables that a recipe's commands get beside those of this process."""
    path = [os.path.dirname(user_dir()), *filter(None, [os.environ.get("PYTHONPATH")])]
    bin_path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    own = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    malloc = {name: os.environ.get(name, value) for name, value in _MALLOC.items()}
    return {**malloc, **own, "PYTHONPATH": os.pathsep.join(path), "PATH": bin_path, **extra}


class Runner:
    """Runs stages, so many at a time.

    Args:
        folder: of the recipe, for the logs
        jobs: stages of models that run at the same time
        variables: of the environment of all commands
        cluster: where commands run, in place of this machine
    """

    def __init__(
        self, folder: Path, jobs: int = 1, variables: Mapping[str, str] | None = None, cluster: RayWorkers | None = None
    ) -> None:
        self.folder, self.jobs, self.cluster = folder, jobs, cluster
        self.variables = dict(variables or {})
        self.started = time.monotonic()
        self._running: dict[subprocess.Popen, Stage] = {}
        self._begun: dict[str, float] = {}
        self._guard = threading.Lock()
        self._stopped = False
        self._done = 0

    def run(self, stages: Sequence[Stage]) -> list[str]:
        """Make what is not made yet, each stage after those that make what it reads.

        Returns:
            names of the stages that failed; those that need them were not begun, the others went on

        Raises:
            KeyboardInterrupt, SystemExit: it was told to end; so were the commands
        """
        needs = {name: set(before) for name, before in dependencies(stages).items()}
        waiting = {stage.name: stage for stage in stages}
        order = {name: place for place, name in enumerate(waiting)}
        failed: list[str] = []
        total, self._done = len(stages), 0
        with on_termination(self._stop), ThreadPoolExecutor(max(1, self.jobs)) as pool, Watch(self, total):
            futures: dict[Future[bool], str] = {}
            while waiting or futures:
                ready = [name for name in sorted(waiting, key=order.__getitem__) if not needs[name]]
                for name in ready[: max(0, self.jobs - len(futures))]:
                    futures[pool.submit(self._make, waiting.pop(name))] = name
                if not futures:
                    break  # what is left needs what failed
                done, _ = wait(futures, return_when=FIRST_COMPLETED)
                for future in done:
                    name = futures.pop(future)
                    self._done += 1
                    try:
                        fine = future.result()
                    except BaseException:
                        self._end_commands()
                        raise
                    if not fine:
                        failed.append(name)
                    else:
                        for before in needs.values():
                            before.discard(name)
        return failed

    def _make(self, stage: Stage) -> bool:
        """Make a stage unless it is done; whether it is there now."""
        try:
            step = stage.step()
            with step.making() as record:
                if record is not None:
                    return True
                before = read_record(stage.stamp)
                if before is not None and before["made_from"] != step.made_from:
                    stage.remove_stale()
                step.begin()
                stage.stamp.write_text(f"{stage.name}\n", encoding="utf-8")
                begun = time.time()
                self._begun[stage.name] = time.monotonic()
                log = self.log(stage)
                if stage.kind in ("parse", "train") and not sys.stderr.isatty():  # hours, of which no bar tells
                    self.say(f"{stage.name}: started; its log is {log}")
                make_folder(log.parent)
                log.write_bytes(b"")
                for path in stage.outputs:
                    make_folder(path.parent)
                for command in stage.commands:
                    status = self._run(command, stage, log)
                    if self._stopped:
                        return False
                    if status:
                        self.say(f"{stage.name}: FAILED, exit status {status}; the end of {log}:\n{_end(log)}")
                        return False
                for path in stage.outputs:
                    if not path.exists():
                        self.say(f"{stage.name}: FAILED, it did not make {path}; the end of {log}:\n{_end(log)}")
                        return False
                seconds = round(time.time() - begun, 1)
                step.finish({"seconds": seconds, "commands": [str(command) for command in stage.commands]})
                self.say(f"{stage.name}: done in {_time(seconds)}")
                return True
        except SyntaxDataError as error:
            self.say(f"{stage.name}: FAILED: {error}")
            return False
        finally:
            self._begun.pop(stage.name, None)

    def say(self, text: str) -> None:
        """Say a line, with the time since the start."""
        say(f"[{_time(time.monotonic() - self.started):>7}] {text}")

    def log(self, stage: Stage) -> Path:
        """Where the output of a stage's commands is."""
        return self.folder / "logs" / f"{stage.name.replace(' ', '.').replace('/', '.')}.log"

    def _run(self, command: Command, stage: Stage, log: Path) -> int:
        with log.open("ab") as stream:
            stream.write(f"$ {command}\n".encode())
            stream.flush()
            if self.cluster is not None:
                return self._run_there(command, log)
            if command.stdout is None:
                return self._run_here(command, stage, stream, stream)
            with suppress(_Failed), atomic_open_binary(command.stdout) as output:
                status = self._run_here(command, stage, output, stream)
                if status:
                    raise _Failed  # so that the output gets no name
            return status

    def _run_here(self, command: Command, stage: Stage, output: Any, log: Any) -> int:
        arguments = command.arguments()
        if sys.platform == "linux":
            arguments = [sys.executable, "-c", _ATTACHED, str(os.getpid()), *arguments]
        with self._guard:
            if self._stopped:
                return -signal.SIGTERM
            process = subprocess.Popen(
                arguments,
                env={**os.environ, **self.variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
            )
            self._running[process] = stage
        try:
            return process.wait()
        finally:
            with self._guard:
                self._running.pop(process, None)

    def _run_there(self, command: Command, log: Path) -> int:
        assert self.cluster is not None
        arguments = command.arguments()
        if command.stdout is not None:
            target = shlex.quote(os.path.abspath(command.stdout))
            text = f"{shlex.join(arguments)} > {target}.part && mv {target}.part {target}"
            arguments = ["bash", "-euo", "pipefail", "-c", text]
        return self.cluster.command(arguments, cwd=os.getcwd(), env=self.variables, log=os.path.abspath(log))

    def _stop(self, number: int) -> None:
        self._end_commands()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _end_commands(self) -> None:
        self._stopped = True
        if self.cluster is not None:
            self.cluster.cancel()
        for process in list(self._running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def state(self) -> str:
        """What is being made now, for a line on a terminal."""
        parts = []
        for name, begun in list(self._begun.items()):
            seconds = time.monotonic() - begun
            stage = next((stage for stage in list(self._running.values()) if stage.name == name), None)
            share = training_share(self.log(stage), stage) if stage is not None and stage.kind == "train" else None
            left = f", {_time(seconds * (1 - share) / share)} left" if share else ""
            at = f" {share:.0%}" if share else ""
            parts.append(f"{name}{at} ({_time(seconds)}{left})")
        return "; ".join(parts)


class _Failed(Exception):
    """A command whose output is not to be kept."""


class Watch:
    """A line on the terminal that says how far the recipe is; nothing where there is no terminal."""

    def __init__(self, runner: Runner, total: int, every: float = 1.0) -> None:
        self.runner, self.total, self.every = runner, total, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        if sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        with progress(total=self.total, unit="stages", of=self.runner.folder.name) as bar:
            # no rate of stages, which are as different as a copy and a training: each says itself how long it has to go
            bar.bar_format = "{desc}: {n_fmt}/{total_fmt} stages, {elapsed}{postfix}"
            while not self._over.wait(self.every):
                bar.n = self.runner._done
                bar.set_postfix_str(self.runner.state())


def training_share(log: Path, stage: Stage) -> float | None:
    """How much of a training is over, by its log and its last --max-update or --max-epoch; None: nobody knows."""
    words = [str(word) for word in stage.commands[0].words]
    limits: dict[str, float] = {}
    for option, value in pairwise(words):
        if option in ("--max-update", "--max-epoch"):
            with suppress(ValueError):
                limits[option] = float(value)
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 20_000))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    share = 0.0
    for match in _PROGRESS.finditer(text):
        epoch, at, of, updates, ended = match.groups()
        if updates and "--max-update" in limits:
            share = max(share, int(updates) / limits["--max-update"])
        elif epoch and "--max-epoch" in limits:
            share = max(share, (int(epoch) - 1 + int(at) / int(of)) / limits["--max-epoch"])
        elif ended and "--max-epoch" in limits:
            share = max(share, int(ended) / limits["--max-epoch"])
    return min(share, 1.0) or None


def typed(stages: Sequence[Stage], variables: Mapping[str, str], done: Callable[[Stage], bool]) -> list[str]:
    """The commands of stages as a person would type them, with what they need before."""
    shown = {name: value for name, value in variables.items() if name not in ("PATH", "PYTHONPATH")}
    lines = [f"export {' '.join(f'{name}={shlex.quote(value)}' for name, value in shown.items())}"]
    folders: set[str] = set()
    for stage in stages:
        lines += ["", f"# {stage.name}" + (" (done)" if done(stage) else "")]
        new = {os.path.relpath(path.parent) for path in stage.outputs} - folders
        folders |= new
        lines += [f"mkdir -p {shlex.join(sorted(new))}"] if new else []
        lines += [str(command) for command in stage.commands]
    return lines


def _end(log: Path, lines: int = 15) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return "\n".join("    " + line[:300] for line in text)


def _time(seconds: float) -> str:
    """``48 s``, ``12:05``, ``3:07:12``."""
    whole = int(seconds)
    if whole < 100:
        return f"{whole} s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
