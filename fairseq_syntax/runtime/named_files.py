"""Systems on the command line, ``[NAME=]FILE[,FILE…]``: spaces separate systems, commas the files of one."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from fairseq_syntax.errors import KEPT_WITHOUT_MODELS, SyntaxDataError
from fairseq_syntax.runtime.files import instead


def files_of(text: str) -> list[str]:
    """The files in ``FILE[,FILE…]``. An existing path is one file, even if its name contains commas."""
    files = [text] if os.path.exists(text) else [path for path in text.split(",") if path]
    if not files:
        raise SyntaxDataError(f"not a file, or files with commas: {text!r}")
    return files


def named_files(text: str, name_of: Callable[[str], str] = str) -> tuple[str, list[str]]:
    """The name and the files in ``[NAME=]FILE[,FILE…]``; an existing path is not taken for a name and a file.

    Args:
        name_of: returns the default name for the first file
    """
    name, equals, files = text.partition("=")
    if not equals or os.path.exists(text):
        paths = files_of(text)
        return name_of(paths[0]), paths
    paths = files_of(files)
    return name or name_of(paths[0]), paths


def systems_by_name(
    texts: Iterable[str], name_of: Callable[[str], str] = str, others: Collection[str] = ()
) -> dict[str, list[str]]:
    """The files of each system by name, as in :func:`named_files`; no name may occur twice or in ``others``."""
    named = [named_files(text, name_of) for text in texts]
    check_distinct([*others, *(name for name, _ in named)])
    return dict(named)


def check_distinct(names: Iterable[str], what: str = "systems") -> None:
    """Raise SyntaxDataError if two systems, or others, have the same name, because one would be lost."""
    for name, count in Counter(names).items():
        if count > 1:
            raise SyntaxDataError(f"two {what} are called {name}", hint="name them: NAME=FILE")


def file_by_name(
    texts: Iterable[str], name_of: Callable[[str], str] = str, others: Collection[str] = ()
) -> dict[str, str]:
    """Like :func:`systems_by_name`, for systems that are single files."""
    systems = systems_by_name(texts, name_of, others)
    for name, files in systems.items():
        if len(files) > 1:
            raise SyntaxDataError(f"{name}: one file is expected, not {len(files)}")
    return {name: file for name, (file,) in systems.items()}


def model_name(path: str) -> str:
    """The default name of a model: the name of its checkpoint's folder or of the exported folder."""
    whole = Path(path).resolve()
    return (whole.parent.name if whole.suffix == ".pt" else whole.name) or whole.stem


def missing_model(path: Path) -> SyntaxDataError:
    """The error of a checkpoint that is not there, with what is there instead, or why a recipe has not trained it."""
    folder, hint = path if path.is_dir() else path.parent, None
    if there := ", ".join(str(other) for other in sorted(folder.glob("*.pt"))[:5]):
        hint = f"there are {there}"
    else:
        hint = instead(path)
        if any((above / "report.md").exists() for above in path.parents):
            hint = f"{hint} {KEPT_WITHOUT_MODELS}" if hint and hint.endswith("?") else KEPT_WITHOUT_MODELS
    return SyntaxDataError("is a folder" if path.is_dir() else "no such file", path=path, hint=hint)
