"""File I/O: lines of UTF-8, plain or compressed; atomic writes; fingerprints."""

from __future__ import annotations

import bz2
import errno
import fcntl
import gzip
import hashlib
import io
import json
import lzma
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

from fairseq_syntax.errors import SyntaxDataError

# These names stand for what the process has open, and are written to as such, wherever a redirection leads.
_OPEN_FILE = re.compile(r"/dev/(?:std(?P<name>out|err)|fd/(?P<number>\d+))\Z|/proc/self/fd/(?P<of_process>\d+)\Z")
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.\w+\.part\Z", re.ASCII | re.DOTALL)
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
MAKE_ROOM = "make room, and run the command again"


def fingerprint(*values: object) -> str:
    """Fingerprint of JSON values: 32 hexadecimal digits of their SHA-256. Paths count by their names."""
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=os.fspath)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, in hexadecimal. Raises SyntaxDataError if it cannot be read."""
    return file_digest(path, hashlib.sha256())


def file_digest(path: str | os.PathLike[str], digest: Any) -> str:
    """As :func:`file_sha256`, with any hash object that has ``update`` and ``hexdigest``."""
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise SyntaxDataError(f"cannot be read: {error.strerror}", path=path) from error
    return str(digest.hexdigest())


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the lines of a UTF-8 file, plain or compressed, without their line ends and without a byte order mark.

    Only ``\\n`` ends a line: the other line breaks of Unicode are text here, since the two sides of a corpus must
    keep their numbering.

    Raises:
        SyntaxDataError: no such file, a damaged archive, or a line that is not UTF-8
    """
    for number, raw in enumerate(read_raw_lines(path), start=1):
        yield decode_line(raw, path, number)


def read_stdin() -> Iterator[str]:
    """Yields the lines of the standard input, as :func:`read_lines` those of a file.

    Raises:
        SyntaxDataError: a line that is not UTF-8
    """
    lines = getattr(sys.stdin, "buffer", None)
    if lines is None:  # a stand-in that holds text
        yield from (line.rstrip("\r\n") for line in sys.stdin)
        return
    for number, raw in enumerate(lines, start=1):
        yield decode_line(raw, "<stdin>", number)


def decode_line(raw: bytes, path: str | os.PathLike[str], number: int) -> str:
    """A line of a UTF-8 file without its end. Raises SyntaxDataError if it is not UTF-8."""
    try:
        text = raw.decode("utf-8").rstrip("\r\n")
        return text.removeprefix("\ufeff") if number == 1 else text
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte {error.start + 1} of the line is 0x{error.object[error.start]:02x}"
        hint = "convert it, for example by iconv, or decompress it: gzip, bzip2 and xz are read"
        raise SyntaxDataError(message, path=path, line=number, hint=hint) from None


