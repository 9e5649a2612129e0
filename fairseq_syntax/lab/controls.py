"""Control parses: parses of the same form that contain less syntax, or none.

A gain that a system also has with a control can be had without the syntax that the control lacks. Pham, Macháček and
Bojar (2019) introduced this comparison to translation, and measured the same gain with linear trees. A control may also
do harm: chains teach a model to attend to neighbours. The nearest to a placebo is ``shuffled``, whose trees have the
shapes, labels and lengths of arcs of real ones, but say nothing of the sentence. A control changes each sentence's
tree, labels and distributions, but not its words, tags and tokens. The result is always a tree with one root per
sentence.

=================  =====================================================  =======================================
control            change to a sentence of n words                        what remains of the parse
=================  =====================================================  =======================================
linear             each word attaches to the one before; the first is root   the labels of the words
right              each word attaches to the one after; the last is root     the labels
flat               each word attaches to the root of the parse               the root, the labels
random             a uniformly random rooted tree, of n^(n-1)              the labels
random-projective  a uniformly random projective tree                      the labels
shuffled           tree, labels and distribution of another sentence of   the trees of the corpus, elsewhere
                   n words, none used twice
relabelled         labels permuted among the words except the root        the tree, the frequencies of labels
one-best           probability 1 for each word's arc in the tree          the tree
damaged            each arc replaced by a wrong one with probability P     the other arcs, the labels
=================  =====================================================  =======================================

*New heads.* Words keep their labels, except that the old and the new root swap theirs, so that the root has ``root``.
In distributions, all arcs of a word move to its new head with their labels and probabilities, and arcs that coincide
are added up; a word's distribution over labels and its total mass do not change. *Relabelled* gives a word the label
of another, and the probability p(head) q(label) to its arcs, where q is the other word's distribution over labels. The
distributions of *damaged* reflect its reliability: 1 - P of a word's mass is on its arc in the damaged tree, and P is
spread evenly over its other possible heads, including the correct one.

Controls can be combined: ``linear`` then ``relabelled`` keeps only the frequencies of labels; ``damaged`` then
``one-best`` is certain of wrong arcs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random
from typing import Any

from fairseq_syntax.corpus.conllu import ParsedLine, owner
from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.control_trees import STRUCTURES, control_heads, root_of, sattolo, with_wrong_arcs

WordArc = tuple[int, str, float]  # head, label, probability

CONTROLS = (*STRUCTURES, "shuffled", "relabelled", "one-best", "damaged")


@dataclass
class SentenceTree:
    """The tree of one sentence: 0-based ``heads`` (the root is its own), labels, and each word's arcs, if any."""

    heads: list[int]
    deprels: list[str]
    arcs: list[list[WordArc]] | None


