"""Control parses: parses of the same form with less syntax in them, or none.

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
sharpened          p^(1/T), T < 1, at the mass that a word's arcs had     the tree, the order of a word's arcs
flattened          the same with T > 1                                    the tree, the order of a word's arcs
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

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from random import Random

from fairseq_syntax.corpus.conllu import ParsedLine, owner
from fairseq_syntax.corpus.parsed_line import is_tree
from fairseq_syntax.errors import SyntaxDataError

Arc = tuple[int, int, str, float]

STRUCTURES = ("linear", "right", "flat", "random", "random-projective")
TEMPERATURES = {"sharpened": 0.5, "flattened": 2.0}
CONTROLS = (*STRUCTURES, "shuffled", "relabelled", *TEMPERATURES, "one-best", "damaged")


@dataclass
class Sentence:
    """The tree of one sentence: ``heads`` count from 0 within it, a root is its own; ``arcs`` as in ParsedLine."""

    heads: list[int]
    deprels: list[str]
    arcs: list[Arc] | None

    @property
    def root(self) -> int:
        """The word that is its own head."""
        return next(word for word, head in enumerate(self.heads) if head == word)


@dataclass
class Report:
    """What a control did.

    Attributes:
        lines, sentences: of the text
        without_partner: sentences for which ``shuffled`` had no other one of their length
        words: of the text
        wrong_arcs: heads that ``damaged`` replaced
        not_replaced: heads that it drew and could not replace, as no other arc would leave a tree
    """

    lines: int = 0
    sentences: int = 0
    without_partner: int = 0
    words: int = 0
    wrong_arcs: int = 0
    not_replaced: int = 0


@dataclass(frozen=True)
class Control:
    """Controls that are applied one after the other.

    Args:
        names: of :data:`CONTROLS`
        seed: of all that is random; the same sentence at the same place in the text is treated the same, whatever
            stands in the other lines (but for ``shuffled``)
        temperature: of ``sharpened`` and ``flattened``; None: 0.5 and 2
        block: lines within which ``shuffled`` exchanges trees; memory is bounded by it
        wrong_arcs: P of ``damaged``, the share of arcs to replace, above 0 and at most 1

    Raises:
        SyntaxDataError: no such control, or a temperature or share of wrong arcs that does not fit
    """

    names: tuple[str, ...]
    seed: int = 1
    temperature: float | None = None
    block: int = 50_000
    wrong_arcs: float | None = None
    report: Report = field(default_factory=Report, compare=False)

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in CONTROLS:
                raise SyntaxDataError(f"no control is called {name}", hint=f"there are {', '.join(CONTROLS)}")
        if ("damaged" in self.names) != (self.wrong_arcs is not None):
            raise SyntaxDataError("damaged and --wrong-arcs belong together", hint="give both")
        if self.wrong_arcs is not None and not 0 < self.wrong_arcs <= 1:
            raise SyntaxDataError(f"--wrong-arcs is above 0 and at most 1, not {self.wrong_arcs:g}")
        tempered = [name for name in self.names if name in TEMPERATURES]
        if self.temperature is None:
            return
        if len(tempered) != 1:
            raise SyntaxDataError("--temperature is that of sharpened or flattened", hint="give one of the two")
        fits = 0 < self.temperature < 1 if tempered == ["sharpened"] else 1 < self.temperature < float("inf")
        if not fits:
            side = "above 0 and below 1" if tempered == ["sharpened"] else "above 1"
            raise SyntaxDataError(f"a temperature of {self.temperature:g}, but {tempered[0]} takes one {side}")

    def for_title(self) -> list[str]:
        """The names as the title of a parse has them: each as given, with options that are not the usual ones."""
        options = {
            name: f" --temperature {self.temperature!r}"
            for name, usual in TEMPERATURES.items()
            if self.temperature not in (None, usual)
        }
        options["damaged"] = f" --wrong-arcs {self.wrong_arcs!r}"
        return [name + options.get(name, "") for name in self.names]

    def __call__(self, lines: Iterable[ParsedLine]) -> Iterator[ParsedLine]:
        """The control parse of each line, in order; the lines given are not changed.

        Raises:
            SyntaxDataError: ``sharpened`` or ``flattened`` of a line without distributions
        """
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
            if name in TEMPERATURES and line.words and line.arcs is None:
                raise SyntaxDataError(
                    f"line {line.line_number + 1} has no distributions, and {name} is a control of these",
                    line=line.file_line,
                    hint="parse with --distributions",
                )
            rng = self._random(name, line.line_number)
            yield with_sentences(line, [change(sentence, rng) for sentence in sentences_of(line)])

    def _change(self, name: str) -> Callable[[Sentence, Random], Sentence]:
        if name == "relabelled":
            return relabelled
        if name == "one-best":
            return one_best
        if name == "damaged":
            return self._damaged
        if name in TEMPERATURES:
            temperature = TEMPERATURES[name] if self.temperature is None else self.temperature
            return lambda sentence, _: tempered(sentence, temperature)
        return lambda sentence, rng: with_heads(sentence, control_heads(name, sentence.heads, rng))

    def _damaged(self, sentence: Sentence, rng: Random) -> Sentence:
        assert self.wrong_arcs is not None  # checked when the control was made
        wanted = sum(rng.random() < self.wrong_arcs for _ in sentence.heads)
        heads = with_wrong_arcs(sentence.heads, wanted, rng)
        wrong = sum(old != new for old, new in zip(sentence.heads, heads))
        self.report.wrong_arcs += wrong
        self.report.not_replaced += wanted - wrong
        return hedged(with_heads(sentence, heads), self.wrong_arcs)

    def _random(self, name: str, number: int) -> Random:
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
            new = [list(sentences) for sentences in trees]
            for same in places.values():
                if len(same) == 1:
                    at, which = same[0]
                    self.report.without_partner += 1
                    alone = trees[at][which]
                    new[at][which] = with_heads(alone, control_heads("random", alone.heads, rng))
                    continue
                for (at, which), (from_line, from_place) in zip(same, sattolo(same, rng)):
                    new[at][which] = trees[from_line][from_place]
            for line, sentences in zip(block, new):
                yield with_sentences(line, sentences)


# -- trees -------------------------------------------------------------------------------------------------------------


def control_heads(name: str, heads: Sequence[int], rng: Random) -> list[int]:
    """The heads that a control of :data:`STRUCTURES` puts in place of these; a root is its own head."""
    n = len(heads)
    if name == "linear":
        return [max(0, word - 1) for word in range(n)]
    if name == "right":
        return [min(n - 1, word + 1) for word in range(n)]
    if name == "flat":
        root = next(word for word, head in enumerate(heads) if head == word)
        return [root] * n
    return random_tree(n, rng) if name == "random" else random_projective_tree(n, rng)


def with_wrong_arcs(heads: Sequence[int], wanted: int, rng: Random) -> list[int]:
    """The heads of a tree that differs from another in the heads of so many words, drawn evenly.

    Args:
        heads: of the other tree; the root is its own head
        wanted: how many heads are to be others; fewer are where no tree can be had for the words drawn, as where all
            words but its head are below the one word drawn
    """
    for count in range(wanted, 0, -1):
        for _ in range(20):
            new = with_other_heads(heads, rng.sample(range(len(heads)), count), rng)
            if new is not None:
                return new
    return list(heads)


def with_other_heads(heads: Sequence[int], drawn: Sequence[int], rng: Random) -> list[int] | None:
    """One of the trees in which just the words drawn have other heads, each equally likely; None where there is none.

    Every word drawn gets one of its other heads, and what is no tree is drawn again. Of the ways to join the parts of
    a tree at n words about one in n is a tree, so that none in 100 n means that there is none.
    """
    n = len(heads)
    root_is_drawn = any(heads[word] == word for word in drawn)
    choices = {word: [at for at in range(n) if at != heads[word] and (at != word or root_is_drawn)] for word in drawn}
    if not all(choices.values()):
        return None
    new = list(heads)
    for _ in range(100 * n):
        for word, others in choices.items():
            new[word] = rng.choice(others)
        if is_tree(new):
            return new
    return None


def random_tree(n: int, rng: Random) -> list[int]:
    """Heads of one of the n^(n-1) rooted labelled trees, each equally likely; the root is its own head.

    A Prüfer sequence, n - 2 numbers below n, stands for one tree and one only (Prüfer 1918); so a uniform sequence
    is a uniform tree, and its root is drawn from the n words. Decoded in O(n).
    """
    if n == 1:
        return [0]
    code = [rng.randrange(n) for _ in range(n - 2)]
    neighbours: list[list[int]] = [[] for _ in range(n)]
    degree = Counter(code)
    open_edges = [degree[word] + 1 for word in range(n)]
    pointer = leaf = open_edges.index(1)
    for word in code:
        neighbours[leaf].append(word)
        neighbours[word].append(leaf)
        open_edges[word] -= 1
        if open_edges[word] == 1 and word < pointer:
            leaf = word  # the smallest leaf now is the one just made
        else:
            pointer = leaf = open_edges.index(1, pointer + 1)
    neighbours[leaf].append(n - 1)  # the last word is never taken off: one of the two that remain
    neighbours[n - 1].append(leaf)
    heads = [-1] * n
    root = rng.randrange(n)
    heads[root] = root
    todo = [root]
    while todo:
        word = todo.pop()
        for neighbour in neighbours[word]:
            if heads[neighbour] < 0:
                heads[neighbour] = word
                todo.append(neighbour)
    return heads


def random_projective_tree(n: int, rng: Random) -> list[int]:
    """Heads of one of the binom(3n - 2, n - 1) / n projective trees of one root, each equally likely, in O(n).

    A projective tree is a root between two forests, one of its left and one of its right dependents; a forest is
    empty, or a first tree (again a root between two forests) and the forest that follows. So a forest is a ternary
    tree, and a projective tree two ternary trees with n - 1 nodes in all. These are written in preorder as n - 1
    nodes and 2n leaves; by the cycle lemma (Dvoretzky and Motzkin 1947) exactly two rotations of any arrangement
    of so many nodes and leaves are such a pair. A uniform arrangement and one of its two rotations, drawn fairly, are
    a uniform pair.
    """
    nodes = n - 1
    code = [True] * nodes + [False] * (2 * nodes + 2)  # True: a node, with three forests to come; False: a leaf
    rng.shuffle(code)
    level = lowest = 0
    starts = [0, 0]  # behind the steps that first lead to the second lowest level, and to the lowest
    for place, node in enumerate(code, 1):
        level += 2 if node else -1
        if level < lowest:
            starts, lowest = [starts[-1], place], level
    start = starts[rng.randrange(2)] % len(code)
    preorder = iter(code[start:] + code[:start])
    heads: list[int] = [-1] * n
    order: list[int] = []  # the nodes, in the order of their words
    governor: list[int] = [-1]  # of each node; node 0 is the root
    todo: list[tuple[bool, int]] = [(True, 0), (False, 0), (True, 0)]  # a forest below a node, or the word of a node
    while todo:
        forest, of = todo.pop()
        if not forest:
            order.append(of)
        elif next(preorder):
            new = len(governor)
            governor.append(of)
            todo += [(True, of), (True, new), (False, new), (True, new)]
    word_of = {at: word for word, at in enumerate(order)}
    for at, above in enumerate(governor):
        heads[word_of[at]] = word_of[max(above, 0)]
    return heads


def sattolo(items: Sequence[tuple[int, int]], rng: Random) -> list[tuple[int, int]]:
    """The items in an order in which none is at its place: one cycle, each equally likely (Sattolo 1986)."""
    items = list(items)
    for last in range(len(items) - 1, 0, -1):
        other = rng.randrange(last)
        items[last], items[other] = items[other], items[last]
    return items


# -- sentences ---------------------------------------------------------------------------------------------------------


def sentences_of(line: ParsedLine) -> list[Sentence]:
    """The trees of a line's sentences."""
    by_sentence: list[list[Arc]] = [[] for _ in line.sentences]
    if line.arcs:
        number = 0
        for word, head, label, p in line.arcs:
            while word >= line.sentences[number][1]:
                number += 1
            start = line.sentences[number][0]
            by_sentence[number].append((word - start, head - start, label, p))
    return [
        Sentence(
            [head - start for head in line.heads[start:end]],
            line.deprels[start:end],
            None if line.arcs is None else arcs,
        )
        for (start, end), arcs in zip(line.sentences, by_sentence)
    ]


