"""Prometheus metrics of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        of_all: dict[str, Any] = {"namespace": "fairseq_syntax", "registry": self._registry}
        of_sizes = {"buckets": SIZES, **of_all}
        ProcessCollector(registry=self._registry)
        self._requests = Counter("requests", "answered requests", ["path", "status"], **of_all)
        self._seconds = Histogram("request_seconds", "until the answer", ["path"], buckets=SECONDS, **of_all)
        self._parsed = Histogram("parse_batch", "sentences parsed together", **of_sizes)
        self._translated = Histogram("translate_batch", "sentences translated together", ["model"], **of_sizes)
        self._unparsed = Counter("unparsed", "sentences translated without the parse that a model reads", **of_all)
        self._waiting = Gauge("waiting", "translations accepted and not yet answered", **of_all)
        self._capacity = Gauge("capacity", "translations that may wait", **of_all)

    def watch(self, waiting: Callable[[], float], capacity: int) -> None:
        """Connect the gauges of waiting translations and capacity."""
        self._waiting.set_function(waiting)
        self._capacity.set(capacity)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def parsed(self, _: object, sentences: int) -> None:
        """Count a parsed batch."""
        self._parsed.observe(sentences)

    def unparsed(self, sentences: int) -> None:
        """Count sentences translated without a parse by a model that reads one."""
        self._unparsed.inc(sentences)

    def translated(self, key: tuple[str, str, int, bool], sentences: int) -> None:
        """Count a translated batch; requests for attention do not count."""
        kind, model, *_ = key
        if kind == "search":
            self._translated.labels(model).observe(sentences)

    def text(self) -> bytes:
        """The metrics in the Prometheus text format."""
        return generate_latest(self._registry)
