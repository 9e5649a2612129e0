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

from fairseq_syntax.errors import SyntaxDataError

logger = logging.getLogger(__name__)

HEADERS = [  # of every answer
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
]


class Server(uvicorn.Server):
    """uvicorn's server, which ends within the grace period in any case.

    The answers that are outstanding have nine tenths of the period. What is left then is cancelled: searches end at
    their next step. Work without steps, such as a parser's, may go on; then the process ends with it.
    """

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
    """A server that is not running yet, and its listening socket, where clients can connect already.

    Args:
        host, port: where to listen; port 0 takes any that is free
        grace: seconds that it may take to stop

    Raises:
        SyntaxDataError: nothing can listen there
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http="h11",  # which bounds the size of a request's head
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=HEADERS,
        timeout_graceful_shutdown=0.9 * grace,  # type: ignore[arg-type]  # passed to asyncio, which takes fractions
    )
    try:
        listening = config.bind_socket()
        listening.listen(config.backlog)
    except (SystemExit, OSError, OverflowError) as error:  # uvicorn says why, and exits
        message = f"cannot listen on {host}:{port}"
        raise SyntaxDataError(message, option="--port", hint="choose another") from error
    return Server(config, grace), listening


def serve(app: FastAPI, host: str, port: int, *, grace: float = 30.0) -> None:
    """Answer requests until SIGTERM or SIGINT; then take no more, and answer what was accepted.

    Args:
        grace: seconds that it may take to stop

    Raises:
        SyntaxDataError: as :func:`prepared`
    """
    server, listening = prepared(app, host, port, grace=grace)
    # A body of many small lists makes Python look for garbage, and everybody wait for it: half a second, among all
    # that is loaded by now. None of this is garbage, so it is left out.
    gc.collect()
    gc.freeze()
    place = f"[{host}]" if ":" in host else host
    print(f"http://{place}:{listening.getsockname()[1]}/", flush=True)  # last: a signal from now on ends it gracefully
    try:
        server.run(sockets=[listening])
    finally:
        gc.unfreeze()
