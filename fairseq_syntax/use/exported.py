"""Folders written by ``fairseq-syntax export`` and ``fairseq-syntax import``.

``export.json`` describes the folder, which contains the model, the dictionaries, the segmentation of each language (if
the data have one) and, for source factors, the label inventory.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import as_data_error, make_folder, read_json
from fairseq_syntax.runtime.locks import locked
from fairseq_syntax.runtime.manifest import Entry, check_entry, entry_of, read_sealed, write_sealed

FORMAT_VERSION = 1
DESCRIPTION = "export.json"
IMPORTED = "fairseq-syntax"  # the kind of an imported model, which stock fairseq cannot run
KINDS = ("fairseq", "ctranslate2")  # exports that this package can load
TO = (*KINDS, "transformers")
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
CHECKPOINT = "model.pt"
_UNREAD = ("README.md", DESCRIPTION)  # files that are not part of the model
FACTOR_MARK = "￨"  # CTranslate2's separator between a piece and its factors


@dataclass(frozen=True)
class Exported:
    """The description of an exported folder.

    Attributes:
        kind: one of :data:`KINDS`, or :data:`IMPORTED`
        factors: the columns of the parse (``deprel``, …) that each source piece has as factors; CTranslate2 only
        source_tag: for multi-task models, the piece at both ends of each source sentence; empty for none
        quantization: how the weights are quantized; CTranslate2 only
        alignment_shift: ``AlignmentHead.shift`` of the head that aligns words; CTranslate2 only
        files: size and checksum of each other file, by name (``runtime/manifest.py``)
        max_source_positions, max_target_positions: maximum lengths in pieces, with ``</s>``
        languages: of an imported multilingual model, the language token of each language
        source_name, target_name: likewise, the languages between which it translates, as the model names them
        search: of an imported model, the options of its own search, in fairseq's names
        language_tokens: the model's options that name its language tokens; CTranslate2 only, since other models add
            the tokens themselves
    """

    kind: str
    source_lang: str
    target_lang: str
    factors: list[str] = field(default_factory=list)
    source_tag: str = ""
    quantization: str | None = None
    alignment_shift: int = 0
    max_source_positions: int = 1024
    max_target_positions: int = 1024
    languages: dict[str, str] = field(default_factory=dict)
    source_name: str = ""
    target_name: str = ""
    search: dict[str, Any] = field(default_factory=dict)
    language_tokens: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Entry] = field(default_factory=dict)
    format: int = FORMAT_VERSION

    def language_options(self, source: str, target: str) -> dict[str, str]:
        """The model options of a multilingual model for other languages; empty names keep those of the import."""
        if not self.languages:
            raise SyntaxDataError(
                "the model is not multilingual", option="--source-name, --target-name", hint="drop it"
            )
        from fairseq_syntax.model.pretrained import language_options  # imports PyTorch and fairseq

        return language_options(self.languages, source or self.source_name, target or self.target_name)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``export.json``, with the checksums of the folder's other files."""
        files = {path.name: entry_of(path) for path in sorted(Path(folder).iterdir()) if path.name not in _UNREAD}
        write_sealed(Path(folder) / DESCRIPTION, {**asdict(self), "files": files})

    @classmethod
    def load(cls, folder: str | os.PathLike[str], data: str | os.PathLike[str] | None = None) -> Exported:
        """Read ``export.json``, and verify the other files.

        Args:
            data: the user's choice of data, which must be None

        Raises:
            SyntaxDataError: a file is missing or damaged, or data are given
        """
        path = Path(folder) / DESCRIPTION
        if not path.exists():
            hint = "give a checkpoint, or a folder that fairseq-syntax export or import wrote"
            raise SyntaxDataError(f"not an exported model: it has no {DESCRIPTION}", path=folder, hint=hint)
        exported = cls(**read_sealed(path, "export the model again with this version", FORMAT_VERSION))
        for name, entry in exported.files.items():
            check_entry(Path(folder) / name, entry, "copy or export the model again")
        if data is not None:
            hint = "leave out --data, or give the checkpoint that was exported"
            raise SyntaxDataError("an exported model has its own data", path=folder, hint=hint)
        return exported


def ctranslate2_folder(path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> str | None:
    """The path of a model, if it is one folder that CTranslate2 runs; otherwise None, also for an ensemble."""
    paths = [path] if isinstance(path, (str, os.PathLike)) else [*path]
    if len(paths) != 1 or checkpoint_of(paths[0]) != (folder := os.fspath(paths[0])):
        return None
    return folder if read_json(os.path.join(folder, DESCRIPTION)).get("kind") == "ctranslate2" else None


def checkpoint_of(path: str | os.PathLike[str]) -> str:
    """``checkpoint_best.pt`` of a training folder; any other path unchanged."""
    best = os.path.join(path, "checkpoint_best.pt")
    return best if os.path.isfile(best) else os.fspath(path)


def data_for(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], data: str | None) -> str | None:
    """The option ``--data`` for one of several models: None for an exported folder, which has its own data."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    return None if len(given) == 1 and (Path(given[0]) / DESCRIPTION).exists() else data


@contextmanager
def new_folder(output: str | os.PathLike[str]) -> Iterator[Path]:
    """A context with a folder to fill, which becomes ``output`` when it ends without an exception.

    Raises:
        SyntaxDataError: ``output`` exists and is not an empty folder, is the current one, or cannot be written
    """
    # Resolve links, because renaming would replace the link itself.
    output = Path(os.path.realpath(output))
    # Renaming a folder over the current one would leave this process in a deleted folder.
    if output == Path.cwd():
        raise SyntaxDataError("is the folder where this command runs", path=output, hint="name a folder below it")
    make_folder(output.parent)
    folder = output.with_name(f".{output.name}.part")
    with locked(output.with_name(f"{output.name}.export")):
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            message = "exists already and is not empty"
            raise SyntaxDataError(message, path=output, hint="give another folder, or empty it")
        shutil.rmtree(folder, ignore_errors=True)  # left by a run that was killed
        try:
            with as_data_error(output):
                folder.mkdir()
                yield folder
                folder.rename(output)  # atomic, also over an empty folder
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def factored(pieces: Sequence[str], factors: Sequence[Sequence[str]]) -> list[str]:
    """Join T pieces with their factors, T labels for each column, in CTranslate2's format."""
    return [FACTOR_MARK.join(parts) for parts in zip(pieces, *factors)]


def with_source_language(pieces: Sequence[str], tokens: Mapping[str, Any]) -> list[str]:
    """The pieces of a sentence as CTranslate2 reads them, with the language token among the model's options, if any.

    CTranslate2 adds ``</s>`` itself, except for a model whose language token follows it.
    """
    token = tokens.get("source_language_token")
    if not token:
        return list(pieces)
    return [*pieces, "</s>", token] if tokens.get("source_language_last") else [token, *pieces]


def target_prefix(tokens: Mapping[str, Any]) -> list[str]:
    """What CTranslate2's decoder reads after the start: the language token among the model's options, if any."""
    token = tokens.get("target_language_token")
    return [token] if token and not tokens.get("target_language_first") else []
