"""Export of imported multilingual models to transformers again: M2M-100, NLLB and mBART, with their tokenizers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.pretrained import PretrainedConfig
from fairseq_syntax.runtime.files import write_json
from fairseq_syntax.use.from_transformers import LANGUAGE
from fairseq_syntax.use.hugging_face import import_transformers
from fairseq_syntax.use.pretrained_model import MADE_UP, UNREACHABLE

_UNNAMED = MADE_UP.partition("{")[0], UNREACHABLE.partition("{")[0]


def is_multilingual(pretrained: PretrainedConfig) -> bool:
    """Whether a model reads language tokens as M2M-100, NLLB and mBART do."""
    return bool(pretrained.target_language_token)


def model_and_weights(
    plain: Any, pretrained: PretrainedConfig, options: Mapping[str, Any], sizes: Mapping[str, Any]
) -> tuple[Any, dict[str, Tensor]]:
    """A model of transformers with these sizes, and the weights under its names.

    Raises:
        SyntaxDataError: the options are not those of one of the families
    """
    transformers: Any = import_transformers()

    learned = bool(options.get("encoder_learned_pos"))
    wrong = [name for name in ("positions_from_zero", "decoder_start_token") if getattr(pretrained, name)]
    wrong += [name for name in ("encoder_normalize_before", "share_all_embeddings") if not options.get(name)]
    wrong += ["output_bias"] if bool(pretrained.output_bias) != learned else []
    wrong += ["layernorm_embedding"] if bool(options.get("layernorm_embedding")) != learned else []
    if wrong:
        message = f"is none of M2M-100, NLLB and mBART, from which it differs in --{wrong[0].replace('_', '-')}"
        raise SyntaxDataError(message, hint="translate with the checkpoint")
    config_class = transformers.MBartConfig if learned else transformers.M2M100Config
    config = config_class(vocab_size=len(plain.decoder.dictionary), **sizes)
    model_class = transformers.MBartForConditionalGeneration if learned else transformers.M2M100ForConditionalGeneration
    weights = {
        f"model.{name}": tensor.clone()
        for name, tensor in plain.state_dict().items()
        if not name.endswith((".version", "_float_tensor")) and (learned or "embed_positions" not in name)
    }
    table = weights.pop("model.decoder.output_projection.weight")
    weights |= {"model.shared.weight": table, "lm_head.weight": table}
    if (bias := weights.pop("model.decoder.output_projection.bias", None)) is not None:
        weights["final_logits_bias"] = bias[None]
    return model_class(config), weights


def start_of(pretrained: PretrainedConfig, dictionary: Any) -> dict[str, int]:
    """How ``generate`` begins: ``decoder_start_token_id``, and ``forced_bos_token_id`` if a language token follows."""
    token = dictionary.index(pretrained.target_language_token)
    if pretrained.target_language_first:
        return {"decoder_start_token_id": token}
    return {"decoder_start_token_id": dictionary.eos(), "forced_bos_token_id": token}


def their_batch(
    pretrained: PretrainedConfig, tokens: Tensor, previous: Tensor, source: Any, target: Any
) -> tuple[Tensor, Tensor]:
    """The ids [B, T + 1] and the decoder's ids that transformers reads, of ours, which are padded on the right."""
    language = source.index(pretrained.source_language_token)
    if pretrained.source_language_last:
        tokens = torch.nn.functional.pad(tokens, (0, 1), value=source.pad())
        ends = tokens.ne(source.pad()).sum(dim=1, keepdim=True)
        tokens = tokens.scatter(1, ends, language)
    else:
        tokens = torch.nn.functional.pad(tokens, (1, 0), value=language)
    token = previous.new_full((len(previous), 1), target.index(pretrained.target_language_token))
    start = [token] if pretrained.target_language_first else [previous[:, :1], token]
    return tokens, torch.cat([*start, previous[:, 1:]], dim=1)


def save_tokenizer(pretrained: PretrainedConfig, options: Mapping[str, Any], task: Any, folder: Path) -> None:
    """Write the tokenizer's files.

    Raises:
        SyntaxDataError: the family's tokenizer would give other ids to the symbols
    """
    transformers: Any = import_transformers()

    tokenizer: Any
    ids: dict[str, int]
    dictionary, model = task.source_dictionary, folder / "sentencepiece.bpe.model"
    segmenter = task.segmenter("source")
    model.write_bytes(segmenter.model)
    named = {symbol: i for i, symbol in enumerate(dictionary.symbols) if not symbol.startswith(_UNNAMED)}
    langs = {"src_lang": pretrained.source_language_token, "tgt_lang": pretrained.target_language_token}
    if options.get("encoder_learned_pos"):
        kind = "MBartTokenizer" if pretrained.target_language_first else "MBart50Tokenizer"
        tokenizer = getattr(transformers, kind).from_pretrained(folder, **langs)
        ids = tokenizer.get_vocab()
    elif pretrained.source_language_token.startswith("__"):
        languages = [s for s in named if s.startswith("__") and s.endswith("__") and len(s) > 4]
        write_json(folder / "vocab.json", {symbol: i for symbol, i in named.items() if symbol not in languages})
        langs = {name: token.strip("_") for name, token in langs.items()}
        tokenizer = transformers.M2M100Tokenizer(str(folder / "vocab.json"), str(model), **langs)
        ids = {**tokenizer.encoder, **tokenizer.lang_token_to_id}
    else:
        tokens = [symbol for symbol in named if LANGUAGE.fullmatch(symbol)]
        pieces = segmenter.all_pieces()
        merges = [(p[:k], p[k:]) for p in pieces for k in range(1, len(p)) if {p[:k], p[k:], p} <= named.keys()]
        tokenizer = transformers.NllbTokenizer(
            vocab=named, merges=merges, extra_special_tokens=tokens, legacy_behaviour=pretrained.source_language_last,
            **langs,
        )  # fmt: skip
        ids = tokenizer.get_vocab()
    if wrong := [symbol for symbol, i in named.items() if ids.get(symbol) != i]:
        message = f"{type(tokenizer).__name__} of transformers has another id for {wrong[0]} than the model"
        raise SyntaxDataError(message, hint="--keep-pieces changed the vocabulary; translate with the checkpoint")
    tokenizer.save_pretrained(folder)
