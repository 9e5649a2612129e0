"""The keys of a recipe as pydantic models; the fields' descriptions appear in the reference.

Scalars are read as strings (``no`` is a language, ``1.10`` a name) and converted by the types of fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from fairseq_syntax.corpus.parsing.parser import ParserOptions
from fairseq_syntax.errors import SyntaxDataError, meant
from fairseq_syntax.lab import controls
from fairseq_syntax.lab.recipes.stages import Kind

NAME = r"^\w[\w.+-]*$"  # names are used as file names

Name = Annotated[str, Field(pattern=NAME)]
Scalar = str | int | float | bool
# Options of fairseq's commands: `dropout: 0.1` is `--dropout 0.1`, `amp: true` is `--amp`; `false` and `null` omit it.
# Files are `{recipe}/NAME`, next to the recipe, or `{folder}/NAME`, in the result folder.
Options = dict[str, Scalar | list[Scalar] | None]

Metric = Literal["bleu", "bleu1", "bleu_char", "chrf", "ter", "ribes", "distinct1", "exact"]


def _key(default: Any, about: str, **limits: Any) -> Any:
    """A key with its default (``...`` if it is needed), its description, and pydantic's limits of its value."""
    return Field(default, description=about, **limits)


def _error(message: str, *place: str) -> PydanticCustomError:
    """An error for a key below the validated one, for checks that involve several keys."""
    return PydanticCustomError("recipe", "{message}", {"message": message, "place": place})


def _check_names(names: Iterable[str], known: Collection[str], what: str, *place: str) -> None:
    for name in names:
        if name not in known:
            hint = meant(name, known)
            raise _error(f"no {what} is called {name}" + (f": {hint}" if hint else ""), *place)


def _one_as_list(value: Any) -> Any:
    return [value] if isinstance(value, (str, int)) else value


Checkpoint = Annotated[str, Field(pattern=r"^(best|last|ema|average-(best-)?[1-9][0-9]*)$")]
Texts = Annotated[list[str], BeforeValidator(_one_as_list)]
Seeds = Annotated[list[int], BeforeValidator(_one_as_list), Field(min_length=1)]


class RecipeSection(BaseModel):
    """A mapping that accepts only known keys."""

    model_config = ConfigDict(extra="forbid", validate_default=True)

    # pydantic rejects unknown keys too, but does not suggest the intended one.
    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, Mapping) and cls.model_config["extra"] == "forbid" else ():
            _check_names([key], cls.model_fields, "key", key)
        return values


class Filter(RecipeSection):
    """Filters for training pairs. Pairs with an empty side are always removed."""

    min_length: int = _key(1, "minimum number of tokens per side", ge=1)
    max_length: int | None = _key(None, "maximum number of tokens per side", ge=1)
    max_ratio: float | None = _key(None, "maximum ratio of the longer side to the shorter side", ge=1)
    characters: bool = _key(False, "count characters instead of tokens, for scripts without spaces")
    languages: bool = _key(False, "remove pairs in other languages (pip install '.[filter]')")


class Subset(RecipeSection):
    """A random subset of the training data, drawn before filtering."""

    pairs: int = _key(..., "number of pairs", ge=1)
    seed: int = _key(1, "random seed")


