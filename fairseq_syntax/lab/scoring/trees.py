"""UAS and LAS of one CoNLL-U file against another, computed as in the CoNLL 2018 shared task.

The two files must hold the same characters, spaces aside; their tokens, words and sentences may differ.  Words are
first aligned: two words align where their tokens cover the same characters, and inside a stretch that a multi-word
token of either file covers, by the longest common subsequence of their lower-cased forms.  Then, over aligned words,

    UAS: the system's head aligns to the gold head (or both words are roots)
    LAS: and the universal part of the relation, up to the first `:`, is the same

with precision over the system's words, recall over the gold words, and F1, which is what is usually quoted.
The definition: Zeman et al. (2018), CoNLL 2018 Shared Task, section 4.

The program of the shared task that comes with Stanza (``udtools``) is under the GPL, and goes from word to head by
recursion, which a chain of a thousand words ends; so it is what the tests compare with, and no part of this package.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.errors import SyntaxDataError


@dataclass(frozen=True)
class Score:
    """Shares of correct words, in [0, 1], and the counts of words behind them."""

    precision: float
    recall: float
    f1: float
    aligned_accuracy: float
    correct: int
    gold: int
    system: int
    aligned: int


@dataclass(frozen=True)
class Word:
    """A syntactic word of a whole file: the characters [start, end) of its token, its head's index in the file (-1
    for a root), its relation's universal part, and whether its token holds several words."""

    form: str
    start: int
    end: int
    head: int
    deprel: str
    shares_token: bool
    file_line: int


@dataclass(frozen=True)
class Words:
    """The words of a file in order, and the characters of its tokens without spaces."""

    words: list[Word]
    characters: str
    path: str

    @property
    def labelled(self) -> bool:
        """Whether any word except roots has a specific relation (neither ``_`` nor ``dep``)."""
        return any(word.head >= 0 and word.deprel not in ("_", "dep") for word in self.words)


def collect_words(lines: Iterable[ParsedLine], path: str) -> Words:
    """The words of all lines numbered through; `ParsedLine.heads` are 0-based over the line, a root its own head."""
    words: list[Word] = []
    characters: list[str] = []
    position = 0
    for line in lines:
        offset = len(words)
        for token in line.tokens:
            form = _without_spaces(token.form)
            characters.append(form)
            for w in range(token.first, token.last + 1):
                head = -1 if line.heads[w] == w else line.heads[w] + offset
                label = line.deprels[w].split(":")[0]
                shares = token.last > token.first
                text = _without_spaces(line.words[w]).lower()
                words.append(Word(text, position, position + len(form), head, label, shares, line.file_line))
            position += len(form)
    return Words(words, "".join(characters), path)


def evaluate(gold: Words, system: Words) -> dict[str, Score]:
    """`Words`, `UAS` and, where both files have relations, `LAS`.

    Raises:
        SyntaxDataError: the two files do not hold the same characters, or no words
    """
    _check_characters(gold, system)
    if not gold.words:
        raise SyntaxDataError("there are no words to compare", path=gold.path)
    pairs = align(gold.words, system.words)
    to_gold = {s: g for g, s in pairs}
    to_gold[-1] = -1  # roots; a system head that aligns to nothing must not be taken for one: it gets -2
    same_head = [gold.words[g].head == to_gold.get(system.words[s].head, -2) for g, s in pairs]
    same_label = [gold.words[g].deprel == system.words[s].deprel for g, s in pairs]

    def score(correct: int) -> Score:
        n_gold, n_system, aligned = len(gold.words), len(system.words), len(pairs)
        # F1, the harmonic mean, is the correct words over the mean of both counts.
        totals = (n_system, n_gold, (n_gold + n_system) / 2, aligned)
        precision, recall, f1, accuracy = (correct / total if total else 0.0 for total in totals)
        return Score(precision, recall, f1, accuracy, correct, n_gold, n_system, aligned)

    scores = {"Words": score(len(pairs)), "UAS": score(sum(same_head))}
    if gold.labelled and system.labelled:
        scores["LAS"] = score(sum(h and r for h, r in zip(same_head, same_label)))
    return scores


def align(gold: Sequence[Word], system: Sequence[Word]) -> list[tuple[int, int]]:
    """Pairs (gold index, system index) of aligned words, in order."""
    pairs: list[tuple[int, int]] = []
    g = s = 0
    while g < len(gold) and s < len(system):
        a, b = gold[g], system[s]
        if a.shares_token or b.shares_token:
            # a plain word that began before the multi-word token and reaches into it aligns to nothing
            g += not a.shares_token and a.start < b.start
            s += not b.shares_token and b.start < a.start
            g_end, s_end = _stretch(gold, system, g, s, a.end if a.shares_token else b.end)
            pairs += _align_forms(gold, system, range(g, g_end), range(s, s_end))
            g, s = g_end, s_end
        elif (a.start, a.end) == (b.start, b.end):
            pairs.append((g, s))
            g, s = g + 1, s + 1
        elif a.start <= b.start:
            g += 1
        else:
            s += 1
    return pairs


def _stretch(gold: Sequence[Word], system: Sequence[Word], g: int, s: int, end: int) -> tuple[int, int]:
    """The end of the words under a multi-word token that ends at ``end``, and under tokens that overlap it.

    As in the shared task's program, words are taken in the order of their first characters until none that lies inside
    is left, so a plain word that reaches out of the stretch is taken where one behind it lies inside.
    """

    def inside(words: Sequence[Word], i: int) -> bool:
        return i < len(words) and (words[i].start < end if words[i].shares_token else words[i].end <= end)

    while inside(gold, g) or inside(system, s):
        if g < len(gold) and (s == len(system) or gold[g].start <= system[s].start):
            word = gold[g]
            g += 1
        else:
            word = system[s]
            s += 1
        if word.shares_token:
            end = max(end, word.end)
    return g, s


def _align_forms(
    gold: Sequence[Word], system: Sequence[Word], gold_range: range, system_range: range
) -> list[tuple[int, int]]:
    """Longest common subsequence of forms; among equals the one that drops gold words first."""
    rows, columns = len(gold_range), len(system_range)
    longest = [[0] * (columns + 1) for _ in range(rows + 1)]
    for i in reversed(range(rows)):
        for j in reversed(range(columns)):
            if gold[gold_range[i]].form == system[system_range[j]].form:
                longest[i][j] = 1 + longest[i + 1][j + 1]
            else:
                longest[i][j] = max(longest[i + 1][j], longest[i][j + 1])
    pairs = []
    i = j = 0
    while i < rows and j < columns:
        if gold[gold_range[i]].form == system[system_range[j]].form:
            pairs.append((gold_range[i], system_range[j]))
            i, j = i + 1, j + 1
        elif longest[i][j] == longest[i + 1][j]:
            i += 1
        else:
            j += 1
    return pairs


def _without_spaces(form: str) -> str:
    # As the shared task's program: tabs and line feeds are no "Zs".
    return "".join(c for c in form if unicodedata.category(c) != "Zs")


def _check_characters(gold: Words, system: Words) -> None:
    if gold.characters == system.characters:
        return
    a, b = gold.characters, system.characters
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    line = next((w.file_line for w in system.words if w.end > at), None)
    raise SyntaxDataError(
        f"the two files differ in their text: here {b[at : at + 20]!r}, in {gold.path} {a[at : at + 20]!r}",
        path=system.path,
        line=line,
        hint="both files must be parses of the same text; spaces, tokens and sentence boundaries may differ",
    )
