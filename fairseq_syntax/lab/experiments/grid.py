"""Run an experiment's grid: skip what is done, survive being killed, record every step with its time."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import fairseq_syntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.experiments.plan import Experiment, Task
from fairseq_syntax.lab.experiments.record import append, read, record_environment, write_whole
from fairseq_syntax.runtime.console import on_termination, progress
from fairseq_syntax.runtime.files import atomic_open_binary, file_sha256, fingerprint, make_folder
from fairseq_syntax.runtime.ray_workers import RayWorkers

_SHELL = ("bash", "-euo", "pipefail", "-c")


class Grid:
    """The state of an experiment on disk, and its running.

    Each cell's folder holds ``.done/STEP.json`` (written whole or not at all, after the step's success) and
    ``logs/STEP.log``. ``.lock`` in the work directory is held by the program and by every command that it starts, so
    that neither a second program nor the orphans of a killed one write into the same folders.

    Args:
        say: takes a line of progress
        check_code: take a step that was done or begun by other code of this package for not done, and begin it anew
        cluster: where the commands run, if not here
    """

    def __init__(
        self,
        experiment: Experiment,
        say: Callable[[str], None] = print,
        *,
        check_code: bool = False,
        cluster: RayWorkers | None = None,
    ) -> None:
        self.experiment = experiment
        self.check_code = check_code
        self.cluster = cluster
        self._say = say
        self._running: set[subprocess.Popen] = set()
        self._guard = threading.Lock()
        self._stopped = False
        self._recorded = False

    def say(self, text: str) -> None:
        """A line of progress; nobody who stops reading them stops the trainings."""
        with suppress(OSError):
            self._say(text)

    def is_done(self, task: Task) -> bool:
        """True if the step succeeded as it stands now, and its outputs are still there."""
        try:
            mark = json.loads(self._mark(task).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        if self.check_code and mark.get("code") != code_fingerprint():
            return False
        return mark.get("fingerprint") == task.fingerprint and not self._missing(task)

    def is_complete(self, system: str, seed: int) -> bool:
        """True if every step of the cell is done, here or, where its files were kept, elsewhere."""
        return self._is_done_here(system, seed) or self._is_kept(system, seed)

    def exchange_kept(self) -> None:
        """Keep the files of finished cells, and put those of kept cells back where the work directory lacks them.

        Where that cannot be done of a cell it is said; the others go on.
        """
        for system, seed in self.experiment.cells():
            try:
                self._exchange_kept(system, seed)
            except SyntaxDataError as error:
                self.say(f"{system}/{seed}: FAILED to keep its files: {error}")

    def _exchange_kept(self, system: str, seed: int) -> None:
        tasks = self.experiment.cell_tasks(system, seed)
        if self.experiment.keep is None or not tasks:
            return
        if self._is_done_here(system, seed):
            files = {}
            for ours, kept in self._kept_files(system, seed):
                if not ours.is_file():
                    raise SyntaxDataError("keep.files: not a file that can be kept", path=ours)
                files[kept.relative_to(self.experiment.keep.folder).as_posix()] = sha256 = file_sha256(ours)
                if not kept.exists() or file_sha256(kept) != sha256:
                    _copy(ours, kept)
            entry: dict[str, Any] = {"kind": "kept", "cell": f"{system}/{seed}", "files": files}
            entry["fingerprint"], entry["code"] = tasks[-1].fingerprint, self._last_run(tasks[-1]).get("code")
            if self._kept_entry(system, seed) != entry:
                append(self.experiment.record, entry)
        elif self._is_kept(system, seed):
            for ours, kept in self._kept_files(system, seed):
                # what another command left in its place is not this cell's
                if not ours.exists() or file_sha256(ours) != file_sha256(kept):
                    _copy(kept, ours)

    def _is_done_here(self, system: str, seed: int) -> bool:
        tasks = self.experiment.prepare_tasks() + self.experiment.cell_tasks(system, seed)
        return all(self.is_done(task) for task in tasks)

    def _kept_entry(self, system: str, seed: int) -> dict | None:
        """What the record said last of the cell's kept files; None in records of earlier versions."""
        found = None
        for entry in read(self.experiment.record):
            if entry["kind"] == "kept" and entry["cell"] == f"{system}/{seed}":
                found = {key: value for key, value in entry.items() if key != "time"}
        return found

    def _is_kept(self, system: str, seed: int) -> bool:
        """True if the files of the cell that are kept are those that its last step made, as it stands now."""
        keep = self.experiment.keep
        tasks = self.experiment.cell_tasks(system, seed)
        if keep is None or not tasks or not all(kept.is_file() for _, kept in self._kept_files(system, seed)):
            return False
        steps = {(e["cell"], e["step"]): e for e in read(self.experiment.record) if e["kind"] == "step"}
        done = [steps.get((task.cell, task.step), {}) for task in tasks]
        if self.check_code and any(entry.get("code") != code_fingerprint() for entry in done):
            return False
        wanted = [task.fingerprint for task in tasks]
        if [entry.get("fingerprint") for entry in done] != wanted:
            return False
        entry = self._kept_entry(system, seed)
        if entry is None:  # a step that says so was not followed by its keeping: the program was killed between them
            return not done[-1].get("to_keep")
        names = {kept.relative_to(keep.folder).as_posix(): kept for _, kept in self._kept_files(system, seed)}
        if entry["fingerprint"] != wanted[-1] or entry["files"].keys() != names.keys():
            return False
        if self.check_code and entry.get("code") != code_fingerprint():
            return False
        return all(file_sha256(names[name]) == sha256 for name, sha256 in entry["files"].items())

    def _kept_files(self, system: str, seed: int) -> list[tuple[Path, Path]]:
        """The files to keep of a cell, each in the work directory and in the folder of those that are kept.

        Those of steps that are not for its system are none of its own.
        """
        keep = self.experiment.keep
        assert keep is not None
        variables = self.experiment.variables(system, seed)
        made: dict[bool, set[Path]] = {True: set(), False: set()}  # by steps for this system, and by others
        for step in self.experiment.steps:
            outputs = (Path(self.experiment.fill(output, variables)) for output in step.outputs)
            made[step.only is None or system in step.only].update(outputs)
        names = [Path(self.experiment.fill(file, variables)) for file in keep.files]
        holders = {name: {name, *name.parents} for name in names}
        own = [name for name in names if holders[name] & made[True] or not holders[name] & made[False]]
        return [(self.experiment.workdir / name, keep.folder / name) for name in own]

    def run(self, only: Collection[str] | None = None, jobs: int = 1) -> list[str]:
        """Run every step that is not done, cell by cell.

        Args:
            only: names of systems or cells (``pascal``, ``pascal/2``); None for all
            jobs: cells that run at the same time

        Returns:
            the cells that failed; the others went on

        Raises:
            SyntaxDataError: a step of ``prepare`` failed, another run holds the work directory, or a name in
                ``only`` is none of the experiment's
        """
        cells = self.experiment.chosen(only)
        make_folder(self.experiment.workdir)
        with self._lock() as lock, on_termination(self._stop_on_signal), ExitStack() as stack:
            self.exchange_kept()
            kept = [cell for cell in cells if not self._is_done_here(*cell) and self._is_kept(*cell)]
            for system, seed in kept:
                self.say(f"{system}/{seed}: kept from before")
            cells = [cell for cell in cells if cell not in kept]
            if kept and not cells:
                return []
            if self.cluster is not None:
                self.cluster.connect()
            tasks = [self.experiment.prepare_tasks(), *(self.experiment.cell_tasks(*cell) for cell in cells)]
            bar = stack.enter_context(progress(total=sum(map(len, tasks)), of=self.experiment.name, unit="steps"))
            failed = self._run_tasks(tasks[0], lock, bar.update)
            if failed:
                raise SyntaxDataError(f"the step {failed} of prepare failed", path=self._log("prepare", failed))
            with ThreadPoolExecutor(max(1, jobs)) as pool:
                work = {
                    cell: pool.submit(self._run_tasks, own, lock, bar.update) for cell, own in zip(cells, tasks[1:])
                }
                try:
                    return [f"{system}/{seed}" for (system, seed), done in work.items() if done.result() is not None]
                except BaseException:
                    with self._guard:
                        self._stop()
                    raise

    def _run_tasks(self, tasks: list[Task], lock: int, step: Callable[[], object]) -> str | None:
        """Run a cell's steps in order; the name of the one that failed, if any."""
        for place, task in enumerate(tasks):
            if self._stopped:
                return task.step
            if self.is_done(task):
                other = self._last_run(task).get("code") != code_fingerprint()
                self.say(f"{task.cell} {task.step}: done before{', by other code' if other else ''}")
            else:
                for later in tasks[place + 1 :]:
                    self._outdate(later)
                if not self._run_task(task, lock):
                    return task.step
            step()
        system, _, seed = tasks[0].cell.partition("/") if tasks else ("", "", "")
        if seed:
            try:
                with self._guard:
                    self._exchange_kept(system, int(seed))
            except SyntaxDataError as error:
                self.say(f"{tasks[0].cell}: FAILED to keep its files: {error}")
                return "keep"
        return None

    def _run_task(self, task: Task, lock: int) -> bool:
        log, mark = self._log(task.cell, task.step), self._mark(task)
        log.parent.mkdir(parents=True, exist_ok=True)
        mark.parent.mkdir(parents=True, exist_ok=True)
        if self._was_another(task):
            self._remove_outputs(task)
        self._record_environment()
        attempts = self._count_attempt(task)
        mark.unlink(missing_ok=True)
        for output in task.outputs:
            (self.experiment.workdir / output).parent.mkdir(parents=True, exist_ok=True)
        self.say(f"{task.cell} {task.step}: started" + (f", attempt {attempts}" if attempts > 1 else ""))
        start = time.time()
        with log.open("ab" if attempts > 1 else "wb") as stream:  # a training goes on, and so does its log
            stream.write(f"$ {task.command.strip()}\n".encode())
        code = (
            self._run_there(task.command, log) if self.cluster is not None else self._run_here(task.command, log, lock)
        )
        if code is None:
            return False
        seconds = round(time.time() - start, 2)
        missing = self._missing(task)
        if code != 0 or missing:
            why = f"exit code {code}" if code != 0 else f"it did not make {missing[0]}"
            self.say(f"{task.cell} {task.step}: FAILED after {seconds} s: {why}; see {log}\n{_tail(log)}")
            return False
        entry: dict[str, Any] = {"kind": "step", "cell": task.cell, "step": task.step, "command": task.command.strip()}
        entry |= {"seconds": seconds, "attempts": attempts, "fingerprint": task.fingerprint}
        entry["code"] = code_fingerprint()
        if self.experiment.keep is not None and task.cell != "prepare":
            entry["to_keep"] = True
        if task.inputs:
            entry["inputs"] = dict(task.inputs)
        # the record first: a step with a record and without a mark runs again, and the later record counts
        append(self.experiment.record, entry)
        write_whole(mark, json.dumps(entry, indent=1, ensure_ascii=False) + "\n")
        self._attempts(task).unlink(missing_ok=True)
        self.say(f"{task.cell} {task.step}: done in {seconds} s")
        return True

    def _run_here(self, command: str, log: Path, lock: int) -> int | None:
        """A command's exit status; None where it was not started, since all are to stop."""
        with log.open("ab") as stream:
            with self._guard:
                if self._stopped:
                    return None
                process = subprocess.Popen(
                    [*_SHELL, command],
                    cwd=self.experiment.workdir,
                    env=self._environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
                self._running.add(process)
            code = process.wait()
            with self._guard:
                self._running.discard(process)
        return code

    def _run_there(self, command: str, log: Path) -> int | None:
        """As :meth:`_run_here`, on the cluster; Ray ends the command when this process ends, as the lock does here."""
        assert self.cluster is not None
        with self._guard:
            if self._stopped:
                return None
        workdir = os.fspath(self.experiment.workdir.absolute())
        code = self.cluster.command(
            [*_SHELL, command], cwd=workdir, env=self.experiment.env, log=os.fspath(log.absolute())
        )
        return None if self._stopped else code

    def _record_environment(self) -> None:
        with self._guard:
            if not self._recorded:
                record_environment(self.experiment.record)
                self._recorded = True

    def _last_run(self, task: Task) -> dict[str, Any]:
        """The ``fingerprint`` and ``code`` of what was started or done last in the step's place, if anything was.

        Of what was started and did not end also ``started``, how often.
        """
        for path in (self._attempts(task), self._mark(task)):
            try:
                text = path.read_text(encoding="utf-8")
            except OSError:
                continue
            with suppress(ValueError, TypeError):
                return dict(json.loads(text))
            with suppress(ValueError):  # as earlier versions wrote it
                known, started = text.split()
                return {"fingerprint": known, "started": int(started)}
        return {}

    def _was_another(self, task: Task) -> bool:
        """Whether another command made what is there or, where that is asked, other code of this package."""
        last = self._last_run(task)
        other_code = self.check_code and last.get("code") != code_fingerprint()
        return bool(last) and (last.get("fingerprint") != task.fingerprint or other_code)

    def _remove_outputs(self, task: Task) -> None:
        """Remove what another command made, so that it passes for nobody else's work; only in the work directory."""
        for output in task.outputs:
            path = self.experiment.workdir / output
            if self.experiment.workdir not in path.resolve().parents:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def _count_attempt(self, task: Task) -> int:
        """How often this very command has been started without an end, this time included."""
        last = self._last_run(task)
        attempts = last.get("started", 0) + 1 if last.get("fingerprint") == task.fingerprint else 1
        found = {"fingerprint": task.fingerprint, "started": attempts, "code": code_fingerprint()}
        write_whole(self._attempts(task), json.dumps(found) + "\n")
        return attempts

    def _outdate(self, task: Task) -> None:
        """A step is no longer done, as the one before it is done again: what it made is of what that had made before.

        It stays until the step itself runs, for the one before it may fail.
        """
        if self._mark(task).exists() or self._attempts(task).exists():
            write_whole(self._attempts(task), json.dumps({"fingerprint": None, "started": 0}) + "\n")
            self._mark(task).unlink(missing_ok=True)

    def _missing(self, task: Task) -> list[str]:
        return [path for path in task.outputs if not (self.experiment.workdir / path).exists()]

    def _mark(self, task: Task) -> Path:
        return self.experiment.workdir / task.cell / ".done" / f"{task.step}.json"

    def _attempts(self, task: Task) -> Path:
        return self.experiment.workdir / task.cell / ".done" / f"{task.step}.attempts"

    def _log(self, cell: str, step: str) -> Path:
        return self.experiment.workdir / cell / "logs" / f"{step}.log"

    def _environment(self) -> dict[str, str]:
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        return {**os.environ, "PATH": path, **self.experiment.env}

    @contextmanager
    def _lock(self):
        path = self.experiment.workdir / ".lock"
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SyntaxDataError(
                    "another run of this experiment, or a command that it started, is still going", path=path
                ) from None
            except OSError:
                self.say(f"{path}: the file system has no locks; see that no other run works here")
            yield lock
        finally:
            os.close(lock)

    def _stop_on_signal(self, number: int) -> None:
        self._stop()
        raise KeyboardInterrupt

    def _stop(self) -> None:
        self._stopped = True
        if self.cluster is not None:
            self.cluster.cancel()
        for process in list(self._running):
            try:
                os.killpg(process.pid, signal.SIGTERM)
            except ProcessLookupError:
                continue


@cache
def code_fingerprint() -> str:
    """Of all modules of this package."""
    package = Path(fairseq_syntax.__file__).parent
    return fingerprint(*((os.fspath(f.relative_to(package)), file_sha256(f)) for f in sorted(package.rglob("*.py"))))


def _copy(source: Path, target: Path) -> None:
    """A copy that is there whole or not at all."""
    make_folder(target.parent)
    with source.open("rb") as file, atomic_open_binary(target) as copy:
        shutil.copyfileobj(file, copy)


def _tail(log: Path, lines: int = 12) -> str:
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    return "\n".join("    " + line[:300] for line in text)
