"""The syntax systems, one room each: a new one is a file and a line here."""

from fairseq_syntax.systems import ldd, pascal

__all__ = ["ldd", "pascal"]
