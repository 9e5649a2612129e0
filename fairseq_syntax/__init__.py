"""Syntax-aware neural machine translation for fairseq; pass this package to ``--user-dir``.

Importing this package has no side effects unless fairseq has been imported already, as in fairseq's commands; then it
registers the task, models and criteria, otherwise as soon as one of fairseq's commands is imported. Other programs that
load models call :func:`register`.
"""

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_syntax.corpus.parsed_line import ParsedLine
    from fairseq_syntax.use.base_translator import Translation
    from fairseq_syntax.use.translator import Translator

__version__ = "0.2.0"
__all__ = ["ParsedLine", "Translation", "Translator", "__version__", "register"]

_MODULES = {  # the modules of names that are imported on first use
    "ParsedLine": "fairseq_syntax.corpus.parsed_line",
    "Translation": "fairseq_syntax.use.base_translator",
    "Translator": "fairseq_syntax.use.translator",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from fairseq_syntax.compat import importing_fairseq

    with importing_fairseq():  # it may be here
        return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register(user_dir: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = ()) -> None:
    """Register the task, models, criteria and checkpoint types with fairseq, extend fairseq-preprocess, load plugins.

    A second call only loads further plugins.

    Args:
        user_dir: folders of plugins to import, besides those of the environment variable FAIRSEQ_SYNTAX_USER_DIR and
            the installed ones

    Raises:
        SyntaxDataError: a folder does not exist, or its import fails; fairseq is missing, cannot be imported or does
            not fit
    """
    from fairseq_syntax import plugins

    _register()
    _load_plugins()  # by themselves, since a plugin may call this function
    plugins.load_named()
    plugins.load_folders(plugins.as_folders(user_dir))


@cache
def _register() -> None:
    from fairseq_syntax import compat
    from fairseq_syntax.compat.owners import remedy
    from fairseq_syntax.errors import SyntaxDataError
    from fairseq_syntax.runtime.faults import report_in_fairseq

    report_in_fairseq()
    with compat.importing_fairseq():
        try:
            import fairseq  # noqa: F401
        except ModuleNotFoundError as error:
            message = f"{error.name} is not installed, without which only models exported to CTranslate2 can be used"
            raise SyntaxDataError(message, hint="pip install fairseq-syntax") from error
        except Exception as error:  # such as the release 0.12.2, on Python 3.11 and later
            raise SyntaxDataError(f"fairseq cannot be imported: {error}", hint=remedy()) from error
        compat.install()
        from fairseq_syntax import criterions, systems, tasks  # noqa: F401
        from fairseq_syntax.data import preprocess_hook

        preprocess_hook.install()


@cache
def _load_plugins() -> None:
    from fairseq_syntax import plugins

    plugins.note_folders()
    plugins.load_installed()


class _BeforeCommandsOfFairseq:
    """A finder of modules that finds none, and registers this package when ``fairseq_cli`` is imported after it.

    fairseq does not import a ``--user-dir`` that is imported already, so its command would not know ``--task``.
    """

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> None:
        if name == "fairseq_cli":
            sys.meta_path.remove(cls)
            register()


if "fairseq" in sys.modules:
    register()
else:
    sys.meta_path.insert(0, _BeforeCommandsOfFairseq)
