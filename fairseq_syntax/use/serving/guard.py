"""Limits for clients: host names, request sizes, timeouts and disconnects.

h11 limits the size of a request's headers; :mod:`.server` bounds connections, and the time in which a request arrives.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairseq_syntax.use.serving.batching import Cancelled
from fairseq_syntax.use.serving.prometheus import Metrics


def allowed_hosts(listening: str, further: Iterable[str] = ()) -> list[str] | None:
    """The host names that :class:`HostNames` accepts; None accepts any.

    A server that listens on the loopback interface is addressed as ``localhost`` or by its IP address. Any other name
    in a browser's request means DNS rebinding: a foreign page has pointed its own name here to read the answers.

    Args:
        listening: the address that the server listens on
        further: names that a proxy passes on, such as ``translate.example.org`` or ``*.example.org``; ``*`` accepts any
    """
    further = [name.lower().rstrip(".") for name in further]
    try:
        loopback = listening.lower() == "localhost" or ipaddress.ip_address(listening).is_loopback
    except ValueError:
        loopback = False
    return ["localhost", "127.0.0.1", "[::1]", listening, *further] if loopback and "*" not in further else None


def refusal(reason: Any, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer to a request that is refused; LibreTranslate's clients read ``error``."""
    return JSONResponse({"detail": reason, "error": reason}, status, headers)


class HostNames:
    """ASGI middleware that rejects other host names, as Starlette's does, but with our answer to a refusal.

    Args:
        hosts: accepted names (:func:`allowed_hosts`); None accepts any
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str] | None) -> None:
        self.app, self.check = app, TrustedHostMiddleware(self._accept, hosts, www_redirect=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused: list[Message] = []

        async def keep(message: Message) -> None:
            refused.append(message)

        await self.check(scope, receive, keep)
        if refused:
            reason = "this server does not answer to the host name of the request; serve --allowed-host adds one"
            await refusal(reason, refused[0]["status"])(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    @staticmethod
    async def _accept(scope: Scope, receive: Receive, send: Send) -> None:
        """The application behind Starlette's check, which is reached only by accepted names."""


class Guard:
    """ASGI middleware that rejects bodies that are too large or have two lengths, and counts and times the answers.

    Args:
        paths: the paths that are counted by name; all others are counted as ``other``
    """

    def __init__(self, app: ASGIApp, max_bytes: int, metrics: Metrics, paths: frozenset[str]) -> None:
        self.app, self.max_bytes, self.metrics, self.paths = app, max_bytes, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"] if scope["path"] in self.paths else "other"
        begin, size = time.perf_counter(), 0

        def count(status: int) -> None:
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - begin)

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            # Counted on arrival, since a chunked body does not announce its size.
            size += len(message.get("body", b""))
            if size > self.max_bytes:
                raise HTTPException(413, f"the request is larger than {self.max_bytes} bytes")
            return message

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
            await send(message)

        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            # A proxy may have used the other header, so the rest could be taken for another client's request (request
            # smuggling; RFC 9112, section 6.1). uvicorn would ignore Content-Length and keep the connection open.
            reason = "Content-Length and Transfer-Encoding exclude each other"
            await refusal(reason, 400, {"connection": "close"})(scope, receive, answer)
            return
        try:
            await self.app(scope, limited, answer)
        except Exception:  # Starlette's outer middleware answers it
            count(500)
            raise


async def in_time(work: Coroutine[Any, Any, Any], request: Request, timeout: float) -> Any:
    """Await work for a client, and cancel it on a timeout or when the client disconnects.

    Args:
        request: the client's request, whose body has been read
        timeout: in seconds

    Raises:
        HTTPException: 504 after the timeout; 499, which nobody reads, if the client has disconnected; 503 if the server
            is shutting down
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        # The stages check the deadline themselves, and may cancel the work just before this timeout.
        if task.done() and not isinstance(task.exception(), Cancelled):
            return task.result()
        raise HTTPException(499 if gone.done() else 504, f"no translation within {timeout:g} seconds")
    except asyncio.CancelledError:  # uvicorn cancels open requests after its grace period
        if task.cancelled():
            raise
        raise HTTPException(503, "the server ends") from None
    finally:
        task.cancel()
        gone.cancel()
