"""The recipe: what a YAML file may say, as pydantic models. Each field's description is its line in the reference.

Scalars are read as they are written (``no`` is a language, ``1.10`` a name) and converted by the fields' types.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from fairseq_syntax.lab.recipes.stages import Kind

NAME = r"^\w[\w.+-]*$"  # names become names of files

Name = Annotated[str, Field(pattern=NAME)]
Scalar = str | int | float | bool
# Of fairseq's commands: `dropout: 0.1` is `--dropout 0.1`, `amp: true` is `--amp`; `false` and `null` leave it out.
# A file is `{recipe}/NAME`, beside the recipe, or `{folder}/NAME`, in the result folder.
Options = dict[str, Scalar | list[Scalar] | None]

Metric = Literal["bleu", "bleu1", "bleu_char", "chrf", "ter", "ribes", "distinct1", "exact"]


def _error(message: str, *place: str) -> PydanticCustomError:
    """An error of a key below the one that is being validated, for a check that looks at several keys."""
    return PydanticCustomError("recipe", "{message}", {"message": message, "place": place})


def _one_as_list(value: Any) -> Any:
    return [value] if isinstance(value, (str, int)) else value


Texts = Annotated[list[str], BeforeValidator(_one_as_list)]
Seeds = Annotated[list[int], BeforeValidator(_one_as_list), Field(min_length=1)]


class Section(BaseModel):
    """A mapping whose keys are all known."""

    model_config = ConfigDict(extra="forbid", validate_default=True)


class Filter(Section):
    """Which pairs of the training data stay. Pairs that are empty on one side never do."""

    min_length: int = Field(1, ge=1, description="fewest tokens of a side")
    max_length: int | None = Field(None, ge=1, description="most tokens of a side")
    max_ratio: float | None = Field(None, ge=1, description="longest side over the shorter one")
    characters: bool = Field(False, description="lengths are of characters: for scripts without spaces")
    languages: bool = Field(False, description="remove pairs that are in other languages (pip install '.[filter]')")


class Subset(Section):
    """A random part of the training data, drawn before it is filtered."""

    pairs: int = Field(ge=1, description="how many")
    seed: int = Field(1, description="of the draw")


class Corpus(Section):
    """The parallel text.

    Each split is a prefix (``corpus/train`` for corpus/train.en and corpus/train.de), a list of the two files, or a
    ``.tsv`` file with the source before the tab; all may be ``.gz``. A named reader gives all splits itself.
    """

    source: Name = Field(description="language of the source, as in the names of files")
    target: Name = Field(description="language of the target")
    train: Texts = Field([], description="training data: prefix, the two files, or a .tsv file")
    valid: Texts = Field([], description="validation data, likewise")
    tests: dict[Name, Texts] = Field(
        {},
        description="test sets by name, likewise; with a reader: names of its splits, `t16: test_2016_flickr`",
    )
    references: dict[Name, int] = Field({}, description="of tests with several: PREFIX.de, PREFIX.de.1, …: how many")
    reader: str | None = Field(
        None, description="a corpus with files of its own format: a reader of fairseq_syntax/corpus/readers by name"
    )
    data: str | None = Field(None, description="the folder with the reader's files; --data replaces it")
    options: dict[str, Any] = Field({}, description="the reader's options, such as years or names of its test sets")
    download: bool = Field(False, description="fetch what is missing from `data`, where the reader knows how")
    words: dict[Name, str] = Field(
        {}, description="by language: a program that puts spaces between words, such as `mecab -Owakati`"
    )
    subset: Subset | None = Field(None, description="a random part of the training data")
    first: int | None = Field(None, ge=1, description="only the first N pairs of valid and the test sets")
    filter: Filter = Field(Filter(), description="what stays of the training data")

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
        for key, names, known in (
            ("references", self.references, self.tests),
            ("words", self.words, (self.source, self.target)),
        ):
            for name in names:
                if name not in known:
                    raise _error(f"{name} is not one of {', '.join(known)}", key, name)
        return self


class ParseSide(Section):
    """How one side is parsed."""

    parser: str = Field("stanza", description="stanza, supar, or a module of yours")
    models: str | None = Field(None, description="folder with the parser's models; default: the parser's own place")
    files: str | None = Field(
        None,
        description="a parse that exists, with {split} in its name for train, valid and the tests; not with a subset",
    )
    distributions: bool = Field(False, description="keep the parser's probabilities (for LDD)")
    min_prob: float | None = Field(None, gt=0, lt=1, description="least probability kept (default: 0.01)")
    structured: bool = Field(False, description="arc marginals over trees in place of a softmax for each word")
    tokenizer: Literal["auto", "stanza", "spacy", "basic", "spaces"] = Field(
        "auto", description="auto: the parser's own, else the basic one; spaces: the text is tokenized already"
    )
    split_sentences: bool = Field(False, description="a line may hold several sentences")
    max_words: int | None = Field(None, ge=1, description="longest sentence; longer ones are parsed in parts")


class Control(Section):
    """A parse of the same form with less, or nothing, of its syntax: `fairseq-syntax control`."""

    model_config = ConfigDict(extra="forbid")
    make: Texts = Field(description="linear, right, flat, random, …; several are applied one after the other")
    seed: int = Field(1, description="of what is random in it")
    wrong_arcs: float | None = Field(None, ge=0, le=1, description="of damaged: the share of arcs to replace")
    temperature: float | None = Field(None, gt=0, description="of sharpened and flattened")
    about: str = Field("", description="what it is, in words, for the report")


def _controls(value: Any) -> Any:
    """``{linear: linear}`` and ``{linear: [linear]}`` are short for ``{linear: {make: [linear]}}``."""
    if not isinstance(value, Mapping):
        return value
    return {name: {"make": one} if isinstance(one, (str, list)) else one for name, one in value.items()}


class Parse(Section):
    """Which sides are parsed, and by what."""

    source: ParseSide | None = Field(None, description="the source; left out: it is not parsed")
    target: ParseSide | None = Field(None, description="the target, for LaSyn's tags and DBSA's decoder")
    controls: Annotated[dict[Name, Control], BeforeValidator(_controls)] = Field(
        {}, description="control parses by name, for systems that say `parse: NAME`"
    )


class Pieces(Section):
    """The vocabulary: how words are cut into pieces."""

    method: Literal["sentencepiece", "subword_nmt", "words"] = Field(
        "sentencepiece", description="words: whole words, and <unk> for rare ones"
    )
    size: int | dict[Name, int] | None = Field(
        None, description="of the vocabulary, of both languages or by language (default: 8000 pieces; of words all)"
    )
    model_type: Literal["unigram", "bpe"] = Field("unigram", description="of sentencepiece")
    character_coverage: dict[Name, float] = Field({}, description="of sentencepiece, by language")
    models: dict[Name, str] = Field(
        {}, description="by language: segmentation.LANG.json of other pieces, in place of a model trained here"
    )
    joint: bool = Field(False, description="one model and one dictionary for both languages")
    threshold: int = Field(0, ge=0, description="words or pieces seen fewer times in training become <unk>")
    train_lines: int = Field(0, ge=0, description="train the model on so many lines drawn at random; 0: all")


class System(Section):
    """A model: one row of the table. It says what differs from `size`, `train` and `translate` of the recipe."""

    like: str | None = Field(None, description="another system, of which this one says what differs")
    arch: str | None = Field(None, description="--arch")
    options: Options = Field({}, description="the system's options, such as pascal-heads")
    size: Options = Field({}, description="more of `size`")
    train: Options = Field({}, description="more of `train`")
    translate: Options = Field({}, description="more of `translate`")
    parse: str = Field("parse", description="the parse of its data: `parse`, or the name of a control")
    data: str | None = Field(None, description="binarized data made by a command of the recipe; {run} is its folder")
    seeds: Seeds | None = Field(None, description="where they are not those of the recipe")
    about: str = Field("", description="what it is, in words, for the report")


class Variant(Section):
    """Another translation of the tests by the same models: a table of its own."""

    systems: list[str] | None = Field(None, description="which (default: all)")
    baseline: str | None = Field(None, description="the system to compare with (default: that of `score`)")
    without_parse: bool = Field(False, description="translate the text alone, as where no parser is at hand")
    options: Options = Field({}, description="more options of fairseq-generate")


class Translate(Section):
    """How the tests are translated; any other key is an option of fairseq-generate, such as `beam: 5`."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Scalar | list[Scalar] | None]

    checkpoint: Literal["best", "last"] = Field("best", description="best on the validation data, or the last one")
    variants: dict[Name, Variant] = Field({}, description="further translations, each with a table of its own")

    @property
    def options(self) -> dict[str, Any]:
        """The options of fairseq-generate."""
        return dict(self.__pydantic_extra__ or {})


