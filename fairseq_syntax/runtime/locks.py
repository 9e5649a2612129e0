"""File and folder locks, which are released when the process ends, even if it is killed."""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from filelock import FileLock, Timeout

from fairseq_syntax.errors import SyntaxDataError
from fairseq_syntax.runtime.files import StrPath, as_data_error, is_replaced

logger = logging.getLogger(__name__)
logging.getLogger("filelock").setLevel(logging.WARNING)  # filelock logs each lock, also at exit

_held: dict[str, FileLock] = {}  # folder locks, which this process holds until it ends


@contextmanager
def locked(path: StrPath, stopped: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """A context that holds the lock ``.NAME.lock`` of a file to be made, after waiting for other processes.

    Args:
        stopped: whether to give up waiting: for threads, which no signal interrupts

    Raises:
        SyntaxDataError: the file's folder cannot be written, or the waiting was stopped
    """
    if not is_replaced(path):
        yield
        return
    folder, name = os.path.split(os.path.realpath(path))
    lock = FileLock(os.path.join(folder, f".{name}.lock"))
    if not _try_lock(lock, path):
        logger.warning("%s: waiting for another process that writes it", os.fspath(path))
        while not _try_lock(lock, path):
            if stopped():
                raise SyntaxDataError("stopped while another process was writing it", path=path)
            time.sleep(0.05)
    try:
        yield
    finally:
        if lock.is_locked:
            # While it is held: processes that wait for it see that it is gone, and create another.
            with suppress(OSError):
                os.remove(lock.lock_file)
            lock.release()


def hold_folder(folder: StrPath) -> None:
    """Reserve a folder for this process until it ends. Raises SyntaxDataError if another process holds it."""
    path = os.path.join(os.path.realpath(folder), ".in-use.lock")
    lock = FileLock(path, thread_local=False)
    if path not in _held and not _try_lock(lock, folder):
        message = "another process is writing to this folder"
        raise SyntaxDataError(message, path=folder, hint="wait for its end, or name another folder")
    _held.setdefault(path, lock)


def _try_lock(lock: FileLock, path: StrPath) -> bool:
    """Acquire a lock without waiting; returns False if another process holds it.

    In a read-only folder or a file system without locks, nothing is locked: writing to the former fails anyway, and a
    finished step writes nothing. A lock file of another user in a shared folder is an error, since the two processes
    would not wait for each other.
    """
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except OSError as error:
        writable = os.access(os.path.dirname(lock.lock_file), os.W_OK)
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP) and writable:
            with as_data_error(path):
                raise
    return True
