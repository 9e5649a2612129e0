"""Models with random weights over a binarized corpus, as ``fairseq-syntax export`` would load them."""

from __future__ import annotations

from pathlib import Path

import torch
from fairseq import options, tasks

from fairseq_syntax.inference.alignment_head import default_head
from fairseq_syntax.use.export import TrainedModel

SIZES = {
    "_transformer": {
        "encoder-layers": 2,
        "decoder-layers": 2,
        "encoder-ffn-embed-dim": 32,
        "decoder-ffn-embed-dim": 32,
        "encoder-attention-heads": 16,  # LDD asks for as many; CTranslate2 for the same on both sides
        "decoder-attention-heads": 16,
    },
    "_lstm": {"encoder-hidden-size": 32, "decoder-hidden-size": 32, "decoder-out-embed-dim": 32},
    "_fconv": {"encoder-layers": "[(32, 3)]", "decoder-layers": "[(32, 3)]", "decoder-out-embed-dim": 32},
}


def untrained(data: Path, arch: str, *arguments: str, sure: float = 1.0) -> TrainedModel:
    """A tiny model of an architecture, English to German, in evaluation mode.

    Args:
        arguments: more of fairseq-train's
        sure: a factor of the logits (of a Transformer), so that there is a best translation by far
    """
    sizes = next((sizes for name, sizes in SIZES.items() if name in f"_{arch}"), {})
    sizes = {"encoder-embed-dim": 32, "decoder-embed-dim": 32, **sizes}
    given = [str(data), "--task", "syntax_translation", "-s", "en", "-t", "de", "--arch", arch, *arguments]
    args = options.parse_args_and_arch(
        options.get_training_parser(), [*given, *(f"--{name}={value}" for name, value in sizes.items())]
    )
    task = tasks.setup_task(args)
    torch.manual_seed(1)
    model = task.build_model(args, from_checkpoint=True).eval()
    if sure != 1.0:
        model.decoder.output_projection.weight.data *= sure
    return TrainedModel(model, {**vars(args), "_name": arch}, task, default_head(model))