@dataclass(frozen=True)
class Control:
    """A sequence of controls, applied one after the other.

    Args:
        names: names in :data:`CONTROLS`
        seed: the random seed; except for ``shuffled``, the result for a line depends only on the line and its number
        block: the number of lines within which ``shuffled`` exchanges trees, which limits memory
        wrong_arcs: P of ``damaged``, the share of arcs to replace, above 0 and at most 1
        counts: the number of ``lines``, ``sentences`` and ``words``; of sentences ``without_partner`` of the same
            length for ``shuffled``; and of heads that ``damaged`` replaced (``wrong_arcs``) or could not replace,
            because no other gives a tree (``not_replaced``)

    Raises:
        SyntaxDataError: a control does not exist, or ``wrong_arcs`` is missing
    """

    names: tuple[str, ...]
    seed: int = 1
    block: int = 50_000
    wrong_arcs: float | None = None
    counts: Counter[str] = field(default_factory=Counter, compare=False)

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in CONTROLS:
                raise SyntaxDataError(f"there is no control {name}", hint=meant(name, CONTROLS))
        if ("damaged" in self.names) != (self.wrong_arcs is not None):
            raise SyntaxDataError("applies to the control damaged, which requires it", option="--wrong-arcs")

    def for_header(self) -> list[str]:
        """The names of controls for a parse's header, with the share of wrong arcs of ``damaged``."""
        options = {"damaged": f" --wrong-arcs {self.wrong_arcs!r}"}
        return [name + options.get(name, "") for name in self.names]

    def __call__(self, lines: Iterable[ParsedLine]) -> Iterator[ParsedLine]:
        """Yield the control parse of each line, in order, without changing the lines."""
        for name in self.names:
            lines = self._shuffled(lines) if name == "shuffled" else self._each(name, lines)
        for line in lines:
            self.counts.update(lines=1, sentences=len(line.sentences), words=len(line.words))
            yield line

    def _each(self, name: str, lines: Iterable[ParsedLine]) -> Iterator[ParsedLine]:
        for line in lines:
            rng = self._random(name, line.line_number)
            yield with_sentences(line, [self._changed(name, sentence, rng) for sentence in sentences_of(line)])

    def _changed(self, name: str, sentence: SentenceTree, rng: Random) -> SentenceTree:
        if name == "relabelled":
            return relabelled(sentence, rng)
        if name == "one-best":
            return one_best(sentence)
        if name == "damaged":
            return self._damaged(sentence, rng)
        return with_tree(sentence, control_heads(name, sentence.heads, rng))

    def _damaged(self, sentence: SentenceTree, rng: Random) -> SentenceTree:
        assert self.wrong_arcs is not None  # checked in __post_init__
        wanted = sum(rng.random() < self.wrong_arcs for _ in sentence.heads)
        heads = with_wrong_arcs(sentence.heads, wanted, rng)
        wrong = sum(before != after for before, after in zip(sentence.heads, heads))
        self.counts.update(wrong_arcs=wrong, not_replaced=wanted - wrong)
        return hedged(with_tree(sentence, heads), self.wrong_arcs)

    def _random(self, name: str, number: int) -> Random:
        # Seeded by a string, which is hashed in the same way in every process.
        return Random(f"{name} {self.seed} {number}")

    def _shuffled(self, lines: Iterable[ParsedLine]) -> Iterator[ParsedLine]:
        lines = iter(lines)
        while block := list(islice(lines, self.block)):
            trees = [sentence for line in block for sentence in sentences_of(line)]
            by_length: dict[int, list[int]] = defaultdict(list)
            for place, tree in enumerate(trees):
                by_length[len(tree.heads)].append(place)
            rng = self._random("shuffled", block[0].line_number)
            shuffled = list(trees)
            for places in by_length.values():
                for place, source in zip(places, sattolo(places, rng)):
                    shuffled[place] = trees[source]
                if len(places) == 1:  # its own tree would not be a control, so it gets a random one
                    self.counts["without_partner"] += 1
                    alone = trees[places[0]]
                    shuffled[places[0]] = with_tree(alone, control_heads("random", alone.heads, rng))
            rest = iter(shuffled)
            for line in block:
                yield with_sentences(line, list(islice(rest, len(line.sentences))))


def sentences_of(line: ParsedLine) -> list[SentenceTree]:
    """The trees of a line's sentences."""
    arcs: list[list[WordArc]] = [[] for _ in line.words]
    starts = [start for start, end in line.sentences for _ in range(end - start)]
    for word, head, label, p in line.arcs or ():
        arcs[word].append((head - starts[word], label, p))
    return [
        SentenceTree(
            [head - start for head in line.heads[start:end]],
            line.deprels[start:end],
            None if line.arcs is None else arcs[start:end],
        )
        for start, end in line.sentences
    ]


def with_sentences(line: ParsedLine, sentences: Sequence[SentenceTree]) -> ParsedLine:
    """The line with new trees; arcs are sorted by probability, and the owners of tokens' pieces are recomputed."""
    heads: list[int] = []
    deprels: list[str] = []
    arcs: list[tuple[int, int, str, float]] | None = None
    for (start, _), sentence in zip(line.sentences, sentences):
        heads += [head + start for head in sentence.heads]
        deprels += sentence.deprels
        if sentence.arcs is not None:
            arcs = arcs or []
            for word, of_word in enumerate(sentence.arcs, start):
                arcs += [(word, head + start, label, p) for head, label, p in sorted(of_word, key=lambda arc: -arc[2])]
    tokens = [replace(token, word=owner(token.first, token.last, heads)) for token in line.tokens]
    return replace(line, heads=heads, deprels=deprels, arcs=arcs, tokens=tokens)


