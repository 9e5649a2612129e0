"""A model that was trained elsewhere, as a model of this package: its description, dictionaries and parameters.

The parameters inside layers have the same names in both. What differs is the order of the vocabulary, since fairseq's
dictionaries begin with ``<s>``, ``<pad>``, ``</s>`` and ``<unk>``, and the names of the tables of embeddings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from fairseq_syntax.corpus.segmentation import RESERVED, Segmenter
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.pretrained import PositionsFromZero
from fairseq_syntax.use.hugging_face import Weights

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3 of every fairseq dictionary
SIDES = {"source": "encoder", "target": "decoder"}
NEVER = -1e4  # the bias of symbols that cannot be produced; not −inf, of which label smoothing would make NaN
MADE_UP = "madeupword{:06d}"  # the name of a row of the embeddings without a symbol, as in fairseq
UNREACHABLE = "unreachable{:06d}"  # of a symbol that a dictionary cannot contain


@dataclass
class Vocabulary:
    """The symbols of a side in the order of fairseq's dictionary.

    Attributes:
        symbols: by id
        rows: the id in the folder's model of each symbol; −1 for none
    """

    symbols: list[str]
    rows: list[int]

    def kept(self, keep: Collection[str]) -> Vocabulary:
        """The vocabulary of these symbols, and the special ones."""
        chosen = [i for i, symbol in enumerate(self.symbols) if i < len(SPECIAL) or symbol in keep]
        return Vocabulary([self.symbols[i] for i in chosen], [self.rows[i] for i in chosen])


class PretrainedSource(Protocol):
    """Where a model is read from.

    Attributes:
        path: the folder or file
    """

    path: Path

    @property
    def weights(self) -> Weights: ...

    def language(self, side: str) -> str | None:
        """The language of a side (``source``, ``target``), as it names it; None if it does not say it."""

    def reference(self) -> Any:
        """The model as the program computes it that it is from; None if that is not installed."""


@dataclass
class Pretrained:
    """A model in a folder of transformers, or of fairseq's own, without its parameters.

    Attributes:
        family: the name of its kind, for messages
        folder: where it is
        options: the options of ``syntax_transformer``, without sizes of the vocabulary
        vocabularies: of ``source`` and ``target``
        segmenters: likewise
        languages: the language token of each language that the model knows; empty for a model of one pair
        start: the symbol with which the decoder begins
        search: the options of its own search, in fairseq's names
    """

    family: str
    folder: PretrainedSource
    options: dict[str, Any]
    vocabularies: dict[str, Vocabulary]
    segmenters: dict[str, Segmenter]
    languages: dict[str, str] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)

    def keep(self, kept: Mapping[str, Collection[str]]) -> None:
        """Keep these symbols of each side only; a shared table keeps those of both sides."""
        if self.options["share_all_embeddings"]:
            both = {*kept["source"], *kept["target"]}
            kept = {"source": both, "target": both}
        always = {*self.languages.values(), *filter(None, (self.options.get(name) for name in _TOKENS))}
        self.vocabularies = {side: self.vocabularies[side].kept({*kept[side], *always}) for side in SIDES}


_TOKENS = ("decoder_start_token", "source_language_token", "target_language_token")


def in_fairseqs_order(vocabulary: Mapping[str, int], size: int, special: Mapping[str, int | None]) -> Vocabulary:
    """The symbols of a vocabulary in the order of fairseq's dictionary: the special ones, then all others by their ids.

    Args:
        size: the number of rows of the embeddings, which may exceed that of symbols
        special: the ids of fairseq's special symbols; None for one that the model does not have
    """
    of_id = {i: symbol for symbol, i in vocabulary.items()}
    rows = [-1 if (i := special[symbol]) is None else i for symbol in SPECIAL]
    symbols, taken = list(SPECIAL), set(rows)
    for i in range(size):
        if i in taken:
            continue
        symbol = of_id.get(i, MADE_UP.format(i))
        # A line of a dictionary is "SYMBOL COUNT", and fairseq splits texts at any white space.
        if symbol in RESERVED or symbol.split() != [symbol]:
            symbol = UNREACHABLE.format(i)
        symbols.append(symbol)
        rows.append(i)
    return Vocabulary(symbols, rows)


def parameters(pretrained: Pretrained, model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a model of this package with the folder's weights.

    Args:
        model: the model, whose own parameters are not read (it may be on PyTorch's device ``meta``)

    Raises:
        SyntaxDataError: parameters are missing, left over, or have other shapes or types
    """
    weights, options = pretrained.folder.weights, pretrained.options
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        side, rest = name.split(".", 1)
        if rest == "version":
            state[name] = torch.tensor([3.0])
        elif rest.startswith(("layers.", "layer_norm", "layernorm_embedding", "embed_positions")):
            state[name] = weights.take(f"model.{name}", shape)
    tables = _tables(pretrained)
    permuted: dict[tuple[int, str], Tensor] = {}  # one copy of a table that has several names
    for name, table in tables.items():
        side = _TABLES[name][0]
        key = id(table), "" if options["share_all_embeddings"] else side
        if key not in permuted:
            permuted[key] = _permuted(table, pretrained.vocabularies[side].rows, 0.0)
        state[f"{name}.weight"] = permuted[key]
    if options.get("output_bias"):
        size = len(tables["decoder.output_projection"])
        bias = weights.take("final_logits_bias", (1, size))[0] if "final_logits_bias" in weights else torch.zeros(size)
        state["decoder.output_projection.bias"] = _permuted(bias, pretrained.vocabularies["target"].rows, NEVER)
    for side in SIDES.values():
        _check_positions(pretrained, side)
    weights.check_all_read()
    if wrong := [name for name in shapes if name not in state or tuple(state[name].shape) != shapes[name]]:
        raise SyntaxDataError(f"has no counterpart of {wrong[0]}", path=pretrained.folder.path)
    return state


