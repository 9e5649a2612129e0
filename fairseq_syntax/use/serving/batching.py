"""Work of many requests done together, in a thread beside the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass
class _Entry(Generic[Item, Result]):
    item: Item
    key: Hashable
    words: int
    future: Future[Result] = field(default_factory=Future)


class Stage(Generic[Item, Result]):
    """One thread that takes what waits, oldest first, and works on as much of it at once as goes together.

    It never waits for more to come: while a batch is worked on, the next one gathers.

    Args:
        name: of the thread
        work: what is done with a batch of items of one key; one result for each, in their order
        size: the most items of a batch
        words: the most words of a batch with its padding: items times the longest of them. A longer item goes alone.
        batch_done: called with the key and the number of items after each batch, in the thread

    Where ``work`` raises, the batch is halved and tried again, so that an item that cannot be worked on spoils nobody
    else's; the exception is its own result.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Any, list[Item]], Sequence[Result]],
        *,
        size: int,
        words: int,
        batch_done: Callable[[Any, int], None] | None = None,
    ) -> None:
        self._work, self._size, self._words = work, size, words
        self._batch_done = batch_done
        self._numbers = count()
        self._waiting: dict[int, _Entry[Item, Result]] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: Item, *, key: Hashable = None, words: int = 1) -> Future[Result]:
        """Put an item into the queue. Cancelling what is returned takes it out again, if it still waits there."""
        entry: _Entry[Item, Result] = _Entry(item, key, words)
        number = next(self._numbers)
        with self._changed:
            if self._closed:
                raise RuntimeError("this stage is closed")
            self._waiting[number] = entry
            self._changed.notify()
        entry.future.add_done_callback(lambda future: self._forget(number) if future.cancelled() else None)
        return entry.future

    def waiting(self) -> int:
        """Items that nobody works on yet."""
        return len(self._waiting)

    def close(self) -> None:
        """Finish what was submitted, then end the thread. Nothing can be submitted any more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _forget(self, number: int) -> None:
        with self._changed:
            self._waiting.pop(number, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                chosen = self._choose()
            batch = [entry for entry in chosen if entry.future.set_running_or_notify_cancel()]
            if batch:
                self._finish(batch)
                if self._batch_done is not None:
                    self._batch_done(batch[0].key, len(batch))

    def _choose(self) -> list[_Entry[Item, Result]]:
        """Take the oldest entry, and those of its key that fit into one batch with it."""
        numbers: list[int] = []
        key, longest = next(iter(self._waiting.values())).key, 0
        for number, entry in self._waiting.items():
            if entry.key != key:
                continue
            longest = max(longest, entry.words)
            if numbers and (len(numbers) + 1) * longest > self._words:
                break
            numbers.append(number)
            if len(numbers) == self._size:
                break
        return [self._waiting.pop(number) for number in numbers]

    def _finish(self, batch: list[_Entry[Item, Result]]) -> None:
        try:
            results = list(self._work(batch[0].key, [entry.item for entry in batch]))
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results of {len(batch)} items")
        except BaseException as error:  # whatever it is, the next batch is to be worked on
            if len(batch) == 1:
                if not isinstance(error, Exception) or isinstance(error, StopIteration):
                    # Awaited, SystemExit would end the server's loop, and StopIteration is none that can be awaited.
                    error = RuntimeError(f"{type(error).__name__}: {error}")
                batch[0].future.set_exception(error)
                return
            self._finish(batch[: len(batch) // 2])
            self._finish(batch[len(batch) // 2 :])
            return
        for entry, result in zip(batch, results, strict=True):
            entry.future.set_result(result)