def read_raw_lines(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yields the lines of a file, plain or compressed by gzip, bzip2 or xz, as bytes with their line ends.

    Raises:
        SyntaxDataError: no such file, or a damaged archive
    """
    try:
        with open(path, "rb") as file:
            yield from _decompressed(path, file)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SyntaxDataError(f"cannot be read: {reason}", path=path) from error


def count_raw_lines(*paths: str | os.PathLike[str]) -> int:
    """The number of lines of all files. Raises SyntaxDataError as :func:`read_raw_lines` does."""
    return sum(1 for path in paths for _ in read_raw_lines(path))


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a file, plain or compressed. Raises SyntaxDataError as :func:`read_raw_lines` does."""
    return b"".join(read_raw_lines(path))


# The compressed files that are read and written, by the endings of their names: how they begin, and what opens them.
_COMPRESSED: dict[str, tuple[re.Pattern[bytes], Callable[..., Any]]] = {
    ".gz": (re.compile(b"\x1f\x8b"), gzip.open),
    ".bz2": (re.compile(b"BZh[1-9]1AY&SY"), bz2.open),
    ".xz": (re.compile(b"\xfd7zXZ\x00"), lzma.open),
}


def uncompressed_name(path: str | os.PathLike[str]) -> str:
    """A path without the ending of a compressed file."""
    stem, ending = os.path.splitext(os.fspath(path))
    return stem if ending in _COMPRESSED else os.fspath(path)


def _decompressed(path: str | os.PathLike[str], file: io.BufferedReader) -> Iterable[bytes]:
    """The lines of an open file, decompressed where its first bytes say so, or else its name.

    Raises:
        EOFError: there is nothing in a compressed file
    """
    head = file.peek(10)
    ending = os.path.splitext(os.fspath(path))[1]
    kind = next((kind for kind, (magic, _) in _COMPRESSED.items() if magic.match(head)), ending)
    if kind not in _COMPRESSED:
        return file
    if not head:  # to gzip that is an archive of nothing
        raise EOFError("it was cut off: there is nothing in it")
    return cast(Iterable[bytes], _COMPRESSED[kind][1](file, "rb"))


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON object in a file; an empty one if there is no such file, or nothing of that kind in it."""
    try:
        value = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def is_read_once(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a pipe or a device, which can be read only once."""
    return os.path.exists(path) and not os.path.isfile(path)


def check_rereadable(why: str, *paths: str | os.PathLike[str] | None) -> None:
    """Raises SyntaxDataError where an input that is read several times is a pipe or a device, which can be read once.

    Args:
        why: what is done in several passes, for the error
        paths: None is no input
    """
    for path in paths:
        if path is not None and is_read_once(path):
            raise SyntaxDataError(f"must be a regular file: {why}", path=path, hint="write it to a file first")


# ------------------------------------------------------------------------------------------------------- writing


def check_apart(output: str | os.PathLike[str], *inputs: str | os.PathLike[str] | None) -> None:
    """Raises SyntaxDataError where an output is one of the inputs, by another name too, or a folder.

    A terminal may be both, and so may ``/dev/null``: nothing of them is overwritten.
    """
    if not is_replaced(output):
        return
    for path in inputs:
        if path is not None and os.path.realpath(path) == os.path.realpath(output):
            raise SyntaxDataError("the output would overwrite this input", path=path, hint="write to another file")


def check_outputs(
    outputs: Iterable[str | os.PathLike[str]], inputs: Iterable[str | os.PathLike[str] | None] = ()
) -> None:
    """Raises SyntaxDataError where an output is one of the inputs, or two outputs are one file."""
    seen, inputs = set(), list(inputs)
    for path in outputs:
        check_apart(path, *inputs)
        if os.path.realpath(path) in seen:
            raise SyntaxDataError("two outputs would be this file", path=path, hint="name them apart")
        seen.add(os.path.realpath(path))


def check_output(path: str | os.PathLike[str] | None, *inputs: str | os.PathLike[str] | None) -> None:
    """Checks before the work that its output can be written; None and ``-`` (the terminal) always can.

    Raises:
        SyntaxDataError: its folder is missing, or it is a folder itself or one of the inputs
    """
    if path is None or path == "-":
        return
    check_apart(path, *inputs)
    if not Path(path).absolute().parent.is_dir():
        raise SyntaxDataError("there is no such folder to write to", path=path, hint="make it first: mkdir -p")


@contextmanager
def atomic_open(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """A text file to write to, which takes the name ``path`` only when the block ends without an error.

    A kill, a full disk or an exception leaves whatever stood under ``path`` before. A symbolic link stays one, and
    its target is written; a FIFO or a device is written directly. What killed runs left of the same file is removed.

    Raises:
        SyntaxDataError: it cannot be written
    """
    with atomic_open_binary(path) as stream:
        text = io.TextIOWrapper(cast(Any, stream), encoding="utf-8", newline="\n")
        try:
            yield text
        finally:
            with as_data_error(path):
                text.detach()  # as its own end would close, and so complete, what is written


@contextmanager
def atomic_open_binary(path: str | os.PathLike[str], *, leftovers: bool = True) -> Iterator[IO[bytes]]:
    """As :func:`atomic_open`, for bytes. What is named ``.gz``, ``.bz2`` or ``.xz`` is compressed, equally each time.

    ``leftovers=False``: what killed runs left is not looked for, which would read a folder of many files once for each.
    """
    target = _resolved(path)
    if not is_replaced(path):
        with as_data_error(path), open(_descriptor(target), "wb") as file, _compressing(path, file) as inner:
            yield inner
        return
    with _temporary(path, target, leftovers) as (binary, temporary):
        try:
            with _compressing(path, binary) as inner:
                yield inner
            with as_data_error(path):
                binary.flush()
                os.fsync(binary.fileno())  # else a power cut may leave the name without the content
                _take_name(temporary, target)
        except OSError as error:
            if error.filename is None:  # not of a file that the block was reading
                raise _data_error(path, error) from error
            raise


@contextmanager
def _compressing(path: str | os.PathLike[str], file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The file, or a compressor into it according to the ending of its name (gzip without name and time)."""
    kind = os.path.splitext(os.fspath(path))[1]
    if kind == ".zst":  # it would be plain text under that name
        raise SyntaxDataError("zstd is not written", path=path, hint="name it .gz, .xz or .bz2")
    if kind not in _COMPRESSED:
        yield file
        return
    gz = kind == ".gz"
    packed = gzip.GzipFile("", "wb", fileobj=file, mtime=0) if gz else _COMPRESSED[kind][1](file, "wb")
    with packed:
        yield cast(IO[bytes], packed)


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[str]:
    """A temporary name beside ``path``, for a library that opens files by name; ends as :func:`atomic_open` does."""
    if not is_replaced(path):
        raise SyntaxDataError("must be a regular file", path=path)
    target = _resolved(path)
    with _temporary(path, target) as (file, temporary):
        yield temporary
        with as_data_error(path):
            os.fsync(file.fileno())
            _take_name(temporary, target)


@contextmanager
def as_data_error(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an OSError in the block into a SyntaxDataError that names the file."""
    try:
        yield
    except OSError as error:
        raise _data_error(path, error) from error


@contextmanager
def errors_in(path: str | os.PathLike[str], line: int | None = None) -> Iterator[None]:
    """Add the file, and the line if it names none, to a SyntaxDataError in the block that names no file."""
    try:
        yield
    except SyntaxDataError as error:
        if error.path is not None:
            raise
        line = line if error.line is None else error.line
        raise SyntaxDataError(error.message, path=path, line=line, option=error.option, hint=error.hint) from error


def make_folder(path: str | os.PathLike[str]) -> None:
    """Makes a folder and those above it, unless they exist. Raises SyntaxDataError."""
    with as_data_error(path):
        os.makedirs(path, exist_ok=True)


def is_replaced(path: str | os.PathLike[str]) -> bool:
    """Whether writing a path makes a file of that name (or of its link's target); not so for a FIFO or a device.

    Raises:
        SyntaxDataError: it is a folder
    """
    target = _resolved(path)
    if os.path.isdir(target):
        raise SyntaxDataError("cannot be written: it is a folder", path=path)
    return _OPEN_FILE.match(target) is None and (os.path.isfile(target) or not os.path.exists(target))


def remove_leftovers(folder: str | os.PathLike[str], names: Collection[str] | None = None) -> None:
    """Removes the temporary files that killed runs left in a folder; those of running processes are locked.

    Args:
        names: of the files that they would have become; None: any
    """
    with suppress(OSError):
        for entry in os.scandir(folder):
            match = _TEMPORARY.match(entry.name)
            if match and (names is None or match["name"] in names):
                with suppress(OSError):
                    handle = os.open(entry.path, os.O_RDWR)
                    try:
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        os.remove(entry.path)
                    finally:
                        os.close(handle)


@contextmanager
def _temporary(path: str | os.PathLike[str], target: str, leftovers: bool = True) -> Iterator[tuple[IO[bytes], str]]:
    """An open temporary file beside ``target``, locked as long as it is open, and its name; removed at the end."""
    folder, name = os.path.split(target)
    if leftovers:
        remove_leftovers(folder or ".", [name])
    while True:
        with as_data_error(path):
            handle, temporary = tempfile.mkstemp(dir=folder or ".", prefix=f".{name}.", suffix=".part")
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        if _is_file(handle, temporary):
            break
        os.close(handle)  # taken for a leftover in the moment before it was locked
    file = os.fdopen(handle, "wb")
    try:
        yield file, temporary
    finally:
        with suppress(OSError):  # what a full disk did not take was told when it was flushed
            file.close()
        with suppress(FileNotFoundError):
            os.remove(temporary)


def _take_name(temporary: str, target: str) -> None:
    # mkstemp makes files that only their owner can read; a corpus is to have the permissions of any new file.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(temporary, 0o666 & ~umask)
    os.replace(temporary, target)


def _is_file(handle: int, path: str) -> bool:
    """Whether an open file is still the one under that name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _resolved(path: str | os.PathLike[str]) -> str:
    """The file to which symbolic links lead; names of open descriptors are kept."""
    name = "/dev/stdout" if os.fspath(path) == "-" else os.fspath(path)
    for _ in range(40):  # as many links as Linux follows
        if _OPEN_FILE.match(name) or not os.path.islink(name):
            break
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    return name


def _descriptor(name: str) -> int:
    """A FIFO, a device or what the process has open, to be written to."""
    if (match := _OPEN_FILE.match(name)) is None:
        return os.open(name, os.O_WRONLY)
    number = {"out": 1, "err": 2}.get(match["name"]) or int(match["number"] or match["of_process"] or 0)
    if number == 1:
        sys.stdout.flush()
    return os.dup(number)


def _data_error(path: str | os.PathLike[str], error: OSError) -> SyntaxDataError:
    full = error.errno in (*DISK_FULL, errno.EFBIG) or "too large" in str(error).lower()
    hint = MAKE_ROOM if full else None
    return SyntaxDataError(f"cannot be written: {error.strerror or error}", path=path, hint=hint)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Writes a JSON file whole or not at all. Raises SyntaxDataError where it cannot be written."""
    with atomic_open(path) as file:
        json.dump(value, file, ensure_ascii=False, indent=1)
        file.write("\n")
