"""What all systems share, and what is measured of each in its own process: tokens, processor time and memory.

The programs ``of_*.py`` beside this one run a toolkit in its own environment, so this module imports PyTorch alone.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

# The model: this many layers on each side, and one matrix for both embeddings and the output layer. How many sentences
# a batch of training has is set by each toolkit's program in the toolkit's unit, by trial, so that an update is of
# about 1,500 target tokens with all of them.
LAYERS, WIDTH, INNER, HEADS = 3, 256, 1024, 4
DROPOUT, SMOOTHING, LEARNING_RATE = 0.1, 0.1, 0.0005
BEAM, SENTENCES = 5, 64  # of the search: beam, and sentences of a batch


class Job(NamedTuple):
    """What a process has to do, as its JSON argument says.

    ``work`` is "train" or "search"; ``text`` the folder of pieces and vocabularies, ``folder`` that of the model.
    Training takes ``warmup`` updates, and then ``updates`` that are timed. A search takes ``steps`` of the decoder in
    each batch, as the end of a translation, which a model that is hardly trained does not know, is forbidden before.
    """

    work: str
    system: str
    text: str
    folder: str
    seed: int
    warmup: int
    updates: int
    steps: int

    @classmethod
    def given(cls) -> Job:
        """The job of this process."""
        return cls(**json.loads(sys.argv[1]))

    def path(self, name: str) -> str:
        """A file of the text."""
        return str(Path(self.text) / name)

    def output(self, name: str) -> str:
        """A file beside the model."""
        return str(Path(self.folder) / name)


class Training:
    """Processor seconds and target tokens of a number of updates, by whatever optimizer of PyTorch."""

    def __init__(self, job: Job) -> None:
        self.ends = (job.warmup, job.warmup + job.updates)
        self.tokens = self.done = 0
        self.marks: list[tuple[float, int]] = []
        register_optimizer_step_post_hook(self._update)

    def count(self, target: Tensor, padding: int) -> None:
        """Count the tokens of a batch.

        Args:
            target: what is to be predicted, [B, T]: pieces and the end of the sentence, without the start symbol
            padding: the value of places that are none
        """
        self.tokens += int((target != padding).sum())

    def _update(self, *_: Any) -> None:
        self.done += 1
        if self.done in self.ends:
            self.marks.append((time.process_time(), self.tokens))

    def report(self) -> dict[str, Any]:
        """What was measured."""
        (began, before), (ended, after) = self.marks
        return {"seconds": ended - began, "tokens": after - before, "memory": peak()}


def searching(search: Callable[[], Any]) -> dict[str, Any]:
    """Processor seconds of a search from the first layer that computes something, so without loading the model."""
    began: list[float] = []

    def first(*_: Any) -> None:
        began.append(time.process_time())
        hook.remove()

    hook = torch.nn.modules.module.register_module_forward_pre_hook(first)
    search()
    return {"seconds": time.process_time() - began[0], "memory": peak()}


def check(lengths: list[int], expected: int) -> None:
    """Raise a ValueError unless all translations have the expected number of pieces: times are of the same work."""
    if set(lengths) != {expected}:
        raise ValueError(f"translations have {min(lengths)} to {max(lengths)} pieces instead of {expected}")


def peak() -> int:
    """The most memory that this process has had, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def before(owner: type, method: str, note: Callable[..., Any]) -> None:
    """Let a method of a class first call a function with its arguments."""
    actual = getattr(owner, method)

    def noted(*args: Any, **named: Any) -> Any:
        note(*args, **named)
        return actual(*args, **named)

    setattr(owner, method, noted)


def run(train: Callable[[Job], dict[str, Any]], search: Callable[[Job], dict[str, Any]], package: str) -> None:
    """Do the job of this process, and print what was measured, with the package's version, as the last line."""
    job = Job.given()
    measured = (search if job.work == "search" else train)(job)
    print("\n" + json.dumps(measured | {"version": metadata.version(package), "torch": torch.__version__}), flush=True)
