"""Two treebanks of Universal Dependencies that are translations of each other, such as ATIS in English and Turkish.

Files: ``en_*-ud-train.conllu``, ``-dev`` and ``-test`` and those of the other language, plain or compressed. Sentences
with the same ``sent_id`` form a pair. The source consists of the treebank's words separated by spaces, the target of
its text. ``trees: true`` writes the source's trees, for ``parse.source.files``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fairseq_syntax.corpus.conllu import surface_rows
from fairseq_syntax.corpus.downloads import find
from fairseq_syntax.corpus.line_numbers import blocks, is_blank
from fairseq_syntax.corpus.parallel_text import Row, Split
from fairseq_syntax.corpus.words import single_spaced
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import atomic_open, make_folder, read_lines

FILES = {"train": "train", "valid": "dev", "test": "test"}
_COMMENT = re.compile(r"#\s*(sent_id|text)\s*=\s*(.*)")


class TreebankSentence(NamedTuple):
    """A sentence: its rows in the treebank, its surface words, and its text."""

    rows: list[str]
    words: list[str]
    text: str


def read(data: Path, source: str, target: str, *, trees: bool = False) -> Iterator[Split]:
    """Yield the splits train, valid and test.

    Args:
        trees: also write the source's trees to ``trees/SPLIT.LANG.conllu`` in the corpus's folder

    Raises:
        SyntaxDataError: a file is missing, a sentence has no id, or two have the same id
    """
    for split, name in FILES.items():
        paths = [find(data, f"{lang}_*-ud-{name}.conllu") for lang in (source, target)]
        ours, theirs = map(read_treebank, paths)
        common = [sentence_id for sentence_id in ours if sentence_id in theirs]
        if not common:
            raise SyntaxDataError(f"has no sentence of {paths[1].name}", path=paths[0], hint="by sent_id")
        if trees:
            make_folder(data / "trees")
            with atomic_open(data / "trees" / f"{split}.{source}.conllu") as file:
                for sentence_id in common:
                    file.write("\n".join(ours[sentence_id].rows) + "\n\n")
        rows: list[Row] = [(" ".join(ours[each].words), theirs[each].text) for each in common]
        yield Split(split, rows)


def read_treebank(path: Path) -> dict[str, TreebankSentence]:
    """Read the sentences of a CoNLL-U file by id, in order; each has one, of its own."""
    sentences: dict[str, TreebankSentence] = {}
    for first, block in blocks(read_lines(path)):
        rows = [row for row in block if not is_blank(row)]
        if not rows:
            continue
        comments = {match[1]: match[2] for row in rows if (match := _COMMENT.match(row))}
        sentence_id = comments.get("sent_id", "").strip()
        if not sentence_id:
            raise SyntaxDataError(f"a sentence has no sent_id: {rows[0]!r}", path=path, line=first)
        if sentence_id in sentences:
            raise SyntaxDataError(f"the sent_id {sentence_id} occurs twice", path=path, line=first)
        words = [columns[1] for _, columns in surface_rows(rows)]
        text = single_spaced(comments.get("text") or " ".join(words))
        sentences[sentence_id] = TreebankSentence(rows, words, text)
    return sentences
