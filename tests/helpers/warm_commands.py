"""The installed commands, run in forks of a process that has imported fairseq: that takes longer than what they do.

What a command sees is its own: arguments, streams, folder, environment, and the plugin, which is loaded as ever. The
commands that a command starts itself, as ``run`` does by ``python -m``, are forks, too. If whoever asked for a command
ends, so does the command.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

_COMMAND = """#!{python} -ES
import json, os, socket, sys
if os.path.basename(sys.argv[0]) == "python":
    program = sys.argv[2].replace("_cli.", "-").replace("_", "-") if sys.argv[1:2] == ["-m"] else ""
    if program not in {names}:
        os.execv({python!r}, [{python!r}, *sys.argv[1:]])
    sys.argv = [program, *sys.argv[3:]]
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
message = json.dumps([sys.argv, os.getcwd(), dict(os.environ), {folder!r}])
socket.send_fds(server, [message.encode() + b"\\n"], [0, 1, 2])
status = server.recv(1)
sys.exit(status[0] if status else 1)
"""
NAMES = ("fairseq-syntax", *(f"fairseq-{name}" for name in ("preprocess", "train", "generate", "interactive")))


def _run(argv: list[str], folder: str, environment: dict[str, str], commands: str) -> int:
    sys.executable = os.path.join(commands, "python")
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if environment.get("FAIRSEQ_SYNTAX_USER_DIR"):  # the server has registered without it
        import_module("fairseq_syntax").register()
    sys.argv, name = argv, Path(argv[0]).name
    if name != "fairseq-generate":  # this one has the log as fairseq's tasks set it up; the others begin with their own
        logging.getLogger().handlers.clear()
    try:
        if name == "fairseq-syntax":
            status = import_module("fairseq_syntax.cli").main()
        else:
            status = import_module(f"fairseq_cli.{name.partition('-')[2]}").cli_main()
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        status = stop.code
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status if isinstance(status, int) else int(status is not None)


def _end_with(connection: socket.socket) -> None:
    """Tells this process to end when the other side is gone."""
    if not connection.recv(1):
        os.kill(os.getpid(), signal.SIGTERM)


def _serve(address: str) -> None:
    for name in ("criterions", "models", "tasks"):
        import_module(f"fairseq.{name}")
    # as PyTorch does where an optimizer is made, and what most commands import at once or later
    for name in ("torch._dynamo", "hydra.experimental", "omegaconf.grammar_parser", "sentencepiece", "sacrebleu"):
        import_module(name)
    import_module("fairseq_syntax.runtime.console").lock_bars_per_process()  # tests kill commands
    gc.freeze()  # Python's collector in a command writes to no memory that it shares with this process
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    print("ready", flush=True)
    running: set[int] = set()
    while True:
        connection, _ = server.accept()
        running -= {child for child in running if os.waitpid(child, os.WNOHANG)[0]}
        if child := os.fork():
            running.add(child)
            connection.close()
            continue
        server.close()
        message, streams, *_ = socket.recv_fds(connection, 1 << 16, 3)
        while not message.endswith(b"\n"):
            more = connection.recv(1 << 16)
            if not more:
                os._exit(1)  # whoever asked was killed meanwhile
            message += more
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        # Objects of their own, as in a new process: those of the server remember what its streams can do.
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
        threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
        status = _run(*json.loads(message))
        connection.send(bytes([status & 255]))
        os._exit(status)


class WarmCommands:
    """What starts them: a process at an address."""

    def __init__(self, address: str) -> None:
        self.address = address

    def put(self, folder: Path, names: Sequence[str] = NAMES) -> Path:
        """A folder for ``PATH`` that has these commands, and ``python`` for ``python -m``, below ``folder``."""
        commands = folder / "commands"
        commands.mkdir()
        values = {"python": sys.executable, "address": self.address, "names": tuple(names), "folder": str(commands)}
        for name in (*names, "python"):
            (commands / name).write_text(_COMMAND.format(**values), encoding="utf-8")
            (commands / name).chmod(0o755)
        return commands


@contextmanager
def warm_commands(folder: Path) -> Iterator[WarmCommands]:
    """A process that has imported fairseq, with its socket in ``folder``."""
    address = str(folder / "socket")
    # The package under test, rather than one installed from another checkout, whose options may be others.
    package = find_spec("fairseq_syntax")
    assert package and package.origin
    paths = [str(Path(package.origin).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    server = subprocess.Popen([sys.executable, __file__, address], env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout and server.stdout.readline() == "ready\n"
        yield WarmCommands(address)
    finally:
        server.kill()
        server.communicate()


if __name__ == "__main__":
    _serve(sys.argv[1])