class Corpus(RecipeSection):
    """The parallel text.

    Each split is a prefix (``corpus/train`` for corpus/train.en and corpus/train.de), a list of the two files, a
    ``.tsv`` file with the source before the tab, or a test set in WMT's XML; all may be compressed (``.gz``, ``.bz2``,
    ``.xz``, ``.zst``). A reader provides all splits.
    """

    source: Name = _key(..., "source language, as in the file names")
    target: Name = _key(..., "target language")
    train: Texts = _key([], "training data: a prefix, two files, or a .tsv file")
    valid: Texts = _key([], "validation data, likewise")
    tests: dict[Name, Texts] = _key(
        {}, "test sets by name, likewise; with a reader, its split names, such as `t16: test_2016_flickr`"
    )
    references: dict[Name, int] = _key({}, "number of references of a test set, in PREFIX.de, PREFIX.de.1, …")
    reader: str | None = _key(
        None, "reader for another format: its name in fairseq_syntax/corpus/readers, or a Python file"
    )
    data: str | None = _key(None, "folder with the reader's files; overridden by --data")
    options: dict[str, Any] = _key({}, "options of the reader, such as years or test set names")
    download: bool = _key(False, "download missing files into `data`, if the reader supports it")
    words: dict[Name, str] = _key({}, "word segmenter for a language, such as `mecab -Owakati`")
    subset: Subset | None = _key(None, "use a random subset of the training data")
    first: int | None = _key(None, "use only the first N pairs of valid and the test sets", ge=1)
    filter: Filter = _key(Filter(), "filters for the training data")

    @model_validator(mode="after")
    def _one_way(self) -> Corpus:
        has_reader, has_files = self.reader is not None, bool(self.train or self.valid)
        problems = {
            "source and target are the same language: files could not be told apart": self.source == self.target,
            "give train and valid, or a reader and its data": not has_reader and not (self.train and self.valid),
            "a reader gives train and valid itself: name one or the other": has_reader and has_files,
            "a reader needs data, the folder with its files": has_reader and self.data is None,
            "give tests, at least one": not self.tests,
            "a test set is one split of the reader": has_reader and any(len(one) != 1 for one in self.tests.values()),
            "no test set can be called train or valid": self.tests.keys() & {"train", "valid"},
        }
        for problem, is_there in problems.items():
            if is_there:
                raise ValueError(problem)
        for name in self.references:
            _check_names([name], self.tests, "test set", "references", name)
        for name in self.words:
            _check_names([name], (self.source, self.target), "language", "words", name)
        return self


class ParseSide(RecipeSection):
    """How one side is parsed."""

    parser: str = _key("stanza", "stanza, supar, spacy, udpipe, or your own module")
    models: str | None = _key(
        None, "file or folder of the parser's models, or spaCy's name of them (default: the parser's standard location)"
    )
    files: str | None = _key(
        None, "existing parses; {split} in the name stands for train, valid and the tests; not with a subset"
    )
    distributions: bool = _key(False, "keep the parser's probabilities (for LDD)")
    min_prob: float | None = _key(None, "minimum probability of a stored arc (default: 0.01)", gt=0, lt=1)
    structured: bool = _key(False, "use arc marginals over trees instead of a softmax for each word")
    tokenizer: Literal["auto", "stanza", "spacy", "udpipe", "basic", "spaces"] = _key(
        "auto", "auto: the parser's own if it has one, otherwise basic; spaces: the text is already tokenized"
    )
    split_sentences: bool = _key(False, "split lines that contain several sentences")
    max_words: int | None = _key(None, "maximum sentence length; longer sentences are parsed in parts", ge=1)

    @model_validator(mode="after")
    def _has_distributions(self) -> ParseSide:
        try:
            ParserOptions(parser=self.parser, distributions=self.distributions)
        except SyntaxDataError as error:  # which the stage would raise too, after filtering
            raise ValueError(f"distributions: {error.message}") from error
        return self


class ControlSection(RecipeSection):
    """A control parse, with the same form but less or no syntax: `fairseq-syntax control`."""

    make: Texts = _key(..., "linear, right, flat, random, …; several are applied in order")
    seed: int = _key(1, "random seed")
    wrong_arcs: float | None = _key(None, "for damaged: the share of arcs to replace", gt=0, le=1)
    about: str = _key("", "description for the report")

    @model_validator(mode="after")
    def _is_one(self) -> ControlSection:
        try:
            controls.Control(tuple(self.make), self.seed, wrong_arcs=self.wrong_arcs)
        except SyntaxDataError as error:  # which the command would raise too, after hours of parsing
            raise ValueError(f"{error.option or 'make'}: {error.message}") from error
        return self


def _controls(value: Any) -> Any:
    """``{linear: linear}`` and ``{linear: [linear]}`` are short for ``{linear: {make: [linear]}}``."""
    if not isinstance(value, Mapping):
        return value
    return {name: {"make": one} if isinstance(one, (str, list)) else one for name, one in value.items()}


