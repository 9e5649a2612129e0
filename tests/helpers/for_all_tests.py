"""What several test modules share: the toy corpus, made once, a model trained on it, and who may use a GPU."""

import gc
import multiprocessing
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import hypothesis
import pytest
import torch
import toy_data
from composed import composed_quickly
from global_state import changes, global_state, start_from_one_seed
from matrix_part import leave_cases_out
from warm_commands import WarmCommands, warm_commands

import emulated_cuda
import fairseq_syntax
from fairseq_syntax.runtime.console import lock_bars_per_process


def why_no_gpu(markers: set[str]) -> str | None:
    """Why a test with these markers cannot run here."""
    if "emulated_gpu" in markers and not emulated_cuda.installed():
        why = "this PyTorch has a GPU of its own" if torch.cuda.is_available() else None
        return why or _plugin_reason() or "tests of the emulated device: make gpu-emulated"
    if "gpu" in markers and not torch.cuda.is_available():
        return _plugin_reason() or "no GPU; make gpu-emulated runs it on an emulated one"
    return None


def _plugin_reason() -> str | None:
    plugin = sys.modules.get("emulated_cuda.pytest_plugin")
    return plugin.reason if plugin else None


def pytest_runtest_setup(item):
    """Skip what this machine has no device for."""
    why = why_no_gpu({marker.name for marker in item.iter_markers()})
    if why:
        pytest.skip(why)
    start_from_one_seed()


def pytest_collection_modifyitems(config, items):
    """A part of each matrix is tried. Modules with slow tests come first: quick ones at the end keep all cores busy."""
    leave_cases_out(config, items)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish():
    """Python's collector does not go again through all that was imported: a tenth of the time of the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


fairseq_syntax.register()  # as fairseq's commands have it, whichever test comes first
import_module("fairseq_cli.train")  # sets up logging: in a test it would be to a stream that is closed after it
import_module("fairseq_cli.validate").reset_logging = lambda: None  # it takes pytest's handlers away

hypothesis.settings.register_profile("no deadline", deadline=None)  # a busy machine takes longer
hypothesis.settings.load_profile("no deadline")

lock_bars_per_process()  # tests kill forks of this process

# A loader of batches that Python's collector of cycles finds cannot tell its workers to end: it waits for five seconds,
# and then it kills them.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 0.2


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> toy_data.Toy:
    """The toy corpus through the whole pipeline. Do not change its files."""
    return toy_data.make(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="session")
def trained(toy, tmp_path_factory) -> Path:
    """The checkpoint of a tiny PASCAL model, trained until its output differs from line to line."""
    directory = tmp_path_factory.mktemp("trained")
    toy_data.train(toy.data, directory, max_epoch=12, each_epoch=False)
    return directory / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def warm(tmp_path_factory) -> Iterator[WarmCommands]:
    """A process that starts the installed commands without their imports."""
    with warm_commands(tmp_path_factory.mktemp("warm")) as started:
        yield started


@pytest.fixture(scope="module")
def composed() -> Iterator[None]:
    """Recipes are rehearsed in a fraction of the time, most of which fairseq's configuration takes."""
    with composed_quickly():
        yield


@pytest.fixture(scope="module", autouse=True)
def leaves_no_trace():
    """A module of tests that changes what is global in the process fails: others would depend on the order."""
    before = global_state()
    yield
    if changes(before, global_state()):
        gc.collect()  # a loader of batches in a cycle of references still has its workers
        for process in multiprocessing.active_children():
            process.join(timeout=5)
    if left := changes(before, global_state()):
        pytest.fail("left changed:\n" + "\n".join(left), pytrace=False)
