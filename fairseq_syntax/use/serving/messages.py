"""Schemas of requests and responses, for validation and OpenAPI."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from fairseq_syntax.corpus.conllu import ParsedLine, format_conllu, read_conllu, text_of
from fairseq_syntax.corpus.parsed_line import token_spans
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use import BEAM

MAX_SENTENCES = 64
MAX_CHARACTERS = 2000  # per sentence
MAX_TOKENS = 250  # per sentence that is given as tokens
MAX_BEAM = 16
FORMS = ("text", "tokens", "conllu")  # of the sentences of a request
# The maximum length of a translation in pieces, relative to the source (with </s>) and absolute. A model that repeats
# itself continues up to this limit.
PIECES_A, PIECES_B = 2.0, 50

EXAMPLE_CONLLU = """\
1	the	_	DET	DT	_	2	det	_	_
2	man	_	NOUN	NN	_	3	nsubj	_	_
3	sleeps	_	VERB	VBZ	_	0	root	_	SpaceAfter=No
4	.	_	PUNCT	.	_	3	punct	_	_
"""


def listed(value: Any) -> Any:
    """A list of a single string; any other value as it is."""
    return [value] if isinstance(value, str) else value


def _nested(value: Any) -> Any:
    return [value] if isinstance(value, list) and value and isinstance(value[0], str) else value


# A body of 1 MiB may have 300,000 bad members, and to report each takes half a second: fail_fast reports the first.
_SEVERAL = Field(min_length=1, max_length=MAX_SENTENCES, fail_fast=True)
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHARACTERS, pattern=r"\S")]
Texts = Annotated[list[Text], _SEVERAL]
Form = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^\S+$")]
Tokens = Annotated[list[Form], Field(min_length=1, max_length=MAX_TOKENS, fail_fast=True)]
TokenLists = Annotated[list[Tokens], _SEVERAL]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Names = Annotated[list[Name], _SEVERAL]
Conllu = Annotated[str, StringConstraints(min_length=1, max_length=MAX_SENTENCES * MAX_CHARACTERS)]
# JSON does not distinguish 4.0 from 4
Whole = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)]


class TranslateRequest(BaseModel):
    """Sentences in one of three forms, and options."""

    # strict, as in the OpenAPI description: "5" is not a number, and 0 is not a boolean
    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"oneOf": [{"required": [form]} for form in FORMS]},
    )

    text: Annotated[Texts, BeforeValidator(listed, json_schema_input_type=Text | Texts)] = Field(
        default_factory=list, description="a sentence, or several, which the server parses"
    )
    tokens: Annotated[TokenLists, BeforeValidator(_nested, json_schema_input_type=Tokens | TokenLists)] = Field(
        default_factory=list,
        description="the tokens of a sentence, or of several, which the server parses without changing them",
    )
    conllu: Conllu = Field(
        default_factory=str,
        description="one sentence or several in CoNLL-U, with a blank line between them, used as they are; `Arcs=` in "
        "MISC holds the parser's probabilities, for models that read them",
    )
    model: Annotated[Names, BeforeValidator(listed, json_schema_input_type=Name | Names)] | None = Field(
        None, description="a model by its name, or several; by default the first that was loaded"
    )
    source_name: str = Field(
        "", max_length=30, description="for an imported multilingual model: the source language, as the model names it"
    )
    target_name: str = Field("", max_length=30, description="likewise the target language, such as fra_Latn")
    beam: Whole = Field(BEAM, ge=1, le=MAX_BEAM, description="hypotheses that the search keeps")
    nbest: Whole = Field(1, ge=1, le=MAX_BEAM, description="translations of each sentence; a narrower beam is widened")
    alignments: bool = Field(False, description="also answer which words stand for which")
    tree: bool = Field(False, description="also answer the parse that was used")
    attention: bool = Field(
        False, description="also answer the attention weights of the best translation; for one sentence and one model"
    )

    @model_validator(mode="before")
    @classmethod
    def _few_fields(cls, body: Any) -> Any:
        if isinstance(body, dict) and len(body) > 20:  # each unknown one would be reported
            raise ValueError(f"{len(body)} fields: there are {', '.join(cls.model_fields)}")
        return body

    @model_validator(mode="after")
    def _check(self) -> TranslateRequest:
        if len(self.model_fields_set.intersection(FORMS)) != 1:
            raise ValueError("exactly one of text, tokens and conllu is expected")
        # Reading the sentences here turns their errors into validation errors.
        several = len(self.sentences) > 1 or len(self.model or ()) > 1
        if self.attention and several:
            raise ValueError("attention is answered for one sentence and one model at a time")
        return self

    @cached_property
    def sentences(self) -> Sequence[str | list[str] | ParsedLine]:
        """The sentences: at least one, none of them empty."""
        if self.tokens:
            return self.tokens
        if self.conllu:
            return _read(self.conllu)
        texts = [" ".join(text.split()) for text in self.text]
        if "" in texts:
            raise ValueError(f"sentence {texts.index('')} (counted from 0) has no words")
        return texts


def _read(conllu: str) -> list[ParsedLine]:
    """The parses of a request; ValueError if there are none, too many or too long ones."""
    # without empty lines, of which a small body could contain a million
    lines = list(islice(read_conllu(io.StringIO(conllu), empty=False), MAX_SENTENCES + 1))
    if not 1 <= len(lines) <= MAX_SENTENCES:
        raise ValueError(f"more than {MAX_SENTENCES} sentences" if lines else "the CoNLL-U has no sentence")
    for number, line in enumerate(lines):
        for what, size, most in (
            ("words", len(line.words), MAX_CHARACTERS),  # as many as a text may have, whose parse may be sent again
            ("characters", len(text_of(line)), MAX_CHARACTERS),
            ("characters in a word", max(map(len, line.words), default=0), MAX_CHARACTERS),
        ):
            if size > most:
                raise ValueError(f"sentence {number} (counted from 0) has {size} {what}, more than {most}")
    return lines


Request = TypeVar("Request", bound=BaseModel)


def validated(schema: type[Request], body: Any) -> Request:
    """A request from its JSON text or value; SyntaxDataError says in one line what is wrong with it."""
    try:
        return schema.model_validate_json(body) if isinstance(body, bytes) else schema.model_validate(body)
    except ValidationError as invalid:
        reasons = []
        for error in invalid.errors(include_url=False, include_context=False, include_input=False)[:6]:
            where = ".".join(map(str, error["loc"]))
            message = error["msg"].removeprefix("Value error, ")  # pydantic's prefix of our own messages
            reasons.append(f"{where}: {message}" if where else message)
        raise SyntaxDataError("; ".join(reasons)[:2000]) from None


REQUEST_EXAMPLES: dict[str, dict[str, Any]] = {
    "text": {"summary": "A sentence", "value": {"text": "the man saw the girl with the telescope ."}},
    "several": {
        "summary": "Two sentences, their parses and three translations of each",
        "value": {"text": ["the man sleeps .", "the girl saw the man ."], "tree": True, "beam": 5, "nbest": 3},
    },
    "tokens": {"summary": "Tokens", "value": {"tokens": ["the", "man", "sleeps", "."], "alignments": True}},
    "conllu": {"summary": "A parse of your own", "value": {"conllu": EXAMPLE_CONLLU}},
}


class Arc(BaseModel):
    """An arc of the parser's distribution."""

    dependent: int = Field(description="a word, counted from 1")
    head: int = Field(description="a word, counted from 1, or 0 for the root")
    label: str
    p: float = Field(description="its probability")


