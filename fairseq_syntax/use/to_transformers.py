"""Export to Hugging Face's transformers: FSMT or Blenderbot, with Marian's tokenizer.

FSMT is fairseq's Transformer with layer normalization after each sublayer, sinusoidal positions and separate
vocabularies. Models with normalization before each sublayer (``--encoder-normalize-before``,
``--decoder-normalize-before``) become Blenderbot, whose learned positions are set to fairseq's sinusoidal ones.
Blenderbot has a single vocabulary size; a bias on the logits excludes what is not a piece of the target. (M2M100 has
sinusoidal positions but no such bias.) Marian's tokenizer combines a sentencepiece model with a custom vocabulary on
each side.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_syntax.corpus.segmentation import TEXT, SentencePieceSegmenter
from fairseq_syntax.errors import SyntaxDataError, imports_of
from fairseq_syntax.runtime.files import write_json
from fairseq_syntax.use.plain import DISTIL, check_equal

HINT = f"--to fairseq or --to ctranslate2; or {DISTIL}"
ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_accurate": "gelu_new", "tanh": "tanh", "linear": "linear"}
SIDES = ("encoder", "decoder")


@torch.no_grad()
def write(plain: Any, options: Mapping[str, Any], task: Any, folder: Path) -> None:
    """Write a folder that ``AutoModelForSeq2SeqLM`` and ``AutoTokenizer`` load.

    Model and options are those of :meth:`.plain.TrainedModel.plain`.

    Raises:
        SyntaxDataError: transformers is not installed, or cannot reproduce the model or the segmentation exactly
    """
    _check_segmentation(task)
    spec = find_spec("torchaudio")
    try:
        import torchaudio  # noqa: F401
    except (ImportError, OSError):
        if spec is not None:  # built for another PyTorch: replace it by an empty module, as no audio is read here
            sys.modules["torchaudio"] = module_from_spec(spec)
    with imports_of("transformers"):
        from transformers import GenerationConfig
        from transformers.utils import logging
    logging.disable_progress_bar()
    source, target = task.source_dictionary, task.target_dictionary
    # The special symbols have the same ids on both sides, since fairseq puts them first.
    special = {"pad_token_id": target.pad(), "bos_token_id": target.bos(), "eos_token_id": target.eos()}
    special["decoder_start_token_id"] = target.eos()
    fill = _blenderbot if options.get("encoder_normalize_before") else _fsmt
    try:
        sizes = {**_sizes(options), **special, "max_position_embeddings": max(plain.max_positions())}
        model, weights = fill(plain, options, task, sizes)
        # FSMT computes its positions, so only they may be missing.
        missing, unexpected = model.load_state_dict(weights, strict=False)
        if wrong := [*unexpected, *(name for name in missing if "embed_positions" not in name)]:
            raise KeyError(wrong[0])
    except (KeyError, RuntimeError) as error:  # an option or a parameter that only one of the two has, or its size
        message = f"transformers has no counterpart of this {options['_name']}: {error.args[0]}"
        raise SyntaxDataError(message, hint=HINT) from error
    model.eval()

    def logits_of(batch: dict[str, Tensor], _: Tensor) -> Tensor:
        # Blenderbot counts positions from the first column, even if it is padding.
        tokens = utils.convert_padding_direction(batch["src_tokens"], source.pad(), left_to_right=True)
        inputs = {"input_ids": tokens, "attention_mask": tokens.ne(source.pad()).long()}
        output = model(**inputs, decoder_input_ids=batch["prev_output_tokens"], use_cache=False)
        logits: Tensor = output.logits[..., : len(target)]  # Blenderbot's vocabulary may be larger
        return logits

    check_equal(plain, logits_of, task, type(model).__name__)
    model.generation_config = GenerationConfig(
        num_beams=4,
        early_stopping=True,  # like fairseq's search, which ends with as many translations as the beam is wide
        min_new_tokens=1,  # fairseq's search never returns an empty translation
        max_new_tokens=200,  # fairseq's default max_len_b
        length_penalty=1.0,
        suppress_tokens=[target.pad()],  # like fairseq's search
        forced_eos_token_id=target.eos(),
        encoder_no_repeat_ngram_size=0,  # Blenderbot's default is 3
        **special,
    )
    model.save_pretrained(os.fspath(folder))
    for name, dictionary in (("vocab.json", source), ("target_vocab.json", target)):
        write_json(folder / name, {symbol: i for i, symbol in enumerate(dictionary.symbols)})
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(task.segmenter(side).model)
    _check_pieces(task.segmenter("source"), folder / "source.spm")
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": True,
        "source_lang": task.cfg.source_lang,
        "target_lang": task.cfg.target_lang,
        "model_max_length": int(plain.max_positions()[0]),
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # </s> in a text is text
    }
    write_json(folder / "tokenizer_config.json", tokenizer)


def _check_segmentation(task: Any) -> None:
    """Raise SyntaxDataError if Marian's tokenizer cannot reproduce the segmentation exactly."""
    for side, lang in task.directory.langs.items():
        segmenter = task.segmenter(side)
        if not isinstance(segmenter, SentencePieceSegmenter):
            kind = "none" if segmenter is None else segmenter.kind
            raise SyntaxDataError(
                f"the segmentation of {lang} is {kind}; transformers' tokenizer of two vocabularies is sentencepiece's",
                hint="--to fairseq or --to ctranslate2",
            )
    if task.segmenter("source").cut_from != TEXT:
        raise SyntaxDataError(
            "the source's words are those of a parse, with punctuation apart; transformers' tokenizer cuts text",
            hint="--to ctranslate2, or export a plain Transformer that was trained on text segmented without a parse",
        )


