"""``syntax_transformer``: a Transformer with any encoder and decoder systems, selected by options.

The architectures of the systems (``pascal_transformer``, ``ldd_transformer``, …) are presets of this model, so that a
combination of systems needs no new class.
"""

from __future__ import annotations

import copy
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from typing import Any

from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase, TransformerModel
from fairseq.models.transformer.transformer_legacy import base_architecture, tiny_architecture, transformer_iwslt_de_en
from torch import Tensor, nn

from fairseq_syntax.data.packing import BatchSyntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.decoder import DECODER_SYSTEMS, build_decoder
from fairseq_syntax.model.encoder import ENCODER_SYSTEMS, SyntaxTransformerEncoder
from fairseq_syntax.model.fused_attention import fuse
from fairseq_syntax.model.heads import HeadSystem
from fairseq_syntax.model.language_tokens import LanguageDecoder, SourceLanguage
from fairseq_syntax.model.layers import needs_of
from fairseq_syntax.model.options import SystemConfig, add_options, check_task, option_name, read_options
from fairseq_syntax.model.pretrained import (
    PositionsFromZero,
    PretrainedConfig,
    StartEmbedding,
    check_pretrained,
    token_id,
    with_bias,
)
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.plugins import check_names, named_by


@register_model("syntax_transformer")
class SyntaxTransformerModel(TransformerModel):
    """A Transformer with syntax systems in its encoder and its decoder.

    Attributes:
        new_systems: systems that a loaded checkpoint may lack, whose parameters then keep their values; set by the task
            when training starts from another model
    """

    new_systems: frozenset[str] = frozenset()

    def load_state_dict(self, state_dict: Any, *arguments: Any, **options: Any) -> Any:
        """fairseq's, with the parameters of :attr:`new_systems` as they are."""
        if self.new_systems:
            starts = tuple(f"{side}.systems.{name}." for side in ("encoder", "decoder") for name in self.new_systems)
            own = {name: value for name, value in self.state_dict().items() if name.startswith(starts)}
            state_dict = {**own, **state_dict}
        return super().load_state_dict(state_dict, *arguments, **options)

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
            metavar="NAMES",
            help=f"decoder systems, separated by commas, of: {', '.join(sorted(DECODER_SYSTEMS))} (default: none)",
        )
        systems = (*ENCODER_SYSTEMS.values(), *DECODER_SYSTEMS.values())
        for config in dict.fromkeys(system.config for system in systems):  # some systems share one
            add_options(parser, config)
        add_options(parser, PretrainedConfig)

    @classmethod
    def build_model(cls, args: Namespace, task: SyntaxTask) -> SyntaxTransformerModel:
        """Build the model; the systems read the task's label inventories."""
        syntax_architecture(args)
        if args.encoder_syntax or args.decoder_syntax:
            check_task(task)
        configs = check_systems(args)
        encoder, decoder = (
            {name: SYSTEMS[option][name](config, args, task) for name, config in configs[option].items()}
            for option in SYSTEMS
        )
        for side, systems in (("encoder", encoder), ("decoder", decoder)):
            if systems and getattr(args, f"{side}_layers_to_keep", None):
                raise SyntaxDataError(
                    f"--{side}-layers-to-keep gives the layers other numbers, and systems would act in layers that "
                    "were trained without"
                )
        pretrained = read_options(PretrainedConfig, args)
        check_pretrained(pretrained, args)
        cfg = TransformerConfig.from_namespace(args)  # new for this build; fairseq passes it to the methods below
        cfg.systems, cfg.pretrained = (encoder, decoder), pretrained
        try:
            model = super().build_model(cfg, task)
        finally:
            del cfg.systems, cfg.pretrained
        fuse(model)
        return model

    @classmethod
    def build_encoder(cls, cfg: Any, src_dict: Any, embed_tokens: nn.Embedding) -> SyntaxTransformerEncoder:
        """Build the encoder with its systems."""
        encoder, pretrained = SyntaxTransformerEncoder(cfg, src_dict, embed_tokens, cfg.systems[0]), cfg.pretrained
        if token := pretrained.source_language_token:
            number = token_id(src_dict, token, "source_language_token")
            last = pretrained.source_language_last
            encoder.language = SourceLanguage(number, last, src_dict.pad(), src_dict.eos())
        return _with_positions(encoder, pretrained)

    @classmethod
    def build_decoder(cls, cfg: Any, tgt_dict: Any, embed_tokens: nn.Embedding) -> TransformerDecoderBase:
        """Build the decoder with its systems; fairseq's own if there are none."""
        systems, pretrained = cfg.systems[1], cfg.pretrained
        if token := pretrained.start_token:
            start = token_id(tgt_dict, token, "decoder_start_token")
            embed_tokens = StartEmbedding(embed_tokens, tgt_dict.eos(), start)
        decoder: TransformerDecoderBase
        if token := pretrained.inserted_target_token:
            if systems:
                message = f"{' and '.join(systems)} would take the token for a piece of the target"
                raise SyntaxDataError(message, option="--target-language-token", hint="use systems of the encoder")
            decoder = LanguageDecoder(cfg, tgt_dict, embed_tokens, no_encoder_attn=cfg.no_cross_attention)
            decoder.target_language = token_id(tgt_dict, token, "target_language_token")
        elif systems:
            decoder = build_decoder(cfg, tgt_dict, embed_tokens, systems)
            if pretrained.output_bias and type(decoder).output_layer is not TransformerDecoderBase.output_layer:
                raise SyntaxDataError(f"{' and '.join(systems)} has its own output layer", option="--output-bias")
        else:
            decoder = super().build_decoder(cfg, tgt_dict, embed_tokens)
        if pretrained.output_bias:
            decoder.output_projection = with_bias(decoder.output_projection)
        return _with_positions(decoder, pretrained)

    def with_languages(self, tokens: Mapping[str, str], source: Any, target: Any) -> SyntaxTransformerModel:
        """A model with the same parameters that translates between other languages.

        Args:
            tokens: the options that name them (``source_language_token``, ``target_language_token``), as far as they
                change
            source, target: the dictionaries

        Raises:
            SyntaxDataError: a dictionary does not have a token
        """
        other = _copied(self)
        if token := tokens.get("source_language_token"):
            other.encoder, language = _copied(self.encoder), copy.copy(self.encoder.language)
            language.token = token_id(source, token, "source_language_token")
            other.encoder.language = language
        if token := tokens.get("target_language_token"):
            number = token_id(target, token, "target_language_token")
            other.decoder = _copied(self.decoder)
            if isinstance(self.decoder, LanguageDecoder):
                other.decoder.target_language = number
            else:
                other.decoder.embed_tokens = self.decoder.embed_tokens.beginning_with(number)
        return other

    @property
    def _decoder_systems(self) -> Mapping[str, Any]:
        return getattr(self.decoder, "systems", {})  # fairseq's own has none

    @property
    def training_needs(self) -> frozenset[str]:
        """The source syntax that training needs: a subset of ``{"tree", "arcs"}``."""
        return needs_of(self.encoder.systems, "training_needs")

    @property
    def inference_needs(self) -> frozenset[str]:
        """The source syntax that inference needs."""
        return needs_of(self.encoder.systems, "inference_needs")

    @property
    def target_training_needs(self) -> frozenset[str]:
        """The target syntax that the decoder's systems need in training."""
        return needs_of(self._decoder_systems, "training_needs")

    @property
    def losses(self) -> tuple[str, ...]:
        """The names of the systems' losses, which a criterion must collect (:mod:`.losses`)."""
        systems = (*self.encoder.systems.values(), *self._decoder_systems.values())
        return tuple(name for system in systems for name in system.supervises())

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Tensor,
        prev_output_tokens: Tensor,
        src_syntax: BatchSyntax | None = None,
        return_all_hiddens: bool = True,
        **options: Any,
    ) -> tuple[Tensor, dict[str, Any]]:
        """fairseq's forward with the batch's syntax; ``options`` are those of its decoder.

        Returns:
            logits [B, T', V], and ``extra`` with the :class:`~fairseq_syntax.model.heads.Step` of each side:
            ``encoder_step`` and, if there are systems in its layers, ``decoder_step``
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
            src_lengths=src_lengths,
            return_all_hiddens=return_all_hiddens,
            **options,
        )
        return logits, {**extra, "encoder_step": encoder_out["step"]}


def _copied(module: nn.Module) -> Any:
    """A module with the same submodules, which can be replaced in the copy."""
    other = copy.copy(module)
    other._modules = dict(module._modules)
    return other


def _with_positions(side: Any, pretrained: PretrainedConfig) -> Any:
    """The encoder or decoder, with the positions of ``--positions-from-zero``."""
    if pretrained.positions_from_zero:
        side.embed_positions = PositionsFromZero(side.embed_positions.embedding_dim, side.padding_idx)
    return side


# The options that name systems.
SYSTEMS: dict[str, Mapping[str, Any]] = {"encoder_syntax": ENCODER_SYSTEMS, "decoder_syntax": DECODER_SYSTEMS}


def check_systems(args: Namespace) -> dict[str, dict[str, SystemConfig]]:
    """The systems that options name and their options, in order, by the option that names them.

    Raises:
        SyntaxDataError: there is no such system, one is named twice, or an option has an invalid value
    """
    values = {option: getattr(args, option, None) for option in SYSTEMS}
    check_names(values)
    configs = {}
    for option, registered in SYSTEMS.items():
        names = named_by(values[option])
        if len(set(names)) < len(names):
            raise SyntaxDataError(f"a system is named twice in {','.join(names)}", option=option_name(option))
        configs[option] = {name: read_options(registered[name].config, args) for name in names}
    return configs


def syntax_architecture(args: Namespace) -> None:
    """The plain Transformer, with fairseq's sizes."""
    args.encoder_syntax = getattr(args, "encoder_syntax", None)
    args.decoder_syntax = getattr(args, "decoder_syntax", None)
    base_architecture(args)


