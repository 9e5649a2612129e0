"""The fairseq task. Imported eagerly: fairseq's own import of ``tasks/`` then finds it done."""

from fairseq_syntax.tasks import syntax_translation

__all__ = ["syntax_translation"]
