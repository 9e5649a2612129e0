"""``--parser conllu``: an existing parse is validated, compared with its text, and copied."""

from __future__ import annotations

import logging
from itertools import zip_longest
from pathlib import Path

from fairseq_syntax.corpus.conllu import format_conllu, read_conllu
from fairseq_syntax.corpus.header import Spacing, header, parsed_with
from fairseq_syntax.corpus.parsed_line import take_spaces
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.files import (
    atomic_open,
    check_rereadable,
    errors_in,
    file_sha256,
    fingerprint,
    read_lines,
)
from fairseq_syntax.runtime.jobs import Step

logger = logging.getLogger(__name__)

VERSION = 2  # to be raised where the same parse is written otherwise


def pass_on(parse: Path, output: Path, *, text: Path | None = None, overwrite: bool = False) -> int:
    """Validates an existing parse and writes it in this package's form, with ``# line`` comments.

    Columns and comments that the package does not use (lemmas, features, enhanced dependencies) are dropped.

    Args:
        parse: a CoNLL-U file, with ``# line = N`` comments or one sentence per line of the text
        output: the file to write
        text: the text it is the parse of; line by line, the words must be its characters, spaces aside, which are
            taken from it
        overwrite: replace what is there and was not made from the same

    Returns:
        the number of lines

    Raises:
        SyntaxDataError: the parse is not valid, is empty, or is not the parse of the text; one of them is a pipe; or
            something else is there
    """
    check_rereadable("it is read several times", parse, text)
    content = [None if path is None else file_sha256(path) for path in (parse, text)]
    step = Step((output,), fingerprint("conllu", VERSION, *content))
    with step.making(replace=overwrite) as record:
        if record is not None:
            logger.info("%s is up to date", output)
            return int(record["note"]["lines"])
        n_lines = sum(1 for _ in (read_conllu(parse) if text is None else read_lines(text)))
        if n_lines == 0:
            raise SyntaxDataError("is empty", path=parse if text is None else text)
        texts = read_lines(text) if text is not None else ()
        lines = progress(read_conllu(parse, n_lines=n_lines), total=n_lines)
        spacing = Spacing()
        with atomic_open(output) as file:
            file.write(header(n_lines, parsed_with=parsed_with(parse)))
            for line, expected in zip_longest(lines, texts):
                if expected is not None:
                    with errors_in(parse):
                        take_spaces(line, expected)
                if not line.words and line.line_number == 0:
                    file.write("\n")  # ends the header, as no sentence of line 1 does
                file.write(format_conllu(line))
                spacing.add(line)
            step.begin()  # here, so that a parse that is refused leaves the record of what is there
        if text is None:
            spacing.warn(parse)
        step.finish({"lines": n_lines})
    return n_lines
