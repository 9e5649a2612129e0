"""What each option of training changes in what is trained, saved or logged, or that it changes nothing."""

from __future__ import annotations

import itertools
import math
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

import option_ledger
import pytest
import torch
import toy_data
from data_errors import data_error
from fairseq.dataclass import configs
from toy_data import fairseq
from untrained import untrained
from ways import logged

from fairseq_syntax.compat.best_checkpoints import comparable
from fairseq_syntax.use.loading import load_models

trainings = pytest.mark.matrix(4, of="trainings with other options")
# Four updates an epoch.
SIZES = {"--max-tokens": None, "--batch-size": 15, "--required-batch-size-multiple": 1}
PLAIN = {"--arch": "transformer", "--encoder-layers": 1, "--max-epoch": 2, **SIZES}


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


OTHER_SUBSETS = ("--ignore-unused-valid-subsets", "--combine-valid-subsets")


@pytest.fixture(scope="module")
def train(toy, tmp_path_factory) -> Trainings:
    return Trainings(toy.data, tmp_path_factory.mktemp("trained"))


@trainings
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


@pytest.mark.parametrize("more", [{}, {"warmup_updates": 3}], ids=["", "warmup"])
@trainings
def test_a_resumed_plateau_has_the_rate_that_is_given_now(train, more):
    """Shrunk as often as the former one; as with the other schedulers, and where the optimizer's is overridden."""
    options = {"lr_scheduler": "reduce_lr_on_plateau", "lr_shrink": 0.5, "lr_threshold": 1.0, **more}
    whole, parts = train(**options, max_epoch=3), [train(**options, max_epoch=2).folder for _ in range(3)]
    rates = [
        train(folder=folder, **options, max_epoch=3, **changed).train[-1]["lr"]
        for folder, changed in zip(parts, ({}, {"lr": 0.002}, {"lr": 0.002, "optimizer_overrides": "{'lr': 0.004}"}))
    ]
    former = whole.train[-1]["lr"]
    assert former < 0.01 and rates == pytest.approx([former, former / 5, 0.002])  # the rate of the third is halved once


@trainings
def test_the_best_checkpoints_are_kept_whatever_came_first(train, monkeypatch):
    from fairseq_cli import train as command

    scores = iter([3.0, 5.0, 4.0, 4.0, 2.0, 6.0])
    monkeypatch.setattr(command, "validate", lambda *args: [next(scores)])
    actual = train(keep_best_checkpoints=3, max_epoch=6)
    kept = [name for name in actual.files if name.startswith("checkpoint.best")]
    assert kept == [f"checkpoint.best_loss_{score}.pt" for score in ("2.0000", "3.0000", "4.0000")]
    epochs = [actual.state(name)["extra_state"]["train_iterator"]["epoch"] - 1 for name in kept]
    assert epochs == [5, 1, 3]
    scores = iter([3.0, 5.0, 4.0])
    # With nothing else to save, and the largest scores.
    more = ["--no-last-checkpoints", "--no-epoch-checkpoints", "--maximize-best-checkpoint-metric"]
    actual = train(*more, best_checkpoint_metric="bsz", keep_best_checkpoints=2, max_epoch=3)
    assert actual.files == [
        "checkpoint.best_bsz_4.0000.pt",
        "checkpoint.best_bsz_5.0000.pt",
        "checkpoint_best.pt",
    ]


@pytest.mark.parametrize("first", [[math.nan, 3.0], [3.0, math.nan]], ids=["at first", "later"])
@trainings
def test_a_score_that_is_not_a_number_is_the_worst(train, monkeypatch, first):
    """Of checkpoints to keep, of the best one, and for ``--patience``."""
    from fairseq_cli import train as command

    scores = iter([*first, 2.0, 1.0, 4.0, math.nan, 0.0])
    monkeypatch.setattr(command, "validate", lambda *args: [next(scores)])
    actual = train(keep_best_checkpoints=3, patience=2, max_epoch=7)
    kept = [name for name in actual.files if name.startswith("checkpoint.best")]
    assert kept == [f"checkpoint.best_loss_{score}.0000.pt" for score in (1, 2, 3)]
    best, last = (actual.state(f"checkpoint_{name}.pt")["extra_state"] for name in ("best", "last"))
    assert best["val_loss"] == last["best"] == 1.0 and last["train_iterator"]["epoch"] == 1 + 6


