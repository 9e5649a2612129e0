"""File I/O: UTF-8 lines, plain or compressed; atomic writes."""

from __future__ import annotations

import bz2
import codecs
import errno
import fcntl
import gzip
import io
import json
import lzma
import os
import re
import socket
import sys
import tempfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias, cast

from fairseq_syntax.errors import SyntaxDataError

StrPath: TypeAlias = str | os.PathLike[str]

# Names of the process's open streams, which are written to directly, wherever they are redirected.
_OPEN_FILE = re.compile(r"/dev/(?:std(?P<name>out|err)|fd/(?P<number>\d+))\Z|/proc/self/fd/(?P<of_process>\d+)\Z")
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.\w+\.part\Z", re.ASCII | re.DOTALL)
LONGEST_LINE = 1 << 28  # bytes
_EXPANDED = "a compressed file may have a thousand times its size in text"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
MAKE_ROOM = "make room, and run the command again"


def read_lines(path: StrPath) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain or compressed, without line ends and byte order mark.

    Only ``\\n`` ends a line. Other Unicode line breaks are text, since the two sides of a corpus must keep their line
    numbers.
    """
    for number, raw in enumerate(read_raw_lines(path), start=1):
        yield decode_line(raw, path, number)


def read_stdin() -> Iterator[str]:
    """Yield the lines of standard input, as :func:`read_lines` does for a file."""
    for number, raw in enumerate(_of_text(_bounded(sys.stdin.buffer, "<stdin>"), "<stdin>"), start=1):
        yield decode_line(raw, "<stdin>", number)


def decode_line(raw: bytes, path: StrPath, number: int) -> str:
    """Decode a line of :func:`read_raw_lines`, without its line end. Raises SyntaxDataError if it is not UTF-8."""
    try:
        return raw.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte {error.start + 1} of the line is 0x{error.object[error.start]:02x}"
        raise SyntaxDataError(message, path=path, line=number, hint=_convert()) from None


def _convert() -> str:
    return f"convert it, for example by iconv, or decompress it: {', '.join(COMPRESSED)} are read"


def read_raw_lines(path: StrPath) -> Iterator[bytes]:
    """Yield the lines of a text file, plain or compressed, as bytes with their line ends, without byte order mark.

    Raises:
        SyntaxDataError: the file does not exist, an archive is damaged, or a line has a NUL, as UTF-16 does
    """
    return _of_text(_raw_lines(path), path)


def count_raw_lines(*paths: StrPath) -> int:
    """The total number of lines in files."""
    return sum(1 for path in paths for _ in _raw_lines(path))


def read_bytes(path: StrPath) -> bytes:
    """The content of a file, plain or compressed; see :func:`without_mark` for text."""
    return b"".join(_raw_lines(path))


def without_mark(text: bytes) -> bytes:
    """A text without its byte order mark."""
    return text.removeprefix(codecs.BOM_UTF8)


def _bounded(stream: IO[bytes], path: StrPath) -> Iterator[bytes]:
    """The lines of a stream, none of which takes all memory."""
    for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), start=1):
        if len(line) > LONGEST_LINE:
            message = f"a line of more than {LONGEST_LINE >> 20} MiB"
            raise SyntaxDataError(message, path=path, line=number, hint=_EXPANDED)
        yield line


def _of_text(lines: Iterable[bytes], path: StrPath) -> Iterator[bytes]:
    """The lines of a text without its byte order mark, checked for NULs."""
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = without_mark(line)
        if b"\0" in line:
            message = "a NUL, which text in UTF-8 does not contain; UTF-16 and UTF-32 cannot be read"
            raise SyntaxDataError(message, path=path, line=number, hint=f"{_convert()}; tr -d '\\000' removes NULs")
        yield line


def instead(path: StrPath) -> str | None:
    """The hint for a path that does not exist: a similar name instead of its first missing part, or that part.

    Of a link, where it leads.
    """
    whole = missing = Path(path)
    while not missing.parent.exists():
        missing = missing.parent
    if missing.is_symlink():
        return f"{missing} is a link to {os.readlink(missing)}, where there is nothing"
    with suppress(OSError):  # what should be a folder is a file, or must not be read
        if closest := get_close_matches(missing.name, os.listdir(missing.parent), n=1):
            return f"did you mean {missing.with_name(closest[0])}?"
    return None if missing == whole else f"there is no {missing}"


def _raw_lines(path: StrPath) -> Iterator[bytes]:
    """The lines of a file, plain or compressed by gzip, bzip2, xz or zstd."""
    try:
        with open(path, "rb") as file:
            yield from _bounded(_decompressed(path, file), path)
    except MemoryError as error:
        raise SyntaxDataError("a line does not fit into memory", path=path, hint=_EXPANDED) from error
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        meant = instead(path) if isinstance(error, FileNotFoundError) else None
        raise SyntaxDataError(f"cannot be read: {reason}", path=path, hint=meant) from error


def _zstd(file: IO[bytes], mode: str) -> Any:
    """A zstd stream, by Arrow, which this package needs anyway; Python has its own from 3.14."""
    import pyarrow  # here, because few files need it

    if mode == "wb":
        return pyarrow.CompressedOutputStream(file, "zstd")
    return io.BufferedReader(pyarrow.CompressedInputStream(file, "zstd"))


def _gzip(file: IO[bytes], mode: str) -> Any:
    """A gzip stream; written without name and time, so that equal content gives equal files."""
    return gzip.GzipFile("", "wb", fileobj=file, mtime=0) if mode == "wb" else gzip.open(file, mode)


# Compressed formats by file extension: their first bytes, and the function that opens a stream of an open file.
COMPRESSED: dict[str, tuple[re.Pattern[bytes], Callable[[IO[bytes], str], Any]]] = {
    ".gz": (re.compile(b"\x1f\x8b"), _gzip),
    ".bz2": (re.compile(b"BZh[1-9]1AY&SY"), bz2.open),
    ".xz": (re.compile(b"\xfd7zXZ\x00"), lzma.open),
    ".zst": (re.compile(re.escape(b"\x28\xb5\x2f\xfd")), _zstd),
}


def uncompressed_name(path: StrPath) -> str:
    """A path without the file extension of a compressed format."""
    stem, ending = os.path.splitext(os.fspath(path))
    return stem if ending in COMPRESSED else os.fspath(path)


def plain_or_compressed(path: Path) -> Path:
    """The file, or its compressed form (``.gz``, ``.bz2``, ``.xz``, ``.zst``) if only that exists.

    Raises:
        SyntaxDataError: several compressed forms exist, which need not be the same text
    """
    packed = [each for ending in COMPRESSED if (each := path.with_name(path.name + ending)).exists()]
    if path.exists() or not packed:
        return path
    if len(packed) > 1:
        names = " and ".join(each.name for each in packed)
        raise SyntaxDataError(f"there are {names}", path=path, hint="name one of them, or remove the others")
    return packed[0]


def _decompressed(path: StrPath, file: io.BufferedReader) -> IO[bytes]:
    """An open file, decompressed according to its first bytes or else its name."""
    head = file.peek(10)
    ending = os.path.splitext(os.fspath(path))[1]
    kind = next((kind for kind, (magic, _) in COMPRESSED.items() if magic.match(head)), ending)
    if kind not in COMPRESSED:
        return file
    if not head:  # gzip and Arrow would accept it as an empty archive
        raise EOFError("it was cut off: there is nothing in it")
    return cast(IO[bytes], COMPRESSED[kind][1](file, "rb"))


def read_json(path: StrPath) -> dict[str, Any]:
    """Read a JSON object; empty if the file does not exist or does not contain a JSON object."""
    try:
        value = json.loads(Path(path).read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def is_read_once(path: StrPath) -> bool:
    """Whether a path is a pipe or a device, which can be read only once."""
    return os.path.exists(path) and not os.path.isfile(path)


def check_rereadable(why: str, *paths: StrPath | None) -> None:
    """Raise SyntaxDataError, with the reason ``why``, if an input that is read several times is a pipe or a device."""
    for path in paths:
        if path is not None and is_read_once(path):
            raise SyntaxDataError(f"must be a regular file: {why}", path=path, hint="write it to a file first")


def files_below(folder: StrPath, name: str = "*") -> Iterator[Path]:
    """The files in and below a folder, in no particular order, also in linked folders; each folder once.

    Args:
        name: a pattern of ``glob``, with parent folders before ``/``
    """
    seen: set[str] = set()
    waiting = [os.fspath(folder)]
    for top in waiting:  # linked folders last, so that one that is also here itself has its own name
        for path, folders, names in os.walk(top):
            if (place := os.path.realpath(path)) in seen:
                folders.clear()
                continue
            seen.add(place)
            folders.sort()  # the same links first on every machine
            waiting += [link for each in folders if os.path.islink(link := os.path.join(path, each))]
            yield from (file for file in (Path(path, each) for each in names) if file.match(name) and file.is_file())


# ------------------------------------------------------------------------------------------------------- writing


def check_apart(output: StrPath, *inputs: StrPath | None) -> None:
    """Raise SyntaxDataError if an output is a folder or one of the inputs, possibly under another name.

    A terminal and ``/dev/null`` may be both, since nothing in them is overwritten.
    """
    if not is_replaced(output):
        return
    for path in inputs:
        if path is not None and os.path.realpath(path) == os.path.realpath(output):
            raise SyntaxDataError("the output would overwrite this input", path=path, hint="write to another file")


def check_outputs(outputs: Iterable[StrPath], inputs: Iterable[StrPath | None] = ()) -> None:
    """Raise SyntaxDataError if an output is one of the inputs, or if two outputs are the same file."""
    seen, inputs = set(), list(inputs)
    for path in outputs:
        check_apart(path, *inputs)
        if os.path.realpath(path) in seen:
            raise SyntaxDataError("two outputs would be this file", path=path, hint="name them apart")
        seen.add(os.path.realpath(path))


def check_output(path: StrPath | None, *inputs: StrPath | None) -> None:
    """Raise SyntaxDataError if an output is one of the inputs or cannot be written; None and ``-`` (stdout) can."""
    if path is None or path == "-":
        return
    check_apart(path, *inputs)
    if not Path(path).absolute().parent.is_dir():
        raise SyntaxDataError("there is no such folder to write to", path=path, hint="make it first: mkdir -p")


@contextmanager
def atomic_open(path: StrPath) -> Iterator[IO[str]]:
    """Open a text file for writing, which replaces ``path`` only when the block ends without an error.

    After a kill, a full disk or an exception, the former content of ``path`` remains. For a symbolic link, the target
    is replaced; FIFOs and devices are written directly. Temporary files of killed runs for the same path are removed.

    Raises:
        SyntaxDataError: the file cannot be written
    """
    with atomic_open_binary(path) as stream:
        text = io.TextIOWrapper(cast(Any, stream), encoding="utf-8", newline="\n")
        try:
            yield text
        finally:
            with as_data_error(path):
                text.detach()  # its finalizer would close the binary file, and so complete it


@contextmanager
def atomic_open_binary(path: StrPath, *, leftovers: bool = True) -> Iterator[IO[bytes]]:
    """Like :func:`atomic_open`, for bytes; with the name of a compressed format, the file is compressed reproducibly.

    ``leftovers=False`` does not look for temporary files of killed runs, which is slow in a folder with many files.
    """
    if not is_replaced(path):
        with as_data_error(path), open(_descriptor(_resolved(path)), "wb") as file, _compressing(path, file) as inner:
            yield inner
        return
    with atomic_path(path, leftovers=leftovers) as temporary:
        try:
            with open(temporary, "wb") as file, _compressing(path, file) as inner:
                yield inner
        except OSError as error:
            if error.filename is None:  # not for a file that the block was reading
                raise _data_error(path, error) from error
            raise


@contextmanager
def _compressing(path: StrPath, file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The file, or a compressor for it according to its extension."""
    kind = os.path.splitext(os.fspath(path))[1]
    if kind not in COMPRESSED:
        yield file
        return
    with COMPRESSED[kind][1](file, "wb") as packed:
        yield cast(IO[bytes], packed)


