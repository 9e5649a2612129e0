"""The training criteria. They are imported eagerly, since fairseq's ``--user-dir`` does not search for them."""

from fairseq_syntax.criterions import chunked_cross_entropy, lasyn_em

__all__ = ["chunked_cross_entropy", "lasyn_em"]
