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
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import HERE, LANGUAGES, plan, planned, scored, scorers, text_of, write

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.layout import Run
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.runner import Runner, environment
from fairseq_syntax.lab.recipes.schema import Variant
from fairseq_syntax.lab.recipes.stages import Stage, StageCommand, options
from fairseq_syntax.runtime.files import read_lines
from fairseq_syntax.runtime.workers import cores

PENALTIES = tuple(number / 5 for number in range(16))  # 0 to 3
FAIRSEQ_BEAM = 5  # where a recipe does not say otherwise


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


def stage(of: Plan, run: Run, subset: str) -> Stage:
    """The stage that translates ``valid`` or ``test``, with all translations of the beam."""
    (test, *_), search = of.translations(run), of.search_options(run, Variant())
    words = list(test.commands[0].words)
    words[words.index("--gen-subset") + 1] = subset
    words += options({"nbest": search.get("beam") or FAIRSEQ_BEAM, "lenpen": 1})
    made = of.folder / "outputs" / "nbest" / f"{subset}.{run.system}.{run.seed}.out"
    name, reads = f"nbest {run} {subset}", of.reads(run, subset)
    return of.stage("translate", name, [StageCommand(words, stdout=made)], [made], reads=reads, run=str(run))


def beams_of(path: Path) -> list[list[Hypothesis]]:
    """All translations of each sentence in the output of fairseq-generate with a length penalty of 1."""
    beams: dict[int, list[Hypothesis]] = {}
    score = text = ""
    # Of each translation three lines: H- with the score, D- with the text, P- with the scores of the pieces.
    for line in read_lines(path):
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
        as :func:`measure.language`, the ``usual`` penalty, and in ``penalties`` for each system the ``best`` one, and
        BLEU on the validation and the test set with each of those that were ``tried``

    Raises:
        SyntaxDataError: a translation failed
    """
    baseline, (system, controls) = of.recipe.baseline, next(iter(planned(of).items()))
    names = (baseline, system, *(f"{system}.{control}" for control in controls))
    stages = {(name, subset): stage(of, Run(name, seed), subset) for name in names for subset in ("valid", "test")}
    recipe = of.recipe
    runner = Runner(of.folder, max(1, cores() // recipe.threads), environment(recipe.threads, recipe.env))
    if failed := runner.run([*stages.values()]):
        raise SyntaxDataError(f"failed: {', '.join(failed)}", path=of.path)
    beams = {key: beams_of(one.outputs[0]) for key, one in stages.items()}
    own = of.search_options(Run(baseline, seed), Variant()).get("lenpen")
    usual = 1.0 if own is None else float(own)
    tried = sorted({*PENALTIES, usual})
    valid, *_ = scorers([text_of(of.text("valid", of.langs[1]))], of).values()
    test, *_ = scorers([text_of(path) for path in of.references(of.tests[0])], of).values()
    runs, penalties = {}, {}
    for name in names:
        scores = {
            subset: [scorer.corpus(best(beams[name, subset], penalty)) for penalty in tried]
            for subset, scorer in (("valid", valid), ("test", test))
        }
        chosen = tried[scores["valid"].index(max(scores["valid"]))]
        runs[name] = [best(beams[name, "test"], chosen)]
        penalties[name] = {"best": chosen, **scores}
    about = {"baseline": baseline, "systems": {system: controls}, "order": None, "tried": tried, "usual": usual}
    return {**about, **scored(of, runs), "penalties": penalties}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", type=Path, metavar="RECIPE.yaml", help="your own (default: the atlas's)")
    parser.add_argument("--results", type=Path, default=HERE / "results.json", metavar="FILE", help="of measure.py")
    parser.add_argument("--seed", type=int, default=3, help="of the models (default: 3)")
    args = parser.parse_args()
    if not args.results.is_file():
        parser.error(f"{args.results}: no such file; measure.py writes it")
    try:
        found = {of.recipe.name: tuned(of, args.seed) for of in map(plan, args.recipes or LANGUAGES)}
    except SyntaxDataError as error:
        parser.error(str(error))
    # Read only now: measure.py may have written others in the half hour that this took.
    results: Mapping[str, Any] = json.loads(args.results.read_text(encoding="utf-8"))
    write({**results, "length_penalty": found}, args.results)
    print(args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
