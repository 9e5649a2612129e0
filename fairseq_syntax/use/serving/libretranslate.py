"""LibreTranslate's API, so that LibreTranslate clients work with this server.

It follows LibreTranslate 1.6: ``POST /translate`` with ``q``, ``source``, ``target`` and ``format``, and
``GET /languages``. Errors are ``{"error": reason}``.
"""

from __future__ import annotations

import html
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from email.parser import BytesParser
from email.policy import HTTP
from itertools import islice
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

from fastapi import HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import from_json

from fairseq_syntax.corpus.words import language_of
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.serving.guard import in_time
from fairseq_syntax.use.serving.markup import units
from fairseq_syntax.use.serving.messages import (
    MAX_BEAM,
    MAX_CHARACTERS,
    MAX_SENTENCES,
    TranslateRequest,
    listed,
    validated,
)
from fairseq_syntax.use.serving.service import Service

MOST = MAX_SENTENCES * MAX_CHARACTERS
# Of the alphabets with case: Latin, Greek, Cyrillic and Armenian. (Georgian sentences begin with lowercase letters.)
_LOWERCASE = "".join(filter(str.islower, map(chr, [*range(0x590), *range(0x1E00, 0x2000)])))
# White space that separates the units of translation: at both ends, around line breaks, and after a sentence (final
# punctuation and closing quotes that are not followed by a lowercase letter). Every alternative starts at the first
# white-space character, and unclosed markup extends to the end of the text, so matching takes linear time.
_BETWEEN = re.compile(
    r"(\A\s+|(?<!\s)\s+\Z|(?<!\s)\s*\n\s*"
    r"|(?:(?<=[.!?…。！？])|(?<=[.!?…。！？][\"'”’»)\]]))\s+"
    rf"(?=[^\s{_LOWERCASE}]))"
)
_NAMES = """
ar Arabic, bg Bulgarian, cs Czech, da Danish, de German, el Greek, en English, es Spanish, et Estonian, fa Persian,
fi Finnish, fr French, he Hebrew, hi Hindi, hu Hungarian, id Indonesian, it Italian, ja Japanese, ko Korean,
lt Lithuanian, lv Latvian, nl Dutch, no Norwegian, pl Polish, pt Portuguese, ro Romanian, ru Russian, sk Slovak,
sl Slovenian, sv Swedish, th Thai, tr Turkish, uk Ukrainian, vi Vietnamese, zh Chinese
"""


class _Ask(BaseModel):
    """A request; other fields, such as ``api_key``, are ignored."""

    q: Annotated[
        list[str],
        Field(min_length=1, max_length=MAX_SENTENCES, fail_fast=True),
        BeforeValidator(lambda q: listed(q or [])),
    ]
    source: str
    target: str
    format: Annotated[Literal["text", "html"], BeforeValidator(lambda form: form or "text")] = "text"
    alternatives: int = Field(0, ge=0, lt=MAX_BEAM)


def languages_of(service: Service) -> list[dict[str, Any]]:
    """The response of ``/languages``: the source language and the models' target languages."""
    source = language_of(service.models[service.default].source_lang)
    models = _targets(service)
    # A variety, such as pt-br, has an entry only if its language is another model's.
    targets = sorted(code for code, model in models.items() if model != models[language_of(code)] or "-" not in code)
    names: dict[str, str] = dict(pair.split() for pair in _NAMES.split(","))
    known = sorted(_languages(service))
    of_all = sorted({*targets, *known})
    return [
        {"code": code, "name": names.get(code, code), "targets": of_all if code in (source, *known) else []}
        for code in dict.fromkeys((source, *targets, *known))
    ]


def _languages(service: Service) -> dict[str, str]:
    """The names that a multilingual default model has for its languages, by code; empty for other models."""
    names: list[str] = [*service.models[service.default].languages]
    short = Counter(map(language_of, names))
    return {language_of(name) if short[language_of(name)] == 1 else _code(name): name for name in names}


def _targets(service: Service) -> dict[str, str]:
    """The models' names by target codes: the languages, each of its first model, and varieties such as ``pt-br``."""
    codes = {model.name: _code(model.target_lang) for model in reversed(service.models.values())}
    return {language_of(code): name for name, code in codes.items()} | {code: name for name, code in codes.items()}


def _code(lang: str) -> str:
    return lang.replace("_", "-").lower()


async def answer(service: Service, request: Request, body: bytes, timeout: float) -> JSONResponse | None:
    """The response to a LibreTranslate request, a form or JSON with ``q``; None for any other request."""
    try:
        fields = _fields(request.headers.get("content-type", ""), body)
        if fields is None:
            return None
        ask = validated(_Ask, fields)
        work = _translated(service, ask, isinstance(fields["q"], list), time.monotonic() + timeout)
        return JSONResponse(await in_time(work, request, timeout))
    except SyntaxDataError as error:
        return JSONResponse({"error": error.message}, 400)
    except HTTPException as error:
        return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


