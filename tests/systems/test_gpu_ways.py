"""Every system on a GPU (an emulated one where there is none) against itself on the CPU.

Training in each precision, then one model in each of fairseq's commands.
"""

import subprocess
import sys
from dataclasses import replace
from functools import cache

import gpu_costs
import pytest
import torch
import ways
from toy_data import USER_DIR, fairseq, syntax_command

import emulated_cuda

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
# How far the losses of six updates may be from the CPU's in float32: in half precision as far as the plain models' are.
PRECISIONS = {
    "": 0.0015,
    "--fp16 --fp16-init-scale 4": 0.005,
    "--memory-efficient-fp16 --fp16-init-scale 4": 0.005,
    "--amp --fp16-init-scale 4": 0.01,
}
# What draws random numbers even so is not compared with a device that draws others.
FIXED = {"ldd (dense)": "--attention-dropout 0 --ldd-form dense"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = ways.make(tmp_path_factory.mktemp("ways"))
    made.device = f"--cpu {ways.ONE_GPU}"  # or it would start a process for each device even so
    yield made
    made.pair.close()


@pytest.fixture(scope="module")
def on_gpu(bench):
    return replace(bench, device=ways.ONE_GPU, work=bench.work / "gpu")


@pytest.fixture(scope="module")
def cpu_losses(bench, tmp_path_factory):
    out = tmp_path_factory.mktemp("cpu")
    return cache(lambda row: gpu_costs.trained(bench, row, out, FIXED.get(row, "")).losses)


def precisions(number: int) -> list[str]:
    """Those that a row is trained in: all on a real GPU, float32 and one of the others in turn on an emulated one."""
    full, *lower = PRECISIONS
    return [full, *([lower[number % len(lower)]] if emulated_cuda.installed() else lower)]


@pytest.mark.parametrize(
    "row, precision", [(row, precision) for number, row in enumerate(ways.ROWS) for precision in precisions(number)]
)
def test_training(on_gpu, cpu_losses, row, precision, tmp_path):
    """The losses are the CPU's; one that is not finite is near none."""
    losses = gpu_costs.trained(on_gpu, row, tmp_path, f"{FIXED.get(row, '')} {precision}").losses
    assert losses == pytest.approx(cpu_losses(row), abs=PRECISIONS[precision])


def hypotheses(printed: str) -> list[tuple[str, float, str]]:
    """Number, score and tokens of each translation that fairseq-generate or -interactive printed."""
    lines = (line.split("\t") for line in printed.splitlines() if line.startswith("H-"))
    return sorted((name, round(float(score), 2), words) for name, score, words in lines)


def aligned(printed: str) -> list[str]:
    return sorted(line for line in printed.splitlines() if line.startswith("A-"))


@pytest.mark.parametrize("row", ways.ROWS)
def test_one_model_in_every_command(bench, on_gpu, row, tmp_path):
    """Trained and resumed on the device; validated, searched, aligned and in ensembles as on the CPU."""
    ways.resumed(on_gpu, row, tmp_path)
    path = tmp_path / "checkpoint_last.pt"
    options = [
        "--task",
        "syntax_translation",
        "-s",
        "en",
        "-t",
        "de",
        "--beam",
        "2",
        "--max-len-b",
        "12",
        "--max-tokens",
        "400",
        "--num-workers",
        "0",
    ]
    plain = ways.checkpoint(bench, ways.baseline(row))
    for paths, more in ((path, "--print-alignment"), (f"{path}:{plain}", "")):
        printed = [
            fairseq("generate", bench.data, "--path", paths, *options, *f"{on.device} {more}".split())
            for on in (bench, on_gpu)
        ]
        assert len(hypotheses(printed[0])) == 8
        near(hypotheses(printed[1]), hypotheses(printed[0]))
        assert aligned(printed[1]) == aligned(printed[0])
    for on in (bench, on_gpu):
        checkpoint = on.trained / row.replace(" ", "_") / "checkpoint_last.pt"
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_bytes(path.read_bytes())
    near(hypotheses(ways.interact(on_gpu, row)), hypotheses(ways.interact(bench, row)))
    ways.validated(on_gpu, row, tmp_path)


def near(found, expected):
    """The same translations; scores differ in their last digit at most."""
    assert [(name, words) for name, _, words in found] == [(name, words) for name, _, words in expected]
    assert [score for _, score, _ in found] == pytest.approx([score for _, score, _ in expected], abs=0.011)


@pytest.mark.parametrize("row", ["supervised_heads", "pascal"])
def test_two_devices_train_as_one_with_the_joined_batch(bench, on_gpu, row, tmp_path, monkeypatch):
    """fairseq starts a process for each device and joins them by NCCL, with its defaults."""
    for name, value in emulated_cuda.environment().items():
        monkeypatch.setenv(name, value)
    same = "--optimizer sgd --lr 0.5 --dropout 0 --required-batch-size-multiple 1 --max-epoch 2 --max-tokens 4000 "
    two = replace(on_gpu, device="--distributed-world-size 2")
    for on, size, out in ((on_gpu, 40, "one"), (two, 20, "two")):
        options = ways.training_options(on, row, f"{same} --batch-size {size}", 99)
        command = [sys.executable, "-m", "fairseq_cli.train", bench.data, "--user-dir", USER_DIR, "--save-dir"]
        done = subprocess.run(
            [*map(str, command), str(tmp_path / out), *options], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-3000:]
    one, both = (torch.load(tmp_path / d / "checkpoint_last.pt", weights_only=True)["model"] for d in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(both[name], value, atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("row", ["pascal", "ldd (linear)", "dlaa (hard)", "lasyn"])
def test_translate_on_the_device(bench, row, tmp_path):
    """``fairseq-syntax translate --device cuda`` writes what the CPU writes."""
    written = []
    for device in ("cpu", "cuda"):
        out = tmp_path / f"{device}.txt"
        inputs = ["--input", bench.data.parent / "raw" / "test.en.conllu", "--output", out]
        assert syntax_command("translate", ways.checkpoint(bench, row), *inputs, "--device", device) == 0
        written.append(out.read_text(encoding="utf-8"))
    assert written[0] == written[1] and written[0].strip()
