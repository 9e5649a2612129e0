"""Models of Hugging Face's transformers, read from their folders: a function for each family.

What a family has and fairseq's Transformer lacks is in :mod:`fairseq_syntax.model.pretrained`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fairseq_syntax.corpus.moses_tokenizer import MosesSegmenter
from fairseq_syntax.corpus.segmentation import SEPARATOR, Segmenter, SentencePieceSegmenter
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.pretrained import is_target_tag, language_options
from fairseq_syntax.runtime.files import errors_in
from fairseq_syntax.use.hugging_face import PretrainedFolder
from fairseq_syntax.use.pretrained_model import (
    SIDES,
    SPECIAL,
    Pretrained,
    Vocabulary,
    in_fairseqs_order,
)

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "swish": "swish",
    "silu": "swish",
    "tanh": "tanh",
    "linear": "linear",
}


def read_pretrained(path: Path, source_lang: str | None = None, target_lang: str | None = None) -> Pretrained:
    """Read everything but the parameters of a folder.

    Args:
        source_lang, target_lang: the languages to translate from and into, which only a multilingual model needs
            (default: those of its tokenizer)

    Raises:
        SyntaxDataError: it is not a model of transformers, of another family, its files contradict each other, or the
            model does not know a language
    """
    folder = PretrainedFolder(path)
    kind = folder.value("model_type")
    if kind not in FAMILIES:
        message = f"a model of type {kind}, of which there is no counterpart here"
        raise SyntaxDataError(message, path=path / "config.json", hint=f"one of {', '.join(FAMILIES)}")
    pretrained = FAMILIES[kind](folder)
    pretrained.search = _search(folder)
    if pretrained.languages:
        given = {"source": source_lang, "target": target_lang}
        langs = {side: lang or folder.language(side) for side, lang in given.items()}
        pretrained.options |= language_options(pretrained.languages, langs["source"], langs["target"])
    return pretrained


# -- vocabularies --------------------------------------------------------------------------------------------------


def _check_size(folder: PretrainedFolder, vocabulary: Mapping[str, int], size: int, file: str) -> None:
    """Raise SyntaxDataError if a vocabulary has more ids than the model has rows of embeddings."""
    if (largest := max(vocabulary.values(), default=-1)) >= size:
        message = f"has ids up to {largest}, and config.json says that the model has {size} symbols"
        raise SyntaxDataError(message, path=folder.path / file, hint="are both files of the same model?")


def _sentencepiece(folder: PretrainedFolder, file: str, vocabulary: Mapping[str, int]) -> SentencePieceSegmenter:
    """A SentencePiece model, most of whose pieces must be in the vocabulary."""
    model = folder.bytes(file)
    try:
        segmenter = SentencePieceSegmenter(model)
    except RuntimeError as error:
        raise SyntaxDataError(f"not a model of SentencePiece: {error}", path=folder.path / file) from error
    pieces = segmenter.all_pieces()
    if sum(piece in vocabulary for piece in pieces) < len(pieces) / 2:
        message = "most of its pieces are not in the model's vocabulary"
        raise SyntaxDataError(message, path=folder.path / file, hint="are both files of the same model?")
    return segmenter


# -- configurations ------------------------------------------------------------------------------------------------


def _options(folder: PretrainedFolder, *, before: bool, learned: bool, shared: bool, **more: Any) -> dict[str, Any]:
    """The options of ``syntax_transformer`` by ``config.json``.

    Args:
        before: whether layers normalize their input
        learned: whether positions are learned
        shared: whether all embeddings are one table
    """
    activation, width = folder.value("activation_function", "gelu"), folder.value("d_model")
    if activation not in ACTIVATIONS:
        message, hint = f"has the activation function {activation}", f"one of {', '.join(ACTIVATIONS)} is supported"
        raise SyntaxDataError(message, path=folder.path / "config.json", hint=hint)
    tied = bool(folder.value("tie_word_embeddings", folder.value("model_type") != "fsmt"))
    options = {
        "arch": "syntax_transformer",
        "activation_fn": ACTIVATIONS[activation],
        "no_scale_embedding": not folder.value("scale_embedding", False),
        "share_all_embeddings": shared,
        "share_decoder_input_output_embed": shared or tied,
        "dropout": float(folder.value("dropout", 0.1)),
        "attention_dropout": float(folder.value("attention_dropout", 0.0)),
        "activation_dropout": float(folder.value("activation_dropout", 0.0)),
        "max_source_positions": folder.value("max_position_embeddings"),
        "max_target_positions": folder.value("max_position_embeddings"),
    }
    for side in SIDES.values():
        options |= {
            f"{side}_embed_dim": width,
            f"{side}_layers": folder.value(f"{side}_layers"),
            f"{side}_ffn_embed_dim": folder.value(f"{side}_ffn_dim"),
            f"{side}_attention_heads": folder.value(f"{side}_attention_heads"),
            f"{side}_normalize_before": before,
            f"{side}_learned_pos": learned,
        }
    wrong = [name for name, value in options.items() if name.endswith(("_dim", "_layers", "_heads", "_positions"))
             and (not isinstance(value, int) or isinstance(value, bool) or value < 1)]  # fmt: skip
    if wrong or width % options["encoder_attention_heads"] or width % options["decoder_attention_heads"]:
        message = f"has sizes that no Transformer has ({wrong[0] if wrong else 'attention heads'})"
        raise SyntaxDataError(message, path=folder.path / "config.json")
    return {**options, **more}


def _search(folder: PretrainedFolder) -> dict[str, Any]:
    """The options of the folder's own search, in fairseq's names."""
    given = folder.generation
    forced = given.get("forced_bos_token_id") is not None
    most = given.get("max_new_tokens") or (given.get("max_length") or 20) - 1
    return {
        "beam": given.get("num_beams") or 1,
        "lenpen": 1.0 if given.get("length_penalty") is None else given["length_penalty"],
        "max_len_b": max(1, most - 1 - forced),
        "min_len": max(0, (given.get("min_length") or 0) - 1 - forced),
        "search_rules": "fairseq" if given.get("early_stopping") is True else "transformers",
    }


def _ids(folder: PretrainedFolder) -> tuple[int, int, int]:
    """The ids of padding, ``</s>`` and the symbol with which the decoder begins."""
    start = folder.generation.get("decoder_start_token_id")
    ids = {name: folder.value(name) for name in ("pad_token_id", "eos_token_id")}
    if wrong := [name for name, i in ids.items() if not isinstance(i, int) or isinstance(i, bool) or i < 0]:
        raise SyntaxDataError(f"{wrong[0]} is not the number of a symbol", path=folder.path / "config.json")
    return *ids.values(), -1 if start is None else start


def _start(folder: PretrainedFolder, vocabulary: Vocabulary, options: dict[str, Any]) -> None:
    """Set ``decoder_start_token`` if the decoder does not begin with ``</s>``."""
    _, end, start = _ids(folder)
    if start == end:
        return
    if start not in vocabulary.rows:
        message = (
            "has no decoder_start_token_id" if start < 0 else f"the vocabulary has no decoder_start_token_id {start}"
        )
        raise SyntaxDataError(message, path=folder.path / "config.json")
    options["decoder_start_token"] = vocabulary.symbols[vocabulary.rows.index(start)]


def _marian(folder: PretrainedFolder) -> Pretrained:
    """Marian: OPUS-MT, of one pair, or with the target language at the beginning of the source (``>>fra<<``)."""
    separate = bool(folder.tokenizer.get("separate_vocabs", False))
    shared = bool(folder.value("share_encoder_decoder_embeddings", True))
    for name in ("normalize_before", "normalize_embedding"):
        if folder.config.get(name):
            message = f"{name} is true, which transformers does not compute for Marian"
            raise SyntaxDataError(message, path=folder.path / "config.json")
    if separate and shared:
        message = "separate_vocabs is true, and config.json says that source and target share one table"
        raise SyntaxDataError(message, path=folder.path / "tokenizer_config.json")
    files = {"source": "vocab.json", "target": "target_vocab.json" if separate else "vocab.json"}
    sizes = {"source": folder.value("vocab_size")}
    sizes["target"] = folder.value("decoder_vocab_size", sizes["source"])
    ids = {side: folder.vocabulary(file) for side, file in files.items()}
    pad, end, _ = _ids(folder)
    vocabularies = {}
    for side, file in files.items():
        _check_size(folder, ids[side], sizes[side], file)
        if "<unk>" not in ids[side]:
            raise SyntaxDataError("has no <unk>", path=folder.path / file)
        special = {"<s>": None, "<pad>": pad, "</s>": end, "<unk>": ids[side]["<unk>"]}
        vocabularies[side] = in_fairseqs_order(ids[side], sizes[side], special)
    segmenters: dict[str, Segmenter] = {
        side: _sentencepiece(folder, f"{side}.spm", {**ids[side], **ids["source"]}) for side in SIDES
    }
    languages = {symbol[2:-2]: symbol for symbol in ids["source"] if is_target_tag(symbol)}
    options = _options(folder, before=False, learned=False, shared=shared, positions_from_zero=True, output_bias=True)
    _start(folder, vocabularies["target"], options)
    return Pretrained("Marian", folder, options, vocabularies, segmenters, languages)


def _shared_vocabulary(folder: PretrainedFolder, ids: Mapping[str, int], file: str) -> dict[str, Vocabulary]:
    """The one vocabulary of both sides of a model that comes from fairseq."""
    size = folder.value("vocab_size")
    _check_size(folder, ids, size, file)
    pad, end, _ = _ids(folder)
    special = {"<s>": ids.get("<s>"), "<pad>": pad, "</s>": end, "<unk>": ids.get("<unk>")}
    if special["<unk>"] is None:
        raise SyntaxDataError("has no <unk>", path=folder.path / file)
    vocabulary = in_fairseqs_order(ids, size, special)
    return {"source": vocabulary, "target": vocabulary}


def _tied(folder: PretrainedFolder) -> None:
    """Raise SyntaxDataError for a model whose output layer is not its table of embeddings."""
    if folder.value("tie_word_embeddings", True) is not True:
        message = "tie_word_embeddings is false, and models of this family share one table of embeddings"
        raise SyntaxDataError(message, path=folder.path / "config.json")


_MODEL = "sentencepiece.bpe.model"


def _m2m_100(folder: PretrainedFolder) -> Pretrained:
    """M2M-100, with the languages after ``vocab.json``, and NLLB-200, with the vocabulary of ``tokenizer.json``."""
    _tied(folder)
    kind = str(folder.tokenizer.get("tokenizer_class") or folder.config.get("tokenizer_class") or "")
    if kind.startswith("Nllb") or not (folder.path / "vocab.json").exists():
        family, file = "NLLB", "tokenizer.json"
        ids, languages = _of_tokenizers(folder)
        last = bool(folder.tokenizer.get("legacy_behaviour", False))
    else:
        family, file, last = "M2M-100", "vocab.json", False
        ids = folder.vocabulary(file)
        codes = M2M_LANGUAGES.get(folder.tokenizer.get("language_codes") or "m2m100")
        if codes is None:
            message = f"has the unknown languages {folder.tokenizer['language_codes']}"
            raise SyntaxDataError(message, path=folder.path / "tokenizer_config.json")
        languages = {code: f"__{code}__" for code in codes.split()}
        ids |= {token: len(ids) + number for number, token in enumerate(languages.values())}
    vocabularies = _shared_vocabulary(folder, ids, file)
    segmenter = _sentencepiece(folder, _MODEL, ids)
    options = _options(folder, before=True, learned=False, shared=True, source_language_last=last)
    _start(folder, vocabularies["target"], options)
    return Pretrained(family, folder, options, vocabularies, dict.fromkeys(SIDES, segmenter), languages)


def _mbart(folder: PretrainedFolder) -> Pretrained:
    """mBART-25, whose decoder begins with the target language, and mBART-50, which reads it after ``</s>``."""
    _tied(folder)
    ids, languages = _of_tokenizers(folder)
    kind = str(folder.tokenizer.get("tokenizer_class") or folder.config.get("tokenizer_class") or "MBartTokenizer")
    fifty = kind.startswith("MBart50")
    vocabularies = _shared_vocabulary(folder, ids, "tokenizer.json")
    segmenter = _sentencepiece(folder, _MODEL, ids)
    options = _options(
        folder, before=True, learned=True, shared=True, layernorm_embedding=True, output_bias=True,
        source_language_last=not fifty, target_language_first=not fifty,
    )  # fmt: skip
    if fifty:
        _start(folder, vocabularies["target"], options)
    family = "mBART-50" if fifty else "mBART-25"
    return Pretrained(family, folder, options, vocabularies, dict.fromkeys(SIDES, segmenter), languages)


def _of_tokenizers(folder: PretrainedFolder) -> tuple[dict[str, int], dict[str, str]]:
    """The vocabulary of ``tokenizer.json``, and the language tokens by language.

    Without that file, ids are those of SentencePiece shifted by one, and the language tokens follow in the order of
    ``special_tokens_map.json``.
    """
    special = {**folder.json("special_tokens_map.json"), **folder.tokenizer}
    named = special.get("extra_special_tokens") or special.get("additional_special_tokens") or []
    named = [one.get("content") if isinstance(one, Mapping) else one for one in named]
    languages = [one for one in named if isinstance(one, str) and one not in SPECIAL and one != "<mask>"]
    if (folder.path / "tokenizer.json").is_file():
        tokenizer = folder.json("tokenizer.json")
        pieces: Any = (tokenizer.get("model") or {}).get("vocab")
        added = tokenizer.get("added_tokens")
        try:
            ids = dict(pieces) if isinstance(pieces, Mapping) else {piece: i for i, (piece, _) in enumerate(pieces)}
            ids |= {token["content"]: token["id"] for token in added or ()}
        except (TypeError, ValueError, KeyError) as error:
            message = f"has no vocabulary of pieces: {error}"
            raise SyntaxDataError(message, path=folder.path / "tokenizer.json") from error
        ids = folder.checked_ids(ids, "tokenizer.json")
        languages = [token for token in languages if token in ids] or [one for one in ids if LANGUAGE.fullmatch(one)]
    else:
        if not languages:
            message = "names no language tokens, and there is no tokenizer.json"
            raise SyntaxDataError(message, path=folder.path / "special_tokens_map.json", hint="copy tokenizer.json too")
        pieces = SentencePieceSegmenter(folder.bytes(_MODEL)).all_pieces()
        ids = {symbol: i for i, symbol in enumerate([*SPECIAL, *pieces, *languages, "<mask>"])}
    if not languages:
        raise SyntaxDataError("names no language tokens", path=folder.path / "tokenizer_config.json")
    return ids, {token: token for token in languages}


def _fsmt(folder: PretrainedFolder) -> Pretrained:
    """FSMT: fairseq's models of WMT19, of one pair, with two vocabularies of Moses' tokens cut by fastBPE."""
    files = {"source": "vocab-src.json", "target": "vocab-tgt.json"}
    langs = folder.value("langs", folder.tokenizer.get("langs"))
    if not (isinstance(langs, list) and len(langs) == 2 and all(isinstance(lang, str) for lang in langs)):
        raise SyntaxDataError("langs is not a pair of languages", path=folder.path / "config.json")
    pad, end, _ = _ids(folder)
    vocabularies, segmenters = {}, {}
    for (side, file), lang in zip(files.items(), langs):
        # Their pieces end with </w> at the end of a word, and ours with @@ inside of it.
        ids = {_with_separator(symbol): i for symbol, i in folder.vocabulary(file).items()}
        size = folder.value(f"{file[6:9]}_vocab_size")
        _check_size(folder, ids, size, file)
        if "<unk>" not in ids:
            raise SyntaxDataError("has no <unk>", path=folder.path / file)
        special = {"<s>": ids.get("<s>"), "<pad>": pad, "</s>": end, "<unk>": ids["<unk>"]}
        vocabularies[side] = in_fairseqs_order(ids, size, special)
        merges = folder.bytes("merges.txt")
        try:
            with errors_in(folder.path / "merges.txt"):
                segmenters[side] = MosesSegmenter(merges, {"moses": lang})
        except UnicodeDecodeError as error:
            raise SyntaxDataError(f"not text: {error}", path=folder.path / "merges.txt") from error
    options = _options(folder, before=False, learned=False, shared=bool(folder.config.get("tie_word_embeddings")))
    _start(folder, vocabularies["target"], options)
    weights = folder.weights
    embedded, projected = "model.decoder.embed_tokens.weight", "model.decoder.output_projection.weight"
    # fairseq's own models share these, and config.json has no word for it.
    if embedded in weights and (projected not in weights or torch.equal(*map(weights.take, (embedded, projected)))):
        options["share_decoder_input_output_embed"] = True
    return Pretrained("FSMT", folder, options, vocabularies, dict(segmenters))


def _with_separator(symbol: str) -> str:
    """A piece of FSMT (``ha``, ``t</w>``) as fairseq and subword-nmt write it (``ha@@``, ``t``)."""
    if symbol in SPECIAL:
        return symbol
    return symbol.removesuffix("</w>") if symbol.endswith("</w>") else symbol + SEPARATOR


LANGUAGE = re.compile(r"[a-z]{2,3}_([A-Z]{2}|[A-Z][a-z]{3})")  # en_XX, eng_Latn
# The languages of M2M-100 in the order of their tokens, which follow the pieces of vocab.json.
M2M_LANGUAGES = {
    "m2m100": "af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd gl gu ha he hi hr "
    "ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms my ne nl no ns oc or pa pl ps "
    "pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi wo xh yi yo zh zu",
    "wmt21": "en ha is ja cs ru zh de",
}
FAMILIES: dict[str, Callable[[PretrainedFolder], Pretrained]] = {
    "marian": _marian,
    "m2m_100": _m2m_100,
    "mbart": _mbart,
    "fsmt": _fsmt,
}
