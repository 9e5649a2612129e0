"""LibreTranslate's API, so that LibreTranslate clients work with this server.

It follows LibreTranslate 1.6: ``POST /translate`` with ``q``, ``source``, ``target`` and ``format``, and
``GET /languages``. Errors are ``{"error": reason}``.
"""

from __future__ import annotations

import html
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from fastapi import HTTPException, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.serving.guard import in_time
from fairseq_syntax.use.serving.messages import MAX_BEAM, MAX_CHARACTERS, MAX_SENTENCES, FromText, explained
from fairseq_syntax.use.serving.service import Service

# White space that separates the units of translation: at both ends, around line breaks, and after a sentence (final
# punctuation and closing quotes that are not followed by a lowercase letter). Every alternative starts at the first
# white-space character, and unclosed markup extends to the end of the text, so matching takes linear time.
_BETWEEN = re.compile(
    r"(\A\s+|(?<!\s)\s+\Z|(?<!\s)\s*\n\s*"
    r"|(?:(?<=[.!?…。！？])|(?<=[.!?…。！？][\"'”’»)\]]))\s+(?=[^\sa-zß-öø-ÿ]))"
)
_MARKUP = re.compile(
    r"(<!--.*?(?:-->|\Z)|<(?:script|style)\b.*?(?:</(?:script|style)\s*>|\Z)|</?[a-z!?][^<>]*>)", re.DOTALL | re.I
)
_NAMES = """
ar Arabic, bg Bulgarian, cs Czech, da Danish, de German, el Greek, en English, es Spanish, et Estonian, fa Persian,
fi Finnish, fr French, he Hebrew, hi Hindi, hu Hungarian, id Indonesian, it Italian, ja Japanese, ko Korean,
lt Lithuanian, lv Latvian, nl Dutch, no Norwegian, pl Polish, pt Portuguese, ro Romanian, ru Russian, sk Slovak,
sl Slovenian, sv Swedish, th Thai, tr Turkish, uk Ukrainian, vi Vietnamese, zh Chinese
"""


def language(code: str) -> str:
    """The language of a locale code: ``en`` for ``en_US`` and ``en-us``."""
    return re.split(r"[-_]", code.lower())[0]


def languages_of(service: Service) -> list[dict[str, Any]]:
    """The response of ``/languages``: the source language and the models' target languages."""
    source = language(service.models[service.default].source_lang)
    targets = sorted({language(model.target_lang) for model in service.models.values()})
    names: dict[str, str] = dict(pair.split() for pair in _NAMES.split(","))
    return [
        {"code": code, "name": names.get(code, code), "targets": targets if code == source else []}
        for code in dict.fromkeys((source, *targets))
    ]


def route_of(service: Service, timeout: float) -> type[APIRoute]:
    """A route class that handles LibreTranslate requests (forms, and JSON with ``q``) and passes on all others.

    Args:
        service: parses and translates
        timeout: maximum time per request, in seconds
    """

    class Route(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            otherwise = super().get_route_handler()

            async def handler(request: Request) -> Response:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                try:
                    body = await request.body()  # Starlette keeps the body, so `otherwise` can read it again
                except ClientDisconnect:  # in the middle of the body, or uvicorn has rejected a malformed one
                    return Response(status_code=499)
                try:
                    fields = _fields(kind, body)
                    if fields is not None:
                        work = _translated(service, fields, time.monotonic() + timeout)
                        return JSONResponse(await in_time(work, request, timeout))
                except SyntaxDataError as error:
                    return _error(400, error.message)
                except ValidationError as error:
                    return _error(400, explained(error.errors()))
                except HTTPException as error:
                    return _error(error.status_code, error.detail, error.headers)
                return await otherwise(request)

            return handler

    return Route


def _fields(kind: str, body: bytes) -> dict[str, Any] | None:
    """The fields of a LibreTranslate request; None for any other request."""
    if kind == "application/x-www-form-urlencoded":
        try:
            fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=MAX_SENTENCES + 20)
        except ValueError as error:
            raise SyntaxDataError(f"Invalid request: {error}") from error
        return {name: values if name == "q" and len(values) > 1 else values[0] for name, values in fields.items()}
    try:
        # FastAPI parses all other bodies, so parse only what may be LibreTranslate's.
        value = json.loads(body) if b'"q"' in body else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and "q" in value else None


