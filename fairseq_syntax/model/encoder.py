"""A Transformer encoder with any number of syntax systems."""

from __future__ import annotations

from argparse import Namespace
from typing import Any, cast

import torch
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_syntax import plugins
from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.data.packing import BatchSyntax, unpack
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.heads import HeadSystem, Registry, Step
from fairseq_syntax.model.language_tokens import SourceLanguage
from fairseq_syntax.model.layers import LayerStack, SyntaxLayer
from fairseq_syntax.model.options import REMEMBERED_NAMES, without_parse
from fairseq_syntax.model.task import SyntaxTask

__all__ = ["EncoderSystem", "register_encoder_system"]


class EncoderSystem(HeadSystem):
    """A system in the encoder. A new system is one subclass in one file.

    What it may do to attention heads is in :class:`~fairseq_syntax.model.heads.HeadSystem`, and here what else it may
    change. A system that reads labels gets their inventory from :func:`remember_labels` when it is built.
    """

    def embed(self, x: Tensor, step: Step) -> Tensor:
        """Change the token embeddings [B, T, C] before they are scaled and positions are added."""
        return x

    def positions(self, positions: Tensor, step: Step) -> Tensor:
        """Change the position embeddings [B, T, C] before they are added to the token embeddings."""
        return positions

    def block(self, x: Tensor, step: Step, layer: int | None) -> Tensor:
        """The output [T, B, C] of the system's module after a layer, such as a graph convolution.

        It runs even if ``--encoder-layerdrop`` drops the layer. The blocks of several systems after one layer run in
        the order of the option.

        Args:
            x: [T, B, C], the layer's output; rows of padding are undefined
            layer: one of :meth:`blocks`
        """
        return x


ENCODER_SYSTEMS: Registry[EncoderSystem] = Registry()
register_encoder_system = ENCODER_SYSTEMS.register  # by its name in --encoder-syntax
plugins.NAMED["encoder_syntax"] = ENCODER_SYSTEMS


REMEMBERED_NAMES.update({f"source_{column}_labels": "source" for column in ("deprel", "upos", "xpos")})


def remember_labels(args: Namespace, task: SyntaxTask, column: str) -> list[str]:
    """The label inventory of a column (``deprel``, ``upos``, ``xpos``), recorded in ``args`` and so in the checkpoint.

    Raises:
        SyntaxDataError: ``args`` comes from a checkpoint with another inventory, so that ids would mean other labels
    """
    labels = list(task.labels("source")[column])
    saved = getattr(args, f"source_{column}_labels", None)
    if saved is not None and list(saved) != labels:
        raise SyntaxDataError(
            f"the model was trained with {len(saved)} {column} labels that are not the {len(labels)} of this data",
            hint="binarize the data with the label inventory of the model's training data (--source-labels)",
        )
    setattr(args, f"source_{column}_labels", labels)
    return labels


class SyntaxEncoderLayer(SyntaxLayer, TransformerEncoderLayerBase):
    """fairseq's encoder layer, with a self-attention that takes score terms."""


class SyntaxTransformerEncoder(LayerStack, TransformerEncoderBase):
    """fairseq's Transformer encoder with syntax systems.

    Attributes:
        language: the language token that it adds to each sentence, if any
    """

    side = "encoder"
    language: SourceLanguage | None = None

    def max_positions(self) -> int:
        """The maximum length of a sentence with ``</s>``, but without a language token."""
        return int(super().max_positions()) - (self.language is not None)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build the next layer, with the systems that act in it."""
        return self.build_layer(SyntaxEncoderLayer, super().build_encoder_layer, cfg)

    @property
    def _systems(self) -> list[EncoderSystem]:
        return cast("list[EncoderSystem]", list(self.systems.values()))

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        src_syntax: BatchSyntax | None = None,
        return_all_hiddens: bool = False,
        observe: bool = False,
    ) -> dict[str, Any]:
        """Encode a batch.

        Args:
            src_tokens: [B, T], padded on either side, each sentence ending in ``</s>``
            src_syntax: the batch's syntax (:mod:`fairseq_syntax.data.batch`); optional if no system needs it
            return_all_hiddens: also return the output of all layers
            observe: whether to record the scores of the supervised heads, which search does not need

        Returns:
            fairseq's encoder output, and as ``step`` the :class:`Step`, whose ``scores`` are those of supervised heads
            (if ``observe``) and of heads that higher layers read. With a language token there is a column more.

        Raises:
            SyntaxDataError: a system needs syntax that the batch does not contain
        """
        tokens = columns = src_tokens
        if self.language is not None:
            tokens, columns = self.language.add(src_tokens)
        padding = columns.eq(self.padding_idx)
        step = Step(columns, padding, self._syntax(src_syntax, columns))
        mask = padding if padding.any() else None
        x, embedded = self._embed(tokens, step)
        x = x.masked_fill(padding[:, :, None], 0).transpose(0, 1)  # [T, B, C]
        x = self._blocks(x, step, None)

        states = [x]
        for number, layer in self.layers_of_this_step():
            if layer is not None:
                (x,) = self.run_layer(number, layer, step, observe, x, encoder_padding_mask=mask)
            x = self._blocks(x, step, number)
            if layer is not None:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding],
            "encoder_embedding": [embedded],
            "encoder_states": states if return_all_hiddens else [],
            "fc_results": [],
            "src_tokens": [],
            "src_lengths": [padding.logical_not().sum(dim=1, dtype=torch.int32, keepdim=True)],
            "step": step,
        }

    def _embed(self, tokens: Tensor, step: Step) -> tuple[Tensor, Tensor]:
        """fairseq's ``forward_embedding``, with embeddings changed by the systems: two tensors [B, T, C].

        Args:
            tokens: [B, T], with the language token; ``step`` has ``</s>`` in its place
        """
        x = self.embed_tokens(tokens)
        for system in self._systems:
            x = system.embed(x, step.seen_by(system))
        x = embedded = self.embed_scale * x
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens)
            if self.language is not None:
                positions = self.language.positions(positions, tokens)
            for system in self._systems:
                positions = system.positions(positions, step.seen_by(system))
            x = embedded + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        x = self.dropout_module(x)
        return x if self.quant_noise is None else self.quant_noise(x), embedded

    def _blocks(self, x: Tensor, step: Step, after: int | None) -> Tensor:
        for system in self._systems:
            if after in system.blocks():
                x = system.block(x, step.seen_by(system), after)
        return x

    def _syntax(self, syntax: BatchSyntax | None, tokens: Tensor) -> SyntaxBatch | None:
        """The views of the batch's syntax; None if the batch has none and no system needs it now."""
        needs = {s.name: s.training_needs if self.training else s.inference_needs for s in self._systems}
        if syntax is None:
            if names := [name for name, needed in needs.items() if needed]:
                raise without_parse(f"{' and '.join(names)} cannot encode a sentence without its parse")
            return None
        flat = unpack(syntax)
        if flat.arcs is None and any("arcs" in needed for needed in needs.values()):
            raise SyntaxDataError(
                "a system needs the parser's distributions, and this batch has only 1-best trees",
                hint="parse with --distributions, and binarize again",
            )
        return SyntaxBatch(flat, tokens, self.padding_idx)
