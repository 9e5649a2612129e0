"""File manifests: the size and checksum of every file in a folder, recorded on creation and verified on reading.

A manifest is the file ``manifest.json``. It contains a checksum of itself, so that a damaged manifest is not mistaken
for damaged files. Checksums are XXH3 (64 bits, hexadecimal), which detects damage but not forgery and is computed at
several GB per second.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import checksum, file_checksum
from fairseq_syntax.runtime.files import StrPath, read_bytes, read_json, write_json
from fairseq_syntax.runtime.locks import locked

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
COMPARED = ".compared.json"  # next to it: the verified files, and their state in the file system at that time
_SETTLED = 2_000_000_000  # nanoseconds within which a file can change twice without a visible change of its time
Entry = dict[str, Any]  # "bytes" and "xxh3" of a file


def entry_of(path: StrPath) -> Entry:
    """The manifest entry of a file."""
    return {"bytes": os.path.getsize(path), "xxh3": file_checksum(path)}


def check_entry(path: StrPath, entry: Mapping[str, Any], hint: str) -> str:
    """Verify a file against its manifest entry, and return its checksum. Raises SyntaxDataError."""
    if not os.path.isfile(path):
        raise SyntaxDataError("is missing", path=path, hint=hint)
    current = entry_of(path)
    if current != entry:
        other = "its checksum differs" if current["bytes"] == entry.get("bytes") else f"{current['bytes']} bytes"
        raise SyntaxDataError(f"is damaged, or not the file that was made: {other}", path=path, hint=hint)
    return str(current["xxh3"])


def write_sealed(path: StrPath, values: Mapping[str, Any]) -> None:
    """Write a JSON file with a checksum of its values."""
    write_json(path, sealed(values))


def read_sealed(path: StrPath, hint: str, version: int | None = None) -> dict[str, Any]:
    """Read the values of :func:`write_sealed`.

    Raises:
        SyntaxDataError: the file is missing or damaged, or its ``format`` is not this version
    """
    raw = read_bytes(path)
    try:
        values = json.loads(raw)
    except ValueError:
        values = None
    values = unsealed(values, path, hint)
    if version is not None and values.get("format") != version:
        message = f"is of format {values.get('format')!r}; this version reads {version}"
        raise SyntaxDataError(message, path=path, hint=hint)
    return values


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add a checksum of the values, as ``checksum``, to JSON values."""
    return {**values, "checksum": _seal(values)}


def unsealed(values: Any, path: StrPath, hint: str) -> dict[str, Any]:
    """Verify and remove the checksum of :func:`sealed` values. Raises SyntaxDataError if they have changed."""
    values = dict(values) if isinstance(values, dict) else {}
    if values.pop("checksum", None) != _seal(values):
        raise SyntaxDataError("is damaged, or was edited", path=path, hint=hint)
    return values


def _seal(values: Mapping[str, Any]) -> str:
    return checksum(json.dumps(values, sort_keys=True).encode())


class Manifest:
    """The size and checksum of each file of a folder: its entry, by name."""

    hint = f"make the data again; to use them as they are, without such checks, remove {MANIFEST}"

    def __init__(self, folder: StrPath, files: Mapping[str, Entry]) -> None:
        self.folder, self.files = Path(folder), dict(files)

    @classmethod
    def read(cls, folder: StrPath) -> Manifest | None:
        """Read the manifest of a folder; None if there is none. Raises SyntaxDataError if it is damaged."""
        path = Path(folder) / MANIFEST
        return cls(folder, read_sealed(path, cls.hint, FORMAT_VERSION)["files"]) if path.exists() else None

    def check(self, names: Iterable[str], *, once: bool = False) -> dict[str, str]:
        """Verify files, and return the checksums, by name, of those that the manifest lists.

        Args:
            once: skip files that were verified before and have not been written to since, according to size, inode and
                times of change (which do not reveal disk errors)
        """
        entries = {name: self.files[name] for name in names if name in self.files}
        compared = read_json(self.folder / COMPARED) if once else {}
        states = {name: [*_state(self.folder / name), entry["xxh3"]] for name, entry in entries.items()}
        new = {name: state for name, state in states.items() if compared.get(name) != state}
        for name in new:
            check_entry(self.folder / name, entries[name], self.hint)
        now = time.time_ns()
        settled = {name: state for name, state in new.items() if len(state) > 1 and now - max(state[1:3]) > _SETTLED}
        if once and settled:
            with suppress(SyntaxDataError, OSError):  # files in a read-only folder are verified each time
                write_json(self.folder / COMPARED, {**compared, **settled})
        return {name: str(entry["xxh3"]) for name, entry in entries.items()}

    def problems(self) -> Iterator[SyntaxDataError]:
        """The errors for files that are missing or have changed."""
        for name in sorted(self.files):
            try:
                self.check([name])
            except SyntaxDataError as error:
                yield error


def _state(path: Path) -> list[int]:
    """The state of a file: size, times of change, device and inode; empty if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def note_files(folder: StrPath, names: Iterable[str]) -> None:
    """Add files to the manifest of their folder; names of missing files are skipped."""
    folder = Path(folder)
    with locked(folder / MANIFEST):
        try:
            before = Manifest.read(folder)
        except SyntaxDataError:  # a damaged manifest is replaced by one of the new files
            before = None
        files = dict(before.files) if before is not None else {}
        files |= {name: entry_of(folder / name) for name in names if (folder / name).is_file()}
        if before is not None and files == before.files:
            return
        write_sealed(folder / MANIFEST, {"format": FORMAT_VERSION, "files": dict(sorted(files.items()))})
