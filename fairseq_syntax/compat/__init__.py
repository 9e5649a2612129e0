"""Patches of fairseq, applied once when this package is registered (:func:`install`)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


def install() -> None:
    """Apply all patches. Raises SyntaxDataError if the installed fairseq is not one that they fit."""
    from fairseq_syntax.compat import fairseq_version

    fairseq_version.check()
    from fairseq_syntax.compat import (
        adam,
        averages,
        best_checkpoints,
        checkpoints,
        datasets,
        gradients,
        hub,
        models,
        plateaus,
        processes,
        quantization,
        search,
        shards,
        stopping,
        validation,
    )

    training = (
        adam,
        averages,
        best_checkpoints,
        checkpoints,
        datasets,
        gradients,
        plateaus,
        quantization,
        stopping,
        validation,
    )
    for patched in (*training, hub, models, processes, search, shards):
        patched.install()


@contextmanager
def unchanged_logging() -> Iterator[None]:
    """A context that restores logging, which importing fairseq's speech tasks and models configures down to DEBUG."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    # Notices about optional packages that are not used here.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
