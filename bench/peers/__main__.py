"""Training and search beside other toolkits: ``python -m bench.peers --data multi30k [--smoke]``.

Installs eole, Hugging Face's transformers and Joey NMT, each into an environment of its own, and splits Multi30k into
pieces, once for all. Then each system trains and searches in turn, A B C A B C …, in processes of one thread: a model
of one size, by the toolkit's own commands, on the same sentences. Times are the processor's, from after the warm-up on.
The records are appended to ``bench/peers.jsonl``, and the table on ``docs/results.md`` is made of them. A toolkit that
cannot be installed or run has a row that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece

from bench.harness import circumstances
from bench.peers.table import PAGE, RECORDS, SYSTEMS, record, renew, table
from fairseq_syntax.runtime.files import atomic_open, read_lines

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PIECES = 8000


class Failed(Exception):
    """A toolkit that cannot be measured, and why."""


def install(name: str, folder: Path) -> Path:
    """The Python that runs a system: this one, or that of the toolkit's environment, which is made if it is missing.

    An environment also reads this one's packages, so that all systems run on the same PyTorch.

    Raises:
        Failed: the toolkit cannot be installed
    """
    packages, python, complete = SYSTEMS[name].packages, folder / "bin" / "python", folder / "complete"
    if not packages:
        return Path(sys.executable)
    if complete.exists():
        return python
    print(f"pip install {' '.join(packages)}  (into {folder})", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"not installed: {last_words(done.stderr)}")
    complete.touch()
    return python


def last_words(printed: str) -> str:
    """The last line that a failed process printed, without paths of this machine."""
    lines = [line for line in printed.splitlines() if line.strip()] or ["it printed nothing"]
    return " ".join(word.rpartition("/")[2] for word in lines[-1].split())[:200]


def prepare(data: Path, text: Path, pairs: int, sentences: int) -> None:
    """Write the text in pieces, with trees, and the vocabulary in the form of each toolkit.

    Args:
        data: folder of Multi30k's files, into which they are downloaded if they are not there
        text: folder to write to; one that is complete is kept
        pairs: of training, drawn from all; the pieces are learned from all
        sentences: of the search, the shortest first, so that no toolkit has batches with much padding
    """
    if (text / "complete").exists():
        return
    shutil.rmtree(text, ignore_errors=True)
    call("-m", "fairseq_syntax", "corpus", "-s", "en", "-t", "de", "--reader", "multi30k", "--download",
         f"--data={data.resolve()}", f"--output={text / 'raw'}")  # fmt: skip

    def lines(name: str) -> list[tuple[str, ...]]:
        return list(zip(*(read_lines(text / "raw" / f"{name}.{lang}") for lang in ("en", "de"))))

    train, model = lines("train"), str(text / "pieces")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line for pair in train for line in pair), model_prefix=model, vocab_size=PIECES,
        num_threads=1, minloglevel=2,
    )  # fmt: skip
    splitter = sentencepiece.SentencePieceProcessor(model_file=f"{model}.model")
    chosen = {
        "train": random.Random(1).sample(train, pairs),
        "test": sorted(lines("test_2016_flickr")[:sentences], key=lambda pair: len(pair[0])),
    }
    for name, of_split in chosen.items():
        for lang, side in zip(("en", "de"), zip(*of_split)):
            write(text / f"{name}.{lang}", [" ".join(splitter.encode(line, out_type=str)) for line in side])
        # No time that is measured depends on the trees, so each piece attaches to the one before it.
        call("-m", "fairseq_syntax", "parse", "--parser=fairseq_syntax.corpus.parsing.chain", "--pretokenized",
             f"--input={text / name}.en", f"--output={text / name}.en.conllu")  # fmt: skip
    pieces = [splitter.id_to_piece(at) for at in range(PIECES) if not splitter.is_control(at)]
    pieces.remove("<unk>")
    write(text / "vocabulary", pieces)
    write(text / "dict.txt", [f"{piece} 1" for piece in pieces])
    call(str(Path(sys.executable).with_name("fairseq-preprocess")), f"--user-dir={ROOT / 'fairseq_syntax'}",
         "--task=syntax_translation", "-s", "en", "-t", "de", f"--trainpref={text / 'train'}",
         f"--testpref={text / 'test'}", f"--srcdict={text / 'dict.txt'}", "--joined-dictionary",
         f"--destdir={text / 'bin'}")  # fmt: skip
    (text / "complete").touch()


def write(path: Path, lines: Sequence[str]) -> None:
    """A text file of lines."""
    with atomic_open(path) as file:
        file.writelines(f"{line}\n" for line in lines)


def call(*words: str) -> None:
    """Run a step of the preparation by this Python, and stop with what it printed if it fails."""
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stderr}")


def measured(python: Path, job: dict[str, Any]) -> dict[str, Any]:
    """What a process that trains or searches has measured.

    Raises:
        Failed: it failed
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    # fairseq alone and Joey NMT cannot load what they saved, by the defaults of a newer PyTorch.
    environment = {**os.environ, **threads, "HF_HUB_OFFLINE": "1", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    environment.pop("PYTHONPATH", None)
    if not SYSTEMS[job["system"]].packages:
        environment["PYTHONPATH"] = str(ROOT)
    command = [str(python), str(HERE / SYSTEMS[job["system"]].program), json.dumps(job)]
    done = subprocess.run(command, cwd=job["folder"], env=environment, capture_output=True, text=True)
    if done.returncode:
        log = Path(job["folder"]) / "error.log"
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        print(f"{job['system']}: see {log}", flush=True)
        raise Failed(f"failed in {job['work']}: {last_words(done.stderr)}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    """Install, prepare, measure, and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR",
                        help="folder of Multi30k's files, which are downloaded if it has none")  # fmt: skip
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "peers", metavar="DIR",
                        help="folder for environments, text and models (default: runs/peers)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each is measured (default: 3)")
    parser.add_argument("--only", nargs="+", choices=SYSTEMS, metavar="NAME", default=list(SYSTEMS),
                        help=f"some of {', '.join(SYSTEMS)}; records nothing")  # fmt: skip
    parser.add_argument("--smoke", action="store_true",
                        help="one round of two updates and twenty sentences, to try it; records nothing")  # fmt: skip
    args = parser.parse_args()
    rounds, pairs, sentences = (1, 400, 20) if args.smoke else (args.rounds, 2000, 256)
    sizes = {"warmup": 1, "updates": 2} if args.smoke else {"warmup": 5, "updates": 10}
    sizes["steps"] = 15
    about = {"run": time.strftime("%Y-%m-%dT%H:%M:%S"), "rounds": rounds, "sentences": sentences, **sizes}
    about |= {**circumstances(), "cores": os.cpu_count()}
    work = args.work.resolve()
    pythons: dict[str, Path] = {}
    missing: dict[str, str] = {}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in args.only}

    def give_up(name: str, reason: Failed) -> None:
        print(f"{name}: {reason}", flush=True)
        missing[name] = str(reason)

    for name in args.only:
        try:
            pythons[name] = install(name, work / "environments" / name)
        except Failed as reason:
            give_up(name, reason)
    text = work / f"text-{pairs}-{sentences}"
    prepare(args.data, text, pairs, sentences)
    for number in range(1, rounds + 1):
        for name in (name for name in pythons if name not in missing):
            folder = work / "models" / name
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            job = {"system": name, "text": str(text), "folder": str(folder), "seed": number, **sizes}
            try:
                training, search = (measured(pythons[name], {"work": do, **job}) for do in ("train", "search"))
            except Failed as reason:
                give_up(name, reason)
                continue
            results[name].append({"training": training, "search": search})
            print(f"round {number}  {name:18} {training['tokens'] / training['seconds']:7.0f} tokens a second, "
                  f"{training['tokens'] / sizes['updates']:6.0f} an update; search {search['seconds']:6.1f} s",
                  flush=True)  # fmt: skip
    about["load"] = round(os.getloadavg()[2], 1)
    rows = [record(name, of_system, about, missing.get(name)) for name, of_system in results.items()]
    print(f"\n{table(rows)}")
    if not args.smoke and args.only == list(SYSTEMS):
        with RECORDS.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        renew(PAGE, table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
