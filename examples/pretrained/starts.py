#!/usr/bin/env python3
"""How a system is best added to a trained model: losses in the first updates, kept in starts.json.

    fairseq-syntax run examples/pretrained/captions-4000.yaml --model-dir models/en --to binarize
    fairseq-syntax run examples/atlas/tuned.yaml --model-dir models/en --seeds 1 --only relative relative+PSH.shuffled
    python examples/pretrained/starts.py

Two models are trained further with each system: the pretrained one, on captions, and the baseline of the atlas, on its
own data, since it was trained longer, so its heads attend to certain words. Each takes half a minute of a core; those
that are there already are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KEPT = HERE / "starts.json"
UPDATES = (0, 20, 80)  # after which the loss is measured; the recipes beside this make as many
RATE, WARMUP, GROWTH = 0.002, 10, 40  # as in the recipes; updates in which a factor grows
VALIDATION = 300  # sentences
# As many groups of labels as the model has heads, where LDD's own file has 16.
FOUR_GROUPS = """\
root: root
subject: nsubj csubj
object: obj iobj obl ccomp xcomp
modifier: amod advmod advcl nmod det nummod
-: acl appos aux case cc clf compound conj cop dep discourse dislocated expl fixed flat goeswith list mark orphan
-: parataxis punct reparandum vocative
"""


@dataclass(frozen=True)
class Model:
    """A trained model.

    Args:
        folder: the data with which it is trained further
        checkpoint: its file
        options: of fairseq-train, or a file of them
        systems: those that it was trained with
    """

    folder: Path
    checkpoint: Path
    options: str | Path
    systems: str = ""


@dataclass(frozen=True)
class Start:
    """A way to add a system.

    Args:
        system: its name
        options: of fairseq-train; ``{most}`` and the like are heads of the model (:func:`named_heads`)
        zero: whether the system's own parameters begin at 0
        grow: how a factor F begins: as ``1 + g (F − 1)``, with g from 0 to 1 in the first updates (``scheduled``) or
            trained from 0 (``trained``)
        data: the folder of binarized data
    """

    system: str = ""
    options: str = ""
    zero: bool = False
    grow: str = ""
    data: str = "bin"


def supervised(head: str, weight: float = 0.5, data: str = "bin") -> Start:
    """One head that is trained on the parents."""
    place = f"--parent-layer {{{head}[0]}} --parent-head {{{head}[1]}}"
    return Start("supervised_heads", f"--child-weight 0 --parent-weight {weight} {place}", data=data)


def pascal(options: str = "", grow: str = "") -> Start:
    """Some heads with PASCAL's factor."""
    return Start("pascal", options, grow=grow)


def ldp(options: str = "", grow: str = "") -> Start:
    """LDD of the most probable tree, since the recipes' parses have no probabilities."""
    return Start("ldd", f"--ldd-variant LDP {options}", grow=grow)


RUNS = ROOT / "runs"
SIDE = "--{0}-embed-dim 128 --{0}-ffn-embed-dim 256 --{0}-attention-heads 4 --{0}-normalize-before --{0}-layers 3"
OF_ATLAS = f"--arch syntax_transformer {SIDE.format('encoder')} {SIDE.format('decoder')}"
MODELS = {
    "pretrained": Model(
        RUNS / "pretrained" / "captions-4000" / "data",
        RUNS / "pretrained" / "m2m" / "model.pt",
        RUNS / "pretrained" / "m2m" / "options.txt",
    ),
    "atlas": Model(
        RUNS / "atlas" / "tuned-de" / "data",
        RUNS / "atlas" / "tuned-de" / "models" / "relative" / "1" / "checkpoint_best.pt",
        f"{OF_ATLAS} --share-decoder-input-output-embed --dropout 0.1",
        "relative_positions",
    ),
}
NO_SYSTEM = "no system"
STARTS = {
    NO_SYSTEM: Start(),
    "PASCAL, all heads of all layers": pascal("--pascal-layers 0,1,2"),
    "PASCAL, all heads of layer 0 (default)": pascal(),
    "PASCAL, all heads of layer 0, growing": pascal(grow="scheduled"),
    "PASCAL, all heads of layer 0, trained share": pascal(grow="trained"),
    "PASCAL, all heads of layer 0, added": pascal("--pascal-add"),
    "PASCAL, one head of layer 0": pascal("--pascal-heads 1"),
    "PASCAL, all heads of the top layer": pascal("--pascal-layers -1"),
    "PASCAL, one head of the top layer": pascal("--pascal-heads 1 --pascal-layers -1"),
    "LDP, layer 0, 16 heads for 4 (default)": ldp(),
    "LDP, layer 0, 4 groups": ldp("--ldd-label-groups {groups}"),
    "LDP, layer 0, 4 groups, growing": ldp("--ldd-label-groups {groups}", "scheduled"),
    "LDP, top layer, 4 groups": ldp("--ldd-label-groups {groups} --ldd-layers -1"),
    "supervised, head with the most weight on parents": supervised("most"),
    "supervised, the same, other sentences' trees": supervised("most", data="bin.shuffled"),
    "supervised, the same, weight 0.1": supervised("most", 0.1),
    "supervised, the same, weight 0.02": supervised("most", 0.02),
    "supervised, head with the least weight on parents": supervised("least"),
    "supervised, best head of layer 0": supervised("lowest"),
    "supervised, best head of the top layer": supervised("top"),
    "relative positions, as initialised": Start("relative_positions"),
    "relative positions, from zero": Start("relative_positions", zero=True),
}


