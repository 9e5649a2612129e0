"""Folders written by ``fairseq-syntax export``.

``export.json`` says what it is; beside it lie the model, the dictionaries, the segmentation of each language where the
data had one and, for source factors, the label inventory.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import write_json
from fairseq_syntax.runtime.manifest import Entry, check_entry, entry_of, sealed, unsealed

FORMAT_VERSION = 1
DESCRIPTION = "export.json"
KINDS = ("fairseq", "ctranslate2")  # that this package loads again
TO = (*KINDS, "transformers")
QUANTIZATIONS = ("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32")
CHECKPOINT = "model.pt"
_UNREAD = ("README.md", DESCRIPTION)  # no part of the model
FACTOR_MARK = "￨"  # between a piece and its factors, as CTranslate2 takes them


@dataclass(frozen=True)
class Exported:
    """The description of an exported folder.

    Attributes:
        kind: of :data:`KINDS`
        source_lang, target_lang: the languages
        factors: columns of the parse (``deprel``, …) beside each source piece, in this order; CTranslate2 only
        source_tag: a piece that begins and ends each source sentence, for multi-task models; none if empty
        quantization: of the weights; CTranslate2 only
        alignment_shift: of the attention that words are aligned by (``AlignmentHead.shift``); CTranslate2 only
        files: size and checksum of each file beside this description, by name (``runtime/manifest.py``)
        max_source_positions, max_target_positions: the longest sentences that the model takes and makes, in pieces
            with ``</s>``
        format: of this description
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
    files: dict[str, Entry] = field(default_factory=dict)
    format: int = FORMAT_VERSION

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``export.json``, with the checksums of the folder's other files."""
        files = {path.name: entry_of(path) for path in sorted(Path(folder).iterdir()) if path.name not in _UNREAD}
        write_json(Path(folder) / DESCRIPTION, sealed({**asdict(self), "files": files}))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Exported:
        """Read ``export.json``, and verify the other files.

        Raises:
            SyntaxDataError: there is none, or it is not one that this version reads; or a file is missing or damaged
        """
        path = Path(folder) / DESCRIPTION
        try:
            exported = cls(**unsealed(json.loads(path.read_text(encoding="utf-8")), path))
        except FileNotFoundError as error:
            hint = "give a checkpoint, or a folder that fairseq-syntax export wrote"
            raise SyntaxDataError(f"not an exported model: it has no {DESCRIPTION}", path=folder, hint=hint) from error
        except SyntaxDataError:  # it is a ValueError, too
            raise
        except (OSError, ValueError, TypeError) as error:
            raise SyntaxDataError(f"not a description of an exported model: {error}", path=path) from error
        if exported.format != FORMAT_VERSION or exported.kind not in KINDS:
            message = (
                f"an export of kind {exported.kind!r}, format {exported.format!r}, which this version does not read"
            )
            raise SyntaxDataError(message, path=path, hint="export the model again with this version")
        for name, entry in exported.files.items():
            check_entry(Path(folder) / name, entry, "copy or export the model again")
        return exported


def setup_task(folder: str | os.PathLike[str], exported: Exported, **options: Any) -> Any:
    """This package's task with the folder's dictionaries and segmentation.

    Args:
        options: more of the task's, such as ``syntax_parser``
    """
    from fairseq import tasks

    from fairseq_syntax import register

    register()
    cfg = Namespace(
        task="syntax_translation",
        data=os.fspath(folder),
        source_lang=exported.source_lang,
        target_lang=exported.target_lang,
        max_source_positions=exported.max_source_positions,
        max_target_positions=exported.max_target_positions,
        **options,
    )
    return tasks.setup_task(cfg)


def factored(pieces: Sequence[str], factors: Sequence[Sequence[str]]) -> list[str]:
    """Pieces with their factors, as CTranslate2 takes them.

    Args:
        pieces: T of them
        factors: for each column T labels
    """
    return [FACTOR_MARK.join(parts) for parts in zip(pieces, *factors)] if factors else list(pieces)
