"""Segments files: the work of ``fairseq-syntax segment``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from tqdm import tqdm

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.text.conllu import ParsedLine, read_conllu, write_conllu
from fairseq_syntax.text.files import read_lines, whole_file
from fairseq_syntax.text.segmentation import Segmenter, load_segmenter, spaces_before
from fairseq_syntax.text.segmentation_training import fingerprints, is_conllu, train_segmenter

_LINES_WIDTH = 32  # room for "# lines = N", which is known at the end only


def output_paths(path: str | os.PathLike[str], lang: str, outdir: Path) -> list[Path]:
    """Where the pieces of an input file go, and, for a parse, the parse with the number of pieces."""
    name = os.path.basename(os.fspath(path)).removesuffix(".gz").removesuffix(".conllu")
    pieces = outdir / (name if name.endswith(f".{lang}") else f"{name}.{lang}")
    return [pieces, pieces.with_name(f"{pieces.name}.conllu")] if is_conllu(path) else [pieces]


def prepare_model(
    prefix: Path, model: str | None, training: dict | None, overwrite: bool = False
) -> tuple[Segmenter, bool]:
    """The model to use, written under ``prefix`` (``OUTDIR/segmentation.LANG``), and whether it is a new one there.

    A model that was trained with the same options on the same files is not trained again.

    Args:
        prefix: path without ``.json``
        model: a model to load, or None
        training: arguments of ``train_segmenter``, where ``model`` is None
        overwrite: train in any case
    """
    json_path = prefix.with_name(f"{prefix.name}.json")
    there = load_segmenter(json_path) if json_path.exists() and not (training and overwrite) else None
    if model is not None:
        segmenter = load_segmenter(model)
        if there is not None and there.fingerprint == segmenter.fingerprint:
            return there, False
    elif training is not None:
        options = {name: value for name, value in training.items() if name != "files"}
        record = {"options": options, "files": fingerprints(training["files"])}
        if there is not None and there.about.get("training") == record:
            return there, False
        segmenter = train_segmenter(**training)
        segmenter.about["training"] = record
    else:
        raise ValueError("neither a model nor how to train one")
    segmenter.about["language"] = prefix.name.removeprefix("segmentation.")
    segmenter.save(prefix)
    return segmenter, True


def segment_file(
    segmenter: Segmenter, path: str | os.PathLike[str], outputs: list[Path], *, unless_newer_than: Path | None = None
) -> str:
    """Writes the pieces of a file, and of a parse also the parse with ``Pieces=K``; returns a line of report.

    Args:
        segmenter: the model
        path: text or CoNLL-U (``.conllu``)
        outputs: as :func:`output_paths` gives them
        unless_newer_than: leave outputs alone that are newer than this file (the model's) and the input

    Raises:
        SyntaxDataError: the input cannot be read, or holds a word of white space only
    """
    if unless_newer_than is not None and all(out.exists() for out in outputs) and os.path.exists(path):
        newest = max(os.stat(path).st_mtime_ns, unless_newer_than.stat().st_mtime_ns)
        if all(out.stat().st_mtime_ns >= newest for out in outputs):
            return "up to date"
    lines = words = pieces = 0
    with ExitStack() as stack:
        files = [stack.enter_context(whole_file(out)) for out in outputs]
        parsed = len(files) == 2
        if parsed:
            files[1].write(" " * _LINES_WIDTH + "\n")
        source: Iterable[str | ParsedLine] = read_conllu(path) if parsed else read_lines(path)
        for line in tqdm(source, desc=os.path.basename(os.fspath(path)), unit=" lines", leave=False, disable=None):
            lines += 1
            if isinstance(line, str):
                encoded = [segmenter.encode_text(line)]
                words += len(line.split())
            else:
                forms = [token.form for token in line.tokens]
                try:
                    encoded = segmenter.encode_words(forms, spaces_before(line.tokens))
                except SyntaxDataError as error:
                    raise SyntaxDataError(error.message, path=path, line=line.file_line, hint=error.hint) from None
                for token, own in zip(line.tokens, encoded):
                    token.pieces = len(own)
                write_conllu(files[1], line)
                words += len(forms)
            flat = [piece for own in encoded for piece in own]
            pieces += len(flat)
            files[0].write(" ".join(flat) + "\n")
        if parsed:
            files[1].seek(0)
            files[1].write(f"# lines = {lines}".ljust(_LINES_WIDTH))
    return f"{lines} lines, {words} words, {pieces} pieces ({pieces / max(words, 1):.2f} a word)"
