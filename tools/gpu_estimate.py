"""What a GPU would take for an update of each system, estimated from counts; nothing is timed and nothing computed.

For ``gpu_tables.py``; the rows are those of ``tests/helpers/ways.py``. Models of the base Transformer's size (6 + 6
layers, 512 dimensions, a vocabulary of 32,000) with a batch of at most 4,000 tokens a side, trained by fairseq with
``--fp16`` on the emulated device. Of every kernel the bytes that it moves and the operations of its matrix products
are known. A kernel is taken to last as long as the longest of

- its bytes over the bandwidth of the memory,
- its operations over the rate of the matrix units,
- a launch: 5 µs, what PyTorch takes to start one,

by NVIDIA's data sheets, and an update the sum of its kernels, the optimizer's included. A real GPU reaches neither
bandwidth nor rate; what is estimated are ratios to the plain Transformer, which such faults enter twice.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

# Bytes a second, and operations a second in float32 (TF32 off) and in half precision.
DEVICES = {"A100": (2.039e12, 19.5e12, 312e12), "H100": (3.35e12, 67e12, 989e12)}
LAUNCH = 5e-6
UPDATE = "--fp16 --optimizer adam --lr 0.001 --distributed-world-size 1 --no-progress-bar --log-format none"
# What a system is given here, beside the options of its row in the tests: its paper's sizes.
SIZES = {
    "pascal": "--pascal-heads 8",
    "ldd (linear)": "--ldd-form linear",
    "ldd (dense)": "--ldd-form dense --attention-dropout 0",
    "sennrich_haddow": "--label-features deprel:32",
    "lasyn": "--latent-values 4",
}
NOT_ESTIMATED = ("lasyn (K = 2)", "pascal + supervised_heads + lasyn")


def rows() -> dict[str, str]:
    """The options of the plain Transformer with fairseq's loss and optimizer and with ours, of our model without a
    system, and of every system.
    """
    import ways

    from fairseq_syntax.model.heads import HeadSystem

    chunked = f"--arch transformer {ways.criterion(HeadSystem.criterion)}"
    options_of = {
        "transformer": "",
        "transformer (with our loss and Adam)": chunked,
        "syntax_transformer (no system)": chunked.replace("--arch ", "--arch syntax_"),
        **ways.TRANSFORMERS,
    }
    return {row: f"{options} {SIZES.get(row, '')}" for row, options in options_of.items() if row not in NOT_ESTIMATED}


def seconds(kernels: list[Any], device: str, launch: float = LAUNCH) -> float:
    """The sum over kernels of the longest of their bytes, their operations and a launch."""
    bandwidth, single, half = DEVICES[device]
    return sum(max(k.bytes / bandwidth, k.operations / (half if k.half else single), launch) for k in kernels)


def updates(
    names: Sequence[str] | None = None, only_peak: bool = False, sentences: int = 4000
) -> dict[str, dict[str, float]]:
    """For each row the kernels and reads of an update, its estimated seconds on each device, and the peak bytes of its
    forward and backward pass.

    Args:
        names: of :func:`rows`; None is all of them
        only_peak: count the two passes, and no update
        sentences: of the random corpus, whose making takes longer than what is counted
    """
    import torch
    from fairseq import options, tasks
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.optim.adam import Adam
    from fairseq.optim.dynamic_loss_scaler import DynamicLossScaler
    from fairseq.optim.fp16_optimizer import _FP16OptimizerMixin
    from fairseq.trainer import Trainer

    import emulated_cuda
    import fairseq_syntax
    from bench import corpus
    from fairseq_syntax.compat.adam import fairseqs_step
    from fairseq_syntax.compat.half_precision import fairseqs_conversions

    fairseq_syntax.register()
    gradients, parameters = fairseqs_conversions
    own = {"_sync_fp16_grads_to_fp32": gradients, "_sync_fp32_params_to_fp16": parameters}
    directory = corpus.corpus(sentences, words=20, vocabulary=32000)
    options_of = rows()
    found: dict[str, dict[str, float]] = {}
    for row in names or options_of:
        gc.collect()  # or the last row's model may still count, which is in a circle of references
        words = [directory, "--task", "syntax_translation", "-s", "en", "-t", "de", "--no-save", *UPDATE.split()]
        words += options_of[row].split()
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        task = tasks.setup_task(args)
        model, criterion = task.build_model(args), task.build_criterion(args)
        task.load_dataset("train")  # with what the model needs
        batches = task.get_batch_iterator(task.dataset("train"), max_tokens=4000, seed=1).next_epoch_itr(shuffle=True)
        sample = next(batches)
        with ExitStack() as stack:
            stack.enter_context(emulated_cuda.sizes_only())
            stack.enter_context(mock.patch.object(DynamicLossScaler, "check_overflow"))
            if row == "transformer":  # fairseq's own
                stack.enter_context(mock.patch.object(Adam, "step", fairseqs_step))
                stack.enter_context(mock.patch.multiple(_FP16OptimizerMixin, **own))
            trainer = Trainer(convert_namespace_to_omegaconf(args), task, model, criterion)
            sample, _ = trainer._prepare_sample(sample)
            for _ in range(2):  # the second, as a first makes masks and the optimizer's states
                trainer.model.zero_grad()
                with emulated_cuda.counted() as passes:  # whose memory Adam's step would hide
                    criterion(trainer.model.train(), sample)[0].backward()
            for _ in range(0 if only_peak else 2):
                with emulated_cuda.counted(trace=True) as counts:
                    trainer.train_step([sample])
            del trainer, model
        if only_peak:
            found[row] = {"peak": passes.peak}
            continue
        found[row] = {
            "tokens": sample["ntokens"],
            "length": sample["net_input"]["src_tokens"].size(1),
            "kernels": counts.kernels,
            "reads": counts.reads,
            "peak": passes.peak,
            **{device: seconds(counts.trace, device) for device in DEVICES},
            **{f"{device} without launches": seconds(counts.trace, device, 0.0) for device in DEVICES},
        }
        torch.cuda.synchronize()
    return found


def layers(lengths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)) -> dict[str, dict[int, dict[str, float]]]:
    """Attention with dense factors over plain attention, forward and backward, by length: ratio and difference of time.

    So are PASCAL and LDD's dense form.
    """
    import torch
    import torch.nn.functional as F

    import emulated_cuda
    from fairseq_syntax.model.attention import HeadInputs
    from fairseq_syntax.model.dense_factors import FactorTerm

    found: dict[str, dict[int, dict[str, float]]] = {"dense factors": {}}
    for length in lengths:
        batch = max(1, 4096 // length)
        with emulated_cuda.sizes_only():
            q, k, v = (
                torch.empty(batch, 8, length, 64, device="cuda", dtype=torch.half, requires_grad=True) for _ in range(3)
            )
            factor = torch.empty(batch, 1, length, length, device="cuda")
            traces = []
            for ours in (True, False):
                with emulated_cuda.counted(trace=True) as counts:
                    if ours:
                        out = FactorTerm(factor).attend(HeadInputs(q, q, q, k, v), None)
                        assert out is not None  # the factor needs no gradient
                    else:
                        out = F.scaled_dot_product_attention(q, k, v, scale=1.0)
                    torch.autograd.grad(out, (q, k, v), torch.empty_like(out))
                traces.append(counts.trace)
        found["dense factors"][length] = {
            device: seconds(traces[0], device) / seconds(traces[1], device) for device in DEVICES
        } | {device + " ms": 1e3 * (seconds(traces[0], device) - seconds(traces[1], device)) for device in DEVICES}
    return found
