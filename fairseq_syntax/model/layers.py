"""Layers with syntax systems, for the Transformer's encoder and decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import ScoreTerm, SyntaxSelfAttention
from fairseq_syntax.model.heads import HeadSystem, Step, check_claims


class LayerPlan(NamedTuple):
    """The systems that act in the self-attention of one layer, and its heads.

    Attributes:
        num_heads: H
        project_scores: whether the layer has query and key projections
        acting: the names of the systems: first those that replace scores, then the others in the order of the option
        supervised: the heads with a loss on their scores
        read: the heads whose scores higher layers read
    """

    num_heads: int
    project_scores: bool
    acting: list[str]
    supervised: list[int]
    read: list[int]


class LayerStack:
    """A mixin for fairseq's encoder and decoder: systems act in their layers.

    It comes before fairseq's class. Layers without a system in their self-attention are fairseq's own.

    Args:
        cfg, dictionary, embed_tokens, others: as in fairseq
        systems: the systems by name, in the order in which they are applied

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
        # super().__init__ builds the layers, and only after it can modules be registered.
        self._building = list(systems.values())
        # By layer number rather than in the modules, since FSDP wraps modules.
        self._plans: list[LayerPlan | None] = []
        super().__init__(cfg, dictionary, embed_tokens, **others)  # type: ignore[call-arg]
        del self._building
        self.systems: Any = nn.ModuleDict(systems)

    def build_layer(
        self,
        with_terms: Callable[..., nn.Module],
        plain: Callable[..., nn.Module],
        cfg: TransformerConfig,
        *others: Any,
    ) -> nn.Module:
        """Build the next layer: ``with_terms`` (a :class:`SyntaxLayer`) if systems act in it, otherwise ``plain``."""
        plan = self._plan(len(self._plans), cfg)
        self._plans.append(plan)
        if plan is None:
            return plain(cfg, *others)
        layer = with_terms(plan, cfg, *others)
        # Wrapped as fairseq wraps its own layers. FSDP wraps a checkpointed layer whatever its size.
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)

    def _plan(self, layer: int, cfg: TransformerConfig) -> LayerPlan | None:
        """The plan of a layer, or None if no system acts in it."""
        acting = [s for s in self._building if layer in s.layers()]
        if not acting:
            return None
        heads = {n for s in acting if (n := s.attention_heads(layer)) is not None}
        if len(heads) > 1:
            raise SyntaxDataError(f"the systems of {self.side} layer {layer} want {sorted(heads)} attention heads")
        num_heads = heads.pop() if heads else getattr(cfg, self.side).attention_heads
        check_claims(self.side, layer, num_heads, acting)
        for system in acting:
            system.fit(layer, num_heads)
        claims = {s.name: s.claims(layer, num_heads) for s in acting}
        places = [place for s in acting for place in s.supervises().values()]
        return LayerPlan(
            num_heads=num_heads,
            project_scores=all(s.project_scores(layer) for s in acting),
            # a stable sort: otherwise the order of the option stays
            acting=sorted(claims, key=lambda name: not claims[name].replaces),
            supervised=sorted({head for at, head in places if at == layer}),
            read=sorted(frozenset().union(*(c.reads for c in claims.values()))),
        )

    def layers_of_this_step(self) -> Iterator[tuple[int, nn.Module | None]]:
        """The layers with their numbers; None for layers that layer dropout drops, drawn as in fairseq."""
        drop = getattr(self, f"{self.side}_layerdrop") if self.training else 0.0
        dropped = torch.empty(len(self.layers)).uniform_().le(drop).tolist() if drop else [False] * len(self.layers)
        # The iterator of LayerDropModuleList does not tell which layers it yields.
        for number, layer in enumerate(nn.ModuleList.__iter__(self.layers)):
            yield number, None if dropped[number] else layer

    def run_layer(
        self, number: int, layer: nn.Module, step: Step, observe: bool, x: Tensor, **inputs: Any
    ) -> Sequence[Any]:
        """The outputs of a layer with the terms of its systems; observed scores are recorded in the step.

        Args:
            observe: whether to record the scores of supervised heads too, and not only those that higher layers read
            x, inputs: fairseq's arguments of the layer
        """
        plan = self._plans[number]
        if plan is None:
            return _tuple(layer(x, **inputs))
        systems = [self.systems[name] for name in plan.acting]
        terms = [term for s in systems if (term := s.term_where_parsed(step, number)) is not None]
        heads = sorted({*plan.read, *(plan.supervised if observe else ())})
        tensors = [tensor for term in terms for tensor in term.tensors]
        outputs = layer(x, *tensors, terms=terms, observe=heads, **inputs)
        count = len(outputs) - len(heads)
        step.scores.update(zip(((number, head) for head in heads), outputs[count:]))
        return outputs[:count]


def needs_of(systems: Mapping[str, Any] | nn.ModuleDict, when: str) -> frozenset[str]:
    """What systems need of the parse: the union of their attribute ``when``, such as ``training_needs``."""
    return frozenset().union(*(getattr(system, when) for system in systems.values()))


def _tuple(outputs: Any) -> tuple[Any, ...]:
    """The outputs of a layer of fairseq's: the encoder's have one, which is no tuple."""
    return outputs if isinstance(outputs, tuple) else (outputs,)


@dataclass
class _Call:
    """What fairseq's layers do not pass on to their self-attention, and what they do not return of it."""

    terms: Sequence[ScoreTerm]
    observe: Sequence[int]
    tensors: Sequence[Tensor]
    observed: Sequence[Tensor] = ()


# Not in the module, since several threads may run one model at the same time.
_call: ContextVar[_Call | None] = ContextVar("call", default=None)


class _SelfAttentionOfLayer(SyntaxSelfAttention):
    """The self-attention in a :class:`SyntaxLayer`: fairseq's layer calls it with ``query`` and more, by name."""

    def __call__(self, *arguments: Any, **inputs: Any) -> tuple[Tensor, Sequence[Tensor]]:
        call = _call.get()
        if call is None:  # not by a layer
            return super().__call__(*arguments, **inputs)
        inputs |= {"terms": call.terms, "observe": call.observe, "tensors": call.tensors}
        out, call.observed = super().__call__(inputs.pop("query"), **inputs)
        return out, call.observed


class SyntaxLayer:
    """A mixin for fairseq's layers, before fairseq's class: a self-attention that takes score terms."""

    def __init__(self, plan: LayerPlan, *others: Any) -> None:
        self._plan = plan
        super().__init__(*others)

    def build_self_attention(
        self, embed_dim: int, cfg: TransformerConfig, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> SyntaxSelfAttention:
        """Build the self-attention of this layer's plan."""
        return _SelfAttentionOfLayer(
            embed_dim,
            self._plan.num_heads,
            project_scores=self._plan.project_scores,
            dropout=cfg.attention_dropout,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
        )

    def forward(
        self, x: Tensor, *tensors: Tensor, terms: Sequence[ScoreTerm], observe: Sequence[int], **inputs: Any
    ) -> tuple[Any, ...]:
        """fairseq's outputs, and the scores of each observed head; see :class:`SyntaxSelfAttention`.

        Args:
            tensors: those of the terms; positional, since activation checkpointing only sees such arguments
            inputs: fairseq's
        """
        call = _Call(terms, observe, tensors)
        token = _call.set(call)
        try:
            outputs = super().forward(x, **inputs)  # type: ignore[misc]
        finally:
            _call.reset(token)
        return *_tuple(outputs), *call.observed
