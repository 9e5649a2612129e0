"""CoNLL-U: the parse of a text, one record per text line.

The ten standard columns, with four conventions that every CoNLL-U reader survives:

- ``# line = N`` above a sentence is its 1-based line in the text. A line may have several sentences; lines without
  sentences are empty. A file without such comments has one sentence per line.
- ``# lines = N`` above the first sentence is the number of lines, so that truncated files are detected.
- ``Pieces=K`` in MISC: the subword pieces of a surface token (on the range row of a multi-word token).
- ``Arcs=HEAD:LABEL:P,…`` in MISC: the arcs of ``p(head, label | word)``, most probable first; HEAD is an id of the
  same sentence, 0 the root. Escapes are those of UD (``\\s \\t \\n \\r \\p \\\\``), and ``\\c`` for a comma in a label.

FORM, UPOS, XPOS, HEAD, DEPREL and ``SpaceAfter=No`` are kept; empty nodes, other columns and other comments are
ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import IO, Any

from fairseq_syntax.corpus.conllu_reader import COLUMNS, ESCAPES, ConlluReader
from fairseq_syntax.corpus.line_numbers import is_line_comment
from fairseq_syntax.corpus.parsed_line import ParsedLine, Token, owner, text_of
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import is_read_once, read_lines, read_raw_lines, uncompressed_name

__all__ = [
    "ParsedLine",
    "Token",
    "begins_sentence",
    "check_no_markup",
    "check_text",
    "flatten",
    "format_conllu",
    "is_conllu",
    "is_markup",
    "owner",
    "parse_conllu_block",
    "read_conllu",
    "surface_rows",
    "text_of",
    "unflatten",
    "with_spaces",
    "write_conllu",
]

_TO_ESCAPE = re.compile(r"[ \t\n\r|\\,]")


def is_conllu(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the name of a CoNLL-U file: ``.conllu``, possibly compressed."""
    return uncompressed_name(path).endswith(".conllu")


def is_markup(path: str | os.PathLike[str]) -> bool:
    """Whether a file has the name of a test set in SGML or XML, possibly compressed."""
    return uncompressed_name(path).endswith((".xml", ".sgm", ".sgml"))


def check_no_markup(path: str | os.PathLike[str]) -> None:
    """Raise SyntaxDataError if a text file has the name of a test set in SGML or XML, whose tags would be words."""
    if is_markup(path):
        hint = "fairseq-syntax corpus writes its sentences as text"
        raise SyntaxDataError("has the name of a test set in SGML or XML, but text is expected", path=path, hint=hint)


def begins_sentence(row: str) -> bool:
    """Whether a row can begin a sentence: ten columns, for word 1, a range from 1 or an empty node before it."""
    return row.startswith(("1\t", "1-", "0.1\t")) and row.count("\t") == COLUMNS - 1


def check_text(path: str | os.PathLike[str], only_text: str = "") -> None:
    """Raise SyntaxDataError if a text file is CoNLL-U, by its beginning, or SGML or XML. Pipes are not read.

    Args:
        only_text: the hint of a command that accepts no parses, which also rejects files named like one
    """
    check_no_markup(path)
    if only_text and is_conllu(path):
        raise SyntaxDataError("has the name of a parse, but text is expected", path=path, hint=only_text)
    if is_conllu(path) or is_read_once(path):
        return
    hint = only_text or "name it *.conllu"
    for row in read_lines(path):
        if is_line_comment(row) or begins_sentence(row):
            raise SyntaxDataError("looks like CoNLL-U, but text is expected", path=path, hint=hint)
        if row.strip() and not row.startswith("#"):
            return


def read_conllu(
    source: str | os.PathLike[str] | IO[Any] | Iterable[str], *, n_lines: int | None = None, empty: bool = True
) -> Iterator[ParsedLine]:
    """Yield the parse of each text line in order, including empty lines.

    Args:
        source: a path, an open file (text or bytes) or an iterable of lines
        n_lines: the number of lines in the text, which is checked. Without it (and without ``# lines``), empty lines at
            the end of the text are unknown and are not yielded.
        empty: whether to yield lines without a sentence

    Raises:
        SyntaxDataError: the file is invalid (with the line)
    """
    lines: Iterable[Any]
    if isinstance(source, (str, os.PathLike)):
        name, lines = os.fspath(source), read_raw_lines(source)
    else:
        name, lines = getattr(source, "name", ""), source
    path = name if name and isinstance(name, str) else "<CoNLL-U>"  # the name of an open descriptor is a number
    yield from ConlluReader(path, n_lines, empty=empty).read(lines)


def parse_conllu_block(text: str) -> ParsedLine:
    """Parse the CoNLL-U rows of one text line with all its sentences, plain or flattened by :func:`flatten`.

    Lines in errors are numbered within the block.
    """
    rows = (unflatten(text) if "\n" not in text else text).split("\n")
    line, reader = ParsedLine(file_line=1), ConlluReader()
    for sentence in reader.sentences("#" if row.startswith("#") else row for row in rows):
        reader.add_sentence(line, sentence)
    return line


