"""Syntax-aware neural machine translation for fairseq: give this package to ``--user-dir``."""

import os
import sys
from pathlib import Path

__version__ = "0.2.0"
__all__ = ["__version__", "register"]


def register() -> None:
    """Make this package known to fairseq: checkpoint types, task, models, criteria, the step of fairseq-preprocess.

    Importing the package does it. Only the ``fairseq-syntax`` command waits until a verb needs fairseq, whose import
    takes seconds. Doing it again changes nothing.
    """
    from fairseq_syntax import compat

    with compat.unchanged_logging():
        compat.allow_checkpoint_types()
        compat.processes_without_gpus()
        compat.whole_copies_of_checkpoints()
        compat.checkpoints_to_go_on_from()
        from fairseq_syntax import criterions, systems, tasks  # noqa: F401
        from fairseq_syntax.data import preprocess

        preprocess.install()


def _is_command() -> bool:
    """Whether this process is ``fairseq-syntax`` or ``python -m fairseq_syntax``, or was started by one."""
    if os.environ.get("FAIRSEQ_SYNTAX_WORKER"):  # of a cluster, started by one elsewhere
        return True
    if sys.argv[:1] == ["-m"]:  # its path is not known yet
        return sys.orig_argv[sys.orig_argv.index("-m") :][1:2] == [__name__]
    program = Path(sys.argv[0]) if sys.argv else Path()
    return program.stem == "fairseq-syntax" or program == Path(__file__).with_name("__main__.py")


if not _is_command():
    register()
