"""Every step on synthetic corpora of several sizes: seconds and peak memory, as a table.

    python tools/scale.py --pairs 100000 1000000 --work DIR [--table bench/scale.md]

Each step is a command in a process of its own; its peak is that of the largest of its processes. The text has the
length and the word frequencies of image captions; the parser is one that costs nothing (every word attaches to the one
before), so that ``parse`` is what this project adds to a parser. Rows of other sizes stay in the table. Needs some
4 kB of disk a pair. Given again after it was stopped, it goes on with the step that it was at; a step's seconds are
those of all its attempts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from fairseq_syntax.runtime.files import atomic_open  # noqa: E402
from fairseq_syntax.runtime.jobs import RecordedStep  # noqa: E402

LANGS = ("en", "de")
VALID = 500
FIELDS = ("VmHWM", "RssAnon", "RssShmem")  # of /proc/PID/status, in kB
WORDS = 30_000
LOADER = """
import sys
import fairseq_syntax
from bench import corpus
task = corpus.task(sys.argv[1])
task._needs = {"source": frozenset({"tree"}), "target": frozenset()}
task.load_dataset("train")
batches = task.get_batch_iterator(task.dataset("train"), max_tokens=4000, seed=1)
epoch = batches.next_epoch_itr(shuffle=True)
for number, _ in zip(range(200), epoch):
    pass
"""


def write_text(folder: Path, name: str, pairs: int, seed: int) -> None:
    """Both sides of a split: words as frequent as Zipf's law has it, 13 a line on average."""
    rng = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words: dict[str, np.ndarray] = {}
    for lang in LANGS:
        spell = np.random.default_rng(len(words))
        words[lang] = np.array(["".join(spell.choice(letters, spell.integers(2, 10))) for _ in range(WORDS)])
    share = 1 / (np.arange(WORDS) + 3.0)
    cumulated = np.cumsum(share / share.sum())
    with ExitStack() as stack:
        files = [stack.enter_context(atomic_open(folder / f"{name}.{lang}")) for lang in LANGS]
        for begin in range(0, pairs, 10_000):
            lengths = np.clip(np.rint(rng.normal(13, 4, min(10_000, pairs - begin))), 1, 60).astype(int)
            drawn = np.minimum(np.searchsorted(cumulated, rng.random(lengths.sum())), WORDS - 1)
            for file, lang in zip(files, LANGS):
                text = words[lang][drawn].tolist()
                at = 0
                for length in lengths.tolist():
                    file.write(" ".join(text[at : at + length]) + "\n")
                    at += length


def steps(folder: Path, workers: int) -> Iterator[tuple[str, list[str]]]:
    """Name and command of each step; each reads what those before it have written."""
    ours = [sys.executable, "-m", "fairseq_syntax"]
    train = [str(folder / f"train.{lang}") for lang in LANGS]
    kept = [str(folder / f"kept.{lang}") for lang in LANGS]
    yield "filter", [*ours, "filter", "--input", *train, "--output", *kept, "--max-length", "80", "--max-ratio", "2"]
    for name, path in (("parse", kept[0]), ("", str(folder / "valid.en"))):
        parse = [*ours, "parse", "--parser", "chain_parser", "--tokenizer", "basic", "--input", path]
        yield name, [*parse, "--output", f"{path}.conllu", "--workers", str(workers)]
    pieces = str(folder / "pieces")
    for name, lang, ending in (("segment, a parse", "en", ".conllu"), ("segment, a text", "de", "")):
        files = [str(folder / f"{split}.{lang}{ending}") for split in ("kept", "valid")]
        command = [*ours, "segment", "--lang", lang, "--train", "sentencepiece", "--vocab-size", "4000"]
        command += ["--train-lines", "20000", "--input", *files, "--output", pieces, "--workers", str(workers)]
        yield name, command
    common = ["-s", "en", "-t", "de", "--trainpref", f"{pieces}/kept", "--validpref", f"{pieces}/valid"]
    common += ["--workers", str(workers)]
    user_dir = str(ROOT / "fairseq_syntax")
    preprocess = [sys.executable, "-m", "fairseq_cli.preprocess", "--user-dir", user_dir]
    yield (
        "fairseq-preprocess, with binarize",
        [*preprocess, "--task", "syntax_translation", *common, "--destdir", str(folder / "bin")],
    )
    yield "binarize", [*ours, "binarize", *common, "--output", str(folder / "bin"), "--only-source"]
    yield "inspect --check", [*ours, "inspect", "--check", str(folder / "bin")]
    doubled = ["-s", "en", "-t", "de", "--train", f"{pieces}/kept", "--output", str(folder / "multitask")]
    yield "multitask", [*ours, "multitask", *doubled, "--workers", str(workers)]
    yield "loader, to its 200th batch", [sys.executable, "-c", LOADER, str(folder / "bin")]


def memory(root: int) -> tuple[float, float]:
    """Of a process and those that it started: the peak so far of the largest, in MB, and what one has of its own now.

    The peak that ``wait4`` tells counts the memory of the process that started it, which is this one. Linux alone.
    """
    peak, private, waiting = 0.0, 0.0, [root]
    while waiting:
        folder = Path("/proc") / str(waiting.pop())
        with suppress(OSError, ValueError):  # it has ended
            waiting += [int(pid) for path in folder.glob("task/*/children") for pid in path.read_text().split()]
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            most, heap, shared = (int(status.get(name, "0").split()[0]) / 1024 for name in FIELDS)
            peak, private = max(peak, most), max(private, heap + shared)
    return peak, private


