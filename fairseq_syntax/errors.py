"""The exception for user errors.

Checks of files and options raise :class:`SyntaxDataError`, whose text says what is wrong, where, and what to do about
it. The command line prints it without a traceback; a traceback means a defect in this package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from difflib import get_close_matches
from functools import partial

__all__ = ["SyntaxDataError", "imports_of", "meant", "quoted", "similar"]

# The hint where a checkpoint of a recipe is missing.
KEPT_WITHOUT_MODELS = "a recipe trains no model whose results are kept beside it; run it with --set kept=null"


class SyntaxDataError(ValueError):
    """Bad input: a file, a line or an option that cannot be used.

    All arguments are also attributes. The text contains path, line, option, message and hint.

    Args:
        message: what is wrong, in one sentence
        path: the file that contains the error
        line: the 1-based line in the file or, without a path, among the given sentences
        option: the option in error, as on the command line: ``--pascal-variance``
        hint: what to do, usually the command to run
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
        option: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.message, self.path, self.line = message, path, line
        self.option, self.hint = option, hint
        at = "" if line is None else f"line {line}: " if path is None else f":{line}: "
        where = at if path is None else os.fspath(path) + (at or ": ")
        where += "" if option is None else f"{option}: "
        super().__init__(f"{where}{message}" + (f" ({hint})" if hint else ""))

    def __reduce__(self):
        # The default pickling loses keyword-only arguments, and worker processes send errors to their parents.
        about = {name: getattr(self, name) for name in ("path", "line", "option", "hint")}
        return partial(type(self), self.message, **about), ()


@contextmanager
def imports_of(extra: str) -> Iterator[None]:
    """A context in which a failed import is an error that names the extra of this package to install."""
    try:
        yield
    except ImportError as error:
        hint = f"pip install 'fairseq-syntax[{extra}]'"
        raise SyntaxDataError(f"an import failed: {error}", hint=hint) from error


RUNS_COMMAND: ContextVar[bool] = ContextVar("runs_command", default=False)
"""Whether a subcommand of fairseq-syntax runs, whose users know its options and not Python's parameters."""

_PARAMETERS = {
    "--model-dir": "parser_dir",
    "--parser": "parser_name",
    "--lang": "parser_lang",
    "--missing-parse": "missing_parse",
    "--data": "data",
    "--source-tag": "source_tag",
    "--device": "device",
}
_OPTIONS = re.compile(rf"(?:{'|'.join(_PARAMETERS)})(?![\w-])")


@contextmanager
def naming_parameters() -> Iterator[None]:
    """A context or decorator in which errors name the parameters of ``Translator.load`` in place of options.

    In a subcommand they stay as they are.
    """
    try:
        yield
    except SyntaxDataError as error:
        if RUNS_COMMAND.get() or not _OPTIONS.search(str(error)):
            raise

        def named(text: str | None) -> str | None:
            return text and _OPTIONS.sub(lambda match: _PARAMETERS[match[0]], text)

        about = {"path": error.path, "line": error.line, "option": named(error.option), "hint": named(error.hint)}
        raise SyntaxDataError(named(error.message) or "", **about) from error  # type: ignore[arg-type]


def quoted(text: str) -> str:
    """Quote a text for an error message, shortened to 60 characters."""
    return repr(text if len(text) <= 60 else text[:57] + "...")


def similar(name: str, known: Iterable[str]) -> str | None:
    """A question whether the most similar known name was meant; None if none is similar."""
    closest = get_close_matches(name, list(known), n=1)
    return f"did you mean {closest[0]}?" if closest else None


def meant(name: str, known: Iterable[str]) -> str | None:
    """The hint for an unknown name: the most similar known name or, if there are few, all of them."""
    known = list(known)
    all_of_them = f"there are {', '.join(known) or 'none'}" if len(known) <= 40 else None
    return similar(name, known) or all_of_them
