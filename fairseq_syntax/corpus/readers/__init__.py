"""Readers of corpora in their own formats, one a module: what a recipe names by ``corpus.reader``.

A reader is a module with a function

    def read(data: Path, source: str, target: str, **options) -> Iterator[tuple[str, Iterable[Pair]]]

which yields the splits by name, ``train`` and ``valid`` first and then each test set, with the
sentence pairs of each. It may have ``download(data, source, target, **options)``, which fetches what
is missing. ``options`` are those of the recipe's ``corpus.options``. A file that is not there is a
SyntaxDataError that says what to put where.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from pathlib import Path
from types import ModuleType

from fairseq_syntax.errors import SyntaxDataError

Pair = tuple[str, str]


def names() -> list[str]:
    """The names of the readers that the package has."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def reader(name: str) -> ModuleType:
    """A reader by its name, or by the path of a Python file.

    Raises:
        SyntaxDataError: there is none
    """
    if name.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(name).stem, name)
        if spec is None or spec.loader is None or not Path(name).is_file():
            raise SyntaxDataError("no such reader", path=name)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    elif name in names():
        module = importlib.import_module(f"{__name__}.{name}")
    else:
        known = ", ".join(names())
        raise SyntaxDataError(f"no reader is called {name}", hint=f"there are {known}, or your own file.py")
    if not callable(getattr(module, "read", None)):
        raise SyntaxDataError("the reader has no function read", path=name, hint="see fairseq_syntax/corpus/readers")
    return module
