"""What a user sees of a fault: one line and an exit status, in this package's command and in fairseq's."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
import toy_data
from matrix_part import of_ten_seconds

from fairseq_syntax.runtime.faults import end_on_full_disk

pytestmark = pytest.mark.slow  # each starts processes that import fairseq
TASK = ["--task", "syntax_translation", "-s", "en", "-t", "de", "--cpu"]


def fairseq_argv(command: str, *arguments) -> list[str]:
    user_dir = ["--user-dir", str(toy_data.USER_DIR)]
    return [sys.executable, "-m", f"fairseq_cli.{command}", *map(str, arguments), *user_dir]


def run(argv: list[str], shell_before: str = "", **environment) -> subprocess.CompletedProcess:
    options = {"env": {**os.environ, "PYTHONWARNINGS": "ignore", **environment}, "capture_output": True, "text": True}
    if shell_before:
        argv = ["bash", "-c", f'{shell_before}; exec "$@"', "bash", *argv]
    return subprocess.run(argv, timeout=300, **options)


def errors_of(done: subprocess.CompletedProcess) -> list[str]:
    logged = ("INFO:", "DEBUG:", "WARNING:")
    return [line for line in done.stderr.splitlines() if line.strip() and not line.startswith(logged)]


@of_ten_seconds
def test_a_fault_inside_a_command_of_fairseq_is_one_line(toy, tmp_path):
    argv = fairseq_argv("generate", toy.data, *TASK, "--path", tmp_path / "none.pt", "--gen-subset", "nope")
    done = run(argv)
    assert done.returncode == 1 and len(errors_of(done)) == 1 and "none.pt" in done.stderr, done.stderr
    assert "Traceback" in run(argv, FAIRSEQ_SYNTAX_TRACEBACK="1").stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@of_ten_seconds
@pytest.mark.parametrize("command", ["fairseq-generate", "translate"])
def test_a_full_disk_behind_the_output_is_one_line(toy, trained, command):
    if command == "translate":
        argv = [sys.executable, "-m", "fairseq_syntax", "translate", str(trained), "--device", "cpu"]
        argv += ["--input", str(toy.raw / "test.en.conllu")]
    else:
        argv = fairseq_argv("generate", toy.data, *TASK, "--path", trained, "--max-tokens", 400)
    done = run(argv, "exec > /dev/full")
    assert done.returncode == 1 and len(errors_of(done)) == 1 and "No space left" in done.stderr, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@of_ten_seconds
def test_a_full_disk_behind_a_log_or_a_help_ends_the_command(toy, tmp_path):
    """Of each line of the log there were forty of a traceback, and the status was 0."""
    for argv in (training(toy, tmp_path), fairseq_argv("train", toy.data, "--task", "syntax_translation", "--help")):
        done = run(argv, "exec > /dev/full")
        told = done.stderr.rpartition("--- Logging error ---")[2].splitlines()[-1]  # fairseq's own, before the plugin
        assert done.returncode == 1 and "No space left" in told and told.startswith("fairseq-train"), done.stderr


@of_ten_seconds
def test_output_is_utf8_whatever_the_locale(toy, trained, tmp_path):
    (tmp_path / "text").write_text("größe\n", "utf-8")
    argv = [sys.executable, "-c", "from fairseq_syntax.runtime.faults import write_utf8; write_utf8(); print('größe')"]
    assert run(argv, PYTHONIOENCODING="ascii").returncode == 0


def training(toy, folder: Path) -> list[str]:
    options = {**toy_data.MODEL, **toy_data.TRAINING, "--max-epoch": 5000, "--num-workers": 1, "--log-format": "simple"}
    given = [x for name, value in options.items() for x in (name, value)]
    return fairseq_argv("train", toy.data, "--save-dir", folder, *given, *toy_data.FLAGS)


@of_ten_seconds
def test_an_interrupted_training_ends_clean_and_a_second_one_in_its_folder_does_not_begin(toy, tmp_path):
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    pipe = subprocess.PIPE
    # Who runs the tests in the background may have turned the signal off, which a process passes on.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    first = subprocess.Popen(
        training(toy, tmp_path), env=environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed
    )
    try:
        deadline = time.monotonic() + 200
        while not (tmp_path / "checkpoint_last.pt").exists() and time.monotonic() < deadline and first.poll() is None:
            time.sleep(0.2)
        second = run(training(toy, tmp_path))
        assert second.returncode == 1 and str(tmp_path) in errors_of(second)[-1] and len(errors_of(second)) == 1
    finally:
        first.send_signal(signal.SIGINT)
    _, said = first.communicate(timeout=100)
    assert first.returncode == 130 and "Traceback" not in said and "interrupted" in said, said


@of_ten_seconds
def test_too_few_open_files_do_not_let_a_training_wait_for_ever(toy, tmp_path):
    done = run(training(toy, tmp_path), "ulimit -n 40")
    assert done.returncode == 1 and "ulimit" in done.stderr and len(errors_of(done)) == 1, done.stderr


@pytest.mark.parametrize(("number", "ends"), [(errno.ENOSPC, True), (errno.EPIPE, False), (errno.EIO, False)])
def test_a_lost_line_of_the_log_ends_a_command_on_a_full_disk_only(monkeypatch, number, ends):
    """Not when whoever read the log has gone: a training goes on."""

    class Lost(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(logging.Handler, "handleError", logging.Handler.handleError)
    monkeypatch.setattr(argparse.ArgumentParser, "_print_message", argparse.ArgumentParser._print_message)
    monkeypatch.setattr(logging, "raiseExceptions", False)
    end_on_full_disk()
    record = logging.makeLogRecord({"msg": "epoch 1"})
    with pytest.raises(OSError) if ends else nullcontext():
        logging.StreamHandler(Lost()).handle(record)
