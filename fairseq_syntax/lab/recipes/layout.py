"""The files of a recipe, and their places in the result folder.

::

    FOLDER/data/text        the corpus as plain text, SPLIT.LANG; filtered/ contains the filtered training data
    FOLDER/data/parses      SPLIT.LANG.conllu
    FOLDER/data/pieces      segmented text and parses; controls/NAME contains control parses of the source
    FOLDER/data/bin         binarized data; bin.NAME with a control parse
    FOLDER/models           SYSTEM/SEED/checkpoint_best.pt, train.log
    FOLDER/outputs          TEST/SYSTEM.SEED.out, and TEST.VARIANT/…
    FOLDER/scores           TEST.json
    FOLDER/report.md        and report.html
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fairseq_syntax.corpus.parsing.parser import model_path
from fairseq_syntax.corpus.store.store_format import store_path, tokens_prefix
from fairseq_syntax.data.directory import dictionary_path, segmentation_path
from fairseq_syntax.data.labels import labels_path
from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab.recipes.schema import ParseSide, Recipe, Variant
from fairseq_syntax.lab.recipes.stages import Free, In, Kind, Out, Stage, StageCommand, Word, options, shown_path
from fairseq_syntax.plugins import code_digest

# A way of translating the tests: the default one or a variant.
MAIN = ""


@dataclass(frozen=True)
class Run:
    """A system trained with one seed."""

    system: str
    seed: int

    def __str__(self) -> str:
        return f"{self.system}/{self.seed}"


@dataclass(frozen=True)
class Scored:
    """A test set to score: in one translation variant, all lines or some."""

    test: str
    variant: str = MAIN
    lines: str = ""  # a name in `score.lines`; empty for all lines

    def __str__(self) -> str:
        return ".".join(filter(None, [self.test, self.variant, self.lines]))


def located(text: str, base: Path) -> Path:
    """Resolve a path in a recipe, relative to its folder; ``~`` and ``$NAME`` are expanded."""
    return Path(os.path.normpath(base / os.path.expanduser(os.path.expandvars(text))))


class Layout:
    """The runs and tables of a recipe in the file ``path``, and the paths of its files in the result folder."""

    def __init__(self, recipe: Recipe, path: Path) -> None:
        self.recipe = recipe
        self.path = path
        self.base = path.absolute().parent
        self.folder = located(recipe.folder or f"runs/{recipe.name}", self.base)
        self.langs = (recipe.corpus.source, recipe.corpus.target)
        self.tests = list(recipe.corpus.tests)
        self.splits = ["train", "valid", *self.tests]
        self.data = self.folder / "data"
        for folder in (folder for system in (None, *recipe.systems) for folder in self.plugins(system)):
            if not folder.is_dir():
                raise SyntaxDataError(f"no such folder: {shown_path(folder)}", path=path, option="user_dir")
        for name, count in Counter(map(str, self.tables())).items():
            if count > 1:  # one would take the place of the other
                hint = "rename the test set, the variant or the lines"
                raise SyntaxDataError(f"two tables of scores would be called {name}", path=path, hint=hint)

    @cached_property
    def runs(self) -> list[Run]:
        """All runs: first all systems with the first seed, then with the next one."""
        return [Run(name, seed) for seed in self.recipe.seeds for name in self.recipe.systems]

    def chosen(self, only: Collection[str] | None = None, seeds: Collection[int] | None = None) -> list[Run]:
        """Select runs by names of systems or runs, and by seeds. Raises SyntaxDataError if the recipe has none such."""
        for name in only or ():
            if name not in self.recipe.systems and name not in map(str, self.runs):
                hint = meant(name, self.recipe.systems)
                raise SyntaxDataError(f"no system or run is called {name}", path=self.path, hint=hint)
        for seed in seeds or ():
            if seed not in self.recipe.seeds:
                raise SyntaxDataError(f"no system has the seed {seed}", path=self.path)
        named = [run for run in self.runs if not only or run.system in only or str(run) in only]
        chosen = [run for run in named if not seeds or run.seed in seeds]
        if not chosen and self.recipe.systems:  # only results of earlier runs would be reported
            raise SyntaxDataError("none of the runs in --only has such a seed", option="--seeds")
        return chosen

    def variants(self, system: str) -> dict[str, Variant]:
        """The translation variants of a system."""
        variants = {MAIN: Variant(), **self.recipe.translate.variants}
        return {name: one for name, one in variants.items() if one.systems is None or system in one.systems}

    def tables(self) -> list[Scored]:
        """The tables to score."""
        variants = [MAIN, *self.recipe.translate.variants]
        tables = [Scored(test, variant) for variant in variants for test in self.tests]
        return tables + [replace(table, lines=lines) for lines in self.recipe.score.lines for table in tables]

    def plugins(self, system: str | None = None) -> list[Path]:
        """The folders of the user's plugins: those of a system, or of the recipe."""
        of_system = None if system is None else self.recipe.systems[system].user_dir
        return [self.place(text) for text in (self.recipe.user_dir if of_system is None else of_system)]

    # ------------------------------------------------------------------------------------------------------ paths

    def text(self, split: str, lang: str) -> Path:
        """The text of a split; for training, the filtered text."""
        return self.data / ("filtered" if split == "train" else "text") / f"{split}.{lang}"

    def references(self, test: str) -> list[Path]:
        """The reference translations of a test set."""
        first = self.text(test, self.langs[1])
        more = self.recipe.corpus.references.get(test, 1) - 1
        return [first, *(first.with_name(f"{first.name}.{number}") for number in range(1, more + 1))]

    def sides(self) -> dict[str, ParseSide]:
        """The parsed languages."""
        sides = zip(self.langs, (self.recipe.parse.source, self.recipe.parse.target))
        return {lang: side for lang, side in sides if side is not None}

    def parse(self, split: str, lang: str, control: str = "parse") -> Path:
        """The parse of a split, or its segmented control parse."""
        folder = self.data / "parses" if control == "parse" else self.data / "controls" / control
        return folder / f"{split}.{lang}.conllu"

    def bin(self, control: str = "parse") -> Path:
        """The binarized data with the parse or a control parse."""
        return self.data / ("bin" if control == "parse" else f"bin.{control}")

    def dictionaries(self, control: str = "parse") -> list[Path]:
        """The files that all splits of the binarized data share and training reads: dictionaries and labels."""
        paths = [dictionary_path(self.bin(control), lang) for lang in self.langs]
        paths += [labels_path(self.bin(control), lang) for lang in self.sides()]
        return [Path(path) for path in paths]

    def segmentation(self, folder: Path, lang: str) -> list[Path]:
        """The segmentation of a language in a folder of pieces or of binarized data, and its model."""
        path = Path(segmentation_path(folder, lang))
        return [path, path.with_suffix(".model")]

    def subset(self, split: str) -> str:
        """fairseq's name of a split; test sets are test, test1, …"""
        return split if split in ("train", "valid") else f"test{self.tests.index(split) or ''}"

    def binarized(self, split: str, control: str = "parse") -> list[Path]:
        """The files of a split in the binarized data."""
        pair = self.bin(control), self.subset(split), *self.langs
        tokens = [f"{tokens_prefix(*pair, lang)}.{end}" for lang in self.langs for end in ("bin", "idx")]
        return [Path(path) for path in (*tokens, *(store_path(*pair, lang) for lang in self.sides()))]

    def model(self, run: Run) -> Path:
        """The folder of a run's model."""
        return self.folder / "models" / run.system / str(run.seed)

    def checkpoint(self, run: Run) -> Path:
        """The checkpoint that translates."""
        return self.model(run) / f"checkpoint_{self.recipe.translate.checkpoint}.pt"

    def output(self, run: Run, table: Scored) -> Path:
        """The file with a run's translations of all lines of a test set."""
        return self.folder / "outputs" / str(replace(table, lines="")) / f"{run.system}.{run.seed}.out"

    def outputs(self, run: Run) -> dict[Scored, Path]:
        """All files with a run's translations."""
        tables = [Scored(test, variant) for variant in self.variants(run.system) for test in self.tests]
        return {table: self.output(run, table) for table in tables}

    def tree_scores(self, run: Run, test: str) -> Path:
        """The scores of a run's predicted trees for a test set, as JSON."""
        return self.folder / "scores" / "trees" / f"{test}.{run.system}.{run.seed}.json"

    def score_file(self, table: Scored) -> Path:
        """The scores of a table, as JSON."""
        return self.folder / "scores" / f"{table}.json"

    # --------------------------------------------------------------------------------- placeholders and options

    def filled(self, text: str, run: Run | None = None, show: Callable[[Path], str] = shown_path, **names: str) -> str:
        """Fill in the placeholders of a text in the recipe: ``{folder}``, ``{run}`` and others, but not ``${run}``."""
        source, target = self.langs
        places = {"folder": show(self.folder), "recipe": show(self.base), "source": source, "target": target, **names}
        if run is not None:
            places |= {"run": show(self.model(run)), "system": run.system, "seed": str(run.seed)}
        return re.sub(r"(?<!\$)\{(\w+)\}", lambda found: places.get(found[1], found[0]), text)

    def place(self, text: str, run: Run | None = None, **names: str) -> Path:
        """A file named in the recipe, relative to the recipe's folder."""
        return located(self.filled(text, run, os.path.abspath, **names), self.base)

    def models(self, side: ParseSide) -> Word | None:
        """The models of a side's parser as typed: a file or folder, or the name of an installed pipeline."""
        if side.models is None:
            return None
        place = model_path(side.parser, side.models, self.place("."))
        return Free(side.models) if place is None else Out(self.place(side.models))

    def options(self, values: Mapping[str, Any]) -> list[Word]:
        """Options of a fairseq command; files named by placeholders are inputs, represented by their content."""
        files = ("{recipe}/", "{folder}/")
        return options({k: In(self.place(v)) if str(v).startswith(files) else v for k, v in values.items()})

    def stage(
        self,
        kind: Kind,
        name: str,
        commands: Sequence[StageCommand],
        outputs: Sequence[Path],
        *,
        plugins: Sequence[Path] = (),
        **more: Any,
    ) -> Stage:
        """Make a stage of this recipe, whose commands load plugins; ``more`` as in :class:`.stages.Stage`."""
        stamp = self.folder / ".stages" / name.replace(" ", ".").replace("/", ".")
        env = tuple(f"{key}={value}" for key, value in self.recipe.env.items())
        about = (*env, *map(code_digest, plugins), *more.pop("about", ()))
        commands = tuple(replace(command, plugins=tuple(plugins)) for command in commands)
        return Stage(kind, name, commands, tuple(outputs), stamp, about=about, **more)
