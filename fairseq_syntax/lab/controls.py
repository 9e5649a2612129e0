"""Control parses: parses of the same form that contain less syntax, or none.

What a model gains from a parse and not from its control is what the syntax is worth. Pham, Macháček and Bojar (2019)
found the same gain with linear trees. Each control changes sentences one by one, labels and distributions alike, and
leaves words, tags and tokens as they are. Every result is a tree with one root per sentence.

=================  =====================================================  =======================================
control            what it makes of a sentence of n words                 what stays of the parse
=================  =====================================================  =======================================
linear             each word attaches to the one before; the first is root   the labels of the words
right              each word attaches to the one after; the last is root     the labels
flat               each word attaches to the root of the parse               the root, the labels
random             one of the n^(n-1) rooted trees, all equally likely    the labels
random-projective  one of the projective ones, all equally likely         the labels
shuffled           tree, labels and distribution of another sentence of   the trees of the corpus, each elsewhere
                   n words, none used twice
relabelled         labels change places among the words, not the root's   the tree; how often each label comes
one-best           all of a word's mass, 1, on its arc in the tree        the tree
damaged            each arc replaced by a wrong one with probability P     the other arcs, the labels
=================  =====================================================  =======================================

*New heads.* A word keeps its label, but that the old and the new root trade theirs, so that the root's is ``root``.
With distributions, all arcs of a word go to its new head with their labels and probabilities, arcs that become one
added up; the distribution over its labels, and its mass, stay. *Relabelled* gives a word the label of another, and
its arcs to words p(head) q(label), with q the other word's distribution over the labels of such arcs. *Damaged* says
in its distributions how far it can be trusted: 1 - P of a word's mass is on its arc in the damaged tree, and P is
spread evenly over its other possible heads, the right one among them.

Controls can be combined: ``linear`` then ``relabelled`` keeps of the parse only how often each label comes;
``damaged`` then ``one-best`` is sure of what is wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random

from fairseq_syntax.corpus.conllu import ParsedLine, owner
from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.control_trees import STRUCTURES, control_heads, root_of, sattolo, with_wrong_arcs

WordArc = tuple[int, str, float]  # head, label, probability

CONTROLS = (*STRUCTURES, "shuffled", "relabelled", "one-best", "damaged")


@dataclass
class Sentence:
    """The tree of one sentence, whose words are counted from 0.

    Attributes:
        heads: of the words; the root is its own
        deprels: their labels
        arcs: of each word, its arcs in any order; None without distributions
    """

    heads: list[int]
    deprels: list[str]
    arcs: list[list[WordArc]] | None


@dataclass
class Report:
    """Statistics of what a control changed.

    Attributes:
        lines, sentences, words: of the text
        without_partner: sentences for which ``shuffled`` had no other one of their length
        wrong_arcs: heads that ``damaged`` replaced
        not_replaced: heads that it drew and could not replace, as no other arc would leave a tree
    """

    lines: int = 0
    sentences: int = 0
    words: int = 0
    without_partner: int = 0
    wrong_arcs: int = 0
    not_replaced: int = 0


@dataclass(frozen=True)
class Control:
    """A sequence of controls, applied one after the other.

    Args:
        names: of :data:`CONTROLS`
        seed: of all that is random; the same sentence at the same place in the text is treated the same, whatever
            stands in the other lines (but for ``shuffled``)
        block: lines within which ``shuffled`` exchanges trees; memory is bounded by it
        wrong_arcs: P of ``damaged``, the share of arcs to replace, above 0 and at most 1

    Raises:
        SyntaxDataError: no such control, or a share of wrong arcs that does not fit
    """

    names: tuple[str, ...]
    seed: int = 1
    block: int = 50_000
    wrong_arcs: float | None = None
    report: Report = field(default_factory=Report, compare=False)

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in CONTROLS:
                raise SyntaxDataError(f"there is no control {name}", hint=meant(name, CONTROLS))
        if ("damaged" in self.names) != (self.wrong_arcs is not None):
            raise SyntaxDataError("requires the control damaged, and damaged requires it", option="--wrong-arcs")
        if self.wrong_arcs is not None and not 0 < self.wrong_arcs <= 1:
            raise SyntaxDataError(f"must be above 0 and at most 1, not {self.wrong_arcs:g}", option="--wrong-arcs")

    def for_title(self) -> list[str]:
        """The names of controls for the title of a parse, with the share of ``damaged``."""
        options = {"damaged": f" --wrong-arcs {self.wrong_arcs!r}"}
        return [name + options.get(name, "") for name in self.names]

    def __call__(self, lines: Iterable[ParsedLine]) -> Iterator[ParsedLine]:
        """The control parse of each line, in order; the lines themselves are not changed."""
        for name in self.names:
            lines = self._shuffled(lines) if name == "shuffled" else self._each(name, lines)
        for line in lines:
            self.report.lines += 1
            self.report.sentences += len(line.sentences)
            self.report.words += len(line.words)
            yield line

    def _each(self, name: str, lines: Iterable[ParsedLine]) -> Iterator[ParsedLine]:
        change = self._change(name)
        for line in lines:
            rng = self._random(name, line.line_number)
            yield with_sentences(line, [change(sentence, rng) for sentence in sentences_of(line)])

    def _change(self, name: str) -> Callable[[Sentence, Random], Sentence]:
        changes = {"relabelled": relabelled, "one-best": one_best, "damaged": self._damaged}
        if name in changes:
            return changes[name]
        return lambda sentence, rng: with_heads(sentence, control_heads(name, sentence.heads, rng))

    def _damaged(self, sentence: Sentence, rng: Random) -> Sentence:
        assert self.wrong_arcs is not None  # checked when the control was made
        wanted = sum(rng.random() < self.wrong_arcs for _ in sentence.heads)
        heads = with_wrong_arcs(sentence.heads, wanted, rng)
        wrong = sum(before != after for before, after in zip(sentence.heads, heads))
        self.report.wrong_arcs += wrong
        self.report.not_replaced += wanted - wrong
        return hedged(with_heads(sentence, heads), self.wrong_arcs)

    def _random(self, name: str, number: int) -> Random:
        # Seeded by a text, which Python digests alike in every process.
        return Random(f"{name} {self.seed} {number}")

    def _shuffled(self, lines: Iterable[ParsedLine]) -> Iterator[ParsedLine]:
        lines = iter(lines)
        while block := list(islice(lines, self.block)):
            trees = [sentences_of(line) for line in block]
            places: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for at, sentences in enumerate(trees):
                for which, sentence in enumerate(sentences):
                    places[len(sentence.heads)].append((at, which))
            rng = self._random("shuffled", block[0].line_number)
            shuffled = [list(sentences) for sentences in trees]
            for same in places.values():
                if len(same) == 1:
                    # Its own tree would be no control: it gets a random one.
                    at, which = same[0]
                    self.report.without_partner += 1
                    alone = trees[at][which]
                    shuffled[at][which] = with_heads(alone, control_heads("random", alone.heads, rng))
                    continue
                for (at, which), (from_line, from_place) in zip(same, sattolo(same, rng)):
                    shuffled[at][which] = trees[from_line][from_place]
            for line, sentences in zip(block, shuffled):
                yield with_sentences(line, sentences)


def sentences_of(line: ParsedLine) -> list[Sentence]:
    """The trees of a line's sentences."""
    arcs: list[list[WordArc]] = [[] for _ in line.words]
    starts = [start for start, end in line.sentences for _ in range(end - start)]
    for word, head, label, p in line.arcs or ():
        arcs[word].append((head - starts[word], label, p))
    return [
        Sentence(
            [head - start for head in line.heads[start:end]],
            line.deprels[start:end],
            None if line.arcs is None else arcs[start:end],
        )
        for start, end in line.sentences
    ]


