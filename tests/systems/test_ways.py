"""Some cells of the table of systems and ways (``tests/helpers/ways.py``): what broke before, and each kind."""

import pickle
from pathlib import Path

import pytest
import torch
import ways
from composed import composed_quickly
from data_errors import data_error
from fairseq import options
from fairseq.dataclass import utils
from fairseq.dataclass.configs import DistributedTrainingConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from matrix_part import of_half_a_minute, of_ten_seconds
from torch import distributed

from fairseq_syntax.compat.processes import _start_processes

CELLS = [
    ("supervised_heads", "`--encoder-layerdrop 0.5`"),
    ("lisa", "`--encoder-layerdrop 0.5`"),
    ("pascal", "ensemble with plain"),
    ("pascal", "fairseq-interactive `--constraints`"),
    ("ldd (dense)", "fairseq-interactive"),
    ("relative_depth", "fairseq-generate `--print-alignment`"),
    ("structural_positions", "fairseq-validate"),
    ("predicted_pascal", "`--checkpoint-activations`"),
    ("predicted_ldd", "`--store-ema`"),
    ("gcn", "`--load-alignments --criterion label_smoothed_cross_entropy_with_alignment`"),
    ("dbsa", "default"),
    ("lasyn (K = 2)", "default"),
    ("pascal + supervised_heads + lasyn", "`--amp`"),
    ("pascal", "`--left-pad-source`"),
    ("sdrnmt1", "`--left-pad-source`"),
    ("dlaa (hard)", "ensemble with plain"),
    ("tree2seq", "bfloat16 model"),
    ("sennrich_haddow", "fairseq-hydra-train `--multirun`"),
    ("dlaa (hard)", "two processes, `--ddp-backend pytorch_ddp`"),
    *(
        (row, "two processes, `--ddp-backend pytorch_ddp --checkpoint-activations`")
        for row in ("relative_depth", "structural_positions")  # several layers share parameters
    ),
    ("lasyn", "two processes, `--ddp-backend pytorch_ddp --find-unused-parameters`"),
    *(
        (row, "two processes with two batches per update equal one process")
        for row in ("lasyn (K = 2)", "ldd (linear)", "gcn (lstm)")
    ),
]
CHUNKED = [row for row, options in ways.ROWS.items() if "chunked_cross_entropy" in options]


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = ways.make(tmp_path_factory.mktemp("ways"))
    yield made
    made.pair.close()


@of_ten_seconds
@pytest.mark.slow
@pytest.mark.parametrize("row, way", CELLS, ids=lambda x: x.strip("`"))
def test_a_cell_works(bench, row, way):
    assert ways.run(bench, row, way) == ways.Outcome("works")


@of_ten_seconds
@pytest.mark.slow
@pytest.mark.parametrize("row", ["lisa", "pascal", "local-p"])
def test_two_processes_with_the_loss_in_chunks_train_as_one_with_fairseqs(bench, row, tmp_path):
    """Parameters and figures."""
    with ways.fairseqs_loss():  # not in the two
        ways.one_of_four(bench, row, tmp_path)


