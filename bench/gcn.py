"""A Transformer with a graph convolution after its encoder against the plain one."""

from __future__ import annotations

from bench.harness import compare, measure
from bench.pascal import train_epoch


@measure("train/gcn_transformer")
def train() -> None:
    """Training steps of the same batches."""
    ours, tokens = train_epoch("gcn_transformer")
    plain, _ = train_epoch("transformer")
    compare("train/gcn_transformer", ours, plain, pairs=7, detail={"target_tokens": tokens})