def with_sentences(line: ParsedLine, sentences: Sequence[Sentence]) -> ParsedLine:
    """The line with other trees; the word that owns a token's pieces is found anew."""
    heads: list[int] = []
    deprels: list[str] = []
    arcs: list[Arc] | None = None
    for (start, _), sentence in zip(line.sentences, sentences):
        heads += [head + start for head in sentence.heads]
        deprels += sentence.deprels
        if sentence.arcs is not None:
            arcs = arcs or []
            arcs += [(word + start, head + start, label, p) for word, head, label, p in sentence.arcs]
    tokens = [replace(token, word=owner(token.first, token.last, heads)) for token in line.tokens]
    return replace(line, heads=heads, deprels=deprels, arcs=arcs, tokens=tokens)


def arcs_by_word(sentence: Sentence) -> list[list[tuple[int, str, float]]]:
    """(head, label, p) of each word, in the order given."""
    arcs_of: list[list[tuple[int, str, float]]] = [[] for _ in sentence.heads]
    for word, head, label, p in sentence.arcs or ():
        arcs_of[word].append((head, label, p))
    return arcs_of


def most_probable_first(arcs: list[list[tuple[int, str, float]]]) -> list[Arc]:
    """The arcs of all words in the order of a parse: by word, and by probability."""
    return [(word, *arc) for word, of_word in enumerate(arcs) for arc in sorted(of_word, key=lambda arc: -arc[2])]


