"""Models of Hugging Face's transformers as models of this package: options, dictionaries and parameters.

The parameters inside layers have the same names in both. What differs is in the description of each family below: the
order of the vocabulary, since fairseq's dictionaries begin with ``<s>``, ``<pad>``, ``</s>`` and ``<unk>``; the names
of the tables of embeddings; and what fairseq's Transformer lacks (:mod:`fairseq_syntax.model.pretrained`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor

from fairseq_syntax.corpus.moses_tokenizer import MosesSegmenter
from fairseq_syntax.corpus.segmentation import RESERVED, SEPARATOR, Segmenter, SentencePieceSegmenter
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.pretrained import PositionsFromZero, is_target_tag, language_options
from fairseq_syntax.runtime.files import errors_in
from fairseq_syntax.use.hugging_face import PretrainedFolder, Weights

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3 of every fairseq dictionary
SIDES = {"source": "encoder", "target": "decoder"}
NEVER = -1e4  # the bias of symbols that cannot be produced; not −inf, of which label smoothing would make NaN
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_accurate",
    "swish": "swish",
    "silu": "swish",
    "tanh": "tanh",
    "linear": "linear",
}
MADE_UP = "madeupword{:06d}"  # the name of a row of the embeddings without a symbol, as in fairseq
UNREACHABLE = "unreachable{:06d}"  # of a symbol that a dictionary cannot contain


@dataclass
class Vocabulary:
    """The symbols of a side in the order of fairseq's dictionary.

    Attributes:
        symbols: by id
        rows: the id in the folder's model of each symbol; −1 for none
    """

    symbols: list[str]
    rows: list[int]

    def kept(self, keep: Collection[str]) -> Vocabulary:
        """The vocabulary of these symbols, and the special ones."""
        chosen = [i for i, symbol in enumerate(self.symbols) if i < len(SPECIAL) or symbol in keep]
        return Vocabulary([self.symbols[i] for i in chosen], [self.rows[i] for i in chosen])


class PretrainedSource(Protocol):
    """Where a model is read from.

    Attributes:
        path: the folder or file
    """

    path: Path

    @property
    def weights(self) -> Weights: ...

    def language(self, side: str) -> str | None:
        """The language of a side (``source``, ``target``), as it names it; None if it does not say it."""

    def reference(self) -> Any:
        """The model as the program computes it that it is from; None if that is not installed."""


@dataclass
class Pretrained:
    """A model in a folder of transformers, or of fairseq's own, without its parameters.

    Attributes:
        family: the name of its kind, for messages
        folder: where it is
        options: the options of ``syntax_transformer``, without sizes of the vocabulary
        vocabularies: of ``source`` and ``target``
        segmenters: likewise
        languages: the language token of each language that the model knows; empty for a model of one pair
        start: the symbol with which the decoder begins
        search: the options of its own search, in fairseq's names
    """

    family: str
    folder: PretrainedSource
    options: dict[str, Any]
    vocabularies: dict[str, Vocabulary]
    segmenters: dict[str, Segmenter]
    languages: dict[str, str] = field(default_factory=dict)
    search: dict[str, Any] = field(default_factory=dict)

    def keep(self, kept: Mapping[str, Collection[str]]) -> None:
        """Keep these symbols of each side only; a shared table keeps those of both sides."""
        if self.options["share_all_embeddings"]:
            both = {*kept["source"], *kept["target"]}
            kept = {"source": both, "target": both}
        always = {*self.languages.values(), *filter(None, (self.options.get(name) for name in _TOKENS))}
        self.vocabularies = {side: self.vocabularies[side].kept({*kept[side], *always}) for side in SIDES}


_TOKENS = ("decoder_start_token", "source_language_token", "target_language_token")


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


def parameters(pretrained: Pretrained, model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a model of this package with the folder's weights.

    Args:
        model: the model, whose own parameters are not read (it may be on PyTorch's device ``meta``)

    Raises:
        SyntaxDataError: parameters are missing, left over, or have other shapes or types
    """
    weights, options = pretrained.folder.weights, pretrained.options
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state: dict[str, Tensor] = {}
    for name, shape in shapes.items():
        side, rest = name.split(".", 1)
        if rest == "version":
            state[name] = torch.tensor([3.0])
        elif rest.startswith(("layers.", "layer_norm", "layernorm_embedding", "embed_positions")):
            state[name] = weights.take(f"model.{name}", shape)
    tables = _tables(pretrained)
    permuted: dict[tuple[int, str], Tensor] = {}  # one copy of a table that has several names
    for name, table in tables.items():
        side = _TABLES[name][0]
        key = id(table), "" if options["share_all_embeddings"] else side
        if key not in permuted:
            permuted[key] = _permuted(table, pretrained.vocabularies[side].rows, 0.0)
        state[f"{name}.weight"] = permuted[key]
    if options.get("output_bias"):
        size = len(tables["decoder.output_projection"])
        bias = weights.take("final_logits_bias", (1, size))[0] if "final_logits_bias" in weights else torch.zeros(size)
        state["decoder.output_projection.bias"] = _permuted(bias, pretrained.vocabularies["target"].rows, NEVER)
    for side in SIDES.values():
        _check_positions(pretrained, side)
    weights.check_all_read()
    if wrong := [name for name in shapes if name not in state or tuple(state[name].shape) != shapes[name]]:
        raise SyntaxDataError(f"has no counterpart of {wrong[0]}", path=pretrained.folder.path)
    return state


