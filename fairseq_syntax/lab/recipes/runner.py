"""Running of a recipe's unfinished stages, several at a time."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from graphlib import TopologicalSorter
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tqdm import tqdm

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.hardware import hardware
from fairseq_syntax.lab.recipes.stages import (
    USER_DIR,
    Stage,
    StageCommand,
    dependencies,
    shown_path,
    states,
    training_limits,
)
from fairseq_syntax.runtime.commands import on_termination, run_command
from fairseq_syntax.runtime.console import progress, say
from fairseq_syntax.runtime.digests import file_sha256
from fairseq_syntax.runtime.files import make_folder
from fairseq_syntax.runtime.jobs import RecordedStep
from fairseq_syntax.runtime.recipe_stage import STAGE_VARIABLE

if TYPE_CHECKING:
    from fairseq_syntax.runtime.ray_workers import RayWorkers

duration = tqdm.format_interval  # as in progress bars: MM:SS or H:MM:SS

# Training on CPUs is faster if freed memory is kept (docs/how-to.md).
_MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "2147483647"}
# In a line of fairseq's log: epoch, batch and number of batches (missing at the end of an epoch), updates.
_PROGRESS = re.compile(r"epoch (\d+)(?:: +(\d+) / (\d+)| \|).*?num_updates[= ](\d+)")


def environment(threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of a recipe's commands, in addition to those of this process."""
    # Makes this package available to the commands if it is on the path but not installed.
    path = [os.path.dirname(USER_DIR), *filter(None, [os.environ.get("PYTHONPATH")])]
    fixed = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONWARNINGS": "ignore"}
    malloc = {name: os.environ.get(name, value) for name, value in _MALLOC.items()}
    return {**malloc, **fixed, "PYTHONPATH": os.pathsep.join(path), **extra}


