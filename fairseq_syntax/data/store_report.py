"""Reports on a store: its statistics, sentences as text, and a check against its token dataset."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fairseq_syntax.corpus.cycles import ends_in_cycle
from fairseq_syntax.corpus.parsed_line import draw_tree
from fairseq_syntax.corpus.segmentation import JOINER, SEPARATOR, SPACE_MARK, unescape_marks
from fairseq_syntax.corpus.store.flat import LABEL_FIELDS, FlatSyntax
from fairseq_syntax.corpus.store.reader import SyntaxStore
from fairseq_syntax.corpus.store.store_format import STORE_SUFFIX
from fairseq_syntax.data.binarize import Summary
from fairseq_syntax.data.dataset import check_against_tokens
from fairseq_syntax.data.directory import dictionary_path, folder_and_language
from fairseq_syntax.data.labels import LabelInventory, labels_path
from fairseq_syntax.data.tokens import load_dictionary, load_tokens
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.bounds import check_sentences
from fairseq_syntax.runtime.manifest import MANIFEST, Manifest

_BLOCK = 4096  # sentences per read


def find_stores(path: str | os.PathLike[str]) -> list[str]:
    """The stores of a data directory, sorted, or the given store. Raises SyntaxDataError."""
    if not os.path.isdir(path):
        return [os.fspath(path)]
    stores = sorted(str(file) for file in Path(path).glob(f"*{STORE_SUFFIX}"))
    if not stores:
        message = f"no store (*{STORE_SUFFIX}) in this folder"
        raise SyntaxDataError(message, path=path, hint="run fairseq-syntax binarize")
    return stores


def check_directory(path: str | os.PathLike[str]) -> Iterator[str]:
    """Errors for the files of a data directory that are missing or have changed, on both sides."""
    try:
        manifest = Manifest.read(path)
    except SyntaxDataError as error:
        yield str(error)
        return
    if manifest is None:
        yield f"{Path(path, MANIFEST)}: is missing: nothing says what was made"
    else:
        yield from map(str, manifest.problems())


class Tokens:
    """The token dataset of a store: its pieces as text.

    Args:
        store: the path of the store, ``SPLIT.SRC-TGT.LANG.syntax.arrow``

    Raises:
        SyntaxDataError: the dataset or its dictionary is missing or damaged
    """

    def __init__(self, store: str) -> None:
        prefix = store.removesuffix(STORE_SUFFIX)
        self.dictionary = load_dictionary(dictionary_path(*folder_and_language(prefix)))
        self.dataset = load_tokens(prefix, self.dictionary)

    def by_word(self, sentence: int, counts: list[int]) -> list[list[str]]:
        """The pieces of each word of a 0-based sentence, given the numbers of pieces; ``?`` for missing ones."""
        ids = self.dataset[sentence].tolist()[:-1]  # without </s>
        pieces = iter([self.dictionary[i] for i in ids])
        return [[next(pieces, "?") for _ in range(n)] for n in counts]


def word_of(pieces: list[str]) -> str:
    """The word spelled by pieces, without segmentation marks."""
    text = "".join(piece.removesuffix(SEPARATOR) for piece in pieces)
    word = text.removeprefix(SPACE_MARK).removeprefix(JOINER)
    return unescape_marks(word.replace(SPACE_MARK, " ") or text)


def store_report(store: SyntaxStore, groups: str = "ud") -> str:
    """The summary of a store and the frequencies of its labels as text, with the mass in label groups of LDD."""
    counts = {name: np.zeros(len(names), dtype=np.int64) for name, names in store.labels.items()}
    empty = cyclic = 0
    for first in range(0, len(store), _BLOCK):
        flat = store.fetch(np.arange(first, min(first + _BLOCK, len(store))))
        empty += int((flat.n_words == 0).sum())
        cyclic += _cyclic(flat)
        for name in LABEL_FIELDS:
            counts[name] += np.bincount(getattr(flat, name), minlength=len(counts[name]))
        store.release()
    rows = [store.path, "  " + Summary.of(store).text(groups).replace("; ", "\n  ")]
    if empty:
        rows.append(f"  empty lines: {empty:,}")
    if cyclic:  # tokens of several words can cause cycles
        rows.append(f"  sentences with a cycle, whose first word counts as a root: {cyclic:,}")
    for name, numbers in counts.items():
        counter = Counter({label: int(n) for label, n in zip(store.labels[name], numbers) if n})
        rows += [f"  {name}: {len(counter)} labels", *_histogram(counter)]
    return "\n".join(rows)


def example(store: SyntaxStore, sentence: int, tokens: Tokens | None = None) -> str:
    """A sentence (1-based) as text: its tree with each word's pieces and most probable arcs."""
    check_sentences([sentence], len(store), store.path)
    flat = store.fetch(np.array([sentence - 1]), arcs=store.has_arcs)
    counts = flat.pieces.tolist()
    pieces = tokens.by_word(sentence - 1, counts) if tokens else [["?"] * n for n in counts]
    words = list(map(word_of, pieces)) if tokens else [f"word{i + 1}" for i in range(len(counts))]
    labels = {name: [store.labels[name][i] for i in getattr(flat, name)] for name in ("upos", "deprel")}
    arcs: list[list[tuple[float, str]]] = [[] for _ in counts]
    for dependent, head, label, p in flat.arcs.rows() if flat.arcs is not None else ():
        to = "ROOT" if head == dependent else words[head]
        arcs[dependent].append((p, f"{to}:{store.labels['deprel'][label]} {p:.2f}"))
    rows = []
    for i, word in enumerate(words):
        text = f"{word} {labels['upos'][i]} {labels['deprel'][i]}"
        if counts[i] > 1:
            text += f" [{' '.join(pieces[i])}]"
        if arcs[i]:
            text += "   " + ", ".join(arc for _, arc in sorted(arcs[i], reverse=True)[:3])
        rows.append(text)
    return f"sentence {sentence}\n" + draw_tree(rows, flat.head.tolist())


def check(store: SyntaxStore, tokens: Tokens) -> str | None:
    """The error of a store, by itself or compared with its token dataset; None if there is none."""
    path = labels_path(*folder_and_language(store.path.removesuffix(STORE_SUFFIX)))
    try:
        store.check_numbers()
        labels = LabelInventory.load(path).labels if os.path.exists(path) else None
        check_against_tokens(store, np.asarray(tokens.dataset.sizes), labels)
    except SyntaxDataError as error:
        return error.message
    return None


def _cyclic(flat: FlatSyntax[np.ndarray]) -> int:
    """The number of sentences that contain a cycle."""
    n_words = flat.n_words
    sentence = np.repeat(np.arange(len(n_words)), n_words)
    starts = np.cumsum(n_words) - n_words
    outside = flat.head >= n_words[sentence]
    parent = np.where(outside, np.arange(len(flat.head)), flat.head + starts[sentence])
    return len(np.unique(sentence[ends_in_cycle(parent, int(n_words.max(initial=1)).bit_length())]))


def _histogram(counter: Counter) -> list[str]:
    """The twelve most frequent labels with bars of up to 30 characters, and the sum of all others."""
    total, top = sum(counter.values()), max(counter.values(), default=1)
    ordered = counter.most_common()
    rows = [
        f"    {label:<16} {n:>12,} {100 * n / total:5.1f}% {'█' * max(1, round(30 * n / top))}"
        for label, n in ordered[:12]
    ]
    if rest := ordered[12:]:
        n = sum(count for _, count in rest)
        rows.append(f"    {f'{len(rest)} more':<16} {n:>12,} {100 * n / total:5.1f}%")
    return rows
