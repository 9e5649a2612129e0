"""What public pretrained models compute and fairseq's Transformer does not, as options of this package's Transformer.

==================  ======================  ======================================================================
model               option                  what it is
==================  ======================  ======================================================================
Marian, mBART       output_bias             a bias on the logits
Marian              positions_from_zero     the sinusoids of Vaswani et al. (2017), section 3.5, from position 0
Marian              decoder_start_token     the decoder begins with another symbol's embedding than that of ``</s>``
M2M-100, NLLB,      source_language_token,  a symbol that names the language, which the encoder or the decoder adds to
mBART               target_language_token   each sentence (:mod:`.language_tokens`)
==================  ======================  ======================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from fairseq.utils import make_positions
from torch import Tensor, nn

from fairseq_syntax.errors import SyntaxDataError, similar
from fairseq_syntax.model.options import SystemConfig, option, option_name


@dataclass
class PretrainedConfig(SystemConfig):
    """Options that imported models need beside fairseq's."""

    output_bias: bool = option(False, "add a bias to the logits (Marian, mBART)", "")
    positions_from_zero: bool = option(
        False,
        "sinusoidal positions counted from 0, with the wavelengths of Vaswani et al. (Marian); fairseq counts from 2, "
        "with other wavelengths",
        "",
    )
    decoder_start_token: str = option(
        "", "symbol whose embedding begins the decoder's input in place of that of </s> (Marian: <pad>)", ""
    )
    source_language_token: str = option(
        "", "symbol that names the source language, which the encoder adds to each sentence (NLLB, M2M-100, mBART)", ""
    )
    source_language_last: bool = option(
        False, "the source's language token follows </s> (mBART-25); otherwise it precedes the sentence", ""
    )
    target_language_token: str = option(
        "", "symbol that names the target language, which the decoder reads before the translation", ""
    )
    target_language_first: bool = option(
        False, "the decoder begins with the target's language token (mBART-25); otherwise with </s> before it", ""
    )

    @property
    def start_token(self) -> str:
        """The symbol whose embedding begins the decoder's input; empty for ``</s>``."""
        return self.target_language_token if self.target_language_first else self.decoder_start_token

    @property
    def inserted_target_token(self) -> str:
        """The symbol that the decoder reads after the start; empty for none."""
        return "" if self.target_language_first else self.target_language_token

    def set_options(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        return {f.name: value for f in fields(self) if f.name != "_name" and (value := getattr(self, f.name))}


# Options with which a model computes another function from the same parameters.
OF_ARCHITECTURE = ("output_bias", "positions_from_zero", "decoder_start_token")
# Options that name the languages of one translation direction of a multilingual model.
OF_LANGUAGES = (
    "source_language_token",
    "source_language_last",
    "target_language_token",
    "target_language_first",
)


def is_target_tag(token: str) -> bool:
    """Whether a symbol stands before a source and names the target language, as in Marian's multilingual models."""
    return token.startswith(">>") and token.endswith("<<") and len(token) > 4


def language_options(languages: Mapping[str, str], source: str | None, target: str | None) -> dict[str, str]:
    """The options of a multilingual model that translates one language into another.

    Args:
        languages: the token of each language that the model knows
        source, target: the languages, as the model names them (``deu_Latn``), or the part before ``_`` if that is
            enough (``de`` for ``de_DE``)

    Raises:
        SyntaxDataError: the model does not know a language
    """
    tokens = {}
    for side, lang in (("source", source), ("target", target)):
        codes = [code for code in languages if lang and (code == lang or code.startswith(f"{lang}_"))]
        if lang in codes:
            codes = [lang]
        of = side
        if all(map(is_target_tag, languages.values())):
            if side == "source":
                continue
            side = "source"  # where its tag stands
        if len(codes) != 1:
            message = f"the model does not know the language {lang}" if lang else "the model is multilingual"
            if codes:
                message = f"the model has {' and '.join(codes)}"
            some = ", ".join(sorted(languages)[:12])
            hint = (lang and similar(lang, languages)) or f"it has {some}{', …' if len(languages) > 12 else ''}"
            raise SyntaxDataError(message, option=f"--{of}-name", hint=hint)
        tokens[f"{side}_language_token"] = languages[codes[0]]
    return tokens


def check_pretrained(options: PretrainedConfig, args: Any) -> None:
    """Raise SyntaxDataError for options of fairseq that have no effect or another meaning beside these."""
    learned = any(getattr(args, f"{side}_learned_pos", False) for side in ("encoder", "decoder"))
    if options.positions_from_zero and (learned or getattr(args, "no_token_positional_embeddings", False)):
        message = "has no effect with learned positions, or without positions"
        raise SyntaxDataError(message, option="--positions-from-zero", hint="leave one of them out")
    if options.output_bias and getattr(args, "adaptive_softmax_cutoff", None):
        raise SyntaxDataError("cannot be combined with --adaptive-softmax-cutoff", option="--output-bias")
    if options.target_language_first and options.decoder_start_token:
        message = "both name the first symbol of the decoder's input"
        raise SyntaxDataError(message, option="--target-language-first, --decoder-start-token")


def token_id(dictionary: Any, token: str, name: str) -> int:
    """The id of a symbol that an option names. Raises SyntaxDataError if the dictionary does not have it."""
    index: int = dictionary.index(token)
    if index == dictionary.unk() and token != dictionary.unk_word:
        hint = similar(token, dictionary.symbols) or "the model's dictionary lists its symbols"
        raise SyntaxDataError(f"the dictionary has no symbol {token}", option=option_name(name), hint=hint)
    return index


class StartEmbedding(nn.Embedding):
    """The decoder's table of embeddings, in which ``</s>``, with which fairseq begins, has that of another symbol.

    Args:
        table: the table [V, C], whose parameter it shares
        end, start: the ids of ``</s>`` and of the other symbol
    """

    def __init__(self, table: nn.Embedding, end: int, start: int) -> None:
        super().__init__(table.num_embeddings, table.embedding_dim, table.padding_idx, _weight=table.weight.detach())
        self.weight = table.weight
        self._end, self._start = end, start

    def beginning_with(self, start: int) -> StartEmbedding:
        """The same table, in which ``</s>`` has the embedding of yet another symbol."""
        other = copy.copy(self)
        other._start = start
        return other

    def forward(self, input: Tensor) -> Tensor:
        """The embeddings [..., C] of tokens [...] int64."""
        # Padding that stands for the start has its vector, but the table's gradient leaves the row out, as in Marian.
        return super().forward(input.masked_fill(input.eq(self._end), self._start))


class PositionsFromZero(nn.Module):
    """Sinusoidal positions, section 3.5 of Vaswani et al. (2017): ``sin(p / 10000^(2i/d))``, then the cosines.

    As in Marian, the sines fill the first half of the vector and the cosines the second. Padding has position 0, and
    the first symbol too.

    Args:
        dim: d
        pad: the id of padding
        length: the number of positions that are computed in advance
    """

    table: Tensor

    def __init__(self, dim: int, pad: int, length: int = 1024) -> None:
        super().__init__()
        self.dim, self.padding_idx, self.max_positions = dim, pad, 100_000
        self.register_buffer("table", self.vectors(length), persistent=False)

    def vectors(self, length: int) -> Tensor:
        """The vectors [length, d] float32 of the positions 0 to ``length`` − 1, computed in float64."""
        rates = 10000 ** (-torch.arange(0, self.dim, 2, dtype=torch.float64, device="cpu") / self.dim)
        angles = torch.arange(length, dtype=torch.float64, device="cpu")[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()[:, : self.dim // 2]], dim=1).float()

    @property
    def weights(self) -> Tensor:
        """The vectors as fairseq's sinusoids have them, after a row for each id up to padding's."""
        return nn.functional.pad(self.table, (0, 0, self.padding_idx + 1, 0))

    def forward(self, tokens: Tensor, incremental_state: Any = None, timestep: Any = None) -> Tensor:
        """Vectors [B, T, d] of tokens [B, T], padded on either side; in a search [B, 1, d] of the last one."""
        if tokens.size(1) > len(self.table):
            self.table = self.vectors(2 * tokens.size(1)).to(self.table)
        if incremental_state is not None:
            return self.table[tokens.size(1) - 1].expand(len(tokens), 1, -1)
        # fairseq's positions begin after the id of padding, which padding has.
        places = (make_positions(tokens, self.padding_idx) - self.padding_idx - 1).clamp(min=0)
        return self.table[places]


def with_bias(projection: nn.Linear) -> nn.Linear:
    """The same projection, with the same parameter, and a bias that is 0 at first."""
    weight = projection.weight
    biased = nn.Linear(1, len(weight)).to(weight)
    biased.in_features = weight.size(1)
    biased.weight = weight
    nn.init.zeros_(biased.bias)
    return biased
