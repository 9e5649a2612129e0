#!/usr/bin/env python3
"""Exports a model in each way and compares what comes out with fairseq-generate's, as Markdown.

    python examples/export/compare.py CHECKPOINT --data BIN --text test.en --reference test.de --python CLEAN/bin/python

CLEAN is an environment with ``pip install ctranslate2 sentencepiece numpy`` and nothing else: there the exported folder
is used as its README says, without fairseq, PyTorch and this package. Stock fairseq runs in this environment, in a
process in which this package cannot be imported. All have the same pieces; the last row begins with text.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# fairseq-generate in a process that cannot import this package.
STOCK = """
import sys
sys.modules["fairseq_syntax"] = None
from fairseq_cli import generate
sys.argv = ["fairseq-generate", *sys.argv[1:]]
generate.cli_main()
"""

# Run by the clean environment: a line of JSON for each sentence, all pieces of the beam; then the seconds.
CLEAN = """
import importlib.util, json, sys, time
for name in ("fairseq_syntax", "fairseq", "torch"):
    assert importlib.util.find_spec(name) is None, name + " is installed here"
import ctranslate2, sentencepiece
folder, source, kind, beam, path = sys.argv[1:]
lines = open(path, encoding="utf-8").read().splitlines()
if kind == "text":
    segmentation = sentencepiece.SentencePieceProcessor(folder + "/segmentation." + source + ".model")
    pieces = segmentation.encode(lines, out_type=str)
else:
    pieces = [line.split() for line in lines]
translator = ctranslate2.Translator(folder, device="cpu", inter_threads=1, intra_threads=1)
begin = time.perf_counter()
results = translator.translate_batch(pieces, beam_size=int(beam), num_hypotheses=int(beam), max_batch_size=32,
                                     max_decoding_length=200, max_input_length=0)
print(json.dumps({"seconds": time.perf_counter() - begin, "beams": [r.hypotheses for r in results]}))
"""

Beams = list[list[list[str]]]  # by sentence, the pieces of each hypothesis, best first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data", required=True, help="the binarized data")
    parser.add_argument("--subset", nargs="+", default=["test"], help="of the binarized data (default: test)")
    parser.add_argument("--text", nargs="+", required=True, type=Path, help="each subset's source as raw text")
    parser.add_argument("--reference", nargs="+", required=True, type=Path, help="and its reference")
    parser.add_argument("--python", default=sys.executable, help="the interpreter of a clean environment")
    parser.add_argument("--beam", nargs="+", type=int, default=[4], help="sizes of the beam (default: 4)")
    args = parser.parse_args()
    if not len(args.subset) == len(args.text) == len(args.reference):
        parser.error("--subset, --text and --reference take as many values each")

    import logging

    from sacrebleu import corpus_bleu

    from fairseq_syntax import register
    from fairseq_syntax.use import export

    register()
    logging.getLogger("fairseq").setLevel(logging.WARNING)
    loaded = export.load(args.checkpoint, args.data)
    task = loaded.task
    source, target = task.cfg.source_lang, task.cfg.target_lang
    print("# Exported models against fairseq-generate\n\nWritten by `examples/export/compare.py`.")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        for kind, to, quantization in (
            ("fairseq", "fairseq", None),
            ("float32", "ctranslate2", None),
            ("int8", "ctranslate2", "int8"),
        ):
            export.export(loaded, to, place / kind, quantization=quantization)
        for subset, text, reference in zip(args.subset, args.text, args.reference):
            task.load_dataset(subset)
            tokens = task.dataset(subset).src
            pieces = [task.source_dictionary.string(tokens[i]) for i in range(len(tokens))]
            lines = text.read_text(encoding="utf-8").splitlines()
            references = reference.read_text(encoding="utf-8").splitlines()
            for beam in args.beam:
                rows = searches(args, place, subset, beam, pieces, lines, source, target)
                show(f"{reference.name}, beam {beam}", rows, task.target_segmenter.decode, references, corpus_bleu)
    print("\nBatches of 32, one thread. Seconds of the search: of fairseq's rows with the start of the program, of\n"
          "CTranslate2's without.")  # fmt: skip


def searches(
    args: argparse.Namespace,
    place: Path,
    subset: str,
    beam: int,
    pieces: list[str],
    text: list[str],
    source: str,
    target: str,
) -> Iterator[tuple[str, Beams, float]]:
    """Name, hypotheses and seconds of each way to search."""

    def clean(kind: str, form: str, lines: list[str]) -> tuple[Beams, float]:
        into = place / "in"
        into.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        found = json.loads(output([args.python, "-I", "-c", CLEAN, place / kind, source, form, beam, into]))
        return found["beams"], found["seconds"]

    search = ["-s", source, "-t", target, "--gen-subset", subset, "--beam", beam, "--nbest", beam]
    search += ["--batch-size", 32, "--required-batch-size-multiple", 1, "--cpu"]
    ours = [sys.executable, "-m", "fairseq_cli.generate", args.data, "--user-dir", user_dir()]
    ours += ["--task", "syntax_translation", *search, "--path", args.checkpoint]
    yield "fairseq-generate, this package", *generated(ours)
    plain = [sys.executable, "-c", STOCK, os.path.abspath(args.data), *search]
    yield "fairseq-generate, stock fairseq", *generated([*plain, "--path", place / "fairseq" / "model.pt"], place)
    for kind in ("float32", "int8"):
        yield f"CTranslate2, {kind}, a clean environment", *clean(kind, "pieces", pieces)
    yield "CTranslate2, float32, text by sentencepiece alone", *clean("float32", "text", text)


def show(title: str, rows: Iterable, decode: Callable, reference: list[str], corpus_bleu: Callable) -> None:
    """A table of all searches, against the first."""
    expected: Beams = []
    first = 0.0
    print(f"\n**{title}**, {len(reference)} sentences\n")
    print("| search | best translation identical | whole beam identical | BLEU | difference | seconds |")
    print("|---|--:|--:|--:|--:|--:|")
    for name, beams, seconds in rows:
        bleu = corpus_bleu([decode(beam[0]) for beam in beams], [reference]).score
        if not expected:
            expected, first = beams, bleu
        best = sum(a[0] == b[0] for a, b in zip(beams, expected, strict=True))
        whole = sum(a == b for a, b in zip(beams, expected, strict=True))
        print(f"| {name} | {best} | {whole} | {bleu:.2f} | {bleu - first:+.2f} | {seconds:.1f} |", flush=True)


def generated(command: list, folder: Path | None = None) -> tuple[Beams, float]:
    """The hypotheses that fairseq-generate prints, by sentence, and its seconds."""
    begin = time.perf_counter()
    lines = output(command, folder).splitlines()
    seconds = time.perf_counter() - begin
    found: dict[int, list[list[str]]] = {}
    for line in lines:
        if line.startswith("H-"):
            number, _, hypothesis = line.split("\t")
            found.setdefault(int(number[2:]), []).append(hypothesis.split())
    return [found[i] for i in range(len(found))], seconds


def output(command: list, folder: Path | None = None) -> str:
    """What a command prints, on one thread; it ends this program where it fails."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**os.environ, **threads, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def user_dir() -> str:
    import fairseq_syntax

    return os.path.dirname(fairseq_syntax.__file__)


if __name__ == "__main__":
    main()
