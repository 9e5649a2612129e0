"""The application on a port, until it is told to stop."""

from __future__ import annotations

import socket
from functools import partial

import uvicorn
from fastapi import FastAPI

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.serving.guard import ImpatientProtocol


def prepared(
    app: FastAPI, host: str, port: int, *, request_seconds: float = 15.0, stop_seconds: float = 60.0
) -> tuple[uvicorn.Server, socket.socket]:
    """A server that is not yet running, and the socket that it is to be given, where clients can already knock.

    Args:
        host, port: where to listen; port 0 takes any that is free
        request_seconds: after which a connection is closed whose request has not arrived whole
        stop_seconds: for the answers that are outstanding when it stops

    Raises:
        SyntaxDataError: nothing can listen there
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=partial(ImpatientProtocol, seconds=request_seconds),  # type: ignore[arg-type]
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(stop_seconds),
    )
    try:
        listening = config.bind_socket()
        listening.listen(config.backlog)
    except (SystemExit, OSError, OverflowError) as error:  # uvicorn says why, and exits
        raise SyntaxDataError(f"cannot listen on {host}:{port}", hint="choose another --port") from error
    return uvicorn.Server(config), listening


def serve(app: FastAPI, host: str, port: int) -> None:
    """Answer requests until SIGTERM or SIGINT; then take no more, and answer what was accepted.

    Raises:
        SyntaxDataError: as :func:`prepared`
    """
    server, listening = prepared(app, host, port)
    place = f"[{host}]" if ":" in host else host
    print(f"http://{place}:{listening.getsockname()[1]}/", flush=True)
    server.run(sockets=[listening])
