"""Exported models in CTranslate2 against the same model in fairseq's search: one thread, same beam and batch."""

from __future__ import annotations

import os
import random
import tempfile

import torch

from bench import corpus
from bench.harness import compare, measure
from fairseq_syntax.inference.alignment import default_head
from fairseq_syntax.inference.export import Loaded, export
from fairseq_syntax.inference.translator import Translator

SIZE = ["--encoder-embed-dim", "512", "--encoder-ffn-embed-dim", "2048", "--encoder-layers", "6"]
SIZE += ["--encoder-attention-heads", "8", "--decoder-layers", "6", "--decoder-attention-heads", "8"]
SENTENCES, BATCH, BEAM, STEPS = 32, 16, 4, 20


@measure("export/ctranslate2", "export/ctranslate2_int8")
def translate() -> None:
    """Raw text to text with a supervised-heads model of the base size, in float32 and with weights in int8.

    The weights are random, so translations end where they are cut: both programs make the same number of steps.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        task = corpus.task()
        _, args = corpus.model(corpus.task(), "supervised_head_transformer", *SIZE)
        model = task.build_model(args, from_checkpoint=True).eval()  # which then reads no parse
        loaded = Loaded(model, vars(args), task, default_head(model))
        rng = random.Random(1)
        lines = [" ".join(f"w{rng.randrange(6000)}" for _ in range(rng.randint(8, 22))) for _ in range(SENTENCES)]
        search = {"batch_size": BATCH, "beam": BEAM, "max_len_b": STEPS}
        plain = Translator([model], task, **search)
        for name, quantization in (("export/ctranslate2", None), ("export/ctranslate2_int8", "int8")):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "exported")
                export(loaded, "ctranslate2", path, quantization=quantization)
                ours = Translator.load(path, device="cpu", **search)
                detail = {"sentences": SENTENCES, "batch": BATCH, "beam": BEAM}
                compare(
                    name,
                    lambda translator=ours: translator.translate(lines),
                    lambda: plain.translate(lines),
                    pairs=3,
                    detail=detail,
                )
    finally:
        torch.set_num_threads(threads)
