"""Commands that end when the process that wants them does: their status, output and end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.commands import WATCHER, run_command


def test_status_output_and_log(tmp_path, capfd):
    def run(*arguments: str, output: str | None = None) -> int:
        return run_command(list(arguments), str(tmp_path), {"WORD": "hello"}, str(tmp_path / "log"), output)

    made = tmp_path / "made"
    assert run("bash", "-c", "echo part; exit 3", output=str(made)) == 3 and not made.exists()
    assert run("bash", "-c", "echo $WORD; echo aside >&2", output=str(made)) == 0 and made.read_text() == "hello\n"
    assert run("no-such-program") == 127
    assert "aside" in (tmp_path / "log").read_text() and "no-such-program" in (tmp_path / "log").read_text()
    assert capfd.readouterr() == ("", ""), "all that a command says is in its log"
    with pytest.raises(SyntaxDataError):
        run_command(["true"], str(tmp_path / "nowhere"), {}, str(tmp_path / "log"))


def test_a_command_and_its_children_end_with_their_input(tmp_path):
    started: list[subprocess.Popen] = []
    alive = tmp_path / "alive"
    script = f"(while true; do echo >> {alive}; sleep 0.05; done) & sleep 100"
    statuses: list[int] = []

    def run() -> None:
        log = str(tmp_path / "log")
        statuses.append(run_command(["bash", "-c", script], str(tmp_path), {}, log, started=started.append))

    thread = threading.Thread(target=run)
    thread.start()
    while not alive.exists():
        time.sleep(0.05)
    assert started[0].stdin is not None
    started[0].stdin.close()
    thread.join(60)
    assert statuses == [-15]
    size = Path(alive).stat().st_size
    time.sleep(0.3)
    assert alive.stat().st_size == size


def test_a_command_says_nothing_where_its_parent_was_killed(tmp_path):
    words = [sys.executable, "-c", WATCHER, str(tmp_path / "log"), "", "sleep", "60"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(words, **pipes) as watcher:
        watcher.stdout.close()
        watcher.stdin.close()
        assert watcher.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_command_goes_on_whose_watcher_was_ended(tmp_path, number):
    """Its parent takes it for ended, and what comes next would meet it."""
    said = tmp_path / "said"
    script = f"echo $PPID $$ > {said}.part; mv {said}.part {said}; exec sleep 100"
    statuses: list[int] = []

    def run() -> None:
        statuses.append(run_command(["bash", "-c", script], str(tmp_path), {}, str(tmp_path / "log")))

    thread = threading.Thread(target=run)
    thread.start()
    while not said.exists():
        time.sleep(0.02)
    watcher, command = map(int, said.read_text().split())
    os.kill(watcher, number)
    thread.join(60)
    assert statuses == [-number]
    with pytest.raises(ProcessLookupError):
        for _ in range(500):  # until the system has removed it
            os.kill(command, 0)
            time.sleep(0.02)
