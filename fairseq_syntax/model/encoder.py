"""A Transformer encoder that takes any number of syntax systems, each with its own part in it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import Tensor, nn

from fairseq_syntax.data.batch import SyntaxBatch
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.attention import ScoreTerm, SyntaxSelfAttention


class EncoderSystem(nn.Module):
    """One system's part in the encoder. A new system is one subclass in one file.

    Attributes:
        name: the word by which ``--encoder-syntax`` selects it
        training_needs, inference_needs: what the batch must bring, of ``"tree"`` (the 1-best parse) and ``"arcs"``
            (the parser's distribution)
    """

    name: ClassVar[str]
    training_needs: frozenset[str] = frozenset()
    inference_needs: frozenset[str] = frozenset()

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the system's options. Defaults belong to :meth:`from_args`, so that presets can set them."""

    @classmethod
    def from_args(cls, args: Namespace, task: Any) -> EncoderSystem:
        """Build the system from the options.

        Labels are to be had by :func:`remember_labels` from the task.
        """
        raise NotImplementedError

    def layers(self) -> Sequence[int]:
        """Encoder layers that the system acts on, 0-based."""
        return ()

    def attention_heads(self, layer: int) -> int | None:
        """Number of heads of a layer, where the system sets it."""
        return None

    def project_scores(self, layer: int) -> bool:
        """Whether a layer has query and key projections."""
        return True

    def observed_heads(self, layer: int) -> Sequence[int]:
        """Heads of a layer whose scores the criterion wants."""
        return ()

    def embed(self, x: Tensor, syntax: SyntaxBatch | None) -> Tensor:
        """Change the token embeddings [B, T, C] before they are scaled and positions are added."""
        return x

    def term(self, syntax: SyntaxBatch | None, layer: int) -> ScoreTerm | None:
        """What the system does to the scores of a layer for this batch."""
        return None


ENCODER_SYSTEMS: dict[str, type[EncoderSystem]] = {}


def register_encoder_system(name: str) -> Callable[[type[EncoderSystem]], type[EncoderSystem]]:
    """Make a system available to ``--encoder-syntax`` under ``name``."""

    def register(cls: type[EncoderSystem]) -> type[EncoderSystem]:
        if name in ENCODER_SYSTEMS:
            raise ValueError(f"two encoder systems are called {name!r}")
        cls.name = name
        ENCODER_SYSTEMS[name] = cls
        return cls

    return register


def remember_labels(args: Namespace, task: Any, column: str) -> list[str]:
    """The label inventory of a column (``deprel``, ``upos``, ``xpos``), noted in ``args`` and so in the checkpoint.

    Raises:
        SyntaxDataError: ``args`` comes from a checkpoint that was trained with another inventory: the ids would mean
            other labels
    """
    labels = list(task.source_labels[column])
    saved = getattr(args, f"source_{column}_labels", None)
    if saved is not None and list(saved) != labels:
        raise SyntaxDataError(
            f"the model was trained with {len(saved)} {column} labels that are not the {len(labels)} of this data",
            hint="binarize the data with the label inventory of the model's training data (--source-labels)",
        )
    setattr(args, f"source_{column}_labels", labels)
    return labels


class SyntaxEncoderLayer(TransformerEncoderLayerBase):
    """fairseq's encoder layer, with an attention that takes score terms.

    Args:
        number: which layer of the encoder this is, 0-based
        num_heads, project_scores: as in :class:`SyntaxSelfAttention`
    """

    def __init__(self, cfg: TransformerConfig, number: int, num_heads: int, project_scores: bool) -> None:
        self.number = number
        self._attention_options = (num_heads, project_scores)
        super().__init__(cfg)

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> SyntaxSelfAttention:
        num_heads, project_scores = self._attention_options
        return SyntaxSelfAttention(
            embed_dim,
            num_heads,
            project_scores=project_scores,
            dropout=cfg.attention_dropout,
            q_noise=self.quant_noise,
            qn_block_size=self.quant_noise_block_size,
        )

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        terms: Sequence[ScoreTerm] = (),
        observe: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """[T, B, C] to [T, B, C], and the observed scores; see :class:`SyntaxSelfAttention`."""
        residual = x
        if self.normalize_before:
            x = self.self_attn_layer_norm(x)
        x, observed = self.self_attn(x, encoder_padding_mask, terms=terms, observe=observe)
        x = self.residual_connection(self.dropout_module(x), residual)
        if not self.normalize_before:
            x = self.self_attn_layer_norm(x)

        residual = x
        if self.normalize_before:
            x = self.final_layer_norm(x)
        x = self.activation_dropout_module(self.activation_fn(self.fc1(x)))
        x = self.residual_connection(self.dropout_module(self.fc2(x)), residual)
        if not self.normalize_before:
            x = self.final_layer_norm(x)
        return x, observed


class SyntaxTransformerEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder with syntax systems.

    Layers that no system acts on are fairseq's own.

    Args:
        cfg: the Transformer's configuration
        dictionary, embed_tokens: as in fairseq
        systems: the systems by name, applied in this order
    """

    def __init__(
        self, cfg: TransformerConfig, dictionary, embed_tokens: nn.Embedding, systems: Mapping[str, EncoderSystem]
    ) -> None:
        # The layers are built inside super().__init__, before a module can be registered.
        self._building = (list(systems.values()), iter(range(cfg.encoder.layers)))
        for system in systems.values():
            out_of_range = [i for i in system.layers() if not 0 <= i < cfg.encoder.layers]
            if out_of_range:
                raise SyntaxDataError(
                    f"{system.name} acts on encoder layer {out_of_range[0]}, but the encoder has layers 0 to "
                    f"{cfg.encoder.layers - 1}"
                )
        super().__init__(cfg, dictionary, embed_tokens)
        del self._building
        self.systems = nn.ModuleDict(systems)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        systems, numbers = self._building
        index = next(numbers)
        acting = [s for s in systems if index in s.layers()]
        if not acting:
            return super().build_encoder_layer(cfg)
        heads = {s.attention_heads(index) for s in acting} - {None} or {cfg.encoder.attention_heads}
        if len(heads) > 1:
            raise SyntaxDataError(f"the systems of encoder layer {index} want {sorted(heads)} attention heads")
        num_heads = heads.pop()
        for system in acting:
            if missing := [h for h in system.observed_heads(index) if not 0 <= h < num_heads]:
                raise SyntaxDataError(
                    f"{system.name} wants head {missing[0]} of encoder layer {index}, "
                    f"which has heads 0 to {num_heads - 1}"
                )
        layer: nn.Module = SyntaxEncoderLayer(cfg, index, num_heads, all(s.project_scores(index) for s in acting))
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer, offload_to_cpu=cfg.offload_activations)
        return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)

    @property
    def training_needs(self) -> frozenset[str]:
        """What the systems need of a batch's syntax in training."""
        return frozenset().union(*(s.training_needs for s in self.systems.values()))

    @property
    def inference_needs(self) -> frozenset[str]:
        """What the systems need of a batch's syntax at inference."""
        return frozenset().union(*(s.inference_needs for s in self.systems.values()))

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        src_syntax: Mapping[str, Tensor] | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
        observe: bool = False,
    ) -> dict[str, Any]:
        """Encode a batch.

        Args:
            src_tokens: [B, T], padded on either side, each sentence ending in ``</s>``
            src_syntax: the batch's syntax (:mod:`fairseq_syntax.data.batch`); may be missing where no system needs it
            return_all_hiddens: also return every layer's output
            token_embeddings: [B, T, C] in place of the embedded tokens
            observe: whether to return the scores of the heads that the systems observe; search does not

        Returns:
            fairseq's encoder output, with ``attention_scores``: {layer: observed scores [B, n, T, T]}

        Raises:
            SyntaxDataError: a system needs syntax that did not come with the batch
        """
        syntax = self._syntax(src_syntax, src_tokens)
        padding = src_tokens.eq(self.padding_idx)
        mask = padding if padding.any() else None
        if token_embeddings is None:
            token_embeddings = self.embed_tokens(src_tokens)
        for system in self.systems.values():
            token_embeddings = system.embed(token_embeddings, syntax)
        x, embedded = self.forward_embedding(src_tokens, token_embeddings)
        x = x.masked_fill(padding[:, :, None], 0).transpose(0, 1)

        states, scores = [x], {}
        for layer in self.layers:
            if not isinstance(layer, SyntaxEncoderLayer):
                x = layer(x, encoder_padding_mask=mask)
            else:
                terms = [t for s in self._acting(layer.number) if (t := s.term(syntax, layer.number)) is not None]
                heads = [h for s in self._acting(layer.number) for h in s.observed_heads(layer.number)]
                x, observed = layer(x, encoder_padding_mask=mask, terms=terms, observe=heads if observe else ())
                if observed is not None:
                    scores[layer.number] = observed
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
            "attention_scores": scores,
        }

    def _acting(self, layer: int) -> list[EncoderSystem]:
        return [s for s in self.systems.values() if layer in s.layers()]

    def _syntax(self, flat: Mapping[str, Tensor] | None, tokens: Tensor) -> SyntaxBatch | None:
        needs = self.training_needs if self.training else self.inference_needs
        if flat is None and needs:
            names = " and ".join(s.name for s in self.systems.values() if s.training_needs | s.inference_needs)
            raise SyntaxDataError(
                f"{names} cannot encode a sentence without its parse, and this batch has none",
                hint="use --task syntax_translation; a tool that passes tokens only cannot be used with it",
            )
        if "arcs" in needs and flat is not None and "arcs" not in flat:
            raise SyntaxDataError("a system needs the parser's distributions, and this batch has only 1-best trees")
        return None if flat is None else SyntaxBatch(flat, tokens, self.padding_idx)
