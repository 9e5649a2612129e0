"""Files of other file systems, by their URIs: ``s3://bucket/train.en``, and whatever else pyarrow knows.

``s3://KEY:SECRET@bucket/name?endpoint_override=HOST:PORT&scheme=http&region=R`` says all that the environment does not
(``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``, ``AWS_REGION``, or a machine's role).

A file appears when it is whole. An object store shows an upload when it is complete; elsewhere a temporary name is
written and renamed. Nothing is locked there: whatever is written twice must be written with the same bytes.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from uuid import uuid4

from fairseq_syntax.errors import SyntaxDataError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")  # two letters at least: C:/ is a drive
_SETTINGS = re.compile(r"[A-Za-z_]+=[^&]*(?:&[A-Za-z_]+=[^&]*)*")
# Whose uploads show when they are complete, and which have no folders to make.
_OBJECT_STORES = frozenset({"s3", "gs", "gcs", "abfs", "abfss"})


@dataclass(frozen=True)
class Uri(os.PathLike[str]):
    """A file that is named by a URI, with the methods of ``Path`` that the package uses of such files.

    ``str`` and ``os.fspath`` give it without credentials and settings, for messages.

    Raises:
        SyntaxDataError: a part of the name would be taken for something else
    """

    uri: str

    def __post_init__(self) -> None:
        _check_name(self.uri, self)

    def __fspath__(self) -> str:
        parts = urlsplit(self.uri)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def __str__(self) -> str:
        return self.__fspath__()

    @property
    def name(self) -> str:
        """The last part of its path."""
        return PurePosixPath(urlsplit(self.uri).path).name

    def with_name(self, name: str) -> Uri:
        """Another file of the same folder."""
        return self._with_path(str(PurePosixPath(urlsplit(self.uri).path).with_name(name)))

    def __truediv__(self, name: str) -> Uri:
        return self._with_path(str(PurePosixPath(urlsplit(self.uri).path) / name))

    def absolute(self) -> Uri:
        """Itself."""
        return self

    def open(self) -> IO[bytes]:
        """The file, to be read as bytes. Raises OSError."""
        import io

        system, path = self._place()
        with _as_os_error():
            return io.BufferedReader(system.open_input_stream(path, compression=None), 1 << 20)

    def read_bytes(self) -> bytes:
        """Its content. Raises OSError, FileNotFoundError where there is no such file."""
        with self.open() as file, _as_os_error():
            return file.read()

    def is_file(self) -> bool:
        """Whether there is such a file. Raises OSError where that cannot be found out."""
        system, path = self._place()
        with _as_os_error():
            return bool(system.get_file_info(path).is_file)

    def glob(self, pattern: str) -> Iterator[Uri]:
        """The files of this folder whose names end as a pattern ``*ENDING`` does, by name. Raises OSError."""
        from pyarrow import fs

        system, path = self._place()
        with _as_os_error():
            found = system.get_file_info(fs.FileSelector(path, allow_not_found=True))
        for info in sorted(found, key=lambda info: info.base_name):
            if info.is_file and info.base_name.endswith(pattern.removeprefix("*")):
                yield self / quote(info.base_name)

    def make_folder(self) -> None:
        """Makes a folder of this name, where the file system has such. Raises OSError."""
        system, path = self._place()
        if self._scheme not in _OBJECT_STORES:
            with _as_os_error():
                system.create_dir(path, recursive=True)

    def remove_folder(self) -> None:
        """Removes the folder of this name with all that is in it, if there is one. Raises OSError."""
        system, path = self._place()
        with _as_os_error(), suppress(FileNotFoundError):
            system.delete_dir(path)

    @contextmanager
    def atomic_open_binary(self) -> Iterator[IO[bytes]]:
        """The file, to be written; it is there when the block ends without an error. Raises OSError."""
        system, path = self._place()
        direct = self._scheme in _OBJECT_STORES
        target = path if direct else f"{os.path.dirname(path)}/.{self.name}.{uuid4().hex}.part"
        with _as_os_error():
            file = system.open_output_stream(target, compression=None)
        try:
            yield file
            with _as_os_error():
                file.close()
                if not direct:
                    system.move(target, path)
        except BaseException:
            if direct:
                # To close the stream, which its destructor does too, would complete the upload; pyarrow has no other
                # way to give it up. So it is never destroyed, and the upload is what a kill leaves of one.
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(file))
            else:
                with suppress(OSError):
                    file.close()
                    system.delete_file(target)
            raise

    @property
    def _scheme(self) -> str:
        return urlsplit(self.uri).scheme.lower()

    def _with_path(self, path: str) -> Uri:
        return Uri(_with_path(self.uri, path))

    def _place(self) -> tuple[Any, str]:
        """pyarrow's file system, and the path in it. Raises SyntaxDataError where pyarrow does not know the scheme."""
        parts = urlsplit(self.uri)
        system, root = _file_system(_with_path(self.uri, ""), self)
        return system, root + unquote(parts.path)