def masses(arcs: Iterable[WordArc], column: int) -> dict[Any, float]:
    """The total probability of the arcs of each head (column 0) or label (column 1)."""
    mass: dict[Any, float] = defaultdict(float)
    for arc in arcs:
        mass[arc[column]] += arc[2]
    return mass


def with_tree(sentence: SentenceTree, heads: list[int]) -> SentenceTree:
    """The sentence with new heads. Labels and probabilities are kept, but the old and new root swap theirs."""
    # The label `root` and its distribution always belong to the root.
    before, after = root_of(sentence.heads), root_of(heads)
    source = list(range(len(heads)))  # the word that each word's label and distribution come from
    source[before], source[after] = after, before
    arcs = sentence.arcs and [
        # Rounding may give sums above 1, which readers of a parse reject.
        [(head, label, min(p, 1.0)) for label, p in masses(sentence.arcs[word], 1).items()]
        for head, word in zip(heads, source)
    ]
    return SentenceTree(heads, [sentence.deprels[word] for word in source], arcs)


def relabelled(sentence: SentenceTree, rng: Random) -> SentenceTree:
    """The sentence with the labels of all words except the root permuted uniformly at random.

    In distributions, if word w gets the label of word v, its arcs to other words have the probabilities
    p(head | w) q(label | v), where q is the distribution over the labels of v's arcs to words (v's label in the tree if
    it has no such arcs). Arcs to the artificial root do not change.
    """
    root = root_of(sentence.heads)
    others = [word for word in range(len(sentence.heads)) if word != root]
    shuffled = list(others)
    rng.shuffle(shuffled)
    source = {root: root, **dict(zip(others, shuffled))}
    deprels = [sentence.deprels[source[word]] for word in range(len(sentence.heads))]
    if sentence.arcs is None:
        return SentenceTree(sentence.heads, deprels, None)
    to_words = [[arc for arc in arcs if arc[0] != word] for word, arcs in enumerate(sentence.arcs)]
    labels: list[dict[str, float]] = []
    for word, arcs in enumerate(to_words):
        mass = masses(arcs, 1)
        total = sum(mass.values())  # arcs of probability 0 count as none
        labels.append({label: p / total for label, p in mass.items()} if total > 0 else {sentence.deprels[word]: 1.0})
    changed: list[list[WordArc]] = []
    for word, arcs in enumerate(sentence.arcs):
        changed.append([arc for arc in arcs if arc[0] == word])
        for head, p in masses(to_words[word], 0).items():
            changed[word] += [(head, label, min(p * q, 1.0)) for label, q in labels[source[word]].items()]
    return SentenceTree(sentence.heads, deprels, changed)


def hedged(sentence: SentenceTree, doubt: float) -> SentenceTree:
    """The sentence with 1 - ``doubt`` of each word's mass on its arc, and the rest spread evenly over other heads.

    All arcs have the word's label in the tree. Possible heads are all other words and the artificial root, which is
    represented by the word itself. A sentence without distributions is not given any.
    """
    n = len(sentence.heads)
    on_head, elsewhere = (1 - doubt, doubt / (n - 1)) if n > 1 else (1.0, 0.0)
    arcs = sentence.arcs and [
        [
            (other, label, min(sum(p for _, _, p in of_word) * (on_head if other == head else elsewhere), 1.0))
            for other in range(n)
        ]
        for head, label, of_word in zip(sentence.heads, sentence.deprels, sentence.arcs)
    ]
    return SentenceTree(sentence.heads, sentence.deprels, arcs)


def one_best(sentence: SentenceTree) -> SentenceTree:
    """Each word's arc in the tree with probability 1, also for a parse without distributions."""
    arcs = [[(head, label, 1.0)] for head, label in zip(sentence.heads, sentence.deprels)]
    return SentenceTree(sentence.heads, sentence.deprels, arcs)