def _sizes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that FSMT and Blenderbot share, from those of fairseq's model."""
    names = {"layers": "layers", "ffn_dim": "ffn_embed_dim", "attention_heads": "attention_heads"}
    return {
        "d_model": options["encoder_embed_dim"],
        "activation_function": ACTIVATIONS[options.get("activation_fn", "relu")],
        "scale_embedding": not options.get("no_scale_embedding"),
        **{f"{side}_{name}": options[f"{side}_{of_fairseq}"] for side in SIDES for name, of_fairseq in names.items()},
    }


def _fsmt(plain: Any, options: Mapping[str, Any], task: Any, sizes: Mapping[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """An FSMT model with these sizes, and the weights under its names."""
    from transformers import FSMTConfig, FSMTForConditionalGeneration

    config = FSMTConfig(
        langs=[task.cfg.source_lang, task.cfg.target_lang],
        src_vocab_size=len(task.source_dictionary),
        tgt_vocab_size=len(task.target_dictionary),
        tie_word_embeddings=False,  # all embeddings are saved, shared or not
        **sizes,
    )
    return FSMTForConditionalGeneration(config), _weights(plain)


def _blenderbot(
    plain: Any, options: Mapping[str, Any], task: Any, sizes: Mapping[str, Any]
) -> tuple[Any, dict[str, Tensor]]:
    """A Blenderbot model with these sizes, and the weights under its names."""
    from transformers import BlenderbotConfig, BlenderbotForConditionalGeneration

    n_target, first = len(task.target_dictionary), task.target_dictionary.pad() + 1  # fairseq's first position
    vocab_size, n_positions = max(len(task.source_dictionary), n_target), sizes["max_position_embeddings"]
    tied = bool(options.get("share_all_embeddings"))
    config = BlenderbotConfig(
        vocab_size=vocab_size,
        tie_word_embeddings=tied,
        encoder_no_repeat_ngram_size=0,
        forced_eos_token_id=None,
        **sizes,
    )
    model = BlenderbotForConditionalGeneration(config)
    weights = _weights(plain)
    weights["lm_head.weight"] = weights.pop("model.decoder.output_projection.weight")
    for side in SIDES:
        module = getattr(plain, side).embed_positions
        table = torch.zeros(first, config.d_model)
        if isinstance(module, nn.Embedding):
            table = module.weight
        elif module is not None:
            table = module.get_embedding(first + n_positions, config.d_model, first - 1)
        table = table[first : first + n_positions]
        weights[f"model.{side}.embed_positions.weight"] = pad(table, (0, 0, 0, n_positions - len(table)))
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        weights[name] = pad(weights[name], (0, 0, 0, vocab_size - len(weights[name])))
    # never read if the two sides have separate embeddings
    shared = weights["lm_head.weight"]
    weights["model.shared.weight"] = shared if tied else torch.zeros_like(shared)
    weights["final_logits_bias"] = torch.zeros(1, vocab_size)
    weights["final_logits_bias"][:, n_target:] = -torch.inf
    return model, weights


def _weights(plain: Any) -> dict[str, Tensor]:
    """The weights of fairseq's Transformer, under the names that transformers still uses."""
    return {
        f"model.{name}": tensor.clone()
        for name, tensor in plain.state_dict().items()
        if not name.endswith((".version", "_float_tensor", "embed_positions.weight"))
    }


def _check_pieces(segmenter: SentencePieceSegmenter, path: Path) -> None:
    """Check on 200 random lines that sentencepiece segments a line as the segmenter does word by word."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=os.fspath(path))
    generator = torch.Generator().manual_seed(1)
    for row in torch.randint(0, processor.get_piece_size(), (200, 12), generator=generator).tolist():
        kept = [i for i in row if not (processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i))]
        text = " ".join("".join(map(processor.id_to_piece, kept)).replace("▁", " ").split())
        if processor.encode(text, out_type=str) != segmenter.encode_text(text):
            raise SyntaxDataError(
                f"sentencepiece alone segments {text[:40]!r} differently from this package",
                path=path.name,
                hint="train it without options for white space; or --to ctranslate2",
            )
