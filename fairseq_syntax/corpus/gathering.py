"""Selection from a corpus: files of splits, random subsets, test sets, and words of Chinese and Japanese.

The words are segmented by an external program that reads lines and writes them with spaces, such as ``kytea -notags``,
``mecab -Owakati`` or ``python -m jieba -q -d ' '``. It is started once per language and split.
"""

from __future__ import annotations

import os
import pickle
import random
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from pathlib import Path

from fairseq_syntax.corpus.parallel_text import Row, Split, parallel, read_tsv, reservoir
from fairseq_syntax.corpus.segments import has_all_sides
from fairseq_syntax.corpus.words import single_spaced, unspaced
from fairseq_syntax.errors import SyntaxDataError, quoted
from fairseq_syntax.runtime.files import plain_or_compressed, uncompressed_name


def split_files(texts: Sequence[str], langs: Sequence[str], references: int = 1) -> list[Path]:
    """The files of a split given as a prefix, two files, a ``.tsv`` or WMT's XML; each may exist only compressed.

    Args:
        references: the number of references; further ones are next to the target's file, as ``NAME.1`` and so on

    Returns:
        the file of each side; a ``.tsv`` file once, and WMT's XML for each side that is read from it
    """
    if len(texts) == 1 and is_table(texts[0]):
        if references > 1:
            hint = "give two files, and further references beside the target"
            raise SyntaxDataError("a .tsv file has one reference", path=texts[0], hint=hint)
        return [plain_or_compressed(Path(texts[0]))]
    if len(texts) == 1 and has_all_sides(file := plain_or_compressed(Path(texts[0]))):
        return [file] * (1 + references)
    if any(map(is_table, texts)):  # of several, one alone would be read
        raise SyntaxDataError(f"a split is one .tsv file, not {' '.join(texts)}", hint="join them: cat")
    if len(texts) == 2:
        names = list(texts)
    elif len(texts) == 1:
        names = [f"{texts[0]}.{lang}" for lang in langs]
    else:
        raise SyntaxDataError(f"a split is a prefix, two files or a .tsv file, not {' '.join(texts)}")
    names += [f"{names[-1]}.{number}" for number in range(1, references)]
    return [plain_or_compressed(Path(name)) for name in names]


def named_splits(texts: Iterable[str], *, of_reader: bool = False) -> dict[str, list[str]]:
    """Test sets on the command line, ``[NAME=]FILE [FILE]`` for :func:`split_files`.

    The name is by default that of the file, or what the names of two files have in common.

    Args:
        of_reader: they are names of a reader's splits, each alone, whatever files there are
    """
    named: list[tuple[str, list[str]]] = []
    sides: list[str] = []
    for text in texts:
        name, equals, file = text.partition("=")
        if not equals or "/" in name:  # an equals sign within the path
            name, file = "", text
        of_pair = not (name or of_reader) and len(sides) == 1 and not is_table(sides[0])
        first = plain_or_compressed(Path(sides[0])) if of_pair else None
        if first is not None and first.is_file() and not has_all_sides(first):
            sides.append(file)
            continue
        sides = [file]
        named.append((name, sides))
    splits: dict[str, list[str]] = {}
    for name, sides in named:
        name = name or _default_name(sides)
        if name in splits:
            raise SyntaxDataError(f"two test sets are called {name}", option="--test", hint="NAME=FILE")
        splits[name] = sides
    return splits


