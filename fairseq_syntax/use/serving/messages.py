"""Schemas of requests and responses, for validation and OpenAPI."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from fairseq_syntax.corpus.conllu import ParsedLine, format_conllu, read_conllu, text_of
from fairseq_syntax.use import BEAM

MAX_SENTENCES = 64
MAX_CHARACTERS = 2000  # per sentence
MAX_TOKENS = 250  # per sentence
MAX_BEAM = 16
# The maximum length of a translation in pieces, relative to the source (with </s>) and absolute. A model that repeats
# itself continues up to this limit.
PIECES_A, PIECES_B = 2.0, 50

EXAMPLE_CONLLU = """\
1	the	_	DET	DT	_	2	det	_	_
2	man	_	NOUN	NN	_	3	nsubj	_	_
3	sleeps	_	VERB	VBZ	_	0	root	_	SpaceAfter=No
4	.	_	PUNCT	.	_	3	punct	_	_
"""

Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_CHARACTERS, pattern=r"\S")]
Form = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^\S+$")]
Tokens = Annotated[list[Form], Field(min_length=1, max_length=MAX_TOKENS)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
# JSON does not distinguish 4.0 from 4
Whole = Annotated[int, BeforeValidator(lambda n: int(n) if isinstance(n, float) and n.is_integer() else n)]


class Options(BaseModel):
    """The options that all forms of a request have."""

    # strict, as in the OpenAPI description: "5" is not a number, and 0 is not a boolean
    model_config = ConfigDict(extra="forbid", strict=True)

    model: Name | Annotated[list[Name], Field(min_length=1, max_length=MAX_SENTENCES)] | None = Field(
        None, description="a model by its name, or several; by default the first that was loaded"
    )
    beam: Whole = Field(BEAM, ge=1, le=MAX_BEAM, description="hypotheses that the search keeps")
    nbest: Whole = Field(1, ge=1, le=MAX_BEAM, description="translations of each sentence; a narrower beam is widened")
    alignments: bool = Field(False, description="also answer which words stand for which")
    tree: bool = Field(False, description="also answer the parse that was used")
    attention: bool = Field(
        False, description="also answer the attention weights of the best translation; for one sentence and one model"
    )

    @model_validator(mode="after")
    def _check(self) -> Options:
        # Reading the sentences here turns their errors into validation errors.
        several = len(self.sentences) > 1 or (isinstance(self.model, list) and len(self.model) > 1)
        if self.attention and several:
            raise ValueError("attention is answered for one sentence and one model at a time")
        return self

    @cached_property
    def sentences(self) -> Sequence[str | list[str] | ParsedLine]:
        """The sentences: at least one, none of them empty."""
        raise NotImplementedError


class FromText(Options):
    """A request with raw text, which the server parses."""

    text: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_SENTENCES)] = Field(
        description="a sentence, or several"
    )

    @cached_property
    def sentences(self) -> Sequence[str]:
        texts = [" ".join(text.split()) for text in ([self.text] if isinstance(self.text, str) else self.text)]
        if "" in texts:
            raise ValueError(f"sentence {texts.index('')} (counted from 0) has no words")
        return texts


class FromTokens(Options):
    """A request with tokens, which the server parses without changing the tokenization."""

    tokens: Tokens | Annotated[list[Tokens], Field(min_length=1, max_length=MAX_SENTENCES)] = Field(
        description="the tokens of a sentence, or of several"
    )

    @cached_property
    def sentences(self) -> Sequence[list[str]]:
        return [self.tokens] if isinstance(self.tokens[0], str) else self.tokens  # type: ignore[list-item,return-value]


class FromConllu(Options):
    """A request with parses, which are used as they are."""

    conllu: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SENTENCES * MAX_CHARACTERS)] = Field(
        description="one sentence or several in CoNLL-U, with a blank line between them; `Arcs=` in MISC holds the "
        "parser's probabilities, for models that read them"
    )

    @cached_property
    def sentences(self) -> Sequence[ParsedLine]:
        # without empty lines, of which a small body could contain a million
        lines = list(islice(read_conllu(io.StringIO(self.conllu), empty=False), MAX_SENTENCES + 1))
        if not 1 <= len(lines) <= MAX_SENTENCES:
            raise ValueError(f"more than {MAX_SENTENCES} sentences" if lines else "the CoNLL-U has no sentence")
        for number, line in enumerate(lines):
            for what, size, most in (
                ("words", len(line.words), MAX_TOKENS),
                ("characters", len(text_of(line)), MAX_CHARACTERS),
                ("characters in a word", max(map(len, line.words), default=0), MAX_CHARACTERS),
            ):
                if size > most:
                    raise ValueError(f"sentence {number} (counted from 0) has {size} {what}, more than {most}")
        return lines


FORMS = ("text", "tokens", "conllu")


def _form(body: Any) -> str:
    """Choose the form of a body, so that only errors about that form are reported."""
    return next((form for form in FORMS if isinstance(body, dict) and form in body), "text")


def _of_a_size(body: Any) -> Any:
    """Limit the number of members before they are validated.

    pydantic validates every member and reports each error, which takes half a second for a body of 1 MiB.
    """
    if isinstance(body, dict):
        if len(body) > 2 * len(FromText.model_fields):
            raise ValueError(f"{len(body)} fields: there are {', '.join(FORMS)} and {', '.join(Options.model_fields)}")
        for name, value in body.items():
            most = MAX_TOKENS if name == "tokens" else MAX_SENTENCES
            if not isinstance(value, list):
                continue
            for members in (value, *(member for member in value[:most] if isinstance(member, list))):
                most = MAX_TOKENS if members is not value else most
                if len(members) > most:
                    raise ValueError(f"{name[:40]}: at most {most} items, not {len(members)}")
    return body


TranslateRequest = Annotated[
    Annotated[FromText, Tag("text")] | Annotated[FromTokens, Tag("tokens")] | Annotated[FromConllu, Tag("conllu")],
    Discriminator(_form),
    BeforeValidator(_of_a_size),
]

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
            characters=_characters(line),
            heads=[0 if h == i else h + 1 for i, h in enumerate(line.heads)],
            labels=line.deprels,
            tags=line.upos,
            sentences=[(start + 1, end) for start, end in line.sentences],
            arcs=arcs,
            conllu=format_conllu(replace(line, line_number=number), comments=numbered),
        )


def _characters(line: ParsedLine) -> list[tuple[int, int]]:
    """The character span of each word's surface token in :func:`.parsed_line.text_of` the line."""
    spans, start = [], 0
    for token in line.tokens:
        end = start + len(token.form)
        spans += [(start, end)] * (token.last + 1 - token.first)
        start = end + token.space_after
    return spans