@contextmanager
def atomic_path(path: StrPath, *, leftovers: bool = True) -> Iterator[str]:
    """A temporary name next to ``path``, for libraries that open files by name; otherwise like :func:`atomic_open`."""
    if not is_replaced(path):
        raise SyntaxDataError("must be a regular file", path=path)
    target = _resolved(path)
    folder, name = os.path.split(target)
    if leftovers:
        remove_leftovers(folder or ".", [name])
    while True:
        with as_data_error(path):
            handle, temporary = tempfile.mkstemp(dir=folder or ".", prefix=f".{name}.", suffix=".part")
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)  # so that other processes do not take it for a leftover
        if _is_file(handle, temporary):
            break
        os.close(handle)  # another process removed it before it was locked
    try:
        yield temporary
        with as_data_error(path):
            os.fsync(handle)  # otherwise a power failure may leave the name without the content
            _take_name(temporary, target)
    finally:
        os.close(handle)
        with suppress(FileNotFoundError):
            os.remove(temporary)


@contextmanager
def as_data_error(path: StrPath, done: str = "written") -> Iterator[None]:
    """Turn an OSError in the block into a SyntaxDataError that names the file, which cannot be written or read."""
    try:
        yield
    except OSError as error:
        raise _data_error(path, error, done) from error


