"""The fairseq task. It is imported eagerly, before fairseq imports ``tasks/`` itself."""

from fairseq_syntax.tasks import syntax_translation

__all__ = ["syntax_translation"]
