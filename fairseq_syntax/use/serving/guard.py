"""Limits on what a client may send, and how slowly, before the application sees it; and what every answer has.

Host names are Starlette's matter (``TrustedHostMiddleware``), the size of a request's head uvicorn's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairseq_syntax.errors import SyntaxDataError

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

_HOST = re.compile(r"(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*|\[[0-9a-f:.]+\]")
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def allowed_hosts(listening: str, further: Iterable[str] = ()) -> list[str] | None:
    """The hosts that Starlette's ``TrustedHostMiddleware`` is to let in; None: any.

    One that listens on this machine alone is asked as ``localhost`` or by address. Another name in a browser's request
    says that a page from elsewhere, whose name was made to point here, wants to read the answers (DNS rebinding).

    Args:
        listening: the address that the server listens on
        further: names that a proxy passes on, such as ``translate.example.org`` or ``*.example.org``; ``*`` for any

    Raises:
        SyntaxDataError: one of them is not a host name, such as a URL
    """
    further = [_host(name) for name in further]
    for name in further:
        if not (name == "*" or _HOST.fullmatch(name)):
            hint = "without scheme, port or path, as in translate.example.org"
            raise SyntaxDataError(f"--allowed-host takes a host name, not {name!r}", hint=hint)
    try:
        loopback = listening.lower() == "localhost" or ipaddress.ip_address(listening).is_loopback
    except ValueError:
        loopback = False
    if "*" in further or not loopback:
        return None
    return ["localhost", "127.0.0.1", "[::1]", _host(listening), *further]


def _host(name: str) -> str:
    """As a request's ``Host`` has it."""
    name = name.lower().rstrip(".")
    return f"[{name}]" if ":" in name and not name.startswith("[") and _is_ipv6(name) else name


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


class Guard:
    """ASGI middleware: how large and how slow a request may be, the headers of every answer, and their count.

    Args:
        app: what comes after
        max_bytes: of a body; more is answered 413
        seconds: for the body to arrive; later is answered 408
        answered: called with path, status and seconds of each answer
        paths: those that are counted under their own names; others are ``other``
    """

    def __init__(
        self,
        app: Application,
        max_bytes: int,
        seconds: float,
        answered: Callable[[str, int, float], None],
        paths: frozenset[str],
    ) -> None:
        self.app, self.max_bytes, self.seconds = app, max_bytes, seconds
        self.answered, self.paths = answered, paths

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

        headers = dict(scope["headers"])
        if b"transfer-encoding" in headers and b"content-length" in headers:
            # A proxy may have read the other one: what follows could be a request of somebody else's (RFC 9112, 6.1).
            await _refuse(answer, 400, "Content-Length and Transfer-Encoding exclude each other", close=True)
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


async def _refuse(send: Send, status: int, reason: str, *, close: bool = False) -> None:
    body = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
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
