"""Exported models in CTranslate2 against the same model in fairseq's search: one thread, same beam and batch."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench import corpus
from bench.harness import compare, measure, record
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


@measure("export/start", "export/start_memory")
def start() -> None:
    """``fairseq-syntax translate`` of one sentence, from its start to its end, with an export for fairseq against one
    for CTranslate2: seconds of the processor, and the most memory."""
    with tempfile.TemporaryDirectory() as folder:
        loaded = _model(["--encoder-layers=3", "--decoder-layers=3"])
        text = Path(folder, "text")
        text.write_text("w1 w2 w3\n")
        used: dict[str, list[tuple[float, int]]] = {}
        for kind in ("fairseq", "ctranslate2"):
            path = os.path.join(folder, kind)
            export(loaded, kind, path)
            command = [
                sys.executable,
                "-m",
                "fairseq_syntax",
                "translate",
                path,
                "--input",
                str(text),
                "--max-len-b",
                "9",
            ]
            used[kind] = [_used_by([*command, "--output", os.path.join(folder, "out")]) for _ in range(3)]
    for name, of, unit in (("start", 0, "seconds of the processor"), ("start_memory", 1, "most bytes in memory")):
        plain, ours = ([one[of] for one in used[kind]] for kind in used)
        detail = {"ours": sorted(ours)[1], "plain": sorted(plain)[1]}
        record(f"export/{name}", [p / o for p, o in zip(plain, ours)], unit=f"{unit}, plain over ours", detail=detail)


# Started by a small program of its own: a process's peak includes the memory of the one that it was forked from.
_MEASURED = """
import os, sys
_, status, usage = os.wait4(os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]), 0)
print(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)
"""


def _used_by(command: list[str]) -> tuple[float, int]:
    """What a program takes: seconds of the processor, and the most bytes in memory."""
    measured = [sys.executable, "-c", _MEASURED, *command]
    status, seconds, peak = subprocess.run(measured, check=True, capture_output=True, text=True).stdout.split()[-3:]
    assert status == "0", command
    return float(seconds), int(peak)


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


def _model(options: list[str]) -> TrainedModel:
    """A supervised-heads model with random weights."""
    task = corpus.task()
    _, args = corpus.model(corpus.task(), "supervised_head_transformer", *options)
    model = task.build_model(args, from_checkpoint=True).eval()  # which then reads no parse
    return TrainedModel(model, vars(args), task, default_head(model))


def _compare(name: str, options: list[str]) -> None:
    loaded = _model(options)
    rng = random.Random(1)
    lines = [" ".join(f"w{rng.randrange(6000)}" for _ in range(rng.randint(8, 22))) for _ in range(SENTENCES)]
    search: dict[str, Any] = {"batch_size": BATCH, "beam": BEAM, "max_len_b": STEPS}
    plain = Translator([loaded.model], loaded.task, **search)
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
