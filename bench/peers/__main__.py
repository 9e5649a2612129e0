"""Speed and memory beside other toolkits: ``python -m bench.peers --data multi30k [--smoke]``.

Installs eole, Hugging Face's transformers and Joey NMT, each into an environment of its own below ``--work``, segments
Multi30k once for all, and trains and searches with each system in turn, A B C A B C …, in processes of one thread. Each
trains a model of the same size with its own commands on the same sentences. Times are the processor's, from after the
warm-up on. The records are ``bench/peers.jsonl``; the table on ``docs/results.md`` is made from those of the last run.
A toolkit that cannot be installed or run, or that ends a search early, has a row that says so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sentencepiece

from bench.harness import circumstances, commit
from fairseq_syntax.runtime.digests import fingerprint
from fairseq_syntax.runtime.files import atomic_open, read_lines

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RECORDS, PAGE = HERE.parent / "peers.jsonl", ROOT / "docs" / "results.md"
BEGIN, END = "<!-- by bench/peers -->\n", "<!-- to here -->\n"
SPECIAL = ("<unk>", "<pad>", "<s>", "</s>")
PIECES = 8000
LAST_WORDS = 200  # of what a failed process printed, in characters


class System(NamedTuple):
    """A row of the table: its name there, the program that runs it, and what pip is to install for it."""

    title: str
    program: str
    packages: tuple[str, ...] = ()


SYSTEMS = {
    "plain": System("plain Transformer, our loss", "of_fairseq.py"),
    "pascal": System("PASCAL", "of_fairseq.py"),
    "supervised_heads": System("supervised heads", "of_fairseq.py"),
    "fairseq": System("fairseq's Transformer and loss", "of_fairseq.py"),
    # What a toolkit imports without naming it among its requirements is installed as well.
    "eole": System("eole", "of_eole.py", ("eole", "aiohttp")),
    "huggingface": System("Hugging Face transformers", "of_huggingface.py", ("transformers", "accelerate")),
    "joeynmt": System("Joey NMT", "of_joeynmt.py", ("joeynmt", "importlib_metadata")),
}


class Failed(Exception):
    """A toolkit that cannot be measured, and why."""


# --- environments ---


def install(name: str, folder: Path, *, own_torch: bool) -> Path:
    """The Python of an environment for a toolkit, which is made if it is missing.

    Args:
        own_torch: install PyTorch into it, too; else it also reads the packages of this environment, so that all
            systems run on the same PyTorch and the toolkit's other packages are those that it asks for

    Raises:
        Failed: it cannot be installed
    """
    python, complete = folder / "bin" / "python", folder / "complete"
    if complete.exists():
        return python
    shutil.rmtree(folder, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", *SYSTEMS[name].packages],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Failed(f"not installed: {last_words(done.stderr)}")
        if not own_torch and not complete.exists():
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    complete.touch()
    return python


def last_words(printed: str) -> str:
    """The last line of a failed process, without paths of this machine."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    line = lines[-1] if lines else "it printed nothing"
    return " ".join(word.rpartition("/")[2] if "/" in word else word for word in line.split())[:LAST_WORDS]


# --- text ---


def prepare(data: Path, work: Path, pairs: int, sentences: int) -> Path:
    """Segment the text, and write it in the form of each toolkit; returns the folder.

    Args:
        data: Multi30k, raw or compressed
        pairs: of training, drawn from all; the pieces are learned from all
        sentences: of the search, the shortest first, so that no batch of any toolkit has much padding
    """
    text = work / f"text-{pairs}-{sentences}"
    if (text / "complete").exists():
        return text
    shutil.rmtree(text, ignore_errors=True)
    (text / "raw").mkdir(parents=True)
    everything = [list(read_lines(found(data, f"train.{lang}"))) for lang in ("en", "de")]
    chosen = sorted(random.Random(1).sample(range(len(everything[0])), pairs))
    test = [list(read_lines(found(data, f"test_2016_flickr.{lang}")))[:sentences] for lang in ("en", "de")]
    order = sorted(range(sentences), key=lambda at: len(test[0][at]))
    for lang, lines, of_test in zip(("en", "de"), everything, test):
        write(text / "raw" / f"all.{lang}", lines)
        write(text / "raw" / f"train.{lang}", [lines[at] for at in chosen])
        write(text / "raw" / f"test.{lang}", [of_test[at] for at in order])
    for name in ("train", "test"):
        source = ["--input", f"{text}/raw/{name}.en", "--output", f"{text}/raw/{name}.en.conllu"]
        ours("parse", "--parser", "bench.peers.random_trees", "--tokenizer", "basic", *source)
    learned = ["--train", "sentencepiece", "--vocab-size", str(PIECES), "--train-on"]
    learned += [f"{text}/raw/all.{lang}" for lang in ("en", "de")]
    inputs = [f"{text}/raw/{name}.en.conllu" for name in ("train", "test")]
    ours("segment", "--lang", "en", "--input", *inputs, "--output", str(text), *learned)
    inputs = [f"{text}/raw/{name}.de" for name in ("train", "test")]
    ours(
        "segment", "--lang", "de", "--input", *inputs, "--output", str(text), "--model", f"{text}/segmentation.en.json"
    )
    model = sentencepiece.SentencePieceProcessor(model_file=str(next(text.glob("*.model"))))
    pieces = [piece for piece in map(model.id_to_piece, range(model.get_piece_size())) if piece not in SPECIAL]
    write(text / "dict.txt", [f"{piece} 1" for piece in pieces])
    write(text / "pieces.txt", [*SPECIAL, *pieces])
    write(text / "vocabulary", pieces)
    files = [f"--{option}={text}/{name}" for option, name in (("trainpref", "train"), ("testpref", "test"))]
    call([str(script("fairseq-preprocess")), "--user-dir", str(ROOT / "fairseq_syntax"), "--task=syntax_translation",
          "-s", "en", "-t", "de", *files, f"--srcdict={text}/dict.txt", "--joined-dictionary",
          f"--destdir={text}/bin"])  # fmt: skip
    (text / "complete").touch()
    return text