@of_ten_seconds
@pytest.mark.slow
@pytest.mark.parametrize("row", CHUNKED)
def test_the_loss_in_chunks_trains_as_fairseqs(bench, row, tmp_path):
    """Also taken up again in the middle of an epoch: the same parameters up to rounding."""
    steps = "--optimizer sgd --lr 0.5 --max-tokens 120"
    with ways.fairseqs_loss():
        expected = ways.train(bench, row, tmp_path / "fairseq", steps, updates=5)
    ways.train(bench, row, tmp_path / "chunked", steps, updates=2)
    actual = ways.train(bench, row, tmp_path / "chunked", steps, updates=5)
    actual, expected = (torch.load(path, weights_only=True)["model"] for path in (actual, expected))
    for name, value in expected.items():
        torch.testing.assert_close(actual[name], value, atol=2e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.slow
def test_what_is_not_to_be_is_refused_or_said_not_to_be_there(bench):
    refused = ways.run(bench, "pascal", "`--truncate-source --max-source-positions 12`")
    assert refused.kind == "refused" and "--truncate-source" in refused.why
    assert ways.run(bench, "dlaa (hard)", "`--encoder-layerdrop 0.5`").kind == "–"


def test_outcomes_are_of_one_state_of_the_package(tmp_path, monkeypatch):
    path = tmp_path / "outcomes"
    ways.Kept(path).add("pascal", "default", ways.Outcome("works"))
    assert ways.Kept(path).get("pascal", "default") == ways.Outcome("works")
    monkeypatch.setattr(ways, "state_of_the_package", lambda: "another")
    assert ways.Kept(path).get("pascal", "default") is None


PAGE = Path(__file__).parents[2] / "docs" / "ways.md"


@pytest.mark.checkout
def test_the_page_has_every_system_and_every_way():
    text = PAGE.read_text("utf-8")
    actual = ways.outcomes_of(text)
    missing = sorted({row for row in ways.ROWS for way in ways.WAYS if (row, way) not in actual})
    assert not missing, f"docs/ways.md: make ways ROWS='{' '.join(missing)}'"
    assert ways.page(actual) == text
    assert [cell for cell, outcome in actual.items() if outcome.kind == "fails"] == []


@pytest.mark.checkout
def test_one_row_can_be_run_and_the_others_stay():
    actual = ways.outcomes_of(PAGE.read_text("utf-8"))
    row, way = "pascal", "`--store-ema`"
    others = {cell: outcome for cell, outcome in actual.items() if cell[0] != row}
    assert "\nSystems: transformer, dbsa" in ways.page(others) and ", pascal, " not in ways.page(others)
    changed = {**actual, (row, way): ways.Outcome("refused", "--store-ema: is not for it")}
    assert "- `--store-ema`\n  - *pascal*: `--store-ema`: is not for it\n" in ways.page(changed)
    assert ways.outcomes_of(ways.page(changed)) == changed


def test_several_processes_without_a_gpu(monkeypatch):
    """As torchrun starts them, and as fairseq is to start them; not where nobody says how many."""
    given = DistributedTrainingConfig()
    given.distributed_world_size = 1
    assert not _start_processes(given) and given.distributed_init_method is None
    given.distributed_world_size = 2
    assert _start_processes(given)
    assert given.distributed_init_method.startswith("tcp://127.0.0.1:") and given.distributed_backend == "gloo"
    with data_error("--distributed-rank"):
        _start_processes(given)
    given = DistributedTrainingConfig()
    given.distributed_world_size = 1
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert not _start_processes(given) and given.distributed_init_method is None, "a launcher of one"
    given = DistributedTrainingConfig()
    for name, value in {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert not _start_processes(given)
    assert (given.distributed_rank, given.distributed_world_size, given.distributed_no_spawn) == (1, 3, True)


def test_the_processes_of_a_restart_do_not_find_those_before(monkeypatch):
    """``torchrun --max-restarts``: all attempts share a store, with the addresses of processes that were killed."""
    server = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
    for name, value in {**torchrun, "TORCHELASTIC_USE_AGENT_STORE": "True", "GROUP_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)
    stores = []
    for attempt in "012":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        given = DistributedTrainingConfig()
        assert not _start_processes(given)
        store, rank, size = next(distributed.rendezvous(given.distributed_init_method, 0, 2))
        assert (rank, size) == (0, 2) and not store.check(["address"])
        store.set("address", attempt)
        stores.append(store)
    assert [store.get("address").decode() for store in stores] == [*"012"]
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    given = DistributedTrainingConfig()
    assert not _start_processes(given) and given.distributed_init_method == "env://"


@of_half_a_minute
@pytest.mark.slow
def test_fairseq_starts_two_processes_itself(bench, tmp_path):
    ways.started(bench, "pascal", tmp_path)


TRAINING = (
    "x --task syntax_translation --arch lasyn_transformer --criterion lasyn_em --lr 1,2 --update-freq 2,3 --patience 2 "
    "--valid-subset valid,test --eval-bleu-args {} --optimizer adam --save-dir /a/b --fp16 --seed 7"
)
COMMAND_LINES = [
    (options.get_training_parser, TRAINING),
    (options.get_training_parser, "x --task translation --arch transformer --criterion adaptive_loss --cpu --lr 1"),
    (options.get_generation_parser, "/data --path a:b --beam 3 --task syntax_translation --post-process sentencepiece"),
    (options.get_validation_parser, "/data --path a --task syntax_translation --cpu --valid-subset test"),
]


def composed(parser, line):
    """The configuration of a command, and its task's as fairseq merges it with the defaults once more."""
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(parser(), line.split()))
    return cfg, utils.merge_with_parent(TASK_DATACLASS_REGISTRY[cfg.task._name](), cfg.task)


@pytest.mark.parametrize("parser, line", COMMAND_LINES)
def test_the_tests_own_way_to_compose_a_configuration(parser, line):
    expected = composed(parser, line)
    for _ in range(2):
        with composed_quickly():
            actual = composed(parser, line)
        assert actual == expected and repr(actual) == repr(expected)


def test_the_options_reach_processes_that_are_started():
    """fairseq pickles them, where it starts a process for each GPU itself."""
    cfg, _ = composed(options.get_training_parser, TRAINING)
    assert pickle.loads(pickle.dumps(cfg)).task.syntax_input == "auto"