@contextmanager
def errors_in(path: StrPath, line: int | None = None) -> Iterator[None]:
    """Add the file, and the line if it names none, to a SyntaxDataError in the block that names no file."""
    try:
        yield
    except SyntaxDataError as error:
        if error.path is not None:
            raise
        line = line if error.line is None else error.line
        raise SyntaxDataError(error.message, path=path, line=line, option=error.option, hint=error.hint) from error


def make_folder(path: StrPath) -> None:
    """Create a folder and its parents unless they exist."""
    with as_data_error(path):
        os.makedirs(path, exist_ok=True)


def check_shared(folder: StrPath) -> None:
    """Raise SyntaxDataError if a folder does not exist, such as on a machine that does not share the file system."""
    if not os.path.isdir(folder):
        hint = "it must be on a file system that all machines share"
        raise SyntaxDataError(f"is not there on {socket.gethostname()}", path=folder, hint=hint)


def is_replaced(path: StrPath) -> bool:
    """Whether writing a path creates a file (at the target of a link), unlike for a FIFO or a device.

    Raises:
        SyntaxDataError: the path is a folder
    """
    target = _resolved(path)
    if os.path.isdir(target):
        raise SyntaxDataError("cannot be written: it is a folder", path=path)
    return _OPEN_FILE.match(target) is None and (os.path.isfile(target) or not os.path.exists(target))


