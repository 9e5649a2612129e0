"""File manifests: size and checksum of every file of a folder, recorded when it is made and verified when it is read.

A manifest is ``manifest.json`` in the folder. Its own content is sealed by a checksum, too, so that a changed manifest
is not taken for a changed file. The checksums are XXH3 (64 bits, hexadecimal), which find damage, and no forgery; they
are read at several GB a second.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import file_digest, read_json, write_json
from fairseq_syntax.runtime.locks import locked

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
COMPARED = ".compared.json"  # beside it: files that were compared, and their state in the file system at that time
_SETTLED = 2_000_000_000  # nanoseconds; within those a file may change twice and show one time
Entry = dict[str, Any]  # of a file: "bytes" and "xxh3"


def file_checksum(path: str | os.PathLike[str]) -> str:
    """XXH3 (64 bits) of a file's bytes, in hexadecimal.

    Raises:
        SyntaxDataError: it cannot be read
    """
    return file_digest(path, xxhash.xxh3_64())


def entry_of(path: str | os.PathLike[str]) -> Entry:
    """Manifest entry of a file. Raises SyntaxDataError where it cannot be read."""
    return {"bytes": os.path.getsize(path), "xxh3": file_checksum(path)}


def check_entry(path: str | os.PathLike[str], entry: Mapping[str, Any], hint: str) -> str:
    """Verifies a file against its manifest entry; returns its checksum.

    Raises:
        SyntaxDataError: it is missing, or has changed since
    """
    if not os.path.isfile(path):
        raise SyntaxDataError("is missing", path=path, hint=hint)
    current = entry_of(path)
    if current != entry:
        other = "its checksum differs" if current["bytes"] == entry.get("bytes") else f"{current['bytes']} bytes"
        raise SyntaxDataError(f"is damaged, or not the file that was made: {other}", path=path, hint=hint)
    return str(current["xxh3"])


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON values with a checksum of themselves, as ``checksum``."""
    return {**values, "checksum": _seal(values)}


def unsealed(values: Any, path: str | os.PathLike[str], hint: str | None = None) -> dict[str, Any]:
    """Values that were :func:`sealed`, without their checksum. Raises SyntaxDataError where they have changed."""
    values = dict(values) if isinstance(values, dict) else {}
    if values.pop("checksum", None) != _seal(values):
        raise SyntaxDataError("is damaged, or was edited", path=path, hint=hint)
    return values


def _seal(values: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(values, sort_keys=True).encode())


class Manifest:
    """The size and checksum of each file of a folder.

    Args:
        folder: where the files lie
        files: an entry for each, by name
    """

    hint = f"make the data again; to use them as they are, without such checks, remove {MANIFEST}"

    def __init__(self, folder: str | os.PathLike[str], files: Mapping[str, Entry]) -> None:
        self.folder, self.files = Path(folder), dict(files)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Manifest | None:
        """The manifest of a folder; None where it has none.

        Raises:
            SyntaxDataError: it is damaged, or of another version
        """
        path = Path(folder) / MANIFEST
        try:
            values = json.loads(path.read_bytes())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise SyntaxDataError(f"is damaged: {error}", path=path, hint=cls.hint) from error
        values = unsealed(values, path)
        if values.get("format") != FORMAT_VERSION:
            message = f"is of format {values.get('format')!r}; this version reads {FORMAT_VERSION}"
            raise SyntaxDataError(message, path=path, hint=cls.hint)
        return cls(folder, values["files"])

    def check(self, names: Iterable[str], *, once: bool = False) -> dict[str, str]:
        """Verifies files; returns the checksums, by name, of those that the manifest lists.

        Args:
            once: do not read a file again that was compared before and has not been written to since: its size, its
                place in the file system and the times of its last change are the same. A disk that loses a bit by
                itself changes none of these.

        Raises:
            SyntaxDataError: a file is missing, or is not what was made
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
            with suppress(SyntaxDataError, OSError):  # a folder that cannot be written is compared each time
                write_json(self.folder / COMPARED, {**compared, **settled})
        return {name: str(entry["xxh3"]) for name, entry in entries.items()}

    def problems(self) -> Iterator[SyntaxDataError]:
        """An error for each file that is missing or has changed."""
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


def note_files(folder: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Adds files to the manifest of their folder; names without a file are skipped.

    Raises:
        SyntaxDataError: one cannot be read, or the manifest not written
    """
    folder = Path(folder)
    with locked(folder / MANIFEST):
        try:
            before = Manifest.read(folder)
        except SyntaxDataError:  # damaged: what is made now is known all the same
            before = None
        files = dict(before.files) if before is not None else {}
        files |= {name: entry_of(folder / name) for name in names if (folder / name).is_file()}
        if before is not None and files == before.files:
            return
        write_json(folder / MANIFEST, sealed({"format": FORMAT_VERSION, "files": dict(sorted(files.items()))}))
