"""Dictionaries of pieces as fairseq numbers them, read without fairseq."""

from __future__ import annotations

import os

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines

_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
_OVERWRITE = "#fairseq:overwrite"  # the piece replaces one of the same spelling


class PieceDictionary:
    """The pieces of a ``dict.LANG.txt`` and their ids, by the names of fairseq's ``Dictionary``.

    Attributes:
        symbols: the pieces by id, the four special symbols first
        indices: the ids by piece
        nspecial: the number of special symbols

    Raises:
        SyntaxDataError: the file cannot be read as a dictionary
    """

    nspecial = len(_SPECIAL)
    eos_word = "</s>"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.symbols = [*_SPECIAL]
        self.indices = {piece: number for number, piece in enumerate(_SPECIAL)}
        for number, line in enumerate(read_lines(path), 1):
            piece, space, count = line.rstrip().rpartition(" ")
            overwrite = count == _OVERWRITE
            if overwrite:
                piece, space, count = piece.rpartition(" ")
            if not space or not count.isdecimal():
                message = "cannot be read as a dictionary: a piece and its count are expected"
                raise SyntaxDataError(message, path=path, line=number)
            if piece in self.indices and not overwrite:
                raise SyntaxDataError(f"cannot be read as a dictionary: {piece} a second time", path=path, line=number)
            self.indices[piece] = len(self.symbols)
            self.symbols.append(piece)

    def __len__(self) -> int:
        return len(self.symbols)

    def __getitem__(self, number: int) -> str:
        return self.symbols[number] if number < len(self.symbols) else self.symbols[self.unk()]

    def index(self, piece: str) -> int:
        """The id of a piece, that of ``<unk>`` for an unknown one."""
        return self.indices.get(piece, self.unk())

    def bos(self) -> int:
        return 0

    def pad(self) -> int:
        return 1

    def eos(self) -> int:
        return 2

    def unk(self) -> int:
        return 3