class ParseSection(RecipeSection):
    """Which sides are parsed, and how."""

    source: ParseSide | None = _key(None, "the source side; omit it to leave it unparsed")
    target: ParseSide | None = _key(None, "the target side, for LaSyn's tags and DBSA's decoder")
    controls: Annotated[dict[Name, ControlSection], BeforeValidator(_controls)] = _key(
        {}, "control parses by name, for systems with `parse: NAME`"
    )


class Pieces(RecipeSection):
    """The vocabulary: how words are split into pieces."""

    method: Literal["sentencepiece", "subword_nmt", "words"] = _key(
        "sentencepiece", "words: whole words, with <unk> for rare words"
    )
    size: int | dict[Name, int] | None = _key(
        None, "vocabulary size, for both languages or by language (default: 8000 pieces, or all words)"
    )
    model_type: Literal["unigram", "bpe"] = _key("unigram", "model type of sentencepiece")
    character_coverage: dict[Name, float] = _key({}, "character coverage of sentencepiece, by language")
    models: dict[Name, str] = _key({}, "existing segmentation.LANG.json by language, instead of training a model")
    dictionaries: dict[Name, str] = _key({}, "existing dict.LANG.txt by language, those of a model to start from")
    joint: bool = _key(False, "use one model and one dictionary for both languages")
    threshold: int = _key(0, "replace words or pieces with fewer occurrences in training by <unk>", ge=0)


class SystemSection(RecipeSection):
    """A model: one row of the table. Its keys override `size`, `train` and `translate` of the recipe."""

    extends: str | None = _key(None, "another system, whose keys it inherits, except `about`")
    arch: str | None = _key(None, "--arch")
    options: Options = _key({}, "options of the system, such as pascal-heads")
    size: Options = _key({}, "additional `size` options")
    train: Options = _key({}, "additional `train` options")
    translate: Options = _key({}, "additional `translate` options")
    user_dir: Texts | None = _key(None, "folders of your plugins, instead of the recipe's; [] for none")
    parse: str = _key("parse", "parse to use: `parse`, or the name of a control")
    data: str | None = _key(None, "binarized data made by a command of the recipe; {run} is the run's folder")
    checkpoint: str | None = _key(None, "existing checkpoint to use as it is, instead of training")
    about: str = _key("", "description for the report")


class Variant(RecipeSection):
    """Another translation of the tests with the same models, in a separate table."""

    systems: list[str] | None = _key(None, "systems to include (default: all)")
    baseline: str | None = _key(None, "baseline system (default: that of `score`)")
    without_parse: bool = _key(
        False, "translate the text without its parse; of the options, beam, lenpen and max-len-b apply"
    )
    options: Options = _key({}, "additional options of fairseq-generate")


class Translate(RecipeSection):
    """How the tests are translated. Any other key is an option of fairseq-generate, such as `beam: 5`."""

    model_config = ConfigDict(extra="allow")
    # With this annotation, pydantic validates the values of all other keys.
    __pydantic_extra__: dict[str, Scalar | list[Scalar] | None]

    checkpoint: Checkpoint = _key(
        "best",
        "best on validation data, last, average-N of the last N checkpoints, average-best-N of the best N, or ema, the "
        "moving average of training",
    )
    variants: dict[Name, Variant] = _key({}, "further translations, each in a separate table")

    @property
    def options(self) -> dict[str, Any]:
        """The options of fairseq-generate."""
        return dict(self.__pydantic_extra__ or {})


class Shares(RecipeSection):
    """Gains with control parses: SYSTEM is compared with SYSTEM.CONTROL, trained on a control parse."""

    controls: list[str] = _key(..., "names of the controls", min_length=1)
    by: list[str] = _key([], "also by intervals of these properties of the parse")


class Value(RecipeSection):
    """A number for each run, from a JSON file written by a command."""

    file: str = _key(..., "the JSON file; {run} is the run's folder")
    key: str = _key(..., "path to the number in the file: a.b.0")
    systems: list[str] | None = _key(None, "systems to include (default: all)")


