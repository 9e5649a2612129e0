"""The application on a port, until it is told to stop."""

from __future__ import annotations

import uvicorn
from fastapi import FastAPI

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.serving.guard import ImpatientProtocol


def serve(app: FastAPI, host: str, port: int, *, stop_seconds: float = 60.0) -> None:
    """Answer requests until SIGTERM or SIGINT; then take no more, and answer what was accepted.

    Args:
        host, port: where to listen; port 0 takes any that is free
        stop_seconds: for the answers that are outstanding when it stops

    Raises:
        SyntaxDataError: nothing can listen there
    """
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        http=ImpatientProtocol,
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=int(stop_seconds),
    )
    try:
        listening = config.bind_socket()
    except (SystemExit, OSError) as error:  # uvicorn says why, and exits
        raise SyntaxDataError(f"cannot listen on {host}:{port}", hint="choose another --port") from error
    place = f"[{host}]" if ":" in host else host
    print(f"http://{place}:{listening.getsockname()[1]}/", flush=True)
    uvicorn.Server(config).run(sockets=[listening])
