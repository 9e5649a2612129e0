"""On a GPU: every system's step and search against the CPU's, and its fast forms against the exact ones.

Where there is no GPU they run on an emulated one (``make gpu-emulated``). ``make gpu`` runs them on a GPU, and writes
down what came of it.
"""

import copy
import math
import pkgutil
from unittest import mock

import pytest
import torch
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.sequence_generator import SequenceGenerator
from finite import Finite
from lstm_models import model as lstm_model
from test_device import LSTMS, TRANSFORMERS, batch, encoder_model, some_lines
from tiny_syntax import dictionary, tiny_model, tiny_task
from torch.utils._python_dispatch import _disable_current_modes

from fairseq_syntax.criterions.chunked_cross_entropy import SupervisedHeadCriterion
from fairseq_syntax.criterions.lasyn_em import LaSynEMCriterion
from fairseq_syntax.model.sparse_factors import sparse_factor_attention
from fairseq_syntax.systems.lasyn.generator import LatentGenerator

pytestmark = pytest.mark.gpu
# Of a loss of some tens, and of gradients relative to the largest.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 6e-2}


def made(name: str):
    """A model and its criterion."""
    if name == "lasyn":
        return tiny_model("lasyn_transformer"), LaSynEMCriterion(tiny_task(), 1, 0.5, 0.1, False)
    if name in dict(LSTMS):
        criterion = LabelSmoothedCrossEntropyCriterion(tiny_task(), False, 0.1)
        return lstm_model(name, scale=1, **dict(LSTMS)[name]), criterion
    return encoder_model(name), SupervisedHeadCriterion(tiny_task(), False, 0.1)


NAMES = [*(name for name in TRANSFORMERS if name != "pascal"), "lasyn", *dict(LSTMS)]


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_training_step_is_the_cpus(name, dtype):
    model, criterion = made(name)
    on_gpu = copy.deepcopy(model).cuda().to(dtype)
    loss, size, _ = criterion(model.eval(), batch(some_lines()))
    actual, _, _ = criterion(on_gpu.eval(), batch(some_lines(), "cuda"))
    assert actual.item() / size == pytest.approx(loss.item() / size, rel=TOLERANCE[dtype])
    if dtype != torch.float32:
        return
    (loss / size).backward()
    (actual / size).backward()
    for (parameter, a), b in zip(model.named_parameters(), on_gpu.parameters()):
        if a.grad is not None:
            scale = a.grad.abs().max().clamp(min=1e-3)
            torch.testing.assert_close(b.grad.cpu() / scale, a.grad / scale, atol=1e-3, rtol=1e-3, msg=parameter)


def step_in_half_precision(name: str) -> float:
    """A training step in float16, with scores as large as those of real models; the largest of them.

    Raises:
        FloatingPointError: a value or a gradient is NaN or infinite
    """
    model, criterion = made(name)
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if name in dict(LSTMS):
                weight.mul_(16.0)
            elif parameter.endswith(("q_proj.weight", "k_proj.weight", "embed_tokens.weight")):
                weight.mul_(8.0)
    model = model.cuda().half().train()
    with Finite() as finite:
        loss, size, _ = criterion(model, batch(some_lines(), "cuda"))
    (loss / size).backward()
    for parameter, weight in model.named_parameters():
        if weight.grad is not None and not weight.grad.isfinite().all():
            raise FloatingPointError(f"the gradient of {parameter} is not finite")
    return finite.largest


@pytest.mark.matrix(8)
@pytest.mark.parametrize("name", NAMES)
def test_half_precision_stays_finite_with_large_scores(name):
    assert step_in_half_precision(name) > 20


SCORES = {
    "pascal ldd": "systems.pascal.gaussian_window",
    "ldd LDD dense": "model.sparse_factors.SparseFactors.dense",
    "ldd LDD linear": "model.sparse_factors._rows",
    "lasyn": "systems.lasyn.model.LaSynDecoder.log_prior",
    "local_attention_lstm": "model.position_attention.LogGaussian.forward",
}


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("name", SCORES)
def test_one_score_that_is_not_finite_is_seen(name, value):
    """The test before this one can fail."""
    place = f"fairseq_syntax.{SCORES[name]}"
    original = pkgutil.resolve_name(place)

    def planted(*args, **kwargs):
        result = original(*args, **kwargs)
        with _disable_current_modes(), torch.no_grad():  # the check must see what comes of it
            scores = result[0] if isinstance(result, tuple) else result
            scores[(0,) * scores.dim()] = value
        return result

    with mock.patch(place, planted), pytest.raises(FloatingPointError):
        step_in_half_precision(name)


@pytest.mark.matrix(8)
@pytest.mark.parametrize("name", NAMES)
def test_a_search_finds_what_the_cpus_finds(name):
    model, _ = made(name)
    actual = []
    for device in ("cpu", "cuda"):
        on_device = copy.deepcopy(model).to(device).eval()
        sample = {**batch(some_lines(), device), "id": torch.arange(5)}
        sample["net_input"].pop("prev_output_tokens")
        kind = LatentGenerator if name == "lasyn" else SequenceGenerator
        generator = kind([on_device], dictionary(), beam_size=3, max_len_b=6)
        actual.append([h[0]["score"].item() for h in generator.generate([on_device], sample)])
    assert actual[0] == pytest.approx(actual[1], abs=1e-3)


def test_ldd_linear_is_dense():
    from test_ldd_linear import dense, random_case

    q, k, v, _, factors, mask = random_case(4, lengths=(23, 1, 40, 9), d=16, dtype=torch.float32, scale=0.25)
    q, k, v, mask = (x.cuda() for x in (q, k, v, mask))
    factors = type(factors)(factors.size, *(getattr(factors, n).cuda() for n in list(factors.__annotations__)[1:]))
    torch.testing.assert_close(
        sparse_factor_attention(q, k, v, factors, mask), dense(q, k, v, factors, mask), atol=1e-4, rtol=1e-4
    )