class ScoreSection(RecipeSection):
    """What is measured and compared."""

    metrics: list[Metric] = _key(["bleu", "chrf"], "the main table shows the first", min_length=1)
    tokenize: str | None = _key(
        None,
        "sacrebleu's tokenizer (default: zh for Chinese, ja-mecab, ko-mecab, char for Thai and other "
        "scripts without spaces, otherwise 13a)",
    )
    lowercase: bool = _key(False, "compare lowercased text")
    baseline: str | None = _key(None, "baseline system (default: the first)")
    resamples: int = _key(1000, "resamples of the bootstrap over sentences and seeds; 0: no test", ge=0)
    trials: int = _key(10000, "trials of the randomization test; 0: no test", ge=0)
    also_against: list[str] = _key([], "additional baselines")
    beer: str | None = _key(None, "the BEER program, if you have it")
    mean: bool = _key(False, "also report the mean over the tests in the first metric")
    box: bool = _key(False, "also draw a box plot of sentence scores in the first metric")
    by_length: int | None = _key(None, "also report BLEU and gains by length, in steps of N tokens", ge=1)
    by_length_of: Literal["source", "target"] = _key("source", "which side's length")
    by: list[str] = _key([], "also score by properties of the parse: depth, label=acl, length@10,20,30, …")
    groups: str | None = _key(
        None,
        "file with the document of each sentence, one per line; the bootstrap then resamples documents; "
        "{test} stands for the test set",
    )
    lines: dict[Name, str] = _key(
        {}, "also score subsets: name and file, whose non-empty lines select; {test} stands for the test set"
    )
    shares: Shares | None = _key(None, "gains with control parses")
    trees: list[str] = _key([], "systems whose predicted trees are compared with the parse (UAS)")
    perplexity: bool = _key(False, "report the final validation perplexity")
    values: dict[str, Value] = _key({}, "further numbers of each run, from JSON files of commands")


class Published(RecipeSection):
    """Published figures, shown next to ours."""

    source: str = _key(..., "paper and table")
    test: Name | None = _key(None, "test set (default: all)")
    lines: Name | None = _key(None, "subset of lines: a name of `score.lines`")
    variant: Name | None = _key(None, "translation variant: a name of `translate.variants`")
    metric: str = _key("BLEU", "name of the metric in the paper")
    figures: dict[str, float] = _key(..., "figures by system; systems that only the paper has are shown too")
    note: str = _key("", "how the measurement differs")


class CommandSection(RecipeSection):
    """Your own stage. {folder} stands for the result folder, {run} for the run's, and {recipe} for the recipe's."""

    reason: str = _key(..., "why the recipe needs a command", min_length=1)
    run: str = _key(
        ...,
        "bash command, run in the current folder; may also contain {source}, {target}, {seed}, {system}",
        min_length=1,
    )
    each: Literal["once", "run"] = _key("once", "run once, or for each system and seed")
    before: Kind = _key("report", "stage that needs the outputs")
    systems: list[str] | None = _key(None, "with `each: run`: systems to run it for (default: all)")
    inputs: list[str] = _key([], "input files and folders; the command is rerun when they change")
    outputs: list[str] = _key(..., "output files", min_length=1)

    def is_of(self, system: str) -> bool:
        """Whether the command runs for each seed of a system."""
        return self.each == "run" and (self.systems is None or system in self.systems)