# The side of each table of embeddings, and its names in a folder.
_TABLES = {
    "encoder.embed_tokens": ("source", ["model.encoder.embed_tokens.weight", "model.shared.weight"]),
    "decoder.embed_tokens": ("target", ["model.decoder.embed_tokens.weight", "model.shared.weight"]),
    "decoder.output_projection": ("target", ["lm_head.weight", "model.decoder.output_projection.weight"]),
}


def _tables(pretrained: Pretrained) -> dict[str, Tensor]:
    """The tables of embeddings, by their names here; one that is shared is the same object under all of its names.

    Raises:
        SyntaxDataError: a table is missing or of another size, or those that should be one table differ
    """
    weights, options = pretrained.folder.weights, pretrained.options
    groups = [[name] for name in _TABLES]
    if options["share_all_embeddings"]:
        groups = [[*_TABLES]]
    elif options["share_decoder_input_output_embed"]:
        groups = [groups[0], groups[1] + groups[2]]
    tables: dict[str, Tensor] = {}
    for group in groups:
        side = _TABLES[group[0]][0]
        names = list(dict.fromkeys(name for one in group for name in _TABLES[one][1]))
        there = [name for name in names if name in weights] or names[:1]
        first = weights.take(there[0])
        shape = (max(1 + max(pretrained.vocabularies[side].rows), len(first)), options["encoder_embed_dim"])
        for name in there:
            if not torch.equal(first, weights.take(name, shape)):
                message = f"{there[0]} and {name} differ, and config.json says that they are one table"
                raise SyntaxDataError(message, path=weights.path(name), hint="are both files of the same model?")
        tables |= dict.fromkeys(group, first)
    return tables


def _permuted(table: Tensor, rows: Sequence[int], missing: float) -> Tensor:
    """The rows of a table in another order, and ``missing`` for −1."""
    index = torch.tensor(rows)
    chosen = table[index.clamp(min=0)]
    chosen[index < 0] = missing
    return chosen


def _check_positions(pretrained: Pretrained, side: str) -> None:
    """Raise SyntaxDataError if a folder has sinusoidal positions that are not those of its family."""
    weights, name = pretrained.folder.weights, f"model.{side}.embed_positions.weight"
    if name not in weights or pretrained.options[f"{side}_learned_pos"]:
        return
    table = weights.take(name)
    if pretrained.options.get("positions_from_zero"):
        expected = PositionsFromZero(table.size(1), 1, len(table)).table
    else:
        expected = SinusoidalPositionalEmbedding.get_embedding(len(table), table.size(1), SPECIAL.index("<pad>"))
    if not torch.allclose(table, expected, atol=1e-4):
        message = f"{name} is not the table of sinusoids that models of {pretrained.family} have"
        raise SyntaxDataError(message, path=weights.path(name))


# -- vocabularies --------------------------------------------------------------------------------------------------


def in_fairseqs_order(vocabulary: Mapping[str, int], size: int, special: Mapping[str, int | None]) -> Vocabulary:
    """The symbols of a vocabulary in the order of fairseq's dictionary: the special ones, then all others by their ids.

    Args:
        size: the number of rows of the embeddings, which may exceed that of symbols
        special: the ids of fairseq's special symbols; None for one that the model does not have
    """
    of_id = {i: symbol for symbol, i in vocabulary.items()}
    rows = [-1 if (i := special[symbol]) is None else i for symbol in SPECIAL]
    symbols, taken = list(SPECIAL), set(rows)
    for i in range(size):
        if i in taken:
            continue
        symbol = of_id.get(i, MADE_UP.format(i))
        # A line of a dictionary is "SYMBOL COUNT", and fairseq splits texts at any white space.
        if symbol in RESERVED or symbol.split() != [symbol]:
            symbol = UNREACHABLE.format(i)
        symbols.append(symbol)
        rows.append(i)
    return Vocabulary(symbols, rows)


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
    tokenizer = folder.json("tokenizer.json")
    if tokenizer:
        pieces: Any = (tokenizer.get("model") or {}).get("vocab")
        added = tokenizer.get("added_tokens")
        try:
            ids = dict(pieces) if isinstance(pieces, Mapping) else {piece: i for i, (piece, _) in enumerate(pieces)}
            ids |= {token["content"]: token["id"] for token in added or ()}
        except (TypeError, ValueError, KeyError) as error:
            message = f"has no vocabulary of pieces: {error}"
            raise SyntaxDataError(message, path=folder.path / "tokenizer.json") from error
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
