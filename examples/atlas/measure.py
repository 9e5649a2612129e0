#!/usr/bin/env python3
"""Scores the kept runs of the atlas, with intervals: results.json, from which page.py makes the page.

    python examples/atlas/measure.py
    python examples/atlas/measure.py --only hu amounts    # the results of the others stay

References, parses and the pages of LibreOffice's help are read from where the recipes put them, so that at least
``fairseq-syntax run RECIPE --to binarize`` must have been run. Intervals are of 95 %, over sentences and seeds, for the
languages over pages and seeds (:class:`fairseq_syntax.lab.scoring.significance.Resampled`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from keep import plan_of

from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.lab.recipes.kept import Kept
from fairseq_syntax.lab.recipes.layout import located
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.scoring.metrics import Scorer
from fairseq_syntax.lab.scoring.properties import Property
from fairseq_syntax.lab.scoring.shares import measure, measure_by
from fairseq_syntax.lab.scoring.significance import Difference, Resampled
from fairseq_syntax.runtime.files import read_lines

HERE = Path(__file__).resolve().parent
BASELINE = "transformer"
TOKENIZERS = {"zh_cn": ("zh", "char"), "ja": ("ja-mecab", "char")}
LANGUAGES = ("de", "fr", "hu", "tr", "zh_cn", "ja")
CONTROLS = ("linear", "random", "relabelled")
DRAWS = 10_000
# What Japanese, Turkish and Hungarian reorder: objects and obliques before the verb, relative clauses before the noun.
PROPERTIES = ("length", "longest-dependency", "label=obj", "label=obl", "label=acl:relcl")
MULTI30K = HERE.parent / "multi30k"
MULTI30K_TESTS = ("test_2016", "test_2017")

Runs = dict[str, list[list[str]]]


def plan(name: str) -> Plan:
    """The plan of a recipe in this folder."""
    return plan_of(HERE / f"{name}.yaml")[0]


def recipe_of(language: str) -> str:
    """The name of a language's recipe."""
    return "libreoffice" if language == "de" else f"libreoffice-{language}"


def runs_of(name: str, test: str = "test") -> Runs:
    """The translations of a test set by each system's seeds, of those that are kept of a recipe as it is now."""
    of, path = plan_of(HERE / f"{name}.yaml")
    kept = Kept.read(path).runs
    runs: Runs = {}
    for run in of.runs:
        entry = kept.get(str(run))
        if entry is not None and entry["key"] == of.key(run):
            runs.setdefault(run.system, []).append(entry["outputs"][test])
    return runs


def scorers(references: Sequence[str], tokenizers: Sequence[str]) -> dict[str, Scorer]:
    """BLEU by each tokenizer, the first called BLEU, and chrF."""
    by_name = {
        "BLEU" if tokenizer == tokenizers[0] else f"BLEU {tokenizer}": Scorer("bleu", [references], tokenizer)
        for tokenizer in tokenizers
    }
    return {**by_name, "chrF": Scorer("chrf", [references])}


def figures(difference: Difference) -> list[float]:
    """A difference with its interval and the smallest that would be found."""
    return [difference.difference, difference.low, difference.high, difference.detectable]


def language(lang: str) -> dict[str, Any]:
    """Word order, scores, and what of each gain is syntax; in BLEU also by properties of the parse."""
    of, runs = plan(recipe_of(lang)), runs_of(recipe_of(lang))
    order = of.folder / "order.json"
    kept = json.loads((HERE / "results.json").read_text(encoding="utf-8"))["languages"][lang]["order"]
    result: dict[str, Any] = {"order": json.loads(order.read_text(encoding="utf-8")) if order.exists() else kept}
    if not runs:
        return result
    references = text_of(of.text("test", lang))
    parses = list(read_conllu(of.parse("test", "en"), n_lines=len(references)))
    groups = of.recipe.score.groups
    pages = None if groups is None else text_of(located(groups.replace("{test}", "test"), of.base))
    metrics: dict[str, Any] = {}
    for name, scorer in scorers(references, TOKENIZERS.get(lang, ("13a",))).items():
        resampled = Resampled(scorer, runs, DRAWS, groups=pages)
        metrics[name] = {"scores": resampled.score, "signature": scorer.signature}
        metrics[name]["rows"] = measure(resampled, BASELINE, CONTROLS) if BASELINE in runs else []
        if name == "BLEU" and BASELINE in runs:
            properties = [Property.of(text) for text in PROPERTIES]
            metrics[name]["by"] = measure_by(scorer, runs, BASELINE, CONTROLS, parses, properties, groups=pages)
    return {**result, "seeds": {system: len(each) for system, each in runs.items()}, "metrics": metrics}


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
    for metric, scorer in scorers(references, ("13a",)).items():
        resampled = Resampled(scorer, runs, DRAWS)
        for system in runs:
            row = rows.setdefault(system, {"seeds": len(runs[system]), "score": {}, "gain": {}, "to_gold": {}})
            row["score"][metric] = resampled.score[system]
            if system != BASELINE and BASELINE in runs:
                row["gain"][metric] = figures(resampled.difference(system, BASELINE))
            best = f"{system.partition('.')[0]}.gold"
            if best in runs and system != best and system != BASELINE:
                row["to_gold"][metric] = figures(resampled.difference(system, best))
    return {"sentences": len(references), "attachment": parses, "rows": rows}


