"""Segmentation of files: the work of ``fairseq-syntax segment``."""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from fairseq_syntax.corpus.conllu import check_text, format_conllu, is_conllu
from fairseq_syntax.corpus.distinct_labels import DistinctLabels
from fairseq_syntax.corpus.header import Spacing, header, parsed_with
from fairseq_syntax.corpus.segmentation import PARSE, TEXT, Segmenter, load_segmenter, spaces_before
from fairseq_syntax.corpus.segmentation_training import train_segmenter
from fairseq_syntax.corpus.text_parts import TextPart, count_lines, parts_of, with_spans
from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import file_sha256, fingerprint
from fairseq_syntax.runtime.files import (
    atomic_open_binary,
    check_rereadable,
    errors_in,
    uncompressed_name,
)
from fairseq_syntax.runtime.jobs import RecordedStep, read_record
from fairseq_syntax.runtime.parts import Made, MadeParts, map_parts
from fairseq_syntax.runtime.workers import Workers

VERSION = 1  # to be increased if the same model and input give other pieces
PART_LINES = 10_000


def output_paths(path: str | os.PathLike[str], lang: str, outdir: Path) -> list[Path]:
    """The output paths of an input file: its pieces and, for a parse, the parse with piece counts."""
    name = os.path.basename(uncompressed_name(path)).removesuffix(".conllu")
    pieces = outdir / (name if name.endswith(f".{lang}") else f"{name}.{lang}")
    return [pieces, pieces.with_name(f"{pieces.name}.conllu")] if is_conllu(path) else [pieces]


def prepare_model(
    prefix: Path,
    model: str | None,
    training: dict | None,
    overwrite: bool = False,
    *,
    of_parse: bool = False,
    remade: Collection[Path] = (),
) -> Segmenter:
    """Load or train the model, and write it under ``prefix`` (``OUTDIR/segmentation.LANG``).

    An intact model that was trained with the same options on the same files is not trained again.

    Args:
        model: a model to load, or None
        training: arguments of ``train_segmenter``; either ``model`` or ``training`` is None
        overwrite: train in any case
        of_parse: whether the words of its data come from a parse, so that raw text is split accordingly
        remade: the files of pieces that will be written with the model

    Raises:
        SyntaxDataError: the model cannot be loaded, trained or written, or other pieces would lose their model
    """
    outputs = tuple(prefix.with_name(f"{prefix.name}.{ending}") for ending in ("json", "model"))
    loaded = load_segmenter(model) if model is not None else None
    record: dict = {}
    if training is not None:
        for path in training["files"]:
            check_rereadable("it is read for its checksum, and for training", path)
            check_text(path)
        options = {name: value for name, value in training.items() if name != "files"}
        files = [[os.path.basename(path), file_sha256(path)] for path in training["files"]]
        record = {"options": options, "files": files}
    made_from = ["segmentation", loaded.fingerprint if loaded else None, record]
    step = RecordedStep(outputs, fingerprint(*made_from, PARSE) if of_parse else fingerprint(*made_from))
    with step.making() as done:
        if done is not None and not overwrite:
            return load_segmenter(outputs[0])
        segmenter = loaded or train_segmenter(**(training or {}))
        if loaded is None:
            segmenter.about["training"] = record
        language = prefix.name.removeprefix("segmentation.")
        if of_parse:
            segmenter.about["cut_from"] = PARSE
        elif segmenter.about.get("language") != language:
            segmenter.about.pop("cut_from", None)  # from a joint model, where it describes the other language
        segmenter.about["language"] = language
        if not overwrite and outputs[0].exists():
            _check_no_pieces_orphaned(prefix, remade, segmenter)
        step.begin()
        segmenter.save(prefix)
        step.finish()
    return segmenter


def _check_no_pieces_orphaned(prefix: Path, remade: Collection[Path], segmenter: Segmenter) -> None:
    """Raise SyntaxDataError if writing a model leaves existing pieces but ``remade`` without the model that made them.

    Otherwise raw text would be segmented differently from these pieces in translation, without an error.
    """
    language, others = prefix.name.removeprefix("segmentation."), {path.name for path in remade}
    for record in sorted(prefix.parent.glob(f".*.{language}.made.json")):
        name = record.name.removeprefix(".").removesuffix(".made.json")
        note = (read_record(prefix.with_name(name)) or {}).get("note") or {}
        if name in others or "segmenter" not in note or not prefix.with_name(name).exists():
            continue
        if any(note.get(key) != value for key, value in segmenter.note.items()):
            about, message = f"{prefix}.json", f"would be replaced, and {name} beside it is cut by it"
            hint = f"cut more files by it with --model {about}, give all files at once, or another --output "
            raise SyntaxDataError(message, path=about, hint=hint + "(--overwrite replaces it)")


