"""``--parser conllu``: a parse that exists already is checked, compared with its text, and copied."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path

from fairseq_syntax.console import progress
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.text.conllu import read_conllu, text_of, write_conllu
from fairseq_syntax.text.files import read_lines, whole_file
from fairseq_syntax.text.title import parsed_with, title
from fairseq_syntax.text.uris import Uri


def pass_on(parse: Path | Uri, output: Path | Uri, *, text: Path | Uri | None = None) -> int:
    """Writes ``parse`` to ``output`` in this package's form, with ``# line`` comments.

    Columns and comments that the package does not use (lemmas, features, enhanced dependencies) are dropped.

    Args:
        parse: a CoNLL-U file, with ``# line = N`` comments or one sentence per line of the text
        output: the file to write
        text: the text it is the parse of; line by line, the words must be its characters, spaces aside

    Returns:
        the number of lines

    Raises:
        SyntaxDataError: the parse is not valid, is empty, or is not the parse of the text
    """
    n_lines = None if text is None else sum(1 for _ in read_lines(text))
    if n_lines is None:
        # The title needs the count, and a file that is bad near its end is found out before anything is written.
        n_lines = sum(1 for _ in read_conllu(parse))
    if n_lines == 0:
        raise SyntaxDataError("is empty", path=parse if text is None else text)
    texts = read_lines(text) if text is not None else ()
    lines = progress(read_conllu(parse, n_lines=n_lines), total=n_lines)
    with whole_file(output) as file:
        file.write(title(n_lines, parsed_with=parsed_with(parse)))
        for line, expected in zip_longest(lines, texts):
            if expected is not None and "".join(text_of(line).split()) != "".join(expected.split()):
                raise SyntaxDataError(
                    f"the parse says {text_of(line)[:60]!r}, line {line.line_number + 1} of {text} {expected[:60]!r}",
                    path=parse,
                    line=line.file_line,
                    hint="the parse is of another text, or lines were lost: parse the text again",
                )
            if not line.words and line.line_number == 0:
                file.write("\n")  # keeps the title apart from nothing at all
            write_conllu(file, line)
    return n_lines
