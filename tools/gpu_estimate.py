"""What a GPU would take for an update of each system, estimated from counts; nothing is timed and nothing computed.

``python tools/gpu_estimate.py [--rows ROW …] [--json]``. Models of the base Transformer's size (6 + 6 layers, 512
dimensions, a vocabulary of 32,000) with a batch of at most 4,000 tokens a side, in half precision on the emulated
device. Of every kernel the bytes that it moves and the operations of its matrix products are known. A kernel is taken
to last as long as the longest of

- its bytes over the bandwidth of the memory,
- its operations over the rate of the matrix units,
- a launch: 5 µs, what PyTorch takes to start one,

by NVIDIA's data sheets, and an update the sum of its kernels: forward, backward, and no optimizer. A real GPU reaches
neither bandwidth nor rate; what is estimated are ratios to the plain Transformer, which such faults enter twice.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# Bytes a second, and operations a second in float32 (TF32 off) and in half precision.
DEVICES = {"A100": (2.039e12, 19.5e12, 312e12), "H100": (3.35e12, 67e12, 989e12)}
LAUNCH = 5e-6
PLAIN = "--criterion label_smoothed_cross_entropy --label-smoothing 0.1"
HEADS = "--criterion supervised_head"
ROWS = {
    "transformer": f"transformer {PLAIN}",
    "pascal": f"pascal_transformer {PLAIN}",
    "ldd (linear)": f"ldd_transformer --ldd-form linear {PLAIN}",
    "ldd (dense)": f"ldd_transformer --ldd-form dense {PLAIN}",
    "supervised_heads": f"supervised_head_transformer {HEADS}",
    "lisa": "lisa_transformer --criterion lisa",
    "sennrich_haddow": f"sennrich_haddow_transformer --label-features deprel:32 {PLAIN}",
    "relative_depth": f"relative_depth_transformer {PLAIN}",
    "structural_positions": f"structural_positions_transformer {PLAIN}",
    "predicted_pascal": f"parser_free_pascal_transformer {HEADS}",
    "predicted_ldd": f"parser_free_ldd_transformer {HEADS}",
    "gcn": f"gcn_transformer {PLAIN}",
    "dbsa": f"dbsa_transformer {HEADS}",
    "lasyn": "lasyn_transformer --criterion lasyn_em --latent-values 4 --tag-weight 0",
}


def seconds(kernels: list[Any], device: str, launch: float = LAUNCH) -> float:
    """The sum over kernels of the longest of their bytes, their operations and a launch."""
    bandwidth, single, half = DEVICES[device]
    return sum(max(k.bytes / bandwidth, k.operations / (half if k.half else single), launch) for k in kernels)


def updates(rows: list[str]) -> dict[str, dict[str, float]]:
    """For each row the kernels, reads and peak bytes of a step, and its estimated seconds on each device."""
    import torch
    from fairseq import options, tasks, utils

    import emulated_cuda
    import fairseq_syntax
    from bench import corpus

    fairseq_syntax.register()
    directory = corpus.corpus(words=20, vocabulary=32000)
    found = {}
    for row in rows:
        words = [directory, "--task", "syntax_translation", "-s", "en", "-t", "de", "--arch", *ROWS[row].split()]
        args = options.parse_args_and_arch(options.get_training_parser(), words)
        task = tasks.setup_task(args)
        model, criterion = task.build_model(args), task.build_criterion(args)
        task.load_dataset("train")  # with what the model needs
        batches = task.get_batch_iterator(task.dataset("train"), max_tokens=4000, seed=1).next_epoch_itr(shuffle=True)
        sample = next(batches)
        with emulated_cuda.sizes_only():
            model = model.half().cuda().train()
            sample = utils.move_to_cuda(sample)
            for _ in range(2):  # the second, as a first may check what it is given and make masks
                model.zero_grad()
                with emulated_cuda.counted(trace=True) as counts:
                    loss, _, _ = criterion(model, sample)
                    loss.backward()
            del loss, model
        found[row] = {
            "tokens": sample["ntokens"],
            "length": sample["net_input"]["src_tokens"].size(1),
            "kernels": counts.kernels,
            "reads": counts.reads,
            "peak": counts.peak,
            **{device: seconds(counts.trace, device) for device in DEVICES},
            **{f"{device} without launches": seconds(counts.trace, device, 0.0) for device in DEVICES},
        }
        torch.cuda.synchronize()
    return found


def layers(lengths: tuple[int, ...] = (32, 64, 128, 256, 512, 1024)) -> dict[str, dict[int, dict[str, float]]]:
    """PASCAL's and LDD's attention over plain attention, forward and backward, by length: ratios of time, and bytes."""
    import torch
    import torch.nn.functional as F

    import emulated_cuda
    from fairseq_syntax.model.dense_factors import dense_factor_attention

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
                        out = dense_factor_attention(q, k, v, factor)
                    else:
                        out = F.scaled_dot_product_attention(q, k, v, scale=1.0)
                    torch.autograd.grad(out, (q, k, v), torch.empty_like(out))
                traces.append(counts.trace)
        found["dense factors"][length] = {
            device: seconds(traces[0], device) / seconds(traces[1], device) for device in DEVICES
        } | {device + " ms": 1e3 * (seconds(traces[0], device) - seconds(traces[1], device)) for device in DEVICES}
    return found


def main() -> int:
    """Print the estimates as a Markdown table, or as JSON."""
    import emulated_cuda

    parser = argparse.ArgumentParser(description="Estimate what a GPU takes for an update of each system.")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        emulated_cuda.install()
    except emulated_cuda.Unavailable as error:
        print(f"gpu_estimate: {error}", file=sys.stderr)
        return 1
    found: dict[str, Any] = {"updates": updates(list(dict.fromkeys(["transformer", *args.rows]))), "layers": layers()}
    if args.json:
        print(json.dumps(found))
        return 0
    plain = found["updates"]["transformer"]
    print("| | kernels | peak bytes | A100 | H100 | if launches were free |\n|---|--:|--:|--:|--:|--:|")
    for row, costs in found["updates"].items():
        ratios = [f"{costs[name] / plain[name]:.3f}" for name in ("kernels", "peak")]
        speed = [f"{plain[name] / costs[name]:.3f}" for name in ("A100", "H100", "H100 without launches")]
        print(f"| {row} | " + " | ".join(ratios + speed) + " |")
    print(f"\nplain: {plain}\n")
    for name, by_length in found["layers"].items():
        for length, costs in by_length.items():
            print(name, length, {key: round(value, 3) for key, value in costs.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
