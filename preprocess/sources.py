"""Where corpora come from: downloads, archives, and the file formats of the shared tasks."""

from __future__ import annotations

import gzip
import html
import http.client
import re
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import as_data_error, file_sha256, locked, make_folder, read_lines

Pair = tuple[str, str]

# What the IWSLT training files hold beside sentences. Some of it stands on one side only (translators, reviewers).
_TAG = re.compile(r"\s*</?(url|talkid|keywords|speaker|translator|reviewer|doc|transcript)\b[^>]*>")
_SENTENCE_TAG = re.compile(r"\s*<(title|description)>(.*?)</\1>\s*\Z")
_SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)


class DamagedArchive(SyntaxDataError):
    """An archive that has to be fetched again."""


def fetch(url: str, path: Path, sha256: str | None = None) -> None:
    """Fetches one file, going on where an earlier run stopped, and unpacks it if it is a ``.tgz``.

    What was fetched lies under ``NAME.part`` until it is as long as the server says and, where its SHA-256 is known,
    the right one; only then it takes its name.

    Raises:
        SyntaxDataError: it cannot be fetched, ends early, is another file or a damaged one, or the disk is full
    """
    partial = path.with_name(path.name + ".part")
    begin = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={begin}-"} if begin else {})
    hint = "run the script again to go on, or fetch it yourself: --data"
    try:
        with urllib.request.urlopen(request, timeout=60) as response, as_data_error(partial):
            resumed = begin > 0 and response.status == 206
            length = response.headers.get("Content-Length")
            with open(partial, "ab" if resumed else "wb") as file:
                shutil.copyfileobj(response, file)
            due = None if length is None else int(length) + (begin if resumed else 0)
            if due is not None and partial.stat().st_size != due:
                message = f"was cut off: {partial.stat().st_size} of {due} bytes"
                raise SyntaxDataError(message, path=url, hint=hint)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: there is nothing after what we have
            raise SyntaxDataError(f"cannot be fetched: {error}", path=url, hint=hint) from error
    except (OSError, http.client.HTTPException) as error:
        raise SyntaxDataError(f"cannot be fetched: {error}", path=url, hint=hint) from error
    if sha256 is not None and file_sha256(partial) != sha256:
        partial.unlink()
        raise SyntaxDataError("is another file than it was (its SHA-256 differs)", path=url, hint=hint)
    try:
        with as_data_error(path.parent):  # on a full disk the archive stays, and the next run goes on with it
            if path.suffix in (".tgz", ".gz"):
                check_gzip(partial)  # all of it, where tar stops before the checksum
            if path.suffix == ".tgz":
                unpack(partial, path.parent)
    except DamagedArchive:
        partial.unlink(missing_ok=True)
        raise
    partial.rename(path)


def download(urls: Iterable[str], data: Path, checksums: Mapping[str, str] | None = None) -> None:
    """Fetches files into ``data``, and unpacks ``.tgz`` there; what is there already is kept.

    Args:
        checksums: SHA-256 of files, by name, where it is known
    """
    make_folder(data)
    for url in urls:
        path = data / url.rsplit("/", 1)[-1]
        if path.exists():
            continue
        print(f"fetching {url}", file=sys.stderr)
        with locked(path):
            if not path.exists():
                fetch(url, path, (checksums or {}).get(path.name))


def check_gzip(path: Path) -> None:
    """Raises DamagedArchive where a gzip file cannot be read to its end."""
    with _archive(path), gzip.open(path) as file:
        while file.read(1 << 20):
            pass


@contextmanager
def _archive(path: Path) -> Iterator[None]:
    """What is wrong with an archive that is read in the block, as DamagedArchive; errors of the disk stay."""
    try:
        yield
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedArchive(
            f"cannot be unpacked: {error}", path=path, hint="run the script again: it is fetched anew"
        ) from error


def unpack(archive: Path, data: Path) -> None:
    """Unpacks a tar archive.

    Raises:
        DamagedArchive: it cannot be read, or has members that would land elsewhere
        OSError: the disk is full, or the folder cannot be written to
    """
    with _archive(archive), tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(data, filter="data")
        else:  # Python before 3.10.12 and 3.11.4, such as that of Debian 12
            for member in tar:
                place = (data / member.name).resolve()
                if not (member.isfile() or member.isdir()) or not place.is_relative_to(data.resolve()):
                    raise tarfile.ExtractError(f"{member.name} is no file below the folder")
                tar.extract(member, data, set_attrs=False)


def find(data: Path, *names: str) -> Path:
    """The file of one of these names (patterns of ``glob``), plain or ``.gz``, anywhere below ``data``.

    Raises:
        SyntaxDataError: there is none, or several for the first name that has any
    """
    for name in names:
        found = sorted({path for ending in ("", ".gz") for path in data.rglob(name + ending) if path.is_file()})
        if len(found) == 1:
            return found[0]
        if found:
            shown = ", ".join(str(path.relative_to(data)) for path in found[:4])
            raise SyntaxDataError(
                f"several files are called {name}: {shown}", path=data, hint="leave one of them there"
            )
    raise SyntaxDataError(f"no file {' or '.join(names)} below", path=data, hint="give its directory, or --download")


def read_segments(path: Path) -> Iterator[str]:
    """The ``<seg>`` elements of a test set in NIST's XML or SGML, with character entities resolved."""
    text = "\n".join(read_lines(path))
    for match in _SEGMENT.finditer(text):
        yield " ".join(html.unescape(match[1]).split())


def read_tagged(path: Path) -> Iterator[str]:
    """The sentences of an IWSLT training file (``train.tags.*``), which is no XML, but has lines that are tags.

    Titles and descriptions are sentences.
    """
    for line in read_lines(path):
        if sentence := _SENTENCE_TAG.match(line):
            yield sentence[2].strip()
        elif not _TAG.match(line):
            yield line.strip()


def read_text(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or ``.gz``."""
    for line in read_lines(path):
        yield line.strip()


def parallel(source: Path, target: Path) -> Iterator[Pair]:
    """Pairs of two parallel files, read by what their names say they are.

    Raises:
        SyntaxDataError: one has more lines than the other
    """
    for number, (one, other) in enumerate(zip_longest(_read(source), _read(target)), start=1):
        if one is None or other is None:
            ended, longer = (source, target) if one is None else (target, source)
            hint = "they are not the two sides of one corpus, or one is cut off"
            raise SyntaxDataError(f"ends after {number - 1} sentences, and {longer} goes on", path=ended, hint=hint)
        yield one, other


def _read(path: Path) -> Iterator[str]:
    name = path.name.removesuffix(".gz")
    if name.endswith((".xml", ".sgm")):
        return read_segments(path)
    return read_tagged(path) if name.startswith("train.tags.") else read_text(path)