def multi30k() -> dict[str, Any]:
    """Gains on the two tests after 8,000 updates: as kept, or with further controls where these have been run."""
    kept = Kept.read(MULTI30K / "trained-longer.jsonl.gz")
    tests = {}
    for test, references in both_references().items():
        tests[test] = kept.scores[test]["report"]["shares"]["metrics"]
        controls = runs_of("multi30k-controls", test)
        if controls:
            runs: Runs = {}
            for name, entry in kept.runs.items():
                runs.setdefault(name.rpartition("/")[0], []).append(entry["outputs"][test])
            tests[test] = gains({**runs, **controls}, references)
    return tests


def amounts() -> dict[str, Any]:
    """Gains on the two tests with a part of the training pairs."""
    parts: dict[str, Any] = {}
    for part in ("tenth", "third"):
        recipe = f"multi30k-{part}"
        for test in MULTI30K_TESTS:
            runs = runs_of(recipe, test)
            if runs:
                of_part = parts.setdefault(part, {"seeds": {system: len(each) for system, each in runs.items()}})
                of_part[test] = gains(runs, text_of(plan(recipe).text(test, "de")))
    return parts


def gains(runs: Runs, references: Sequence[str]) -> dict[str, Any]:
    """What each system gains over the plain Transformer, and what of it is syntax, by metric."""
    return {
        name: measure(Resampled(scorer, runs, DRAWS), BASELINE, CONTROLS)
        for name, scorer in scorers(references, ("13a",)).items()
        if BASELINE in runs
    }


def both_references() -> dict[str, list[str]]:
    """The references of Multi30k's two tests; empty where the corpus is not there."""
    paths = {test: plan("multi30k-controls").text(test, "de") for test in MULTI30K_TESTS}
    return {test: text_of(path) if path.exists() else [] for test, path in paths.items()}


def text_of(path: Path) -> list[str]:
    """The lines of a text file."""
    return list(read_lines(path))


def atis() -> dict[str, Any] | None:
    """By the quality of the parse; None if nothing has been run."""
    runs = {**runs_of("atis-parser"), **runs_of("atis")}
    return parse_quality(runs) if runs else None


def longer() -> dict[str, Any]:
    """French after twice as many updates, and after the usual number with the same seeds; empty if not yet run."""
    runs, usual = runs_of("libreoffice-fr-8000"), runs_of("libreoffice-fr")
    if BASELINE not in runs:
        return {}
    of = plan(recipe_of("fr"))
    pages = text_of(located(str(of.recipe.score.groups).replace("{test}", "test"), of.base))
    scorer = Scorer("bleu", [text_of(of.text("test", "fr"))], "13a")

    def measured(some: Runs) -> dict[str, Any]:
        resampled = Resampled(scorer, some, DRAWS, groups=pages)
        return {"scores": resampled.score, "rows": measure(resampled, BASELINE, CONTROLS)}

    before = measured({system: usual[system][: len(each)] for system, each in runs.items()})
    return {**measured(runs), "seeds": len(runs[BASELINE]), "before": before}


def results(before: Mapping[str, Any], only: Collection[str]) -> Mapping[str, Any]:
    """All that the page shows.

    Args:
        before: results of which the parts that are not in ``only`` are taken
        only: languages and parts that are measured
    """
    languages = {lang: language(lang) if lang in only else before["languages"][lang] for lang in LANGUAGES}
    parts = {name: make() if name in only else before[name] for name, make in PARTS.items()}
    return {"languages": languages, **parts}


PARTS: dict[str, Callable[[], Any]] = {
    "multi30k": multi30k,
    "amounts": amounts,
    "parse_quality": atis,
    "longer": longer,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=HERE / "results.json", metavar="FILE")
    every = (*LANGUAGES, *PARTS)
    parser.add_argument(
        "--only", nargs="+", choices=every, default=every, metavar="PART", help="measure these; the others stay as kept"
    )
    args = parser.parse_args()
    before = json.loads((HERE / "results.json").read_text(encoding="utf-8"))
    text = json.dumps(_rounded(results(before, args.only)), indent=1, ensure_ascii=False)
    args.output.write_text(text + "\n", encoding="utf-8")
    print(args.output)
    return 0


def _rounded(value: Any) -> Any:
    """Four digits after the point: what a bootstrap of so many draws can tell, and readable differences."""
    if isinstance(value, Mapping):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(each) for each in value]
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
