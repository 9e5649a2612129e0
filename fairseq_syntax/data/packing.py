"""Packing of a batch's syntax into one tensor, which is copied to a device in one transfer.

The loader provides only word-level data, concatenated over the sentences of the batch
(:class:`~fairseq_syntax.corpus.store.flat.FlatSyntax`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor

from fairseq_syntax.corpus.store.flat import ARC_FIELDS, WORD_FIELDS, FlatArcs, FlatSyntax, Lengths

__all__ = ["BatchSyntax", "PackedSyntax", "in_one_transfer", "pack", "target_syntax", "unpack"]


@dataclass(frozen=True)
class PackedLayout:
    """The layout of a packed tensor, and values that only the host needs."""

    sizes: dict[str, int]  # the number of elements of each array, in the order of the tensor
    lengths: Lengths
    heads: np.ndarray  # [W] int32, as in FlatSyntax
    n_tree_arcs: int | None
    n_piece_arcs: int | None
    begin: int = 0  # the number of preceding elements of the tensor, which belong to the other side


class PackedSyntax(TypedDict):
    """The syntax of a batch, packed into one tensor for the transfer to the device.

    It is a dictionary, since fairseq moves, pins and casts only tensors in dictionaries, lists and plain tuples.
    """

    packed: Tensor  # [N] int32: the bytes of all arrays, concatenated
    layout: PackedLayout


BatchSyntax: TypeAlias = PackedSyntax | FlatSyntax[Tensor]


def pack(flat: FlatSyntax[np.ndarray]) -> PackedSyntax:
    """Pack the arrays of a batch into one tensor.

    fairseq pins and copies the tensors of a batch one by one. With ``--fp16`` it would cast float32 tensors to half
    precision; packed probabilities are bytes of an int32 tensor, so they are not cast.
    """
    arrays = {name: getattr(flat, name) for name in ("n_pieces", "n_words", *WORD_FIELDS)}
    arcs = flat.arcs
    if arcs is not None:
        arrays |= {f"arcs.{name}": getattr(arcs, name) for name in ARC_FIELDS}
    if flat.parsed is not None:
        arrays["parsed"] = flat.parsed
    kinds = {"arcs.prob": np.float32}
    four_bytes = [array.astype(kinds.get(name, np.int32), copy=False).view(np.int32) for name, array in arrays.items()]
    return {
        "packed": torch.from_numpy(np.concatenate(four_bytes)),
        "layout": PackedLayout(
            sizes={name: len(array) for name, array in arrays.items()},
            lengths=Lengths(flat.n_pieces, flat.n_words),
            heads=flat.head,
            n_tree_arcs=flat.n_tree_arcs,
            n_piece_arcs=None if arcs is None else arcs.n_piece_arcs,
        ),
    }


def in_one_transfer(batch: dict[str, Any]) -> dict[str, Any]:
    """Join the packed syntax of source and target in fairseq's batch into one tensor, stored as ``src_syntax``.

    :func:`target_syntax` retrieves the target's part.
    """
    source, target = batch["net_input"]["src_syntax"], batch["tgt_syntax"]
    both = torch.cat([target["packed"], source["packed"]])
    layout = replace(source["layout"], begin=len(target["packed"]))
    batch["net_input"]["src_syntax"] = {"packed": both, "layout": layout}
    batch["tgt_syntax"] = {"layout": target["layout"]}
    return batch


def target_syntax(sample: Mapping[str, Any]) -> BatchSyntax | None:
    """The syntax of the target, if the batch contains it."""
    syntax: Any = sample.get("tgt_syntax")
    if syntax is None or isinstance(syntax, FlatSyntax) or "packed" in syntax:
        return syntax
    source = sample["net_input"]["src_syntax"]
    return {"packed": source["packed"][: source["layout"].begin], "layout": syntax["layout"]}


def unpack(syntax: BatchSyntax) -> FlatSyntax[Tensor]:
    """Unpack a batch's syntax: numbers become int64, probabilities float32; unpacked syntax is returned unchanged."""
    if isinstance(syntax, FlatSyntax):
        return syntax
    layout, packed = syntax["layout"], syntax["packed"][syntax["layout"].begin :]
    sizes = list(layout.sizes.values())
    # Converted together, since each would be converted separately when used as an index.
    arrays: dict[str, Any] = dict(zip(layout.sizes, packed.long().split(sizes)))
    parsed = arrays.pop("parsed", None)
    arcs = None
    if "arcs.prob" in arrays:
        bytes_of = dict(zip(layout.sizes, packed.split(sizes)))  # probabilities are no integers
        arrays["arcs.prob"] = bytes_of["arcs.prob"].view(torch.float32)
        of_arcs = {name: arrays.pop(f"arcs.{name}") for name in ARC_FIELDS}
        arcs = FlatArcs(**of_arcs, n_piece_arcs=layout.n_piece_arcs)
    host: dict[str, Any] = {"n_tree_arcs": layout.n_tree_arcs, "lengths": layout.lengths, "heads": layout.heads}
    return FlatSyntax(**arrays, **host, arcs=arcs, parsed=parsed)
