"""From a recipe to its stages: which commands make what, in the result folder's layout.

::

    FOLDER/data/text        the corpus as plain text, SPLIT.LANG; filtered/ has what stays of the training data
    FOLDER/data/parses      SPLIT.LANG.conllu
    FOLDER/data/pieces      cut into pieces; controls/NAME has the same with a control parse
    FOLDER/data/bin         binarized; bin.NAME with a control parse
    FOLDER/models           SYSTEM/SEED/checkpoint_best.pt, train.log
    FOLDER/outputs          TEST/SYSTEM.SEED.out, and TEST.VARIANT/…
    FOLDER/scores           TEST.json
    FOLDER/report.md        and report.html
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fairseq_syntax.corpus.gathering import plain_or_gz, split_files
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.lab.recipes.schema import ParseSide, Recipe, System, Variant
from fairseq_syntax.lab.recipes.stages import KINDS, PLUGIN, Command, Free, In, Out, Stage, Word
from fairseq_syntax.lab.scoring.names import tokenizer_of
from fairseq_syntax.runtime.files import fingerprint

# A translation of the tests: the models', or a variant of it.
MAIN = ""


@dataclass(frozen=True)
class Run:
    """A system trained with a seed: a row's part of the table."""

    system: str
    seed: int

    def __str__(self) -> str:
        return f"{self.system}/{self.seed}"


@dataclass(frozen=True)
class Table:
    """A test set as it is scored: translated in one way, of some lines or of all."""

    test: str
    variant: str = MAIN
    lines: str = ""  # a name of `score.lines`; all lines without one

    def __str__(self) -> str:
        return ".".join(filter(None, [self.test, self.variant, self.lines]))


def located(text: str, base: Path) -> Path:
    """A path of a recipe, as seen from its folder; ``~`` and ``$NAME`` are filled in."""
    return Path(os.path.normpath(base / os.path.expanduser(os.path.expandvars(text))))


