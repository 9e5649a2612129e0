"""Subprocesses that end with their parent, even if it is killed; and handlers for termination signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fairseq_syntax.runtime.files import check_shared

# Starts a command in a new process group, and ends the group when the other end of its stdin is closed, which also
# happens when the parent is killed. It first detaches from the parent, since Ray kills a worker's children; the exit
# status is returned through a pipe. A signal to end that it gets itself is for the group; if it is killed, so is the
# command (by Linux), which would otherwise go on while its parent takes it for ended.
WATCHER = """
import ctypes, os, signal, subprocess, sys, threading
if os.fork():
    os._exit(0)
os.setsid()
def tell(status):
    try:
        os.write(1, b"%d" % status)
    except OSError:
        pass  # the parent has been killed
def end_with_this():
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
with open(sys.argv[1], "ab") as log, open(sys.argv[2] or os.devnull, "wb") as output:
    try:
        command = subprocess.Popen(
            sys.argv[3:],
            stdin=subprocess.DEVNULL,
            stdout=output if sys.argv[2] else log,
            stderr=log,
            start_new_session=True,
            preexec_fn=end_with_this,
        )
    except OSError as error:
        log.write(f"{sys.argv[3]}: cannot be started: {error.strerror}\\n".encode())
        tell(127)  # as in a shell
        sys.exit()
def end():
    os.read(0, 1)
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(command.pid, number)
            command.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
def pass_on(number, _):
    try:
        os.killpg(command.pid, number)
    except ProcessLookupError:
        pass
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, pass_on)
threading.Thread(target=end, daemon=True).start()
tell(command.wait())
"""


def run_command(
    arguments: list[str],
    cwd: str,
    env: dict[str, str],
    log: str,
    output: str | None = None,
    started: Callable[[subprocess.Popen], None] | None = None,
) -> int:
    """Run a command that ends when this process ends; returns its exit status, or 127 if it cannot be started.

    Args:
        env: environment variables in addition to those of this process
        log: the file to which the output is appended
        output: a file for the standard output, which is created when the command succeeds
        started: called with the process as soon as it exists; closing its ``stdin`` ends the command
    """
    # Prefer the commands of this environment, which may not be activated where a worker runs.
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    part = f"{output}.part" if output else ""
    check_shared(cwd)
    with subprocess.Popen(
        [sys.executable, "-c", WATCHER, log, part, *arguments],
        cwd=cwd,
        env={**os.environ, "PATH": path, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        if started is not None:
            started(process)
        assert process.stdout is not None
        status = process.stdout.read().strip()
    if output and status == b"0":
        os.replace(part, output)
    return int(status) if status else -signal.SIGKILL  # a killed watcher reports no status


@contextmanager
def on_termination(stop: Callable[[int], None]) -> Iterator[None]:
    """Call ``stop`` with the signal number at SIGTERM and SIGINT; does nothing outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, _: stop(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
