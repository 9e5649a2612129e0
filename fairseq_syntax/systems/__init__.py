"""The syntax systems, one room each: a new one is a file and a line here."""

from fairseq_syntax.systems import pascal

__all__ = ["pascal"]