def with_heads(sentence: Sentence, heads: list[int]) -> Sentence:
    """The sentence with other heads: labels and probabilities stay, but the two roots trade theirs."""
    new_root = next(word for word, head in enumerate(heads) if head == word)
    source = list(range(len(heads)))  # whose label and distribution a word has
    source[sentence.root], source[new_root] = new_root, sentence.root
    deprels = [sentence.deprels[word] for word in source]
    if sentence.arcs is None:
        return Sentence(heads, deprels, None)
    old = arcs_by_word(sentence)
    moved: list[list[tuple[int, str, float]]] = []
    for word, head in enumerate(heads):
        mass: dict[str, float] = {}
        for _, label, p in old[source[word]]:
            mass[label] = mass.get(label, 0.0) + p
        moved.append([(head, label, min(p, 1.0)) for label, p in mass.items()])
    return Sentence(heads, deprels, most_probable_first(moved))


def relabelled(sentence: Sentence, rng: Random) -> Sentence:
    """The sentence with the labels of all words but the root permuted, a uniformly random permutation.

    With distributions, word w with the label of word v has the arcs p(head | w) q(label | v) to other words, where q
    is v's distribution over the labels of its arcs to words; v's label in the tree where it has no such arc. Arcs to
    the artificial root stay.
    """
    root = sentence.root
    others = [word for word in range(len(sentence.heads)) if word != root]
    shuffled = list(others)
    rng.shuffle(shuffled)
    source = {root: root, **dict(zip(others, shuffled))}
    deprels = [sentence.deprels[source[word]] for word in range(len(sentence.heads))]
    if sentence.arcs is None:
        return Sentence(sentence.heads, deprels, None)
    old = arcs_by_word(sentence)
    labels: list[dict[str, float]] = []
    for word, arcs in enumerate(old):
        mass: dict[str, float] = {}
        for head, label, p in arcs:
            if head != word:
                mass[label] = mass.get(label, 0.0) + p
        total = sum(mass.values())
        # all of probability 0: as if there were none
        labels.append({label: p / total for label, p in mass.items()} if total > 0 else {sentence.deprels[word]: 1.0})
    new: list[list[tuple[int, str, float]]] = []
    for word, arcs in enumerate(old):
        to_root = [arc for arc in arcs if arc[0] == word]
        of_head: dict[int, float] = {}
        for head, _, p in arcs:
            if head != word:
                of_head[head] = of_head.get(head, 0.0) + p
        to_others = [
            (head, label, min(p * q, 1.0)) for head, p in of_head.items() for label, q in labels[source[word]].items()
        ]
        new.append(to_root + to_others)
    return Sentence(sentence.heads, deprels, most_probable_first(new))


