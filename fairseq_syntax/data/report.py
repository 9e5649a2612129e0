"""What is in a store: its numbers, its labels, one of its sentences as text, and a full check against its tokens."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fairseq_syntax.corpus.conllu import MASS_TOLERANCE
from fairseq_syntax.corpus.segmentation import JOINER, SEPARATOR, SPACE_MARK, load_segmenter, unescape
from fairseq_syntax.corpus.store.flat import LABEL_FIELDS, FlatArcs, FlatSyntax
from fairseq_syntax.corpus.store.reader import SyntaxStore, release_pages
from fairseq_syntax.corpus.tree_drawing import draw_tree
from fairseq_syntax.data.dataset import check_against_tokens
from fairseq_syntax.data.directory import file_fingerprint, segmentation_path, tokens_fingerprint
from fairseq_syntax.data.labels import LabelInventory, labels_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.manifest import MANIFEST, Manifest

SUFFIX = ".syntax.arrow"
KEPT_BOUNDS = (0.5, 0.8, 0.9, 0.95, 0.99)
_BLOCK = 4096
_ROUNDING = 1 / 65_535  # a stored probability is off by half of this at most


def find_stores(path: str | os.PathLike[str]) -> list[str]:
    """The stores of a data directory, sorted; or the store itself.

    Raises:
        SyntaxDataError: there are none
    """
    if not os.path.isdir(path):
        return [os.fspath(path)]
    stores = sorted(str(file) for file in Path(path).glob(f"*{SUFFIX}"))
    if not stores:
        raise SyntaxDataError(f"no store (*{SUFFIX}) in this folder", path=path, hint="run fairseq-syntax binarize")
    return stores


def check_directory(path: str | os.PathLike[str]) -> Iterator[str]:
    """What is missing of a data directory, or is not the file that was made: by its manifest, on both sides."""
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
    """The token dataset beside a store: its pieces as text.

    Args:
        store: the path of the store, ``SPLIT.SRC-TGT.LANG.syntax.arrow``

    Attributes:
        dictionary_path: ``dict.LANG.txt``
        segmentation: its fingerprint; None where the folder has none

    Raises:
        SyntaxDataError: the dataset or its dictionary is not there, or damaged
    """

    def __init__(self, store: str) -> None:
        from fairseq_syntax.data.tokens import load_dictionary, load_tokens

        self.prefix = store.removesuffix(SUFFIX)
        folder, lang = os.path.dirname(self.prefix) or ".", self.prefix.rpartition(".")[2]
        self.dictionary_path = os.path.join(folder, f"dict.{lang}.txt")
        if not os.path.exists(self.dictionary_path):
            raise SyntaxDataError("there is no dictionary", path=self.dictionary_path, hint="run fairseq-preprocess")
        self.dictionary = load_dictionary(self.dictionary_path)
        self.dataset = load_tokens(self.prefix)
        about = segmentation_path(folder, lang)
        self.segmentation = load_segmenter(about).fingerprint if os.path.exists(about) else None

    def release(self) -> None:
        """Gives back the memory of what was read so far, as a store does."""
        for of in (self.dataset, getattr(self.dataset, "_index", None)):
            buffer = getattr(of, "_bin_buffer_mmap", None)
            if buffer is not None:
                release_pages(buffer._mmap)

    @property
    def sizes(self) -> np.ndarray:
        return np.asarray(self.dataset.sizes)

    def pieces(self, sentence: int) -> list[str]:
        """The pieces of a 0-based sentence, without ``</s>``."""
        return [self.dictionary[i] for i in self.dataset[sentence].tolist()[:-1]]

    def words(self, sentence: int, counts: list[int]) -> list[str]:
        """The pieces put together to words of so many pieces each."""
        pieces = iter(self.pieces(sentence))
        return [word_of([next(pieces, "?") for _ in range(n)]) for n in counts]


def word_of(pieces: list[str]) -> str:
    """The word that pieces spell, for a reader: without the marks of the segmentation."""
    text = "".join(piece.removesuffix(SEPARATOR) for piece in pieces)
    word = text.removeprefix(SPACE_MARK).removeprefix(JOINER)
    return unescape(word.replace(SPACE_MARK, " ") or text)


@dataclass
class Description:
    """The numbers of a store; ``labels`` counts names by column, ``mass`` adds up the arcs' probabilities by label.

    ``cyclic`` counts sentences whose heads close a cycle, as those of tokens of several words can. ``arcs_per_word``
    counts words by their number of arcs; ``kept`` counts words by how many of :data:`KEPT_BOUNDS` the mass of their
    arcs reaches; ``longest`` holds (words, 1-based sentence).
    """

    path: str
    sentences: int = 0
    empty: int = 0
    words: int = 0
    pieces: int = 0
    arcs: int = 0
    cyclic: int = 0
    has_arcs: bool = False
    labels: dict[str, Counter] = field(default_factory=dict)
    mass: dict[str, float] = field(default_factory=dict)
    arcs_per_word: Counter = field(default_factory=Counter)
    kept: Counter = field(default_factory=Counter)
    kept_mean: float = 0.0
    longest: list[tuple[int, int]] = field(default_factory=list)
    metadata: dict = field(default_factory=dict)


def describe(store: SyntaxStore, longest: int = 5) -> Description:
    """Read the whole store and count."""
    about = Description(store.path, sentences=len(store), has_arcs=store.has_arcs)
    about.metadata = {key: value for key, value in store.metadata.items() if key != "labels"}
    columns = {name: np.zeros(len(names), dtype=np.int64) for name, names in store.labels.items()}
    mass = np.zeros(len(store.labels["deprel"]))
    kept_total = 0.0
    for first, flat in _blocks(store):
        most = np.argsort(-flat.n_words, kind="stable")[:longest].tolist()
        about.longest += [(int(flat.n_words[i]), first + i + 1) for i in most]
        about.longest = sorted(about.longest, key=lambda entry: -entry[0])[:longest]
        about.empty += int((flat.n_words == 0).sum())
        about.words += len(flat.pieces)
        about.pieces += int(flat.pieces.sum())
        about.cyclic += _cyclic(flat)
        for name in LABEL_FIELDS:
            columns[name] += np.bincount(getattr(flat, name), minlength=len(columns[name]))[: len(columns[name])]
        if flat.arcs is not None:
            dependent = _dependents(flat, flat.arcs)
            per_word = np.bincount(dependent, minlength=len(flat.pieces))
            kept = np.bincount(dependent, weights=flat.arcs.prob, minlength=len(flat.pieces))
            about.arcs += len(flat.arcs.prob)
            about.arcs_per_word.update(per_word.tolist())
            about.kept.update(np.searchsorted(KEPT_BOUNDS, kept + _ROUNDING, side="right").tolist())
            kept_total += float(kept.sum())
            mass += np.bincount(flat.arcs.label, weights=flat.arcs.prob, minlength=len(mass))[: len(mass)]
    about.kept_mean = kept_total / about.words if about.words else 0.0
    for name, numbers in columns.items():
        named = zip(store.labels[name], numbers.tolist())
        about.labels[name] = Counter({label: number for label, number in named if number})
    about.mass = {label: float(m) for label, m in zip(store.labels["deprel"], mass) if m}
    return about


def report(about: Description, groups: str | None = "ud") -> str:
    """A description as text.

    Args:
        groups: the label groups of LDD to report the kept mass of; None leaves this out
    """
    per_word = about.pieces / about.words if about.words else 0.0
    rows = [
        about.path,
        f"  {about.sentences:,} sentences ({about.empty:,} empty), {about.words:,} words, {about.pieces:,} pieces"
        f" ({per_word:.2f} a word)",
    ]
    if about.cyclic:
        rows.append(f"  sentences with a cycle, whose first word counts as a root: {about.cyclic:,}")
    if about.has_arcs:
        mean = about.arcs / about.words if about.words else 0.0
        rows.append(f"  {about.arcs:,} arcs, {mean:.2f} a word; kept mass of a word: {about.kept_mean:.4f} on average")
        rows.append("  words by number of arcs: " + _shares(dict(sorted(about.arcs_per_word.items())), about.words))
        rows.append(
            "  words by kept mass: " + _shares({_kept(k): n for k, n in sorted(about.kept.items())}, about.words)
        )
    else:
        rows.append("  trees only, no arcs (parse with --distributions for LDD)")
    if groups and (about.mass or about.labels["deprel"]):
        from fairseq_syntax.data.label_groups import read_label_groups

        coverage = read_label_groups(groups).coverage(about.mass or about.labels["deprel"])
        rows.append(f"  label groups {groups}: {coverage}")
    for name, counter in about.labels.items():
        rows.append(f"  {name}: {len(counter)} labels")
        rows += _histogram(counter)
    rows.append("  longest: " + ", ".join(f"sentence {n} ({size} words)" for size, n in about.longest))
    keys = ("lang", "version", "tokens", "dictionary_fingerprint", "labels_fingerprint", "segmentation_fingerprint")
    rows.append("  " + ", ".join(f"{key} {about.metadata[key]}" for key in keys if about.metadata.get(key)))
    return "\n".join(rows)


def example(store: SyntaxStore, sentence: int, tokens: Tokens | None = None) -> str:
    """A sentence (counted from 1) as text: its tree, with each word's pieces and most probable arcs.

    Raises:
        SyntaxDataError: no such sentence
    """
    if not 1 <= sentence <= len(store):
        raise SyntaxDataError(f"no sentence {sentence}: there are {len(store)}", path=store.path)
    flat = store.fetch(np.array([sentence - 1]), arcs=store.has_arcs)
    counts = flat.pieces.tolist()
    words = tokens.words(sentence - 1, counts) if tokens else [f"word{i + 1}" for i in range(len(counts))]
    pieces = iter(tokens.pieces(sentence - 1)) if tokens else iter([])
    names = store.labels
    heads, deprels, upos = flat.head.tolist(), flat.deprel.tolist(), flat.upos.tolist()
    arcs: list[list[tuple[float, str]]] = [[] for _ in counts]
    if flat.arcs is not None:
        for dependent, head, label, p in flat.arcs.rows():
            to = "ROOT" if head == dependent else words[head]
            arcs[dependent].append((p, f"{to}:{names['deprel'][label]} {p:.2f}"))
    rows = []
    for i, word in enumerate(words):
        text = f"{word} {names['upos'][upos[i]]} {names['deprel'][deprels[i]]}"
        if counts[i] > 1:
            text += f" [{' '.join(next(pieces, '?') for _ in range(counts[i]))}]"
        else:
            next(pieces, None)
        if arcs[i]:
            text += "   " + ", ".join(arc for _, arc in sorted(arcs[i], reverse=True)[:3])
        rows.append(text)
    return f"sentence {sentence}\n" + draw_tree(rows, heads)


def check(store: SyntaxStore, tokens: Tokens) -> Iterator[str]:
    """Everything that is wrong with a store, in words: in itself, and against the token dataset beside it.

    Each sentence's pieces must be as many as its tokens (which pieces those are, binarizing has compared); heads must
    stay in the sentence; labels must be in the inventory; arcs must stay in the sentence, stand once, and have a mass
    of 1 at most. A cycle of heads is no fault: tokens of several words can close one, and the
    store does not say which tokens those are.
    """
    beside = labels_path(os.path.dirname(tokens.prefix) or ".", tokens.prefix.rpartition(".")[2])
    try:
        store.verify()
        check_against_tokens(
            store,
            tokens.sizes,
            file_fingerprint(tokens.dictionary_path),
            LabelInventory.load(beside).labels if os.path.exists(beside) else None,
            content=tokens_fingerprint(tokens.prefix),
            segmentation=tokens.segmentation,
        )
    except SyntaxDataError as error:
        yield error.message
    if len(store) != len(tokens.sizes):
        return
    try:
        yield from _check_sentences(store, tokens)
    except SyntaxDataError as error:  # a block that cannot be read at all
        yield error.message


def _check_sentences(store: SyntaxStore, tokens: Tokens) -> Iterator[str]:
    eos, vocabulary = tokens.dictionary.eos(), len(tokens.dictionary)
    for first, flat in _with_progress(store, tokens):
        for offset, what in sorted(_problems(store, flat), key=lambda problem: problem[0]):
            yield f"sentence {first + offset + 1}: {what}"
        for b, n_pieces in enumerate(flat.n_pieces.tolist()):
            ids = tokens.dataset[first + b].tolist()
            where = f"sentence {first + b + 1}"
            if not ids or ids[-1] != eos:
                yield f"{where}: the tokens do not end in </s>"
            if ids and max(ids) >= vocabulary:
                yield f"{where}: token {max(ids)} is not in the dictionary of {vocabulary}"
            elif len(ids) - 1 != n_pieces:
                yield f"{where}: {n_pieces} pieces, but {len(ids) - 1} tokens"


def _with_progress(store: SyntaxStore, tokens: Tokens) -> Iterator[tuple[int, FlatSyntax[np.ndarray]]]:
    with progress(total=len(store), of="checking", unit="sentences") as bar:
        for first, flat in _blocks(store):
            yield first, flat
            tokens.release()
            bar.update(len(flat.n_words))


def _blocks(store: SyntaxStore) -> Iterator[tuple[int, FlatSyntax[np.ndarray]]]:
    for first in range(0, len(store), _BLOCK):
        yield first, store.fetch(np.arange(first, min(first + _BLOCK, len(store))), arcs=store.has_arcs)
        store.release()


def _dependents(flat: FlatSyntax[np.ndarray], arcs: FlatArcs[np.ndarray]) -> np.ndarray:
    """[A]: the flat word that each arc is one of."""
    starts = np.cumsum(flat.n_words) - flat.n_words
    return arcs.dependent + np.repeat(starts, arcs.n_arcs)


def _cyclic(flat: FlatSyntax[np.ndarray]) -> int:
    """The number of sentences in which some walk upwards never comes to a root."""
    n_words = flat.n_words
    sentence = np.repeat(np.arange(len(n_words)), n_words)
    starts = np.cumsum(n_words) - n_words
    outside = flat.head >= n_words[sentence]
    parent = np.where(outside, np.arange(len(flat.head)), flat.head + starts[sentence])
    above = parent
    for _ in range(int(n_words.max(initial=1)).bit_length() + 1):  # further up than a sentence has words
        above = above[above]
    return len(np.unique(sentence[parent[above] != above]))


def _problems(store: SyntaxStore, flat: FlatSyntax[np.ndarray]) -> Iterator[tuple[int, str]]:
    """What is wrong inside a block: (sentence within it, what)."""
    n_words = flat.n_words
    sentence = np.repeat(np.arange(len(n_words)), n_words)
    starts = np.cumsum(n_words) - n_words
    within = np.arange(len(sentence)) - starts[sentence]
    head = flat.head
    for i in np.flatnonzero(flat.pieces < 1):
        yield int(sentence[i]), f"word {within[i] + 1} has no piece"
    outside = head >= n_words[sentence]
    for i in np.flatnonzero(outside):
        yield int(sentence[i]), f"the head of word {within[i] + 1} is word {head[i] + 1} of {n_words[sentence[i]]}"
    for name in LABEL_FIELDS:
        for i in np.flatnonzero(getattr(flat, name) >= len(store.labels[name])):
            yield int(sentence[i]), f"word {within[i] + 1} has a {name} that is not in the inventory"
    arcs = flat.arcs
    if arcs is None:
        return
    dependent = _dependents(flat, arcs)
    of = sentence[dependent]
    for a in np.flatnonzero(arcs.head >= n_words[of]):
        yield int(of[a]), f"an arc of word {within[dependent[a]] + 1} leaves the sentence"
    for a in np.flatnonzero(arcs.label >= len(store.labels["deprel"])):
        yield int(of[a]), f"an arc of word {within[dependent[a]] + 1} has a label that is not in the inventory"
    keys = np.stack([dependent, arcs.head, arcs.label])
    if keys.shape[1]:
        _, place, times = np.unique(keys, axis=1, return_index=True, return_counts=True)
        for a in place[times > 1]:
            yield int(of[a]), f"an arc of word {within[dependent[a]] + 1} stands twice"
    mass = np.bincount(dependent, weights=arcs.prob, minlength=len(sentence))
    arcs_of = np.bincount(dependent, minlength=len(sentence))
    for i in np.flatnonzero(mass > 1 + MASS_TOLERANCE + arcs_of * _ROUNDING):
        yield int(sentence[i]), f"the arcs of word {within[i] + 1} have a mass of {mass[i]:.4f}"


def _shares(counts: Mapping[object, int], total: int, most: int = 8) -> str:
    items = list(counts.items())
    shown = [f"{key}: {100 * n / max(total, 1):.1f}%" for key, n in items[:most]]
    rest = sum(n for _, n in items[most:])
    return ", ".join(shown + ([f"more: {100 * rest / total:.1f}%"] if rest else []))


def _kept(k: int) -> str:
    return f"under {KEPT_BOUNDS[0]}" if k == 0 else f"from {KEPT_BOUNDS[k - 1]}"


def _histogram(counter: Counter, most: int = 12, width: int = 30) -> list[str]:
    total, top = sum(counter.values()), max(counter.values(), default=1)
    rows = [
        f"    {label:<16} {n:>12,} {100 * n / total:5.1f}% {'█' * max(1, round(width * n / top))}"
        for label, n in counter.most_common(most)
    ]
    left = counter.most_common()[most:]
    if left:
        n = sum(count for _, count in left)
        rows.append(f"    {f'{len(left)} more':<16} {n:>12,} {100 * n / total:5.1f}%")
    return rows
