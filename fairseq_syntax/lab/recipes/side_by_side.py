"""Sentences of a report: the translations of two systems side by side, with what differs between them marked."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from random import Random

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu
from fairseq_syntax.corpus.words import has_no_spaces
from fairseq_syntax.lab.recipes.layout import Run, Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.outputs import read_text, read_translations

MOST_DIFFERENT, AT_RANDOM, SEED = 5, 5, 1
Marked = list[tuple[str, bool]]  # parts of a text, and whether each is marked


@dataclass
class SideBySide:
    """A sentence: its title, and by name the source, the reference, the translations and the arcs of the parse."""

    title: str
    rows: list[tuple[str, Marked]]

    def markdown(self) -> str:
        """A list, with marked parts in bold."""
        lines = [f"- *{escape(name)}*: {_joined(text, '**{}**')}" for name, text in self.rows]
        return "\n".join([f"**{self.title}**", "", *lines])

    def html(self) -> str:
        """A table without header, with marked parts in ``<mark>``."""
        rows = (
            f"<tr><th>{escape(name)}</th><td>{_joined(text, '<mark>{}</mark>')}</td></tr>" for name, text in self.rows
        )
        return f"<table class=sentence><caption>{escape(self.title)}</caption><tbody>{''.join(rows)}</tbody></table>"


def _joined(text: Marked, form: str) -> str:
    parts = []
    for part, is_marked in text:
        inner = escape(part.strip(), quote=False).replace("*", "&#42;")
        before, after = (" " * (part != stripped) for stripped in (part.lstrip(), part.rstrip()))
        parts.append(f"{before}{form.format(inner)}{after}" if is_marked and inner else escape(part, quote=False))
    return "".join(parts)


def differences(first: str, second: str, by_character: bool = False) -> tuple[Marked, Marked]:
    """Two texts in parts, of which those are marked that the other lacks at this place, by words or characters."""
    texts = [list(text) if by_character else text.split() for text in (first, second)]
    between = "" if by_character else " "
    marked: tuple[Marked, Marked] = [], []
    for kind, *places in difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False).get_opcodes():
        for of, text, (start, end) in zip(marked, texts, (places[:2], places[2:])):
            if start < end:
                of.append((between.join(text[start:end]) + between, kind != "equal"))
    return marked


def arcs_of(line: ParsedLine) -> str:
    """The arcs of a parse: ``man ←nsubj saw`` for each word, roots left out."""
    arcs = zip(line.words, line.heads, line.deprels)
    return "; ".join(f"{word} ←{label} {line.words[head]}" for at, (word, head, label) in enumerate(arcs) if head != at)


def side_by_side(plan: Plan, table: Scored, first: Run, second: Run) -> list[SideBySide]:
    """The sentences of a test set whose translations differ most in chrF, and others drawn at random.

    Empty if a text is not here, as with results that are kept with a recipe.
    """
    outputs = [plan.output(run, table) for run in (first, second)]
    source, reference = plan.text(table.test, plan.langs[0]), plan.references(table.test)[0]
    if not all(path.exists() for path in (*outputs, source, reference)):
        return []
    texts = [read_translations(path).lines for path in outputs]
    sources, references = read_text(source), read_text(reference)
    if len({len(lines) for lines in (*texts, sources, references)}) > 1:  # of another version of the corpus
        return []
    scorer = Scorer("chrf", [references], lowercase=plan.recipe.score.lowercase)
    scores = [scorer.sentences(lines) for lines in texts]
    numbers = chosen(np.abs(scores[1] - scores[0]))
    parse = plan.parse(table.test, plan.langs[0], plan.recipe.systems[second.system].parse)
    parses = (
        list(read_conllu(parse, n_lines=len(sources))) if plan.sides().get(plan.langs[0]) and parse.exists() else []
    )
    by_character = has_no_spaces(references)
    shown = []
    for number, why in numbers.items():
        marked = differences(texts[0][number], texts[1][number], by_character)
        rows: list[tuple[str, Marked]] = [("source", [(sources[number], False)])]
        rows += [("reference", [(references[number], False)]), (str(first), marked[0]), (str(second), marked[1])]
        if parses:
            rows.append((f"parse of {second.system}", [(arcs_of(parses[number]), False)]))
        chrf = " and ".join(f"{score[number]:.0f}" for score in scores)
        shown.append(SideBySide(f"Sentence {number + 1}, {why}; chrF {chrf}", rows))
    return shown


def chosen(differences: np.ndarray) -> dict[int, str]:
    """The numbers of the sentences [N] that differ most, and of others at random, each with the reason."""
    order = [int(n) for n in np.argsort(-differences, kind="stable") if differences[n] > 0]
    most = dict.fromkeys(order[:MOST_DIFFERENT], "among the most different")
    rest = [number for number in range(len(differences)) if number not in most]
    drawn = sorted(Random(SEED).sample(rest, min(AT_RANDOM, len(rest))))
    return most | dict.fromkeys(drawn, "drawn at random")


def first_run(plan: Plan, system: str, finished: Sequence[Run]) -> Run | None:
    """The first finished run of a system."""
    return next((run for run in plan.runs if run.system == system and run in finished), None)