@pytest.mark.parametrize("maximize", [False, True])
def test_no_score_is_worse_than_one_that_is_not_a_number(maximize):
    worst = comparable(Namespace(maximize_best_checkpoint_metric=maximize), math.nan)
    assert all((worst < score) if maximize else (worst > score) for score in (-1e30, 0.0, 1e30))


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


@pytest.mark.parametrize("option", ["--fp16", "--bf16", "--memory-efficient-bf16", "--tpu"])
def test_a_precision_of_another_device_is_refused(train, option):
    """fairseq ends in a traceback; its ``--bf16`` is for TPUs alone."""
    with data_error(option=option.replace("memory-efficient-", "")):
        train(option)


@trainings
def test_half_precision_works_on_a_cpu_where_gradients_stay_apart(train):
    assert train("--fp16", "--fp16-no-flatten-grads").updates > 0


def test_a_metric_that_validation_does_not_log_is_told_before_training(train, tmp_path):
    """fairseq ends in a KeyError after the first epoch. The check advances no random generator."""
    with data_error("pll", "ppl", option="--best-checkpoint-metric"):
        train(folder=tmp_path / "refused", best_checkpoint_metric="pll")
    assert not [*(tmp_path / "refused").glob("*.pt")]
    actual = train(best_checkpoint_metric="ppl")
    assert torch.equal(actual.parameters, train.default.parameters)
    assert actual.state()["extra_state"]["best"] == pytest.approx(min(row["ppl"] for row in actual.valid))
    with data_error("--eval-bleu", option="--best-checkpoint-metric"):
        train("--maximize-best-checkpoint-metric", folder=tmp_path / "bleu", best_checkpoint_metric="bleu")
    train("--disable-validation", best_checkpoint_metric="pll", max_epoch=1)  # where it is not looked for


@trainings
def test_gradients_that_are_not_finite_are_named(train, monkeypatch):
    from fairseq.models.transformer import TransformerModel

    forward = TransformerModel.forward

    def broken(self, *args, **kwargs):
        self.decoder.layers[0].fc1.bias.register_hook(lambda gradient: gradient * float("nan"))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(TransformerModel, "forward", broken)
    with data_error("decoder.layers.0.fc1.bias"):
        train(max_epoch=1)


@trainings
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


@trainings
def test_validation_sets_can_be_named(toy, train, tmp_path):
    for path in toy.data.iterdir():
        for name in [path.name, path.name.replace("test.", "valid1.")]:
            if not name.startswith("."):
                (tmp_path / name).write_bytes(path.read_bytes())
    both = Trainings(tmp_path, tmp_path)(valid_subset="valid,valid1", max_epoch=1)
    assert len(both.valid) == 2
    other = Trainings(tmp_path, tmp_path / "other")
    with pytest.raises(ValueError, match="valid1"):  # fairseq's
        other(max_epoch=1)
    (one,), (merged,) = (other(more, max_epoch=1).valid for more in (*OTHER_SUBSETS,))
    assert one == both.valid[0] and merged["loss"] not in (row["loss"] for row in both.valid)


