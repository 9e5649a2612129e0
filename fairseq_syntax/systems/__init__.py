"""The syntax systems, one room each: a new one is a file and a line here."""

from fairseq_syntax.systems import (
    dlaa,
    lasyn,
    ldd,
    lisa,
    local_attention,
    pascal,
    sdrnmt,
    sennrich_haddow,
    supervised_heads,
)

__all__ = [
    "dlaa",
    "lasyn",
    "ldd",
    "lisa",
    "local_attention",
    "pascal",
    "sdrnmt",
    "sennrich_haddow",
    "supervised_heads",
]