# -- the model ---------------------------------------------------------------------------------------------------------


def build(of: Model, start: Start, heads: Mapping[str, Any], seed: int) -> tuple[Any, Any, list[Tensor]]:
    """The model with a system, its task, and the parameters that it did not have."""
    from fairseq import options, tasks

    from fairseq_syntax.compat.checkpoints import load_mapped

    words = of.options if isinstance(of.options, str) else of.options.read_text(encoding="utf-8")
    words += f" --cpu --task syntax_translation {start.options.format(**heads, groups=groups_file())}"
    if systems := ",".join(filter(None, [of.systems, start.system])):
        words += f" --encoder-syntax {systems}"
    args: Namespace = options.parse_args_and_arch(
        options.get_training_parser(), [str(of.folder / start.data), *words.split()]
    )
    args.attention_dropout = 0.0  # as in the recipes
    task = tasks.setup_task(args)
    torch.manual_seed(seed)
    model = task.build_model(args)
    missing, left_over = model.load_state_dict(load_mapped(str(of.checkpoint))["model"], strict=False)
    assert not left_over, left_over
    own = [parameter for name, parameter in model.named_parameters() if name in missing]
    return model, task, own


def fits(start: Start, of: Model) -> bool:
    """False for a system that the model has, and for another number of heads beside its relative positions."""
    return not of.systems or (start.system != of.systems and start != ldp())


def groups_file() -> Path:
    """A file with :data:`FOUR_GROUPS`."""
    path = RUNS / "pretrained" / "four-groups.txt"
    path.write_text(FOUR_GROUPS, encoding="utf-8")
    return path


class Growth(nn.Module):
    """A share g of a factor F, in place of which ``1 + g (F − 1)`` is used."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.g = nn.Parameter(torch.zeros(()), requires_grad=kind == "trained")

    def of(self, term: Callable[..., Any]) -> Callable[..., Any]:
        """A system's method ``term`` whose factor has grown so far."""
        from fairseq_syntax.model.dense_factors import FactorTerm

        def grown(step: Any, layer: int) -> Any:
            made = term(step, layer)
            if isinstance(made, FactorTerm):
                factor, heads = made.factor, made.heads.stop
            else:
                factor, heads = made._factors.dense(torch.float32), None
            return FactorTerm(1 + self.g * (factor - 1), heads)

        return grown

    def to(self, share: float) -> None:  # type: ignore[override]
        """Set a scheduled share."""
        if not self.g.requires_grad:
            self.g.fill_(min(share, 1.0))


def batches(task: Any, split: str, seed: int, tokens: int) -> Iterator[Mapping[str, Any]]:
    """The batches of one epoch after another."""
    task.load_dataset(split)
    of_epochs = task.get_batch_iterator(task.dataset(split), max_tokens=tokens, seed=seed)
    while True:
        yield from of_epochs.next_epoch_itr(shuffle=split == "train")


def validation(task: Any) -> list[Mapping[str, Any]]:
    """The first sentences of the validation set, in the order of their lengths."""
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    order = [number for number in dataset.ordered_indices().tolist() if number < VALIDATION]
    return [dataset.collater([dataset[number] for number in order[at : at + 30]]) for at in range(0, len(order), 30)]


@torch.no_grad()
def bits(model: nn.Module, samples: list[Mapping[str, Any]]) -> float:
    """The loss of the translations, without the systems' own losses, in bits per piece."""
    model.eval()
    total, pieces = 0.0, 0
    for sample in samples:
        log_p = model(**sample["net_input"])[0].log_softmax(-1)
        total -= log_p.gather(2, sample["target"][:, :, None])[..., 0][sample["target"].ne(1)].sum().item()
        pieces += sample["ntokens"]
    model.train()
    return total / pieces / math.log(2)


