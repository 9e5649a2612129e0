"""Templates: the tags of all pieces of a translation, given before it is generated."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_syntax.data.packing import target_syntax
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import read_lines
from fairseq_syntax.systems.lasyn.model import END, UNKNOWN, LaSynDecoder

OPEN = UNKNOWN  # a position without a tag, where tags are summed out
OPEN_TAG = "_"

Template = list[int]  # the latent values of the pieces, without </s>


def parse_template(text: str, names: Sequence[str], *, path: str | None = None, line: int | None = None) -> Template:
    """Parse a line of tags separated by spaces into latent values; ``_`` leaves a position open.

    Raises:
        SyntaxDataError: the line is empty, or a tag is unknown to the model
    """
    value_of = {name: i for i, name in enumerate(names) if name != END}
    value_of[OPEN_TAG] = OPEN
    tags = text.split()
    if not tags:
        raise SyntaxDataError("an empty template", path=path, line=line, hint="one tag for each piece, or _ for any")
    for tag in tags:
        if tag not in value_of:
            raise SyntaxDataError(
                f"unknown tag {tag!r}", path=path, line=line, hint=f"the model knows {' '.join(value_of)}"
            )
    return [value_of[tag] for tag in tags]


def read_templates(path: str | os.PathLike[str], names: Sequence[str]) -> list[Template]:
    """Read one template per line of a UTF-8 file; :class:`SyntaxDataError` names an invalid line."""
    path = os.fspath(path)
    return [parse_template(text, names, path=path, line=number) for number, text in enumerate(read_lines(path), 1)]


def tag_string(values: Sequence[int], names: Sequence[str]) -> str:
    """A template as :func:`parse_template` reads it."""
    return " ".join(OPEN_TAG if v == OPEN else names[v] for v in values)


class FileTemplates:
    """Templates from a file, by sentence number."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        self.path, self.templates = path, read_templates(path, names)

    def check_count(self, n_sentences: int) -> None:
        """Raise SyntaxDataError unless there is one template per sentence."""
        if len(self.templates) != n_sentences:
            raise SyntaxDataError(
                f"{len(self.templates)} templates for {n_sentences} sentences",
                path=self.path,
                hint="one line of tags per sentence, in the order of the text",
            )

    def __call__(self, sample: Mapping[str, Any]) -> list[Template]:
        """The templates for a batch."""
        numbers = sample["id"].tolist()
        # In fairseq-interactive, the number of sentences is not known in advance.
        if max(numbers) >= len(self.templates):
            self.check_count(max(numbers) + 1)
        return [self.templates[i] for i in numbers]


def reference_templates(decoder: LaSynDecoder, sample: Mapping[str, Any]) -> list[Template]:
    """The tags of the parsed reference translations of a batch, which give an upper bound.

    Words with tags unknown to the model are left open.
    """
    syntax, target = target_syntax(sample), sample["target"]
    if syntax is None:
        raise SyntaxDataError(
            "templates from the references need their parse, and this data has none",
            hint="binarize with a parsed target, or give a file of tags",
        )
    values = decoder.target_values(target, syntax).tolist()
    special = {decoder.padding_idx, decoder.dictionary.eos()}
    return [[v for v, word in zip(row, words) if word not in special] for row, words in zip(values, target.tolist())]
