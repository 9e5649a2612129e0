"""Downloads (resumed, verified, unpacked), and finding the files of a corpus by name."""

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
from fairseq_syntax.runtime.files import as_data_error, file_digest, make_folder
from fairseq_syntax.runtime.locks import locked

_AGAIN = "run it again to go on, or fetch the file yourself and put it into the corpus's folder"
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError, ValueError)


class DamagedArchive(SyntaxDataError):
    """The error for a damaged archive, which has to be fetched again."""


def fetch_all(urls: Iterable[str], folder: Path, checksums: Mapping[str, str] | None = None) -> None:
    """Fetches files into a folder and unpacks archives there; what exists already is kept.

    Args:
        checksums: by the name of a file, ``sha256:HEX`` or ``md5:HEX``, where it is published

    Raises:
        SyntaxDataError: as :func:`fetch`
    """
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
    """Fetches one file, resuming where an earlier run stopped, and unpacks it beside itself if it is an archive.

    Until it is as long as the server says and has the right checksum it lies under ``NAME.part``.

    Args:
        checksum: ``sha256:HEX`` or ``md5:HEX``; None: none is known

    Raises:
        SyntaxDataError: it cannot be fetched, ends early, is another file or a damaged one, or the disk is full
    """
    partial = path.with_name(path.name + ".part")
    begin = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            # A server without ranges sends all of it, with status 200.
            resumed = begin > 0 and response.status == 206
            length = response.headers.get("Content-Length")
            with as_data_error(partial), open(partial, "ab" if resumed else "wb") as file:
                file.writelines(_received(response, url))
            due = None if length is None else int(length) + (begin if resumed else 0)
            if due is not None and partial.stat().st_size != due:
                message = f"was cut off: {partial.stat().st_size} of {due} bytes"
                raise SyntaxDataError(message, path=url, hint=_AGAIN)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: there is nothing after what we have
            raise _not_fetched(url, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise _not_fetched(url, error) from error
    if checksum is not None and (digest := _digest(partial, checksum)) != checksum:
        partial.unlink()
        message = f"is not the expected file: its checksum is {digest}, not {checksum}"
        raise SyntaxDataError(message, path=url, hint=_AGAIN)
    try:
        # On a full disk the archive stays, and the next run goes on with it.
        with as_data_error(path.parent):
            if path.suffix in (".tgz", ".gz"):
                with _archive(partial), gzip.open(partial) as file:
                    while file.read(1 << 20):  # to the checksum at its end, before which tar stops
                        pass
            if path.name.endswith((".tgz", ".tar.gz", ".zip")):
                unpack(partial, path.parent)
    except DamagedArchive:
        partial.unlink(missing_ok=True)
        raise
    partial.rename(path)


def _received(response: http.client.HTTPResponse, url: str) -> Iterator[bytes]:
    """The blocks of an answer. An error of the network is an OSError too, but not one of the file written to."""
    try:
        while block := response.read(1 << 20):
            yield block
    except OSError as error:
        raise _not_fetched(url, error) from error


def _not_fetched(url: str, error: Exception) -> SyntaxDataError:
    return SyntaxDataError(f"cannot be fetched: {error}", path=url, hint=_AGAIN)


def _digest(path: Path, checksum: str) -> str:
    """The checksum of a file, by the algorithm that ``checksum`` names."""
    algorithm = checksum.partition(":")[0]
    return f"{algorithm}:{file_digest(path, hashlib.new(algorithm, usedforsecurity=False))}"


@contextmanager
def _archive(path: Path) -> Iterator[None]:
    """Turn errors of reading an archive in the block into DamagedArchive; disk errors pass unchanged."""
    try:
        yield
    except _DAMAGED as error:
        message = f"cannot be unpacked: {error}"
        raise DamagedArchive(message, path=path, hint="run it again: it is fetched anew") from error


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar or zip archive.

    Raises:
        DamagedArchive: it cannot be read, or has members that would land elsewhere
        OSError: the disk is full, or the folder cannot be written to
    """
    with _archive(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(folder)  # which leaves "..", roots and drives out of names
            return
        with tarfile.open(archive) as tar:
            if hasattr(tarfile, "data_filter"):
                tar.extractall(folder, filter="data")
                return
            for member in tar:  # Python before 3.10.12 and 3.11.4, such as that of Debian 12
                if not (member.isfile() or member.isdir()):
                    raise tarfile.ExtractError(f"{member.name} is neither a file nor a folder")
                if not (folder / member.name).resolve().is_relative_to(folder.resolve()):
                    raise tarfile.ExtractError(f"{member.name} is not below the folder")
                tar.extract(member, folder, set_attrs=False)


def package_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each file in a Debian package (.deb), in the order of the package.

    A package is an ``ar`` archive; its member ``data.tar.xz`` (or .gz) holds the files.

    Raises:
        DamagedArchive: it cannot be read
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
    """Source and target file of a corpus, ``NAME.de-en.de`` and ``NAME.de-en.en``, or with the pair as ``en-de``.

    Args:
        names: the corpus's name, or several to be tried in turn (patterns of ``glob``)
        ending: what follows the language in the files' names
        hint: where the files come from, for the error

    Raises:
        SyntaxDataError: as :func:`find`
    """
    pairs = ("-".join(langs), "-".join(reversed(langs)))
    return [
        find(folder, *(f"{name}.{pair}.{lang}{ending}" for name in names for pair in pairs), hint=hint)
        for lang in langs
    ]


def find(folder: Path, *names: str, hint: str | None = None) -> Path:
    """The file of one of these names (patterns of ``glob``), plain or ``.gz``, anywhere below a folder.

    A name with ``/`` in it is matched with the folders above the file.

    Args:
        hint: where the file comes from, for the error

    Raises:
        SyntaxDataError: there is none, or several for the first name that has any
    """
    for name in names:
        matching = {p for end in ("", ".gz") for p in folder.rglob(name + end) if p.is_file()}
        if len(matching) == 1:
            return matching.pop()
        if matching:
            shown = ", ".join(sorted(str(path.relative_to(folder)) for path in matching)[:4])
            message = f"several files are called {name}: {shown}"
            raise SyntaxDataError(message, path=folder, hint="leave one of them there")
    raise SyntaxDataError(
        f"no file {' or '.join(names)} below",
        path=folder,
        hint=hint or "give its folder, or download: true",
    )
