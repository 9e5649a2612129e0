#!/usr/bin/env python3
"""How often the models of the main comparison prefer a correct translation, added to results.json.

    python examples/atlas/agreement.py data/distil-lingeval --model-dir parsers/en_ewt

The contrastive sets are DistilLingEval's (Vamvas and Sennrich 2021, On the Limits of Minimal Pairs in Contrastive
Evaluation), of which the folder has NAME.mt.src.en.gz, NAME.mt.tgt.correct.de.gz and NAME.mt.tgt.incorrect.de.gz. A
sample of each is scored by the German models of one seed, which must be there. The sources of subject and verb are
parsed for the distance between them, which the sets do not say.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measure import DRAWS, HERE, plan, text_of, write

from fairseq_syntax.corpus.conllu import ParsedLine, read_conllu
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.data_stages import parses
from fairseq_syntax.lab.recipes.layout import Run
from fairseq_syntax.lab.recipes.plan import Plan
from fairseq_syntax.lab.recipes.runner import Runner, environment
from fairseq_syntax.lab.recipes.running import Work
from fairseq_syntax.lab.recipes.stages import Free, In, Out, Stage, StageCommand, options
from fairseq_syntax.lab.scoring.contrast import accuracy, compare_decisions, decisions, sources_of, ties
from fairseq_syntax.lab.scoring.contrast_sets import ContrastSet, joined, read_set
from fairseq_syntax.runtime.files import atomic_open, make_folder

AGREEMENT = "subj_verb_agreement"
SETS = (AGREEMENT, "np_agreement", "clause_omission")
SIDES = ("src.en", "tgt.correct.de", "tgt.incorrect.de")
FARTHEST = (1, 5)  # words: the last distance of each group but the last one


def sampled(folder: Path, name: str, pairs: int, to: Path) -> tuple[list[Path], int]:
    """A seeded sample of a set as three files in ``to``, and the number of pairs of the whole set."""
    columns = [text_of(folder / f"{name}.mt.{side}.gz") for side in SIDES]
    total = len(columns[0])
    chosen = sorted(random.Random(1).sample(range(total), min(pairs, total)))
    paths = [to / f"{name}.{side}" for side in SIDES]
    for path, lines in zip(paths, columns, strict=True):
        with atomic_open(path) as file:
            file.writelines(f"{lines[number]}\n" for number in chosen)
    return paths, total


def parsed(of: Plan, text: Path, model_dir: str | None) -> Stage:
    """The stage that parses a text as the recipe parses its source."""
    usual = next(stage for stage in parses(of) if In(of.text(of.tests[0], of.langs[0])) in stage.commands[0].words)
    words, made = list(usual.commands[0].words), text.with_suffix(".conllu")
    words[words.index("--input") + 1], words[words.index("--output") + 1] = In(text), Out(made)
    words += options({"model-dir": model_dir})
    return of.stage("parse", f"parse {text.name}", [StageCommand(words)], [made])


def scored(of: Plan, names: Sequence[str], seed: int, sets: Sequence[Sequence[Path]], to: Path) -> Stage:
    """The stage that scores all sets by each system, as DistilLingEval does: by the mean of the pieces."""
    folder, models = to / "scores", {name: of.checkpoint(Run(name, seed)) for name in names}
    values = {
        "set": [Free(",".join(map(str, paths))) for paths in sets],
        "data": Out(of.bin()),
        "score": "mean",
        "write-scores": Out(folder),
        "json": Out(to / "report.json"),
    }
    words = ["fairseq-syntax", "contrast", *(Free(f"{name}={path}") for name, path in models.items())]
    reads = (*models.values(), *(path for paths in sets for path in paths))
    made = [folder / f"{name.replace('+', '_')}.scores" for name in names]
    command = StageCommand([*words, *options(values)])
    return of.stage("score", "contrast", [command], made, reads=reads, about=tuple(names))


def finite(line: ParsedLine, predicate: int) -> int:
    """The word that agrees with a predicate's subject: its first auxiliary or copula, or itself."""
    first = (
        word
        for word, head in enumerate(line.heads)
        if head == predicate and word != predicate and line.deprels[word].partition(":")[0] in ("aux", "cop")
    )
    return next(first, predicate)


def distance(line: ParsedLine) -> int | None:
    """The distance in words between subject and verb in a line with one subject; None if it has none, or several."""
    subjects = [word for word, label in enumerate(line.deprels) if label.partition(":")[0] == "nsubj"]
    return abs(finite(line, line.heads[subjects[0]]) - subjects[0]) if len(subjects) == 1 else None


def by_distance(distances: Sequence[int | None]) -> Iterator[tuple[str, list[int]]]:
    """The name of each group of distances, and its pairs."""
    low = 1
    for high in (*FARTHEST, None):
        within = [n for n, d in enumerate(distances) if d is not None and low <= d and (high is None or d <= high)]
        name = f"{low}" if high == low else f"{low} to {high}" if high else f"over {low - 1}"
        yield f"{name} word{'s' * (high != 1)}", within
        low = (high or 0) + 1
    yield "several subjects, or none", [number for number, d in enumerate(distances) if d is None]


