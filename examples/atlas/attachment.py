#!/usr/bin/env python3
"""How many words attend to their parent, by run, added to results.json, beside what the run gains over its baseline.

    python examples/atlas/attachment.py
    python examples/atlas/attachment.py --again German

It needs the models of the main comparison. Of a supervised head, also of one that was trained on control trees, the
trees that it predicts for the test set are compared with the parse (UAS), as `score.trees` of a recipe does. Of the
baseline, whose heads nobody trains on trees, those of the head that attends to most parents on the validation set. Runs
that have been measured with the same settings are not measured again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from measure import HERE, RELATIVE, TUNED, attachment, heads, plan, runs_of, scorers, text_of, write

from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu
from fairseq_syntax.corpus.parsing.parser import ParserOptions
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.layout import Run
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.running import Work
from fairseq_syntax.runtime.console import progress

NEXT = "next word"


def trees(of: Plan, run: Run) -> dict[str, Any]:
    """The UAS of a run's trees of the first test set, in percent, and of the baseline the head that they are from."""
    from fairseq_syntax.use.loading import load_models
    from fairseq_syntax.use.parent_head import ParentHeadParser

    source, test, best = of.langs[0], of.tests[0], {}
    (model,), _, task = load_models([of.checkpoint(run)], of.bin(), device="cpu")
    options, place = ParserOptions(parser="", lang=source), None
    if run.system == RELATIVE:
        valid = list(read_conllu(of.parse("valid", source)))
        (_, place), *_ = ParentHeadParser(options, model, task, choose=True).rank_heads(valid)
        best = {"head": place}
    gold = list(read_conllu(of.parse(test, source)))
    predicted = ParentHeadParser(options, model, task, head=place).predict(gold)
    return {**best, "uas": attachment([line.heads for line in gold], [line.heads for line in predicted])}


def measured(of: Plan, before: Mapping[str, Any]) -> dict[str, Any]:
    """The trees of the runs of a language whose models are here, and BLEU's gain over the baseline of the same seed."""
    test, found = of.tests[0], {}
    runs = [run for run in Work(of).finished() if run.system == RELATIVE or run.system.startswith(f"{RELATIVE}+")]
    for run in progress(runs, of=str(of.recipe.name), unit="models"):
        key, one = of.key(run), before.get(str(run), {})
        if one.get("key") != key and of.checkpoint(run).exists():
            one = {"key": key, **trees(of, run)}
        if one.get("key") == key:
            found[str(run)] = one
    scorer = scorers([text_of(path) for path in of.references(test)], of)["BLEU"]
    translated = runs_of(of, test)
    seeds = {system: [run.seed for run in runs if run.system == system] for system in translated}
    bleu = {
        str(Run(system, seed)): scorer.corpus(lines)
        for system, each in translated.items()
        for seed, lines in zip(seeds[system], each, strict=True)
    }
    for name, one in found.items():
        baseline = str(Run(RELATIVE, int(name.rpartition("/")[2])))
        one["gain"] = bleu[name] - bleu[baseline] if name != baseline and baseline in bleu else None
    return found


def next_words(line: ParsedLine) -> list[int]:
    """The heads of a tree in which each word attaches to the next one of its sentence, and the last is the root."""
    return [min(word + 1, end - 1) for start, end in line.sentences for word in range(start, end)]


def of_controls() -> dict[str, float]:
    """The UAS of the control trees that have been made on the test set, and of chains to the next word, in percent."""
    of = plan(TUNED[0])
    source, test = of.langs[0], of.tests[0]
    lines = list(read_conllu(of.parse(test, source), n_lines=len(text_of(of.text(test, source)))))
    gold, plans = [line.heads for line in lines], [plan(name) for name in TUNED]
    found = {NEXT: attachment(gold, list(map(next_words, lines)))}
    for name in of.recipe.parse.controls:
        made = (one.parse(test, source, name) for one in plans)
        if path := next((path for path in made if path.exists()), None):
            found[name] = attachment(gold, heads(path, len(gold)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    plans = {str(of.recipe.name): of for of in map(plan, TUNED)}
    parser.add_argument("--again", nargs="+", choices=plans, default=(), metavar="LANGUAGE", help="measure these anew")
    args = parser.parse_args()
    path = HERE / "results.json"

    def before() -> dict[str, Any]:
        return json.loads(path.read_text(encoding="utf-8"))  # type: ignore[no-any-return]

    kept, again = before().get("attachment", {}).get("languages", {}), set(args.again)
    try:
        languages = {name: measured(of, {} if name in again else kept.get(name, {})) for name, of in plans.items()}
        controls = {**before().get("attachment", {}).get("controls", {}), **of_controls()}
    except SyntaxDataError as error:
        parser.error(str(error))
    # Read once more: measure.py may have written others meanwhile.
    write({**before(), "attachment": {"controls": controls, "languages": languages}}, path)
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
