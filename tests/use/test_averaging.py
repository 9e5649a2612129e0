"""Averages of checkpoints: the mean of the parameters, of the files that are meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from data_errors import data_error, refused

from fairseq_syntax.cli import main as command


def write(path: Path, value: float, *, maximize: bool = False, **more: Any) -> None:
    """A checkpoint whose parameters have one value."""
    numbers = torch.tensor([value, -value], dtype=torch.float16)
    model = {"w": numbers, "b": torch.tensor([1e-3 * value]), "version": torch.tensor([3.0]), "n": torch.tensor([7])}
    average = {name: tensor + 100 for name, tensor in model.items() if name == "w"} | {"version": torch.tensor([1.0])}
    state = {
        "model": model,
        "cfg": {"model": {"arch": "transformer", "encoder_layers": 2}, "checkpoint": {}},
        "extra_state": {"ema": average, "ema_fp32_params": model, "train_iterator": {"epoch": int(value)}},
        "task_state": {"dictionaries": {"source": "a"}},
        "last_optimizer_state": {"large": numbers},
    }
    state["cfg"]["checkpoint"]["maximize_best_checkpoint_metric"] = maximize
    torch.save({**state, **more}, path)


def averaged(folder: Path, *options: Any) -> dict[str, Any]:
    output = folder / "average.pt"
    assert command(["average", *map(str, options), "--output", str(output)]) == 0
    return torch.load(output, weights_only=True)


def test_the_mean_of_parameters_and_of_moving_averages(tmp_path):
    for number in (1, 2, 6):
        write(tmp_path / f"{number}.pt", number)
    files = [tmp_path / f"{number}.pt" for number in (1, 2, 6)]
    state = averaged(tmp_path, *files)
    mean = sum((1, 2, 6)) / 3
    assert state["model"]["w"].tolist() == [mean, -mean] and state["model"]["w"].dtype == torch.float16
    assert state["model"]["b"].item() == pytest.approx(1e-3 * mean, rel=1e-6)
    assert state["model"]["version"].item() == 3 and state["model"]["n"].item() == 7
    assert "last_optimizer_state" not in state and state["extra_state"]["train_iterator"] == {"epoch": 6}
    assert state["extra_state"]["averaged"] == ["1.pt", "2.pt", "6.pt"] and state["task_state"]
    moving = averaged(tmp_path, *files, "--ema")
    # What fairseq leaves out of a moving average, and its version, are the model's.
    assert moving["model"]["w"].tolist() == [100 + mean, 100 - mean] and moving["model"]["version"].item() == 3
    assert moving["model"]["b"].item() == pytest.approx(1e-3 * mean, rel=1e-6) and "ema" not in moving["extra_state"]


def test_checkpoints_without_a_record_of_their_training(tmp_path):
    for number in (1, 3):
        write(tmp_path / f"{number}.pt", number, extra_state=None)
    files = [tmp_path / "1.pt", tmp_path / "3.pt"]
    assert averaged(tmp_path, *files)["model"]["w"].tolist() == [2, -2]
    refused(["average", *files, "--output", tmp_path / "average.pt", "--ema"], "--store-ema", path="1.pt")


@pytest.mark.parametrize("maximize, best", [(False, 3.0), (True, 5.5)])
def test_the_last_and_the_best_of_a_folder(tmp_path, maximize, best):
    for epoch in (1, 2, 9, 10):
        write(tmp_path / f"checkpoint{epoch}.pt", epoch)
        write(tmp_path / f"checkpoint_{epoch}_{epoch * 7}.pt", 30)
    for score in (2, 4, 7):
        write(tmp_path / f"checkpoint.best_x_{score}.0000.pt", score, maximize=maximize)
    write(tmp_path / "checkpoint_last.pt", 50)
    assert averaged(tmp_path, tmp_path, "--last", 3)["model"]["w"][0] == 7
    assert averaged(tmp_path, tmp_path, "--best", 2)["model"]["w"][0] == best
    assert averaged(tmp_path, tmp_path, "--ema")["model"]["w"][0] == 150
    for path in tmp_path.glob("checkpoint[0-9]*.pt"):
        path.unlink()
    assert averaged(tmp_path, tmp_path, "--last", 2)["model"]["w"][0] == 30, "of updates, as there are none of epochs"


@pytest.mark.parametrize(
    "more, options",
    [
        ({"model": {"w": torch.zeros(3)}}, []),
        ({"model": {}}, []),
        ({"cfg": {"model": {"arch": "transformer", "encoder_layers": 1}}}, []),
        ({"task_state": {"dictionaries": {"source": "b"}}}, []),
        ({"extra_state": {}}, ["--ema"]),
    ],
)
def test_checkpoints_that_do_not_belong_together_are_refused(tmp_path, capsys, more, options):
    write(tmp_path / "1.pt", 1)
    write(tmp_path / "2.pt", 2, **more)
    files = [str(tmp_path / name) for name in ("1.pt", "2.pt")]
    assert command(["average", *files, *options, "--output", str(tmp_path / "a.pt")]) == 1
    assert files[1] in capsys.readouterr().err and not (tmp_path / "a.pt").exists()


@pytest.mark.parametrize("options", [["--last", "3"], ["--best", "1"], []])
def test_a_folder_with_fewer_is_refused(tmp_path, options):
    from fairseq_syntax.use import averaging

    write(tmp_path / "checkpoint1.pt", 1)
    assert command(["average", str(tmp_path), *options, "--output", str(tmp_path / "a.pt")]) == 1
    with data_error("--keep-last-epochs", path=tmp_path):
        averaging.last_checkpoints(tmp_path, 2)
