"""The store: how fast parse and tokens are binarized, by one process and by two, and what checksums cost the loader."""

from __future__ import annotations

import random
import time
from functools import lru_cache
from pathlib import Path

import numpy as np
from fairseq.binarizer import FileBinarizer, VocabularyDatasetBinarizer
from fairseq.data import Dictionary
from fairseq.tokenizer import tokenize_line

from bench import corpus
from bench.harness import measure, record, seconds, temporary_folder
from fairseq_syntax.corpus.conllu import ParsedLine, Token, write_conllu
from fairseq_syntax.corpus.segmentation_training import train_segmenter
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.store_format import store_path
from fairseq_syntax.data.binarize import Summary, binarize
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.data.tokens import binarize_tokens
from fairseq_syntax.runtime.jobs import RecordedStep

LINES = 65_536  # so many that starting two processes takes little of the time
ROUNDS = 3


@lru_cache
def segmented(lines: int = LINES, arcs: bool = True) -> Path:
    """A temporary folder with ``train.en``, its parse and its segmentation: as long as captions, as ambiguous."""
    folder = temporary_folder()
    rng = random.Random(1)
    # 12,000 words, as frequent as Zipf's law has it
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 9))) for _ in range(12_000)]
    weights = list(np.cumsum([1 / (i + 3) for i in range(len(words))]))
    parsed = []
    for number in range(lines):
        stored = corpus.random_sentence(rng, max(1, round(rng.gauss(13, 3))))
        n = len(stored.head)
        forms = rng.choices(words, cum_weights=weights, k=n)
        found = [(dep, head, corpus.LABELS[label - 1], round(p, 4)) for dep, head, label, p in stored.arcs or ()]
        parsed.append(
            ParsedLine(
                words=forms,
                heads=stored.head,
                deprels=[corpus.LABELS[label - 1] for label in stored.deprel],
                upos=["NOUN"] * n,
                xpos=["NN"] * n,
                tokens=[Token(form, True, i, i, i) for i, form in enumerate(forms)],
                arcs=found if arcs else None,
                sentences=[(0, n)],
                line_number=number,
            )
        )
    (folder / "text").write_text("".join(" ".join(line.words) + "\n" for line in parsed[:4000]), encoding="utf-8")
    segmenter = train_segmenter("sentencepiece", [folder / "text"], 2000)
    segmenter.save(folder / "segmentation.en")
    with (
        open(folder / "train.en", "w", encoding="utf-8") as pieces,
        open(folder / "train.en.conllu", "w", encoding="utf-8") as parse,
    ):
        parse.write(f"# lines = {lines}\n")
        for line in parsed:
            own = segmenter.encode_words(line.words, [True] * len(line.words))
            for token, split in zip(line.tokens, own):
                token.pieces = len(split)
            pieces.write(" ".join(piece for split in own for piece in split) + "\n")
            write_conllu(parse, line)
    return folder


def _binarize(folder: Path, workers: int) -> tuple[float, float, Summary]:
    """Seconds on the clock and of this process' CPU time, and what was made."""
    out = folder / "train.syntax.arrow"
    out.unlink(missing_ok=True)
    text, parse = (str(folder / name) for name in ("train.en", "train.en.conllu"))
    clock, cpu = time.perf_counter(), time.process_time()
    summary = binarize(text, parse, str(out), LabelInventory(), lang="en", dictionary=text, workers=workers)
    return time.perf_counter() - clock, time.process_time() - cpu, summary


@measure("binarize/core", "binarize/workers@2")
def binarizing() -> None:
    """Lines a second and core, against the 4,000 that are asked for; and two processes against one."""
    folder = segmented()
    _binarize(folder, 1)
    times = [(_binarize(folder, 1), _binarize(folder, 2)) for _ in range(ROUNDS)]
    summary = times[0][0][2]
    rates = [LINES / one[1] for one, _ in times]
    detail = {"lines": LINES, "words": summary.words, "arcs": summary.arcs}
    record(
        "binarize/core",
        [rate / 4000 for rate in rates],
        unit="lines a CPU second, over 4,000",
        detail={**detail, "lines_per_cpu_second": round(sorted(rates)[len(rates) // 2])},
    )
    record(
        "binarize/workers@2",
        [one[0] / two[0] / 2 for one, two in times],
        unit="speed of two processes over twice one's",
        detail={**detail, "seconds": [round(two[0], 2) for _, two in times]},
    )


@measure("binarize/tokens", "binarize/tokens@2")
def binarizing_tokens() -> None:
    """The tokens of ``fairseq-preprocess`` in parts, against fairseq's own dataset of the same bytes."""
    folder, dictionary = segmented(), Dictionary()
    path = str(folder / "train.en")
    Dictionary.add_file_to_dictionary(path, dictionary, tokenize_line, 1)
    dictionary.finalize()
    binarizer = VocabularyDatasetBinarizer(dictionary, append_eos=True)
    for workers, name in ((1, "binarize/tokens"), (2, "binarize/tokens@2")):

        def ours(workers: int = workers) -> float:
            outputs = [folder / "ours.bin", folder / "ours.idx"]
            outputs[0].unlink(missing_ok=True)  # so that it is not done
            begin = time.perf_counter()
            binarize_tokens(RecordedStep.of("bench", outputs), path, dictionary, workers=workers)
            return time.perf_counter() - begin

        def theirs(workers: int = workers) -> float:
            begin = time.perf_counter()
            prefix = str(folder / "theirs")
            FileBinarizer.multiprocess_dataset(path, "mmap", binarizer, prefix, len(dictionary), workers)
            return time.perf_counter() - begin

        ours()
        times = [(ours(), theirs()) for _ in range(ROUNDS)]
        record(
            name,
            [other / own for own, other in times],
            unit=f"speed, over fairseq's with --workers {workers}",
            detail={"lines": LINES, "seconds": [[round(value, 2) for value in pair] for pair in times]},
        )


@measure("store/checksums")
def checksums() -> None:
    """What verifying every chunk takes, as a share of an epoch with arcs: each is verified once, in the first one."""
    directory = corpus.corpus()
    epoch = corpus.loader_epoch({"tree", "arcs"}, directory)
    epoch()
    shares = []
    for _ in range(15):
        begin = seconds()
        epoch()
        loading = seconds() - begin
        store = SyntaxStore(store_path(directory, "train", "en", "de", "en"))
        begin = seconds()
        store.verify()
        shares.append((seconds() - begin) / loading)
    record("store/checksums", shares, unit="time of all checksums over an epoch's")