def difference(baseline: np.ndarray, system: np.ndarray, sources: np.ndarray) -> list[float]:
    """Difference of two accuracies, in points: value, bounds of its interval, and p.

    The interval is that of a bootstrap over the sources, and p that of the exact test of ``fairseq-syntax contrast``.

    Args:
        baseline, system: decisions, bool [n]
        sources: the source of each, int [n]
    """
    test = compare_decisions(baseline, system, sources)
    sums = np.bincount(sources, weights=system.astype(float) - baseline)
    sizes = np.bincount(sources)
    sums, sizes = sums[sizes > 0], sizes[sizes > 0]
    rng = np.random.default_rng(1)
    drawn = np.array([rng.integers(len(sums), size=len(sums)) for _ in range(DRAWS)])
    low, high = np.quantile(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), [0.025, 0.975])
    return [100 * float(value) for value in (test["difference"], low, high)] + [test["p"]]


def row(right: dict[str, np.ndarray], contrast: ContrastSet, items: Sequence[int]) -> dict[str, Any]:
    """The accuracies of some pairs, in percent with bounds, and their differences from the first system."""
    sources, (baseline, *others) = sources_of(contrast)[items], right
    of_each = {name: accuracy(each[items], sources) for name, each in right.items()}
    return {
        "pairs": len(items),
        "accuracy": {name: [100 * one[key] for key in ("accuracy", "low", "high")] for name, one in of_each.items()},
        "against": {name: difference(right[baseline][items], right[name][items], sources) for name in others},
    }


def pieces_of(of: Plan, source: Sequence[str], target: Sequence[str]) -> dict[str, Any]:
    """The pieces per word on each side, and what share of them the models do not know, in percent."""
    from fairseq_syntax.use.loading import setup_task

    src, tgt = of.langs
    task, found = setup_task(data=str(of.bin()), source_lang=src, target_lang=tgt), {}
    for side, lines in {"source": source, "target": target}.items():
        dictionary = task.source_dictionary if side == "source" else task.target_dictionary
        pieces = [piece for line in lines for piece in task.segmenter(side).encode_text(line)]
        unknown = sum(dictionary.index(piece) == dictionary.unk() for piece in pieces)
        found[side] = [len(pieces) / sum(len(line.split()) for line in lines), 100 * unknown / len(pieces)]
    return found


def measured(of: Plan, folder: Path, seed: int, pairs: int, model_dir: str | None) -> dict[str, Any]:
    """Accuracies and differences by set, and for subject and verb by distance; and how the sets are segmented.

    Raises:
        SyntaxDataError: a file is missing, or a command failed
    """
    to = of.folder / "contrast"
    make_folder(to)
    runs = [run for run in Work(of).finished() if run.seed == seed and of.checkpoint(run).exists()]
    names = [name for name in of.recipe.systems if Run(name, seed) in runs]
    if of.recipe.baseline not in names:
        raise SyntaxDataError(f"no model of {of.recipe.baseline}", path=of.checkpoint(Run(of.recipe.baseline, seed)))
    sets = {name: sampled(folder, name, pairs, to) for name in SETS}
    files = [paths for paths, _ in sets.values()]
    stages = [parsed(of, files[0][0], model_dir), scored(of, names, seed, files, to)]
    runner = Runner(of.folder, 1, environment(of.recipe.threads, of.recipe.env))
    if failed := runner.run(stages):
        raise SyntaxDataError(f"failed: {', '.join(failed)}", path=of.path)
    read = [read_set(f"{name}={','.join(map(str, paths))}") for name, (paths, _) in sets.items()]
    contrast = joined(read)
    scores = [list(map(float, text_of(path))) for path in stages[1].outputs]
    right = {name: decisions(contrast, each) for name, each in zip(names, scores, strict=True)}
    members = {name: [number for number, item in enumerate(contrast.items) if item.category == name] for name in SETS}
    rows = [{"set": name, "of": sets[name][1], **row(right, contrast, items)} for name, items in members.items()]
    lines = read_conllu(stages[0].outputs[0], n_lines=len(members[AGREEMENT]))
    first = members[AGREEMENT][0]
    for group, within in by_distance([distance(line) for line in lines]):
        rows.append({"set": AGREEMENT, "distance": group, **row(right, contrast, [first + n for n in within])})
    texts = {side: [line for paths in files for line in text_of(paths[number])] for number, side in enumerate(SIDES)}
    test = of.tests[0]
    own = [text_of(of.text(test, lang)) for lang in of.langs]
    return {
        "language": of.recipe.name,
        "seed": seed,
        "ties": {name: ties(contrast, each) for name, each in zip(names, scores, strict=True)},
        "pieces": {"sets": pieces_of(of, texts[SIDES[0]], texts[SIDES[1]]), "test": pieces_of(of, *own)},
        "rows": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR", help="DistilLingEval's sets")
    parser.add_argument("--results", type=Path, default=HERE / "results.json", metavar="FILE", help="of measure.py")
    parser.add_argument("--seed", type=int, default=1, help="of the models (default: 1)")
    parser.add_argument("--pairs", type=int, default=2000, help="most pairs of a set (default: 2000)")
    parser.add_argument("--model-dir", metavar="DIR", help="the parser's models (default: the recipe's)")
    args = parser.parse_args()
    try:
        found = measured(plan("tuned"), args.folder, args.seed, args.pairs, args.model_dir)
    except SyntaxDataError as error:
        parser.error(str(error))
    results = json.loads(args.results.read_text(encoding="utf-8"))  # only now: others may have been written meanwhile
    write({**results, "agreement": found}, args.results)
    print(args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
