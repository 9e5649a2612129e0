"""Export to Hugging Face's transformers: FSMT, Blenderbot or Marian, with Marian's tokenizer.

FSMT is fairseq's Transformer with layer normalization after each sublayer, sinusoidal positions and separate
vocabularies. Models with normalization before each sublayer (``--encoder-normalize-before``,
``--decoder-normalize-before``) become Blenderbot, whose learned positions are set to fairseq's sinusoidal ones.
Blenderbot has a single vocabulary size; a bias on the logits excludes what is not a piece of the target. (M2M100 has
sinusoidal positions but no such bias.) Marian's tokenizer combines a sentencepiece model with a custom vocabulary on
each side. A model that was imported from Marian becomes Marian again, with its vocabulary in the former order; others
that were imported become what they were (:mod:`.to_multilingual`; FSMT with its own tokenizer).
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from torch import Tensor, nn
from torch.nn.functional import pad

from fairseq_syntax.corpus.moses_tokenizer import MosesSegmenter
from fairseq_syntax.corpus.segmentation import SEPARATOR, TEXT, SentencePieceSegmenter
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.options import option_name, read_options
from fairseq_syntax.model.pretrained import PretrainedConfig
from fairseq_syntax.model.transformer import SyntaxTransformerModel
from fairseq_syntax.runtime.files import write_json
from fairseq_syntax.use import to_multilingual
from fairseq_syntax.use.hugging_face import import_transformers
from fairseq_syntax.use.plain import DISTIL, check_equal
from fairseq_syntax.use.pretrained_model import MADE_UP, NEVER, UNREACHABLE

HINT = f"--to fairseq or --to ctranslate2; or {DISTIL}"
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "swish": "swish",
    "tanh": "tanh",
    "linear": "linear",
}
SIDES, SIDE_NAMES = ("encoder", "decoder"), ("source", "target")


@torch.no_grad()
def write(plain: Any, options: Mapping[str, Any], task: Any, folder: Path) -> None:
    """Write a folder that ``AutoModelForSeq2SeqLM`` and ``AutoTokenizer`` load.

    Model and options are those of :meth:`.plain.TrainedModel.plain`.

    Raises:
        SyntaxDataError: transformers is not installed, or cannot reproduce the model or the segmentation exactly
    """
    pretrained = read_options(PretrainedConfig, Namespace(**options))
    multilingual = to_multilingual.is_multilingual(pretrained)
    moses = all(isinstance(task.segmenter(side), MosesSegmenter) for side in SIDE_NAMES)
    if not moses:
        _check_segmentation(task)
    GenerationConfig = import_transformers().GenerationConfig
    source, target = task.source_dictionary, task.target_dictionary
    orders = {"source": [*range(len(source))], "target": [*range(len(target))]}
    fill = _blenderbot if options.get("encoder_normalize_before") else _fsmt
    if multilingual:

        def fill(plain: Any, options: Mapping[str, Any], task: Any, sizes: Mapping[str, Any]) -> Any:
            return to_multilingual.model_and_weights(plain, pretrained, options, sizes)

    elif pretrained.set_options():
        _check_marian(pretrained, options)
        _never_produce(plain, target.bos())
        orders, fill = _marian_orders(source, target), _marian
    elif moses and fill is _blenderbot:
        message = (
            "the text is cut by Moses' tokenizer, which transformers has for models with normalization after layers"
        )
        raise SyntaxDataError(message, hint="--to fairseq or --to ctranslate2")
    # The special symbols have the same ids on both sides.
    names = {"pad_token_id": target.pad(), "bos_token_id": target.bos(), "eos_token_id": target.eos()}
    special = {name: orders["target"].index(i) if i in orders["target"] else None for name, i in names.items()}
    start = orders["target"].index(target.pad() if pretrained.decoder_start_token else target.eos())
    special["decoder_start_token_id"] = start
    begin = to_multilingual.start_of(pretrained, target) if multilingual else {}
    special |= {"decoder_start_token_id": begin.get("decoder_start_token_id", start)}
    try:
        sizes = {**_sizes(options), **special, "max_position_embeddings": max(_max_positions(plain, options))}
        model, weights = fill(plain, options, task, sizes)
        # Positions that are computed may be missing.
        missing, unexpected = model.load_state_dict(weights, strict=False)
        if wrong := [*unexpected, *(name for name in missing if "embed_positions" not in name)]:
            raise KeyError(wrong[0])
    except (KeyError, RuntimeError) as error:  # an option or a parameter that only one of the two has, or its size
        message = f"transformers has no counterpart of this {options['_name']}: {error.args[0]}"
        raise SyntaxDataError(message, hint=HINT) from error
    model.eval()
    ids = {side: _inverse(order) for side, order in orders.items()}
    language = pretrained.source_language_token

    def logits_of(batch: dict[str, Tensor], _: Tensor) -> Tensor:
        # Blenderbot and Marian count positions from the first column, even if it is padding.
        tokens = utils.convert_padding_direction(batch["src_tokens"], source.pad(), left_to_right=True)
        previous = batch["prev_output_tokens"]
        if multilingual:
            tokens, given = to_multilingual.their_batch(pretrained, tokens, previous, source, target)
            mask = tokens.ne(source.pad()).long()
            logits = model(input_ids=tokens, attention_mask=mask, decoder_input_ids=given, use_cache=False).logits
            later: Tensor = logits[:, given.size(1) - previous.size(1) :]
            return later
        if language:
            tokens = pad(tokens, (1, 0), value=source.index(language))
        given = ids["target"][previous].masked_fill(previous.eq(target.eos()), start)
        inputs = {"input_ids": ids["source"][tokens], "attention_mask": tokens.ne(source.pad()).long()}
        logits = model(**inputs, decoder_input_ids=given, use_cache=False).logits
        in_our_order: Tensor = logits[..., ids["target"].clamp(min=0)]  # their vocabulary may be larger
        return in_our_order.masked_fill(ids["target"].lt(0), NEVER)

    check_equal(plain, logits_of, task, type(model).__name__)
    model.generation_config = GenerationConfig(
        num_beams=4,
        early_stopping=True,  # like fairseq's search, which ends with as many translations as the beam is wide
        min_new_tokens=1,  # fairseq's search never returns an empty translation
        max_new_tokens=200,  # fairseq's default max_len_b
        length_penalty=1.0,
        suppress_tokens=[special["pad_token_id"]],  # like fairseq's search
        forced_eos_token_id=special["eos_token_id"],
        encoder_no_repeat_ngram_size=0,  # Blenderbot's default is 3
        **{**special, **begin},
    )
    model.save_pretrained(os.fspath(folder))
    if multilingual:
        return to_multilingual.save_tokenizer(pretrained, options, task, folder)
    if moses:
        return _save_moses(task, folder)
    files = {"source": ("vocab.json", source), "target": ("target_vocab.json", target)}
    separate = orders["source"] != orders["target"] or source.symbols != target.symbols or fill is not _marian
    for side, (file, dictionary) in files.items() if separate else [("source", files["source"])]:
        named = {i: dictionary[number] for i, number in enumerate(orders[side])}
        unnamed = fill is _marian and (MADE_UP.partition("{")[0], UNREACHABLE.partition("{")[0])
        symbols = {symbol: i for i, symbol in named.items() if not (unnamed and symbol.startswith(unnamed))}
        write_json(folder / file, symbols)
    for side in SIDE_NAMES:
        (folder / f"{side}.spm").write_bytes(task.segmenter(side).model)
    _check_pieces(task.segmenter("source"), folder / "source.spm")
    tokenizer = {
        "tokenizer_class": "MarianTokenizer",
        "separate_vocabs": separate,
        "source_lang": task.cfg.source_lang,
        "target_lang": task.cfg.target_lang,
        "model_max_length": int(plain.max_positions()[0]),
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # </s> in a text is text
    }
    write_json(folder / "tokenizer_config.json", tokenizer)


def _save_moses(task: Any, folder: Path) -> None:
    """Write the files of FSMT's tokenizer, whose pieces end with ``</w>`` where ours do not end with ``@@``."""
    dictionaries = {"src": task.source_dictionary, "tgt": task.target_dictionary}
    for side, dictionary in dictionaries.items():
        symbols = {}
        for i, symbol in enumerate(dictionary.symbols):
            if not symbol.startswith((MADE_UP.partition("{")[0], UNREACHABLE.partition("{")[0])):
                ends = i >= dictionary.nspecial and not symbol.endswith(SEPARATOR)
                symbols[symbol.removesuffix(SEPARATOR) + "</w>" * ends] = i
        write_json(folder / f"vocab-{side}.json", symbols)
    segmenters = [task.segmenter(side) for side in SIDE_NAMES]
    (folder / "merges.txt").write_bytes(segmenters[0].model)
    langs = [segmenter.about.get("moses") or segmenter.about["language"] for segmenter in segmenters]
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "FSMTTokenizer", "langs": langs})