class Recipe(RecipeSection):
    """From two text files to a table of scores."""

    extends: str | None = _key(None, "another recipe, whose keys it inherits; a path from the folder of this one")
    name: Name | None = _key(None, "name of the report (default: the file name)")
    about: str = _key("", "purpose; shown at the top of the report")
    folder: str | None = _key(None, "result folder (default: runs/NAME next to the recipe)")
    page: str | None = _key(None, "additional Markdown file for the report; not written with --set kept=null")
    kept: str | None = _key(
        None,
        "compressed file of results that are kept with the recipe; ignored if made with other settings or text files",
    )
    user_dir: Texts = _key([], "folders of your plugins (`--user-dir`); a change of their code trains again")
    corpus: Corpus
    parse: ParseSection = _key(ParseSection(), "parsing; if omitted, the text is not parsed")
    pieces: Pieces = Field(Pieces())
    size: Options = _key({}, "model sizes: options of fairseq-train")
    train: Options = _key({}, "training: options of fairseq-train")
    systems: dict[Name, SystemSection] = _key(
        {}, "models by name, in the order of the table; without any, the recipe ends with the binarized data"
    )
    seeds: Seeds = _key([1], "training seeds of each system")
    translate: Translate = Field(Translate())
    score: ScoreSection = Field(ScoreSection())
    published: list[Published] = Field([])
    commands: dict[Name, CommandSection] = _key({}, "your own stages, by name")
    device: Literal["cpu", "cuda"] = _key("cpu", "for parsing, training and translating")
    threads: int = _key(1, "threads of each process", ge=1)
    workers: int = _key(1, "processes for parsing, segmenting and binarizing", ge=1)
    env: dict[str, str] = _key({}, "environment variables of all commands; a change reruns everything")

    @model_validator(mode="after")
    def _names(self) -> Recipe:
        """Check that names refer to existing parts of the recipe."""
        parses = ["parse", *self.parse.controls]
        for name, system in self.systems.items():
            if system.arch is None:
                raise _error("has no arch, and extends no system that has one", "systems", name)
            _check_names([system.parse], parses, "parse", "systems", name, "parse")
        if "parse" in self.parse.controls:
            raise _error("is the name of the parse itself", "parse", "controls", "parse")
        if self.parse.controls and self.parse.source is None:
            raise _error("a control is made from the source's parse: give parse.source", "parse", "controls")
        score = self.score
        of_parse = {"by": score.by, "trees": score.trees, "shares": score.shares}
        for key, value in of_parse.items() if self.parse.source is None else ():
            if value:
                raise _error("uses the source's parse: give parse.source, or leave it out", "score", key)
        for side in (self.parse.source, self.parse.target):
            if side is not None and side.files and self.corpus.subset is not None:
                raise _error("a subset has no parse yet: leave files out", "parse")
        systems_named: dict[tuple[str, ...], Sequence[str | None]] = {
            ("score", "trees"): score.trees,
            ("score", "also_against"): score.also_against,
            ("score", "baseline"): [score.baseline],
        }
        for name, variant in self.translate.variants.items():
            systems_named["translate", "variants", name] = [*(variant.systems or ()), variant.baseline]
        systems_named |= {("commands", name): one.systems or () for name, one in self.commands.items()}
        systems_named |= {("score", "values", name): one.systems or () for name, one in score.values.items()}
        for place, names in systems_named.items():
            _check_names(filter(None, names), self.systems, "system", *place)
        langs = (self.corpus.source, self.corpus.target)
        of_language = {
            "models": self.pieces.models,
            "dictionaries": self.pieces.dictionaries,
            "character_coverage": self.pieces.character_coverage,
        }
        for key, values in {**of_language, "size": self.pieces.size}.items():
            for lang in values if isinstance(values, dict) else ():
                _check_names([lang], langs, "language", "pieces", key, lang)
        for number, one in enumerate(self.published):
            _check_names(filter(None, [one.variant]), self.translate.variants, "variant", "published", str(number))
        self._check_set_here()
        for control in score.shares.controls if score.shares else ():
            if not any(name.endswith(f".{control}") for name in self.systems):
                raise _error(f"no system is called SYSTEM.{control}, to compare SYSTEM with", "score", "shares")
        return self

    def _check_set_here(self) -> None:
        """Check that no option of training is one that the recipe sets itself, which would come later."""
        sections: dict[tuple[str, ...], Options] = {("size",): self.size, ("train",): self.train}
        for name, system in self.systems.items():
            of_system = {"size": system.size, "train": system.train, "options": system.options}
            sections |= {("systems", name, key): values for key, values in of_system.items()}
        for place, values in sections.items():
            for key, instead in {"seed": "seeds", "arch": "arch of the system", "save-dir": "folder"}.items():
                if key in values:
                    raise _error(f"is set by the recipe: write {instead}", *place, key)

    @property
    def baseline(self) -> str:
        """The system with which the others are compared; empty if there are no systems."""
        return self.score.baseline or next(iter(self.systems), "")
