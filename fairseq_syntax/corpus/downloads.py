"""Downloads (resumable, verified, unpacked), and search for the files of a corpus by name."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import lzma
import os
import sys
import tarfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.digests import file_digest
from fairseq_syntax.runtime.files import COMPRESSED, as_data_error, files_below, make_folder
from fairseq_syntax.runtime.locks import locked

_AGAIN = "run it again to go on, or fetch the file yourself and put it into the corpus's folder"
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, ValueError)


class DamagedArchive(SyntaxDataError):
    """The error for a damaged archive, which must be downloaded again."""


def fetch_all(urls: Iterable[str], folder: Path, checksums: Mapping[str, str | None] | None = None) -> None:
    """Download files into a folder by :func:`fetch`, with the checksums by file name; existing files are kept."""
    make_folder(folder)
    for url in urls:
        path = folder / url.rsplit("/", 1)[-1]
        if path.exists():
            continue
        print(f"fetching {url}", file=sys.stderr)
        with locked(path):
            if not path.exists():
                fetch(url, path, (checksums or {}).get(path.name))


def fetch(url: str, path: Path, checksum: str | None = None) -> None:
    """Download one file, resuming an interrupted download, and unpack it in its folder if it is an archive.

    The file is named ``NAME.part`` until it has the length announced by the server and the right checksum,
    ``sha256:HEX`` or ``md5:HEX``.

    Raises:
        SyntaxDataError: the download fails or is incomplete, the file is damaged or another one, or the disk is full
    """
    partial = path.with_name(path.name + ".part")
    begin = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            # A server without support for ranges sends the whole file, with status 200.
            resumed = begin > 0 and response.status == 206
            length = response.headers.get("Content-Length")
            with as_data_error(partial), open(partial, "ab" if resumed else "wb") as file:
                file.writelines(_received(response, url))
            due = None if length is None else int(length) + (begin if resumed else 0)
            if due is not None and partial.stat().st_size != due:
                message = f"was cut off: {partial.stat().st_size} of {due} bytes"
                raise SyntaxDataError(message, path=url, hint=_AGAIN)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: the file is already complete
            raise _not_fetched(url, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise _not_fetched(url, error) from error
    if checksum is not None:
        algorithm, _, expected = checksum.partition(":")
        digest = file_digest(partial, hashlib.new(algorithm, usedforsecurity=False))
        if digest != expected:
            partial.unlink()
            message = f"is not the expected file: its {algorithm} is {digest}, not {expected}"
            raise SyntaxDataError(message, path=url, hint=_AGAIN)
    try:
        with as_data_error(path.parent):  # on a full disk, the archive is kept for the next run
            if path.suffix in (".tgz", ".gz"):
                with _archive(partial), gzip.open(partial) as file:
                    while file.read(1 << 20):  # up to the checksum at its end, which tar does not read
                        pass
            if path.name.endswith((".tgz", ".tar.gz", ".zip")):
                unpack_archive(partial, path.parent)
    except DamagedArchive:
        partial.unlink(missing_ok=True)
        raise
    partial.rename(path)


def _received(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """Yield the blocks of a response; network errors, which are OSErrors too, must not look like disk errors."""
    try:
        while block := response.read(1 << 20):
            yield block
    except OSError as error:
        raise _not_fetched(url, error) from error


def _not_fetched(url: str, error: Exception) -> SyntaxDataError:
    return SyntaxDataError(f"cannot be fetched: {error}", path=url, hint=_AGAIN)


@contextmanager
def _archive(path: Path) -> Iterator[None]:
    """A context that turns errors of reading an archive into DamagedArchive; disk errors pass unchanged."""
    try:
        yield
    except _DAMAGED as error:
        message = f"cannot be unpacked: {error}"
        raise DamagedArchive(message, path=path, hint="run it again: it is fetched anew") from error


def unpack_archive(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip archive.

    Raises:
        DamagedArchive: it cannot be read, or contains paths outside the folder
        OSError: the disk is full, or the folder cannot be written to
    """
    with _archive(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder)  # zipfile removes "..", roots and drives from names
            return
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(folder, filter="data")
                return
            for member in tar:  # Python before 3.10.12 and 3.11.4, as in Debian 12
                if not (member.isfile() or member.isdir()):
                    raise tarfile.ExtractError(f"{member.name} is neither a file nor a folder")
                if not (folder / member.name).resolve().is_relative_to(folder.resolve()):
                    raise tarfile.ExtractError(f"{member.name} is not below the folder")
                tar.extract(member, folder, set_attrs=False)


def package_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file in a Debian package (.deb), in the order of the package.

    A package is an ``ar`` archive; its member ``data.tar.xz`` (or .gz) contains the files.
    """
    with _archive(path), open(path, "rb") as package:
        if package.read(8) != b"!<arch>\n":
            raise tarfile.ReadError("not a Debian package")
        while header := package.read(60):
            name, size = header[:16].decode("ascii").strip(" /"), int(header[48:58])
            if name.startswith("data.tar"):
                data = package.read(size)
                if len(data) < size:
                    raise EOFError("it is cut off")
                with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                    for member in tar:
                        file = tar.extractfile(member)
                        if file is not None:
                            yield member.name, file.read()
                return
            package.seek(size + size % 2, os.SEEK_CUR)
        raise tarfile.ReadError("holds no data.tar that can be read here")


def find_sides(
    folder: Path, names: Sequence[str], langs: tuple[str, str], *, ending: str = "", hint: str | None = None
) -> list[Path]:
    """Find the source and target file of a corpus, ``NAME.de-en.de`` and ``NAME.de-en.en``, or with ``en-de``.

    Args:
        names: the corpus's name, or several to try in turn
        ending: the part of file names after the language
        hint: as for :func:`find`
    """
    pairs = [f"{name}.{pair}" for name in names for pair in ("-".join(langs), "-".join(reversed(langs)))]
    return [find(folder, *(f"{pair}.{lang}{ending}" for pair in pairs), hint=hint) for lang in langs]


def find(folder: Path, *names: str, hint: str | None = None) -> Path:
    """Find a file by one of several names (patterns of ``glob``), plain or compressed, anywhere below a folder.

    Names that contain ``/`` also match the file's parent folders.

    Args:
        hint: the origin of the file, for the error

    Raises:
        SyntaxDataError: there is no such file, or several for the first name that matches any
    """
    for name in names:
        found = [path for end in ("", *COMPRESSED) for path in files_below(folder, name + end)]
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(sorted(str(path.relative_to(folder)) for path in found)[:4])
            message = f"several files are called {name}: {shown}"
            raise SyntaxDataError(message, path=folder, hint="leave one of them there")
    hint = hint or "give its folder, or download: true (--download)"
    raise SyntaxDataError(f"no file {' or '.join(names)} below", path=folder, hint=hint)
