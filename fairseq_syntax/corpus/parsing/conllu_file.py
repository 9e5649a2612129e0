"""``--parser conllu``: validates an existing parse, compares it with its text, and copies it."""

from __future__ import annotations

import logging
from itertools import zip_longest
from pathlib import Path

from fairseq_syntax.corpus.conllu import format_conllu, read_conllu
from fairseq_syntax.corpus.distinct_labels import DistinctLabels
from fairseq_syntax.corpus.header import Spacing, header, parsed_with
from fairseq_syntax.corpus.parsed_line import take_spaces
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.console import progress
from fairseq_syntax.runtime.digests import file_sha256, fingerprint
from fairseq_syntax.runtime.files import atomic_open, check_rereadable, errors_in, read_lines
from fairseq_syntax.runtime.jobs import RecordedStep

logger = logging.getLogger(__name__)

VERSION = 2  # to be increased if the same parse is written differently


def pass_on(parse: Path, output: Path, *, text: Path | None = None, overwrite: bool = False) -> int:
    """Validate an existing parse, and write it in this package's form, with ``# line`` comments.

    Columns and comments that the package does not use (lemmas, features, enhanced dependencies) are dropped.

    Args:
        parse: a CoNLL-U file, with ``# line = N`` comments or one sentence per line of the text
        text: the text of the parse; in each line, the words must equal it except for spaces, which are taken from it
        overwrite: replace an existing output that was made from something else

    Returns:
        the number of lines
    """
    check_rereadable("it is read several times", parse, text)
    content = [None if path is None else file_sha256(path) for path in (parse, text)]
    step = RecordedStep((output,), fingerprint("conllu", VERSION, *content))
    with step.making(replace=overwrite) as record:
        if record is not None:
            logger.info("%s is up to date", output)
            return int(record["note"]["lines"])
        n_lines = sum(1 for _ in (read_conllu(parse) if text is None else read_lines(text)))
        if n_lines == 0:
            raise SyntaxDataError("is empty", path=parse if text is None else text)
        texts = read_lines(text) if text is not None else ()
        lines = progress(read_conllu(parse, n_lines=n_lines), total=n_lines)
        spacing, labels = Spacing(), DistinctLabels()
        with atomic_open(output) as file:
            file.write(header(n_lines, parsed_with=parsed_with(parse)))
            for line, expected in zip_longest(lines, texts):
                if expected is not None:
                    with errors_in(parse):
                        take_spaces(line, expected)
                if not line.words and line.line_number == 0:
                    file.write("\n")  # ends the header if line 1 has no sentence
                file.write(format_conllu(line))
                spacing.add(line)
                with errors_in(parse, line.file_line):
                    labels.add(line)
            step.begin()  # only here, so that a rejected parse does not invalidate the existing output
        if text is None:
            spacing.warn(parse)
        step.finish({"lines": n_lines})
    return n_lines