def with_sentences(line: ParsedLine, sentences: Sequence[Sentence]) -> ParsedLine:
    """The line with other trees, most probable arcs first; the owner of each token's pieces is recomputed."""
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


def label_masses(arcs: Iterable[WordArc]) -> dict[str, float]:
    """The total probability of the arcs of each label."""
    mass: dict[str, float] = defaultdict(float)
    for _, label, p in arcs:
        mass[label] += p
    return mass


def with_heads(sentence: Sentence, heads: list[int]) -> Sentence:
    """The sentence with other heads: labels and probabilities stay, except that the old and new root swap theirs."""
    # The label `root` and its distribution belong to whichever word is the root.
    before, after = root_of(sentence.heads), root_of(heads)
    source = list(range(len(heads)))  # whose label and distribution a word has
    source[before], source[after] = after, before
    arcs = sentence.arcs and [
        # A sum of probabilities may exceed 1 by rounding, which readers of a parse refuse.
        [(head, label, min(p, 1.0)) for label, p in label_masses(sentence.arcs[word]).items()]
        for head, word in zip(heads, source)
    ]
    return Sentence(heads, [sentence.deprels[word] for word in source], arcs)


def relabelled(sentence: Sentence, rng: Random) -> Sentence:
    """The sentence with the labels of all words but the root permuted, a uniformly random permutation.

    With distributions, word w with the label of word v has the arcs p(head | w) q(label | v) to other words, where q
    is v's distribution over the labels of its arcs to words; v's label in the tree where it has no such arc. Arcs to
    the artificial root stay.
    """
    root = root_of(sentence.heads)
    others = [word for word in range(len(sentence.heads)) if word != root]
    shuffled = list(others)
    rng.shuffle(shuffled)
    source = {root: root, **dict(zip(others, shuffled))}
    deprels = [sentence.deprels[source[word]] for word in range(len(sentence.heads))]
    if sentence.arcs is None:
        return Sentence(sentence.heads, deprels, None)
    labels: list[dict[str, float]] = []
    for word, arcs in enumerate(sentence.arcs):
        mass = label_masses(arc for arc in arcs if arc[0] != word)
        total = sum(mass.values())
        # all of probability 0: as if there were none
        labels.append({label: p / total for label, p in mass.items()} if total > 0 else {sentence.deprels[word]: 1.0})
    changed: list[list[WordArc]] = []
    for word, arcs in enumerate(sentence.arcs):
        of_head: dict[int, float] = defaultdict(float)
        for head, _, p in arcs:
            of_head[head] += p
        of_head.pop(word, None)
        to_root = [arc for arc in arcs if arc[0] == word]
        to_words = [
            (head, label, min(p * q, 1.0)) for head, p in of_head.items() for label, q in labels[source[word]].items()
        ]
        changed.append(to_root + to_words)
    return Sentence(sentence.heads, deprels, changed)


def hedged(sentence: Sentence, doubt: float) -> Sentence:
    """The sentence with 1 - ``doubt`` of each word's mass on its arc, and the rest spread evenly over the other heads.

    The label of every arc is that of the word in the tree. Possible heads are all other words and, written as the
    word itself, the artificial root. A sentence without distributions stays so.
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
    return Sentence(sentence.heads, sentence.deprels, arcs)


def one_best(sentence: Sentence, rng: Random) -> Sentence:
    """Each word's arc in the tree, with probability 1; gives distributions to a parse that has none."""
    arcs = [[(head, label, 1.0)] for head, label in zip(sentence.heads, sentence.deprels)]
    return Sentence(sentence.heads, sentence.deprels, arcs)
