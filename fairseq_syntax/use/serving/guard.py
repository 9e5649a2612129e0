"""Limits on what a client may send, and how slowly, before the application sees it; and what every answer has."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairseq_syntax.errors import SyntaxDataError

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def names_of(listening: str, further: Iterable[str] = ()) -> frozenset[str] | None:
    """The names under which a server may be asked; None: any.

    One that listens on this machine alone is asked as ``localhost`` or by address. Another name in a browser's request
    says that a page from elsewhere, whose name was made to point here, wants to read the answers (DNS rebinding).

    Args:
        listening: the address that the server listens on
        further: names that a proxy passes on; ``*`` for any

    Raises:
        SyntaxDataError: one of them is no name, such as an URL
    """
    further = {name.lower().rstrip(".") for name in further}
    for name in further - {"*"}:
        if _name(name) != name and not _address(name):
            hint = "without scheme, port or path, as in translate.example.org"
            raise SyntaxDataError(f"--allowed-host takes the name of a host, not {name!r}", hint=hint)
    if "*" in further or not (listening.lower() == "localhost" or _loopback(listening)):
        return None
    return frozenset({"localhost"} | further)


def _loopback(address: str) -> bool:
    found = _address(address)
    return found is not None and found.is_loopback


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _name(header: str) -> str | None:
    """The name in a request's Host, without its port; None for an address and for nothing."""
    try:
        host = urlsplit("//" + header).hostname
    except ValueError:
        return header
    return None if host is None or _address(host) else host.rstrip(".")


class Guard:
    """ASGI middleware: which names are answered, how large and how slow a request may be, and the count of answers.

    Args:
        app: what comes after
        max_bytes: of a body; more is answered 413
        seconds: for the body to arrive; later is answered 408
        answered: called with path, status and seconds of each answer
        paths: those that are counted under their own names; others are ``other``
        names: under which it answers (:func:`names_of`); others are answered 421
    """

    def __init__(
        self,
        app: Application,
        max_bytes: int,
        seconds: float,
        answered: Callable[[str, int, float], None],
        paths: frozenset[str],
        names: frozenset[str] | None = None,
    ) -> None:
        self.app, self.max_bytes, self.seconds = app, max_bytes, seconds
        self.answered, self.paths, self.names = answered, paths, names

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin = time.perf_counter()
        answering = False

        async def answer(message: Message) -> None:
            nonlocal answering
            answering = True
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
                path = scope["path"] if scope["path"] in self.paths else "other"
                self.answered(path, message["status"], time.perf_counter() - begin)
            await send(message)

        name = _name(dict(scope["headers"]).get(b"host", b"").decode("latin-1"))
        if self.names is not None and name is not None and name not in self.names:
            await _refuse(answer, 421, f"this server does not answer as {name!r} (serve --allowed-host {name})")
            return
        try:
            body = await asyncio.wait_for(self._body(scope, receive), self.seconds)
        except asyncio.TimeoutError:
            await _refuse(answer, 408, f"the request did not arrive within {self.seconds:g} seconds")
            return
        if body is None:
            await _refuse(answer, 413, f"the request is larger than {self.max_bytes} bytes")
            return
        left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return left.pop() if left else await receive()

        try:
            await self.app(scope, replay, answer)
        except Exception:  # here, that it is counted and has its headers: the application's own answer has neither
            if answering:
                raise
            logger.exception("%s %s", scope["method"], scope["path"])
            await _refuse(answer, 500, "a defect of the server; its log says more")

    async def _body(self, scope: Message, receive: Receive) -> bytes | None:
        """The body; None where it is too large. Of a client that has gone, what came."""
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self.max_bytes:
            return None
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self.max_bytes:
                return None
            if message["type"] == "http.disconnect" or not message.get("more_body", False):
                return bytes(body)


async def _refuse(send: Send, status: int, reason: str) -> None:
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class ImpatientProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which also closes connections whose request does not come to its end.

    uvicorn itself waits for a request's headers as long as the client likes.
    """

    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, seconds: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.seconds = seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(self.seconds, self._close_late)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            if self._deadline is None:
                self._deadline = self.loop.call_later(self.seconds, self._close_late)
        else:
            self._in_time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close_late(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.abort()
