"""Prometheus metrics of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The metrics of one server, in a registry of their own.

    Args:
        waiting: the number of translations accepted and not yet answered
        capacity: the number of translations that may wait
    """

    def __init__(self, waiting: Callable[[], float], capacity: int) -> None:
        self.registry = CollectorRegistry()
        of_all: dict[str, Any] = {"namespace": "fairseq_syntax", "registry": self.registry}
        sizes: dict[str, Any] = {"buckets": SIZES, **of_all}
        ProcessCollector(registry=self.registry)
        self.requests = Counter("requests", "answered requests", ["path", "status"], **of_all)
        self.seconds = Histogram("request_seconds", "until the answer", ["path"], buckets=SECONDS, **of_all)
        self.parsed = Histogram("parse_batch", "sentences parsed together", **sizes)
        self.translated = Histogram("translate_batch", "sentences translated together", ["model"], **sizes)
        self.unparsed = Counter("unparsed", "sentences translated without the parse that a model reads", **of_all)
        Gauge("waiting", "translations accepted and not yet answered", **of_all).set_function(waiting)
        Gauge("capacity", "translations that may wait", **of_all).set(capacity)

    def text(self) -> bytes:
        """The metrics in the Prometheus text format."""
        return generate_latest(self.registry)
