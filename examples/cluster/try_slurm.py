"""Tries the scripts of this folder on a real Slurm: a controller and two nodes, all on this machine.

    python examples/cluster/try_slurm.py --input train.en --record RECORD.md -- --lang en --model-dir MODELS …

It needs root, Debian's packages slurm-wlm and munge, and Ray. What follows ``--`` is given to ``fairseq-syntax parse``,
which parses the text in one process, as an array of Slurm jobs, as such an array of which a job is killed, and on Ray
inside a Slurm job of two nodes. The four results must be the same bytes.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONFIGURATION = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
SlurmctldPort=17000
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17001 CPUs=2 RealMemory=8000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port=17002 CPUs=2 RealMemory=8000
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def run(*command: str | Path, **more: str) -> str:
    """What a command prints; its errors end the trial."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env={**os.environ, **more})
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def until(what: str, condition: Callable[[], object], seconds: float = 600) -> None:
    """Waits for something, for so long."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds:g} seconds")
        time.sleep(0.5)


@contextmanager
def daemon(*command: str) -> Iterator[None]:
    """A program in the foreground of its own session, as long as the block lasts."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """A controller and two nodes, which answer."""
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(CONFIGURATION.format(host=platform.node(), folder=folder))
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    with ExitStack() as stack:
        if subprocess.run(["munge", "-n"], capture_output=True).returncode:
            run("install", "-d", "-o", "munge", "-g", "munge", "/run/munge")
            stack.enter_context(daemon("runuser", "-u", "munge", "--", "munged", "--foreground"))
            until("munge", lambda: subprocess.run(["munge", "-n"], capture_output=True).returncode == 0, 20)
        stack.enter_context(daemon("slurmctld", "-D"))
        for node in ("n1", "n2"):
            stack.enter_context(daemon("slurmd", "-D", "-N", node))
        until("two idle nodes", lambda: run("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", 60)
        try:
            yield
        finally:
            subprocess.run(["scancel", "--full", "--user", "root"], capture_output=True)
            until("the end of all jobs", lambda: not run("squeue", "-h"), 60)


def main() -> int:
    """Runs the trial, and writes its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, type=Path, metavar="FILE", help="the text to parse")
    parser.add_argument("--record", type=Path, metavar="FILE", help="the Markdown file to write")
    parser.add_argument("--shards", type=int, default=4, metavar="N", help="jobs of the array (default: 4)")
    parser.add_argument("parse", nargs="*", metavar="OPTION", help="of fairseq-syntax parse, after --")
    args = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    rows: list[tuple[str, str, float]] = []
    with tempfile.TemporaryDirectory() as name, slurm(Path(name)):
        folder = Path(name)
        os.chdir(folder)  # where Slurm and Ray leave their logs

        def options(output: str) -> list[str]:
            return ["--input", str(args.input.resolve()), "--output", str(folder / output), *args.parse]

        def timed(what: str, command: str, output: str, work: Callable[[], object]) -> None:
            begin = time.monotonic()
            work()
            rows.append((what, command, time.monotonic() - begin))
            print(f"{what}: {rows[-1][2]:.0f} s", flush=True)
            if (folder / output).read_bytes() != (folder / "one").read_bytes():
                raise SystemExit(f"{what}: other bytes than one process")

        def array(output: str, kill: bool = False) -> None:
            run(HERE / "slurm-array.sh", str(args.shards), *options(output))
            if kill:
                parts = folder / f"{output}.parts"
                until("a part", lambda: parts.is_dir() and any(parts.iterdir()))
                running = run("squeue", "-h", "-n", "parse", "-t", "running", "-o", "%i").split()
                run("scancel", "--signal", "KILL", "--full", running[0])
                until("the end of the array", lambda: not run("squeue", "-h"))
                if (folder / output).exists():
                    raise SystemExit("the merge ran though a shard was killed")
                run(HERE / "slurm-array.sh", str(args.shards), *options(output))
            until("the end of the array", lambda: not run("squeue", "-h"))

        def ray(output: str) -> None:
            # Two addresses for the two nodes, which are one machine here.
            addresses = {"HEAD_ADDRESS": "127.0.0.2", "NODE_ADDRESS": "127.0.0.3"}
            command = ["fairseq-syntax", "parse", *options(output), "--workers", "2"]
            run("sbatch", "--nodes", "2", "-o", "ray.log", HERE / "slurm-ray.sh", *command, **addresses)
            until("the end of the job", lambda: not run("squeue", "-h"))
            if not (folder / output).exists() or "Ray: 2 of 2 nodes" not in (folder / "ray.log").read_text():
                raise SystemExit("\n".join(path.read_text()[-3000:] for path in folder.glob("ray*.log")))

        begin = time.monotonic()
        run("fairseq-syntax", "parse", *options("one"))
        rows.append(("one process", "fairseq-syntax parse …", time.monotonic() - begin))
        timed(
            "Ray in a job of two nodes",
            "sbatch --nodes 2 slurm-ray.sh fairseq-syntax parse …",
            "ray",
            lambda: ray("ray"),
        )
        timed("job array", f"slurm-array.sh {args.shards} …", "array", lambda: array("array"))
        timed(
            "job array, a job killed, given again",
            f"slurm-array.sh {args.shards} …",
            "killed",
            lambda: array("killed", True),
        )
        with open(args.input, encoding="utf-8") as file:
            texts = file.read().splitlines()
        record = page(rows, args.parse, len(texts), sum(len(text.split()) for text in texts))
    print(record)
    if args.record:
        args.record.write_text(record, encoding="utf-8")
    return 0


def page(rows: Sequence[tuple[str, str, float]], options: Sequence[str], lines: int, words: int) -> str:
    """The record. It names no folder of the machine."""
    shown = [Path(option).name if os.sep in option else option for option in options]
    versions = f"{run('sinfo', '--version').replace('slurm-wlm', 'Slurm')}, Ray {version('ray')}"
    return "\n".join([
        "# The scripts on a real Slurm",
        "",
        "Written by `python examples/cluster/try_slurm.py`: a controller and two nodes of two cores each, on one "
        f"machine, {platform.system()} with {os.cpu_count()} cores; {versions}, Python {platform.python_version()}. "
        f"A text of {lines:,} lines and {words:,} words; options of `parse`: `{' '.join(shown)}`. "
        "All results are the same bytes.",
        "",
        "| way | command | seconds |",
        "|---|---|--:|",
        *(f"| {what} | `{command}` | {seconds:.0f} |" for what, command, seconds in rows),
        "",
        "The seconds are from submitting to the merged file, with the start of Python, of the parsers and of Ray in "
        "each job. The nodes share the machine's cores, with other work beside them: this is no measure of speed.",
        "",
    ])  # fmt: skip


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