def _check_marian(pretrained: PretrainedConfig, options: Mapping[str, Any]) -> None:
    """Raise SyntaxDataError if a model with options of imported models is not one that Marian computes."""
    wrong = [name for name in ("target_language_token", "source_language_last") if getattr(pretrained, name)]
    wrong += [name for name in ("positions_from_zero", "output_bias") if not getattr(pretrained, name)]
    wrong += [name for name in ("encoder_normalize_before", "layernorm_embedding") if options.get(name)]
    if pretrained.decoder_start_token not in ("", "<pad>"):
        wrong.append("decoder_start_token")
    if wrong:
        names = ", ".join(map(option_name, wrong))
        message = f"is none of the imported models that are exported again, and differs from Marian in {names}"
        raise SyntaxDataError(message, hint="translate with the checkpoint")


def _never_produce(plain: Any, symbol: int) -> None:
    """Fix the logit of a symbol that the other model does not have, and that no data have; label smoothing moves it."""
    projection = plain.decoder.output_projection
    projection.weight[symbol] = 0
    projection.bias[symbol] = NEVER


def _marian_orders(source: Any, target: Any) -> dict[str, list[int]]:
    """Our ids in the order of Marian's vocabularies: ``</s>``, ``<unk>``, the others, and padding; without ``<s>``.

    Padding is the last of the smaller vocabulary, since it has one id.
    """
    orders = {}
    last = min(len(source), len(target)) - 2
    for side, dictionary in (("source", source), ("target", target)):
        order = [dictionary.eos(), dictionary.unk(), *range(dictionary.nspecial, len(dictionary))]
        order.insert(last, dictionary.pad())
        orders[side] = order
    return orders


