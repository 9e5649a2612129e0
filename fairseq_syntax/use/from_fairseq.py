"""fairseq's own multilingual checkpoints as models of this package: mBART, M2M-100 and models like them.

Their tasks add the language tokens to the data and to the dictionary; here the model adds them
(:mod:`fairseq_syntax.model.language_tokens`). The parameters are the same, and so are the ids of symbols.

==================================  =======================  ====================================
task                                source                   the decoder reads
==================================  =======================  ====================================
translation_from_pretrained_bart,   ``x </s> [en_XX]``       ``[de_DE] y``
multilingual_denoising
translation_multi_simple_epoch      ``__en__ x </s>``        ``</s> __de__ y``
(M2M-100, NLLB; mBART-50)           ``[en_XX] x </s>``       ``</s> [de_DE] y``
==================================  =======================  ====================================

The first task ends translations with ``</s> [de_DE]``, and the second lets the search pay for ``__de__``. Here neither
token costs anything, so scores differ by their log-probabilities.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairseq.data import Dictionary
from fairseq.data.multilingual.multilingual_utils import augment_dictionary, get_lang_tok
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.models.transformer import TransformerModel
from torch import Tensor

from fairseq_syntax.corpus.segmentation import Segmenter, load_segmenter
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.pretrained import language_options
from fairseq_syntax.use.hugging_face import ParameterFile, Weights
from fairseq_syntax.use.pretrained_model import MADE_UP, SIDES, SPECIAL, Pretrained, Vocabulary

BART, SIMPLE = ("translation_from_pretrained_bart", "multilingual_denoising"), "translation_multi_simple_epoch"
_DICTIONARIES = ("dict.{lang}.txt", "dict.txt", "model_dict*.txt", "dictionary.txt")
_SEGMENTATIONS = ("segmentation.{lang}.json", "*.model", "bpecodes", "*.code", "*.codes")
_OPTIONS = (
    "activation_fn", "no_scale_embedding", "share_all_embeddings", "share_decoder_input_output_embed", "dropout",
    "attention_dropout", "activation_dropout", "layernorm_embedding", "max_source_positions", "max_target_positions",
)  # fmt: skip
_OF_SIDE = ("embed_dim", "layers", "ffn_embed_dim", "attention_heads", "normalize_before", "learned_pos")


class FairseqModel:
    """A checkpoint of fairseq with its dictionary and segmentation, which stand beside it.

    Attributes:
        path: the checkpoint
        options: the options with which it was trained
        task: the name of its task
        symbols: those of its dictionary, by id
    """

    symbols: list[str]

    def __init__(self, path: Path) -> None:
        from fairseq import checkpoint_utils

        self.path = path
        try:
            state = checkpoint_utils.load_checkpoint_to_cpu(str(path))
            self.options = {**_values(state["cfg"]["task"]), **_values(state["cfg"]["model"])}
            self._state: dict[str, Tensor] = dict(state["model"])
        except SyntaxDataError:
            raise
        except Exception as error:  # of the unpickler, or of something that is not a checkpoint
            reason = str(error).strip().partition("\n")[0]
            raise SyntaxDataError(f"not a checkpoint of fairseq: {reason}"[:300], path=path) from error
        self.task = str(_values(state["cfg"]["task"]).get("_name") or self.options.get("task"))

    @cached_property
    def weights(self) -> Weights:
        """The parameters, by the names that FSMT has in transformers."""
        left_out = ("version", "_float_tensor")
        named = {f"model.{name}": value for name, value in self._state.items() if not name.endswith(left_out)}
        file = _InMemory(self.path, named)
        return Weights({name: file for name in named if name.startswith(("model.encoder.", "model.decoder."))})

    @property
    def rows(self) -> int:
        """The number of rows of the decoder's table."""
        return len(self._state["decoder.embed_tokens.weight"])

    def find(self, patterns: tuple[str, ...], lang: str, what: str) -> Path:
        """The file beside the checkpoint that fits the first pattern of a list that any fits."""
        for pattern in patterns:
            there = sorted(self.path.parent.glob(pattern.format(lang=lang)))
            if len(there) > 1:
                message, names = f"has several files that may be {what}", ", ".join(p.name for p in there[:4])
                raise SyntaxDataError(message, path=self.path.parent, hint=f"leave one of {names} there")
            if there:
                return there[0]
        hint = f"put {what} there: {', '.join(p.format(lang=lang) for p in patterns)}"
        raise SyntaxDataError(f"has no {what}", path=self.path.parent, hint=hint)

    def language(self, side: str) -> str | None:
        """The language of a side, if it was trained on one pair."""
        lang = self.options.get(f"{side}_lang")
        return lang if isinstance(lang, str) and lang else None

    def reference(self) -> Any:
        """fairseq's own model, behind the interface of one of transformers."""
        args = SimpleNamespace(**self.options)
        dictionaries = {f"{side}_dictionary": _dictionary(self.symbols) for side in SIDES}
        # Architectures of other versions of fairseq, such as that of NLLB, are names for sizes, which are options too.
        model = (
            ARCH_MODEL_REGISTRY.get(args.arch, TransformerModel)
            .build_model(args, SimpleNamespace(**dictionaries))
            .eval()
        )
        model.load_state_dict(self._state, strict=True)
        return _AsInTransformers(model)


class _InMemory(ParameterFile):
    """The parameters of a loaded checkpoint, as a file of parameters."""

    def __init__(self, path: Path, state: Mapping[str, Tensor]) -> None:
        super().__init__(path)
        self.names, self._state = list(state), state

    def read(self, name: str) -> Tensor:
        return self._state[name]