SIZES: dict[str, Callable[[Namespace], Any]] = {
    "": base_architecture,
    "_iwslt_de_en": transformer_iwslt_de_en,
    "_tiny": tiny_architecture,
}


# The options that each architecture sets, by the architecture's name in the base size.
PRESETS: dict[str, dict[str, Any]] = {}


def criterion_of(preset: Mapping[str, Any]) -> str:
    """The ``--criterion`` that trains the systems of a preset."""
    chosen = [
        registered[name].criterion
        for option, registered in SYSTEMS.items()
        for name in preset.get(option, "").split(",")
        if name
    ]
    # The last one that is not the default: lasyn_em also collects the losses of encoder heads, but not vice versa.
    return next((name for name in reversed(chosen) if name != HeadSystem.criterion), HeadSystem.criterion)


def register_presets(name: str, **defaults: Any) -> None:
    """Register ``NAME``, ``NAME_iwslt_de_en`` and ``NAME_tiny``: this model with other defaults, in three sizes.

    Args:
        name: the architecture's name, such as ``pascal_transformer``
        defaults: the values of options that the command line does not set
    """
    PRESETS[name] = defaults
    for suffix, size in SIZES.items():

        def preset(args: Namespace, size: Callable[[Namespace], Any] = size) -> None:
            for option, value in defaults.items():
                if getattr(args, option, None) is None:
                    setattr(args, option, value)
            size(args)
            syntax_architecture(args)

        register_model_architecture("syntax_transformer", name + suffix)(preset)


register_presets("syntax_transformer")
