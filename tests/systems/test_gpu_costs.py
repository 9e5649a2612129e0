"""What a training update costs a GPU beside fairseq's own model, counted on the emulated device: budgets.

Depth is that of the base Transformer (6 + 6 layers), of which the number of kernels depends; widths are tiny.
"""

import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from unittest import mock

import gpu_costs
import pytest
import ways
from composed import composed_quickly
from fairseq.optim.adam import Adam

pytestmark = [pytest.mark.gpu, pytest.mark.emulated_gpu, pytest.mark.slow]

UPDATES = gpu_costs.WARM_UP + 2  # as many for every row: batches differ
NOT_ESTIMATED = ("transformer", "lasyn (K = 2)", "pascal + supervised_heads + lasyn")


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = ways.make(tmp_path_factory.mktemp("ways"))
    made.device = ways.ONE_GPU
    yield made
    made.pair.close()


@pytest.fixture(scope="module")
def plain(bench, tmp_path_factory):
    """fairseq's own models."""
    out = tmp_path_factory.mktemp("plain")
    return {row: gpu_costs.updated(bench, row, out, UPDATES) for row in ("transformer", "lstm")}


@pytest.mark.matrix(2)
@pytest.mark.parametrize("row", ways.ROWS)
def test_an_update_costs_hardly_more_than_the_plain_models(bench, plain, row, tmp_path):
    """At most one read and one transfer more, no wait for a transfer more, and kernels within the row's budget.

    So does one of the plain models with the loss in chunks.
    """
    loss = ways.criterion("chunked_cross_entropy") if row in plain else ""
    base, costs = plain[ways.baseline(row)], gpu_costs.updated(bench, row, tmp_path, UPDATES, loss)
    for what, more in (("reads", 1), ("copies", 1), ("blocking_copies", 0), ("unpinned_copies", 0)):
        assert costs.per_update(what) <= base.per_update(what) + more, (what, costs.reads)
    ratio = costs.per_update("kernels") / base.per_update("kernels")
    assert ratio <= gpu_costs.allowed(row), costs.kernels - base.kernels


def test_adam_in_one_pass_saves_half_of_the_kernels(bench, plain, tmp_path):
    """Of an update in float32; the parameters, and so the losses, are the same."""
    our_step = Adam.step
    with mock.patch.object(gpu_costs, "fairseqs_step", our_step):
        costs = gpu_costs.updated(bench, "transformer", tmp_path, UPDATES)
    base = plain["transformer"]
    assert costs.losses == pytest.approx(base.losses, abs=1e-3)
    assert costs.per_update("kernels") <= 0.55 * base.per_update("kernels"), costs.kernels
    for what in ("reads", "copies", "blocking_copies"):
        assert costs.per_update(what) <= base.per_update(what)


@pytest.mark.matrix(2)
@pytest.mark.parametrize("name", gpu_costs.SEARCHES)
def test_a_step_of_beam_search_waits_no_more_often_than_the_plain_models(bench, name):
    """At most one read more, and no transfer, for all systems that change the decoder."""
    row, search = gpu_costs.SEARCHES[name]
    base, step = gpu_costs.searched(bench, ways.baseline(row)), gpu_costs.searched(bench, row, search)
    assert step["reads"] <= base["reads"] + 1
    assert step["copies"] <= base["copies"]


@pytest.fixture(scope="module")
def peak():
    """Peak bytes of an update of a row at the base Transformer's size with a batch of 4,000 tokens; nothing is
    computed."""
    with_tools = [str(Path(__file__).parents[2] / "tools"), *sys.path]
    with mock.patch.object(sys, "path", with_tools):
        estimate = import_module("gpu_estimate")

    @cache
    def peak_of(row: str) -> int:
        with composed_quickly():
            return estimate.updates([row], only_peak=True, sentences=400)[row]["peak"]

    return peak_of


@pytest.mark.matrix(1)
@pytest.mark.parametrize(
    "row", ["transformer (with our loss and Adam)", *(row for row in ways.TRANSFORMERS if row not in NOT_ESTIMATED)]
)
def test_the_loss_in_chunks_saves_two_fifths_of_the_base_models_memory(peak, row):
    """Beside fairseq's own model and loss."""
    plain = peak("transformer")
    assert plain > 2**30  # of 60 million parameters and their gradients, and what is kept for the backward pass
    assert peak(row) <= 0.6 * plain
