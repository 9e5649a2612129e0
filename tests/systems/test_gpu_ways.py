"""Every system on a GPU (an emulated one where there is none) against itself on the CPU.

Training in each precision, then one model in each of fairseq's commands.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import cache
from statistics import fmean
from typing import Any
from unittest import mock

import devices
import gpu_costs
import pytest
import torch
import torch.nn.functional as F
import ways
from served import running
from test_device import batch, encoder_model, some_lines
from toy_data import fairseq, syntax_command, translation
from two_processes import Pair

import emulated_cuda
from fairseq_syntax.corpus.conllu import format_conllu, read_conllu, text_of

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
several_devices = pytest.mark.matrix(1, of="processes on several devices")
BFLOAT16 = "--bf16"  # which stands for Hydra's: gpu_costs.in_bfloat16
# How far the losses of three updates may be from the CPU's in float32; in half precision as the plain models' are.
PRECISIONS = {
    "": 0.0015,
    "--fp16 --fp16-init-scale 4": 0.005,
    "--memory-efficient-fp16 --fp16-init-scale 4": 0.005,
    "--amp --fp16-init-scale 4": 0.01,
    BFLOAT16: 0.05,
}
# Rows that share the code of another one: on an emulated device, which takes the processor's time, they are left out of
# what the other shows. On a real one all rows run.
ALIKE = {"transformer", "ldd (dense)", "predicted_ldd", "lasyn (K = 2)", "lstm", "sdrnmt1", "local-m", "gcn (lstm)"}
ALIKE |= {"dlaa (hard)", "dlaa (gaussian)"}
DISTINCT = [row for row in ways.ROWS if not (emulated_cuda.installed() and row in ALIKE)]
# What draws random numbers even so is not compared with a device that draws others.
FIXED = {"ldd (dense)": "--attention-dropout 0 --ldd-form dense"}
# Adam takes whole steps along gradients that are rounding alone: by SGD these losses in float16 are within 0.004.
IN_FLOAT16 = {"dbsa": 0.012}


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
    """Of each row, by fairseq's computation of the loss."""
    out = tmp_path_factory.mktemp("cpu")

    def losses(row):
        with ways.fairseqs_loss():
            return gpu_costs.trained(bench, row, out, FIXED.get(row, ""), 3).losses

    return cache(losses)


@contextmanager
def options_of(precision: str) -> Iterator[str]:
    """The options of fairseq-train for a precision, in this block."""
    with gpu_costs.in_bfloat16() if precision == BFLOAT16 else nullcontext():
        yield "" if precision == BFLOAT16 else precision


def precisions(number: int, row: str) -> list[str]:
    """Those in which a row is trained: all; on an emulated device one of the two whose model is in float16, as they
    differ in fairseq's optimizer, and of a row that is like another only one beside float32.
    """
    if not emulated_cuda.installed():
        return [*PRECISIONS]
    single, *others = [p for i, p in enumerate(PRECISIONS) if i != 1 + number % 2]
    return [single, *(others if row in DISTINCT else others[number % len(others) :][:1])]


@pytest.mark.matrix(4)
@pytest.mark.parametrize(
    "row, precision",
    [(row, precision) for number, row in enumerate(ways.ROWS) for precision in precisions(number, row)],
)
def test_training(on_gpu, cpu_losses, row, precision, tmp_path):
    """The losses are the CPU's, also those in chunks; one that is not finite is near none."""
    with options_of(precision) as more:
        losses = gpu_costs.trained(on_gpu, row, tmp_path, f"{FIXED.get(row, '')} {more}", 3).losses
    tolerance = PRECISIONS[precision]
    if "fp16" in precision:
        tolerance = max(tolerance, IN_FLOAT16.get(row, 0))
    assert losses == pytest.approx(cpu_losses(row), abs=tolerance)


def hypotheses(printed: str) -> list[tuple[str, float, str]]:
    """Number, score and tokens of each translation that fairseq-generate or -interactive printed."""
    lines = (line.split("\t") for line in printed.splitlines() if line.startswith("H-"))
    return sorted((name, round(float(score), 2), words) for name, score, words in lines)


def aligned(printed: str) -> list[str]:
    return sorted(line for line in printed.splitlines() if line.startswith("A-"))


OPTIONS = "--task syntax_translation -s en -t de --beam 2 --max-len-b 12 --max-tokens 400 --num-workers 0"


@pytest.mark.matrix(1)
@pytest.mark.parametrize("number, row", list(enumerate(DISTINCT)))
def test_one_model_in_every_command(bench, on_gpu, number, row, tmp_path):
    """Trained and resumed on the device; validated, searched, aligned and in ensembles as on the CPU.

    Every precision of training meets every command in some rows, and so does --fp16 in the commands themselves.
    """
    with options_of([*PRECISIONS][number % len(PRECISIONS)]) as more:
        ways.resumed(on_gpu, row, tmp_path, more)
    path = tmp_path / "checkpoint_last.pt"
    for on in (bench, on_gpu):
        checkpoint = on.trained / row.replace(" ", "_") / "checkpoint_last.pt"
        checkpoint.parent.mkdir(parents=True, exist_ok=True)
        checkpoint.write_bytes(path.read_bytes())

    def generated(on: ways.Bench, more: str, paths: Any = path) -> str:
        return fairseq("generate", bench.data, "--path", paths, *f"{OPTIONS} {on.device} {more}".split())

    ensemble = f"{path}:{ways.checkpoint(bench, ways.baseline(row))}"
    commands: list[Callable[[ways.Bench, str], str]] = [
        lambda on, more: generated(on, f"--print-alignment {more}"),
        lambda on, more: generated(on, more, ensemble),
        lambda on, more: ways.interact(on, row, more),
    ]
    for index, command in enumerate(commands):
        on_cpu, on_device = command(bench, ""), command(on_gpu, "")
        near(hypotheses(on_device), hypotheses(on_cpu))
        assert aligned(on_device) == aligned(on_cpu)
        if number % len(commands) == index:
            pairs = zip(hypotheses(on_cpu), hypotheses(command(on_gpu, "--fp16")), strict=True)
            # on average, as a tie that rounding decides, in the search or of a predicted parent, changes one of them
            assert fmean(abs(half - full) for (_, full, _), (_, half, _) in pairs) < 0.05
    ways.validated(on_gpu, row, tmp_path)
    ways.validated(on_gpu, row, tmp_path, "--fp16")


