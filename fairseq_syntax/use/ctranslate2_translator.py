"""Translation with CTranslate2 models written by ``fairseq-syntax export``."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from itertools import groupby, islice, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from fairseq_syntax import register
from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.corpus.parsing.parser import Parser
from fairseq_syntax.data.labels import LabelInventory, to_stored
from fairseq_syntax.errors import SyntaxDataError, imports_of
from fairseq_syntax.inference.alignment import PieceText, align, spell
from fairseq_syntax.inference.text_input import EncodedLine, TextInput
from fairseq_syntax.use.base_translator import BaseTranslator, LoadOptions, Translation, search_options
from fairseq_syntax.use.exported import Exported, factored, target_prefix, with_source_language
from fairseq_syntax.use.exported_task import ExportedTask

if TYPE_CHECKING:
    from fairseq_syntax.inference.search_control import OnStep

# fairseq's search options and their names in CTranslate2.
_SEARCH = {
    "beam": "beam_size",
    "nbest": "num_hypotheses",
    "lenpen": "length_penalty",
    "max_len_a": "max_decoding_length",
    "max_len_b": "max_decoding_length",
    "min_len": "min_decoding_length",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
}
LIMIT_STEP = 32  # limits are rounded up to multiples of this, so that more sentences share a batch

# CTranslate2's models have threads, which a forked process lacks: one that is collected there waits for them forever.
os.register_at_fork(after_in_child=gc.freeze)


class CTranslate2Translator(BaseTranslator):
    """Translates sentences with a model that CTranslate2 runs.

    Args:
        folder, exported: what ``fairseq-syntax export --to ctranslate2`` wrote, and its description
        task: the task of the folder's data
        parser, batch_size, generation: as in :class:`.translator.Translator`, limited to CTranslate2's search options
        device: ``cpu`` or ``cuda`` (default: ``cuda`` if there is a GPU)

    Raises:
        SyntaxDataError: CTranslate2 is not installed or does not support an option, or the device does not exist
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        exported: Exported,
        task: Any,
        *,
        parser: Parser | None = None,
        batch_size: int = 32,
        device: str | None = None,
        **generation: Any,
    ) -> None:
        with imports_of("export"):
            import ctranslate2
        if device == "cuda" and not (ctranslate2.get_cuda_device_count() and _cuda_libraries()):
            raise SyntaxDataError("cuda cannot be used: there is no GPU", option="--device", hint="cpu can")
        if device not in (None, "cpu", "cuda"):
            message = f"{device} cannot be used: CTranslate2 runs on cpu and cuda"
            raise SyntaxDataError(message, option="--device", hint="cpu can")
        self.models: tuple[Any, ...] = ()  # no PyTorch modules
        self.task = task
        self.exported = exported
        self._prefix = target_prefix(exported.language_tokens)  # what the decoder reads after the start
        self.batch_size = batch_size
        self._set_search(generation)
        self._input = TextInput(self.task, parser, exported.source_tag)
        self._model = ctranslate2.Translator(
            os.fspath(folder),
            device=device or ("cuda" if ctranslate2.get_cuda_device_count() and _cuda_libraries() else "cpu"),
            inter_threads=1,
            intra_threads=_threads(),
        )

    @classmethod
    def load(
        cls, folder: str | os.PathLike[str], how: LoadOptions, alignment_heads: Any = None, **options: Any
    ) -> CTranslate2Translator:
        """Load an exported folder.

        ``alignment_heads`` is ignored, since an exported model has a fixed alignment head.

        Raises:
            SyntaxDataError: as :meth:`.translator.Translator.load`; or other rules of the search are asked for, since
                CTranslate2 has its own
        """
        if how.search_rules != "fairseq":
            raise SyntaxDataError("CTranslate2 searches by rules of its own", path=folder, option="--search-rules")
        if how.user_dir:
            register(how.user_dir)
        of_task = how.of_task
        exported = Exported.load(folder, how.data)
        if how.source_name or how.target_name:
            message = "a model that was exported to CTranslate2 translates one pair of languages"
            hint = "import the model with these languages, and export it again"
            raise SyntaxDataError(message, path=folder, option="--source-name, --target-name", hint=hint)
        task = ExportedTask(folder, exported, missing_parse=how.missing_parse, **of_task)
        return cls(folder, exported, task, parser=how.parser, device=how.device, **options)

    def _set_search(self, generation: dict[str, Any]) -> None:
        self._generation = search_options(generation, _SEARCH, "CTranslate2", self.batch_size)
        self.beam, self.nbest = self._generation["beam"], self._generation["nbest"]
        # the length limit is set for each call
        options = {_SEARCH[name]: value for name, value in self._generation.items() if "max_len" not in name}
        # Do not truncate the input, and never produce padding, as in fairseq.
        self._options = {"max_input_length": 0, "suppress_sequences": [["<blank>"]], **options}
        # CTranslate2 counts the prefix in lengths.
        self._options["min_decoding_length"] = options.get("min_decoding_length", 1) + len(self._prefix)

    def max_positions(self) -> tuple[int, int]:
        """See the base class."""
        return self.exported.max_source_positions, self.exported.max_target_positions

    def _about(self) -> list[str]:
        names = " with ".join(filter(None, ["CTranslate2", " and ".join(self.exported.factors)]))
        return [names, self.exported.quantization or "float32"]

    def _limit(self, source_length: int) -> int:
        """The maximum length of a translation: fairseq's limit, rounded up if it depends on the source.

        CTranslate2 has one limit for all sentences of a call. Lengths are in pieces, that of the source with ``</s>``.
        """
        limit = self._generation.get("max_len_b", 200)
        if a := self._generation.get("max_len_a", 0):
            limit = -(-int(a * source_length + limit) // LIMIT_STEP) * LIMIT_STEP
        return min(limit, self.max_positions()[1] - 1)

    def _search(
        self, encoded: list[EncodedLine], alignments: bool, on_step: OnStep | None
    ) -> Iterator[tuple[int, list[Translation]]]:
        tokens = list(map(self._pieces, encoded))
        limits = [self._limit(len(pieces) + 1) for pieces in tokens]
        # groupby joins only neighbours, and sorting by length keeps padding low.
        order = sorted(range(len(tokens)), key=lambda k: (limits[k], len(tokens[k])))
        for limit, group in groupby(order, key=limits.__getitem__):
            while batch := list(islice(group, self.batch_size)):
                unwanted = set(on_step()) if on_step is not None else set()  # CTranslate2 has no step callback
                batch = [k for k in batch if k not in unwanted]
                results = self._model.translate_batch(
                    [tokens[k] for k in batch],
                    target_prefix=self._prefixes(len(batch)),
                    max_decoding_length=limit + len(self._prefix),
                    return_scores=True,
                    return_attention=alignments,
                    return_end_token=alignments,
                    **self._options,
                )
                several = alignments and self.beam > 1 and len(batch) > 1
                first = self._first_steps([tokens[k] for k in batch]) if several else repeat(None)
                for k, result, row in zip(batch, results, first):
                    yield (
                        k,
                        self._of_result(
                            result,
                            limit,
                            self._input.text(encoded[k]) if alignments else None,
                            encoded[k].real_parse,
                            row,
                        ),
                    )

    def _first_steps(self, tokens: list[list[str]]) -> Iterator[list[float]]:
        """The attention of each sentence's first step, [source pieces].

        With a beam and several sentences, CTranslate2 4.8 gives hypotheses the first step of another sentence. No word
        precedes that step, so all hypotheses of a sentence have that of greedy search.
        """
        results = self._model.translate_batch(
            tokens,
            target_prefix=self._prefixes(len(tokens)),
            max_input_length=0,
            beam_size=1,
            max_decoding_length=1 + len(self._prefix),
            return_attention=True,
            return_end_token=True,
        )
        return (result.attention[0][0] for result in results)

    def _columns(self, count: int) -> slice:
        """The columns of pieces in an attention over them and the source's language token."""
        tokens = self.exported.language_tokens
        first = 1 if tokens.get("source_language_token") and not tokens.get("source_language_last") else 0
        return slice(first, first + count)

    def _prefixes(self, count: int) -> list[list[str]] | None:
        """What the decoder reads before each of some translations; None for nothing."""
        return [self._prefix] * count if self._prefix else None

    def _of_result(
        self,
        result: Any,
        limit: int,
        source: PieceText | None,
        parse: ParsedLine | None,
        first_step: list[float] | None = None,
    ) -> list[Translation]:
        """Convert a CTranslate2 result to translations, with alignments if the source's words are given.

        Args:
            first_step: the attention of the first step, if it is not that of the result
        """
        hypotheses = []
        begin = len(self._prefix)
        for rank, (pieces, score) in enumerate(zip(result.hypotheses, result.scores)):
            pieces = pieces[begin:]
            if source is not None and pieces[-1:] == [self.task.target_dictionary.eos_word]:
                pieces = pieces[:-1]
            count, alignment = len(pieces), None
            # CTranslate2 divides by the length with the prefix, which costs nothing.
            length = count + (count < limit)
            score *= ((length + begin) / length) ** self._generation.get("lenpen", 1.0)
            if source is not None:
                # One row per step; the step that reads a piece follows the one that generates it.
                first = begin + self.exported.alignment_shift
                attention = result.attention[rank]
                if first_step is not None:
                    attention[0] = first_step
                weights = np.array(attention, dtype=np.float32)[
                    first : first + count, self._columns(len(source.pieces))
                ]
                # If the search ends at the length limit, no step reads the last piece, so it has no attention.
                weights = np.pad(weights, ((0, count - len(weights)), (0, 0)))
                alignment = align(weights, source, spell(pieces, self._decode))
            text, cut = self._decode(pieces), count >= limit
            hypotheses.append(Translation(text, pieces, float(score), alignment, cut=cut, parse=parse))
        return hypotheses

    def _pieces(self, encoded: EncodedLine) -> list[str]:
        """The pieces of a line, with source factors if the model reads them."""
        pieces = [self.task.source_dictionary[i] for i in encoded.tokens.tolist()[:-1]]
        if not (columns := self.exported.factors):
            return with_source_language(pieces, self.exported.language_tokens)
        assert encoded.parse is not None  # these models need parses
        labels = self.task.labels("source")
        stored = to_stored(encoded.parse, LabelInventory(labels, frozen=True))
        factors = [
            [labels[column][label] for label, n in zip(getattr(stored, column), stored.pieces) for _ in range(n)]
            for column in columns
        ]
        return factored(pieces, factors)


def _cuda_libraries() -> bool:
    """Whether a GPU can be used. CTranslate2 takes the libraries of CUDA that PyTorch has loaded, or the system's."""
    try:
        import torch
    except ImportError:
        return True
    return torch.cuda.is_available()


def _threads() -> int:
    """The number of threads for CTranslate2: PyTorch's if it is loaded, otherwise that of OMP_NUM_THREADS or cores."""
    if (torch := sys.modules.get("torch")) is not None:
        return int(torch.get_num_threads())
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return int(chosen) if chosen.isdecimal() and int(chosen) else len(os.sched_getaffinity(0))
