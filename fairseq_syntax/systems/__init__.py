"""The syntax systems, one room each: a new one is a file and a line here."""

from fairseq_syntax.systems import lasyn, ldd, lisa, pascal, sennrich_haddow, supervised_heads

__all__ = ["lasyn", "ldd", "lisa", "pascal", "sennrich_haddow", "supervised_heads"]
