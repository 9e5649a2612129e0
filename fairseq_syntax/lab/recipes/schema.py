"""The keys of a recipe as pydantic models; the fields' descriptions appear in the reference.

Scalars are read as strings (``no`` is a language, ``1.10`` a name) and converted by the types of fields.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from fairseq_syntax.errors import meant
from fairseq_syntax.lab.recipes.stages import Kind

NAME = r"^\w[\w.+-]*$"  # names are used as file names

Name = Annotated[str, Field(pattern=NAME)]
Scalar = str | int | float | bool
# Options of fairseq's commands: `dropout: 0.1` is `--dropout 0.1`, `amp: true` is `--amp`; `false` and `null` omit it.
# Files are `{recipe}/NAME`, next to the recipe, or `{folder}/NAME`, in the result folder.
Options = dict[str, Scalar | list[Scalar] | None]

Metric = Literal["bleu", "bleu1", "bleu_char", "chrf", "ter", "ribes", "distinct1", "exact"]


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


Texts = Annotated[list[str], BeforeValidator(_one_as_list)]
Seeds = Annotated[list[int], BeforeValidator(_one_as_list), Field(min_length=1)]


class Section(BaseModel):
    """A mapping that accepts only known keys."""

    model_config = ConfigDict(extra="forbid", validate_default=True)

    # pydantic rejects unknown keys too, but does not suggest the intended one.
    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, Mapping) and cls.model_config["extra"] == "forbid" else ():
            _check_names([key], cls.model_fields, "key", key)
        return values


class Filter(Section):
    """Filters for training pairs. Pairs with an empty side are always removed."""

    min_length: int = Field(1, ge=1, description="minimum number of tokens per side")
    max_length: int | None = Field(None, ge=1, description="maximum number of tokens per side")
    max_ratio: float | None = Field(None, ge=1, description="maximum ratio of the longer side to the shorter side")
    characters: bool = Field(False, description="count characters instead of tokens, for scripts without spaces")
    languages: bool = Field(False, description="remove pairs in other languages (pip install '.[filter]')")


class Subset(Section):
    """A random subset of the training data, drawn before filtering."""

    pairs: int = Field(ge=1, description="number of pairs")
    seed: int = Field(1, description="random seed")


class Corpus(Section):
    """The parallel text.

    Each split is a prefix (``corpus/train`` for corpus/train.en and corpus/train.de), a list of the two files, or a
    ``.tsv`` file with the source before the tab; all may be ``.gz``. A reader provides all splits.
    """

    source: Name = Field(description="source language, as in the file names")
    target: Name = Field(description="target language")
    train: Texts = Field([], description="training data: a prefix, two files, or a .tsv file")
    valid: Texts = Field([], description="validation data, likewise")
    tests: dict[Name, Texts] = Field(
        {},
        description="test sets by name, likewise; with a reader, its split names, such as `t16: test_2016_flickr`",
    )
    references: dict[Name, int] = Field(
        {}, description="number of references of a test set, in PREFIX.de, PREFIX.de.1, …"
    )
    reader: str | None = Field(
        None,
        description="reader for another format: its name in fairseq_syntax/corpus/readers, or a Python file",
    )
    data: str | None = Field(None, description="folder with the reader's files; overridden by --data")
    options: dict[str, Any] = Field({}, description="options of the reader, such as years or test set names")
    download: bool = Field(False, description="download missing files into `data`, if the reader supports it")
    words: dict[Name, str] = Field({}, description="word segmenter for a language, such as `mecab -Owakati`")
    subset: Subset | None = Field(None, description="use a random subset of the training data")
    first: int | None = Field(None, ge=1, description="use only the first N pairs of valid and the test sets")
    filter: Filter = Field(Filter(), description="filters for the training data")

    @model_validator(mode="after")
    def _one_way(self) -> Corpus:
        if self.source == self.target:
            raise ValueError("source and target are the same language: files could not be told apart")
        if self.reader is None and not (self.train and self.valid):
            raise ValueError("give train and valid, or a reader and its data")
        if self.reader is not None and (self.train or self.valid):
            raise ValueError("a reader gives train and valid itself: name one or the other")
        if not self.tests:
            raise ValueError("give tests, at least one")
        if self.reader is not None and self.data is None:
            raise ValueError("a reader needs data, the folder with its files")
        if self.tests.keys() & {"train", "valid"}:
            raise ValueError("no test set can be called train or valid")
        for name in self.references:
            _check_names([name], self.tests, "test set", "references", name)
        for name in self.words:
            _check_names([name], (self.source, self.target), "language", "words", name)
        return self


class ParseSide(Section):
    """How one side is parsed."""

    parser: str = Field("stanza", description="stanza, supar, or your own module")
    models: str | None = Field(
        None, description="folder with the parser's models (default: the parser's standard location)"
    )
    files: str | None = Field(
        None,
        description="existing parses; {split} in the name stands for train, valid and the tests; not with a subset",
    )
    distributions: bool = Field(False, description="keep the parser's probabilities (for LDD)")
    min_prob: float | None = Field(None, gt=0, lt=1, description="minimum probability of a stored arc (default: 0.01)")
    structured: bool = Field(False, description="use arc marginals over trees instead of a softmax for each word")
    tokenizer: Literal["auto", "stanza", "spacy", "basic", "spaces"] = Field(
        "auto",
        description="auto: the parser's own if it has one, otherwise basic; spaces: the text is already tokenized",
    )
    split_sentences: bool = Field(False, description="split lines that contain several sentences")
    max_words: int | None = Field(
        None, ge=1, description="maximum sentence length; longer sentences are parsed in parts"
    )


class Control(Section):
    """A control parse, with the same form but less or no syntax: `fairseq-syntax control`."""

    make: Texts = Field(description="linear, right, flat, random, …; several are applied in order")
    seed: int = Field(1, description="random seed")
    wrong_arcs: float | None = Field(None, ge=0, le=1, description="for damaged: the share of arcs to replace")
    about: str = Field("", description="description for the report")


def _controls(value: Any) -> Any:
    """``{linear: linear}`` and ``{linear: [linear]}`` are short for ``{linear: {make: [linear]}}``."""
    if not isinstance(value, Mapping):
        return value
    return {name: {"make": one} if isinstance(one, (str, list)) else one for name, one in value.items()}


class Parse(Section):
    """Which sides are parsed, and how."""

    source: ParseSide | None = Field(None, description="the source side; omit it to leave it unparsed")
    target: ParseSide | None = Field(None, description="the target side, for LaSyn's tags and DBSA's decoder")
    controls: Annotated[dict[Name, Control], BeforeValidator(_controls)] = Field(
        {}, description="control parses by name, for systems with `parse: NAME`"
    )


class Pieces(Section):
    """The vocabulary: how words are split into pieces."""

    method: Literal["sentencepiece", "subword_nmt", "words"] = Field(
        "sentencepiece", description="words: whole words, with <unk> for rare words"
    )
    size: int | dict[Name, int] | None = Field(
        None, description="vocabulary size, for both languages or by language (default: 8000 pieces, or all words)"
    )
    model_type: Literal["unigram", "bpe"] = Field("unigram", description="model type of sentencepiece")
    character_coverage: dict[Name, float] = Field({}, description="character coverage of sentencepiece, by language")
    models: dict[Name, str] = Field(
        {}, description="existing segmentation.LANG.json by language, instead of training a model"
    )
    joint: bool = Field(False, description="use one model and one dictionary for both languages")
    threshold: int = Field(0, ge=0, description="replace words or pieces with fewer occurrences in training by <unk>")


class System(Section):
    """A model: one row of the table. Its keys override `size`, `train` and `translate` of the recipe."""

    extends: str | None = Field(None, description="another system, whose keys it inherits, except `about`")
    arch: str | None = Field(None, description="--arch")
    options: Options = Field({}, description="options of the system, such as pascal-heads")
    size: Options = Field({}, description="additional `size` options")
    train: Options = Field({}, description="additional `train` options")
    translate: Options = Field({}, description="additional `translate` options")
    parse: str = Field("parse", description="parse to use: `parse`, or the name of a control")
    data: str | None = Field(
        None, description="binarized data made by a command of the recipe; {run} is the run's folder"
    )
    about: str = Field("", description="description for the report")


class Variant(Section):
    """Another translation of the tests with the same models, in a separate table."""

    systems: list[str] | None = Field(None, description="systems to include (default: all)")
    baseline: str | None = Field(None, description="baseline system (default: that of `score`)")
    without_parse: bool = Field(False, description="translate the text without its parse")
    options: Options = Field({}, description="additional options of fairseq-generate")


class Translate(Section):
    """How the tests are translated. Any other key is an option of fairseq-generate, such as `beam: 5`."""

    model_config = ConfigDict(extra="allow")
    # With this annotation, pydantic validates the values of all other keys.
    __pydantic_extra__: dict[str, Scalar | list[Scalar] | None]

    checkpoint: Literal["best", "last"] = Field("best", description="best on validation data, or last")
    variants: dict[Name, Variant] = Field({}, description="further translations, each in a separate table")

    @property
    def options(self) -> dict[str, Any]:
        """The options of fairseq-generate."""
        return dict(self.__pydantic_extra__ or {})


class Shares(Section):
    """How much of each gain is due to syntax: SYSTEM is compared with SYSTEM.CONTROL, trained on a control parse."""

    controls: list[str] = Field(min_length=1, description="names of the controls")
    by: list[str] = Field([], description="also by intervals of these properties of the parse")


class Value(Section):
    """A number for each run, from a JSON file written by a command."""

    file: str = Field(description="the JSON file; {run} is the run's folder")
    key: str = Field(description="path to the number in the file: a.b.0")
    systems: list[str] | None = Field(None, description="systems to include (default: all)")


class Score(Section):
    """What is measured and compared."""

    metrics: list[Metric] = Field(["bleu", "chrf"], min_length=1, description="the main table shows the first")
    tokenize: str | None = Field(
        None,
        description="sacrebleu's tokenizer (default: zh for Chinese, ja-mecab, ko-mecab, char for Thai and other "
        "scripts without spaces, otherwise 13a)",
    )
    lowercase: bool = Field(False, description="compare lowercased text")
    baseline: str | None = Field(None, description="baseline system (default: the first)")
    resamples: int = Field(1000, ge=0, description="resamples of the bootstrap over sentences and seeds; 0: no test")
    trials: int = Field(10000, ge=0, description="trials of the randomization test; 0: no test")
    also_against: list[str] = Field([], description="additional baselines")
    beer: str | None = Field(None, description="the BEER program, if you have it")
    mean: bool = Field(False, description="also report the mean over the tests in the first metric")
    box: bool = Field(False, description="also draw a box plot of sentence scores in the first metric")
    by_length: int | None = Field(None, ge=1, description="also report BLEU and gains by length, in steps of N tokens")
    by_length_of: Literal["source", "target"] = Field("source", description="which side's length")
    by: list[str] = Field([], description="also score by properties of the parse: depth, label=acl, length@10,20,30, …")
    groups: str | None = Field(
        None,
        description="file with the document of each sentence, one per line; the bootstrap then resamples documents; "
        "{test} stands for the test set",
    )
    lines: dict[Name, str] = Field(
        {},
        description="also score subsets: name and file, whose non-empty lines select; {test} stands for the test set",
    )
    shares: Shares | None = Field(None, description="how much of each gain is due to syntax")
    trees: list[str] = Field([], description="systems whose predicted trees are compared with the parse (UAS)")
    perplexity: bool = Field(False, description="report the final validation perplexity")
    values: dict[str, Value] = Field({}, description="further numbers of each run, from JSON files of commands")


class Published(Section):
    """Published figures, shown next to ours."""

    source: str = Field(description="paper and table")
    test: Name | None = Field(None, description="test set (default: all)")
    lines: Name | None = Field(None, description="subset of lines: a name of `score.lines`")
    metric: str = Field("BLEU", description="name of the metric in the paper")
    figures: dict[str, float] = Field(description="figures by system; systems that only the paper has are shown too")
    note: str = Field("", description="how the measurement differs")


class Command(Section):
    """Your own stage. {folder} stands for the result folder, {run} for the run's, and {recipe} for the recipe's."""

    reason: str = Field(min_length=1, description="why the recipe needs a command")
    run: str = Field(
        min_length=1, description="bash command, run in the current folder; may also contain {seed} and {system}"
    )
    each: Literal["once", "run"] = Field("once", description="run once, or for each system and seed")
    before: Kind = Field("report", description="stage that needs the outputs")
    systems: list[str] | None = Field(None, description="with `each: run`: systems to run it for (default: all)")
    inputs: list[str] = Field([], description="input files and folders; the command is rerun when they change")
    outputs: list[str] = Field(min_length=1, description="output files")

    def is_of(self, system: str) -> bool:
        """Whether the command runs for each seed of a system."""
        return self.each == "run" and (self.systems is None or system in self.systems)


class Recipe(Section):
    """From two text files to a table of scores."""

    extends: str | None = Field(None, description="another recipe in the same folder, whose keys it inherits")
    name: Name | None = Field(None, description="name of the report (default: the file name)")
    about: str = Field("", description="purpose; shown at the top of the report")
    folder: str | None = Field(None, description="result folder (default: runs/NAME next to the recipe)")
    page: str | None = Field(None, description="additional Markdown file for the report")
    kept: str | None = Field(None, description="compressed file of results that are kept with the recipe")
    corpus: Corpus
    parse: Parse = Field(Parse(), description="parsing; if omitted, the text is not parsed")
    pieces: Pieces = Field(Pieces())
    size: Options = Field({}, description="model sizes: options of fairseq-train")
    train: Options = Field({}, description="training: options of fairseq-train")
    systems: dict[Name, System] = Field(min_length=1, description="models by name, in the order of the table")
    seeds: Seeds = Field([1], description="training seeds of each system")
    translate: Translate = Field(Translate())
    score: Score = Field(Score())
    published: list[Published] = Field([])
    commands: dict[Name, Command] = Field({}, description="your own stages, by name")
    device: Literal["cpu", "cuda"] = Field("cpu", description="for parsing, training and translating")
    threads: int = Field(1, ge=1, description="threads of each process")
    workers: int = Field(1, ge=1, description="processes for parsing, segmenting and binarizing")
    env: dict[str, str] = Field({}, description="environment variables of all commands; a change reruns everything")

    @model_validator(mode="after")
    def _names(self) -> Recipe:
        """Check that names refer to existing parts of the recipe."""
        parses = ["parse", *self.parse.controls]
        for name, system in self.systems.items():
            if system.arch is None:
                raise _error("has no arch, and extends no system that has one", "systems", name)
            _check_names([system.parse], parses, "parse", "systems", name, "parse")
        if self.parse.controls and self.parse.source is None:
            raise _error("a control is made from the source's parse: give parse.source", "parse", "controls")
        score = self.score
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
        for control in score.shares.controls if score.shares else ():
            if not any(name.endswith(f".{control}") for name in self.systems):
                raise _error(f"no system is called SYSTEM.{control}, to compare SYSTEM with", "score", "shares")
        return self

    @property
    def baseline(self) -> str:
        """The system with which the others are compared."""
        return self.score.baseline or next(iter(self.systems))
