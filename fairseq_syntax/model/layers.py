"""Code shared by the layers of the encoder and the decoder."""

from __future__ import annotations

from typing import Any

from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_syntax.model.attention import SyntaxSelfAttention


class SyntaxLayer:
    """Mixed into fairseq's layers, before them: a self-attention that takes score terms.

    Args:
        num_heads, project_scores: as in :class:`SyntaxSelfAttention`
        others: of the layer
    """

    def __init__(self, *others: Any, num_heads: int, project_scores: bool) -> None:
        self._attention_options = (num_heads, project_scores)
        super().__init__(*others)

    def build_self_attention(
        self, embed_dim: int, cfg: TransformerConfig, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> SyntaxSelfAttention:
        """The self-attention of this layer."""
        num_heads, project_scores = self._attention_options
        return SyntaxSelfAttention(
            embed_dim,
            num_heads,
            project_scores=project_scores,
            dropout=cfg.attention_dropout,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )


def feed_forward(layer: Any, x: Tensor) -> Tensor:
    """The feed-forward block of a layer, with its residual connection and norm: [T, B, C] to [T, B, C]."""
    residual = x
    if layer.normalize_before:
        x = layer.final_layer_norm(x)
    x = layer.activation_dropout_module(layer.activation_fn(layer.fc1(x)))
    x = layer.residual_connection(layer.dropout_module(layer.fc2(x)), residual)
    return x if layer.normalize_before else layer.final_layer_norm(x)


def wrapped(layer: nn.Module, cfg: TransformerConfig) -> nn.Module:
    """The layer with ``--checkpoint-activations`` and in FSDP, as fairseq wraps its own."""
    if cfg.checkpoint_activations:
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)
