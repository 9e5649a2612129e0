"""Generation with ``--task syntax_translation``: searches of systems, alignments, and copied source words.

fairseq's own ``--print-alignment`` and ``--replace-unk`` run the model without its syntax, align pieces, and index
source words by piece numbers.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq.data.data_utils import collate_tokens
from fairseq.dataclass.configs import GenerationConfig
from fairseq.utils import convert_padding_direction
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_syntax.corpus.segmentation import Segmenter, WordSegmenter
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment import PieceText, Weights, align, spell
from fairseq_syntax.inference.alignment_head import Aligner, default_head, read_head
from fairseq_syntax.inference.spelling import decoder, pieces_of
from fairseq_syntax.model.options import option_name
from fairseq_syntax.model.task import SEARCHES, SyntaxTask
from fairseq_syntax.runtime.files import read_lines

logger = logging.getLogger(__name__)
_NEED_ANOTHER = {  # options of generation that fairseq passes over without another
    "retain_dropout_modules": "retain_dropout",
    "diverse_beam_strength": "diverse_beam_groups",
    "lm_weight": "lm_path",
}
_UNKNOWN = "\ue000"  # replaces an unknown piece while words are split: part of words, and in no text


def warn_if_pieces_are_scored(cfg: Any, segmenter: Segmenter | None) -> None:
    """Warn that fairseq-generate prints text but, with its default scorer, the BLEU of the target's pieces.

    Also that its other scorer splits the unknown words of a vocabulary of words.
    """
    scorer = OmegaConf.select(cfg._get_root(), "scoring._name") if OmegaConf.is_config(cfg) else None
    of_words = segmenter is not None and segmenter.kind == WordSegmenter.kind
    joined = segmenter is None or of_words or cfg.post_process
    if scorer == "sacrebleu" and of_words:
        logger.warning("BLEU will be with three tokens for each <unk>; fairseq-syntax score makes one of it")
    if scorer == "bleu" and not joined:
        logger.warning("BLEU4 will be that of pieces; --scoring sacrebleu gives that of the text")


class Generation:
    """The task's work before and after fairseq's search.

    Args:
        text_of_input: the words and pieces of a line of raw input with a number of a batch's ``id``, or None
    """

    def __init__(self, task: SyntaxTask, text_of_input: Callable[[int], PieceText | None]) -> None:
        self._task, self._text_of_input = task, text_of_input
        self._searches = [search(task) for search in SEARCHES]
        self._aligner: Aligner | None = None
        self._print_alignment = ""
        self.copies: Mapping[str, str] | None = None
        """The replacements of ``--replace-unk``: other source words are copied unchanged. None without the option."""

    def generator_options(
        self, models: Sequence[Any], args: Any, cls: type | None, arguments: Mapping[str, Any] | None
    ) -> tuple[Any, type | None, Mapping[str, Any] | None]:
        """The options, the class and further arguments of the generator.

        Args:
            args: the options of generation, which are not modified
            cls, arguments: the caller's class and arguments
        """
        for name in ("print_step", "retain_iter_history"):
            if getattr(args, name, False):
                message = "applies to models that translate in several passes, which these are not"
                raise SyntaxDataError(message, option=option_name(name))
        beam, nbest = getattr(args, "beam", 5), getattr(args, "nbest", 1)
        if beam < 1:
            raise SyntaxDataError("must be at least 1", option="--beam")
        if nbest > beam:
            message = f"a beam of {beam} holds {beam} translations of a sentence, and not {nbest}"
            raise SyntaxDataError(message, option="--nbest", hint=f"--beam {nbest}")
        for name, other in _NEED_ANOTHER.items():
            default = GenerationConfig.__dataclass_fields__[other].default
            value, unset = getattr(args, name, None), GenerationConfig.__dataclass_fields__[name].default
            if value not in (None, unset) and getattr(args, other, default) == default:
                raise SyntaxDataError(f"has no effect without {option_name(other)}", option=option_name(name))
        if getattr(args, "constraints", None) and str(self._task.cfg.syntax_input) == "conllu":
            raise SyntaxDataError(
                "follow a sentence after a tab, for which --syntax-input conllu has no place",
                option="--constraints",
                hint="write each parse on one line, its rows joined by \\n",
            )
        self._aligner, self._print_alignment = None, str(getattr(args, "print_alignment", None) or "")
        if cls is None and (self._print_alignment or self.copies is not None):
            args = copy.copy(args)
            args.print_alignment = None
            self._aligner = self._new_aligner(models)
        taken = cls is not None
        for search in self._searches:
            if (generator := search.generator(models, args, taken)) is not None:
                cls, more = generator
                arguments = {**(arguments or {}), **more}
        if str(getattr(self._task.cfg, "search_rules", "")) == "transformers":
            if cls is not None or getattr(args, "sampling", False) or getattr(args, "score_reference", False):
                message = "transformers applies to a beam search, and these models or options have another search"
                raise SyntaxDataError(message, option="--search-rules", hint="drop it")
            from fairseq_syntax.inference.transformers_search import TransformersGenerator

            cls = TransformersGenerator
        return args, cls, arguments

    def _new_aligner(self, models: Sequence[Any]) -> Aligner:
        """An aligner by the heads of ``--alignment-head``, otherwise by fairseq's."""
        heads = self._task.cfg.alignment_head
        paths = heads.split(os.pathsep) if heads else []
        if paths and len(paths) != len(models):
            raise SyntaxDataError(f"{len(paths)} files, and there are {len(models)} models", option="--alignment-head")
        chosen = [read_head(Path(p), m) for p, m in zip(paths, models)] or [default_head(m) for m in models]
        return Aligner(models, chosen)

    def for_search(self, sample: dict[str, Any], prefix: Tensor | None) -> tuple[dict[str, Any], Tensor | None]:
        """The batch and its prefix tokens in the form that fairseq's search supports.

        Left padding of targets (``--left-pad-target``) is moved to the right, since fairseq counts the columns for
        scoring and ``--prefix-size`` from the first one. An empty reference is not forced: only one hypothesis could
        end at once, and the search would never find the others.
        """
        pad, eos = self._task.target_dictionary.pad(), self._task.target_dictionary.eos()
        if self._task.cfg.left_pad_target and sample.get("target") is not None:
            net_input = dict(sample["net_input"])
            sample = {**sample, "net_input": net_input}
            for tensors, name in ((sample, "target"), (net_input, "prev_output_tokens")):
                if name in tensors:
                    tensors[name] = convert_padding_direction(tensors[name], pad, left_to_right=True)
            prefix = None if prefix is None else sample["target"][:, : prefix.size(1)]
        if prefix is not None:
            prefix = prefix.masked_fill(prefix[:, :1] == eos, pad)
        return sample, prefix

    def observe(self, generator: Any, sample: dict[str, Any], hypotheses: list[list[dict[str, Any]]]) -> None:
        """Pass the hypotheses of a batch to the searches, and add the requested output."""
        for search in self._searches:
            search.observe(generator, sample, hypotheses)
        if self._aligner is not None:
            self._align(self._aligner, sample, hypotheses)

    def _align(self, aligner: Aligner, sample: dict[str, Any], hypotheses: list[list[dict[str, Any]]]) -> None:
        """Add an ``alignment`` to each hypothesis, in the form that fairseq prints, and copy words into its ``tokens``.

        ``--print-alignment hard`` links words, namely those of the printed lines, even if fairseq-interactive reads a
        parse with other tokens. ``soft`` gives the weights of all source pieces for each piece of the translation.
        """
        task, kind = self._task, self._print_alignment
        tokens = [[h["tokens"] for h in best] for best in hypotheses]
        unknown = task.target_dictionary.unk()
        copying = self.copies is not None and any(unknown in one for best in tokens for one in best)
        if not kind and not copying:
            return
        attention = aligner.of_hypotheses(sample["net_input"], tokens)
        sources = zip(sample["id"].tolist(), sample["net_input"]["src_tokens"])
        for (number, source), best, weights in zip(sources, hypotheses, attention):
            words = spell(pieces_of(source, task.source_dictionary), decoder(task.segmenter("source")))
            for hypothesis, of_pieces in zip(best, weights):
                if kind == "soft":
                    hypothesis["alignment"] = [[f"{w:.6f}" for w in row] for row in of_pieces.tolist()]
                elif kind:
                    pieces = pieces_of(hypothesis["tokens"], task.target_dictionary)
                    target = spell(pieces, decoder(task.segmenter("target")))
                    hypothesis["alignment"] = align(of_pieces, words, target).links
                if copying and unknown in hypothesis["tokens"]:
                    source_text = self._source_text(number)
                    hypothesis["tokens"] = self._with_copies(hypothesis["tokens"], of_pieces, source_text)

    def _with_copies(self, tokens: Tensor, weights: Weights, source: PieceText) -> Tensor:
        """Tokens [T] in which aligned source words, or their replacements, stand for words with unknown pieces.

        New pieces are added to the target's dictionary. ``weights``: [target pieces, source pieces].
        """
        dictionary, segmenter = self._task.target_dictionary, self._task.segmenter("target")
        pieces = [_UNKNOWN if piece == dictionary.unk_word else piece for piece in pieces_of(tokens, dictionary)]
        target = spelled(pieces, segmenter)
        text, at = "", 0
        for s, t in align(weights, source, target).links:
            start, end = target.words[t]
            if _UNKNOWN in target.text[start:end]:
                word = source.text[slice(*source.words[s])]
                text += target.text[at:start] + (self.copies or {}).get(word, word)
                at = end
        text += target.text[at:]
        if _UNKNOWN in text:  # the source is empty
            return tokens
        copied = segmenter.encode_text(text) if segmenter else text.split()
        return dictionary.encode_line(" ".join(copied), add_if_not_exist=True).to(tokens)

    def _source_text(self, number: int) -> PieceText:
        """The words and pieces of the source sentence with this ``id``, from raw input or otherwise from raw data."""
        if (text := self._text_of_input(number)) is not None:
            return text
        (dataset,) = self._task.datasets.values()
        return spelled(dataset.src.get_original_text(number).split(), self._task.segmenter("source"))

    def print_whole_references(self, sample: dict[str, Any]) -> None:
        """With ``--replace-unk``, make fairseq-generate print out-of-vocabulary words of references too.

        The targets [B, T] of the batch are encoded again from raw data, with new words added to the dictionary.
        """
        if self.copies is None or sample.get("target") is None:
            return
        (dataset,) = self._task.datasets.values()
        dictionary = self._task.target_dictionary
        texts = [dataset.tgt.get_original_text(number) for number in sample["id"].tolist()]
        tokens = [dictionary.encode_line(text, add_if_not_exist=True).long() for text in texts]
        sample["target"] = collate_tokens(tokens, dictionary.pad())


def spelled(pieces: Sequence[str], segmenter: Segmenter | None) -> PieceText:
    """The text and the words of pieces; without a segmentation, each piece is a word."""
    side = spell(pieces, decoder(segmenter) if segmenter else " ".join)
    if segmenter is None or segmenter.kind == WordSegmenter.kind:
        words = [(start + side.text.startswith(" ", start), end) for start, end in side.pieces]
        side = PieceText(side.text, words, words)
    return side


def copies_for_unknown(cfg: Any) -> Mapping[str, str]:
    """The replacements of ``--replace-unk``, which is removed from fairseq's options.

    Its file, if any, has a source word and its replacement on each line.
    """
    path = str(cfg.replace_unk).removesuffix("@@ ")  # fairseq's value of the option without a file
    cfg._get_parent().generation.replace_unk = None  # type: ignore[attr-defined]
    copies: dict[str, str] = {}
    for number, line in enumerate(read_lines(path) if path else (), start=1):
        words = line.split()
        if len(words) != 2:
            raise SyntaxDataError("not a source word and a target word", path=path, line=number, option="--replace-unk")
        copies.setdefault(*words)
    return copies
