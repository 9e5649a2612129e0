"""The training criteria. They are imported eagerly, since fairseq's ``--user-dir`` does not search for them."""

from fairseq_syntax.criterions import lasyn_em, supervised_head

__all__ = ["lasyn_em", "supervised_head"]
