"""A server of the application in a thread, and what clients do to it."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import uvicorn

from fairseq_syntax.use.serving.app import create_app
from fairseq_syntax.use.serving.served_models import ServedModel, Source
from fairseq_syntax.use.serving.server import prepared
from fairseq_syntax.use.serving.service import Service
from fairseq_syntax.use.translator import Translation


@dataclass
class Running:
    """A server that listens on 127.0.0.1."""

    service: Service
    server: uvicorn.Server
    port: int

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any]:
        """Status and answer; a body that is not bytes goes as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            answer = connection.getresponse()
            text = answer.read().decode()
            return answer.status, json.loads(text) if "json" in answer.getheader("content-type", "") else text
        finally:
            connection.close()

    def translate(self, **body: Any) -> tuple[int, Any]:
        """Status and answer of ``POST /translate``."""
        return self.ask("POST", "/translate", body)


@contextmanager
def running(service: Service, **limits: Any) -> Iterator[Running]:
    """Serve in a thread; afterwards it stops as it does at SIGTERM."""
    server, listening = prepared(create_app(service, **limits), "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    end = time.time() + 120
    while not server.started and time.time() < end:
        time.sleep(0.01)
    try:
        yield Running(service, server, listening.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(120)
        assert not thread.is_alive(), "the server does not stop"


class StandIn:
    """A model that says each sentence backwards, as soon as ``go`` is set; ``bad`` is a word that it cannot take."""

    name, source_lang, target_lang, systems = "stand-in", "en", "de", ()
    needs: frozenset[str] = frozenset()
    parsed_with, shows_attention = None, True
    languages: Mapping[str, str] = MappingProxyType({})

    def __init__(self, wait: bool = False) -> None:
        self.go, self.began, self.batches, self.steps = threading.Event(), threading.Event(), [], 0
        if not wait:
            self.go.set()

    def parameters(self) -> int:
        return 0

    def relations(self) -> list[str]:
        return []

    def check_languages(self, *names: str) -> None:
        ServedModel.check_languages(self, *names)  # type: ignore[arg-type]

    def translations(
        self,
        sentences: list[Any],
        beam: int,
        alignments: bool = False,
        on_step: Any = list,
        nested: bool = False,
        languages: tuple[str, str] = ("", ""),
    ) -> list[list[Translation]]:
        """Steps until it may go; the translation ends with the names of other languages than its own."""
        self.began.set()
        while not self.go.wait(0.01):
            on_step()
            self.steps += 1
        self.batches.append(list(sentences))
        if any("bad" in sentence for sentence in sentences):
            raise ZeroDivisionError("a defect")
        said = [sentence[::-1] + ">".join(filter(None, languages)) for sentence in sentences]
        return [[Translation(text, [text], -0.5)] * beam for text in said]


def stand_in_service(wait: bool = False, **options: Any) -> tuple[StandIn, Service]:
    """A service of a stand-in, without a parser."""
    model = StandIn(wait)
    return model, Service([model], Source(None), **options)  # type: ignore[list-item]