def surface_rows(rows: Iterable[str]) -> Iterator[tuple[int, list[str]]]:
    """The indices and columns of the rows of surface tokens, which are ranges and words outside ranges."""
    covered = 0
    for number, row in enumerate(rows):
        columns = row.split("\t")
        first, _, last = columns[0].partition("-")
        if not row.strip():
            covered = 0  # the words of the next sentence are numbered from 1 again
        elif first.isdigit() and (last or int(first) > covered):
            covered = int(last) if last else covered
            yield number, columns


def with_spaces(block: str, line: ParsedLine) -> str:
    """The CoNLL-U rows of a text line with the spacing of ``line``, between and within tokens, otherwise unchanged."""
    rows = block.split("\n")
    for token, (number, columns) in zip(line.tokens, surface_rows(rows), strict=True):
        misc = [value for value in columns[-1].split("|") if value not in ("_", "SpaceAfter=No")]
        misc += [] if token.space_after else ["SpaceAfter=No"]
        rows[number] = "\t".join([columns[0], token.form, *columns[2:-1], "|".join(misc) or "_"])
    return "\n".join(rows)


def format_conllu(line: ParsedLine, *, comments: bool = True) -> str:
    """The CoNLL-U rows of a line, with a blank row after each sentence; empty for an empty line.

    Probabilities are written with four significant digits.

    Raises:
        SyntaxDataError: a word or label is not a valid column: empty, with a tab or line break, a word of only white
            space, or a label surrounded by white space
    """
    words, labels = {*line.words, *(token.form for token in line.tokens)}, {*line.deprels, *line.upos}
    wrong = [value for value in (*words, *labels, *line.xpos) if not value or "\t" in value or "\n" in value]
    wrong += [word for word in words if not word.strip()] + [label for label in labels if label != label.strip()]
    if wrong:
        raise SyntaxDataError(f"{wrong[0]!r} cannot stand in a column of CoNLL-U", line=line.line_number + 1)
    arcs: dict[int, list[str]] = {}
    start_of = [start for start, end in line.sentences for _ in range(start, end)] or [0] * len(line.words)
    for dependent, head, label, p in line.arcs or ():
        head_id = 0 if head == dependent else head - start_of[dependent] + 1
        escaped = _TO_ESCAPE.sub(lambda match: ESCAPES[match[0]], label)
        arcs.setdefault(dependent, []).append(f"{head_id}:{escaped}:{p:.4g}")
    for start, end in line.sentences if line.arcs is not None else ():
        if not any(index in arcs for index in range(start, end)):
            arcs[start] = []  # an empty Arcs: the sentence has a distribution, all of it below the threshold
    rows: list[str] = []
    token_from = {token.first: token for token in line.tokens}
    for start, end in line.sentences:
        if comments:
            rows.append(f"# line = {line.line_number + 1}")
        for index in range(start, end):
            misc = [f"Arcs={','.join(arcs[index])}"] if index in arcs else []
            if (token := token_from.get(index)) is not None:
                surface = [] if token.pieces is None else [f"Pieces={token.pieces}"]
                if not token.space_after:
                    surface.append("SpaceAfter=No")
                if token.last > index or token.form != line.words[index]:
                    span = f"{index - start + 1}-{token.last - start + 1}"
                    rows.append(f"{span}\t{token.form}" + "\t_" * 7 + f"\t{'|'.join(surface) or '_'}")
                else:
                    misc += surface
            head = line.heads[index]
            rows.append(
                f"{index - start + 1}\t{line.words[index]}\t_\t{line.upos[index]}\t{line.xpos[index]}\t_\t"
                f"{0 if head == index else head - start + 1}\t{line.deprels[index]}\t_\t{'|'.join(misc) or '_'}"
            )
        rows.append("")
    return "\n".join(rows) + "\n" if rows else ""


def write_conllu(file: IO[str], line: ParsedLine) -> None:
    """Write a line's sentences with ``# line = N``; nothing for an empty line. Raises like :func:`format_conllu`."""
    file.write(format_conllu(line))


def flatten(line: ParsedLine) -> str:
    r"""Join rows into one line by ``\n``; backslashes in them are doubled, tabs are kept."""
    return format_conllu(line, comments=False).rstrip("\n").replace("\\", "\\\\").replace("\n", "\\n")


def unflatten(text: str) -> str:
    r"""Split a flattened line into the rows that :func:`flatten` joined; other backslashes are kept.

    A tab may be written as ``\t``, for readers that split lines at tabs, such as fairseq-interactive with
    ``--constraints``.
    """
    written = {r"\n": "\n", r"\t": "\t", "\\\\": "\\"}
    return re.sub(r"\\[\\nt]", lambda match: written[match[0]], text)