class Shares(Section):
    """How much of each gain is syntax: SYSTEM against SYSTEM.CONTROL, the same system on a control parse."""

    controls: list[str] = Field(min_length=1, description="names of the controls")
    by: list[str] = Field([], description="also in intervals of these properties of the parse")


class Value(Section):
    """A number of each run, from a JSON file that a command wrote."""

    file: str = Field(description="the file; {run} is the run's folder")
    key: str = Field(description="where the number stands in it: a.b.0")
    systems: list[str] | None = Field(None, description="which (default: all)")


class Score(Section):
    """What is measured, and compared with what."""

    metrics: list[Metric] = Field(["bleu", "chrf"], min_length=1, description="the first one is the table's")
    tokenize: str | None = Field(
        None,
        description="sacrebleu's tokenizer; default: zh for Chinese, ja-mecab, ko-mecab, char for Thai and others "
        "without spaces, else 13a",
    )
    lowercase: bool = Field(False, description="compare lower-cased text")
    baseline: str | None = Field(None, description="the system to compare with (default: the first)")
    resamples: int = Field(1000, ge=0, description="of the bootstrap over sentences and seeds; 0: no test")
    trials: int = Field(10000, ge=0, description="of the randomization test; 0: none")
    also_against: list[str] = Field([], description="further systems to test the others against")
    beer: str | None = Field(None, description="the BEER program, where you have it")
    mean: bool = Field(False, description="also the mean of the tests' scores, in the first metric")
    box: bool = Field(False, description="also a box plot of the scores of sentences, by the first metric")
    by_length: int | None = Field(None, ge=1, description="also BLEU and gains by length, in steps of N tokens")
    by_length_of: Literal["source", "target"] = Field("source", description="whose length")
    by: list[str] = Field([], description="also by properties of the parse: depth, label=acl, length@10,20,30, …")
    groups: str | None = Field(
        None,
        description="a file with a line for each sentence, the same for those of a document, which the bootstrap then "
        "draws; {test} in its name",
    )
    lines: dict[Name, str] = Field(
        {},
        description="also of some lines alone: name and file, whose lines that are not empty choose; {test} in it",
    )
    shares: Shares | None = Field(None, description="how much of each gain is syntax")
    trees: list[str] = Field([], description="systems whose parent head's trees are compared with the parse (UAS)")
    perplexity: bool = Field(False, description="of the validation data, at the end of training")
    values: dict[str, Value] = Field({}, description="other numbers of each run, from JSON files of commands")