def measured(command: list[str], log: Path, spent: Path) -> tuple[float, float, float]:
    """Seconds on the clock, the peak memory in MB of the largest process, and of that what is not of mapped files.

    ``spent`` keeps these while the command runs, and a later attempt goes on counting from there.

    Raises:
        CalledProcessError: it failed
    """
    paths = [str(ROOT), str(ROOT / "tests" / "helpers"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    before, peak, private = json.loads(spent.read_text()) if spent.exists() else (0.0, 0.0, 0.0)
    begin = kept = time.perf_counter()
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)
        try:
            while process.poll() is None:
                peak, private = (max(pair) for pair in zip((peak, private), memory(process.pid)))
                time.sleep(0.1)
                now = time.perf_counter()
                if now - kept > 5:
                    kept = now
                    with atomic_open(spent) as file:
                        json.dump((before + now - begin, peak, private), file)
        finally:
            process.terminate()  # where this program is interrupted
            process.wait()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    spent.unlink(missing_ok=True)
    return before + time.perf_counter() - begin, peak, private


def circumstances() -> dict[str, object]:
    """Those of a benchmark. A process of its own tells them, as this one is not to import PyTorch."""
    ask = [sys.executable, "-c", "import json; from bench.harness import circumstances as c; print(json.dumps(c()))"]
    told = subprocess.run(ask, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    return json.loads(told)


def run(pairs: int, work: Path, workers: int) -> Iterator[dict]:
    """A row for each step; those of an earlier, stopped run are not repeated."""
    folder = work / str(pairs)
    texts = [folder / f"{name}.{lang}" for name in ("train", "valid") for lang in LANGS]
    text = RecordedStep.of("text", texts, pairs=pairs)
    with text.making() as record:
        if record is None:
            text.begin()
            write_text(folder, "train", pairs, 1)
            write_text(folder, "valid", VALID, 2)
            text.finish()
    about = {"cores": os.cpu_count(), "python": platform.python_version(), **circumstances()}
    for name, command in steps(folder, workers):
        step = RecordedStep.of(name, [folder / f"{name or 'validation'}.row"], pairs=pairs, command=command)
        if step.record() is not None:
            continue
        if name == "binarize" and not (folder / "spent").exists():  # the tokens stay, the store of the source goes
            (folder / "bin" / "train.en-de.en.syntax.arrow").unlink(missing_ok=True)
        seconds, peak, private = measured(command, folder / "log", folder / "spent")
        if name:
            row = {"step": name, "pairs": pairs, "seconds": round(seconds, 1), "workers": workers}
            row |= {"mb": round(peak), "own_mb": round(private)}
            print(f"{pairs:10} {name:36} {seconds:8.1f} s {peak:7.0f} MB, {private:.0f} of its own", flush=True)
            yield row | about  # and is kept, before the step counts as done
        step.outputs[0].touch()
        step.finish()
    shutil.rmtree(folder, ignore_errors=True)


def table(rows: list[dict]) -> str:
    """The rows as a page."""
    sizes = sorted({row["pairs"] for row in rows})
    names = list(dict.fromkeys(row["step"] for row in rows))
    by_place = {(row["step"], row["pairs"]): row for row in rows}
    lines = [
        "# Corpora of any size",
        "",
        "Seconds and the peak memory of the largest process, for each step on synthetic corpora of 13 words a line.",
        "The parser costs nothing, so that `parse` is what is added to one. Where a step imports PyTorch and fairseq,",
        "that is 350 to 400 MB of it. In brackets: without the pages of mapped files, which workers share and the",
        "system takes back when it needs memory.",
        "`python tools/scale.py --pairs … --work DIR` writes this table.",
        "",
        "| step | " + " | ".join(f"{size:,} pairs" for size in sizes) + " |",
        "|---|" + "--:|" * len(sizes),
    ]
    for name in names:
        cells = []
        for size in sizes:
            row = by_place.get((name, size))
            cells.append(f"{row['seconds']:.0f} s, {row['mb']} MB ({row['own_mb']})" if row else "not run")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    for size in sizes:
        row = next(r for r in rows if r["pairs"] == size)
        about = f"{row['cores']} cores ({row['device']}), {row['workers']} worker(s), Python {row['python']}"
        lines += ["", f"{size:,} pairs: {about}{'; ' + row['note'] if row.get('note') else ''}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run the sizes, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", action="extend", required=True, metavar="N")
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="for the corpora, removed at the end")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--note", default="", help="to be said below the table, such as what else the machine did")
    parser.add_argument("--table", type=Path, default=ROOT / "bench" / "scale.md", metavar="FILE")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the step that runs is to end too
    results = args.table.with_suffix(".jsonl")
    for pairs in args.pairs:
        for row in run(pairs, args.work, args.workers):
            rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
            rows = [r for r in rows if (r["step"], r["pairs"]) != (row["step"], pairs)] + [row | {"note": args.note}]
            with atomic_open(results) as file:
                file.write("".join(json.dumps(r) + "\n" for r in rows))
            with atomic_open(args.table) as file:
                file.write(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
