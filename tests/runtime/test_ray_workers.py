"""Work that Ray places: the results are those of one process, whatever happens to the nodes."""

from __future__ import annotations

import ast
import importlib.util
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray_cluster  # sets the environment that Ray reads when it is imported
from data_errors import data_error, refused

import fairseq_syntax
from fairseq_syntax.cli import main
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.runner import Runner
from fairseq_syntax.lab.recipes.stages import Stage, StageCommand
from fairseq_syntax.runtime import commands, ray_workers
from fairseq_syntax.runtime.files import check_shared
from fairseq_syntax.runtime.ray_workers import RayWorkers
from fairseq_syntax.runtime.workers import in_workers

on_the_cluster = pytest.mark.matrix(1, of="work on a cluster")
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")


@pytest.fixture(scope="module")
def nodes() -> Iterator[ray_cluster.Nodes]:
    with ray_cluster.ray_cluster(2) as result:
        yield result


def square(number: int) -> int:
    if number == -2:
        raise SyntaxDataError("bad", path="file", line=3)
    time.sleep(0.002 * (number % 3))
    return number * number


# --------------------------------------------------------------------------------------------------- without Ray


def test_one_module_imports_ray_and_only_when_it_is_asked_for():
    root = Path(fairseq_syntax.__file__).parent
    actual = []
    for path in root.rglob("*.py"):
        source = path.read_text("utf-8")
        if "ray" not in source.replace("array", ""):
            continue
        tree = ast.parse(source)
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "ray" for name in names):
                assert node not in tree.body
                actual.append(path.name)
    assert set(actual) == {"ray_workers.py"}


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    (tmp_path / "text").write_text("a\n")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    arguments = ["parse", "--parser", "chain_parser", "--input", str(tmp_path / "text")]
    refused([*arguments, "--output", str(tmp_path / "out"), "--ray"], "pip install 'fairseq-syntax[ray]'")
    assert os.listdir(tmp_path) == ["text"]


@needs_ray
def test_an_address_without_a_cluster_is_said_within_the_time_limit(monkeypatch):
    monkeypatch.setattr(ray_workers, "SECONDS_TO_REACH", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with data_error(f"127.0.0.1:{port}"):
            RayWorkers(f"127.0.0.1:{port}")
    with data_error(f"127.0.0.1:{port}"):
        RayWorkers(f"127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with data_error(f"127.0.0.1:{other.getsockname()[1]}"):
            RayWorkers(f"127.0.0.1:{other.getsockname()[1]}")
        thread.join()
    for address in ("ray://127.0.0.1:10001", "host:port"):
        with data_error(address):
            RayWorkers(address)


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["--gpus-per-worker", "1"], "--gpus-per-worker"),
        (["--ray", "--gpus-per-worker", "1"], "--gpus-per-worker"),
        (["--ray", "--merge"], "--ray"),
        (["--ray", "--parser", "conllu"], "--ray"),
    ],
)
def test_options_that_contradict_each_other(tmp_path, arguments, option):
    (tmp_path / "text").write_text("a\n")
    common = ["parse", "--parser", "chain_parser", "--input", str(tmp_path / "text"), "--output", str(tmp_path / "o")]
    refused([*common, *arguments], option=option)


def test_a_machine_that_does_not_share_the_folder_is_named(tmp_path):
    with data_error(socket.gethostname()):
        check_shared(tmp_path / "elsewhere")


def test_a_command_ends_with_the_worker_that_started_it(tmp_path):
    mark, log = tmp_path / "mark", tmp_path / "log"
    command = f"import time; open({str(mark)!r}, 'w').close(); time.sleep(60)"
    source = f"""
import subprocess, sys
command = [sys.executable, "-c", {commands.WATCHER!r}, {str(log)!r}, "", sys.executable, "-c", {command!r}]
process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
process.stdout.read()
"""
    worker = subprocess.Popen([sys.executable, "-c", source])
    until(mark.exists)
    running = [pid for pid in os.listdir("/proc") if pid.isdigit() and command in _command_line(pid)]
    assert running
    worker.kill()
    worker.wait()
    until(lambda: not any(command in _command_line(pid) for pid in running))


def test_a_command_that_cannot_be_started_says_why(tmp_path):
    status = commands.run_command(["no-such-program", "a"], str(tmp_path), {}, str(tmp_path / "log"))
    assert status == 127
    assert (tmp_path / "log").read_text() == "no-such-program: cannot be started: No such file or directory\n"


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_a_cluster_that_is_started_here_is_on_the_loopback_interface(tmp_path):
    """In a process of its own, where nothing is set that Ray reads when it is imported."""
    code = """
from fairseq_syntax.runtime.ray_workers import RayWorkers
with RayWorkers("local") as workers:
    print(*(node["NodeManagerAddress"] for node in workers.connect().nodes()))
"""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    variables |= {"HOME": str(tmp_path), "PYTHONPATH": str(Path(fairseq_syntax.__file__).parents[1])}  # for Ray's token
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["127.0.0.1"], done.stderr