def _fields(kind: str, body: bytes) -> dict[str, Any] | None:
    name = kind.lower().partition(";")[0].strip()
    if name == "multipart/form-data":
        return _listed(_multipart(kind, body))
    if name == "application/x-www-form-urlencoded":
        if body.lstrip()[:1] in (b"{", b"["):
            raise SyntaxDataError(
                "this is JSON, and its header says that it is a form: send content-type: application/json"
            )
        try:
            return _listed(parse_qs(body.decode("utf-8", "replace"), max_num_fields=MAX_SENTENCES + 20))
        except ValueError as error:
            raise SyntaxDataError(str(error)) from None
    try:
        value = from_json(body) if b'"q"' in body else None
    except ValueError:
        return None
    return value if isinstance(value, dict) and "q" in value else None


def _listed(fields: Mapping[str, list[str]]) -> dict[str, Any]:
    """The fields of a form, of which one with several values is a list."""
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


def _multipart(kind: str, body: bytes) -> dict[str, list[str]]:
    """The fields of a form in parts, as LibreTranslate's page and ``curl -F`` send it."""
    message = BytesParser(policy=HTTP).parsebytes(b"content-type: " + kind.encode("latin-1") + b"\r\n\r\n" + body)
    parts = list(islice(message.iter_parts(), MAX_SENTENCES + 20)) if message.is_multipart() else []
    if not parts:
        raise SyntaxDataError("this is no form of several parts, as its header says")
    fields: dict[str, list[str]] = {}
    for part in parts:
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and isinstance(content, bytes):
            fields.setdefault(name, []).append(content.decode("utf-8", "replace"))
    return fields


async def _translated(service: Service, ask: _Ask, several: bool, deadline: float) -> dict[str, Any]:
    """The response as JSON values; ``several``: whether ``q`` was a list."""
    if sum(map(len, ask.q)) > MOST:
        raise SyntaxDataError(f"q has more than {MOST} characters")
    default = service.models[service.default]
    source = language_of(default.source_lang)
    targets = _targets(service)
    model = targets.get(_code(ask.target), targets.get(language_of(ask.target)))
    # A multilingual default model translates between any two of its languages.
    known = _languages(service)
    names = [known.get(_code(code)) or known.get(language_of(code)) for code in (ask.source, ask.target)]
    chosen: dict[str, str] = {}
    if ask.source != "auto" and language_of(ask.source) != source:
        if names[0] is None:
            raise SyntaxDataError(f"{ask.source} is not supported")
        model, chosen = service.default if names[1] else None, {"source_name": names[0], "target_name": names[1] or ""}
    elif model is None and names[1] is not None:
        model, chosen = service.default, {"target_name": names[1]}
    if model is None:
        raise SyntaxDataError(f"{ask.target} is not available as a target language from {source}")
    sentences: list[str] = []
    texts = [_apart(text, sentences, markup=ask.format == "html") for text in ask.q]
    best: list[list[str]] = [[] for _ in sentences]  # the translations of each sentence, best first
    if sentences:
        wanted = {"text": sentences, "model": model, "nbest": ask.alternatives + 1, **chosen}
        request = validated(TranslateRequest, wanted)
        for hypothesis in (await service.translate(request, deadline)).translations:
            best[hypothesis.sentence].append(hypothesis.text)
    # A search may return fewer translations than requested; the last one is repeated.
    ranks = [[of_one[min(rank, len(of_one) - 1)] for of_one in best] for rank in range(ask.alternatives + 1)]
    first, *others = [[_joined(parts, chosen, ask.format == "html") for parts in texts] for chosen in ranks]
    result: dict[str, list[Any]] = {"translatedText": first}
    if others:
        result["alternatives"] = [list(of_text) for of_text in zip(*others)]
    if ask.source == "auto":  # there is only one source language, so nothing is detected
        result["detectedLanguage"] = [{"confidence": 0, "language": source}] * len(texts)
    return result if several else {name: values[0] for name, values in result.items()}


def _apart(text: str, sentences: list[str], *, markup: bool) -> list[str | int]:
    """Split a text, or HTML, into what is kept and the indices of its sentences, which ``sentences`` receives."""
    parts: list[str | int] = []
    pieces = units(text, _BETWEEN) if markup else ((not gap % 2, p) for gap, p in enumerate(_BETWEEN.split(text)) if p)
    for is_sentence, piece in pieces:
        if not is_sentence:
            parts.append(piece)
            continue
        if len(sentences) == MAX_SENTENCES:
            raise SyntaxDataError(f"q has more than {MAX_SENTENCES} sentences")
        parts.append(len(sentences))
        sentences.append(" ".join(piece.split()))
    return parts


def _joined(parts: Sequence[str | int], translations: Sequence[str], markup: bool) -> str:
    """The text of :func:`_apart` with these translations of its sentences."""
    said = [html.escape(text, quote=False) for text in translations] if markup else translations
    return "".join(said[part] if isinstance(part, int) else part for part in parts)
