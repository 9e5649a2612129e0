"""Syntax-aware neural machine translation for fairseq: give this package to ``--user-dir``."""

from fairseq_syntax import compat

__version__ = "0.1.0"

# Importing registers: the types of a checkpoint, the task, the models and criteria, the step of fairseq-preprocess.
with compat.unchanged_logging():
    compat.allow_checkpoint_types()
    from fairseq_syntax import systems, tasks
    from fairseq_syntax.data import preprocess

    preprocess.install()

__all__ = ["__version__", "systems", "tasks"]