def remove_leftovers(folder: StrPath, names: Collection[str] | None = None) -> None:
    """Remove the temporary files of killed runs from a folder. Those of running processes are locked and are kept.

    Args:
        names: only those for files with these names (default: all)
    """
    with suppress(OSError):
        for entry in os.scandir(folder):
            match = _TEMPORARY.match(entry.name)
            if match and (names is None or match["name"] in names):
                with suppress(OSError), open(entry.path, "r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.remove(entry.path)


def _take_name(temporary: str, target: str) -> None:
    # mkstemp creates files that only the owner can read; use the permissions of ordinary new files.
    umask = os.umask(0)
    os.umask(umask)
    os.chmod(temporary, 0o666 & ~umask)
    os.replace(temporary, target)


def _is_file(handle: int, path: str) -> bool:
    """Whether a name still refers to an open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _resolved(path: StrPath) -> str:
    """The target of symbolic links; names of open descriptors are not resolved."""
    name = "/dev/stdout" if os.fspath(path) == "-" else os.fspath(path)
    for _ in range(40):  # the maximum number of links that Linux follows
        if _OPEN_FILE.match(name) or not os.path.islink(name):
            break
        name = os.path.join(os.path.dirname(name), os.readlink(name))
    return name


def _descriptor(name: str) -> int:
    """Open a FIFO, a device or an open stream of the process for writing."""
    if (match := _OPEN_FILE.match(name)) is None:
        return os.open(name, os.O_WRONLY)
    number = {"out": 1, "err": 2}.get(match["name"]) or int(match["number"] or match["of_process"] or 0)
    if number == 1:
        sys.stdout.flush()
    return os.dup(number)


def _data_error(path: StrPath, error: OSError, done: str = "written") -> SyntaxDataError:
    full = error.errno in (*DISK_FULL, errno.EFBIG) or "too large" in str(error).lower()
    hint = MAKE_ROOM if full else None
    return SyntaxDataError(f"cannot be {done}: {error.strerror or error}", path=path, hint=hint)


def write_json(path: StrPath, value: Any) -> None:
    """Write a JSON file atomically."""
    text = json.dumps(value, ensure_ascii=False, indent=1) + "\n"
    with atomic_open_binary(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))  # JSON's escapes for file names that are not UTF-8