class Parse(BaseModel):
    """A sentence's parse. Words are numbered from 1 across the whole text, and the head of a root is 0."""

    words: list[str]
    characters: list[tuple[int, int]] = Field(
        description="each word's characters [start, end) in the text of `sources`; the words of a contraction (`zu` "
        "and `dem` of `zum`) have those of the contraction"
    )
    heads: list[int]
    labels: list[str]
    tags: list[str] = Field(description="universal part-of-speech tags")
    sentences: list[tuple[int, int]] = Field(description="first and last word of each sentence")
    arcs: list[Arc] | None = Field(description="the parser's probabilities, where it has them")
    conllu: str = Field(
        description="the same in CoNLL-U, which may be changed and sent again, alone or with others of the answer; "
        "`# line = N` says which sentences are one text"
    )

    @classmethod
    def of(cls, line: ParsedLine, number: int, *, numbered: bool) -> Parse:
        """Convert the parse of a line, in which words are numbered from 0 and roots are their own heads.

        Args:
            number: the 0-based index of the line in its request
            numbered: whether the CoNLL-U states this index, as it must for all lines if one has several sentences
        """
        arcs = None
        if line.arcs is not None:
            arcs = [Arc(dependent=d + 1, head=0 if h == d else h + 1, label=l, p=p) for d, h, l, p in line.arcs]
        return cls(
            words=line.words,
            characters=[
                span for token, span in zip(line.tokens, token_spans(line)) for _ in range(token.first, token.last + 1)
            ],
            heads=line.conllu_heads,
            labels=line.deprels,
            tags=line.upos,
            sentences=[(start + 1, end) for start, end in line.sentences],
            arcs=arcs,
            conllu=format_conllu(replace(line, line_number=number), comments=numbered),
        )