def trained(of: Model, start: Start, heads: Mapping[str, Any], seed: int) -> dict[str, float]:
    """The loss on the validation set after each number of updates."""
    model, task, own = build(of, start, heads, seed)
    if start.zero:
        for parameter in own:
            nn.init.zeros_(parameter)
    growth = Growth(start.grow)
    if start.grow:
        system = model.encoder.systems[start.system]
        system.term = growth.of(system.term)
        model.growth = growth
    criterion = task.build_criterion(Namespace(**CRITERION))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], betas=(0.9, 0.98))
    samples, losses = validation(task), {}
    model.train()
    for update, sample in enumerate(batches(task, "train", seed, 1000)):
        with torch.no_grad():
            growth.to(update / GROWTH)
        if update in UPDATES:
            losses[str(update)] = round(bits(model, samples), 4)
        if update == UPDATES[-1]:
            return losses
        rate = RATE * min((update + 1) / WARMUP, 1 - (update - WARMUP) / (UPDATES[-1] - WARMUP))
        optimizer.param_groups[0]["lr"] = rate
        loss, size, _ = criterion(model, sample)
        optimizer.zero_grad()
        (loss / size).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    raise AssertionError("batches do not end")


CRITERION = {
    "_name": "chunked_cross_entropy",
    "criterion": "chunked_cross_entropy",
    "label_smoothing": 0.1,
    "sentence_avg": False,
    "report_accuracy": False,
    "ignore_prefix_size": 0,
}


# -- its heads ---------------------------------------------------------------------------------------------------------


@torch.no_grad()
def measured_heads(of: Model) -> list[dict[str, Any]]:
    """The mean weight with which each encoder head attends from a piece to its parent and to its neighbours."""
    from fairseq_syntax.inference.recorded_attention import recorded
    from fairseq_syntax.model.attachments import parents

    model, task, _ = build(of, supervised("any"), {"any": (0, 0)}, 1)
    model.eval()
    sums: dict[tuple[int, int], Tensor] = {}
    for sample in validation(task):
        with recorded(model, ["encoder"]) as weights:
            step = model.encoder(**{k: v for k, v in sample["net_input"].items() if k != "prev_output_tokens"})["step"]
        target = parents(step.seen_by(model.encoder.systems["supervised_heads"]).parse)
        for layer, of_heads in enumerate(weights["encoder"]):
            for head, rows in enumerate(of_heads.unbind(1)):
                before, after = (rows.diagonal(offset, 1, 2) for offset in (-1, 1))
                real = target.real
                found = [
                    rows.gather(2, target.parent[:, :, None])[..., 0][real].sum(),
                    before[real[:, 1:] & real[:, :-1]].sum(),
                    after[real[:, 1:] & real[:, :-1]].sum(),
                    rows.diagonal(0, 1, 2)[real].sum(),
                    *target.counts(rows.log()),
                    real.sum(),
                ]
                place = layer, head
                sums[place] = sums.get(place, 0) + torch.tensor([float(one) for one in found])
    names = ("parent", "previous", "next", "itself")
    return [
        {
            "layer": layer,
            "head": head,
            **{name: round((one[at] / one[6]).item(), 3) for at, name in enumerate(names)},
            "accuracy": round((one[4] / one[5]).item(), 3),
        }
        for (layer, head), one in sums.items()
    ]


def named_heads(measured: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """The (layer, head) of the names in options."""

    def place(heads: list[dict[str, Any]], best: Callable[..., Any] = max) -> tuple[int, int]:
        one = best(heads, key=lambda head: head["parent"])
        return one["layer"], one["head"]

    top = measured[-1]["layer"]
    return {
        "most": place(measured),
        "least": place(measured, min),
        "lowest": place([head for head in measured if head["layer"] == 0]),
        "top": place([head for head in measured if head["layer"] == top]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS], metavar="MODEL")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="SEED")
    parser.add_argument("--only", nargs="+", choices=[*STARTS], metavar="START", help="some of the starts")
    args = parser.parse_args()

    from fairseq_syntax import register
    from fairseq_syntax.runtime.files import atomic_open

    register([])
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    for seed, name in ((seed, name) for seed in args.seeds for name in args.models):
        of = MODELS[name]
        of_model = kept.setdefault(name, {"heads": [], "starts": {}})
        heads = of_model["heads"] = of_model["heads"] or measured_heads(of)
        for start in args.only or STARTS:
            of_start = of_model["starts"].setdefault(start, {})
            if str(seed) not in of_start and fits(STARTS[start], of):
                of_start[str(seed)] = trained(of, STARTS[start], named_heads(heads), seed)
                print(name, start, seed, of_start[str(seed)], flush=True)
                of_model["starts"] = {one: found for one in STARTS if (found := of_model["starts"].get(one))}
                with atomic_open(KEPT) as file:
                    file.write(json.dumps(kept, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