class Published(Section):
    """Figures of a paper that stand beside ours."""

    source: str = Field(description="where they stand: paper and table")
    test: Name | None = Field(None, description="the test set; left out: of all")
    lines: Name | None = Field(None, description="the lines alone that it is of: a name of `score.lines`")
    metric: str = Field("BLEU", description="as the paper calls it")
    figures: dict[str, float] = Field(description="system: figure; a system of the paper that we lack is shown, too")
    note: str = Field("", description="how it was measured, where that differs")


class Command(Section):
    """A stage of your own. In all texts {folder} is the result folder, {run} that of the run, {recipe} the recipe's."""

    reason: str = Field(min_length=1, description="why the recipe needs a command")
    run: str = Field(min_length=1, description="for bash, in the folder where the recipe is run; {seed}, {system} too")
    each: Literal["once", "run"] = Field("once", description="once, or for each system and seed")
    before: Kind = Field("report", description="the stage that needs what it makes")
    systems: list[str] | None = Field(None, description="with `each: run`: which (default: all)")
    inputs: list[str] = Field([], description="files and folders it reads: it runs again when they change")
    outputs: list[str] = Field(min_length=1, description="files it makes")

    def is_of(self, system: str) -> bool:
        """Whether it is run for each seed of a system."""
        return self.each == "run" and (self.systems is None or system in self.systems)


