"""Syntax-aware neural machine translation for fairseq: give this package to ``--user-dir``."""

from fairseq_syntax import compat

__version__ = "0.1.0"

# Importing registers: the types of a checkpoint, the step of fairseq-preprocess, the task, the models and criteria.
compat.quieten()
compat.allow_checkpoint_types()

from fairseq_syntax import systems, tasks  # noqa: E402
from fairseq_syntax.data import preprocess  # noqa: E402

preprocess.install()

__all__ = ["__version__", "systems", "tasks"]
