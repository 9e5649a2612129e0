"""What runs on the nodes of a Ray cluster for :mod:`.ray_workers`: a worker, and a command."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import fairseq_syntax
from fairseq_syntax.errors import SyntaxDataError


class _Records(logging.Handler):
    """Keeps what is logged, to be said where the user is."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[tuple[str, int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.name, record.levelno, record.getMessage()))

    def taken(self) -> list[tuple[str, int, str]]:
        found, self.found = self.found, []
        return found


class Actor:
    """A worker, in a process of the cluster. Each call gives a result, or an error that the user is to read."""

    def __init__(self) -> None:
        self._records = _Records()
        logging.getLogger("fairseq_syntax").addHandler(self._records)

    def begin(self, cwd: str, path: list[str], version: str, start: bytes) -> tuple[Any, ...]:
        from ray import cloudpickle

        if fairseq_syntax.__version__ != version:
            message = f"the node {socket.gethostname()} has version {fairseq_syntax.__version__} of fairseq-syntax"
            return None, SyntaxDataError(f"{message}, and this one {version}", hint="install the same everywhere"), []
        # As a process of this machine would have them: a parser's module and a folder may be named relative to here.
        with suppress(OSError):
            os.chdir(cwd)
        sys.path += [entry for entry in path if entry not in sys.path]

        def begin() -> None:
            function, arguments = cloudpickle.loads(start)
            if function is not None:
                function(*arguments)

        return self._said(begin)

    def do(self, work: bytes, task: Any) -> tuple[Any, ...]:
        from ray import cloudpickle

        return self._said(lambda: cloudpickle.loads(work)(task))

    def _said(self, function: Callable[[], Any]) -> tuple[Any, ...]:
        try:
            return function(), None, self._records.taken()
        except SyntaxDataError as error:
            return None, error, self._records.taken()


# Starts a command as the head of a group, and ends the group when the other end of its input is closed: by a worker
# that is killed, too. It leaves the worker's family first, of which Ray kills the children; its status goes by a pipe.
WATCHER = """
import os, signal, subprocess, sys, threading
if os.fork():
    os._exit(0)
os.setsid()
with open(sys.argv[1], "ab") as log:
    try:
        command = subprocess.Popen(
            sys.argv[2:], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    except OSError as error:
        log.write(f"{sys.argv[2]}: cannot be started: {error.strerror}\\n".encode())
        print(127, flush=True)  # as a shell says it
        sys.exit()
def end():
    sys.stdin.buffer.read()
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(command.pid, number)
            command.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
threading.Thread(target=end, daemon=True).start()
print(command.wait(), flush=True)
"""


def run_command(arguments: list[str], cwd: str, env: dict[str, str], log: str) -> int:
    """Runs a command in a process of the cluster; returns its status, 127 where it cannot be started.

    Raises:
        SyntaxDataError: the folder is not there
    """
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    watcher = [sys.executable, "-c", WATCHER, log, *arguments]
    if not os.path.isdir(cwd):
        hint = "the work directory must be on a file system that all nodes share"
        raise SyntaxDataError(f"is not there on the node {socket.gethostname()}", path=cwd, hint=hint)
    process = subprocess.Popen(
        watcher,
        cwd=cwd,
        env={**os.environ, "PATH": path, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    status = process.stdout.read().strip()
    process.wait()
    return int(status) if status else -signal.SIGKILL
