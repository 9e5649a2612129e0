"""A stand-in for a full disk."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_no_larger_than(limit: int) -> Iterator[None]:
    """What a full disk does to whoever writes, for this process and those it starts: files end at so many bytes."""
    old_limit, old_handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, old_limit[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, old_handler)