def location(text: str) -> Path | Uri:
    """What a path or a URI names; ``file://`` is a path.

    Raises:
        SyntaxDataError: pyarrow does not know the scheme, or cannot read the URI; or ``file://`` names a machine
    """
    if not _SCHEME.match(text):
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme == "file":
        _check_name(text, text, settings=False)
        if parts.netloc not in ("", "localhost"):
            raise SyntaxDataError(f"{parts.netloc} is a machine, not a folder", path=text, hint="file:///DIR/NAME")
        return Path(unquote(parts.path))
    uri = Uri(text)
    uri._place()
    return uri


def _check_name(uri: str, file: str | Uri, settings: bool = True) -> None:
    """Makes sure that a URI is a name, and settings after it where there may be any.

    Raises:
        SyntaxDataError: what follows a ``#`` or a ``?`` is neither, and would be left out
    """
    _, mark, query = uri.partition("?")
    if "#" in uri or (mark and not (settings and _SETTINGS.fullmatch(query))):
        raise SyntaxDataError("a # or ? is no part of a name in a URI", path=file, hint="write them as %23 and %3F")


def _with_path(uri: str, path: str) -> str:
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}{path}" + (f"?{parts.query}" if parts.query else "")


_file_systems: dict[str, tuple[Any, str]] = {}  # of this process


def _file_system(uri: str, file: Uri) -> tuple[Any, str]:
    """The file system of a URI without a path, and what it calls the URI (a bucket, or nothing)."""
    from pyarrow import ArrowException, fs

    if uri in _file_systems:
        return _file_systems[uri]
    given = uri
    query = parse_qs(urlsplit(uri).query)
    endpoint = (
        "endpoint_override" in query or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    )
    region = "region" in query or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if uri.startswith("s3://") and endpoint and not region:
        # Amazon would be asked for the bucket's region, which another store's buckets do not have.
        uri += ("&" if query else "?") + "region=us-east-1"
    try:
        system, root = fs.FileSystem.from_uri(uri)
    except (ArrowException, OSError, ValueError) as error:
        reason = _line(error).replace(uri, str(Uri(uri)))  # without credentials
        raise SyntaxDataError(f"cannot be opened: {reason}", path=file) from None
    _file_systems[given] = system, root.rstrip("/")
    return _file_systems[given]


@contextmanager
def _as_os_error() -> Iterator[None]:
    """pyarrow's errors of input and output as OSErrors with a reason of one line."""
    from pyarrow import ArrowException

    try:
        yield
    except (OSError, ArrowException) as error:
        number = getattr(error, "errno", None)
        if isinstance(number, int):
            raise type(error)(number, os.strerror(number)) from error  # type: ignore[call-arg]
        raise OSError(0, _line(error)) from error


def _line(error: BaseException) -> str:
    return str(error).partition("\n")[0].partition(" Detail:")[0][:300]
