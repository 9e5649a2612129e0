"""The training objectives. Imported eagerly: fairseq's ``--user-dir`` does not look for them."""

from fairseq_syntax.criterions import lasyn_em, supervised_head

__all__ = ["lasyn_em", "supervised_head"]