# The side of each table of embeddings, and its names in a folder.
_TABLES = {
    "encoder.embed_tokens": ("source", ["model.encoder.embed_tokens.weight", "model.shared.weight"]),
    "decoder.embed_tokens": ("target", ["model.decoder.embed_tokens.weight", "model.shared.weight"]),
    "decoder.output_projection": ("target", ["lm_head.weight", "model.decoder.output_projection.weight"]),
}


def _tables(pretrained: Pretrained) -> dict[str, Tensor]:
    """The tables of embeddings, by their names here; one that is shared is the same object under all of its names.

    Raises:
        SyntaxDataError: a table is missing or of another size, or those that should be one table differ
    """
    weights, options = pretrained.folder.weights, pretrained.options
    groups = [[name] for name in _TABLES]
    if options["share_all_embeddings"]:
        groups = [[*_TABLES]]
    elif options["share_decoder_input_output_embed"]:
        groups = [groups[0], groups[1] + groups[2]]
    tables: dict[str, Tensor] = {}
    for group in groups:
        side = _TABLES[group[0]][0]
        names = list(dict.fromkeys(name for one in group for name in _TABLES[one][1]))
        there = [name for name in names if name in weights] or names[:1]
        first = weights.take(there[0])
        shape = (max(1 + max(pretrained.vocabularies[side].rows), len(first)), options["encoder_embed_dim"])
        for name in there:
            if not torch.equal(first, weights.take(name, shape)):
                message = f"{there[0]} and {name} differ, and config.json says that they are one table"
                raise SyntaxDataError(message, path=weights.path(name), hint="are both files of the same model?")
        tables |= dict.fromkeys(group, first)
    return tables


def _permuted(table: Tensor, rows: Sequence[int], missing: float) -> Tensor:
    """The rows of a table in another order, and ``missing`` for −1."""
    index = torch.tensor(rows)
    chosen = table[index.clamp(min=0)]
    chosen[index < 0] = missing
    return chosen


def _check_positions(pretrained: Pretrained, side: str) -> None:
    """Raise SyntaxDataError if a folder has sinusoidal positions that are not those of its family."""
    weights, name = pretrained.folder.weights, f"model.{side}.embed_positions.weight"
    if name not in weights or pretrained.options[f"{side}_learned_pos"]:
        return
    table = weights.take(name)
    if pretrained.options.get("positions_from_zero"):
        expected = PositionsFromZero(table.size(1), 1, len(table)).table
    else:
        expected = SinusoidalPositionalEmbedding.get_embedding(len(table), table.size(1), SPECIAL.index("<pad>"))
    if not torch.allclose(table, expected, atol=1e-4):
        message = f"{name} is not the table of sinusoids that models of {pretrained.family} have"
        raise SyntaxDataError(message, path=weights.path(name))