def found(folder: Path, name: str) -> Path:
    """A file, plain or compressed."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise SystemExit(f"{folder}: has no {name} (or {name}.gz); --data is the folder of Multi30k's raw text")


def write(path: Path, lines: Iterable[str]) -> None:
    """A text file of lines."""
    with atomic_open(path) as file:
        file.writelines(f"{line}\n" for line in lines)


def script(name: str) -> Path:
    """A command of this environment."""
    return Path(sys.executable).with_name(name)


def ours(*words: str) -> None:
    """Run a subcommand of this package."""
    call([sys.executable, "-m", "fairseq_syntax", *words])


def call(words: Sequence[str]) -> None:
    """Run a command of the preparation, and stop with what it printed if it fails."""
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")


# --- measuring ---


def process(name: str, python: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """What a process that trains or searches has measured.

    Raises:
        Failed: it failed
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1"}
    environment["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"  # fairseq alone and Joey NMT cannot load what they saved
    environment.pop("PYTHONPATH", None)
    if not SYSTEMS[name].packages:
        environment["PYTHONPATH"] = str(ROOT)
    command = [str(python), str(HERE / SYSTEMS[name].program), json.dumps(job)]
    done = subprocess.run(command, cwd=job["folder"], env=environment, capture_output=True, text=True)
    if done.returncode:
        (Path(job["folder"]) / "error.log").write_text(done.stdout + done.stderr, encoding="utf-8")
        raise Failed(f"failed in {job['work']}: {last_words(done.stderr)}")
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def measure(
    pythons: Mapping[str, Path], text: Path, work: Path, rounds: int, sizes: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(system, what it measured or why not) of each round, each system in turn.

    What an interrupted run has measured is in a file of ``work``, and is not measured again.
    """
    kept = work / f"measured-{fingerprint([rounds, text.name, sizes, commit()])}.jsonl"
    before = [json.loads(line) for line in read_lines(kept)] if kept.exists() else []
    done = {(one["round"], one["system"]): one["measured"] for one in before}
    left = dict(pythons)
    for number in range(1, rounds + 1):
        for name in list(left):
            measured = done.get((number, name))
            if measured is None:
                folder = work / "models" / name
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                job = {"system": name, "text": str(text), "folder": str(folder), "seed": number, **sizes}
                try:
                    measured = {work: process(name, left[name], {"work": work, **job}) for work in ("train", "search")}
                except Failed as reason:
                    del left[name]
                    yield name, {"missing": str(reason)}
                    continue
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"round": number, "system": name, "measured": measured}) + "\n")
            speed = measured["train"]["tokens"] / measured["train"]["seconds"]
            seconds = measured["search"]["seconds"]
            print(f"round {number}  {name:18} {speed:7.0f} tokens a second, search {seconds:6.1f} s", flush=True)
            yield name, measured
    kept.unlink(missing_ok=True)


def record(name: str, measured: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    """A line of ``peers.jsonl``: of each measure the median, with the rounds beside it."""
    row = {"system": name, **about}
    for one in measured:
        if "missing" in one:
            return row | {"missing": one["missing"]}
    training, search = ([one[work] for one in measured] for work in ("train", "search"))
    speeds = [round(one["tokens"] / one["seconds"], 1) for one in training]
    seconds = [round(one["seconds"], 2) for one in search]
    return row | {
        "version": training[0]["version"],
        "torch": training[0]["torch"],
        "tokens_per_second": statistics.median(speeds),
        "tokens_per_second_of_rounds": speeds,
        "tokens_per_update": round(sum(one["tokens"] for one in training) / len(training) / about["updates"]),
        "training_mb": round(statistics.median(one["memory"] for one in training) / 2**20),
        "search_seconds": statistics.median(seconds),
        "search_seconds_of_rounds": seconds,
        "search_mb": round(statistics.median(one["memory"] for one in search) / 2**20),
    }


# --- the table ---


def records() -> list[dict[str, Any]]:
    """The records of the last run."""
    rows = [json.loads(line) for line in read_lines(RECORDS)] if RECORDS.exists() else []
    return [row for row in rows if row["run"] == rows[-1]["run"]]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a table: medians, in brackets the lowest and the highest round, and below it where it was run."""
    lines = [
        "| system | version | target tokens a second | of fairseq's | tokens an update | memory | "
        "search of {sentences} sentences | memory |".format(**rows[0]),
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    base = next((row["tokens_per_second"] for row in rows if row["system"] == "fairseq" and "missing" not in row), None)
    for row in rows:
        title = SYSTEMS[row["system"]].title
        if "missing" in row:
            lines.append(f"| {title} | – | {row['missing'].replace('|', '/')} | | | | | |")
            continue
        speeds, seconds = row["tokens_per_second_of_rounds"], row["search_seconds_of_rounds"]
        cells = [
            title,
            row["version"],
            f"{row['tokens_per_second']:,.0f} ({min(speeds):,.0f} to {max(speeds):,.0f})",
            f"{row['tokens_per_second'] / base:.2f}" if base else "–",
            f"{row['tokens_per_update']:,}",
            f"{row['training_mb']:,} MB",
            f"{row['search_seconds']:.1f} s ({min(seconds):.1f} to {max(seconds):.1f})",
            f"{row['search_mb']:,} MB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    about = rows[0]
    torch = next((row["torch"] for row in rows if "torch" in row), "none")
    lines += [
        "",
        f"{about['device']}, one thread, PyTorch {torch}, {about['rounds']} rounds of {about['updates']} updates after "
        f"{about['warmup']}; {about['date']}, commit {about['commit']}, load of the machine {about['load']} on "
        f"{about['cores']} cores.",
    ]
    return "\n".join(lines) + "\n"


def renew(page: Path, made: str) -> None:
    """Put a table into a page, between its marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    with atomic_open(page) as file:
        file.write(f"{before}{BEGIN}{made}{END}{after}")


def main() -> int:
    """Install, prepare, measure, and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder of Multi30k's raw text")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "peers", metavar="DIR",
                        help="folder for environments, text and models (default: runs/peers)")  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, metavar="NAME", default=list(SYSTEMS),
                        help=f"of {', '.join(SYSTEMS)}; records nothing")  # fmt: skip
    parser.add_argument("--smoke", action="store_true",
                        help="one round of three updates and twenty sentences, to try it; records nothing")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each is measured (default: 3)")
    parser.add_argument("--own-torch", action="store_true",
                        help="install PyTorch into each environment (default: they read this environment's packages, "
                        "so that all systems run on the same PyTorch)")  # fmt: skip
    args = parser.parse_args()
    work = args.work.resolve()
    rounds, pairs, sentences = (1, 400, 20) if args.smoke else (args.rounds, 2000, 500)
    sizes = {"warmup": 1, "updates": 2} if args.smoke else {"warmup": 3, "updates": 12}
    sizes["length"] = 15
    about = {"run": time.strftime("%Y-%m-%dT%H:%M:%S"), "rounds": rounds, "sentences": sentences, **sizes}
    about |= {**circumstances(), "cores": os.cpu_count()}
    pythons: dict[str, Path] = {}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in args.only}
    for name in args.only:
        folder = work / "environments" / name
        if SYSTEMS[name].packages and not (folder / "complete").exists():
            print(f"pip install {' '.join(SYSTEMS[name].packages)}  (into {folder})", flush=True)
    for name in args.only:
        try:
            folder = work / "environments" / name
            own = SYSTEMS[name].packages
            pythons[name] = install(name, folder, own_torch=args.own_torch) if own else Path(sys.executable)
        except Failed as reason:
            print(f"{name}: {reason}", flush=True)
            results[name].append({"missing": str(reason)})
    text = prepare(args.data, work, pairs, sentences)
    for name, measured in measure(pythons, text, work, rounds, sizes):
        if "missing" in measured:
            print(f"{name}: {measured['missing']}", flush=True)
        results[name].append(measured)
    about["load"] = round(os.getloadavg()[2], 1)
    rows = [record(name, measured, about) for name, measured in results.items()]
    print("\n" + table(rows))
    if not args.smoke and args.only == list(SYSTEMS):
        with RECORDS.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        renew(PAGE, table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
