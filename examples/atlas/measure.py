#!/usr/bin/env python3
"""Scores the runs of the atlas, or of your own recipes, with intervals: page.py makes the page from them.

    python examples/atlas/measure.py
    python examples/atlas/measure.py --only Hungarian amounts               # the results of the others stay
    python examples/atlas/measure.py mine/*.yaml --output mine/results.json

Translations are those that are kept with a recipe or that it has made. References, parses and the pages of
LibreOffice's help are read from where the recipes put them, so that at least ``fairseq-syntax run RECIPE --to
binarize`` must have been run. Intervals are of 95 %, over sentences and seeds, or over groups of sentences and seeds
(:class:`fairseq_syntax.lab.scoring.significance.Resampled`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from plans import HERE, LANGUAGES, TUNED, TUNED_OTHERS

from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.kept import Kept
from fairseq_syntax.lab.recipes.layout import Scored
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.reading import load_recipe
from fairseq_syntax.lab.recipes.running import Work
from fairseq_syntax.lab.scoring.metrics import Scorer, with_unknown_words
from fairseq_syntax.lab.scoring.outputs import read_translations
from fairseq_syntax.lab.scoring.properties import Property
from fairseq_syntax.lab.scoring.shares import measure_by, measure_shares
from fairseq_syntax.lab.scoring.significance import LEAST_SENTENCES, Resampled, enough_sentences
from fairseq_syntax.runtime.files import read_lines

BASELINE = "transformer"
RELATIVE = "relative"  # the plain Transformer with relative positions; those of a system as well: relative+SYSTEM
NEEDS_CHARACTERS = ("zh", "ja-mecab", "ko-mecab")  # tokenizers beside which BLEU of characters is given
CONTROLS = ("linear", "random", "relabelled")
DRAWS = 10_000
MULTI30K = HERE.parent / "multi30k"
MULTI30K_TESTS = ("test_2016", "test_2017")

Runs = dict[str, list[list[str]]]
Item = TypeVar("Item")


def plan(name: str | Path) -> Plan:
    """The plan of a recipe: a name in this folder, or a file."""
    path = HERE / f"{name}.yaml" if isinstance(name, str) else name
    return Plan(load_recipe(path), path)


def runs_of(of: Plan, test: str) -> Runs:
    """The translations of a test set by each system's seeds, of those runs that are finished or kept."""
    work, runs = Work(of), Runs()
    for run in work.finished():
        if run in work.kept_runs:
            lines = work.kept.runs[str(run)]["outputs"][test]
        else:
            lines = read_translations(of.output(run, Scored(test))).lines
        runs.setdefault(run.system, []).append(lines)
    return runs


def scorers(references: Sequence[Sequence[str]], of: Plan) -> dict[str, Scorer]:
    """BLEU by the recipe's tokenizer, for scripts without spaces also BLEU of characters, and chrF."""
    lowercase = of.recipe.score.lowercase
    found = {"BLEU": Scorer("bleu", references, of.tokenizer, lowercase)}
    if of.tokenizer in NEEDS_CHARACTERS:
        found["BLEU char"] = Scorer("bleu", references, "char", lowercase)
    return {**found, "chrF": Scorer("chrf", references, lowercase=lowercase)}


