"""The syntax systems, one room each: a new one is a file and a line here."""

from fairseq_syntax.systems import (
    dbsa,
    dlaa,
    gcn,
    lasyn,
    ldd,
    lisa,
    local_attention,
    pascal,
    predicted_parse,
    relative_depth,
    sdrnmt,
    senmt,
    sennrich_haddow,
    structural_positions,
    supervised_heads,
    tree2seq,
)

__all__ = [
    "dbsa",
    "dlaa",
    "gcn",
    "lasyn",
    "ldd",
    "lisa",
    "local_attention",
    "pascal",
    "predicted_parse",
    "relative_depth",
    "sdrnmt",
    "senmt",
    "sennrich_haddow",
    "structural_positions",
    "supervised_heads",
    "tree2seq",
]
