"""UAS and LAS of one CoNLL-U file against another, computed as in the CoNLL 2018 shared task.

The two files must contain the same characters, ignoring spaces; their tokens, words and sentences may differ. Words are
first aligned. Two words align if their tokens cover the same characters; within a stretch that a multi-word token of
either file covers, words align by the longest common subsequence of their lowercased forms. An aligned word is correct

    for UAS, if the system's head aligns to the gold head (or both words are roots)
    for LAS, if also the universal part of the relation, up to the first `:`, is the same

Precision is over the system's words, recall over the gold words; usually F1 is reported. The definition is from Zeman
et al. (2018), CoNLL 2018 Shared Task, section 4.

The shared task's program, which comes with Stanza (``udtools``), is under the GPL and follows heads recursively, which
fails for a chain of a thousand words. Therefore it is not part of this package; the tests compare with it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.errors import SyntaxDataError


@dataclass(frozen=True)
class Score:
    """Precision, recall and F1 in [0, 1], and the numbers of words behind them."""

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
    """A syntactic word: the characters [start, end) of its token in the file, the index of its head in the file (-1 for
    a root), the universal part of its relation, and whether its token contains several words."""

    form: str
    start: int
    end: int
    head: int
    deprel: str
    shares_token: bool
    file_line: int


@dataclass(frozen=True)
class FileWords:
    """The words of a file, and the characters of its tokens without spaces."""

    words: list[Word]
    characters: str
    path: str

    @property
    def labelled(self) -> bool:
        """Whether any word other than a root has a specific relation (neither ``_`` nor ``dep``)."""
        return any(word.head >= 0 and word.deprel not in ("_", "dep") for word in self.words)


def collect_words(lines: Iterable[ParsedLine], path: str) -> FileWords:
    """Number the words of all lines consecutively. (The heads in a ``ParsedLine`` are 0-based within the line.)"""
    words: list[Word] = []
    characters: list[str] = []
    end = 0
    for line in lines:
        offset = len(words)
        for token in line.tokens:
            characters.append(_without_spaces(token.form))
            start, end = end, end + len(characters[-1])
            for w in range(token.first, token.last + 1):
                head = -1 if line.heads[w] == w else line.heads[w] + offset
                form, label = _without_spaces(line.words[w]).lower(), line.deprels[w].split(":")[0]
                several = token.last > token.first
                words.append(Word(form, start, end, head, label, several, line.file_line))
    return FileWords(words, "".join(characters), path)


def score_trees(gold: FileWords, system: FileWords) -> dict[str, Score]:
    """Compute ``Words``, ``UAS`` and, if both files have relations, ``LAS``.

    Raises:
        SyntaxDataError: the characters of the two files differ, or there are no words
    """
    _check_characters(gold, system)
    if not gold.words:
        raise SyntaxDataError("there are no words to compare", path=gold.path)
    pairs = align_words(gold.words, system.words)
    to_gold = {s: g for g, s in pairs} | {-1: -1}  # roots align to roots; -2 marks a system head that is not aligned
    same_head = [gold.words[g].head == to_gold.get(system.words[s].head, -2) for g, s in pairs]
    same_label = [gold.words[g].deprel == system.words[s].deprel for g, s in pairs]
    n_gold, n_system = len(gold.words), len(system.words)

    def score(correct: int) -> Score:
        # F1, the harmonic mean, equals the correct words divided by the mean of both counts.
        totals = (n_system, n_gold, (n_gold + n_system) / 2, len(pairs))
        precision, recall, f1, accuracy = (correct / total if total else 0.0 for total in totals)
        return Score(precision, recall, f1, accuracy, correct, n_gold, n_system, len(pairs))

    scores = {"Words": score(len(pairs)), "UAS": score(sum(same_head))}
    if gold.labelled and system.labelled:
        scores["LAS"] = score(sum(h and r for h, r in zip(same_head, same_label)))
    return scores


def align_words(gold: Sequence[Word], system: Sequence[Word]) -> list[tuple[int, int]]:
    """Align words; returns pairs (gold index, system index) in order."""
    pairs: list[tuple[int, int]] = []
    g = s = 0
    while g < len(gold) and s < len(system):
        a, b = gold[g], system[s]
        if a.shares_token or b.shares_token:
            # a plain word that begins before the multi-word token and extends into it is not aligned
            g += not a.shares_token and a.start < b.start
            s += not b.shares_token and b.start < a.start
            g_end, s_end = _stretch(gold, system, g, s, a.end if a.shares_token else b.end)
            forms = [[word.form for word in words] for words in (gold[g:g_end], system[s:s_end])]
            pairs += [(g + i, s + j) for i, j in _common_subsequence(*forms)]
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
    """The end of the words within a multi-word token that ends at ``end``, or within tokens that overlap it.

    As in the shared task's program, words are taken in the order of their first characters until none inside is left,
    so a plain word that extends beyond the stretch is included if a later word lies inside.
    """

    def inside(words: Sequence[Word], i: int) -> bool:
        return i < len(words) and (words[i].start < end if words[i].shares_token else words[i].end <= end)

    while inside(gold, g) or inside(system, s):
        if g < len(gold) and (s == len(system) or gold[g].start <= system[s].start):
            word, g = gold[g], g + 1
        else:
            word, s = system[s], s + 1
        if word.shares_token:
            end = max(end, word.end)
    return g, s


def _common_subsequence(gold: Sequence[str], system: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The index pairs of the longest common subsequence; ties are resolved by dropping gold forms first."""
    longest = [[0] * (len(system) + 1) for _ in range(len(gold) + 1)]
    for i in reversed(range(len(gold))):
        for j in reversed(range(len(system))):
            same = gold[i] == system[j]
            longest[i][j] = 1 + longest[i + 1][j + 1] if same else max(longest[i + 1][j], longest[i][j + 1])
    i = j = 0
    while i < len(gold) and j < len(system):
        if gold[i] == system[j]:
            yield i, j
            i, j = i + 1, j + 1
        elif longest[i][j] == longest[i + 1][j]:
            i += 1
        else:
            j += 1


def _without_spaces(form: str) -> str:
    # As in the shared task's program, where tabs and line feeds do not count as spaces.
    return "".join(c for c in form if unicodedata.category(c) != "Zs")


def _check_characters(gold: FileWords, system: FileWords) -> None:
    a, b = gold.characters, system.characters
    if a == b:
        return
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    line = next((w.file_line for w in system.words if w.end > at), None)
    here, there = b[at : at + 20], a[at : at + 20]
    message = f"the two files differ in their text: here {here!r}, in {gold.path} {there!r}"
    hint = "both files must be parses of the same text; spaces, tokens and sentence boundaries may differ"
    raise SyntaxDataError(message, path=system.path, line=line, hint=hint)
