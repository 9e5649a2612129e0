"""The toy table: what each seed gave of each system, kept in a file, and the rows that are made of it."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import numpy as np
from systems import SYSTEMS

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import atomic_open, check_output, locked, read_lines

# Of a row of several seeds, what is the mean of theirs.
MEANS = ("exact", "unambiguous", "bleu", "train_s", "translate_s")


class Table:
    """A table as Markdown, and the file of results (.jsonl) beside it that it is written from.

    A line of that file is what one seed gave of a system: its scores, ``seed``, ``right`` (a digit for each ambiguous
    test sentence, 1 for an exact match), ``key`` (of the corpus and all options) and ``run`` (how and where). A line
    without a ``seed`` is a whole row, of a run that kept no more than that.

    Raises:
        SyntaxDataError: the page cannot be written, or the file of results cannot be read
    """

    def __init__(self, page: Path) -> None:
        self.page = page
        self.lines = page.with_suffix(".jsonl")
        check_output(page)
        if page == self.lines:
            raise SyntaxDataError("is the name of the results' file", path=page, hint="name the page: TABLE.md")
        self.read()

    def read(self) -> list[dict]:
        found = []
        for number, text in enumerate(read_lines(self.lines) if self.lines.exists() else (), start=1):
            try:
                line = json.loads(text)
                identity(line), line["key"]
            except (ValueError, TypeError, KeyError, AttributeError):
                hint = "tables of earlier versions have no keys: begin another one"
                raise SyntaxDataError("is no result with its key", path=self.lines, line=number, hint=hint) from None
            found.append(line)
        return found

    def known(self, system: str, seed: int, key: str) -> dict | None:
        """What a seed gave of a system with the same corpus and options, where that is kept; not how and where."""
        for line in self.read():
            if identity(line) == (system, seed) and line["key"] == key:
                return {name: value for name, value in line.items() if name != "run"}
        return None

    def add(self, new: dict) -> None:
        """Keeps what a seed gave, and writes the page; what it gave before goes, with all of other options."""
        with locked(self.lines):
            lines = [new]
            for line in self.read():
                same_options = line["key"] == new["key"] and line.get("seed") != new["seed"]
                if line["system"] != new["system"] or same_options:
                    lines.append(line)
            order = {system.name: place for place, system in enumerate(SYSTEMS)}
            lines = [line for line in lines if line["system"] in order]
            lines.sort(key=lambda line: (order[line["system"]], line.get("seed", 0)))
            with atomic_open(self.lines) as file:
                file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
            with atomic_open(self.page) as file:
                file.write(markdown(rows_of(lines)))


def identity(line: dict) -> tuple[str, int | None]:
    return line["system"], line.get("seed")


def rows_of(lines: list[dict]) -> list[dict]:
    """A row for each system: of its seeds, or the whole row that is kept of an older run while that has more seeds."""
    rows = []
    for system in dict.fromkeys(line["system"] for line in lines):
        own = [line for line in lines if line["system"] == system]
        seeds = [line for line in own if "seed" in line]
        whole = [line for line in own if "seed" not in line and line["seeds"] > len(seeds)]
        rows += whole or [over_seeds(seeds)]
    return rows


def over_seeds(seeds: list[dict]) -> dict:
    """One row of the table from what its seeds gave: means, and the standard error of the exact match.

    The test sentences are a sample, and so are the seeds. The variance of the mean is the one of two crossed random
    effects, as in ``lab/scoring/significance.py``: how much easier one sentence is than another, how
    much better one seed is on any sentences, and what is left, how each seed fares with each sentence.
    """
    right = np.array([[int(one) for one in line["right"]] for line in seeds], dtype=float)
    runs, sentences = right.shape
    of_sentences, of_seeds = right.mean(0), right.mean(1)
    variance = of_sentences.var(ddof=1) / sentences if sentences > 1 else 0.0
    if runs > 1 and sentences > 1:
        rest = right - of_sentences - of_seeds[:, None] + right.mean()
        interaction = (rest**2).sum() / ((runs - 1) * (sentences - 1))
        easier = max(0.0, of_sentences.var(ddof=1) - interaction / runs)
        better = max(0.0, of_seeds.var(ddof=1) - interaction / sentences)
        variance = easier / sentences + better / runs + interaction / (runs * sentences)
    row = {name: value for name, value in seeds[0].items() if name not in ("right", "seed", "key")}
    for name in (*MEANS, *(["uas"] if "uas" in row else [])):
        row[name] = statistics.fmean(line[name] for line in seeds)
    if "heads" in row:
        row["heads"] = [statistics.fmean(of_head) for of_head in zip(*(line["heads"] for line in seeds))]
    if "run" in row:
        row["run"] = list(dict.fromkeys(line["run"] for line in seeds))
    return {**row, "exact_error": 100 * math.sqrt(float(variance)), "seeds": len(seeds)}


def runs_of(rows: list[dict]) -> list[str]:
    """How and where the rows were made, each run once."""
    return list(dict.fromkeys(run for row in rows for run in row.get("run", [])))


def table(rows: list[dict]) -> str:
    """The rows as aligned text; a last column with the numbers of each row's runs where there are several."""
    head = ["system", "corpus", "knows", "seeds", "possible", "exact match", "unambiguous", "BLEU", "UAS", "training"]
    runs = runs_of(rows)
    body: list[list[str]] = [
        [
            row["system"],
            row["corpus"],
            row["knows"],
            str(row["seeds"]),
            f"{row['possible']:.1f} % ± {2 * row['error']:.1f}",
            f"{row['exact']:.1f} % ± {2 * row['exact_error']:.1f}",
            f"{row['unambiguous']:.1f} %",
            f"{row['bleu']:.1f}",
            " / ".join(f"{uas:.1f}" for uas in row.get("heads", [row["uas"]] if "uas" in row else [])),
            f"{row['train_s']:.0f} s",
        ]
        for row in rows
    ]
    if len(runs) > 1:
        head.append("run")
        for line, row in zip(body, rows):
            line.append("+".join(str(1 + runs.index(run)) for run in row["run"]))
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i < 3 else cell.rjust(width) for i, (cell, width) in enumerate(zip(line, widths))
        )
        for line in [head, *body]
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def markdown(rows: list[dict]) -> str:
    """The table as Markdown, with how and where its rows were made."""
    return (
        "# The toy table\n\nWritten by `examples/toy/run.py --table`. Exact match on the ambiguous test sentences, and "
        "the best\nthat is possible with what a system knows, both ± two standard errors: of what chance decides in "
        "the test\nsentences, and of the measurement, over sentences and over seeds where there are several. UAS is "
        "that of the\nparent head's trees; of DBSA's two heads, encoder / decoder, over the given text.\n\n"
        f"```\n{table(rows)}\n```\n\n"
        + "".join(f"{number}. {run[0].upper()}{run[1:]}.\n" for number, run in enumerate(runs_of(rows), start=1))
        + "\nThe options of each row: `systems.py`.\n"
    )
