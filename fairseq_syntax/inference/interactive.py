"""The input of PyTorch models: datasets of encoded lines, and what fairseq-interactive needs beside them.

fairseq-interactive builds its batches from tokens alone: :class:`InteractiveBatches` gives them their syntax back.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any
from weakref import ref

import torch

from fairseq_syntax.corpus.conllu import read_conllu
from fairseq_syntax.corpus.store.memory import MemoryStore
from fairseq_syntax.data.dataset import SideSyntax, SyntaxPairDataset
from fairseq_syntax.data.labels import LabelInventory, to_stored
from fairseq_syntax.data.packing import PackedSyntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.inference.alignment import PieceText
from fairseq_syntax.inference.sentences import Sentence, is_row_of_block, with_written_tabs
from fairseq_syntax.inference.text_input import EncodedLine, TextInput
from fairseq_syntax.runtime.files import read_lines, read_stdin

logger = logging.getLogger(__name__)


class InteractiveInput(TextInput):
    """The input of a PyTorch model: :class:`.text_input.TextInput` with datasets of fairseq."""

    def before_constraints(self, lines: list[Sentence], first: int) -> list[Sentence]:
        """Lines of fairseq-interactive, from number ``first``, where with ``--constraints`` a tab begins constraints.

        Raises:
            SyntaxDataError: they are rows of CoNLL-U blocks
        """
        if str(self.task.cfg.syntax_input) != "auto":
            return lines
        self.check_blocks(lines, first)
        return [with_written_tabs(line) if isinstance(line, str) else line for line in lines]

    def check_blocks(self, lines: Sequence[Sentence], first: int) -> None:
        """Raises SyntaxDataError if lines of fairseq-interactive are the rows of CoNLL-U blocks."""
        if str(self.task.cfg.syntax_input) == "text":
            return
        for number, line in enumerate(lines, first):
            if is_row_of_block(line):
                message = "a row of CoNLL-U, but each line is read as a sentence"
                hint = "give conllu for a file of blocks"
                raise SyntaxDataError(message, line=number + 1, option="--syntax-input", hint=hint)

    # -- batches ---------------------------------------------------------------------------------------------------

    def dataset(
        self,
        encoded: Sequence[EncodedLine],
        constraints: Any = None,
        cls: type[SyntaxPairDataset] = SyntaxPairDataset,
    ) -> Any:
        """The dataset of encoded lines, with the syntax that the model needs."""
        tokens = [torch.from_numpy(line.tokens) for line in encoded]
        return cls(
            tokens,
            [len(of_line) for of_line in tokens],
            self.task.source_dictionary,
            tgt_dict=self.task.target_dictionary,
            constraints=constraints,
            shuffle=False,  # drawing an order would make samples depend on NumPy's generator, and advance it
            source_syntax=self._syntax(encoded) if self.needs else None,
        )

    def _syntax(self, encoded: Sequence[EncodedLine]) -> SideSyntax:
        """The syntax of the lines, with the label ids of the task."""
        labels = LabelInventory(self.task.labels("source"), frozen=True)
        stored = [to_stored(line.parse, labels) for line in encoded if line.parse is not None]
        for sentence in stored:
            # An empty line has no arcs, but must not count as a parse without distributions.
            if sentence.arcs is None and not sentence.pieces:
                sentence.arcs = []
        return SideSyntax([MemoryStore(stored)], [1], arcs="arcs" in self.needs)


class InteractiveBatches:
    """Encoded lines for fairseq-interactive, which builds batches from tokens alone and numbers them by the buffer.

    The lines encoded last, and the batches made of them, are kept until they are translated.
    """

    def __init__(self, source: InteractiveInput) -> None:
        self.source = source
        self._lines: list[EncodedLine] = []
        self._read = 0  # the number of lines in earlier datasets
        # Collated batches: tokens, the numbers of the sentences among all input, syntax (if needed).
        self._batches: list[tuple[torch.Tensor, torch.Tensor, PackedSyntax | None]] = []

    def encode(self, lines: Sequence[Sentence]) -> tuple[list[torch.Tensor], list[int]]:
        """The tokens of lines and their lengths, for :meth:`dataset`."""
        self.source.check_blocks(lines, self._read)
        self._lines = self.source.encode(lines, range(self._read, self._read + len(lines)))
        tokens = [torch.from_numpy(line.tokens) for line in self._lines]
        return tokens, [len(of_line) for of_line in tokens]

    def dataset(self, tokens: Sequence[torch.Tensor], constraints: Any = None) -> SyntaxPairDataset:
        """The dataset of the lines encoded last, which have these tokens, for batches that :meth:`attach` completes.

        Raises:
            SyntaxDataError: the model needs a parse, and these are the tokens of other lines
        """
        lines = self._lines
        if len(lines) != len(tokens) or not all(map(_same, lines, tokens)):
            if self.source.needs:
                hint = "encode all sentences of a batch together, right before: task.encode_raw([text, …])"
                raise SyntaxDataError("these are not the sentences encoded last, whose parses are at hand", hint=hint)
            lines = [EncodedLine("", None, of_line.numpy()) for of_line in tokens]
        if constraints is not None:
            self._warn_of_unknown(constraints)
        dataset: _NotingDataset = self.source.dataset(lines, constraints, _NotingDataset)
        dataset.first, self._read = self._read, self._read + len(tokens)
        dataset.batches = self._batches = []  # without what was not translated before
        return dataset

    def _warn_of_unknown(self, constraints: torch.Tensor) -> None:
        """Warn of constraints, [B, N] int64 with their number and their pieces, that the model does not know."""
        is_unknown = (constraints[:, 1:] == self.source.task.target_dictionary.unk()).any(dim=1)
        for place in is_unknown.nonzero()[:, 0].tolist():
            logger.warning(
                "line %d: the model does not know all pieces of the constraints, and brings <unk> into the translation",
                self._read + place + 1,
            )

    def text_of(self, number: int) -> PieceText | None:
        """The words and pieces of the line with this ``id`` of a batch; None if it is not one of those encoded last."""
        first = self._read - len(self._lines)
        return self.source.text(self._lines[number - first]) if first <= number < self._read else None

    def attach(self, sample: dict[str, Any]) -> None:
        """Restore the syntax and the sentence numbers (``id``) of a batch that fairseq rebuilt from its tokens.

        Raises:
            SyntaxDataError: the model needs syntax, and no batch of :meth:`dataset` has these tokens
        """
        net_input = sample["net_input"]
        tokens = net_input["src_tokens"]
        # Batches arrive in the order in which they were collated.
        while self._batches:
            collated, ids, syntax = self._batches.pop(0)
            if collated.shape == tokens.shape and torch.equal(collated, tokens.cpu()):
                sample.setdefault("id", ids.to(tokens.device))
                if syntax is not None:
                    net_input["src_syntax"] = {**syntax, "packed": syntax["packed"].to(tokens.device)}
                return
        if self.source.needs:
            raise SyntaxDataError("a batch came without its syntax, and was not made by this task's own dataset")


def _same(line: EncodedLine, tokens: torch.Tensor) -> bool:
    return torch.equal(torch.from_numpy(line.tokens), tokens)


class _NotingDataset(SyntaxPairDataset):
    """A dataset that records its collated batches for :meth:`InteractiveBatches.attach`."""

    batches: list | None = None
    first: int = 0  # the number of its first sentence among all input

    @property
    def can_reuse_epoch_itr_across_epochs(self) -> bool:
        """False: otherwise fairseq would keep the iterator, and with it the parses of all buffers."""
        return False

    def collater(self, samples: list[dict], pad_to_length: dict | None = None) -> dict:
        batch = super().collater(samples, pad_to_length)
        if batch and self.batches is not None:
            net_input = batch["net_input"]
            self.batches.append((net_input["src_tokens"], batch["id"] + self.first, net_input.get("src_syntax")))
        return batch


def read_input_in(program: Any, reader: InteractiveInput) -> None:
    """Let fairseq-interactive (``program``) read compressed files, UTF-8 in any locale, and CoNLL-U blocks."""
    of_task = ref(reader)  # or the program, where it is imported, would keep the last task and its model

    def buffered_read(input: str, buffer_size: int) -> Iterator[list[Any]]:
        reader = of_task()
        assert reader is not None, "the task is gone"
        if reader.task.cfg.syntax_input == "conllu":
            reader.check_parses(input)
            records: Iterator[Any] = iter(read_conllu(read_stdin() if input == "-" else input))
        else:
            records = map(str.strip, read_stdin() if input == "-" else read_lines(input))
        first = 0
        while buffer := list(islice(records, buffer_size)):
            yield reader.before_constraints(buffer, first)
            first += len(buffer)

    program.buffered_read = buffered_read
