"""Protection from clients: host names, request sizes, timeouts and disconnects.

The size of a request's head is uvicorn's matter. Who sends slowly holds up nobody else; a proxy cuts such clients off.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairseq_syntax.use.serving.batching import Cancelled


def allowed_hosts(listening: str, further: Iterable[str] = ()) -> list[str] | None:
    """The hosts that Starlette's ``TrustedHostMiddleware`` accepts; None: any.

    One that listens on this machine alone is asked as ``localhost`` or by address. Another name in a browser's request
    says that a page from elsewhere, whose name was made to point here, wants to read the answers (DNS rebinding).

    Args:
        listening: the address that the server listens on
        further: names that a proxy passes on, such as ``translate.example.org`` or ``*.example.org``; ``*`` for any
    """
    further = [name.lower().rstrip(".") for name in further]
    try:
        loopback = listening.lower() == "localhost" or ipaddress.ip_address(listening).is_loopback
    except ValueError:
        loopback = False
    return ["localhost", "127.0.0.1", "[::1]", listening, *further] if loopback and "*" not in further else None


class Guard:
    """ASGI middleware that bounds the size of requests, and counts them.

    Args:
        app: what comes after
        max_bytes: of a body; more is answered 413
        answered: called with path, status and seconds of each answer
        paths: those that are counted under their own names; others are ``other``
    """

    def __init__(
        self, app: ASGIApp, max_bytes: int, answered: Callable[[str, int, float], None], paths: frozenset[str]
    ) -> None:
        self.app, self.max_bytes, self.answered, self.paths = app, max_bytes, answered, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, size = time.perf_counter(), 0

        def count(status: int) -> None:
            path = scope["path"] if scope["path"] in self.paths else "other"
            self.answered(path, status, time.perf_counter() - begin)

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            # As it comes: a body in chunks does not say before how large it is.
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
            # A proxy may have read the other one: what follows could be a request of somebody else's (RFC 9112, 6.1).
            reason = {"detail": "Content-Length and Transfer-Encoding exclude each other"}
            await JSONResponse(reason, 400, headers={"connection": "close"})(scope, receive, answer)
            return
        try:
            await self.app(scope, limited, answer)
        except Exception:  # answered by Starlette's own middleware, which is outside of this
            count(500)
            raise


async def in_time(work: Coroutine[Any, Any, Any], request: Request, timeout: float) -> Any:
    """Await work for a client; it is cancelled on a timeout or when the client disconnects.

    Args:
        request: one whose body has been read

    Raises:
        HTTPException: 504: it takes longer than ``timeout`` seconds; 499, which nobody reads: the client has gone; 503:
            the server ends
    """

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        # The stages look at the clock themselves, and may drop the work just before this timeout.
        if task.done() and not isinstance(task.exception(), Cancelled):
            return task.result()
        raise HTTPException(499 if gone.done() else 504, f"no translation within {timeout:g} seconds")
    except asyncio.CancelledError:  # by uvicorn, when its grace period is over
        if task.cancelled():
            raise
        raise HTTPException(503, "the server ends") from None
    finally:
        task.cancel()
        gone.cancel()
