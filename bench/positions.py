"""Positions in the tree, and a predicted parse, against the plain Transformer: whole training steps."""

from __future__ import annotations

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

from bench.harness import compare, measure
from bench.pascal import train_epoch
from bench.supervised import training_steps
from fairseq_syntax.criterions.supervised_head import SupervisedHeadCriterion


@measure("train/relative_depth_transformer", "train/structural_positions_transformer")
def train_positions() -> None:
    """Score and value terms in all layers."""
    plain, _ = train_epoch("transformer", batches=2)
    for arch in ("relative_depth_transformer", "structural_positions_transformer"):
        ours, tokens = train_epoch(arch, batches=2)
        compare(f"train/{arch}", ours, plain, pairs=5, detail={"target_tokens": tokens})


@measure("train/parser_free_pascal_transformer", "train/parser_free_ldd_transformer")
def train_predicted() -> None:
    """A supervised parent head and a layer above that reads it, with their loss."""
    plain, _ = training_steps("transformer", LabelSmoothedCrossEntropyCriterion, count=2)
    for arch in ("parser_free_pascal_transformer", "parser_free_ldd_transformer"):
        ours, tokens = training_steps(arch, SupervisedHeadCriterion, count=2)
        compare(f"train/{arch}", ours, plain, pairs=5, detail={"target_tokens": tokens})