def language(of: Plan, order: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Word order, scores, and what of each gain is syntax; in BLEU also by the recipe's properties of the parse.

    Args:
        of: the plan of a recipe, whose first test set is measured
        order: word order, where the recipe's folder does not have it
    """
    test, baseline = of.tests[0], of.recipe.baseline
    every, measured = runs_of(of, test), of.folder / "order.json"
    runs = without_relative(every)
    order = json.loads(measured.read_text(encoding="utf-8")) if measured.exists() else order
    controls = list(of.recipe.parse.controls)
    result: dict[str, Any] = {"order": order, "baseline": baseline, "systems": planned(of)}
    if not runs:
        return result
    result |= scored(of, runs)
    if result["systems"] and {baseline, RELATIVE} <= every.keys():
        system, its_controls = next(iter(result["systems"].items()))
        names = [f"{system}.{control}" for control in its_controls]
        result["relative"] = against_relative(of, every, system, names)
    if baseline in runs:
        pages, properties = pages_of(of, test), [Property.of(text) for text in of.recipe.score.by]
        references = [text_of(path) for path in of.references(test)]
        parses = list(read_conllu(of.parse(test, of.langs[0]), n_lines=len(references[0])))
        scorer = scorers(references, of)["BLEU"]
        by = measure_by(scorer, runs, baseline, controls, parses, properties, groups=pages)
        result["metrics"]["BLEU"]["by"] = by
    return result


def without_relative(systems: Mapping[str, Item]) -> dict[str, Item]:
    """The systems without relative positions."""
    return {name: item for name, item in systems.items() if name.partition("+")[0] != RELATIVE}


def against_relative(of: Plan, runs: Runs, system: str, controls: Sequence[str]) -> dict[str, Any]:
    """Relative positions against the baseline; against them, a system and its first control.

    Also what :func:`beside_relative` says. Systems that have not been run are left out.
    """
    test, baseline = of.tests[0], of.recipe.baseline
    others = {kind: name for kind, name in zip(("parse", "control"), (system, *controls[:1])) if name in runs}
    alone = {name: runs[name] for name in (baseline, RELATIVE, *others.values())}
    references, groups = [text_of(path) for path in of.references(test)], pages_of(of, test)
    beside = beside_relative(of, runs, "".join(system.partition(".")[1:]))
    for metric, scorer in scorers(references, of).items():
        resampled = Resampled(scorer, alone, DRAWS, groups=groups)
        beside["metrics"][metric] |= {
            "plain": resampled.score[baseline],
            "gain": resampled.difference(RELATIVE, baseline).estimate,
            **{kind: resampled.difference(name, RELATIVE).estimate for kind, name in others.items()},
        }
    return {**beside, "seeds": {name: len(each) for name, each in alone.items()} | beside["seeds"]}


def beside_relative(of: Plan, runs: Runs, usual: str = "") -> dict[str, Any]:
    """Relative positions, and what each system gains beside them, on its parse and on control parses."""
    test, named = of.tests[0], named_beside(runs, usual)
    references, groups, metrics = [text_of(path) for path in of.references(test)], pages_of(of, test), {}
    for metric, scorer in scorers(references, of).items():
        resampled = Resampled(scorer, named, DRAWS, groups=groups)
        rows = measure_shares(resampled, RELATIVE, list(of.recipe.parse.controls))
        metrics[metric] = {"relative": resampled.score[RELATIVE], "beside": rows, "signature": scorer.signature}
    beside = {name: each for name, each in runs.items() if name.partition("+")[0] == RELATIVE}
    return {"seeds": {name: len(each) for name, each in beside.items()}, "metrics": metrics}


def named_beside(runs: Runs, usual: str = "") -> Runs:
    """The systems with relative positions by the name that they have without; ``relative`` is relative positions alone.

    Args:
        usual: the suffix of the usual parse, such as ``.gold``, which is left out
    """
    beside = {name: each for name, each in runs.items() if name.partition("+")[0] == RELATIVE}
    return {name.removeprefix(f"{RELATIVE}+").removesuffix(usual): each for name, each in beside.items()}


def mean_of_languages(plans: Sequence[Plan]) -> dict[str, Any]:
    """What systems with relative positions gain over these alone, in the mean of the languages.

    Each draw takes the same pages in all languages. Empty if relative positions have not been run in all of them.
    """
    controls = list(plans[0].recipe.parse.controls)
    every = {of.recipe.name: named_beside(runs_of(of, of.tests[0])) for of in plans}
    if not all(RELATIVE in runs for runs in every.values()):
        return {}
    parts: dict[str, list[Resampled]] = {}
    for of, runs in zip(plans, every.values()):
        test = of.tests[0]
        references, groups = [text_of(path) for path in of.references(test)], pages_of(of, test)
        for metric in ("bleu", "chrf"):
            scorer = Scorer(metric, references, of.tokenizer, of.recipe.score.lowercase)
            parts.setdefault(scorer.name, []).append(Resampled(scorer, runs, DRAWS, groups=groups))
    whole = {metric: Resampled.mean(of_languages) for metric, of_languages in parts.items()}
    return {
        "languages": list(every),
        "seeds": {name: len(of_seeds) for name, of_seeds in whole["BLEU"].of_seeds.items()},
        "metrics": {metric: measure_shares(resampled, RELATIVE, controls) for metric, resampled in whole.items()},
    }


def tuned() -> dict[str, Any]:
    """The main comparison by language, and its mean over those in which the parse was run.

    ``with_placebo`` is the mean over the languages in which the placebo was run as well, where these are fewer;
    ``others`` are other systems beside the same baseline, in the first language.
    """
    languages: dict[str, Any] = {}
    of_system: dict[str, list[Plan]] = {}
    for of in map(plan, TUNED):
        runs = runs_of(of, of.tests[0])
        languages[str(of.recipe.name)] = {"relative": beside_relative(of, runs) if RELATIVE in runs else {}}
        parse, placebo = list(of.recipe.systems)[1:3]
        for system in (parse, placebo):
            of_system.setdefault(system, [])
            of_system[system] += [of] * (runs.keys() >= {RELATIVE, parse, system})
    first, others = plan(TUNED[0]), plan(TUNED_OTHERS)
    runs = runs_of(others, others.tests[0])
    baseline = {RELATIVE: of_first} if (of_first := runs_of(first, first.tests[0]).get(RELATIVE)) else {}
    with_parse, with_placebo = of_system.values()
    return {
        "languages": languages,
        "others": beside_relative(others, {**baseline, **runs}) if baseline and runs else {},
        "mean": mean_of_languages(with_parse) if len(with_parse) > 1 else {},
        "with_placebo": mean_of_languages(with_placebo) if 1 < len(with_placebo) < len(with_parse) else {},
    }


def scored(of: Plan, runs: Runs) -> dict[str, Any]:
    """The scores of translations of the first test set by metric, what of each gain is syntax, and their length.

    Raises:
        SyntaxDataError: there are too few sentences, or groups of them, for intervals
    """
    test, baseline, controls = of.tests[0], of.recipe.baseline, list(of.recipe.parse.controls)
    references, pages = [text_of(path) for path in of.references(test)], pages_of(of, test)
    if not enough_sentences(range(len(references[0])), pages):
        units = "sentences" if pages is None else "groups of sentences"
        raise SyntaxDataError(
            f"has fewer than {LEAST_SENTENCES} {units}, over which intervals would be too narrow",
            path=of.references(test)[0] if pages is None else groups_of(of, test),
        )
    metrics: dict[str, Any] = {}
    for name, scorer in scorers(references, of).items():
        resampled = Resampled(scorer, runs, DRAWS, groups=pages)
        metrics[name] = {"scores": resampled.score, "signature": scorer.signature}
        metrics[name]["rows"] = measure_shares(resampled, baseline, controls) if baseline in runs else []
    lengths = {
        system: 100 * fmean(characters(lines) for lines in each) / characters(references[0])
        for system, each in runs.items()
    }
    drawn = {"sentences": len(references[0])} | ({} if pages is None else {"groups": len(set(pages))})
    return {**drawn, "lengths": lengths, "seeds": {name: len(each) for name, each in runs.items()}, "metrics": metrics}


def characters(lines: Sequence[str]) -> int:
    """The length of a text, without its line ends."""
    return sum(map(len, with_unknown_words(lines)))


def planned(of: Plan) -> dict[str, list[str]]:
    """The systems of a recipe without the baseline and without control parses, each with its control parses."""
    controls = of.recipe.parse.controls
    systems = [name for name in without_relative(of.recipe.systems) if name.rpartition(".")[2] not in controls]
    systems.remove(of.recipe.baseline)
    return {name: [control for control in controls if f"{name}.{control}" in of.recipe.systems] for name in systems}


def pages_of(of: Plan, test: str) -> list[str] | None:
    """The page, or another group, of each sentence of a test set; None if the recipe has no groups."""
    return None if of.recipe.score.groups is None else text_of(groups_of(of, test))


def groups_of(of: Plan, test: str) -> Path:
    """The file with the group of each sentence of a test set, of a recipe that has groups."""
    return of.place(of.recipe.score.groups or "", test=test)


def heads(path: Path, lines: int) -> list[list[int]]:
    """The heads of each line's words."""
    return [line.heads for line in read_conllu(path, n_lines=lines)]


def attachment(gold: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> float:
    """Unlabelled attachment score, in percent."""
    pairs = [(a, b) for one, two in zip(gold, other, strict=True) for a, b in zip(one, two, strict=True)]
    return 100 * sum(a == b for a, b in pairs) / len(pairs)


def parse_quality(runs: Runs) -> dict[str, Any]:
    """Each system by the parse that it was trained and tested on, against the plain Transformer and gold trees."""
    of, references = plan("atis"), text_of(plan("atis").text("test", "tr"))
    paths = {name: of.parse("test", "en", name) for name in of.recipe.parse.controls}
    paths["parser"] = plan("atis-parser").parse("test", "en")
    gold = heads(of.parse("test", "en"), len(references))
    parses = {name: attachment(gold, heads(path, len(references))) for name, path in paths.items() if path.exists()}
    rows: dict[str, Any] = {}
    for metric, scorer in scorers([references], of).items():
        resampled = Resampled(scorer, runs, DRAWS)
        for system in runs:
            row = rows.setdefault(system, {"seeds": len(runs[system]), "score": {}, "gain": {}, "to_gold": {}})
            row["score"][metric] = resampled.score[system]
            if system != BASELINE and BASELINE in runs:
                row["gain"][metric] = resampled.difference(system, BASELINE).estimate
            best = f"{system.partition('.')[0]}.gold"
            if best in runs and system != best and system != BASELINE:
                row["to_gold"][metric] = resampled.difference(system, best).estimate
    return {"sentences": len(references), "attachment": parses, "rows": rows}


def multi30k() -> dict[str, Any]:
    """Gains on the two tests after 8,000 updates: as kept, or with further controls where these have been run."""
    kept, of = Kept.read(MULTI30K / "trained-longer.jsonl.gz"), plan("multi30k-controls")
    tests = {}
    for test in MULTI30K_TESTS:
        tests[test] = kept.scores[test]["report"]["shares"]["metrics"]
        if controls := runs_of(of, test):
            runs: Runs = {}
            for name, entry in kept.runs.items():
                runs.setdefault(name.rpartition("/")[0], []).append(entry["outputs"][test])
            tests[test] = gains({**runs, **controls}, text_of(of.text(test, "de")), of)
    return tests


def amounts() -> dict[str, Any]:
    """Gains on the two tests with a part of the training pairs."""
    parts: dict[str, Any] = {}
    for part in ("tenth", "third"):
        of = plan(f"multi30k-{part}")
        for test in MULTI30K_TESTS:
            runs = runs_of(of, test)
            if runs:
                of_part = parts.setdefault(part, {"seeds": {system: len(each) for system, each in runs.items()}})
                of_part[test] = gains(runs, text_of(of.text(test, "de")), of)
    return parts


def gains(runs: Runs, references: Sequence[str], of: Plan) -> dict[str, Any]:
    """What each system gains over the plain Transformer, and what of it is syntax, by metric."""
    return {
        name: measure_shares(Resampled(scorer, runs, DRAWS), BASELINE, CONTROLS)
        for name, scorer in scorers([references], of).items()
        if BASELINE in runs
    }


def text_of(path: Path) -> list[str]:
    """The lines of a text file."""
    return list(read_lines(path))


def atis() -> dict[str, Any] | None:
    """By the quality of the parse; None if nothing has been run."""
    runs = {**runs_of(plan("atis-parser"), "test"), **runs_of(plan("atis"), "test")}
    if not runs:
        return None
    found = parse_quality(without_relative(runs))
    if {BASELINE, RELATIVE} <= runs.keys():
        found["relative"] = against_relative(plan("atis"), runs, "PSH.gold", ["PSH.linear"])
    return found


def longer() -> dict[str, Any]:
    """French after twice as many updates, and after the usual number with the same seeds; empty if not yet run."""
    of = plan("libreoffice-fr")
    runs, usual, pages = runs_of(plan("libreoffice-fr-8000"), "test"), runs_of(of, "test"), pages_of(of, "test")
    if BASELINE not in runs:
        return {}
    scorer = Scorer("bleu", [text_of(of.text("test", "fr"))], "13a")

    def measured(some: Runs) -> dict[str, Any]:
        resampled = Resampled(scorer, some, DRAWS, groups=pages)
        return {"scores": resampled.score, "rows": measure_shares(resampled, BASELINE, CONTROLS)}

    before = measured({system: usual[system][: len(each)] for system, each in runs.items()})
    return {**measured(runs), "seeds": len(runs[BASELINE]), "before": before}


def results(before: Mapping[str, Any], only: Collection[str]) -> Mapping[str, Any]:
    """All that the page shows.

    Args:
        before: results of which the parts that are not in ``only``, or not measured here, are taken
        only: names of languages and parts that are measured
    """
    kept = before["languages"]
    plans = {of.recipe.name: of for of in map(plan, LANGUAGES)}
    languages = {name: language(of, kept[name]["order"]) if name in only else kept[name] for name, of in plans.items()}
    parts = {name: make() if name in only else before.get(name) for name, make in PARTS.items()}
    return {**before, "languages": languages, **parts}


PARTS: dict[str, Callable[[], Any]] = {
    "multi30k": multi30k,
    "amounts": amounts,
    "parse_quality": atis,
    "longer": longer,
    "tuned": tuned,
    "mean": lambda: mean_of_languages(list(map(plan, LANGUAGES))),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", type=Path, metavar="RECIPE.yaml", help="your own (default: the atlas's)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="needed for your own recipes")
    every = (*(str(load_recipe(HERE / f"{name}.yaml").name) for name in LANGUAGES), *PARTS)
    parser.add_argument(
        "--only", nargs="+", choices=every, metavar="PART", help="measure these of the atlas; the others stay as kept"
    )
    args = parser.parse_args()
    if args.recipes and (args.output is None or args.only):
        parser.error("of your own recipes, all are measured, and --output FILE is needed")
    try:
        if args.recipes:
            plans = [plan(path) for path in args.recipes]
            names = Counter(of.recipe.name for of in plans)
            if twice := [name for name, count in names.items() if count > 1]:
                parser.error(f"several recipes have the name {twice[0]}")
            languages = {of.recipe.name: language(of) for of in plans}
            found: Mapping[str, Any] = {"languages": languages, "mean": mean_of_languages(plans)}
        else:
            before = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
            found = results(before, args.only or every)
    except SyntaxDataError as error:
        is_there = error.path is None or Path(error.path).exists()
        hint = "" if is_there else "; fairseq-syntax run RECIPE --to binarize makes texts and parses"
        parser.error(f"{error}{hint}")
    output = args.output or HERE / "results.json"
    write(found, output)
    print(output)
    return 0


def write(results: Mapping[str, Any], path: Path) -> None:
    """Write results as JSON."""
    path.write_text(json.dumps(_rounded(results), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    """Four digits after the point: what a bootstrap of so many draws can tell, and readable differences."""
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
