"""What each option of training changes in what is trained, saved or logged, or that it changes nothing."""

from __future__ import annotations

import itertools
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import toy_data
from data_errors import data_error
from toy_data import fairseq
from ways import logged

PLAIN = {"--arch": "transformer", "--encoder-layers": 1, "--max-epoch": 2}


class Trained:
    """What a training has left: its files, its last checkpoint and the figures that it logged."""

    def __init__(self, folder: Path, stats: list[dict[str, float]]) -> None:
        self.folder = folder
        self.valid = [row for row in stats if "gnorm" not in row]
        self.train = [row for row in stats if "gnorm" in row]

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.pt"))

    def state(self, name: str = "checkpoint_last.pt") -> dict[str, Any]:
        return torch.load(self.folder / name, weights_only=True)

    @cached_property
    def parameters(self) -> torch.Tensor:
        return torch.cat([value.flatten() for value in self.state()["model"].values()])

    @property
    def updates(self) -> int:
        return self.state()["optimizer_history"][-1]["num_updates"]


class Trainings:
    """Trainings of a tiny Transformer on the toy's data."""

    def __init__(self, data: Path, work: Path) -> None:
        self.data, self.folders = data, (work / str(number) for number in itertools.count())

    def __call__(self, *more: Any, folder: Path | None = None, **changed: Any) -> Trained:
        """Train with other options; in a folder, resume."""
        folder = folder or next(self.folders)
        options = {**toy_data.MODEL, **toy_data.TRAINING, **PLAIN}
        options |= {"--" + name.replace("_", "-"): value for name, value in changed.items()}
        given = [x for name, value in options.items() if value is not None for x in (name, value)]
        stats = logged([self.data, "--save-dir", folder, "--cpu", *given, *more])
        return Trained(folder, stats)

    @cached_property
    def default(self) -> Trained:
        return self()


@pytest.fixture(scope="module")
def train(toy, tmp_path_factory) -> Trainings:
    return Trainings(toy.data, tmp_path_factory.mktemp("trained"))


def test_a_plateau_lowers_the_rate_of_a_resumed_training_too(train):
    """The rate is halved each time that the score has not improved for more than an epoch, as nothing is learned."""
    options = {"lr_scheduler": "reduce_lr_on_plateau", "lr_patience": 1, "lr_shrink": 0.5, "lr_threshold": 1.0}

    def rate(trained: Trained) -> float:
        return trained.state()["last_optimizer_state"]["param_groups"][0]["lr"]

    whole = train(**options, max_epoch=5)
    part = train(**options, max_epoch=2)
    for epoch in (3, 5):
        part = train(**options, folder=part.folder, max_epoch=epoch)
    assert rate(part) == rate(whole) < 0.01
    assert torch.equal(part.parameters, whole.parameters)


def test_the_best_checkpoints_are_kept_whatever_came_first(train, monkeypatch):
    from fairseq_cli import train as command

    scores = iter([3.0, 5.0, 4.0, 4.0, 2.0, 6.0])
    monkeypatch.setattr(command, "validate", lambda *args: [next(scores)])
    found = train(keep_best_checkpoints=3, max_epoch=6)
    kept = [name for name in found.files if name.startswith("checkpoint.best")]
    assert kept == [f"checkpoint.best_loss_{score}.pt" for score in ("2.0000", "3.0000", "4.0000")]
    epochs = [found.state(name)["extra_state"]["train_iterator"]["epoch"] - 1 for name in kept]
    assert epochs == [5, 1, 3]
    scores = iter([3.0, 5.0, 4.0])
    # With nothing else to save, and the largest scores.
    more = ["--no-last-checkpoints", "--no-epoch-checkpoints", "--maximize-best-checkpoint-metric"]
    found = train(*more, best_checkpoint_metric="my_score", keep_best_checkpoints=2, max_epoch=3)
    assert found.files == [
        "checkpoint.best_my_score_4.0000.pt",
        "checkpoint.best_my_score_5.0000.pt",
        "checkpoint_best.pt",
    ]


@pytest.mark.parametrize(
    "options",
    [
        ["--maximize-best-checkpoint-metric"],
        ["--best-checkpoint-metric", "bleu"],
        ["--best-checkpoint-metric", "a_uas"],
    ],
)
def test_the_worst_checkpoint_is_not_saved_as_the_best(train, options):
    with data_error(options[0]):
        train(*options)


def test_gradients_that_are_not_finite_are_named(train, monkeypatch):
    from fairseq.models.transformer import TransformerModel

    forward = TransformerModel.forward

    def broken(self, *args, **kwargs):
        self.decoder.layers[0].fc1.bias.register_hook(lambda gradient: gradient * float("nan"))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(TransformerModel, "forward", broken)
    with data_error("decoder.layers.0.fc1.bias"):
        train(max_epoch=1)


def test_an_average_begins_with_the_parameters_of_a_model_without_one(train):
    """``--finetune-from-model``, and a training that begins to keep an average."""
    start = train.default.folder / "checkpoint_last.pt"

    def differs(trained: Trained, model: dict[str, torch.Tensor]) -> list[str]:
        average = trained.state()["extra_state"]["ema"]
        return [name for name, value in model.items() if not torch.allclose(average[name], value, atol=1e-6)]

    start = train.default.folder / "checkpoint_last.pt"
    assert not differs(
        train("--store-ema", finetune_from_model=start, lr=0, max_epoch=1), train.default.state()["model"]
    )
    # Also of a model that normalizes after its last layer.
    normalized = "--encoder-normalize-before", "--decoder-normalize-before"
    on = train("--store-ema", *normalized, folder=train(*normalized, max_epoch=1).folder, ema_decay=0.0)
    assert not differs(on, on.state()["model"]) and "decoder.layer_norm.weight" in on.state()["model"]


def test_validation_sets_can_be_named(toy, train, tmp_path):
    for path in toy.data.iterdir():
        for name in [path.name, path.name.replace("test.", "valid1.")]:
            if not name.startswith("."):
                (tmp_path / name).write_bytes(path.read_bytes())
    both = Trainings(tmp_path, tmp_path)(valid_subset="valid,valid1", max_epoch=1)
    assert len(both.valid) == 2
    with pytest.raises(ValueError, match="valid1"):  # fairseq's
        Trainings(tmp_path, tmp_path / "other")(max_epoch=1)


def test_noise_of_quantization_works_without_a_gpu(train):
    found = train(quant_noise_scalar=0.5, max_epoch=1)
    again = train(max_epoch=1)
    assert found.parameters.isfinite().all() and not torch.equal(found.parameters, again.parameters)
    with torch.no_grad():
        fairseq("validate", train.data, "--path", found.folder / "checkpoint_last.pt", "--task", "syntax_translation",
                "--cpu", "--max-tokens", 400)  # fmt: skip


def test_layers_are_not_dropped_where_other_processes_wait_for_them():
    from fairseq.models import distributed_fairseq_model as wrapping
    from fairseq.modules import LayerDropModuleList

    model = torch.nn.Sequential(LayerDropModuleList(0.1, [torch.nn.Linear(1, 1)]))
    with data_error("--find-unused-parameters", "legacy_ddp"):
        wrapping.DistributedDataParallel(module=model, find_unused_parameters=False)


def test_what_processes_without_a_gpu_have_logged_is_gathered(tmp_path):
    """In validation, and in training with a criterion whose outputs cannot be summed."""
    from fairseq.distributed import utils

    torch.distributed.init_process_group("gloo", f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        assert utils.all_gather_list([{"loss": 1.5}, None], max_size=1) == [[{"loss": 1.5}, None]]
    finally:
        torch.distributed.destroy_process_group()
