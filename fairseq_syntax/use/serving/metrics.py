"""What a server counts, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters of one server, with a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("fairseq_syntax_requests", "answered requests", ["path", "status"], registry=registry)
        self._seconds = Histogram(
            "fairseq_syntax_request_seconds", "from request to answer", ["path"], buckets=SECONDS, registry=registry
        )
        self._parsed = Histogram(
            "fairseq_syntax_parse_batch", "sentences parsed together", buckets=SIZES, registry=registry
        )
        self._translated = Histogram(
            "fairseq_syntax_translate_batch",
            "sentences translated together",
            ["model"],
            buckets=SIZES,
            registry=registry,
        )
        self._unparsed = Counter(
            "fairseq_syntax_unparsed",
            "sentences translated without the parse that a model reads",
            registry=registry,
        )
        self._waiting = Gauge("fairseq_syntax_waiting", "translations accepted and not yet answered", registry=registry)
        self._capacity = Gauge("fairseq_syntax_capacity", "translations that may wait", registry=registry)

    def watch(self, waiting: Callable[[], float], capacity: int) -> None:
        """Show how much waits, of how much that may."""
        self._waiting.set_function(waiting)
        self._capacity.set(capacity)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def parsed(self, _: object, sentences: int) -> None:
        """Count a batch that was parsed."""
        self._parsed.observe(sentences)

    def unparsed(self, sentences: int) -> None:
        """Count sentences that were translated without the parse that a model reads."""
        self._unparsed.inc(sentences)

    def translated(self, key: tuple[str, str, int, bool], sentences: int) -> None:
        """Count a batch that was translated; attention that was read is not counted."""
        kind, model, *_ = key
        if kind == "search":
            self._translated.labels(model).observe(sentences)

    def text(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)
