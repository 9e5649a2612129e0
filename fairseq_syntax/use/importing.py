"""``fairseq-syntax import``: a public model, of transformers or of fairseq, as a checkpoint of this package."""

from __future__ import annotations

import gc
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_syntax.data.directory import dictionary_path
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.model.pretrained import PretrainedConfig
from fairseq_syntax.model.transformer import SyntaxTransformerModel
from fairseq_syntax.runtime.files import read_lines
from fairseq_syntax.use.exported import CHECKPOINT, IMPORTED, Exported, new_folder
from fairseq_syntax.use.from_fairseq import read_fairseq
from fairseq_syntax.use.from_transformers import read_pretrained
from fairseq_syntax.use.loading import setup_task
from fairseq_syntax.use.plain import checkpoint, plain_options, write_checkpoint
from fairseq_syntax.use.pretrained_model import MADE_UP, SPECIAL, UNREACHABLE, Pretrained, parameters

OPTIONS = "options.txt"  # those of fairseq-train that start from the model
_CLOSE = 1e-3  # of log-probabilities in float32, as in exports


@dataclass
class Comparison:
    """The largest differences between the imported model and transformers' own, on random pieces.

    Attributes:
        states: of the encoder's output
        log_probabilities: of symbols, given the same targets
    """

    states: float
    log_probabilities: float


@dataclass
class Imported:
    """What was imported.

    Attributes:
        family: the kind of model
        parameters: their number
        symbols: the sizes of the dictionaries of source and target
        dropped: how many symbols ``keep_pieces`` has left out of each
        comparison: with the original; None if transformers is not installed
    """

    family: str
    parameters: int
    symbols: tuple[int, int]
    dropped: tuple[int, int]
    comparison: Comparison | None


@torch.no_grad()
def import_model(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    source_lang: str | None = None,
    target_lang: str | None = None,
    *,
    source_name: str | None = None,
    target_name: str | None = None,
    keep_pieces: Sequence[str | os.PathLike[str]] = (),
) -> Imported:
    """Atomically write a folder with the checkpoint, its dictionaries and segmentation, and a README.

    Args:
        folder: the model, as transformers saves it; or a multilingual checkpoint of fairseq, with its dictionary and
            segmentation beside it
        output: the folder to write, which must not exist or be empty
        source_lang, target_lang: the languages, which name the files (default: those of the folder's tokenizer)
        source_name, target_name: the same languages as a multilingual model names them, if otherwise (``eng_Latn``)
        keep_pieces: texts, of which only the pieces stay in the vocabulary, with special symbols and language tokens
            (default: all pieces)

    Raises:
        SyntaxDataError: the folder is not a model that can be imported, or ``output`` cannot be written; or the
            imported model does not compute what transformers computes
    """
    reader = read_fairseq if Path(folder).is_file() else read_pretrained
    pretrained = reader(Path(folder), source_name or source_lang, target_name or target_lang)
    langs = _languages(pretrained, source_lang, target_lang)
    before = tuple(len(vocabulary.symbols) for vocabulary in pretrained.vocabularies.values())
    if keep_pieces:
        pretrained.keep(_pieces_in(pretrained, keep_pieces))
    with new_folder(output) as part:
        for side, lang in langs.items():
            dictionary = Dictionary()
            for symbol in pretrained.vocabularies[side].symbols[len(SPECIAL) :]:
                dictionary.add_symbol(symbol)
            dictionary.save(dictionary_path(part, lang))
            segmenter = pretrained.segmenters[side]
            segmenter.about |= {"language": lang, "imported": pretrained.family}
            segmenter.save(part / f"segmentation.{lang}")
        task = setup_task(data=os.fspath(part), source_lang=langs["source"], target_lang=langs["target"])
        args = Namespace(**pretrained.options)
        ARCH_CONFIG_REGISTRY[args.arch](args)
        with torch.device("meta"):
            shapes = SyntaxTransformerModel.build_model(args, task)
        state = parameters(pretrained, shapes)
        saved = checkpoint(state, plain_options("syntax_transformer", vars(args)), task, "syntax_translation")
        write_checkpoint(part / CHECKPOINT, saved)
        size = sum(p.numel() for p in shapes.parameters())
        del saved, shapes
        comparison = _compared(pretrained, args, task, state)
        exported = Exported(
            IMPORTED,
            langs["source"],
            langs["target"],
            max_source_positions=pretrained.options["max_source_positions"],
            max_target_positions=pretrained.options["max_target_positions"],
            languages=pretrained.languages,
            source_name=source_name or langs["source"],
            target_name=target_name or langs["target"],
            search=pretrained.search,
        )
        (part / OPTIONS).write_text(_train_options(pretrained) + "\n", encoding="utf-8")
        exported.save(part)
        (part / "README.md").write_text(_readme(pretrained, exported), encoding="utf-8")
    symbols = len(task.source_dictionary), len(task.target_dictionary)
    dropped = before[0] - symbols[0], before[1] - symbols[1]
    return Imported(pretrained.family, size, symbols, dropped, comparison)


