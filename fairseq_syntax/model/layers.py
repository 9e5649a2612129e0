"""What the Transformer's encoder and decoder share: layers in which systems have parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import SyntaxSelfAttention
from fairseq_syntax.model.heads import HeadSystem, Step, check_claims


class LayerPlan(NamedTuple):
    """The systems that have a part in the self-attention of one layer, and its heads.

    Attributes:
        num_heads: H
        project_scores: whether the layer has query and key projections
        acting: names of the systems: those that replace scores come first, then the others in the order of the option
        supervised: heads on whose scores there is a loss
        read: heads whose scores layers above read
    """

    num_heads: int
    project_scores: bool
    acting: list[str]
    supervised: list[int]
    read: list[int]


class LayerStack:
    """Mixed into fairseq's encoder and decoder, before them: systems have parts in their layers.

    Layers in whose self-attention no system has a part are fairseq's own.

    Args:
        cfg: the Transformer's configuration
        dictionary, embed_tokens, others: as in fairseq
        systems: the systems by name, applied in this order

    Raises:
        SyntaxDataError: the systems cannot be combined (:mod:`fairseq_syntax.model.heads`)
    """

    side: ClassVar[str]  # encoder or decoder
    layers: Any  # of fairseq
    training: bool

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Any,
        embed_tokens: nn.Embedding,
        systems: Mapping[str, HeadSystem],
        **others: Any,
    ) -> None:
        for system in systems.values():
            system.connect(systems)
        total = getattr(cfg, self.side).layers
        for system in systems.values():
            for layer in (*system.layers(), *system.blocks()):
                if layer is not None and not 0 <= layer < total:
                    raise SyntaxDataError(
                        f"{system.name} acts on {self.side} layer {layer}, but the {self.side} has "
                        f"layers 0 to {total - 1}"
                    )
        # The layers are built inside super().__init__, before a module can be registered.
        self._building = list(systems.values())
        # By number: which module a layer is does not say it, as FSDP wraps modules.
        self._plans: list[LayerPlan | None] = []
        super().__init__(cfg, dictionary, embed_tokens, **others)  # type: ignore[call-arg]
        del self._building
        self.systems: Any = nn.ModuleDict(systems)

    def plan_next_layer(self, cfg: TransformerConfig) -> LayerPlan | None:
        """The plan of the layer that is built next, or None where no system has a part in it.

        Raises:
            SyntaxDataError: the systems cannot share the layer
        """
        layer = len(self._plans)
        acting = [s for s in self._building if layer in s.layers()]
        plan = None
        if acting:
            heads = {n for s in acting if (n := s.attention_heads(layer)) is not None}
            if len(heads) > 1:
                message = f"the systems of {self.side} layer {layer} want {sorted(heads)} attention heads"
                raise SyntaxDataError(message)
            num_heads = heads.pop() if heads else getattr(cfg, self.side).attention_heads
            check_claims(self.side, layer, num_heads, acting)
            for system in acting:
                system.fit(layer, num_heads)
            claims = {s.name: s.claims(layer, num_heads) for s in acting}
            places = [place for s in acting for place in s.supervises().values()]
            plan = LayerPlan(
                num_heads=num_heads,
                project_scores=all(s.project_scores(layer) for s in acting),
                # stable: beyond that, the order of the option stays
                acting=sorted(claims, key=lambda name: not claims[name].replaces),
                supervised=sorted({head for at, head in places if at == layer}),
                read=sorted(frozenset().union(*(c.reads for c in claims.values()))),
            )
        self._plans.append(plan)
        return plan

    def layers_of_this_step(self) -> Iterator[tuple[int, nn.Module | None]]:
        """Layers by number; None for those that layer dropout leaves out, as fairseq draws them."""
        drop = getattr(self, f"{self.side}_layerdrop") if self.training else 0.0
        total = len(self.layers)
        kept = torch.empty(total).uniform_().gt(drop).tolist() if drop else [True] * total
        # A LayerDropModuleList would not say which ones it gives.
        for number, (layer, stays) in enumerate(zip(nn.ModuleList.__iter__(self.layers), kept)):
            yield number, layer if stays else None

    def run_layer(
        self, number: int, layer: nn.Module, step: Step, observe: bool, *inputs: Any, **options: Any
    ) -> list[Any]:
        """Run a planned layer with the terms of its systems, and record in the step the scores that are read.

        Args:
            observe: whether the scores of supervised heads are wanted, beside those that layers above read
            inputs, options: of the layer

        Returns:
            its outputs, without the scores
        """
        plan = self._plans[number]
        assert plan is not None
        systems = [self.systems[name] for name in plan.acting]
        terms = [term for s in systems if (term := s.term_where_parsed(step, number)) is not None]
        heads = sorted({*plan.read, *(plan.supervised if observe else ())})
        tensors = [tensor for term in terms for tensor in term.tensors]
        *outputs, scores = layer(*inputs, *tensors, terms=terms, observe=heads, **options)
        for i, head in enumerate(heads):
            step.scores[number, head] = scores[:, i]
        return outputs


def needs_of(systems: Mapping[str, Any] | nn.ModuleDict, when: str) -> frozenset[str]:
    """What systems need of the parse.

    Args:
        when: ``training_needs`` or ``inference_needs``, of which it is the union
    """
    return frozenset().union(*(getattr(system, when) for system in systems.values()))


class SyntaxLayer:
    """Mixed into fairseq's layers, before them: a self-attention that takes score terms.

    Args:
        plan: of the layer
        others: fairseq's arguments
    """

    def __init__(self, plan: LayerPlan, *others: Any) -> None:
        self._plan = plan
        super().__init__(*others)

    def build_self_attention(
        self, embed_dim: int, cfg: TransformerConfig, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> SyntaxSelfAttention:
        """The self-attention of this layer."""
        return SyntaxSelfAttention(
            embed_dim,
            self._plan.num_heads,
            project_scores=self._plan.project_scores,
            dropout=cfg.attention_dropout,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )


def self_attention(
    layer: Any, x: Tensor, padding: Tensor | None, mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The self-attention block of a layer, with its residual connection and norm.

    Args:
        x: [T, B, C]
        padding, mask, options: of :meth:`SyntaxSelfAttention.forward`

    Returns:
        [T, B, C], and the observed scores
    """
    residual = x
    if layer.normalize_before:
        x = layer.self_attn_layer_norm(x)
    x, observed = layer.self_attn(x, padding, mask, **options)
    x = layer.residual_connection(layer.dropout_module(x), residual)
    return x if layer.normalize_before else layer.self_attn_layer_norm(x), observed


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
        # Which FSDP wraps then, whatever its size.
        layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)