class Plan:
    """The stages of a recipe.

    Args:
        recipe: checked
        path: its file
        folder: where everything is made (default: what the recipe says)
    """

    def __init__(self, recipe: Recipe, path: Path, folder: Path | None = None) -> None:
        self.recipe = recipe
        self.path = path
        self.base = path.absolute().parent
        assert recipe.name is not None
        self.folder = folder or located(recipe.folder or os.path.join("runs", recipe.name), self.base)
        self.langs = (recipe.corpus.source, recipe.corpus.target)
        self.tests = list(recipe.corpus.tests)
        self.splits = ["train", "valid", *self.tests]
        self.data = self.folder / "data"

    # ------------------------------------------------------------------------------------------------------- runs

    @cached_property
    def runs(self) -> list[Run]:
        """Every system with every seed: first all systems with the first seed."""
        seeds = {name: system.seeds or self.recipe.seeds for name, system in self.recipe.systems.items()}
        most = max(map(len, seeds.values()))
        return [Run(name, of[place]) for place in range(most) for name, of in seeds.items() if place < len(of)]

    def chosen(self, only: Collection[str] | None = None, seeds: Collection[int] | None = None) -> list[Run]:
        """The runs of some systems or runs, by name, and of some seeds.

        Raises:
            SyntaxDataError: a name or a seed is not in the recipe
        """
        for name in only or ():
            if not any(name in (run.system, str(run)) for run in self.runs):
                hint = f"there are {', '.join(self.recipe.systems)}"
                raise SyntaxDataError(f"no system or run is called {name}", path=self.path, hint=hint)
        for seed in seeds or ():
            if not any(seed == run.seed for run in self.runs):
                raise SyntaxDataError(f"no system has the seed {seed}", path=self.path)
        named = [run for run in self.runs if not only or run.system in only or str(run) in only]
        return [run for run in named if not seeds or run.seed in seeds]

    def variants(self, system: str) -> dict[str, Variant]:
        """How a system translates the tests."""
        variants = {MAIN: Variant(), **self.recipe.translate.variants}
        return {name: one for name, one in variants.items() if one.systems is None or system in one.systems}

    def model(self, run: Run) -> Path:
        """The folder of a run's model."""
        return self.folder / "models" / run.system / str(run.seed)

    def checkpoint(self, run: Run) -> Path:
        """The model that translates."""
        return self.model(run) / f"checkpoint_{self.recipe.translate.checkpoint}.pt"

    def output(self, run: Run, test: str, variant: str = MAIN) -> Path:
        """A run's translations of a test set."""
        return self.folder / "outputs" / str(Table(test, variant)) / f"{run.system}.{run.seed}.out"

    def outputs(self, run: Run) -> dict[Table, Path]:
        """All of a run's translations."""
        return {
            Table(test, variant): self.output(run, test, variant)
            for variant in self.variants(run.system)
            for test in self.tests
        }

    def key(self, run: Run) -> str:
        """What the results of a run depend on, as far as the recipe says it: two recipes may share results."""
        recipe, system = self.recipe, self.recipe.systems[run.system]
        corpus = recipe.corpus.model_dump(
            exclude={"data", "download", "train", "valid", "tests"}, exclude_defaults=True
        )
        parse = recipe.parse.model_dump(exclude={"controls": {"__all__": {"about"}}}, exclude_defaults=True)
        for side in ("source", "target"):
            parse.get(side, {}).pop("models", None)
        parse["controls"] = parse.get("controls", {}).get(system.parse)
        commands = [
            [word for word in command.words if isinstance(word, str)]
            for stage in (self.train(run), *self.translations(run))
            for command in stage.commands
        ]
        return fingerprint(corpus, parse, recipe.pieces.model_dump(exclude_defaults=True), system.parse, commands)

    # ------------------------------------------------------------------------------------------------------- data

    def text(self, split: str, lang: str) -> Path:
        """A split's text, of the training data what the filter leaves."""
        return self.data / ("filtered" if split == "train" else "text") / f"{split}.{lang}"

    def references(self, test: str) -> list[Path]:
        """The reference translations of a test set."""
        first = self.text(test, self.langs[1])
        more = self.recipe.corpus.references.get(test, 1) - 1
        return [first, *(first.with_name(f"{first.name}.{number}") for number in range(1, more + 1))]

    def parse(self, split: str, lang: str, control: str = "parse") -> Path:
        """A split's parse, or control parse cut into pieces."""
        folder = self.data / "parses" if control == "parse" else self.data / "controls" / control
        return folder / f"{split}.{lang}.conllu"

    def sides(self) -> dict[str, ParseSide]:
        """The parsed languages."""
        both = dict(zip(self.langs, (self.recipe.parse.source, self.recipe.parse.target)))
        return {lang: side for lang, side in both.items() if side is not None}

    def bin(self, control: str = "parse") -> Path:
        """The binarized data with the parse, or with a control."""
        return self.data / ("bin" if control == "parse" else f"bin.{control}")

    def _stage(
        self, kind: str, name: str, commands: tuple[Command, ...], outputs: tuple[Path, ...], *rest, **more
    ) -> Stage:
        stamp = self.folder / ".stages" / name.replace(" ", ".").replace("/", ".")
        return Stage(kind, name, commands, outputs, stamp, *rest, **more)

    def stages(self, runs: Iterable[Run]) -> list[Stage]:
        """The stages up to the translations of some runs, in an order in which they can be made."""
        runs = list(runs)
        controls = [
            c for c in self.recipe.parse.controls if any(self.recipe.systems[r.system].parse == c for r in runs)
        ]
        stages = [self.corpus(), self.filter(), *self.parses(), *self.pieces(), self.binarize()]
        stages += [stage for control in controls for stage in (self.control(control), self.binarize(control))]
        for run in runs:
            stages += [self.train(run), *self.translations(run), *self.trees(run)]
        return self._with_commands(stages, runs)

    def corpus(self) -> Stage:
        """The corpus as plain text."""
        corpus, langs = self.recipe.corpus, self.langs
        words: list[Word] = ["fairseq-syntax", "corpus", "-s", langs[0], "-t", langs[1]]
        reads: list[Path] = []
        listed: tuple[Path, ...] = ()
        if corpus.reader is not None:
            assert corpus.data is not None
            folder = located(corpus.data, self.base)
            reader = corpus.reader
            words += ["--reader", str(located(reader, self.base)) if reader.endswith(".py") else reader]
            words += [Free("--data"), Out(folder)]
            words += [Free("--download")] if corpus.download else []
            listed = () if corpus.download else (folder,)
            for key, value in corpus.options.items():
                words += ["--option", f"{key}={_yaml(value)}"]
            for name, splits in corpus.tests.items():
                words += ["--test", f"{name}={splits[0]}"]
        else:
            tests = {f"{name}=": texts for name, texts in corpus.tests.items()}
            for name, texts in {"train": corpus.train, "valid": corpus.valid, **tests}.items():
                test = name.removesuffix("=")
                option = "--test" if name.endswith("=") else f"--{name}"
                places = [str(self._place(text)) for text in texts]
                reads += split_files(places, langs, corpus.references.get(test, 1))
                typed = [str(Out(Path(place))) for place in places]
                typed[0] = f"{test}={typed[0]}" if option == "--test" else typed[0]
                words += [option, *map(Free, typed)]
        for test, number in corpus.references.items():
            words += ["--references", f"{test}={number}"]
        for lang, program in corpus.words.items():
            words += ["--words", f"{lang}={program}"]
        if corpus.subset is not None:
            words += ["--subset", str(corpus.subset.pairs), "--seed", str(corpus.subset.seed)]
        words += ["--first", str(corpus.first)] if corpus.first else []
        output = self.data / "text"
        made = [output / f"{split}.{lang}" for split in self.splits for lang in langs]
        made += [path for test in self.tests for path in self.references(test)[1:]]
        command = Command((*words, Free("--output"), Out(output)))
        return self._stage("corpus", "corpus", (command,), tuple(made), tuple(reads), listed)

    def filter(self) -> Stage:
        """What stays of the training data."""
        one = self.recipe.corpus.filter
        text = [self.data / "text" / f"train.{lang}" for lang in self.langs]
        kept = [self.text("train", lang) for lang in self.langs]
        words: list[Word] = ["fairseq-syntax", "filter", "--input", *map(In, text), "--output", *map(Out, kept)]
        for option, value in (
            ("min-length", one.min_length),
            ("max-length", one.max_length),
            ("max-ratio", one.max_ratio),
        ):
            words += [f"--{option}", str(value)] if value not in (None, 1) else []
        words += ["--characters"] if one.characters else []
        words += ["--languages", *self.langs] if one.languages else []
        outputs = list(kept)
        source = self.recipe.parse.source
        if source is not None and source.files is not None:
            outputs.append(self.parse("train", self.langs[0]))
            words += ["--conllu", In(self._parse_file(source, "train")), "--conllu-output", Out(outputs[-1])]
        return self._stage("filter", "filter", (Command(tuple(words)),), tuple(outputs))

    def _parse_file(self, side: ParseSide, split: str) -> Path:
        assert side.files is not None
        return plain_or_gz(self._place(side.files.replace("{split}", split)))

    def _place(self, text: str) -> Path:
        """A file that the recipe names, as seen from it; {folder} is the result folder, {recipe} the recipe's."""
        filled = text.replace("{folder}", os.path.abspath(self.folder)).replace("{recipe}", str(self.base))
        return located(filled, self.base)

    def _options(self, values: Mapping[str, Any]) -> list[Word]:
        """Options of a fairseq command: ``{"lr": 0.1, "amp": "true"}`` is ``--lr 0.1 --amp``."""
        words: list[Word] = []
        for key, value in values.items():
            if value is None or value is False or value == "false":
                continue
            words.append(f"--{key.replace('_', '-')}")
            if isinstance(value, list):
                words += [str(one) for one in value]
            elif str(value).startswith(("{recipe}/", "{folder}/")):
                words.append(In(self._place(value)))
            elif value is not True and value != "true":
                words.append(str(value))
        return words

    def parses(self) -> list[Stage]:
        """A stage for each split of each side that is parsed."""
        stages = []
        for lang, side in self.sides().items():
            for split in self.splits:
                if split == "train" and side.files is not None and lang == self.langs[0]:
                    continue  # the filter passes it on
                text, parse = self.text(split, lang), self.parse(split, lang)
                words: list[Word] = ["fairseq-syntax", "parse"]
                if side.files is not None:
                    words += ["--parser", "conllu", "--input", In(self._parse_file(side, split)), "--text", In(text)]
                else:
                    words += ["--parser", side.parser, "--lang", lang, "--input", In(text)]
                    words += [Free("--model-dir"), Out(located(side.models, self.base))] if side.models else []
                    words += [
                        Free("--device"),
                        Free(self.recipe.device),
                        Free("--workers"),
                        Free(str(self.recipe.workers)),
                    ]
                    words += ["--pretokenized"] if side.tokenizer == "spaces" else []
                    words += ["--tokenizer", side.tokenizer] if side.tokenizer not in ("auto", "spaces") else []
                    words += ["--split-sentences"] if side.split_sentences else []
                    words += ["--max-words", str(side.max_words)] if side.max_words else []
                    words += ["--distributions"] if side.distributions else []
                    words += ["--min-prob", str(side.min_prob)] if side.distributions and side.min_prob else []
                    words += ["--structured"] if side.structured else []
                words += [Free("--output"), Out(parse), Free("--overwrite")]
                stages.append(self._stage("parse", f"parse {split}.{lang}", (Command(tuple(words)),), (parse,)))
        return stages

    def pieces(self) -> list[Stage]:
        """A stage for each language; a joint model is made by the source's."""
        stages: list[Stage] = []
        pieces, folder = self.recipe.pieces, self.data / "pieces"
        sides = self.sides()
        words_of = {
            (split, lang): self.parse(split, lang) if lang in sides else self.text(split, lang)
            for split in self.splits
            for lang in self.langs
        }
        for lang in self.langs:
            inputs = [words_of[split, lang] for split in self.splits]
            words: list[Word] = ["fairseq-syntax", "segment", "--lang", lang, "--input", *map(In, inputs)]
            if pieces.joint and lang == self.langs[1]:
                words += ["--model", In(folder / f"segmentation.{self.langs[0]}.json")]
            elif lang in pieces.models:
                words += ["--model", In(located(pieces.models[lang], self.base))]
            else:
                words += ["--train", pieces.method]
                if pieces.method != "words":  # the size of these is one of the dictionary
                    words += ["--vocab-size", str(self._pieces_of(lang))]
                if pieces.method == "sentencepiece":
                    words += ["--model-type", pieces.model_type] if pieces.model_type != "unigram" else []
                    coverage = pieces.character_coverage.get(lang)
                    words += ["--character-coverage", str(coverage)] if coverage else []
                words += ["--train-lines", str(pieces.train_lines)] if pieces.train_lines else []
                if pieces.joint:
                    words += ["--train-on", *(In(words_of["train", each]) for each in self.langs)]
            words += [Free("--workers"), Free(str(self.recipe.workers)), Free("--output"), Out(folder)]
            made = [folder / f"segmentation.{lang}.json", *(folder / f"{split}.{lang}" for split in self.splits)]
            made += [folder / f"{split}.{lang}.conllu" for split in self.splits] if lang in sides else []
            stages.append(self._stage("pieces", f"pieces {lang}", (Command(tuple(words)),), tuple(made)))
        return stages

    def _pieces_of(self, lang: str) -> int:
        """The size of a language's vocabulary; of words all, where the recipe does not say."""
        size = self.recipe.pieces.size
        size = size.get(lang) if isinstance(size, dict) else size
        return size or (-1 if self.recipe.pieces.method == "words" else 8000)

    def control(self, name: str) -> Stage:
        """The pieces with a control parse of the source."""
        one, folder, pieces = self.recipe.parse.controls[name], self.data / "controls" / name, self.data / "pieces"
        same = [pieces / f"{split}.{lang}" for split in self.splits for lang in self.langs]
        same += [pieces / f"segmentation.{lang}.json" for lang in self.langs]
        if self.langs[1] in self.sides():
            same += [pieces / f"{split}.{self.langs[1]}.conllu" for split in self.splits]
        copied = Free(f"cp {Out(pieces)}/segmentation.* {Out(folder)}")  # with the model's file, whatever its name
        commands = [Command(("cp", *map(In, same), Out(folder))), Command((Free("bash"), Free("-c"), copied))]
        for split in self.splits:
            source = pieces / f"{split}.{self.langs[0]}.conllu"
            words: list[Word] = ["fairseq-syntax", "control", *one.make, "--seed", str(one.seed)]
            words += ["--wrong-arcs", str(one.wrong_arcs)] if one.wrong_arcs is not None else []
            words += ["--temperature", str(one.temperature)] if one.temperature is not None else []
            words += ["--input", In(source), Free("--output"), Out(self.parse(split, self.langs[0], name))]
            commands.append(Command(tuple(words)))
        made = [self.parse(split, self.langs[0], name) for split in self.splits] + [folder / path.name for path in same]
        return self._stage("control", f"control {name}", tuple(commands), tuple(made))

    def _binarized(self, control: str, number: int, split: str) -> list[Path]:
        """The files of a split in the binarized data; ``number`` is the test's, from 0."""
        folder, pair = self.bin(control), "-".join(self.langs)
        subset = split if split in ("train", "valid") else self.subset(number)
        found = [folder / f"{subset}.{pair}.{lang}.{end}" for lang in self.langs for end in ("bin", "idx")]
        return found + [folder / f"{subset}.{pair}.{lang}.syntax.arrow" for lang in self.sides()]

    def _dictionaries(self, control: str) -> list[Path]:
        folder = self.bin(control)
        return [folder / f"dict.{lang}.txt" for lang in self.langs] + [
            folder / f"labels.{lang}.json" for lang in self.sides()
        ]

    @staticmethod
    def subset(number: int) -> str:
        """fairseq's name of a test set."""
        return f"test{number or ''}"

    def binarize(self, control: str = "parse") -> Stage:
        """The pieces and their syntax for fairseq."""
        folder, langs, pieces = self.bin(control), self.langs, self.recipe.pieces
        origin = self.data / "pieces" if control == "parse" else self.data / "controls" / control
        words: list[Word] = ["fairseq-preprocess", *PLUGIN, "-s", langs[0], "-t", langs[1]]
        words += [Free("--trainpref"), Out(origin / "train"), Free("--validpref"), Out(origin / "valid")]
        words += [Free("--testpref"), Free(",".join(str(Out(origin / test)) for test in self.tests))]
        words += ["--joined-dictionary"] if pieces.joint else []
        words += (
            ["--thresholdsrc", str(pieces.threshold), "--thresholdtgt", str(pieces.threshold)]
            if pieces.threshold
            else []
        )
        if pieces.method == "words":
            words += ["--nwordssrc", str(self._pieces_of(langs[0])), "--nwordstgt", str(self._pieces_of(langs[1]))]
        words += [Free("--workers"), Free(str(self.recipe.workers)), Free("--destdir"), Out(folder)]
        reads = [origin / f"segmentation.{lang}.json" for lang in langs]
        for split in self.splits:
            reads += [origin / f"{split}.{lang}" for lang in langs]
            reads += [origin / f"{split}.{lang}.conllu" for lang in self.sides()]
        made = self._dictionaries(control)
        for number, split in enumerate(["train", "valid"]):
            made += self._binarized(control, number, split)
        for number, test in enumerate(self.tests):
            made += self._binarized(control, number, test)
        name = "binarize" if control == "parse" else f"binarize {control}"
        stale = (f"{folder}/dict.*.txt", f"{folder}/.dict.*.json")
        return self._stage("binarize", name, (Command(tuple(words)),), tuple(made), tuple(reads), stale=stale)

    # ----------------------------------------------------------------------------------------- models, translations

    def _data_of(self, run: Run) -> tuple[Path, str | None]:
        """The folder of a run's binarized data, and the parse that it has where it is the recipe's."""
        system = self.recipe.systems[run.system]
        if system.data is not None:
            # what is filled in is as seen from here, other paths as seen from the recipe
            filled = self.filled(system.data, run)
            return Path(os.path.abspath(filled)) if filled != system.data else located(filled, self.base), None
        return self.bin(system.parse), system.parse

    def _system(self, run: Run) -> System:
        return self.recipe.systems[run.system]

    def train(self, run: Run) -> Stage:
        """A model."""
        system, recipe, folder = self._system(run), self.recipe, self.model(run)
        assert system.arch is not None
        data, parse = self._data_of(run)
        values = {**recipe.size, **system.size, **recipe.train, **system.train, **system.options}
        words: list[Word] = ["fairseq-train", Out(data), *PLUGIN, "-s", self.langs[0], "-t", self.langs[1]]
        words += ["--arch", system.arch, *self._options(values), "--seed", str(run.seed)]
        words += [Free("--cpu")] if recipe.device == "cpu" else []
        if not {"no-epoch-checkpoints", "keep-last-epochs"} & values.keys():
            words.append(Free("--no-epoch-checkpoints"))
        log = folder / "train.log"
        words += [Free("--no-progress-bar"), Free("--log-interval"), Free("100"), Free("--log-file"), Out(log)]
        words += [Free("--save-dir"), Out(folder)]
        reads = self._reads(data, parse, ["train", "valid"])
        made = [folder / f"checkpoint_{name}.pt" for name in dict.fromkeys([recipe.translate.checkpoint, "last"])]
        commands = [Command(tuple(words))]
        stale = (f"{folder}/*.pt", f"{folder}/train.log")
        return self._stage("train", f"train {run}", tuple(commands), tuple(made), reads, stale=stale, run=str(run))

    def _reads(self, data: Path, parse: str | None, splits: Sequence[str]) -> tuple[Path, ...]:
        if parse is None:
            return (data,)
        files = self._dictionaries(parse)
        for split in splits:
            number = self.tests.index(split) if split in self.tests else 0
            files += self._binarized(parse, number, split)
        return tuple(files)

    def translations(self, run: Run) -> list[Stage]:
        """A stage for each test set and variant."""
        recipe, system = self.recipe, self._system(run)
        data, parse = self._data_of(run)
        stages = []
        for variant, one in self.variants(run.system).items():
            values = {**recipe.translate.options, **system.translate, **one.options}
            for number, test in enumerate(self.tests):
                output, checkpoint = self.output(run, test, variant), In(self.checkpoint(run))
                if one.without_parse:
                    beam: list[Word] = ["--beam", str(values.get("beam", 5))]
                    words: list[Word] = ["fairseq-syntax", "translate", checkpoint, Free("--data"), Out(data)]
                    words += [Free("--device"), Free(recipe.device), *beam, "--parser", "none"]
                    words += ["--missing-parse", "neutral", "--input", In(self.text(test, self.langs[0]))]
                    command = Command((*words, Free("--output"), Out(output)))
                else:
                    words = ["fairseq-generate", Out(data), *PLUGIN, "-s", self.langs[0], "-t", self.langs[1]]
                    words += ["--path", checkpoint, "--gen-subset", self.subset(number), *self._options(values)]
                    words += [Free("--cpu")] if recipe.device == "cpu" else []
                    command = Command((*words, Free("--no-progress-bar")), stdout=output)
                name = f"translate {run} {Table(test, variant)}"
                reads = self._reads(data, parse, [test])
                stages.append(self._stage("translate", name, (command,), (output,), reads, run=str(run)))
        return stages

    def tree_scores(self, run: Run, test: str) -> Path:
        """How good a run's predicted trees of a test set are, as JSON."""
        return self.folder / "scores" / "trees" / f"{test}.{run.system}.{run.seed}.json"

    def trees(self, run: Run) -> list[Stage]:
        """The trees that a model's parent head predicts, compared with the parse."""
        if run.system not in self.recipe.score.trees:
            return []
        data, _ = self._data_of(run)
        stages = []
        for test in self.tests:
            parse, score = self.parse(test, self.langs[0]), self.tree_scores(run, test)
            tree = self.folder / "outputs" / test / f"{run.system}.{run.seed}.conllu"
            words: list[Word] = [
                "fairseq-syntax",
                "tree",
                In(self.checkpoint(run)),
                Free("--data"),
                Out(data),
            ]
            words += [Free("--device"), Free(self.recipe.device), "--input", In(parse), "--output", Out(tree)]
            compare = Command(("fairseq-syntax", "eval-tree", "--json", In(parse), Out(tree)), stdout=score)
            commands = (Command(tuple(words)), compare)
            stages.append(self._stage("translate", f"trees {run} {test}", commands, (score,), run=str(run)))
        return stages

    # ------------------------------------------------------------------------------------------------------ scores

    def tables(self) -> list[Table]:
        """What is scored."""
        variants = [MAIN, *self.recipe.translate.variants]
        tables = [Table(test, variant) for variant in variants for test in self.tests]
        return tables + [Table(t.test, t.variant, lines) for lines in self.recipe.score.lines for t in tables]

    @property
    def tokenize(self) -> str:
        """sacrebleu's tokenizer for the target."""
        return self.recipe.score.tokenize or tokenizer_of(self.langs[1])

    def score_file(self, table: Table) -> Path:
        """The scores of a table, as JSON."""
        return self.folder / "scores" / f"{table}.json"

    def score(self, table: Table, finished: Collection[Run]) -> Stage | None:
        """The scores of all runs that are finished; None without any."""
        score = self.recipe.score
        variant = self.recipe.translate.variants.get(table.variant, Variant())
        systems = [name for name in self.recipe.systems if variant.systems is None or name in variant.systems]
        runs = {name: [run for run in self.runs if run.system == name and run in finished] for name in systems}
        runs = {name: of for name, of in runs.items() if of}
        if not runs:
            return None
        baseline = variant.baseline or self.recipe.baseline
        words: list[Word] = ["fairseq-syntax", "score", "--ref", *map(In, self.references(table.test))]
        words.append("--sys")
        reads: list[Path] = []
        for name, of in runs.items():
            files = [self.output(run, table.test, table.variant) for run in of]
            reads += files
            words.append(Free(f"{name}=" + ",".join(str(Out(file)) for file in files)))
        words += ["--metrics", *score.metrics]
        words += ["--tokenize", self.tokenize] if self.tokenize != "13a" else []
        words += ["--lowercase"] if score.lowercase else []
        if baseline in runs:
            words += ["--baseline", baseline, "--resamples", str(score.resamples), "--trials", str(score.trials)]
        else:  # not finished: no test against it, and none against another
            words += ["--resamples", "0", "--trials", "0"]
        for option, pattern in (("--groups", score.groups), ("--lines", score.lines.get(table.lines))):
            if pattern is not None:
                path = self._place(pattern.replace("{test}", table.test))
                words += [option, In(path)]
        if also := [name for name in score.also_against if name in runs and baseline in runs]:
            words += ["--also-against", *also]
        words += ["--beer", score.beer] if score.beer else []
        if score.by_length and not table.lines:
            words += ["--by-length", str(score.by_length)]
            words += ["--src", In(self.text(table.test, self.langs[0]))] if score.by_length_of == "source" else []
        if baseline in runs and not table.lines and self.langs[0] in self.sides():
            by = list(score.by)
            shares = score.shares
            if shares is not None:
                words += ["--controls", *shares.controls]
                words += ["--controls-by", *shares.by] if shares.by else []
            words += ["--by", *by] if by else []
            if by or (shares and shares.by):
                words += ["--conllu", In(self.parse(table.test, self.langs[0]))]
        words += [Free("--json"), Out(self.score_file(table))]
        about = tuple(f"{name}:{len(of)}" for name, of in runs.items())
        made = (self.score_file(table),)
        return self._stage("score", f"score {table}", (Command(tuple(words)),), made, tuple(reads), about=about)

    # ---------------------------------------------------------------------------------------------------- commands

    def filled(self, text: str, run: Run | None = None) -> str:
        """A text of a command with its places filled in."""
        places = {"{folder}": str(Out(self.folder)), "{recipe}": str(Out(self.base))}
        if run is not None:
            places |= {"{run}": str(Out(self.model(run))), "{system}": run.system, "{seed}": str(run.seed)}
        for place, value in places.items():
            text = text.replace(place, value)
        return text

    def _with_commands(self, stages: list[Stage], runs: Sequence[Run]) -> list[Stage]:
        """The stages with the recipe's own commands, each before the stages that it says."""
        for called, one in self.recipe.commands.items():
            own: list[Stage] = []
            for run in runs if one.each == "run" else [None]:
                if run is not None and one.systems is not None and run.system not in one.systems:
                    continue
                command = Command(("bash", "-euo", "pipefail", "-c", Free(self.filled(one.run, run))))
                paths = [
                    tuple(Path(os.path.abspath(self.filled(text, run))) for text in texts)
                    for texts in (one.outputs, one.inputs)
                ]
                name = called if run is None else f"{called} {run}"
                of = None if run is None else str(run)
                what = (one.run, of or "")
                # what comes before it in the order of kinds is there when it begins
                after = tuple(
                    s.name
                    for s in stages
                    if KINDS.index(s.kind) < KINDS.index(one.before) and (of is None or s.run in (None, of))
                )
                own.append(self._stage(one.before, name, (command,), *paths, run=of, about=what, after=after))
            for stage in own:
                later = [s for s in stages if s.kind == one.before and (stage.run is None or s.run == stage.run)]
                place = stages.index(later[0]) if later else len(stages)
                names = {s.name for s in later}
                stages = [replace(s, after=(*s.after, stage.name)) if s.name in names else s for s in stages]
                stages.insert(place, stage)
        return stages


def _yaml(value: Any) -> str:
    """An option's value as the command line takes it."""
    return "[" + ", ".join(map(str, value)) + "]" if isinstance(value, list) else str(value)
