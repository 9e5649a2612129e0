"""The scripts of ``examples/cluster``, with a Slurm that runs at once what it is given."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "cluster"
pytestmark = pytest.mark.checkout

SBATCH = """#!/usr/bin/env bash
while [ $# -gt 0 ]; do
    case $1 in
        --array) last=${2#1-}; shift ;;
        --wrap) command=$2; shift ;;
        --dependency) echo "after: $2" >> log; shift ;;
    esac
    shift
done
for ((task = 1; task <= ${last:-1}; task++)); do SLURM_ARRAY_TASK_ID=$task sh -c "$command"; done
echo 7
"""
PROGRAM = """#!/usr/bin/env bash
printf '%s|' "$@" >> log
echo >> log
"""


def test_an_array_parses_every_shard_and_a_job_after_it_merges(tmp_path):
    for name, source in (
        ("sbatch", SBATCH),
        ("srun", '#!/usr/bin/env bash\nexec "$@"\n'),
        ("fairseq-syntax", PROGRAM),
    ):
        (tmp_path / name).write_text(source)
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = ["bash", FOLDER / "slurm-array.sh", "3", "--input", "a «text».en", "--output", "l'out $x"]
    environment = {**os.environ, "PATH": path, "LC_ALL": "C"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "shards: job 7; merge: job 7\n", done.stderr
    common = "parse|--input|a «text».en|--output|l'out $x|"
    assert (tmp_path / "log").read_text("utf-8").splitlines() == [
        *(f"{common}--shard|{number}/3|" for number in (1, 2, 3)),
        "after: afterok:7",
        f"{common}--merge|",
    ]


@pytest.mark.parametrize(
    "by_name, all_of_it, address",
    [
        ("127.0.1.1", "10.1.2.3 172.17.0.1 fd00::2", "10.1.2.3"),
        ("10.1.2.4", "192.168.0.1 10.1.2.4", "10.1.2.4"),
        ("fe80::1 10.1.2.5", "", "10.1.2.5"),
    ],
)
def test_the_address_of_a_node_is_one_that_others_reach(tmp_path, by_name, all_of_it, address):
    hostname = f'#!/bin/sh\ncase $1 in -I) echo "{all_of_it}" ;; *) echo "{by_name}" ;; esac\n'
    for name, source in (("hostname", hostname), ("srun", '#!/usr/bin/env bash\nshift 7\nexec "$@"\n')):
        (tmp_path / name).write_text(source)
        (tmp_path / name).chmod(0o755)
    script = (FOLDER / "slurm-ray.sh").read_text("utf-8")
    function = script[script.index("address_of()") : script.index("start()")]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", "-euo", "pipefail", "-c", f"{function}\naddress_of node1"]
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == f"{address}\n"


def run_on_one_node(folder: Path, ray: str, job: int) -> subprocess.CompletedProcess:
    """Run ``slurm-ray.sh`` as a job of one node, with what ``ray`` does instead of Ray; its command logs its words."""
    for name, source in (
        ("scontrol", "echo node1\n"),
        ("srun", 'while [ "$1" != ray ]; do shift; done\nexec "$@"\n'),
        ("ray", ray),
        ("python", "echo 1\n"),  # the password, and the number of nodes that Ray has
        ("command", "printf '%s\\n' \"$@\" >> log\n"),
    ):
        (folder / name).write_text(f"#!/usr/bin/env bash\n{source}")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    of_job = {"SLURM_JOB_ID": str(job), "SLURM_JOB_NODELIST": "node1", "HEAD_ADDRESS": "127.0.0.1", "PATH": path}
    command = ["bash", FOLDER / "slurm-ray.sh", folder / "command"]
    return subprocess.run(command, cwd=folder, env={**os.environ, **of_job}, capture_output=True, timeout=60)


SERVER = 'import socket, sys, time; server = socket.create_server(("", int(sys.argv[1]))); time.sleep(60)'
LISTENING = f"""while [ "$1" != --port ]; do shift; done
exec '{sys.executable}' -c '{SERVER}' $2
"""


def test_two_jobs_on_a_node_have_a_ray_each(tmp_path):
    for job in (81, 82):
        assert run_on_one_node(tmp_path, LISTENING, job).returncode == 0
    option, first, again, second = (tmp_path / "log").read_text("utf-8").split()
    assert (option, again) == ("--ray", "--ray")
    assert first != second


def test_the_command_does_not_run_without_the_ray_of_its_job(tmp_path):
    assert run_on_one_node(tmp_path, "exit 1\n", 83).returncode == 1
    assert not (tmp_path / "log").exists()


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.sh")), ids=lambda path: path.name)
def test_the_page_names_each_script_and_bash_reads_it(script):
    subprocess.run(["bash", "-n", script], check=True)
    page = (FOLDER.parents[1] / "docs" / "cluster.md").read_text("utf-8")
    assert f"examples/cluster/{script.name}" in page
