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
class Layout:
    """The layout of a packed tensor, and values that only the host needs."""

    lengths: Lengths
    heads: np.ndarray  # [W] int32, as in FlatSyntax
    n_tree_arcs: int | None
    n_arcs: int | None  # the number of arcs in the batch; None without distributions
    n_piece_arcs: int | None
    has_parsed: bool
    begin: int = 0  # the number of preceding elements of the tensor, which belong to the other side


class PackedSyntax(TypedDict):
    """The syntax of a batch, packed into one tensor for the transfer to the device.

    It is a dictionary, since fairseq moves, pins and casts only tensors in dictionaries, lists and plain tuples.
    """

    packed: Tensor  # [N] int32: the bytes of all arrays, concatenated
    layout: Layout


BatchSyntax: TypeAlias = PackedSyntax | FlatSyntax[Tensor]


def pack(flat: FlatSyntax[np.ndarray]) -> PackedSyntax:
    """Pack the arrays of a batch into one tensor.

    fairseq pins and copies the tensors of a batch one by one. With ``--fp16`` it would cast float32 tensors to half
    precision; packed probabilities are bytes of an int32 tensor, so they are not cast.

    Raises:
        ValueError: an array does not have four bytes per element
    """
    named = [(name, getattr(flat, name)) for name in ("n_pieces", "n_words", *WORD_FIELDS)]
    arcs = flat.arcs
    if arcs is not None:
        named += [(name, getattr(arcs, name)) for name in ARC_FIELDS]
    if flat.parsed is not None:
        named.append(("parsed", flat.parsed))
    for name, array in named:
        if array.dtype != (np.float32 if name == "prob" else np.int32):
            raise ValueError(f"arrays of four bytes an element wanted: {name} has {array.dtype}")
    return {
        "packed": torch.from_numpy(np.concatenate([array.view(np.int32) for _, array in named])),
        "layout": Layout(
            lengths=Lengths(flat.n_pieces, flat.n_words),
            heads=flat.head,
            n_tree_arcs=flat.n_tree_arcs,
            n_arcs=None if arcs is None else len(arcs.prob),
            n_piece_arcs=None if arcs is None else arcs.n_piece_arcs,
            has_parsed=flat.parsed is not None,
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
    layout = syntax["layout"]
    B, W, A = len(layout.lengths.words), int(layout.lengths.words.sum()), layout.n_arcs
    sizes = [B, B, *[W] * len(WORD_FIELDS)]
    sizes += [] if A is None else [B, *[A] * (len(ARC_FIELDS) - 1)]
    sizes += [B] if layout.has_parsed else []
    packed = syntax["packed"][layout.begin :]
    # Converted together, since each would be converted separately when used as an index.
    parts = packed.long().split(sizes)
    names = ("n_pieces", "n_words", *WORD_FIELDS)
    words: dict[str, Any] = dict(zip(names, parts))
    rest = list(parts[len(names) :])
    parsed = rest.pop() if layout.has_parsed else None
    arcs = None
    if A is not None:
        n_arcs, dependent, arc_head, label, _ = rest  # the bytes of probabilities are not integers
        begin = sum(sizes[: len(sizes) - layout.has_parsed]) - A
        prob = packed[begin : begin + A].view(torch.float32)
        arcs = FlatArcs(n_arcs, dependent, arc_head, label, prob, layout.n_piece_arcs)
    host: dict[str, Any] = {"n_tree_arcs": layout.n_tree_arcs, "lengths": layout.lengths, "heads": layout.heads}
    return FlatSyntax(**words, **host, arcs=arcs, parsed=parsed)