def _error(status: int, reason: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": reason.encode("utf-8", "replace").decode()}, status, headers=headers)


async def _translated(service: Service, fields: Mapping[str, Any], deadline: float) -> dict[str, Any]:
    for name in ("q", "source", "target"):
        if not fields.get(name):
            raise SyntaxDataError(f"Invalid request: missing {name} parameter")
    several = isinstance(fields["q"], list)
    texts = fields["q"] if several else [fields["q"]]
    if len(texts) > MAX_SENTENCES or not all(isinstance(text, str) for text in texts):
        raise SyntaxDataError(f"Invalid request: q parameter is not a text, or at most {MAX_SENTENCES} texts")
    if sum(map(len, texts)) > (most := MAX_SENTENCES * MAX_CHARACTERS):
        raise SyntaxDataError(f"Invalid request: q parameter has more than {most} characters")
    form = fields.get("format") or "text"
    if form not in ("text", "html"):
        raise SyntaxDataError(f"{form} format is not supported")
    number = str(fields.get("alternatives", 0))
    if not re.fullmatch("[0-9]{1,4}", number) or int(number) >= MAX_BEAM:
        raise SyntaxDataError(f"Invalid request: alternatives parameter is not a number below {MAX_BEAM}")
    source, target = str(fields["source"]), str(fields["target"])
    source_lang = service.models[service.default].source_lang
    if source != "auto" and language(source) != language(source_lang):
        raise SyntaxDataError(f"{source} is not supported")
    model = next((m.name for m in service.models.values() if language(m.target_lang) == language(target)), None)
    if model is None:
        raise SyntaxDataError(f"{target} is not available as a target language from {source_lang}")
    sentences: list[str] = []
    joins = [_apart(text, sentences, markup=form == "html") for text in texts]
    translations: list[list[str]] = [[] for _ in sentences]  # per sentence, best first
    ranks = range(int(number) + 1)
    if sentences:
        request = FromText(text=sentences, model=model, nbest=len(ranks))
        for hypothesis in (await service.translate(request, deadline)).translations:
            translations[hypothesis.sentence].append(hypothesis.text)
    # A search may return fewer translations than requested; the last one is repeated.
    joined = [[join([best[min(rank, len(best) - 1)] for best in translations]) for rank in ranks] for join in joins]
    result: dict[str, list[Any]] = {"translatedText": [best for best, *_ in joined]}
    if len(ranks) > 1:
        result["alternatives"] = [others for _, *others in joined]
    if source == "auto":  # there is only one source language, so nothing is detected
        result["detectedLanguage"] = [{"confidence": 0, "language": language(source_lang)}] * len(texts)
    return result if several else {name: values[0] for name, values in result.items()}


def _apart(text: str, sentences: list[str], *, markup: bool) -> Callable[[Sequence[str]], str]:
    """Split a text into sentences; returns a function that joins their translations.

    Args:
        sentences: the list to which the text's sentences are appended
        markup: whether the text is HTML, in which only the text between tags is translated
    """
    parts: list[str | int] = []  # text that is kept, and indices of sentences
    for place, part in enumerate(_MARKUP.split(text) if markup else [text]):
        if place % 2:  # separators, captured by the group of the pattern
            parts.append(part)
            continue
        for gap, piece in enumerate(_BETWEEN.split(html.unescape(part) if markup else part)):
            if gap % 2 or not piece:
                parts.append(piece)
            else:
                if len(sentences) == MAX_SENTENCES:
                    raise SyntaxDataError(f"Invalid request: q parameter has more than {MAX_SENTENCES} sentences")
                parts.append(len(sentences))
                sentences.append(" ".join(piece.split()))

    def join(translations: Sequence[str]) -> str:
        escape = partial(html.escape, quote=False) if markup else str
        return "".join(escape(translations[p]) if isinstance(p, int) else p for p in parts)

    return join
