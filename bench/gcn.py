"""A Transformer with a graph convolution after its encoder against the plain one."""

from __future__ import annotations

from bench.harness import compare, measure
from bench.pascal import train_epoch


@measure("train/gcn_transformer")
def train() -> None:
    """Training steps of the same batches."""
    ours, tokens = train_epoch("gcn_transformer", batches=2)
    plain, _ = train_epoch("transformer", batches=2)
    compare("train/gcn_transformer", ours, plain, pairs=5, detail={"target_tokens": tokens})
