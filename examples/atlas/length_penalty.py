#!/usr/bin/env python3
"""Gains with the length penalty that is best for each system on the validation set, added to results.json.

    python examples/atlas/length_penalty.py
    python examples/atlas/length_penalty.py mine/*.yaml --results mine/results.json --seed 1

It needs the models of one seed of the first system, its controls and the baseline. A beam finds the same translations
with any length penalty, which only orders them. So each set is translated once, with all translations of the beam.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import HERE, LANGUAGES, plan, planned, scored, scorers, text_of, write

from fairseq_syntax.lab.recipes.layout import Run
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.runner import environment
from fairseq_syntax.runtime.files import atomic_open, make_folder, read_lines

PENALTIES = tuple(number / 5 for number in range(16))  # 0 to 3
USUAL = 1.0  # fairseq's default


@dataclass(frozen=True)
class Hypothesis:
    """A translation of the beam.

    Args:
        score: mean log-probability per piece
        length: number of pieces, with the end of the sentence
        text: the detokenized translation
    """

    score: float
    length: int
    text: str

    def scored(self, penalty: float) -> float:
        """The score with another length penalty: the total log-probability by ``length ** penalty``."""
        return self.score * self.length ** (1 - penalty)


def translated(of: Plan, run: Run, subset: str) -> list[list[Hypothesis]]:
    """All translations of the beam for each sentence of ``valid`` or ``test``, by fairseq-generate if need be."""
    path = of.folder / "outputs" / "nbest" / f"{subset}.{run.system}.{run.seed}.out"
    if not path.exists():
        words = of.translations(run)[0].commands[0].arguments()
        words[words.index("--gen-subset") + 1] = subset
        words += ["--nbest", words[words.index("--beam") + 1], "--lenpen", str(USUAL)]
        make_folder(path.parent)
        with atomic_open(path) as file:
            subprocess.run(
                words, stdout=file, check=True, env=os.environ | environment(of.recipe.threads, of.recipe.env)
            )
    return beams_of(path)


def beams_of(path: Path) -> list[list[Hypothesis]]:
    """All translations of each sentence in the output of fairseq-generate with a length penalty of 1."""
    beams: dict[int, list[Hypothesis]] = {}
    score = text = ""
    for line in read_lines(
        path
    ):  # of each translation: H- with the score, D- with the text, P- with the pieces' scores
        kind, _, rest = line.partition("\t")
        if kind.startswith("H-"):
            score = rest.partition("\t")[0]
        elif kind.startswith("D-"):
            text = rest.partition("\t")[2]
        elif kind.startswith("P-"):
            beams.setdefault(int(kind[2:]), []).append(Hypothesis(float(score), len(rest.split()), text))
    return [beams[number] for number in range(len(beams))]


def best(sentences: list[list[Hypothesis]], penalty: float) -> list[str]:
    """The best translation of each sentence with a length penalty."""
    return [max(beam, key=lambda one: one.scored(penalty)).text for beam in sentences]


def tuned(of: Plan, seed: int) -> dict[str, Any]:
    """The scores of the first system, its controls and the baseline, each with its best penalty on the validation set.

    Returns:
        as :func:`measure.language`, and in ``penalties`` for each system the ``best`` one, and BLEU on the validation
        and the test set with each of those that were ``tried``
    """
    baseline, (system, controls) = of.recipe.baseline, next(iter(planned(of).items()))
    valid, *_ = scorers([text_of(of.text("valid", of.langs[1]))], of).values()
    test, *_ = scorers([text_of(path) for path in of.references(of.tests[0])], of).values()
    runs, penalties = {}, {}
    for name in (baseline, system, *(f"{system}.{control}" for control in controls)):
        run = Run(name, seed)
        sentences, tests = translated(of, run, "valid"), translated(of, run, "test")
        by = {penalty: valid.corpus(best(sentences, penalty)) for penalty in PENALTIES}
        chosen = max(PENALTIES, key=by.__getitem__)
        runs[name] = [best(tests, chosen)]
        scores = [test.corpus(best(tests, penalty)) for penalty in PENALTIES]
        penalties[name] = {"best": chosen, "valid": list(by.values()), "test": scores}
        print(f"{of.recipe.name}, {name}: {chosen}", file=sys.stderr)
    about = {"baseline": baseline, "systems": {system: controls}, "order": None, "tried": list(PENALTIES)}
    return {**about, **scored(of, runs), "penalties": penalties}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", type=Path, metavar="RECIPE.yaml", help="your own (default: the atlas's)")
    parser.add_argument("--results", type=Path, default=HERE / "results.json", metavar="FILE", help="of measure.py")
    parser.add_argument("--seed", type=int, default=3, help="of the models (default: 3)")
    args = parser.parse_args()
    results: Mapping[str, Any] = json.loads(args.results.read_text(encoding="utf-8"))
    found = {of.recipe.name: tuned(of, args.seed) for of in map(plan, args.recipes or LANGUAGES)}
    write({**results, "length_penalty": found}, args.results)
    print(args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
