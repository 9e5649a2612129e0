"""The HTTP server: its connections, which are bounded in number and time, and graceful shutdown."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import socket
import threading
from collections.abc import Mapping
from http import HTTPStatus
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairseq_syntax.use.serving.guard import refusal

logger = logging.getLogger(__name__)

HEADERS = [  # sent with every answer
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
]


ARRIVAL = 30.0  # seconds in which a request must have arrived, from the connection or the answer before it
MOST_CONNECTIONS = 4096
ACCEPTED_AT_ONCE = 8  # in a turn of the event loop; it takes some turns until their number is looked at
BACKLOG = 2048  # connections that the system keeps until they are accepted
RESERVE = 64  # descriptors for files, and for connections that are just accepted or closed


def most_connections() -> int:
    """As many connections as there are descriptors for, after the limit has been raised as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + 2 * RESERVE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        open_now = len(os.listdir("/proc/self/fd"))
    except OSError:  # not Linux
        open_now = RESERVE
    free = MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else soft - open_now - RESERVE
    return max(8, min(MOST_CONNECTIONS, free))


class Config(uvicorn.Config):
    """uvicorn's configuration with the largest number of connections."""

    most_connections = MOST_CONNECTIONS


class Connection(H11Protocol):
    """A connection whose client has :data:`ARRIVAL` seconds for a request.

    If there are too many, the one that has waited longest for its client makes room for a new one, so that clients who
    send nothing cannot keep others out. If all are being answered, the new one is answered 503.
    """

    config: Config
    _deadline: asyncio.TimerHandle | None = None
    _since = 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()
        if len(self.connections) <= self.config.most_connections:
            return
        connections: list[Any] = list(self.connections)  # all are of this class
        others = [each for each in connections if each is not self and each.awaits_client]
        if others:
            min(others, key=lambda connection: connection._since).end()
        else:
            self._refuse("too many connections; try again later", HTTPStatus.SERVICE_UNAVAILABLE, {"retry-after": "1"})

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP request; uvicorn's own answer is plain text."""
        self._refuse(msg, HTTPStatus.BAD_REQUEST)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._wait()
        super().on_response_complete()

    @property
    def awaits_client(self) -> bool:
        """Whether the next part of a request, or its beginning, is still to come."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def end(self) -> None:
        """Close the connection, which no longer counts."""
        self.connections.discard(self)
        self.transport.close()

    def _refuse(self, reason: str, status: HTTPStatus, headers: Mapping[str, str] | None = None) -> None:
        """Answer a connection that has no request which the application could answer, and close it."""
        answer = refusal(reason, status, {**(headers or {}), "connection": "close"})
        line = f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode()
        head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
        self.transport.write(line + head + b"\r\n" + bytes(answer.body))
        self.end()

    def _wait(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._since = self.loop.time()
        self._deadline = self.loop.call_later(ARRIVAL, self._expire)

    def _expire(self) -> None:
        if self.awaits_client:
            self.end()


class Server(uvicorn.Server):
    """A uvicorn server that ends within the grace period, even if work without steps (such as parsing) goes on."""

    def __init__(self, config: uvicorn.Config, grace: float) -> None:
        super().__init__(config)
        self._hard_end = threading.Timer(grace, _end_now, [grace])
        self._hard_end.daemon = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():  # asyncio has set its queue to what it accepts at once
            listening.listen(BACKLOG)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            self._hard_end.start()
        super().handle_exit(sig, frame)

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        super().run(sockets)
        self._hard_end.cancel()


def _end_now(grace: float) -> None:
    logger.error("work has not finished after %g seconds; the server ends anyway", grace)
    os._exit(1)


def prepared(app: FastAPI, host: str, port: int, *, grace: float = 30.0) -> tuple[Server, socket.socket]:
    """Create a server that is not running yet, and its listening socket, to which clients can already connect.

    Args:
        host, port: the address to listen on; port 0 chooses a free port
        grace: seconds for stopping. Open requests have nine tenths of them; then they are cancelled, and searches end
            at their next step. If work is still running after them, the process exits.
    """
    config = Config(
        app,
        host=host,
        port=port,
        http=Connection,
        backlog=ACCEPTED_AT_ONCE,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=HEADERS,
        timeout_graceful_shutdown=0.9 * grace,  # type: ignore[arg-type]  # passed on to asyncio, which accepts fractions
    )
    listening = config.bind_socket()  # where that is impossible, uvicorn says why and exits
    listening.listen(BACKLOG)
    config.most_connections = most_connections()
    return Server(config, grace), listening


def serve(app: FastAPI, host: str, port: int, *, grace: float = 30.0) -> None:
    """Run the server until SIGTERM or SIGINT; then accept no more requests, and finish the open ones.

    The arguments are those of :func:`prepared`.
    """
    server, listening = prepared(app, host, port, grace=grace)
    # A request with many small lists triggers the garbage collector, which would search everything loaded so far and
    # block all requests for half a second. None of it is garbage, so it is excluded.
    gc.collect()
    gc.freeze()
    place = f"[{host}]" if ":" in host else host
    # Printed last: from now on, signals stop the server gracefully.
    print(f"http://{place}:{listening.getsockname()[1]}/", flush=True)
    try:
        server.run(sockets=[listening])
    finally:
        gc.unfreeze()