def _pieces_in(pretrained: Pretrained, paths: Sequence[str | os.PathLike[str]]) -> dict[str, set[str]]:
    """The pieces of texts by the segmentation of each side."""
    kept: dict[str, set[str]] = {side: set() for side in pretrained.segmenters}
    for path in paths:
        for line in read_lines(path):
            for side, segmenter in pretrained.segmenters.items():
                kept[side].update(segmenter.encode_text(line))
    return kept


def _languages(pretrained: Pretrained, source: str | None, target: str | None) -> dict[str, str]:
    """The languages in the names of files, by side."""
    given = {"source": source, "target": target}
    langs = {side: lang or pretrained.folder.language(side) for side, lang in given.items()}
    for side, lang in langs.items():
        if lang is None:
            hint = f"--{side}-lang LANG, as in the names of your files"
            raise SyntaxDataError(f"does not say what the {side} language is", path=pretrained.folder.path, hint=hint)
    if langs["source"] == langs["target"]:
        raise SyntaxDataError("source and target are the same language", option="--target-lang")
    return {side: str(lang) for side, lang in langs.items()}


def _train_options(pretrained: Pretrained) -> str:
    """The options of ``fairseq-train`` for a model that starts from this one."""
    words = []
    for name, value in pretrained.options.items():
        if value is not False:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return " ".join(words)


def read_train_options(folder: str | os.PathLike[str]) -> dict[str, str | bool]:
    """The options of ``fairseq-train`` in an imported folder, by name without dashes; True for one without a value."""
    words = (Path(folder) / OPTIONS).read_text(encoding="utf-8").split()
    values: dict[str, str | bool] = {}
    for name, following in zip(words, [*words[1:], "--"]):
        if name.startswith("--"):
            values[name.removeprefix("--")] = True if following.startswith("--") else following
    return values


def _readme(pretrained: Pretrained, exported: Exported) -> str:
    """The README: what the folder is, and the commands that use it."""
    s, t = exported.source_lang, exported.target_lang
    search = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in exported.search.items())
    lines = [
        f"A translation model of {pretrained.family}, {s} to {t}, imported by fairseq-syntax.",
        "The licence is that of the model.",
        "",
        "`fairseq-syntax translate .` reads and writes text, a sentence a line; `fairseq-syntax serve .` serves it.",
        f"Its own search: `{search}`.",
        "",
        "To train further, segment text or its parse with `segmentation.LANG.json` (`fairseq-syntax segment --model`),",
        f"binarize it with `--srcdict dict.{s}.txt --tgtdict dict.{t}.txt`, and give fairseq-train",
        f"`$(cat {OPTIONS}) --finetune-from-model {CHECKPOINT}`, with `--encoder-syntax NAME` for a system.",
    ]
    return "\n".join(lines) + "\n"


# -- comparison ----------------------------------------------------------------------------------------------------


def _compared(pretrained: Pretrained, args: Namespace, task: Any, state: dict[str, Tensor]) -> Comparison | None:
    """Compare the imported model with the original, as its own program computes it.

    Raises:
        SyntaxDataError: they differ
    """
    if (theirs := pretrained.folder.reference()) is None:
        return None
    ours = SyntaxTransformerModel.build_model(args, task).eval()
    ours.load_state_dict(state, strict=True)
    comparison = compare_models(pretrained, ours, theirs)
    del ours, theirs
    gc.collect()
    for what, value in vars(comparison).items():
        if not value < _CLOSE:  # NaN too
            message = f"the imported model differs from the original in its {what.replace('_', '-')} by {value:.2g}"
            raise SyntaxDataError(message, path=pretrained.folder.path)
    return comparison


