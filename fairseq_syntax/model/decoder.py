"""A Transformer decoder with syntax systems, in its self-attention or with an output layer of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn

from fairseq_syntax import plugins
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import IncrementalState
from fairseq_syntax.model.heads import HeadSystem, Registry, Step
from fairseq_syntax.model.layers import LayerStack, SyntaxLayer
from fairseq_syntax.model.options import option_name

__all__ = ["DecoderSystem", "register_decoder_system"]


class DecoderSystem(HeadSystem):
    """A system in the decoder: in its self-attention, as in an encoder, or with a decoder of its own.

    Its ``training_needs`` refer to the target's parse. A term sees each query and the keys before it: all at once in
    training; in search one query per step.
    """

    def decoder(
        self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding, systems: Mapping[str, DecoderSystem]
    ) -> SyntaxTransformerDecoder | None:
        """The system's own decoder, if it has one; at most one system of a model may."""
        return None


DECODER_SYSTEMS: Registry[DecoderSystem] = Registry()
register_decoder_system = DECODER_SYSTEMS.register  # by its name in --decoder-syntax
plugins.NAMED["decoder_syntax"] = DECODER_SYSTEMS


def build_decoder(
    cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding, systems: Mapping[str, DecoderSystem]
) -> SyntaxTransformerDecoder:
    """Build the decoder with its systems, or the one that a system brings."""
    arguments = cfg, dictionary, embed_tokens, systems
    own = {name: decoder for name, system in systems.items() if (decoder := system.decoder(*arguments)) is not None}
    if len(own) > 1:
        raise SyntaxDataError(f"--decoder-syntax: {' and '.join(own)} each bring a decoder of their own")
    return next(iter(own.values())) if own else SyntaxTransformerDecoder(*arguments)


class SyntaxDecoderLayer(SyntaxLayer, TransformerDecoderLayerBase):
    """fairseq's decoder layer, with a self-attention that takes score terms."""


class SyntaxTransformerDecoder(LayerStack, TransformerDecoderBase):
    """fairseq's Transformer decoder with syntax systems; without systems in its layers, fairseq's own code runs."""

    side = "decoder"

    def __init__(
        self, cfg: TransformerConfig, dictionary: Any, embed_tokens: nn.Embedding, systems: Mapping[str, DecoderSystem]
    ) -> None:
        super().__init__(cfg, dictionary, embed_tokens, systems, no_encoder_attn=cfg.no_cross_attention)
        for option in ("base_layers", "cross_self_attention"):
            if any(self._plans) and getattr(cfg, option):
                name = option_name(option)
                raise SyntaxDataError(f"{name} cannot be combined with systems in the decoder's self-attention")

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> nn.Module:
        """Build the next layer, with the systems that act in it."""
        return self.build_layer(SyntaxDecoderLayer, super().build_decoder_layer, cfg, no_encoder_attn)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Mapping[str, Any],
        incremental_state: IncrementalState | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's features [B, T, C] and extras; with systems in a layer also the :class:`Step`, ``decoder_step``."""
        if not any(self._plans):
            options = incremental_state, full_context_alignment, alignment_layer, alignment_heads
            return super().extract_features(prev_output_tokens, encoder_out, *options)
        alignment_layer = self.num_layers - 1 if alignment_layer is None else alignment_layer
        step = Step(prev_output_tokens, prev_output_tokens.eq(self.padding_idx))
        x = self._embed(prev_output_tokens, incremental_state)  # [T, B, C]; in search, the last token only
        padding = step.padding[:, -len(x) :]
        shared = {
            "encoder_out": encoder_out["encoder_out"][0],
            "encoder_padding_mask": encoder_out["encoder_padding_mask"][0],
            "incremental_state": incremental_state,
            "self_attn_padding_mask": padding if padding.any() else None,
        }
        if incremental_state is None and not full_context_alignment:
            shared["self_attn_mask"] = self.buffered_future_mask(x)
        attention, states = None, [x]
        for number, layer in self.layers_of_this_step():
            if layer is None:
                continue
            wanted = number == alignment_layer
            inputs = {**shared, "need_attn": wanted, "need_head_weights": wanted}
            observe = incremental_state is None  # a search computes no loss
            x, over_source, _ = self.run_layer(number, layer, step, observe, x, **inputs)
            states.append(x)
            if wanted and over_source is not None:
                attention = over_source.float().to(x)[:alignment_heads].mean(dim=0)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)  # [B, T, C]
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attention], "inner_states": states, "decoder_step": step}

    def _embed(self, tokens: Tensor, incremental_state: IncrementalState | None) -> Tensor:
        """The embedded tokens [T, B, C], as in fairseq."""
        positions = None
        if self.embed_positions is not None:
            positions = self.embed_positions(tokens, incremental_state=incremental_state)
        if incremental_state is not None:
            tokens = tokens[:, -1:]
            positions = None if positions is None else positions[:, -1:]
        x = self.embed_scale * self.embed_tokens(tokens)  # [B, T, C]
        if self.quant_noise is not None:
            x = self.quant_noise(x)
        if self.project_in_dim is not None:
            x = self.project_in_dim(x)
        if positions is not None:
            x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1)
