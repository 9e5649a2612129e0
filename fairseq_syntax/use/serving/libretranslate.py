"""LibreTranslate's API beside ours, so that its clients work against this server.

As of LibreTranslate 1.6: ``POST /translate`` with ``q``, ``source``, ``target`` and ``format``, and ``GET /languages``.
Errors are ``{"error": reason}``.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs

from fastapi.responses import JSONResponse

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.serving.messages import MAX_BEAM, MAX_CHARACTERS, MAX_SENTENCES, FromText
from fairseq_syntax.use.serving.service import FullError, Service

# End of a sentence: its mark and quotes, white space, and a beginning that is no small letter.
_SENTENCE = re.compile(r"(?<=[.!?…。！？])[\"'”’»)\]]*\s+(?=[^\sa-zß-öø-ÿ])|\n+")
_NAMES = """
ar Arabic, bg Bulgarian, cs Czech, da Danish, de German, el Greek, en English, es Spanish, et Estonian, fa Persian,
fi Finnish, fr French, he Hebrew, hi Hindi, hu Hungarian, id Indonesian, it Italian, ja Japanese, ko Korean,
lt Lithuanian, lv Latvian, nl Dutch, no Norwegian, pl Polish, pt Portuguese, ro Romanian, ru Russian, sk Slovak,
sl Slovenian, sv Swedish, th Thai, tr Turkish, uk Ukrainian, vi Vietnamese, zh Chinese
"""


def language(code: str) -> str:
    """The language that a client asks for, or a model has: ``en`` for ``en_US`` and ``en-us``."""
    return re.split(r"[-_]", code.lower())[0]


def languages_of(service: Service) -> list[dict[str, Any]]:
    """What ``/languages`` answers: the source language, with the target languages of the models."""
    models = list(service.models.values())
    source = language(models[0].source_lang)
    targets = sorted({language(model.target_lang) for model in models})
    names: dict[str, str] = dict(pair.split() for pair in _NAMES.split(","))
    reached = {source: targets}  # from another language nothing is translated
    codes = dict.fromkeys((source, *targets))
    return [{"code": code, "name": names.get(code, code), "targets": reached.get(code, [])} for code in codes]


class LibreTranslate:
    """ASGI middleware that answers requests to ``/translate`` that are LibreTranslate's: forms, and JSON with ``q``.

    Args:
        app: answers all others; bodies come whole from before, as from :class:`.guard.Guard`
        service: translates
        timeout: seconds for an answer
    """

    def __init__(self, app: Any, service: Service, timeout: float) -> None:
        self.app, self.service, self.timeout = app, service, timeout

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("POST", "/translate"):
            await self.app(scope, receive, send)
            return
        first: list[Any] = [await receive()]

        async def replay() -> Any:
            return first.pop() if first else await receive()

        kind = dict(scope["headers"]).get(b"content-type", b"").partition(b";")[0].strip().lower()
        body = _body_of(kind, first[0].get("body", b""))
        if body is None:
            await self.app(scope, replay, send)
            return
        response = await self._answer(body, receive)
        if response is not None:
            await response(scope, receive, send)

    async def _answer(self, body: Mapping[str, Any], receive: Any) -> JSONResponse | None:
        """The answer; None where the client has gone."""
        try:
            work = _translated(self.service, body, time.monotonic() + self.timeout)
            answer = await in_time(work, receive, self.timeout)
            return None if answer is None else JSONResponse(answer)
        except SyntaxDataError as error:
            return _error(400, error.message)
        except FullError as error:
            return _error(503, str(error), {"retry-after": "1"})
        except asyncio.TimeoutError:
            return _error(504, f"no translation within {self.timeout:g} seconds")


def _body_of(kind: bytes, body: bytes) -> dict[str, Any] | None:
    """A request's fields, where it is one of LibreTranslate's."""
    if kind == b"application/x-www-form-urlencoded":
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=MAX_SENTENCES + 20)
        return {name: values if name == "q" and len(values) > 1 else values[0] for name, values in fields.items()}
    if b'"q"' not in body:
        return None
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and "q" in found else None


async def in_time(work: Coroutine[Any, Any, Any], receive: Any, timeout: float) -> Any:
    """The result of work for a client; None where the client has gone.

    Args:
        receive: of ASGI, whose request has come whole

    Raises:
        asyncio.TimeoutError: it takes longer than ``timeout`` seconds
    """

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            return None
        raise asyncio.TimeoutError
    finally:
        task.cancel()
        gone.cancel()


def _error(status: int, reason: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": reason.encode("utf-8", "replace").decode()}, status, headers=headers)


async def _translated(service: Service, body: Mapping[str, Any], deadline: float) -> dict[str, Any]:
    for name in ("q", "source", "target"):
        if not body.get(name):
            raise SyntaxDataError(f"Invalid request: missing {name} parameter")
    texts, several = (body["q"], True) if isinstance(body["q"], list) else ([body["q"]], False)
    if len(texts) > MAX_SENTENCES:
        raise SyntaxDataError(f"Invalid request: request ({len(texts)}) exceeds limit ({MAX_SENTENCES})")
    if not all(isinstance(text, str) for text in texts):
        raise SyntaxDataError("Invalid request: q parameter is not a text")
    kind = body.get("format") or "text"
    if kind not in ("text", "html"):
        raise SyntaxDataError(f"{kind} format is not supported")
    number = str(body.get("alternatives", 0))
    if not number.isdecimal() or int(number) >= MAX_BEAM:
        raise SyntaxDataError(f"Invalid request: alternatives parameter is not a number below {MAX_BEAM}")
    count = int(number)
    source, target = (str(body[name]) for name in ("source", "target"))
    known = service.models[service.default].source_lang
    if source != "auto" and language(source) != language(known):
        raise SyntaxDataError(f"{source} is not supported")
    model = next((m.name for m in service.models.values() if language(m.target_lang) == language(target)), None)
    if model is None:
        raise SyntaxDataError(f"{target} is not available as a target language from {known}")
    work = _Work(kind == "html")
    places = [work.add(text) for text in texts]
    if len(work.sentences) > MAX_SENTENCES:
        raise SyntaxDataError(f"Invalid request: {len(work.sentences)} sentences exceed the limit ({MAX_SENTENCES})")
    longest = max(map(len, work.sentences), default=0)
    if longest > MAX_CHARACTERS:
        raise SyntaxDataError(f"Invalid request: request ({longest}) exceeds text limit ({MAX_CHARACTERS})")
    found: list[list[str]] = []
    if work.sentences:
        request = FromText(text=work.sentences, model=model, nbest=count + 1)
        answered = await service.translate(request, deadline)
        found = [[] for _ in work.sentences]
        for hypothesis in answered.translations:
            found[hypothesis.sentence].append(hypothesis.text)
    said = [place(lambda number: found[number][0]) for place in places]
    result: dict[str, Any] = {"translatedText": said if several else said[0]}
    if count:
        others = [
            [place(lambda number, rank=rank: found[number][rank]) for rank in range(1, count + 1)]  # type: ignore[misc]
            for place in places
        ]
        result["alternatives"] = others if several else others[0]
    if source == "auto":
        detected = {"confidence": 0, "language": language(known)}  # nothing is detected: there is one language
        result["detectedLanguage"] = [detected] * len(texts) if several else detected
    return result


class _Work:
    """The sentences of texts, and how each text is put together again.

    Args:
        html: whether tags and entities are markup, of which only the text between is translated
    """

    def __init__(self, html: bool) -> None:
        self.html, self.sentences = html, list[str]()

    def add(self, text: str) -> Callable[[Callable[[int], str]], str]:
        """Take a text apart; gives what puts it together from the translation of each sentence by its number."""
        parts = _markup(text) if self.html else [(True, text)]
        pieces: list[str | int] = []
        for translate, part in parts:
            pieces += self._sentences(part) if translate else [part]
        escape = _escape if self.html else str

        def join(said: Callable[[int], str]) -> str:
            return "".join(escape(said(piece)) if isinstance(piece, int) else piece for piece in pieces)

        return join

    def _sentences(self, text: str) -> list[str | int]:
        """White space as it is, and the numbers of sentences."""
        pieces: list[str | int] = []
        at = 0
        for end in [*(match.span() for match in _SENTENCE.finditer(text)), (len(text), len(text))]:
            gap = text[end[0] : end[1]]
            marks = gap[: len(gap) - len(gap.lstrip("\"'”’»)]"))]
            sentence = text[at : end[0]] + marks
            if sentence.strip():
                before = sentence[: len(sentence) - len(sentence.lstrip())]
                after = sentence[len(sentence.rstrip()) :]
                pieces += [before, len(self.sentences), after + gap[len(marks) :]]
                self.sentences.append(" ".join(sentence.split()))
            else:
                pieces.append(sentence + gap[len(marks) :])
            at = end[1]
        return pieces


def _escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _markup(text: str) -> list[tuple[bool, str]]:
    """HTML as parts: whether each is text to translate (its entities are characters), or markup as it stands."""
    parser = _Parts()
    parser.feed(text)
    parser.close()
    return parser.parts


class _Parts(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[tuple[bool, str]] = []
        self._raw = 0  # inside a script or a style

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._raw += tag in ("script", "style")
        self.parts.append((False, self.get_starttag_text() or ""))

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.parts.append((False, self.get_starttag_text() or ""))

    def handle_endtag(self, tag: str) -> None:
        self._raw = max(0, self._raw - (tag in ("script", "style")))
        self.parts.append((False, f"</{tag}>"))

    def handle_data(self, data: str) -> None:
        self.parts.append((not self._raw, data))

    def handle_comment(self, data: str) -> None:
        self.parts.append((False, f"<!--{data}-->"))

    def handle_decl(self, decl: str) -> None:
        self.parts.append((False, f"<!{decl}>"))