def segment_file(
    segmenter: Segmenter,
    path: str | os.PathLike[str],
    outputs: list[Path],
    *,
    overwrite: bool = False,
    workers: int | Workers = 1,
) -> str:
    """Write the pieces of a file and, for a parse, also the parse with ``Pieces=K``; returns a line of report.

    It works in parts, and a killed run resumes with the missing ones.

    Args:
        outputs: as from :func:`output_paths`
        overwrite: write the outputs again even if they were made from this input by this model

    Raises:
        SyntaxDataError: the input cannot be read, is empty or a pipe, is CoNLL-U under another name, or contains a word
            of only white space
    """
    check_rereadable("it is read several times", path)
    check_text(path)
    made_from = ["segment", VERSION, segmenter.fingerprint, file_sha256(path)]
    if segmenter.cut_from != TEXT and not is_conllu(path):  # because a text is segmented differently then
        made_from.append(segmenter.cut_from)
    step = RecordedStep(tuple(outputs), fingerprint(*made_from))

    def merge(made: MadeParts) -> dict[str, Any]:
        notes = made.notes()
        if not notes:
            raise SyntaxDataError("is empty", path=path)
        labels = DistinctLabels()
        for note in notes:
            segmenter.altered.update(note["altered"])
            with errors_in(path):
                labels.merge(note.get("labels", {}))  # parts of earlier versions have none
        if len(outputs) == 1:
            _parse_beside(outputs[0]).unlink(missing_ok=True)  # only now, so that it stays if the input is refused
        with ExitStack() as stack:
            files = [stack.enter_context(atomic_open_binary(out)) for out in outputs]
            if len(files) == 2:
                files[1].write(header(made.lines, parsed_with=parsed_with(path)).encode())
            for note, body in made:
                files[0].write(body[: note["bytes"]])
                if len(files) == 2:
                    files[1].write(body[note["bytes"] :])
        counts = {key: sum(note[key] for note in notes) for key in ("lines", "words", "pieces", "marks", "joined")}
        Spacing(counts.pop("marks"), counts.pop("joined")).warn(path)
        return segmenter.note | counts

    if len(outputs) == 1 and (overwrite or step.record() is None):
        _check_parse_beside(step)
    note, was_done = map_parts(
        step,
        with_spans(parts_of(path, PART_LINES)),
        partial(_segment_part, segmenter),
        merge,
        part_lines=PART_LINES,
        total=count_lines(path),
        workers=workers,
        again=overwrite,
    )
    if was_done:
        return "up to date"
    lines, words, pieces = note["lines"], note["words"], note["pieces"]
    return f"{lines} lines, {words} words, {pieces} pieces ({pieces / max(words, 1):.2f} a word)"


def _parse_beside(pieces: Path) -> Path:
    return pieces.with_name(f"{pieces.name}.conllu")


def _check_parse_beside(step: RecordedStep) -> None:
    """Raise SyntaxDataError if a parse that was not written with earlier pieces has the name of their parse.

    New pieces of a text invalidate the parse of earlier ones, which is removed with them.
    """
    pieces = step.outputs[0]
    parse, record = _parse_beside(pieces), read_record(pieces) or {}
    outputs = record.get("outputs")
    was_killed = outputs is None and record.get("made_from") == step.made_from  # before it removed the parse
    if parse.exists() and not was_killed and parse.name not in (outputs or {}):
        message = f"would be taken for the parse of {pieces.name}, and is not of its pieces"
        raise SyntaxDataError(message, path=parse, hint="give it to --input, move it away, or give another --output")


def _segment_part(segmenter: Segmenter, part: TextPart) -> Made:
    """The pieces of a part, followed by its rows for a parse; the note contains the counts."""
    texts: list[str] = []
    rows: list[str] = []
    words = pieces = 0
    spacing, labels = Spacing(), DistinctLabels()
    for line in part.lines():
        if isinstance(line, str):
            encoded = [segmenter.encode_text(line)]
            words += len(line.split())
        else:
            forms = [token.form for token in line.tokens]
            with errors_in(part.path, line.file_line):
                encoded = segmenter.encode_words(forms, spaces_before(line.tokens))
                labels.add(line)
            for token, token_pieces in zip(line.tokens, encoded):
                token.pieces = len(token_pieces)
            rows.append(format_conllu(line))
            spacing.add(line)
            words += len(forms)
        flat = list(chain.from_iterable(encoded))
        pieces += len(flat)
        texts.append(" ".join(flat) + "\n")
    body = "".join(texts).encode()
    note = {"lines": part.end - part.start, "words": words, "pieces": pieces, "bytes": len(body)}
    note |= asdict(spacing) | {"labels": labels.labels}
    altered = dict(islice(segmenter.altered.items(), 1000))
    return note | {"altered": altered}, body + "".join(rows).encode()