def _default_name(files: Sequence[str]) -> str:
    """The name of a file without what says its format, or the words at the beginning of both: ``test`` of test.en."""
    names = [re.sub(r"\.(tsv|xml|sgml?)$", "", Path(uncompressed_name(file)).name) for file in files]
    if len(names) == 1:
        return names[0]
    words = (re.split(r"([._-]+)", name) for name in names)
    shared = takewhile(lambda both: both[0] == both[1], zip(*words))
    return "".join(first for first, _ in shared).rstrip("._-") or names[0]


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a file contains both sides of a corpus, by its name: ``.tsv``, possibly compressed."""
    return uncompressed_name(path).endswith(".tsv")


def read_split(files: Sequence[Path], langs: Sequence[str]) -> Iterable[Row]:
    """The rows of a split, from its files as returned by :func:`split_files`."""
    return read_tsv(files[0]) if is_table(files[0]) else parallel(*files, langs=langs)


def gathered(
    splits: Iterable[Split],
    langs: Sequence[str],
    *,
    tests: Mapping[str, str] | None = None,
    pairs: int | None = None,
    seed: int = 1,
    first: int | None = None,
    programs: Mapping[str, str] | None = None,
) -> Iterator[Split]:
    """The chosen splits of a corpus, sampled, renamed and with segmented words.

    Args:
        tests: the test sets to keep, as new name → the split's name; None for all
        pairs: the number of random training pairs, in order; the same rows and ``seed`` give the same pairs
        first: the number of pairs to keep from the beginning of all other splits
        programs: word segmenters by language, as for :func:`worded`

    Raises:
        SyntaxDataError: a test set does not exist
    """
    wanted = {"train": ["train"], "valid": ["valid"]}
    for new, name in (tests or {}).items():
        wanted.setdefault(name, []).append(new)
    names: list[str] = []
    for name, rows in splits:
        names.append(name)
        if tests is not None and name not in wanted:
            continue
        if name == "train" and pairs is not None:
            rows = [row for _, row in sorted(reservoir(enumerate(rows), pairs, random.Random(seed)))]
        elif name != "train":
            rows = islice(rows, first)
        rows = worded(rows, langs, programs or {})
        new_names = wanted.get(name, [name])
        rows = list(rows) if len(new_names) > 1 else rows  # a stream can be read only once
        for new in new_names:
            yield Split(new, rows)
    for name in wanted:
        if name not in names:
            raise SyntaxDataError(f"the corpus has no split {name}", hint=f"it has {', '.join(names)}")


def check_programs(programs: Mapping[str, str]) -> None:
    """Raise SyntaxDataError if the program of a language's word segmenter does not exist."""
    for lang, program in programs.items():
        words = shlex.split(program)
        if not words or shutil.which(words[0]) is None:
            message = f"the word segmenter {quoted(program)} of {lang} cannot be run"
            raise SyntaxDataError(message, option="--words", hint="install it, or name another program")


def worded(rows: Iterable[Row], langs: Sequence[str], programs: Mapping[str, str]) -> Iterator[Row]:
    """Segment the words of rows by the program of each language, with its options.

    Raises:
        SyntaxDataError: a program is for another language, cannot be run, fails, drops lines, or changes more than
            spaces; the error's line is the 1-based number of the sentence among those of its language
    """
    for lang, program in programs.items():
        if lang not in langs:
            raise SyntaxDataError(f"{lang} words are to be segmented, and the languages are {' and '.join(langs)}")
        rows = _worded(rows, slice(0, 1) if lang == langs[0] else slice(1, None), program)
    yield from rows


def _worded(rows: Iterable[Row], columns: slice, command: str) -> Iterator[Row]:
    """Segment the words of some columns; all rows are read first, into a temporary file."""
    words = shlex.split(command)
    if not words:
        raise SyntaxDataError("no program for word segmentation", hint="such as mecab -Owakati")
    # Through files: with pipes, a program that writes before it has read all would wait for its reader, and that for
    # the program.
    with (
        tempfile.TemporaryFile() as waiting,
        tempfile.TemporaryFile() as text,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
    ):
        for row in rows:
            pickle.dump(row, waiting)
            text.writelines(sentence.encode() + b"\n" for sentence in row[columns])
        text.seek(0)
        try:
            status = subprocess.run(words, stdin=text, stdout=output, stderr=errors).returncode
        except OSError as error:
            message = f"{words[0]} cannot be run: {error.strerror}"
            raise SyntaxDataError(message, hint="install it, or name another program") from error
        for file in (waiting, output, errors):
            file.seek(0)
        n_good = 0

        def failed() -> SyntaxDataError:
            detail = errors.read().decode("utf-8", "replace").strip()[-300:]
            message = f"{words[0]} ended with status {status}, and {n_good} lines are as they should be"
            return SyntaxDataError(message, line=n_good, hint=detail or command)

        with suppress(EOFError):
            while True:
                cells = list(pickle.load(waiting))
                for place in range(len(cells))[columns]:
                    if not (segmented := output.readline()):
                        raise failed()
                    sentence, spaced = cells[place], single_spaced(segmented.decode("utf-8", "replace"))
                    if unspaced(sentence) != unspaced(spaced):
                        message = f"{words[0]} changed a sentence: {sentence!r} became {spaced!r}"
                        raise SyntaxDataError(message, line=n_good + 1)
                    n_good += 1
                    cells[place] = spaced
                yield tuple(cells)
        if status or output.readline():
            raise failed()
