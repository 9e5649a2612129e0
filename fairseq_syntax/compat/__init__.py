"""Patches of fairseq, applied once when this package is registered (:func:`install`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any


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
        half_precision,
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
        half_precision,
        plateaus,
        quantization,
        stopping,
        validation,
    )
    for patched in (*training, hub, models, processes, search, shards):
        patched.install()


@contextmanager
def importing_fairseq() -> Iterator[None]:
    """A context for the first import of fairseq, which leaves logging as it is and takes two thirds of the time.

    fairseq's speech tasks and models configure logging down to DEBUG. Its criteria for classification import
    scikit-learn and scipy's statistics, which take a third of a command's start; here they are imported when such a
    criterion calls them.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    # Notices about optional packages that are not used here.
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    deferred = _deferred()
    sys.modules.update(deferred)
    try:
        yield
    finally:
        for name, module in deferred.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        root.setLevel(level)
        root.handlers[:] = handlers


class _Deferred(ModuleType):
    """A module whose functions import the real module of this name when they are called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def function(*args: Any, **kwargs: Any) -> Any:
            return getattr(import_module(self.__name__), name)(*args, **kwargs)

        return function


def _deferred() -> dict[str, ModuleType]:
    """What stands for those modules meanwhile, unless fairseq or the package is imported, or is not installed."""
    modules: dict[str, ModuleType] = {}
    if "fairseq" in sys.modules:
        return modules
    if "sklearn" not in sys.modules and (spec := _spec("sklearn")):
        package, metrics = _Deferred("sklearn"), _Deferred("sklearn.metrics")
        package.__spec__, metrics.__spec__ = spec, ModuleSpec("sklearn.metrics", None)
        package.__path__ = []  # a package, of which nothing else is to be found
        package.metrics = metrics  # type: ignore[attr-defined]
        modules |= {"sklearn": package, "sklearn.metrics": metrics}
    if "scipy.stats" not in sys.modules and _spec("scipy"):
        modules["scipy.stats"] = stats = _Deferred("scipy.stats")
        stats.__spec__ = ModuleSpec("scipy.stats", None)
    return modules


def _spec(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name)
    except ImportError:  # fairseq is to say so, when it comes to that import
        return None
