"""Generation with ``--task syntax_translation``: searches of systems, alignments, and copied source words."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fairseq.data.data_utils import collate_tokens
from fairseq.utils import convert_padding_direction
from torch import Tensor

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.aligned_output import AlignedOutput, spelled
from fairseq_syntax.inference.alignment import PieceText
from fairseq_syntax.model.search import SEARCHES
from fairseq_syntax.model.task import SyntaxTask
from fairseq_syntax.runtime.files import read_lines


def generation_shard(cfg: Any) -> tuple[int, int]:
    """The number of parts into which fairseq-generate divides the data, and the 0-based part of this process.

    They are given by ``--num-shards`` and ``--shard-id``, otherwise by ``torchrun``.
    """
    if isinstance(cfg.num_shards, int) and cfg.num_shards > 1:
        if not 0 <= cfg.shard_id < cfg.num_shards:
            message = f"must be from 0 to {cfg.num_shards - 1} with --num-shards {cfg.num_shards}"
            raise SyntaxDataError(message, option="--shard-id")
        return cfg.num_shards, cfg.shard_id
    return int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


class Generation:
    """The task's work before and after fairseq's search.

    Args:
        text_of_input: the words and pieces of a line of raw input with a number of a batch's ``id``, or None
    """

    def __init__(self, task: SyntaxTask, text_of_input: Callable[[int], PieceText | None]) -> None:
        self._task, self._text_of_input = task, text_of_input
        self._searches = [search(task) for search in SEARCHES]
        self._aligned_output: AlignedOutput | None = None
        self.copies: Mapping[str, str] | None = None  # of --replace-unk

    def generator_options(
        self, models: Sequence[Any], args: Any, cls: type | None, arguments: Mapping[str, Any] | None
    ) -> tuple[Any, type | None, Mapping[str, Any] | None]:
        """The options, the class and further arguments of the generator.

        Args:
            args: the options of generation, which are not modified
            cls, arguments: the caller's class and arguments
        """
        if getattr(args, "print_step", False):
            raise SyntaxDataError(
                "applies to models that translate in several passes, which these are not", option="--print-step"
            )
        kind = str(getattr(args, "print_alignment", None) or "")
        self._aligned_output = None
        if cls is None and (kind or self.copies is not None):
            args = copy.copy(args)
            args.print_alignment = None
            self._aligned_output = AlignedOutput(models, self._task, kind, self._task.cfg.alignment_head, self.copies)
        taken = cls is not None
        for search in self._searches:
            if (generator := search.generator(models, args, taken)) is not None:
                cls, arguments = generator.cls, {**(arguments or {}), **generator.arguments}
        return args, cls, arguments

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
        if self._aligned_output is not None:
            self._aligned_output.add(sample, hypotheses, self._source_text)

    def _source_text(self, number: int) -> PieceText:
        """The words and pieces of the source sentence with this ``id``, from raw input or otherwise from raw data."""
        if (text := self._text_of_input(number)) is not None:
            return text
        (dataset,) = self._task.datasets.values()
        return spelled(dataset.src.get_original_text(number).split(), self._task.source_segmenter)

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