class _AsInTransformers:
    """A model of fairseq with the interface of transformers, as far as a comparison needs it."""

    def __init__(self, model: Any) -> None:
        self._model, self.config = model, SimpleNamespace(pad_token_id=SPECIAL.index("<pad>"))

    def get_encoder(self) -> Any:
        """The encoder, as a function of ids [B, T] and their mask."""

        def encode(input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
            states = self._model.encoder(input_ids, attention_mask.sum(dim=1))["encoder_out"][0]
            return SimpleNamespace(last_hidden_state=states.transpose(0, 1))

        return encode

    def __call__(self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, use_cache: bool) -> Any:
        logits = self._model(input_ids, attention_mask.sum(dim=1), decoder_input_ids)[0]
        return SimpleNamespace(logits=logits)


def _values(options: Any) -> dict[str, Any]:
    """Options as a dictionary."""
    if options is None:
        return {}
    return dict(options) if isinstance(options, Mapping) or hasattr(options, "items") else dict(vars(options))


def _dictionary(symbols: list[str]) -> Dictionary:
    dictionary = Dictionary()
    for symbol in symbols[len(SPECIAL) :]:
        dictionary.add_symbol(symbol)
    return dictionary


def read_fairseq(path: Path, source_lang: str | None = None, target_lang: str | None = None) -> Pretrained:
    """Read a multilingual checkpoint of fairseq, whose dictionary and segmentation are files beside it.

    Args:
        source_lang, target_lang: the languages, as the model names them (default: those of the checkpoint)

    Raises:
        SyntaxDataError: it is of another task or kind of model, a file is missing, or it does not know a language
    """
    model = FairseqModel(path)
    options, task = model.options, model.task
    langs = {side: lang or model.language(side) for side, lang in zip(SIDES, (source_lang, target_lang))}
    if task not in (*BART, SIMPLE):
        hint = "translate, serve and --finetune-from-model take checkpoints of the task translation as they are"
        raise SyntaxDataError(f"is of fairseq's task {task}, not a multilingual one", path=path, hint=hint)
    if task == SIMPLE:
        _check_tokens(path, options)
    style = "mbart" if task in BART else str(options.get("lang_tok_style") or "multilingual")
    lang = str(langs["source"])
    dictionary = _load(model.find(_DICTIONARIES, lang, "the dictionary"))
    names = _languages(path, options)
    specs = options.get("langtoks_specs") or ["main"]
    augment_dictionary(
        dictionary, names, style, [specs] if isinstance(specs, str) else specs, options.get("extra_data")
    )
    if task in BART:
        dictionary.add_symbol("<mask>")
    if len(dictionary) > model.rows:
        message = f"the dictionary and the languages have {len(dictionary)} symbols, and the model {model.rows}"
        raise SyntaxDataError(message, path=path, hint="are the files beside it those of this model?")
    symbols = [*dictionary.symbols, *(MADE_UP.format(i) for i in range(len(dictionary), model.rows))]
    model.symbols = symbols
    languages = {name: get_lang_tok(name, style) for name in names}
    segmentation = load_segmenter(model.find(_SEGMENTATIONS, lang, "the segmentation"))
    segmenters: dict[str, Segmenter] = dict.fromkeys(SIDES, segmentation)
    vocabulary = Vocabulary(symbols, [*range(len(symbols))])
    found = {"arch": "syntax_transformer", **{name: options.get(name, False) for name in _OPTIONS}}
    found |= {f"{s}_{name}": options.get(f"{s}_{name}", False) for s in SIDES.values() for name in _OF_SIDE}
    found |= {"source_language_last": task in BART, "target_language_first": task in BART}
    found |= language_options(languages, langs["source"], langs["target"])
    search = {"beam": 5, "lenpen": 1.0, "max_len_b": 200, "min_len": 1, "search_rules": "fairseq"}
    family = "mBART (fairseq)" if task in BART else "M2M-100 (fairseq)"
    return Pretrained(family, model, found, dict.fromkeys(SIDES, vocabulary), segmenters, languages, search)


def _load(path: Path) -> Dictionary:
    """A dictionary. Raises SyntaxDataError if a line is not a symbol and a count."""
    try:
        return Dictionary.load(str(path))
    except (ValueError, RuntimeError) as error:
        raise SyntaxDataError(f"not a dictionary of fairseq: {error}"[:300], path=path) from error


def _check_tokens(path: Path, options: Mapping[str, Any]) -> None:
    """Raise SyntaxDataError for language tokens elsewhere than in M2M-100."""
    source, target = options.get("encoder_langtok"), bool(options.get("decoder_langtok"))
    if (source, target) != ("src", True) or options.get("lang_tok_replacing_bos_eos"):
        given = f"--encoder-langtok {source}{' --decoder-langtok' if target else ''}"
        message = f"has its language tokens elsewhere than M2M-100 ({given})"
        raise SyntaxDataError(message, path=path, hint="models with --encoder-langtok src --decoder-langtok are read")


def _languages(path: Path, options: Mapping[str, Any]) -> list[str]:
    """The languages in the order of their tokens."""
    langs = options.get("langs")
    if not langs and (file := options.get("lang_dict")):
        beside = path.parent / Path(str(file)).name
        if not beside.is_file():
            raise SyntaxDataError("no such file: the list of languages of the checkpoint", path=beside)
        langs = beside.read_text(encoding="utf-8").split()
    if not langs:
        pairs = options.get("lang_pairs") or []
        pairs = pairs.split(",") if isinstance(pairs, str) else pairs
        langs = sorted({lang for pair in pairs for lang in str(pair).split("-")})
    langs = langs.split(",") if isinstance(langs, str) else list(langs)
    if not langs:
        raise SyntaxDataError("names no languages (--langs)", path=path)
    return [str(lang) for lang in langs]
