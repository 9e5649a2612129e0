"""Translation with CTranslate2 models written by ``fairseq-syntax export``."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import numpy as np

from fairseq_syntax.corpus.conllu import ParsedLine
from fairseq_syntax.corpus.parsing.base import Parser
from fairseq_syntax.data.labels import LabelInventory
from fairseq_syntax.data.stored_sentence import to_stored
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment import PieceText, align, spell
from fairseq_syntax.inference.interactive import InteractiveInput
from fairseq_syntax.inference.search_control import OnStep
from fairseq_syntax.inference.sentences import Sentence
from fairseq_syntax.runtime.devices import check_device
from fairseq_syntax.use.base import BaseTranslator, Translation, search_options
from fairseq_syntax.use.exported import Exported, factored, setup_task

# Options of fairseq's search by their names in CTranslate2's.
_SEARCH = {
    "beam": "beam_size",
    "nbest": "num_hypotheses",
    "lenpen": "length_penalty",
    "max_len_a": "max_decoding_length",
    "max_len_b": "max_decoding_length",
    "min_len": "min_decoding_length",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
}


LIMIT_STEP = 32  # sentences of up to so many different limits go together, with the largest


def length_limit(generation: dict[str, Any], source_length: int, most: int) -> int:
    """The maximum length of a translation: fairseq's limit, rounded up if it depends on the source.

    CTranslate2 has one limit for all sentences of a call.

    Args:
        source_length: pieces of the source with ``</s>``
        most: pieces that the model can make
    """
    limit = generation.get("max_len_b", 200)
    if a := generation.get("max_len_a", 0):
        limit = -(-int(a * source_length + limit) // LIMIT_STEP) * LIMIT_STEP
    return min(limit, most)


def default_device(ctranslate2: Any) -> str:
    """The GPU if both CTranslate2 and PyTorch, whose libraries it uses there, find one."""
    import torch

    return "cuda" if ctranslate2.get_cuda_device_count() and torch.cuda.is_available() else "cpu"


class CTranslate2Translator(BaseTranslator):
    """Translates sentences with a model that CTranslate2 runs.

    Args:
        folder: that ``fairseq-syntax export --to ctranslate2`` wrote
        exported: what is in it
        parser, batch_size, generation: as in :class:`.translator.Translator`; of the search only what CTranslate2 has
        device: ``cpu`` or ``cuda`` (default: ``cuda`` where CTranslate2 and PyTorch find a GPU)
        options: of the task, such as ``syntax_parser``

    Raises:
        SyntaxDataError: CTranslate2 is not installed, its search lacks an option, or there is no such device
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        exported: Exported,
        *,
        parser: Parser | None = None,
        batch_size: int = 32,
        device: str | None = None,
        options: dict[str, Any] | None = None,
        **generation: Any,
    ) -> None:
        try:
            import ctranslate2
        except ImportError as error:
            hint = "pip install 'fairseq-syntax[export]'"
            raise SyntaxDataError("CTranslate2 is not installed", hint=hint) from error
        import torch

        check_device(device)
        self.models: list[Any] = []  # none of PyTorch
        self.task = setup_task(folder, exported, **(options or {}))
        if exported.factors:
            self.task.add_need("source", frozenset({"tree"}))
        self.exported = exported
        self.batch_size = batch_size
        self._set_search(generation)
        self._input = InteractiveInput(self.task, parser, exported.source_tag)
        self._model = ctranslate2.Translator(
            os.fspath(folder),
            device=device or default_device(ctranslate2),
            inter_threads=1,
            intra_threads=torch.get_num_threads(),
        )

    def _set_search(self, generation: dict[str, Any]) -> None:
        self._generation = search_options(generation, _SEARCH, "CTranslate2", self.batch_size)
        self.beam, self.nbest = self._generation["beam"], self._generation["nbest"]
        # the limit of the length is a sentence's own
        options = {_SEARCH[name]: value for name, value in self._generation.items() if "max_len" not in name}
        self._options = {"max_input_length": 0, **options}  # no cutting of the input

    def _about(self) -> list[str]:
        factors = f" with {' and '.join(self.exported.factors)}" if self.exported.factors else ""
        return [f"CTranslate2{factors}", self.exported.quantization or "float32"]

    def with_search(self, **generation: Any) -> CTranslate2Translator:
        """As in the base."""
        other = copy.copy(self)
        other._set_search(generation)
        return other

    def _search(
        self, tokens: list[Any], alignments: bool, on_step: OnStep | None
    ) -> Iterator[tuple[int, list[Translation]]]:
        texts, parses, targets = self._input.texts() if alignments else [], self._parses(), self.max_positions()[1]
        limits = [length_limit(self._generation, len(pieces) + 1, targets - 1) for pieces in tokens]
        # groupby joins neighbours only; equal lengths beside each other need little padding.
        order = sorted(range(len(tokens)), key=lambda k: (limits[k], len(tokens[k])))
        for limit, group in groupby(order, key=limits.__getitem__):
            while batch := list(islice(group, self.batch_size)):
                unwanted = set(on_step()) if on_step is not None else set()  # CTranslate2 shows no steps
                batch = [k for k in batch if k not in unwanted]
                results = self._model.translate_batch(
                    [tokens[k] for k in batch],
                    max_decoding_length=limit,
                    return_scores=True,
                    return_attention=alignments,
                    return_end_token=alignments,
                    **self._options,
                )
                for k, result in zip(batch, results):
                    yield k, self._of_result(result, limit, texts[k] if alignments else None, parses[k])

    def _of_result(
        self, result: Any, limit: int, source: PieceText | None, parse: ParsedLine | None
    ) -> list[Translation]:
        """The translations in a result of CTranslate2; aligned if the source's words are given."""
        hypotheses = []
        for rank, (pieces, score) in enumerate(zip(result.hypotheses, result.scores)):
            ended = source is not None and pieces[-1:] == [self.task.target_dictionary.eos_word]
            translation = self._spelt(pieces[:-1] if ended else pieces, float(score))
            translation.cut, translation.parse = len(translation.pieces) >= limit, parse
            if source is not None:
                # A row for each step; the step that reads a piece comes after the one that writes it.
                first, count = self.exported.alignment_shift, len(translation.pieces)
                weights = np.array(result.attention[rank], dtype=np.float32)[first : first + count]
                # A search that ends by length has no step that reads the last piece: it has no attention.
                weights = np.pad(weights, ((0, count - len(weights)), (0, 0)))
                translation.alignment = align(weights, source, spell(translation.pieces, self._decode))
            hypotheses.append(translation)
        return hypotheses

    def _encode(self, lines: Sequence[Sentence], numbers: Sequence[int]) -> tuple[list[Any], list[int]]:
        """As in the base: lists of pieces with source factors."""
        columns = self.exported.factors
        if not columns:
            encoded, lengths = self._input.encode(lines, numbers)
            return [self._symbols(ids.tolist()[:-1]) for ids in encoded], [length - 1 for length in lengths]
        inventory = LabelInventory(self.task.source_labels, frozen=True)
        sentences = []
        for line, pieces in self._input.parsed_pieces(lines, numbers):
            ids = [self.task.source_dictionary.index(piece) for piece in pieces]
            stored = to_stored(line, inventory)
            factors = []
            for column in columns:
                names, words = self.task.source_labels[column], getattr(stored, column)
                factors.append([names[label] for label, n in zip(words, stored.pieces) for _ in range(n)])
            sentences.append(factored(self._symbols(ids), factors))
        return sentences, list(map(len, sentences))

    def _symbols(self, ids: Sequence[int]) -> list[str]:
        """The symbols of token ids; special symbols become the unknown symbol, as in fairseq."""
        dictionary = self.task.source_dictionary
        return [dictionary[i] if i >= dictionary.nspecial else dictionary.unk_word for i in ids]
