"""Exported models in CTranslate2 against the same model in fairseq's search: one thread, same beam and batch."""

from __future__ import annotations

import os
import random
import tempfile
from functools import partial
from typing import Any

import torch

from bench import corpus
from bench.harness import compare, measure
from fairseq_syntax.inference.alignment_head import default_head
from fairseq_syntax.use.export import TrainedModel, export
from fairseq_syntax.use.translator import Translator

SENTENCES, BATCH, BEAM, STEPS = 32, 16, 4, 20


@measure("export/ctranslate2", "export/ctranslate2_int8")
def small() -> None:
    """Of the size of the Multi30k example: what a step costs beside its products is most of fairseq's time."""
    _translate("export/ctranslate2", layers=3, width=128, inner=256, heads=4)


@measure("export/base", "export/base_int8")
def base() -> None:
    """Of the base size: products of matrices are most of the time of both."""
    _translate("export/base", layers=6, width=512, inner=2048, heads=8)


def _translate(name: str, *, layers: int, width: int, inner: int, heads: int) -> None:
    """Raw text to text with a supervised-heads model, in float32 and with weights in int8.

    The weights are random, so translations end where they are cut: both programs make the same number of steps.
    """
    size = {"layers": layers, "embed-dim": width, "ffn-embed-dim": inner, "attention-heads": heads}
    options = [f"--{side}-{option}={value}" for side in ("encoder", "decoder") for option, value in size.items()]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _compare(name, options)
    finally:
        torch.set_num_threads(threads)


def _compare(name: str, options: list[str]) -> None:
    task = corpus.task()
    _, args = corpus.model(corpus.task(), "supervised_head_transformer", *options)
    model = task.build_model(args, from_checkpoint=True).eval()  # which then reads no parse
    loaded = TrainedModel(model, vars(args), task, default_head(model))
    rng = random.Random(1)
    lines = [" ".join(f"w{rng.randrange(6000)}" for _ in range(rng.randint(8, 22))) for _ in range(SENTENCES)]
    search: dict[str, Any] = {"batch_size": BATCH, "beam": BEAM, "max_len_b": STEPS}
    plain = Translator([model], task, **search)
    for kind, quantization in (("", None), ("_int8", "int8")):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "exported")
            export(loaded, "ctranslate2", path, quantization=quantization)
            ours = Translator.load(path, device="cpu", **search)
            compare(
                f"{name}{kind}",
                partial(ours.translate, lines),
                partial(plain.translate, lines),
                pairs=3,
                detail={"sentences": SENTENCES, "batch": BATCH, "beam": BEAM, "sizes": options},
            )