class Alignment(BaseModel):
    """The word alignment of a translation."""

    source_words: list[tuple[int, int]] = Field(description="each word of the source: its characters [start, end)")
    target_words: list[tuple[int, int]] = Field(description="each word of the translation: its characters [start, end)")
    links: list[tuple[int, int]] = Field(description="(source word, target word), counted from 0")
    pharaoh: str = Field(description="the links as 0-0 2-1")


class Hypothesis(BaseModel):
    """A translation."""

    sentence: int = Field(description="the sentence of the request that it translates, counted from 0")
    model: str
    rank: int = Field(description="among this model's translations of the sentence; 0 is the best")
    text: str
    score: float = Field(description="mean log-probability (base e) of its pieces")
    pieces: list[str]
    cut: bool = Field(
        False,
        description=f"whether it is as long as it may be: {PIECES_A:g} pieces for each of the source and {PIECES_B} "
        "more, or fewer by the model",
    )
    alignment: Alignment | None = None


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
        "it could not be had",
    )
    attention: dict[str, Any] | None = Field(
        None,
        description="pieces, trees and attention weights: `outputs.MODEL.attention.KIND[LAYER]` has `heads`, `rows`, "
        "`columns` and `data`, the weights times 255 as bytes in base64, by head and row",
    )


ANSWER_EXAMPLE = {
    "translations": [
        {
            "sentence": 0,
            "model": "PASCAL",
            "rank": 0,
            "text": "der Mann sah das Mädchen mit dem Fernrohr (sah).",
            "score": -0.01,
            "pieces": ["▁der", "▁Mann", "▁sah", "▁das", "▁Mädchen", "▁mit", "▁dem", "▁Fernrohr", "▁(", "sah", ")", "."],
            "cut": False,
            "alignment": None,
        }
    ],
    "sources": ["the man saw the girl with the telescope ."],
    "parses": None,
    "without_parse": [],
    "attention": None,
}


class ModelInfo(BaseModel):
    """A loaded model."""

    name: str
    systems: list[str] = Field(description="its syntax systems; none in a plain model")
    needs: list[str] = Field(description="what it reads of the parse: its tree, or its arcs with their probabilities")
    source_lang: str
    target_lang: str
    parameters: int


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
    """An error."""

    detail: str


def explained(errors: Sequence[Any]) -> str:
    """Summarize pydantic's validation errors in one line.

    For a field that may be a string or a list, pydantic reports the errors of both alternatives. Those of the
    alternative that does not fit the value's type are left out.
    """
    places = [error["loc"][2:] for error in errors]  # after "body" and the form of the request
    # a field and, if it has several alternatives, the one that the error is about, such as list[str]
    forms = [place[: 1 + sum(isinstance(part, str) for part in place[1:2])] for place in places]
    of_others = {f for f, e in zip(forms, errors) if len(f) == 2 and e["type"] in ("string_type", "list_type")}
    told = {form[0] for form in forms if form and form not in of_others}
    reasons: dict[str, None] = {}  # ordered, without duplicates
    for place, form, error in zip(places, forms, errors):
        if form in of_others and form[0] in told:
            continue
        where = ".".join(str(part) for part in (*form[:1], *place[len(form) :]))
        message = error["msg"].removeprefix("Value error, ")  # pydantic's prefix of our own messages
        reasons[f"{where}: {message}" if where else message] = None
    return "; ".join(list(reasons)[:6])[:2000]