class Alignment(BaseModel):
    """The word alignment of a translation."""

    source_words: list[tuple[int, int]] = Field(description="each word of the source: its characters [start, end)")
    target_words: list[tuple[int, int]] = Field(description="each word of the translation: its characters [start, end)")
    links: list[tuple[int, int]] = Field(description="(source word, target word), counted from 0")
    pharaoh: str = Field(description="the links as 0-0 2-1")


class Hypothesis(BaseModel):
    """A translation."""

    sentence: int = Field(description="the sentence of the request that it translates, counted from 0")
    model: str = Field(description="the name of the model")
    rank: int = Field(description="among this model's translations of the sentence; 0 is the best")
    text: str = Field(description="the translation")
    score: float | None = Field(description="mean log-probability (base e) of its pieces; null for a probability of 0")
    pieces: list[str] = Field(description="the pieces that the model has generated")
    cut: bool = Field(
        False,
        description=f"whether it is as long as it may be: {PIECES_A:g} pieces for each of the source and {PIECES_B} "
        "more, or fewer by the model",
    )
    unknown: list[tuple[int, int]] = Field(
        [],
        description="the words of the source with pieces that the model does not know: their characters [start, end)",
    )
    words: int = Field(0, description="the number of words of the source, where some are unknown")
    alignment: Alignment | None = Field(None, description="the word alignment, if it is asked for")


class TranslateAnswer(BaseModel):
    """Translations by sentence and model, best first."""

    translations: list[Hypothesis]
    sources: list[str] = Field(description="the text of each sentence")
    parses: list[Parse | None] | None = Field(
        None, description="the parse of each sentence; null where none was needed and there is no parser"
    )
    without_parse: list[int] = Field(
        [],
        description="the sentences, counted from 0, that were translated without the parse that a model reads, because "
        "none was available",
    )
    attention: dict[str, Any] | None = Field(
        None,
        description="pieces, trees and attention weights: `outputs.MODEL.attention.KIND[LAYER]` has `heads`, `rows`, "
        "`columns` and `data`, the weights times 255 as bytes in base64, by head and row",
    )


class ModelInfo(BaseModel):
    """A loaded model."""

    name: str
    systems: list[str] = Field(description="its syntax systems; none in a plain model")
    needs: list[str] = Field(description="what it reads of the parse: its tree, or its arcs with their probabilities")
    source_lang: str
    target_lang: str
    parameters: int | None = Field(description="their number; null with CTranslate2, which has none")
    attention: bool = Field(description="whether it answers its attention weights; not with CTranslate2")


class Models(BaseModel):
    """The loaded models; the first is the default."""

    models: list[ModelInfo]
    parser: str | None = Field(description="the parser of raw text; null: there is none")
    relations: list[str] = Field(description="the dependency labels that the models know")


class Health(BaseModel):
    """The state of the server and the number of waiting translations."""

    status: str
    waiting: int


class Reason(BaseModel):
    """An error: the reason, under two names."""

    detail: str
    error: str
