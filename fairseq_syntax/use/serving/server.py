"""The HTTP server, with graceful shutdown."""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
from types import FrameType

import uvicorn
from fastapi import FastAPI

logger = logging.getLogger(__name__)

HEADERS = [  # sent with every answer
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
]


class Server(uvicorn.Server):
    """A uvicorn server that ends within the grace period, even if work without steps (such as parsing) goes on."""

    def __init__(self, config: uvicorn.Config, grace: float) -> None:
        super().__init__(config)
        self._hard_end = threading.Timer(grace, _end_now, [grace])
        self._hard_end.daemon = True

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
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http="h11",  # limits the size of the headers
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=HEADERS,
        timeout_graceful_shutdown=0.9 * grace,  # type: ignore[arg-type]  # passed on to asyncio, which accepts fractions
    )
    listening = config.bind_socket()  # where that is impossible, uvicorn says why and exits
    listening.listen(config.backlog)
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