class Runner:
    """Runs stages, at most ``jobs`` at a time, here or on a cluster.

    Their logs are in the result folder, and their commands have the environment ``variables``. Each of the stages that
    run at a time can use another one of ``gpus``, which are values of CUDA_VISIBLE_DEVICES, one for each job; without
    them, its commands see the GPUs that this process sees.
    """

    def __init__(
        self,
        folder: Path,
        jobs: int = 1,
        variables: Mapping[str, str] | None = None,
        cluster: RayWorkers | None = None,
        gpus: Sequence[str] = (),
    ) -> None:
        self.folder, self.jobs, self.cluster = folder, jobs, cluster
        self.variables = dict(variables or {})
        self._free_gpus: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for number in range(jobs):
            self._free_gpus.put({"CUDA_VISIBLE_DEVICES": gpus[number]} if gpus else {})
        self.started = time.monotonic()
        self._processes: list[subprocess.Popen] = []
        self._begun: dict[str, tuple[Stage, float]] = {}
        self._stopped = False

    def run(self, stages: Sequence[Stage]) -> list[str]:
        """Run the unfinished stages, each after those that make its inputs, and return the names of those that failed.

        Stages that depend on a failed one are not started, others are. KeyboardInterrupt and SystemExit are raised
        after the commands have been ended.
        """
        waiting = {stage.name: stage for stage in stages}
        order = TopologicalSorter(dependencies(stages))
        order.prepare()
        ready: set[str] = set()
        futures: dict[Future[bool], str] = {}
        failed: list[str] = []
        bar = progress(total=len(stages), unit="stages", of=self.folder.name)
        # no rate, since stages differ as much as copying and training; each shows its own remaining time
        bar.bar_format = "{desc}: {n_fmt}/{total_fmt} stages, {elapsed}{postfix}"
        # Threads suffice, since each only waits for the process of a command.
        with on_termination(self._stop), ThreadPoolExecutor(self.jobs) as pool, bar:
            while True:
                ready.update(order.get_ready())
                for name in [name for name in waiting if name in ready][: self.jobs - len(futures)]:
                    ready.remove(name)
                    futures[pool.submit(self._make, waiting.pop(name))] = name
                if not futures:
                    return failed  # stages that still wait depend on failed ones
                # At most a second, to update the state of running stages in the bar.
                for future in wait(futures, 1.0, FIRST_COMPLETED).done:
                    name = futures.pop(future)
                    bar.update()
                    if future.result():
                        order.done(name)
                    else:
                        failed.append(name)
                if not bar.disable:
                    # A copy, since other threads change it.
                    bar.set_postfix_str("; ".join(self._state(*one) for one in list(self._begun.values())))

    def _make(self, stage: Stage) -> bool:
        """Make a stage unless it is done; returns whether it is done now."""
        try:
            step = stage.step()
            with step.making(stopped=lambda: self._stopped) as record:
                if record is None:
                    self._run_commands(stage, step)
            return True
        except SyntaxDataError as error:
            if not self._stopped:
                self.say(f"{stage.name}: FAILED: {error}")
            return False
        except BaseException:  # an error in this program must not leave a training running
            self._end_commands()
            raise
        finally:
            self._begun.pop(stage.name, None)

    def _run_commands(self, stage: Stage, step: RecordedStep) -> None:
        """Run the commands of a stage, and record that it is done. Raises SyntaxDataError if it fails."""
        log = self.log(stage)
        for path in stage.prepare(step):
            self.say(f"{stage.name}: {shown_path(path)} has changed since it was made, and is made anew")
        # First, so that after an interruption the record tells what the unfinished outputs belong to.
        step.begin()
        stage.stamp.write_text(f"{stage.name}\n", encoding="utf-8")
        begun = time.monotonic()
        self._begun[stage.name] = stage, begun
        if stage.kind in ("parse", "train") and not sys.stderr.isatty():  # it may take hours, and there is no bar
            self.say(f"{stage.name}: started; its log is {log}")
        for path in (log, *stage.outputs):
            make_folder(path.parent)
        # Only for this start: its end is shown on failure, and gives the progress of training.
        log.write_bytes(b"")
        gpus = self._free_gpus.get()
        own = {STAGE_VARIABLE: step.made_from} if stage.resumed else {}
        try:
            for command in stage.commands:
                status = self._run(command, log, {**own, **gpus})
                if status or self._stopped:
                    raise SyntaxDataError(f"exit status {status}; {_end_of(log)}")
        finally:
            self._free_gpus.put(gpus)
        for path in stage.outputs:
            if not path.exists():
                raise SyntaxDataError(f"it did not make {path}; {_end_of(log)}")
        seconds = round(time.monotonic() - begun, 1)
        commands = [str(command) for command in stage.commands]
        # Readers may write next to the corpus, which does not make it another one.
        step = stage.step() if stage.listed else step
        note = {"seconds": seconds, "commands": commands, "hardware": hardware()}
        if stage.log is not None and stage.log.is_file():
            note["log"] = file_sha256(stage.log)
        step.finish(note)
        self.say(f"{stage.name}: done in {duration(seconds)}")

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        say(f"[{duration(time.monotonic() - self.started):>7}] {text}")

    def log(self, stage: Stage) -> Path:
        """The log of a stage's commands."""
        return self.folder / "logs" / f"{stage.stamp.name}.log"

    def _run(self, command: StageCommand, log: Path, variables: Mapping[str, str]) -> int:
        """Run a command here or on the cluster; returns its exit status."""
        with log.open("ab") as stream:
            stream.write(f"$ {command}\n".encode())
        output = None if command.stdout is None else os.path.abspath(command.stdout)
        run = partial(run_command, started=self._started) if self.cluster is None else self.cluster.command
        where, log_path = os.getcwd(), os.path.abspath(log)
        env = {**self.variables, **command.variables(), **variables}
        return run(command.arguments(), cwd=where, env=env, log=log_path, output=output)

    def _started(self, process: subprocess.Popen) -> None:
        self._processes.append(process)
        if self._stopped:  # a signal arrived between the start of the process and this line
            self._end_commands()

    def _stop(self, number: int) -> None:
        self._end_commands()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _end_commands(self) -> None:
        self._stopped = True
        if self.cluster is not None:
            self.cluster.cancel()
        for process in self._processes:
            with suppress(OSError):
                process.stdin.close()  # type: ignore[union-attr]  # at whose end runtime/commands.py ends the command

    def _state(self, stage: Stage, begun: float) -> str:
        """The running time of a stage and, for training, the remaining time."""
        seconds = time.monotonic() - begun
        share = training_share(self.log(stage), stage) if stage.kind == "train" else None
        left = f", {duration(seconds * (1 - share) / share)} left" if share else ""
        return f"{stage.name}{f' {share:.0%}' if share else ''} ({duration(seconds)}{left})"


def _end_of(log: Path) -> str:
    """The last lines of a log."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f"the end of {log}:", *("    " + line[:300] for line in lines[-15:])])


def training_share(log: Path, stage: Stage) -> float | None:
    """The finished share of a training, by its log and its last --max-update or --max-epoch; None if unknown."""
    limits = training_limits(stage)
    try:
        with log.open("rb") as file:  # only the end of the log, which may be long and is read every second
            file.seek(max(0, os.path.getsize(log) - 20_000))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return None
    share = 0.0
    for epoch, at, of, updates in _PROGRESS.findall(text):
        done = {"--max-update": int(updates), "--max-epoch": int(epoch) - 1 + (int(at) / int(of) if of else 1)}
        share = max([share, *(done[option] / limit for option, limit in limits.items() if limit)])
    return min(share, 1.0) or None


def typed(stages: Sequence[Stage], variables: Mapping[str, str]) -> list[str]:
    """The commands of stages as typed in a shell, with the preparations that they need."""
    shown = {name: value for name, value in variables.items() if name != "PYTHONPATH"}
    lines = [f"export {' '.join(f'{name}={shlex.quote(value)}' for name, value in shown.items())}"]
    folders: set[str] = set()
    now = states(stages)
    for stage in stages:
        lines += ["", f"# {stage.name}" + ("" if now[stage.name] == "to do" else f" ({now[stage.name]})")]
        new = {os.path.relpath(path.parent) for path in stage.outputs} - folders
        folders |= new
        lines += [f"mkdir -p {shlex.join(sorted(new))}"] if new else []
        lines += [str(command) for command in stage.commands]
    return lines
