"""How much a recipe has to compute: words to parse and updates to make, which are known before it starts.

No times: they depend on the machine by factors of ten, and ``run`` shows the remaining time of each training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fairseq_syntax.corpus.gathering import split_files
from fairseq_syntax.corpus.words import WITHOUT_SPACES, language_of
from fairseq_syntax.lab.recipes.layout import Layout
from fairseq_syntax.lab.recipes.stages import Stage, training_limits
from fairseq_syntax.runtime.files import read_raw_lines


def amounts(layout: Layout, stages: Sequence[Stage]) -> list[str]:
    """The work of some unfinished stages, in words: a line for each language to parse, and one for the trainings."""
    told, todo = [], {stage.name for stage in stages}
    for lang, side in layout.sides().items():
        splits = [split for split in layout.splits if f"parse {split}.{lang}" in todo]
        if splits and side.files is None:
            told.append(f"to parse with {side.parser}, on {layout.recipe.device}: {_text(layout, splits, lang)}")
    trainings = [stage for stage in stages if stage.kind == "train" and stage.commands[0].words[0] == "fairseq-train"]
    if trainings:
        lengths = Counter(_length(stage) for stage in trainings)
        models = "; ".join(f"{count} of {length}" for length, count in lengths.items())
        told.append(f"to train, on {layout.recipe.device}: {models}")
    return told


def _text(layout: Layout, splits: Sequence[str], lang: str) -> str:
    """The lines and words of a language's splits; of the unfiltered text if it has not been read yet."""
    paths = [_existing_text(layout, split, lang) for split in splits]
    known = [path for path in paths if path is not None]
    if len(known) < len(paths):
        return f"the {lang} side, whose size is known once the corpus has been read"
    lines = words = 0
    for path in known:
        for line in read_raw_lines(path):
            lines, words = lines + 1, words + len(line.split())
    return f"{lines:,} lines of {lang}" + ("" if language_of(lang) in WITHOUT_SPACES else f", {words:,} words")


def _existing_text(layout: Layout, split: str, lang: str) -> Path | None:
    """The text of a split, or the user's file of it; None if there is no such file, or one that has other columns."""
    corpus, place = layout.recipe.corpus, layout.text(split, lang)
    if place.exists():
        return place
    if corpus.reader is not None or corpus.first is not None or corpus.subset is not None:
        return None
    texts = {"train": corpus.train, "valid": corpus.valid, **corpus.tests}[split]
    files = split_files([str(layout.place(text)) for text in texts], layout.langs)
    return files[layout.langs.index(lang)] if len(set(files)) == 2 else None


def _length(stage: Stage) -> str:
    """The length of a training, as its options say."""
    names = {"--max-update": "updates", "--max-epoch": "epochs"}
    lengths = [f"{int(limit):,} {names[option]}" for option, limit in training_limits(stage).items()]
    return f"{' or '.join(lengths)} at most" if lengths else "no fixed number of updates"