@torch.no_grad()
def compare_models(
    pretrained: Pretrained, ours: Any, theirs: Any, sentences: Sequence[Sequence[int]] = ()
) -> Comparison:
    """Compare a model with transformers' own, padded on the left here and on the right there.

    Args:
        sentences: the places of symbols in the source's vocabulary, without ``</s>`` (default: some random ones)
    """
    source, target = (pretrained.vocabularies[side] for side in ("source", "target"))
    generator = torch.Generator().manual_seed(1)
    sentences = sentences or [[], *(_draw(source.symbols, n, generator) for n in (1, 12, 7))]
    pad, end = (ours.encoder.dictionary.pad(), ours.encoder.dictionary.eos())
    tokens = pad_sequence(
        [torch.tensor([*one, end]) for one in sentences], batch_first=True, padding_value=pad, padding_side="left"
    )
    encoded = ours.encoder(tokens)
    padding = encoded["encoder_padding_mask"][0]
    states = [rows[~is_pad] for rows, is_pad in zip(encoded["encoder_out"][0].transpose(0, 1), padding)]
    inputs = [torch.tensor(their_source(pretrained, one)) for one in sentences]
    batch = {
        "input_ids": pad_sequence(inputs, batch_first=True, padding_value=theirs.config.pad_token_id),
        "attention_mask": pad_sequence([torch.ones_like(one) for one in inputs], batch_first=True),
    }
    # transformers' Marian and mBART count padding as positions, so it is on the right.
    their_states = theirs.get_encoder()(**batch).last_hidden_state
    first = pretrained.options.get("source_language_token") and not pretrained.options.get("source_language_last")
    in_our_order = [
        torch.cat([rows[1:], rows[:1]]) if first else rows
        for rows in (rows[: len(one)] for rows, one in zip(their_states, inputs))
    ]
    of_states = (torch.cat(states) - torch.cat(in_our_order)).abs().max().item()
    previous = torch.tensor([[end, *_draw(target.symbols, 8, generator)] for _ in sentences])
    begin = their_start(pretrained)
    theirs_given = torch.tensor([begin + [target.rows[i] for i in row[1:]] for row in previous.tolist()])
    logits = theirs(**batch, decoder_input_ids=theirs_given, use_cache=False).logits[:, len(begin) - 1 :]
    lengths = tokens.ne(pad).sum(dim=1)
    mine = ours(tokens, lengths, previous)[0].log_softmax(-1)
    rows = torch.tensor(target.rows)
    there = rows.ge(0)
    of_theirs = logits[..., rows[there]].log_softmax(-1)
    # Both are normalized over the symbols that both have.
    difference = mine[..., there].log_softmax(-1) - of_theirs
    return Comparison(of_states, difference.abs().max().item())


def _draw(symbols: Sequence[str], count: int, generator: torch.Generator) -> list[int]:
    """The places of random symbols that texts can have."""
    unnamed = MADE_UP.partition("{")[0], UNREACHABLE.partition("{")[0]
    places = [i for i, s in enumerate(symbols) if i >= len(SPECIAL) and not s.startswith(unnamed)]
    chosen = torch.randint(len(places), (count,), generator=generator).tolist()
    return [places[i] for i in chosen]


def their_source(pretrained: Pretrained, places: Sequence[int]) -> list[int]:
    """The ids of a sentence in transformers' model, with ``</s>`` and the language token, from places of symbols."""
    vocabulary, options = pretrained.vocabularies["source"], pretrained.options
    ids = [vocabulary.rows[i] for i in (*places, SPECIAL.index("</s>"))]
    if not (token := options.get("source_language_token")):
        return ids
    language = [vocabulary.rows[vocabulary.symbols.index(token)]]
    return ids + language if options.get("source_language_last") else language + ids


def their_start(pretrained: Pretrained) -> list[int]:
    """The ids with which transformers' decoder begins."""
    vocabulary = pretrained.vocabularies["target"]
    names = {name: pretrained.options.get(name, "") for name in ("decoder_start_token", "target_language_token")}
    config = PretrainedConfig(**names, target_language_first=pretrained.options.get("target_language_first", False))
    tokens = [config.start_token or "</s>", *filter(None, [config.inserted_target_token])]
    return [vocabulary.rows[vocabulary.symbols.index(token)] for token in tokens]