def tempered(sentence: Sentence, temperature: float) -> Sentence:
    """Each word's arcs with p^(1/T), scaled so that the word's mass stays."""
    new: list[list[tuple[int, str, float]]] = []
    for arcs in arcs_by_word(sentence):
        top = max((p for _, _, p in arcs), default=0.0)
        if top <= 0.0:
            new.append(arcs)
            continue
        # relative to the largest, so that no power of a small p vanishes with all the others
        powers = [(p / top) ** (1.0 / temperature) for _, _, p in arcs]
        scale = sum(p for _, _, p in arcs) / sum(powers)
        # a mass above 1 by a parser's rounding would all be on the likeliest arc
        new.append([(head, label, min(power * scale, 1.0)) for (head, label, _), power in zip(arcs, powers)])
    return Sentence(sentence.heads, sentence.deprels, most_probable_first(new))


def hedged(sentence: Sentence, doubt: float) -> Sentence:
    """The sentence with 1 - ``doubt`` of each word's mass on its arc, and the rest even over its other heads.

    The label of every arc is that of the word in the tree. Possible heads are all other words and, written as the
    word itself, the artificial root. A sentence without distributions stays so.
    """
    if sentence.arcs is None:
        return sentence
    n = len(sentence.heads)
    masses = [sum(p for _, _, p in arcs) for arcs in arcs_by_word(sentence)]
    arcs = [
        [
            (at, label, min(mass * (doubt / (n - 1) if at != head and n > 1 else 1 - doubt * (n > 1)), 1.0))
            for at in range(n)
        ]
        for head, label, mass in zip(sentence.heads, sentence.deprels, masses)
    ]
    return Sentence(sentence.heads, sentence.deprels, most_probable_first(arcs))


def one_best(sentence: Sentence, rng: Random) -> Sentence:
    """Each word's arc in the tree, with probability 1; a parse without distributions has them thereby."""
    arcs = [(word, head, label, 1.0) for word, (head, label) in enumerate(zip(sentence.heads, sentence.deprels))]
    return Sentence(sentence.heads, sentence.deprels, arcs)
