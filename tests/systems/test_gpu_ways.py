"""Every system on a GPU (an emulated one where there is none) against itself on the CPU.

Training in each precision, then one model in each of fairseq's commands.
"""

from dataclasses import replace
from functools import cache

import gpu_costs
import pytest
import ways

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
# Of the losses of six updates, at most: what half precision may differ from float32 on the CPU.
PRECISIONS = {
    "": 0.002,
    "--fp16 --fp16-init-scale 4": 0.01,
    "--memory-efficient-fp16 --fp16-init-scale 4": 0.01,
    "--amp --fp16-init-scale 4": 0.005,
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = ways.make(tmp_path_factory.mktemp("ways"))
    yield made
    made.pair.close()


@pytest.fixture(scope="module")
def on_cpu(bench, tmp_path_factory):
    out = tmp_path_factory.mktemp("cpu")
    return cache(lambda row: gpu_costs.trained(bench, row, out).losses)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("row", ways.ROWS)
def test_training(bench, on_cpu, row, precision, tmp_path):
    """The losses are the CPU's; a loss that is not finite is none."""
    losses = gpu_costs.trained(replace(bench, device=ways.ONE_GPU), row, tmp_path, precision).losses
    assert losses == pytest.approx(on_cpu(row), abs=PRECISIONS[precision])