def near(actual, expected):
    """Number, score and words of the same translations; scores differ in their last digit at most."""
    assert [(name, words) for name, _, words in actual] == [(name, words) for name, _, words in expected]
    assert [score for _, score, _ in actual] == pytest.approx([score for _, score, _ in expected], abs=0.011)


@pytest.fixture(scope="module")
def joined():
    """As many processes as asked for, each with a device, which NCCL joins."""
    with mock.patch.dict(os.environ, emulated_cuda.environment()), ExitStack() as ends:

        @cache
        def processes(size: int) -> Pair:
            pair = Pair(backend="nccl", size=size)
            ends.callback(pair.close)
            return pair

        yield processes


@pytest.fixture(scope="module")
def two_gpus(on_gpu, joined):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    return replace(on_gpu, pair=joined(2))


def _reduced(rank: int) -> list[float]:
    model = torch.nn.parallel.DistributedDataParallel(encoder_model("lisa").cuda(), device_ids=[rank])
    sample = batch(some_lines(rank + 1), "cuda")
    logits, _ = model(**sample["net_input"])
    F.cross_entropy(logits.flatten(0, 1), sample["target"].flatten(), ignore_index=1).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).tolist()


@several_devices
def test_nccl_with_as_many_processes_as_devices(joined):
    """Each has other sentences, and all have the same gradients."""
    first, *others = joined(torch.cuda.device_count()).run(_reduced)
    assert any(first) and all(other == first for other in others)


@pytest.mark.matrix(1)
@pytest.mark.parametrize(("more", "rounding"), [("", 1), ("--amp --fp16-init-scale 4", 100)])
@pytest.mark.parametrize("row", DISTINCT)
def test_two_devices_train_as_one_with_the_joined_batch(two_gpus, row, more, rounding, tmp_path):
    """Parameters and figures."""
    ways.one_of_four(two_gpus, row, tmp_path, more, rounding)


@several_devices
def test_fairseq_starts_a_process_for_each_device(two_gpus, tmp_path):
    """And joins them by NCCL, with its defaults."""
    ways.train(replace(two_gpus, device="--distributed-world-size 2"), "pascal", tmp_path, updates=2)
    assert (tmp_path / "checkpoint_last.pt").exists()


def served(arguments: list[Any], **request: Any) -> dict[str, Any]:
    """The answer of ``fairseq-syntax serve`` to a request."""
    answers = []

    def serve(service, host, port, grace):
        with running(service) as server:
            answers.append(server.translate(**request))

    with (
        mock.patch("fairseq_syntax.use.serving.app.create_app", lambda service, **_: service),
        mock.patch("fairseq_syntax.use.serving.server.serve", serve),
    ):
        syntax_command("serve", *arguments)
    ((status, answer),) = answers
    assert status == 200, answer
    return answer


@pytest.mark.matrix(1)
@pytest.mark.parametrize("row", ["pascal", "ldd (linear)", "dlaa (hard)", "senmt", "dbsa", "lasyn"])
def test_our_commands_on_the_device(bench, row, tmp_path):
    """``translate``, ``contrast`` and ``serve`` with ``--device cuda``: the CPU's translations and scores."""
    model, parse = ways.checkpoint(bench, row), bench.data.parent / "raw" / "test.en.conllu"
    lines = [line for line in read_conllu(parse) if line.words]
    items = [f"{text_of(line)}\t{translation(line)}\t{translation(line).title()}\n" for line in lines]
    contrasts = tmp_path / "set.tsv"
    contrasts.write_text("source\tcorrect\tincorrect\n" + "".join(items), encoding="utf-8")
    texts, scores, answers = [], [], []
    for device in ("cpu", "cuda"):
        options, out = ["--device", device], tmp_path / device
        out.mkdir()
        written = ["--input", parse, "--output", out / "text", "--max-len-b", "12"]
        compared = ["--set", contrasts, "--conllu", parse, "--write-scores", out]
        with devices.on(device):
            assert syntax_command("translate", model, *written, *options) == 0
        with devices.on(device):
            assert syntax_command("contrast", f"model={model}", *compared, *options) == 0
        with devices.on(device):
            answers.append(served([model, "--parser", "none", *options], conllu=format_conllu(lines[0])))
        texts.append((out / "text").read_text(encoding="utf-8"))
        scores.append([float(score) for score in (out / "model.scores").read_text().split()])
    assert texts[0] == texts[1] and texts[0].strip()
    assert len(scores[0]) == 2 * len(lines) and scores[1] == pytest.approx(scores[0], abs=1e-3)
    near(*([(t["sentence"], t["score"], t["text"]) for t in answer["translations"]] for answer in answers))
