"""A trained model for Hugging Face's transformers: FSMT, whose layers are fairseq's, with Marian's tokenizer.

FSMT is fairseq's Transformer with layer normalisation after each sublayer, sinusoidal positions and a vocabulary for
each side. Marian's tokenizer is a sentencepiece model for each side with a vocabulary of one's own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_syntax.corpus.segmentation import TEXT, SentencePieceSegmenter
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.use.plain import DISTIL, check_equal

HINT = f"--to fairseq or --to ctranslate2; or {DISTIL}"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_new", "tanh": "tanh", "linear": "linear"}
# Options of fairseq's Transformer that change what it computes, and that FSMT has no counterpart of.
NO_COUNTERPART = (
    *("encoder_normalize_before", "decoder_normalize_before", "encoder_learned_pos", "decoder_learned_pos"),
    *("no_token_positional_embeddings", "layernorm_embedding", "adaptive_input", "adaptive_softmax_cutoff"),
    *("cross_self_attention", "no_cross_attention", "char_inputs", "quant_noise_pq", "base_layers"),
)


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse a model that FSMT does not compute exactly, by the name of its option.

    Args:
        options: of :func:`.plain.plain_options`

    Raises:
        SyntaxDataError: transformers' FSMT has no counterpart of an option
    """
    if "encoder_attention_heads" not in options:
        raise SyntaxDataError(f"transformers has no counterpart of {options['_name']}", hint=HINT)
    wrong = [name for name in NO_COUNTERPART if options.get(name)]
    dims = [options.get(name) for name in ("encoder_embed_dim", "decoder_embed_dim", "decoder_output_dim")]
    if len({dim for dim in dims if dim is not None}) > 1:
        wrong.append("decoder_embed_dim")
    if options.get("activation_fn", "relu") not in ACTIVATIONS:
        wrong.append("activation_fn")
    if wrong:
        option = "--" + wrong[0].replace("_", "-")
        raise SyntaxDataError(f"transformers' FSMT has no counterpart of {option} {options[wrong[0]]}", hint=HINT)


def check_segmentation(task: Any) -> None:
    """Refuse a segmentation that Marian's tokenizer does not make exactly.

    Raises:
        SyntaxDataError: a side has no sentencepiece model, or its words were those of a parse
    """
    sides = ((task.cfg.source_lang, task.source_segmenter), (task.cfg.target_lang, task.target_segmenter))
    for lang, segmenter in sides:
        kind = "none" if segmenter is None else segmenter.kind
        if not isinstance(segmenter, SentencePieceSegmenter):
            raise SyntaxDataError(
                f"the segmentation of {lang} is {kind}; transformers' tokenizer of two vocabularies is sentencepiece's",
                hint="--to fairseq or --to ctranslate2",
            )
    if task.source_segmenter.cut_from != TEXT:
        raise SyntaxDataError(
            "the source's words are those of a parse, with punctuation apart; transformers' tokenizer cuts text",
            hint="segment the text in place of the parse (segment --text) and train with that, or --to ctranslate2",
        )


@torch.no_grad()
def write(plain: Any, options: Mapping[str, Any], task: Any, folder: Path) -> None:
    """Write a folder that ``AutoModelForSeq2SeqLM`` and ``AutoTokenizer`` load.

    Args:
        plain: fairseq's Transformer, in evaluation mode
        options: its options
        task: with dictionaries and segmentation

    Raises:
        SyntaxDataError: transformers is not installed, or cannot compute the model or cut the text exactly
    """
    check_options(options)
    check_segmentation(task)
    try:
        from transformers import FSMTConfig, FSMTForConditionalGeneration, GenerationConfig
        from transformers.utils import logging
    except ImportError as error:
        hint = "pip install 'fairseq-syntax[transformers]'"
        raise SyntaxDataError("transformers is not installed", hint=hint) from error
    logging.disable_progress_bar()
    source, target = task.source_dictionary, task.target_dictionary
    special = {"pad_token_id": target.pad(), "bos_token_id": target.bos(), "eos_token_id": target.eos()}
    config = FSMTConfig(
        langs=[task.cfg.source_lang, task.cfg.target_lang],
        src_vocab_size=len(source),
        tgt_vocab_size=len(target),
        d_model=options["encoder_embed_dim"],
        activation_function=ACTIVATIONS[options.get("activation_fn", "relu")],
        scale_embedding=not options.get("no_scale_embedding"),
        max_position_embeddings=max(plain.max_positions()),
        tie_word_embeddings=False,  # each is written, as they are shared or not
        decoder_start_token_id=target.eos(),
        **special,
        **{f"{side}_{name}": options[f"{side}_{name}"] for side in ("encoder", "decoder") for name in ("layers",)},
        **{f"{side}_ffn_dim": options[f"{side}_ffn_embed_dim"] for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": options[f"{side}_attention_heads"] for side in ("encoder", "decoder")},
    )
    model = FSMTForConditionalGeneration(config).eval()
    weights = {
        f"model.{name}": tensor.clone()
        for name, tensor in plain.state_dict().items()
        if not name.endswith((".version", "_float_tensor"))
    }
    missing, unexpected = model.load_state_dict(weights, strict=False)
    wrong = [*unexpected, *(name for name in missing if "embed_positions" not in name)]
    if wrong:
        raise SyntaxDataError(f"FSMT has no place for {wrong[0]}, or no value", hint=HINT)

    def logits_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        tokens = batch["src_tokens"]
        mask = tokens.ne(source.pad()).long()
        previous = batch["prev_output_tokens"]
        return model(input_ids=tokens, attention_mask=mask, decoder_input_ids=previous, use_cache=False).logits

    check_equal(plain, logits_of, task, "FSMT")
    model.generation_config = GenerationConfig(
        num_beams=4,
        early_stopping=True,  # as fairseq's search, which ends with as many translations as its beam is wide
        max_new_tokens=200,
        length_penalty=1.0,
        suppress_tokens=[target.pad()],
        decoder_start_token_id=target.eos(),
        forced_eos_token_id=target.eos(),
        **special,
    )
    model.save_pretrained(os.fspath(folder))
    for name, dictionary in (("vocab.json", source), ("target_vocab.json", target)):
        _write_json(folder / name, {symbol: i for i, symbol in enumerate(dictionary.symbols)})
    (folder / "source.spm").write_bytes(task.source_segmenter.model)
    (folder / "target.spm").write_bytes(task.target_segmenter.model)
    _check_pieces(task.source_segmenter, folder / "source.spm")
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": True,
        "source_lang": task.cfg.source_lang,
        "target_lang": task.cfg.target_lang,
        "model_max_length": int(plain.max_positions()[0]),
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer)


def _check_pieces(segmenter: SentencePieceSegmenter, path: Path, lines: int = 200) -> None:
    """Make sure that sentencepiece cuts whole lines as the segmenter cuts their words, on lines of its own pieces."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=os.fspath(path))
    generator = torch.Generator().manual_seed(1)
    for row in torch.randint(0, processor.get_piece_size(), (lines, 12), generator=generator).tolist():
        kept = [i for i in row if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))]
        text = " ".join("".join(map(processor.id_to_piece, kept)).replace("▁", " ").split())
        if processor.encode(text, out_type=str) != segmenter.encode_text(text):
            raise SyntaxDataError(
                f"sentencepiece alone cuts {text[:40]!r} otherwise than this package does",
                path=path.name,
                hint="train it without options for white space; or --to ctranslate2",
            )


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
