"""Dynamic batching in a worker thread, with fair queueing, deadlines and preemption.

The queue uses start-time fair queueing (Goyal, Vin and Cheng, 1996): an item is scheduled after the earlier work of its
own request, so a large request delays its own later items but not those of other requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fairseq_syntax.inference.search_control import OnStep

Item = TypeVar("Item")
Result = TypeVar("Result")

LIGHT = 0.25  # an item may interrupt a batch if its weight is at most this share of the heaviest item's
PATIENCE = 0.2  # seconds before a batch can be interrupted; most batches finish earlier


class Cancelled(TimeoutError):
    """An item was cancelled, missed its deadline, or was still unfinished when the stage was closed."""


class _Answer(Future[Result]):
    """A future that also records a cancellation while its item is being processed."""

    unwanted = False

    def cancel(self) -> bool:
        self.unwanted = True
        return super().cancel()


@dataclass(eq=False)
class _Entry(Generic[Item, Result]):
    item: Item
    key: Hashable
    weight: float
    turn: float
    deadline: float
    future: _Answer[Result] = field(default_factory=_Answer)

    def unwanted(self) -> bool:
        return self.future.unwanted or time.monotonic() > self.deadline


class RunningBatches:
    """The weights of the batches that several stages are processing; heavy batches wait for light ones.

    Otherwise they would compete for the processors, and another model's short sentence would take twice as long.
    """

    def __init__(self) -> None:
        self._weights: list[float] = []
        self._changed = threading.Condition()

    @contextmanager
    def batch(self, weight: float) -> Iterator[None]:
        """Register a batch for the duration of the context; ``weight`` is that of its heaviest item."""
        # Appending is atomic, and only removals have waiters to notify.
        self._weights.append(weight)
        try:
            yield
        finally:
            with self._changed:
                self._weights.remove(weight)
                self._changed.notify_all()

    def wait_for_light(self, most: float, seconds: float) -> bool:
        """Wait, at most for some seconds, until no batch up to this weight is running; return whether there was one."""
        if not any(weight <= most for weight in tuple(self._weights)):  # checked in every step, so without the lock
            return False
        with self._changed:
            self._changed.wait_for(lambda: not any(weight <= most for weight in self._weights), seconds)
        return True


class Stage(Generic[Item, Result]):
    """A worker thread that processes waiting items in batches.

    It never waits for a batch to fill up: while one batch is processed, the next one gathers.

    Args:
        name: the name of the thread
        work: ``work(key, items, on_step, nested)`` processes a batch of items with the same key. It returns one result
            (or exception) per item, in order. Between its steps it calls ``on_step``, as
            :class:`.search_control.SearchControl` does, which returns the indices of items that have been cancelled,
            and raises :class:`Cancelled` if all have. During this call, a light batch may be processed, with ``nested``
            true; it cannot be interrupted itself.
        size: the maximum number of items in a batch
        weight: the maximum weight of a batch including padding (the number of items times the largest weight). A
            heavier item forms a batch by itself.
        batch_done: called in the worker thread after each batch, with the key and the number of items
        patience: seconds before a light batch may interrupt a running one
        running: shared with other stages, so that heavy batches wait for their light ones

    If ``work`` raises, the batch is halved and tried again, so an item that fails does not affect the others; its
    result is the exception.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Any, list[Item], OnStep, bool], Sequence[Result | Exception]],
        *,
        size: int,
        weight: float,
        batch_done: Callable[[Any, int], None] | None = None,
        patience: float = PATIENCE,
        running: RunningBatches | None = None,
    ) -> None:
        self._work, self._size, self._weight = work, size, weight
        self._batch_done, self._patience = batch_done, patience
        self._running = running or RunningBatches()
        self._waiting: dict[_Entry[Item, Result], None] = {}  # in the order of arrival
        self._changed = threading.Condition()
        self._clock = 0.0  # virtual time: the start tag of the batch in progress
        self._turns: dict[Hashable, float] = {}  # the start tag of each request's next item
        self._closed = self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        item: Item,
        *,
        key: Hashable = None,
        weight: float = 1,
        request: Hashable = None,
        deadline: float = float("inf"),
    ) -> Future[Result]:
        """Add an item to the queue.

        Cancelling the returned future removes the item; if it is being processed, its processing ends at the next step.

        Args:
            key: only items with the same key share a batch
            weight: the amount of work
            request: the request that the item belongs to; None for a request of its own
            deadline: on the clock of ``time.monotonic``; afterwards the result is :class:`Cancelled`
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("this stage is closed")
            # After the request's earlier work, but not before now: an idle request earns no credit.
            turn = max(self._clock, self._turns.get(request, 0.0)) if request is not None else self._clock
            entry: _Entry[Item, Result] = _Entry(item, key, weight, turn, deadline)
            if request is not None:
                if len(self._turns) > 1024:  # tags that have passed equal the clock anyway
                    self._turns = {name: at for name, at in self._turns.items() if at > self._clock}
                self._turns[request] = turn + weight
            self._waiting[entry] = None
            self._changed.notify()
        entry.future.add_done_callback(lambda future: self._forget(entry) if future.cancelled() else None)
        return entry.future

    def waiting(self) -> int:
        """The number of items in the queue."""
        return len(self._waiting)

    def close(self, seconds: float | None = None) -> bool:
        """Process the items that were submitted, then end the thread. No further items are accepted.

        Args:
            seconds: time limit, after which remaining items are cancelled (default: none)

        Returns:
            whether the thread has ended; work that makes no steps may still be running
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._stopped = True
            # Work that makes steps ends at its next one.
            self._thread.join(1.0)
        return not self._thread.is_alive()

    def _forget(self, entry: _Entry[Item, Result]) -> None:
        with self._changed:
            self._waiting.pop(entry, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if not self._waiting:
                    return
                chosen = self._choose(list(self._waiting), self._weight)
            self._begin(chosen)

    def _choose(self, waiting: list[_Entry[Item, Result]], most: float) -> list[_Entry[Item, Result]]:
        """Take the next entry from the queue, and others with its key that fit into the batch."""
        queue = sorted(waiting, key=lambda entry: entry.turn)
        first = queue[0]
        chosen, heaviest = [first], first.weight
        # A light entry may overtake entries with earlier tags; the clock never goes back.
        self._clock = max(self._clock, first.turn)
        for entry in queue[1:]:
            if len(chosen) == self._size:
                break
            if entry.key != first.key:
                continue
            heaviest = max(heaviest, entry.weight)
            # Not `continue`: lighter entries behind this one must not overtake it.
            if (len(chosen) + 1) * heaviest > most:
                break
            chosen.append(entry)
        for entry in chosen:
            del self._waiting[entry]
        return chosen

    def _begin(self, chosen: list[_Entry[Item, Result]], *, nested: bool = False) -> None:
        """Process a batch, except for its cancelled entries."""
        # A running future cannot be cancelled any more; `unwanted` records the wish.
        batch = [entry for entry in chosen if entry.future.set_running_or_notify_cancel()]
        for entry in batch:
            if entry.unwanted() or self._stopped:
                entry.future.set_exception(Cancelled("too late"))
        batch = [entry for entry in batch if not entry.future.done()]
        if batch:
            with self._running.batch(max(entry.weight for entry in batch)):
                self._finish(batch, nested)
            if self._batch_done is not None:
                self._batch_done(batch[0].key, len(batch))

    def _finish(self, batch: list[_Entry[Item, Result]], nested: bool) -> None:
        try:
            on_step = _Steps(self, batch, nested)
            results = list(self._work(batch[0].key, [entry.item for entry in batch], on_step, nested))
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results of {len(batch)} items")
        except Cancelled as error:
            results = [error] * len(batch)
        except BaseException as error:  # whatever happened, the thread goes on with the next batch
            if len(batch) > 1:
                self._finish(batch[: len(batch) // 2], nested)
                self._finish(batch[len(batch) // 2 :], nested)
                return
            if not isinstance(error, Exception) or isinstance(error, StopIteration):
                # Awaiting SystemExit would end the server's event loop, and StopIteration cannot be awaited.
                error = RuntimeError(f"{type(error).__name__}: {error}")
            results = [error]
        for entry, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                entry.future.set_exception(result)
            else:
                entry.future.set_result(result)

    def _interrupt(self, most: float) -> bool:
        """Process a batch of light entries, if any; return whether there were any."""
        if not self._waiting:  # checked in every step, so without the lock
            return False
        with self._changed:
            light = [entry for entry in self._waiting if entry.weight <= most]
            if not light:
                return False
            chosen = self._choose(light, most)
        self._begin(chosen, nested=True)
        return True


class _Steps(Generic[Item, Result]):
    """The step callback of a batch: reports cancelled items, and lets light batches interrupt.

    Interruptions take at most half of a batch's time.
    """

    def __init__(self, stage: Stage[Item, Result], batch: list[_Entry[Item, Result]], nested: bool) -> None:
        self._stage, self._batch, self._nested = stage, batch, nested
        # LIGHT is below 1, so the batch does not wait for itself.
        self._light = LIGHT * max(entry.weight for entry in batch)
        self._begin, self._away = time.monotonic(), 0.0

    def __call__(self) -> list[int]:
        unwanted = [number for number, entry in enumerate(self._batch) if entry.unwanted()]
        if len(unwanted) == len(self._batch) or self._stage._stopped:
            raise Cancelled
        if not self._nested:
            now, stage = time.monotonic(), self._stage
            # The batch's own time (now - begin - away), less its patience and the time of earlier interruptions.
            left = now - self._begin - stage._patience - 2 * self._away
            if left >= 0 and (stage._interrupt(self._light) or stage._running.wait_for_light(self._light, left)):
                self._away += time.monotonic() - now
        return unwanted