@needs_ray
def test_local_is_a_cluster_that_is_started_here(monkeypatch):
    monkeypatch.setattr(ray_workers, "_running_here", lambda: "127.0.0.1:6379")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    for address in (None, "local"):
        with RayWorkers(address) as workers:
            assert workers.address is None
    monkeypatch.delenv("RAY_ADDRESS")
    with RayWorkers() as workers:
        assert workers.address == "127.0.0.1:6379"


def _command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text("utf-8", "replace")
    except OSError:
        return ""


def until(condition, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


# ------------------------------------------------------------------------------------------------ on a real cluster


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_every_result_comes_and_the_source_is_not_read_ahead(nodes):
    taken = []

    def source() -> Iterator[int]:
        for number in range(40):
            taken.append(number)
            yield number

    with RayWorkers(nodes.address) as workers:
        results = []
        for result in in_workers(square, source(), workers=workers):
            results.append(result)
            assert len(taken) <= len(results) + 8
        assert sorted(results) == [n * n for n in range(40)]
        with data_error(path="file", line=3):
            list(in_workers(square, [1, -2, 3], workers=workers))
        assert list(in_workers(square, [], workers=workers)) == []


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_no_thread_asks_ray_for_results_after_its_shutdown(nodes, tmp_path):
    """It would read freed memory: the process crashed a second later."""

    def fail_beside_running_work(number: int) -> None:
        if number == 0:
            while not os.path.exists(tmp_path / "running"):
                time.sleep(0.05)
            raise SyntaxDataError("bad")
        (tmp_path / "running").touch()
        time.sleep(3600)

    before = set(threading.enumerate())
    with RayWorkers(nodes.address) as workers, data_error():  # two run, the others wait for a node
        list(in_workers(fail_beside_running_work, range(5), workers=workers))
    assert not [thread for thread in set(threading.enumerate()) - before if "ThreadPool" in thread.name]


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_a_task_that_ray_does_not_cancel_is_given_up(nodes, tmp_path, monkeypatch):
    """Ray ignores the cancellation of a task that it is just assigning to a worker."""
    end, log = tmp_path / "end", tmp_path / "log"

    def fail_beside_running_work(number: int) -> None:
        if number == 0:
            raise SyntaxDataError("bad")
        until(end.exists)

    monkeypatch.setattr(ray_workers, "SECONDS_TO_CANCEL", 1)
    with RayWorkers(nodes.address) as workers:
        monkeypatch.setattr(workers.connect(), "cancel", lambda stream, force: None)
        with data_error():
            list(in_workers(fail_beside_running_work, range(2), workers=workers))
        end.touch()
        statuses: list[int] = []
        command = ["sh", "-c", f"echo begun; until [ -e {tmp_path}/end2 ]; do sleep 0.1; done"]
        where = {"cwd": str(tmp_path), "env": {}, "log": str(log)}
        thread = threading.Thread(target=lambda: statuses.append(workers.command(command, **where)))
        thread.start()
        until(lambda: log.exists() and log.read_text() == "begun\n")
        workers.cancel()
        thread.join(60)
        assert statuses == [-signal.SIGTERM]
        assert workers.command(command, **where) == -signal.SIGTERM
        (tmp_path / "end2").touch()


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_work_that_waits_for_workers_says_so_once(nodes, tmp_path, monkeypatch, caplog):
    def hold(path: str) -> None:
        while not os.path.exists(path):
            time.sleep(0.05)

    monkeypatch.setattr(ray_workers, "SECONDS_TO_START", 0.5)
    done, log, end = [], tmp_path / "train.log", tmp_path / "end"
    with RayWorkers(nodes.address, count=3) as workers:
        ray = workers.connect()
        for _ in nodes.nodes:
            ray.remote(num_cpus=1)(hold).remote(str(end))
        until(lambda: not ray.available_resources().get("CPU"))
        start = {"cwd": str(tmp_path), "env": {}, "log": str(log)}
        threads = [
            threading.Thread(target=lambda: done.append(sorted(in_workers(square, range(9), workers=workers)))),
            threading.Thread(target=lambda: done.append(workers.command(["true"], **start))),
        ]
        for thread in threads:
            thread.start()
        until(lambda: len(caplog.messages) == 2)
        time.sleep(2)
        assert not done
        end.touch()
        for thread in threads:
            thread.join(300)
    assert [0, [n * n for n in range(9)]] == sorted(done, key=str)
    told = "waiting for a worker with 1 CPUs and 0 GPUs; 0 CPUs and 0 GPUs of 2 CPUs and 0 GPUs are free"
    assert sorted(caplog.messages) == sorted([told, f"{log}: {told}"])


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_a_worker_that_fits_no_node_is_told(nodes, monkeypatch, caplog):
    """Not if it fits all nodes together."""
    with RayWorkers(nodes.address, cpus=2) as workers:
        workers.connect()
    assert "2 CPUs and 0 GPUs" in caplog.text and "waiting for more" in caplog.text


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_nodes_are_killed_and_the_parse_is_that_of_one_process(nodes, tmp_path):
    text = tmp_path / "text"
    text.write_text("".join(f"SLOW line {number} of it\n" for number in range(120)))
    common = ["parse", "--parser", "chain_parser", "--input", str(text), "--part-lines", "3"]
    assert main([*common, "--output", str(tmp_path / "one")]) == 0
    generator = random.Random(os.urandom(4))

    def kill() -> None:
        parts = tmp_path / "two.parts"
        until(lambda: parts.is_dir() and len(os.listdir(parts)) >= 2)
        time.sleep(generator.random())
        nodes.kill()
        nodes.add()

    killer = threading.Thread(target=kill)
    killer.start()
    assert main([*common, "--output", str(tmp_path / "two"), "--ray", nodes.address, "--workers", "2"]) == 0
    killer.join()
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()
    assert sorted(os.listdir(tmp_path)) == [".one.made.json", ".two.made.json", "one", "text", "two"]


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_a_part_that_kills_its_workers_ends_the_run(nodes, tmp_path, capsys):
    text = tmp_path / "text"
    text.write_text("one\nKILL here\nthree\n")
    (tmp_path / "die").touch()
    arguments = ["parse", "--parser", "chain_parser", "--model-dir", str(tmp_path), "--input", str(text)]
    arguments += ["--part-lines", "1", "--output", str(tmp_path / "out"), "--ray", nodes.address, "--workers", "1"]
    assert main(arguments) == 1
    assert re.search(r"\b5\b", capsys.readouterr().err)
    assert len(os.listdir(tmp_path / "out.parts")) >= 1
    (tmp_path / "die").unlink()
    assert main(arguments) == 0


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_pieces_are_made_on_the_cluster(nodes, tmp_path):
    text = tmp_path / "train.xx"
    text.write_text("".join(f"a line of text with number {number}\n" for number in range(200)))
    common = ["segment", "--lang", "xx", "--input", str(text), "--train", "sentencepiece", "--vocab-size", "40"]
    assert main([*common, "--output", str(tmp_path / "one")]) == 0
    model = str(tmp_path / "one" / "segmentation.xx.json")
    on_ray = ["segment", "--lang", "xx", "--input", str(text), "--model", model, "--ray", nodes.address]
    assert main([*on_ray, "--output", str(tmp_path / "two")]) == 0
    assert (tmp_path / "one" / "train.xx").read_bytes() == (tmp_path / "two" / "train.xx").read_bytes()


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_stores_and_inventories_are_made_on_the_cluster(nodes, toy, tmp_path):
    data, texts = tmp_path / "data", str(toy.segmented / "train")
    shutil.copytree(toy.data, data)
    store = data / "train.en-de.en.syntax.arrow"
    whole = store.read_bytes()
    store.unlink()
    cluster = ["--ray", nodes.address, "--workers", "1"]
    assert main(["binarize", "-s", "en", "-t", "de", "--trainpref", texts, "--output", str(data), *cluster]) == 0
    assert store.read_bytes() == whole
    assert main(["inventory", "--lang", "en", "--input", f"{texts}.en", "--output", str(tmp_path), *cluster]) == 0
    for name in ("labels.en.json", "dict.en.txt"):
        assert (tmp_path / name).read_bytes() == (toy.data / name).read_bytes()


@needs_ray
@on_the_cluster
@pytest.mark.slow
def test_the_stages_of_a_recipe_run_on_the_cluster(nodes, tmp_path):
    def stage(name, text, *reads):
        words = ("bash", "-c", f"echo job $RAY_JOB_ID; {text}")
        return Stage("train", name, (StageCommand(words),), (tmp_path / name,), tmp_path / "stages" / name, reads)

    words = stage("words", f"echo words > {tmp_path}/words")
    copies = [
        stage(f"copy {n}", f"test {n} = 1 && cp {tmp_path}/words '{tmp_path}/copy {n}'", tmp_path / "words")
        for n in (1, 2)
    ]
    with RayWorkers(nodes.address) as workers:
        assert Runner(tmp_path, 2, cluster=workers).run([words, *copies]) == ["copy 2"]
    assert (tmp_path / "copy 1").read_text() == "words\n"
    logs = [path.read_text() for path in tmp_path.glob("logs/*.log")]
    assert len(logs) == 3 and all(re.search("^job [0-9a-f]+$", log, re.M) for log in logs)  # Ray alone sets it
    assert [one.is_done() for one in (words, *copies)] == [True, True, False]