class Recipe(Section):
    """From two text files to a table of scores."""

    name: Name | None = Field(None, description="of the report (default: the file's)")
    about: str = Field("", description="what it is for: the first lines of the report")
    folder: str | None = Field(None, description="where everything is made (default: runs/NAME beside the recipe)")
    page: str | None = Field(None, description="the report is written here, too, as Markdown")
    kept: str | None = Field(None, description="results that are kept with the recipe, in one compressed file")
    corpus: Corpus
    parse: Parse = Field(Parse(), description="without it, the text is not parsed")
    pieces: Pieces = Field(Pieces())
    size: Options = Field({}, description="sizes of the models: options of fairseq-train")
    train: Options = Field({}, description="how models are trained: options of fairseq-train")
    systems: dict[Name, System] = Field(min_length=1, description="the models by name, in the order of the table")
    seeds: Seeds = Field([1], description="each system is trained with each of them")
    translate: Translate = Field(Translate())
    score: Score = Field(Score())
    published: list[Published] = Field([])
    commands: dict[Name, Command] = Field({}, description="stages of your own, by name")
    device: Literal["cpu", "cuda"] = Field("cpu", description="for parsing, training and translating")
    threads: int = Field(1, ge=1, description="of each process")
    workers: int = Field(1, ge=1, description="processes of parsing, cutting into pieces and binarizing")
    env: dict[str, str] = Field({}, description="of all commands: with another, all is made anew")

    @model_validator(mode="before")
    @classmethod
    def _resolve_likes(cls, values: Any) -> Any:
        """Each system with `like` gets what the other has and it does not say itself."""
        systems = values.get("systems") if isinstance(values, Mapping) else None
        if not isinstance(systems, Mapping):
            return values
        return {**values, "systems": {name: _resolved(systems, name, ()) for name in systems}}

    @model_validator(mode="after")
    def _names(self) -> Recipe:
        """What is named is there."""
        parses = ["parse", *self.parse.controls]
        for name, system in self.systems.items():
            if system.arch is None:
                raise _error("has no arch, and is not like a system that has one", "systems", name)
            _check_names([system.parse], parses, "parse", "systems", name, "parse")
        if self.parse.controls and self.parse.source is None:
            raise _error("a control is made from the source's parse: give parse.source", "parse", "controls")
        score, variants = self.score, self.translate.variants
        for side in (self.parse.source, self.parse.target):
            if side is not None and side.files and self.corpus.subset is not None:
                raise _error("a subset has no parse yet: leave files out", "parse")
        asked: dict[tuple[str, ...], list[str | None]] = {("score", "baseline"): [score.baseline]}
        asked[("score", "trees")] = [*score.trees]
        asked[("score", "also_against")] = [*score.also_against]
        asked |= {("translate", "variants", name): [*(v.systems or []), v.baseline] for name, v in variants.items()}
        asked |= {("commands", name): [*(c.systems or [])] for name, c in self.commands.items()}
        asked |= {("score", "values", name): [*(v.systems or [])] for name, v in score.values.items()}
        for place, names in asked.items():
            _check_names([name for name in names if name is not None], list(self.systems), "system", *place)
        for control in score.shares.controls if score.shares else ():
            if not any(name.endswith(f".{control}") for name in self.systems):
                raise _error(f"no system is called SYSTEM.{control}, to compare SYSTEM with", "score", "shares")
        return self

    @property
    def baseline(self) -> str:
        """The system that the others are compared with."""
        return self.score.baseline or next(iter(self.systems))


def _check_names(names: Sequence[str], known: Sequence[str], what: str, *place: str) -> None:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise _error(f"no {what} is called {name}: {meant}", *place)


def _resolved(systems: Mapping[str, Any], name: str, seen: tuple[str, ...]) -> Any:
    """A system's mapping with what it takes over from the one it is like."""
    system = systems[name]
    if not isinstance(system, Mapping) or not isinstance(system.get("like"), str):
        return system
    other = system["like"]
    if other in (*seen, name):
        raise _error(f"in a circle: {' is like '.join([*seen, name, other])}", "systems", name, "like")
    _check_names([other], [str(one) for one in systems], "system", "systems", name, "like")
    base = _resolved(systems, other, (*seen, name))
    if not isinstance(base, Mapping):
        return system
    merged = {**base, **system}
    for key in ("options", "size", "train", "translate"):
        if isinstance(base.get(key), Mapping) and isinstance(system.get(key), Mapping):
            merged[key] = {**base[key], **system[key]}
    return {key: value for key, value in merged.items() if key != "about" or "about" in system}
