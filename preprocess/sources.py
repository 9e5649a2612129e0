"""Where corpora come from: downloads, archives, and the file formats of the shared tasks."""

from __future__ import annotations

import gzip
import html
import re
import shutil
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.text.files import read_lines

Pair = tuple[str, str]

# What the IWSLT training files hold beside sentences. Some of it stands on one side only (translators, reviewers).
_TAG = re.compile(r"\s*</?(url|talkid|keywords|speaker|translator|reviewer|doc|transcript)\b[^>]*>")
_SENTENCE_TAG = re.compile(r"\s*<(title|description)>(.*?)</\1>\s*\Z")
_SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)


def download(urls: Iterable[str], data: Path) -> None:
    """Fetches files into ``data``, and unpacks ``.tgz`` there; what is there already is kept."""
    data.mkdir(parents=True, exist_ok=True)
    for url in urls:
        path = data / url.rsplit("/", 1)[-1]
        if path.exists():
            continue
        print(f"fetching {url}", file=sys.stderr)
        partial = path.with_name(path.name + ".part")
        try:
            with urllib.request.urlopen(url, timeout=60) as response, open(partial, "wb") as file:
                shutil.copyfileobj(response, file)
        except (urllib.error.URLError, TimeoutError) as error:
            raise SyntaxDataError(f"cannot be fetched: {error}", path=url, hint="fetch it yourself: --data") from error
        if path.suffix == ".tgz":
            unpack(partial, data)
        partial.rename(path)


def unpack(archive: Path, data: Path) -> None:
    """Unpacks a tar archive, refusing members that would land elsewhere."""
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(data, filter="data")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise SyntaxDataError(
            f"cannot be unpacked: {error}", path=archive, hint="remove it and fetch it again"
        ) from error


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
