"""``syntax_transformer``: any encoder systems with any decoder system, chosen by options.

The architectures of the systems (``pascal_transformer``, ``ldd_transformer``, …) are presets of this one model, so a
combination is two words on the command line and no new class.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture, tiny_architecture, transformer_iwslt_de_en
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS, SyntaxTransformerEncoder


class DecoderSystem:
    """One system's part in the decoder: how to build the decoder, and its options.

    Attributes:
        name: the word by which ``--decoder-syntax`` selects it
        training_needs: what the batch must bring of the target's syntax (``"tree"``) in training
    """

    name: ClassVar[str]
    training_needs: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the system's options."""

    @classmethod
    def prepare(cls, args: Namespace, task: Any) -> None:
        """Check the options and note in ``args`` what :meth:`build` needs of the task; ``args`` is saved."""

    @classmethod
    def build(cls, cfg: TransformerConfig, tgt_dict, embed_tokens: nn.Embedding) -> TransformerDecoderBase:
        """Build the decoder."""
        raise NotImplementedError


DECODER_SYSTEMS: dict[str, type[DecoderSystem]] = {}


def register_decoder_system(name: str) -> Callable[[type[DecoderSystem]], type[DecoderSystem]]:
    """Make a system available to ``--decoder-syntax`` under ``name``."""

    def register(cls: type[DecoderSystem]) -> type[DecoderSystem]:
        if name in DECODER_SYSTEMS:
            raise ValueError(f"two decoder systems are called {name!r}")
        cls.name = name
        DECODER_SYSTEMS[name] = cls
        return cls

    return register


@register_model("syntax_transformer")
class SyntaxTransformerModel(TransformerModel):
    """A Transformer with syntax systems in its encoder and its decoder."""

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add fairseq's options and those of every system."""
        super().add_args(parser)
        parser.add_argument(
            "--encoder-syntax",
            metavar="NAMES",
            help=f"encoder systems, separated by commas, of: {', '.join(sorted(ENCODER_SYSTEMS))}",
        )
        parser.add_argument(
            "--decoder-syntax",
            metavar="NAME",
            help=f"decoder system, one of: {', '.join(sorted(DECODER_SYSTEMS))} (default: none)",
        )
        for system in (*ENCODER_SYSTEMS.values(), *DECODER_SYSTEMS.values()):
            system.add_args(parser.add_argument_group(f"{system.name} (syntax system)"))  # type: ignore[arg-type]

    @classmethod
    def build_model(cls, args: Namespace, task: Any) -> SyntaxTransformerModel:
        """Build the model; the systems see the task's label inventories."""
        syntax_architecture(args)
        names = [n.strip() for n in (args.encoder_syntax or "").split(",") if n.strip()]
        _check_names("--encoder-syntax", names, ENCODER_SYSTEMS)
        cls._systems = {name: ENCODER_SYSTEMS[name].from_args(args, task) for name in names}
        if args.decoder_syntax:
            _check_names("--decoder-syntax", [args.decoder_syntax], DECODER_SYSTEMS)
            DECODER_SYSTEMS[args.decoder_syntax].prepare(args, task)
        try:
            return super().build_model(args, task)
        finally:
            del cls._systems

    @classmethod
    def build_encoder(cls, args, src_dict, embed_tokens: nn.Embedding) -> SyntaxTransformerEncoder:
        """Build the encoder with the systems of this model."""
        return SyntaxTransformerEncoder(TransformerConfig.from_namespace(args), src_dict, embed_tokens, cls._systems)

    @classmethod
    def build_decoder(cls, args, tgt_dict, embed_tokens: nn.Embedding) -> TransformerDecoderBase:
        """Build the decoder, plain or of the chosen system."""
        if args.decoder_syntax:
            return DECODER_SYSTEMS[args.decoder_syntax].build(
                TransformerConfig.from_namespace(args), tgt_dict, embed_tokens
            )
        return super().build_decoder(args, tgt_dict, embed_tokens)

    @property
    def training_needs(self) -> frozenset[str]:
        """What training needs of the source's syntax: a subset of ``{"tree", "arcs"}``."""
        return self.encoder.training_needs

    @property
    def inference_needs(self) -> frozenset[str]:
        """What inference needs of the source's syntax."""
        return self.encoder.inference_needs

    @property
    def losses(self) -> tuple[str, ...]:
        """Names of the losses of the systems, which a criterion has to collect (:mod:`.losses`)."""
        return tuple(name for system in self.encoder.systems.values() for name in system.supervises())

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        src_syntax: Mapping[str, Tensor] | None = None,
        return_all_hiddens: bool = True,
        features_only: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's forward with the batch's syntax.

        Returns:
            logits [B, T', V], and ``extra``, in which ``encoder_step`` is the encoder's
            :class:`~fairseq_syntax.model.heads.Step`
        """
        encoder_out = self.encoder(
            src_tokens,
            src_lengths=src_lengths,
            src_syntax=src_syntax,
            return_all_hiddens=return_all_hiddens,
            observe=True,
        )
        logits, extra = self.decoder(
            prev_output_tokens,
            encoder_out=encoder_out,
            features_only=features_only,
            alignment_layer=alignment_layer,
            alignment_heads=alignment_heads,
            src_lengths=src_lengths,
            return_all_hiddens=return_all_hiddens,
        )
        return logits, {**extra, "encoder_step": encoder_out["step"]}


def _check_names(option: str, names: list[str], known: Mapping[str, Any]) -> None:
    for name in names:
        if name not in known:
            raise SyntaxDataError(f"{option} {name}: no such system", hint=f"known: {', '.join(sorted(known))}")
    if len(set(names)) < len(names):
        raise SyntaxDataError(f"{option} {','.join(names)}: a system is named twice")


def syntax_architecture(args: Namespace) -> None:
    """The plain Transformer; its sizes are fairseq's."""
    args.encoder_syntax = getattr(args, "encoder_syntax", None)
    args.decoder_syntax = getattr(args, "decoder_syntax", None)
    base_architecture(args)


SIZES: dict[str, Callable[[Namespace], Any]] = {
    "": base_architecture,
    "_iwslt_de_en": transformer_iwslt_de_en,
    "_tiny": tiny_architecture,
}


def register_presets(name: str, **defaults: Any) -> None:
    """Register ``NAME``, ``NAME_iwslt_de_en`` and ``NAME_tiny``: this model with some defaults, in three sizes.

    Args:
        name: the architecture's name, such as ``pascal_transformer``
        defaults: values of options where the command line does not set them
    """
    for suffix, size in SIZES.items():

        def preset(args: Namespace, size: Callable[[Namespace], Any] = size) -> None:
            for option, value in defaults.items():
                if getattr(args, option, None) is None:
                    setattr(args, option, value)
            size(args)
            syntax_architecture(args)

        register_model_architecture("syntax_transformer", name + suffix)(preset)


register_presets("syntax_transformer")