@trainings
def test_noise_of_quantization_works_without_a_gpu(train):
    actual = train(quant_noise_scalar=0.5, max_epoch=1)
    again = train(max_epoch=1)
    assert actual.parameters.isfinite().all() and not torch.equal(actual.parameters, again.parameters)
    with torch.no_grad():
        fairseq("validate", train.data, "--path", actual.folder / "checkpoint_last.pt", "--task", "syntax_translation",
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


def test_options_said_to_have_no_effect_in_training_have_none(train):
    values = {"--amp-batch-retries": 1, "--amp-init-scale": 2, "--amp-scale-window": 1, "--min-loss-scale": 1e-9}
    values |= {"--threshold-loss-scale": 3, "--fp16-scale-tolerance": 0.5, "--empty-cache-freq": 1}
    values |= {"--all-gather-list-size": 3, "--bucket-cap-mb": 1, "--ddp-comm-hook": "fp16", "--device-id": 1}
    values |= {"--distributed-backend": "mpi", "--distributed-num-procs": 3, "--heartbeat-timeout": 3}
    values |= {"--localsgd-frequency": 2, "--nprocs-per-node": 3, "--slowmo-base-algorithm": "sgp"}
    values |= {
        "--slowmo-momentum": 0.5,
        "--plasma-path": "x",
        "--pipeline-chunks": 3,
        "--pipeline-checkpoint": "always",
    }
    values |= {"--fixed-validation-seed": 3, "--checkpoint-shard-count": 2, "--scoring": "wer", "--tokenizer": "moses"}
    nothing = option_ledger.without_effect("in training")
    alone = ["--use-bmuf"]  # it is not to be given with --amp
    for part in (alone, [name for name in nothing if name not in alone]):
        actual = train(*(x for name in part for x in (name, *([values[name]] if name in values else []))))
        assert actual.files == train.default.files and torch.equal(actual.parameters, train.default.parameters)


def float16(train: Trainings) -> None:
    """What there is of it without a GPU: the loss is scaled, and the scale grows after so many updates."""
    scales = [
        train("--memory-efficient-fp16", **more).train[-1]["loss_scale"]
        for more in ({"fp16_init_scale": 4}, {"fp16_init_scale": 4, "fp16_scale_window": 2})
    ]
    assert scales == [4, 4 * 2**4]  # after eight updates
    actual = train("--memory-efficient-fp16")
    assert torch.equal(actual.parameters, actual.parameters.half().float())


def names(trained: Trained, start: str) -> list[str]:
    """What tells the checkpoints of a kind apart."""
    return [
        n.removeprefix(start).removesuffix(".pt")
        for n in trained.files
        if n[len(start)].isdigit() and n.startswith(start)
    ]


def epochs_saved(train: Trainings) -> None:
    assert names(train.default, "checkpoint") == ["1", "2"] and train.default.updates == 8
    assert names(train(max_epoch=3, save_interval=2), "checkpoint") == ["2"]
    assert names(train(max_epoch=3, keep_last_epochs=2), "checkpoint") == ["2", "3"]
    few = train("--no-epoch-checkpoints", "--no-last-checkpoints", "--no-save-optimizer-state")
    assert few.files == ["checkpoint_best.pt"] and "last_optimizer_state" not in few.state("checkpoint_best.pt")
    assert train("--no-save", max_epoch=1).files == []
    suffixed = train("--no-epoch-checkpoints", checkpoint_suffix="_a", max_epoch=1)
    assert suffixed.files == ["checkpoint_best_a.pt", "checkpoint_last_a.pt"]


def updates_saved(train: Trainings) -> None:
    every = {"save_interval_updates": 1, "max_epoch": 1}
    assert names(train(**every), "checkpoint_1_") == ["1", "2", "3"]
    assert names(train(**every, keep_interval_updates=1), "checkpoint_1_") == ["3"]
    kept = train(**every, keep_interval_updates=1, keep_interval_updates_pattern=2)
    assert names(kept, "checkpoint_1_") == ["2", "3"]


def beginning(train: Trainings) -> None:
    """Resumed trainings: the default one has made 8 updates in 2 epochs."""
    last = train.default.folder / "checkpoint_last.pt"
    whole, on = train(max_epoch=3), train(restore_file=last, max_epoch=3)
    assert on.updates == 12 and torch.equal(on.parameters, whole.parameters)
    assert train("--reset-dataloader", restore_file=last, max_epoch=2).updates == 16
    anew = train("--reset-optimizer", restore_file=last, max_epoch=3)
    assert anew.updates == 4 and not torch.equal(anew.parameters, whole.parameters)
    other = train(restore_file=last, optimizer_overrides="{'betas': (0.5, 0.6)}", max_epoch=3)
    assert other.state()["last_optimizer_state"]["param_groups"][0]["betas"] == (0.5, 0.6)
    best = train.default.state()["extra_state"]["best"]
    worse = {"restore_file": last, "optimizer_overrides": "{'lr': 5.0}", "lr": 5.0, "max_epoch": 3}
    assert train(**worse).state()["extra_state"]["best"] == best
    assert train("--reset-meters", **worse).state()["extra_state"]["best"] > best
    tuned = train(finetune_from_model=last, lr=0, max_epoch=1)
    assert tuned.updates == 4 and torch.equal(tuned.parameters, train.default.parameters)


def schedule_forgotten(train: Trainings) -> None:
    options = {"lr_scheduler": "reduce_lr_on_plateau", "lr_patience": 9, "lr": 0}

    def bad(*more: str, **changed: Any) -> int:
        actual = train(*more, **options, **changed)
        return actual.state()["optimizer_history"][-1]["lr_scheduler_state"]["num_bad_epochs"]

    folder = train(**options, max_epoch=3).folder
    last = folder / "checkpoint_last.pt"
    assert bad(restore_file=last, max_epoch=4) == 2 and bad("--reset-lr-scheduler", restore_file=last, max_epoch=4) == 0


def ending(train: Trainings) -> None:
    assert train(max_epoch=1).updates == 4 and train(max_update=3).updates == 3
    assert train(stop_time_hours=1e-9).updates == 1
    assert train(stop_min_lr=1).files == []


def updating(train: Trainings) -> None:
    assert train(update_freq=2).updates == 4
    assert train(update_freq=3).updates == 4 and train("--skip-remainder-batch", update_freq=3).updates == 2
    clipped = train(clip_norm=1e-3)
    assert clipped.train[-1]["clip"] == 100 and not torch.equal(clipped.parameters, train.default.parameters)
    # A gradient of the mean over sentences is larger than over words.
    assert train("--sentence-avg", max_epoch=1).train[0]["gnorm"] > 2 * train.default.train[0]["gnorm"]
    assert torch.equal(train(lr="0.01,0", max_epoch=2).parameters, train(max_epoch=1).parameters)
    assert not torch.equal(train(seed=6).parameters, train.default.parameters)
    for scheduler, values, rate in (
        ("inverse_sqrt", {"warmup_updates": 4}, 0.01 * (4 / 8) ** 0.5),
        ("polynomial_decay", {"total_num_update": 16, "power": 2}, 0.01 * (1 - 8 / 16) ** 2),
        ("fixed", {"force_anneal": 2, "lr_shrink": 0.1}, 0.001),
    ):
        assert train(lr_scheduler=scheduler, **values).train[-1]["lr"] == pytest.approx(rate)


def batching(train: Trainings) -> None:
    assert train(train_subset="valid", max_epoch=1).updates == 1
    assert train(batch_size=20, max_epoch=1).updates == 3
    assert train(required_batch_size_multiple=8, max_epoch=1).updates == 8, "batches of 8 sentences, not of 15"
    assert train(batch_size=None, max_tokens=80, max_epoch=1).updates > 4
    sorted_once = train(curriculum=1)
    assert not torch.equal(sorted_once.parameters, train.default.parameters)
    others = train("--update-ordered-indices-seed", "--update-epoch-batch-itr", "True")
    assert not torch.equal(others.parameters, train.default.parameters)
    assert torch.equal(train(num_workers=1, data_buffer_size=1).parameters, train.default.parameters)


def validating(train: Trainings) -> None:
    assert len(train.default.valid) == 2 and train("--disable-validation").valid == []
    assert len(train(validate_interval=2).valid) == 1 and len(train(validate_after_updates=5).valid) == 1
    assert len(train(validate_interval_updates=2, max_epoch=1).valid) == 2
    assert train(valid_subset="test").valid[0]["loss"] != train.default.valid[0]["loss"]
    sizes = [
        train(**more, max_epoch=1).valid[0]["bsz"] for more in ({}, {"batch_size_valid": 2}, {"max_tokens_valid": 40})
    ]
    assert sizes[0] == 12 and sizes[1] == 2 and sizes[2] < 12
    steps = train(batch_size_valid=4, max_valid_steps=1, max_epoch=1)
    assert steps.valid[0]["loss"] != train.default.valid[0]["loss"]


def averaging(train: Trainings) -> None:
    def average(*more: str, **changed: Any) -> torch.Tensor:
        state = train("--store-ema", *more, **changed).state()
        assert ("ema_fp32_params" in state["extra_state"]) == ("--ema-fp32" in more)
        return torch.cat([value.flatten() for value in state["extra_state"]["ema"].values()])

    final = train.default.parameters
    slow = average(ema_decay=0.9)
    assert not torch.allclose(slow, final, atol=1e-4) and torch.allclose(
        average("--ema-fp32", ema_decay=0.9), slow, atol=1e-5
    )
    assert torch.allclose(average(ema_decay=0.0), final, atol=1e-6)
    assert torch.allclose(average(ema_start_update=99), final, atol=1e-6)
    assert not torch.allclose(average(ema_decay=0.9, ema_update_freq=2), slow, atol=1e-4)
    seed = train.default.folder / "checkpoint_last.pt"
    assert torch.allclose(average(ema_decay=1.0, ema_seed_model=seed, seed=6, max_epoch=1), final, atol=1e-6)


def losing(train: Trainings) -> None:
    """Options of the model and of the criterion."""
    actual = train("--report-accuracy", ignore_prefix_size=1, max_epoch=1).valid[0]
    assert 0 <= actual["accuracy"] <= 100 and actual["loss"] != train.default.valid[0]["loss"]
    # An LSTM freezes embeddings that it has read from a file, and its checkpoint can be loaded without it.
    vectors = next(train.folders)
    vectors.write_text("".join(f"{piece} {' '.join(['0.5'] * 16)}\n" for piece in ("a", "▁MAN")), encoding="utf-8")
    given = dict.fromkeys(("encoder_embed_path", "decoder_embed_path"), vectors)
    sizes = {f"{side}_{name}": None for side in ("encoder", "decoder") for name in ("ffn_embed_dim", "attention_heads")}
    frozen = train("--encoder-freeze-embed", "--decoder-freeze-embed", arch="lstm", **given, **sizes, max_epoch=1)
    vectors.unlink()
    (model,), _, _ = load_models([frozen.folder / "checkpoint_last.pt"], train.data, device="cpu")
    for side in (model.encoder, model.decoder):
        assert side.embed_tokens.weight[4:].eq(0.5).all(dim=1).any(), "a piece has the vector that was read"
    dropped = untrained(train.data, "transformer", "--relu-dropout", "0.3", "--attention-dropout", "0.2").model
    for layer in (*dropped.encoder.layers, *dropped.decoder.layers):
        assert (layer.activation_dropout_module.p, layer.self_attn.dropout_module.p) == (0.3, 0.2)


EFFECTS: dict[Callable[[Trainings], None], str] = {
    epochs_saved: "save_interval keep_last_epochs no_epoch_checkpoints no_last_checkpoints no_save_optimizer_state "
    "no_save checkpoint_suffix",
    updates_saved: "save_interval_updates keep_interval_updates keep_interval_updates_pattern",
    beginning: "restore_file reset_dataloader reset_optimizer optimizer_overrides reset_meters finetune_from_model",
    schedule_forgotten: "reset_lr_scheduler",
    ending: "max_epoch max_update stop_time_hours stop_min_lr",
    updating: "update_freq skip_remainder_batch clip_norm sentence_avg lr",
    batching: "train_subset batch_size required_batch_size_multiple max_tokens curriculum num_workers data_buffer_size "
    "update_ordered_indices_seed update_epoch_batch_itr",
    validating: "disable_validation validate_interval validate_after_updates validate_interval_updates valid_subset "
    "batch_size_valid max_tokens_valid max_valid_steps",
    losing: "",
    float16: "",
    averaging: "store_ema ema_decay ema_fp32 ema_start_update ema_update_freq ema_seed_model",
}
# Asserted by other tests, here or where the ledger says.
ELSEWHERE = """save_dir continue_once keep_best_checkpoints best_checkpoint_metric maximize_best_checkpoint_metric
    patience skip_invalid_size_inputs_valid_test required_seq_len_multiple dataset_impl combine_valid_subsets
    ignore_unused_valid_subsets gen_subset num_shards shard_id grouped_shuffling"""
# In one process without a GPU and without further packages, or for these models, they change nothing.
NOTHING = """checkpoint_shard_count load_checkpoint_on_all_dp_ranks write_checkpoints_asynchronously model_parallel_size
    use_bmuf debug_param_names fixed_validation_seed"""


@pytest.mark.matrix(3)
@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: effect.__name__)
def test_an_option_of_training_has_its_effect(train, effect):
    effect(train)


def test_every_option_of_training_is_told():
    """A new option of fairseq turns this red until its effect is asserted."""
    groups = (configs.CheckpointConfig, configs.DatasetConfig, configs.OptimizationConfig, configs.EMAConfig)
    named = {field.name for group in groups for field in fields(group)} - {"_name"}
    told = [name for names in (*EFFECTS.values(), ELSEWHERE, NOTHING) for name in names.split()]
    assert sorted(told) == sorted(named)
