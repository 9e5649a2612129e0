"""The syntax systems, one room each: a new one is a file and a line here."""

from fairseq_syntax.systems import (
    dlaa,
    gcn,
    ldd,
    lisa,
    local_attention,
    pascal,
    sdrnmt,
    senmt,
    sennrich_haddow,
    supervised_heads,
    tree2seq,
)
from fairseq_syntax.systems.lasyn import model as lasyn

__all__ = [
    "dlaa",
    "gcn",
    "lasyn",
    "ldd",
    "lisa",
    "local_attention",
    "pascal",
    "sdrnmt",
    "senmt",
    "sennrich_haddow",
    "supervised_heads",
    "tree2seq",
]