def _inverse(order: list[int]) -> Tensor:
    """The place [V] of each number in an order; −1 for one that is not in it."""
    places = torch.full((max(order) + 1,), -1)
    places[torch.tensor(order)] = torch.arange(len(order))
    return places


def _marian(
    plain: Any, options: Mapping[str, Any], task: Any, sizes: Mapping[str, Any]
) -> tuple[Any, dict[str, Tensor]]:
    """A Marian model with these sizes, and the weights under its names."""
    from transformers import MarianConfig, MarianMTModel

    shared = bool(options.get("share_all_embeddings"))
    orders = _marian_orders(task.source_dictionary, task.target_dictionary)
    of_side = dict(zip(SIDES, orders.values()))
    config = MarianConfig(
        vocab_size=len(orders["source"]),
        decoder_vocab_size=len(orders["target"]),
        share_encoder_decoder_embeddings=shared,
        tie_word_embeddings=bool(options.get("share_decoder_input_output_embed")),
        forced_eos_token_id=sizes["eos_token_id"],
        **sizes,
    )
    weights = _weights(plain)
    for side, order in of_side.items():
        weights[f"model.{side}.embed_tokens.weight"] = weights[f"model.{side}.embed_tokens.weight"][order]
    weights["lm_head.weight"] = weights.pop("model.decoder.output_projection.weight")[orders["target"]]
    bias = weights.pop("model.decoder.output_projection.bias")
    weights["final_logits_bias"] = bias[orders["target"]][None]
    if shared:
        weights["model.shared.weight"] = weights["lm_head.weight"]
    return MarianMTModel(config), weights


def _max_positions(plain: Any, options: Mapping[str, Any]) -> tuple[int, int]:
    """The numbers of positions of source and target, with language tokens."""
    names = ("max_source_positions", "max_target_positions")
    most = zip(plain.max_positions(), (options.get(name) or 0 for name in names))
    source, target = (max(pair) if isinstance(plain, SyntaxTransformerModel) else pair[0] for pair in most)
    return source, target


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
        **{name: float(options.get(name) or 0.0) for name in ("dropout", "attention_dropout", "activation_dropout")},
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
