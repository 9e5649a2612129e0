"""Patches of fairseq, applied once, when this package is registered (:func:`install`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


def install() -> None:
    """Patch fairseq."""
    from fairseq_syntax.compat import checkpoints, hub, models, processes

    checkpoints.install()
    hub.install()
    models.install()
    processes.install()


@contextmanager
def unchanged_logging() -> Iterator[None]:
    """Leave logging as it was: importing fairseq's speech tasks and models configures it, down to DEBUG."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    # Notices about optional packages that nothing here uses.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
