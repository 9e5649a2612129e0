"""Dynamic batching in a worker thread, with fair queueing, deadlines and preemption.

Who waits is served by start-time fair queueing (Goyal, Vin and Cheng, 1996): an item's turn comes after as much work as
its own request has asked for before it, so that a large request delays its own later items and not those of others.
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

LIGHT = 0.25  # what may interrupt a batch: at most this share of its heaviest item
PATIENCE = 0.2  # seconds that a batch has before it is interrupted: most are over by then


class Cancelled(TimeoutError):
    """Before its work was done, an item was cancelled or late, or the stage was closed."""


class _Answer(Future[Result]):
    """A future that records cancellation also while its item is being processed."""

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
    """The weights of the batches that some stages are working on, where heavy ones wait for light ones to be over.

    They would share the processors otherwise: another model's short sentence would take twice as long.
    """

    def __init__(self) -> None:
        self._weights: list[float] = []
        self._changed = threading.Condition()

    @contextmanager
    def batch(self, weight: float) -> Iterator[None]:
        """While a batch is worked on whose heaviest item has this weight."""
        # Atomic, and nobody waits for it: only a removal is told.
        self._weights.append(weight)
        try:
            yield
        finally:
            with self._changed:
                self._weights.remove(weight)
                self._changed.notify_all()

    def wait_for_light(self, most: float, seconds: float) -> bool:
        """Wait until no batch of at most this weight is worked on, or some seconds; whether there was one."""
        if not any(weight <= most for weight in tuple(self._weights)):  # looked at without the lock in every step
            return False
        with self._changed:
            self._changed.wait_for(lambda: not any(weight <= most for weight in self._weights), seconds)
        return True


class Stage(Generic[Item, Result]):
    """A worker thread that processes waiting items in batches.

    It never waits for more to come: while a batch is worked on, the next one gathers.

    Args:
        name: of the thread
        work: ``work(key, items, on_step, nested)``: what is done with a batch of items of one key; one result for each,
            in their order, or an exception in its place. It calls ``on_step`` between its own steps, as
            :class:`.search_control.SearchControl` does. That gives the numbers of items that nobody waits for any
            more, and raises :class:`Cancelled` where there are no others. In it a light batch may be worked on: with
            ``nested`` true, and an ``on_step`` that does not do so again.
        size: the most items of a batch
        weight: of a batch with its padding, at most: items times the heaviest of them. A heavier item goes alone.
        batch_done: called with the key and the number of items after each batch, in the thread
        patience: seconds that a batch has before a light one may interrupt it
        running: shared with other stages, for whose light batches a heavy one waits

    Where ``work`` raises, the batch is halved and tried again, so that an item that cannot be worked on spoils nobody
    else's; the exception is its own result.
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
        self._clock = 0.0  # the turn of what is worked on
        self._turns: dict[Hashable, float] = {}  # of the next item of each request
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
        """Put an item into the queue.

        Cancelling what is returned takes it out again; if it is being worked on, its work ends at the next step.

        Args:
            key: items of one key may go into one batch
            weight: the work that it is
            request: whose item it is; None: one of its own
            deadline: in seconds of ``time.monotonic``; after it the result is :class:`Cancelled`
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("this stage is closed")
            # After the request's earlier work; of one that was idle, now: it saves up no turns.
            turn = max(self._clock, self._turns.get(request, 0.0)) if request is not None else self._clock
            entry: _Entry[Item, Result] = _Entry(item, key, weight, turn, deadline)
            if request is not None:
                if len(self._turns) > 1024:  # what is over by now has the clock's turn anyway
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
        """Finish what was submitted, then end the thread. Nothing can be submitted any more.

        Args:
            seconds: after which what is left is cancelled (default: never)

        Returns:
            whether the thread has ended: work without steps may go on
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._stopped = True
            # What has steps ends at its next one.
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
        """Take the next entry from the queue, with others of its key that fit into one batch."""
        queue = sorted(waiting, key=lambda entry: entry.turn)
        first = queue[0]
        chosen, heaviest = [first], first.weight
        # Light entries are served before others' earlier turns: the clock does not go back.
        self._clock = max(self._clock, first.turn)
        for entry in queue[1:]:
            if len(chosen) == self._size:
                break
            if entry.key != first.key:
                continue
            heaviest = max(heaviest, entry.weight)
            # No `continue`: lighter entries behind this one must not overtake it.
            if (len(chosen) + 1) * heaviest > most:
                break
            chosen.append(entry)
        for entry in chosen:
            del self._waiting[entry]
        return chosen

    def _begin(self, chosen: list[_Entry[Item, Result]], *, nested: bool = False) -> None:
        """Process a batch without its cancelled entries."""
        # From here on the future does not let itself be cancelled, and `unwanted` says it.
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
        except BaseException as error:  # whatever it is, the next batch is to be worked on
            if len(batch) > 1:
                self._finish(batch[: len(batch) // 2], nested)
                self._finish(batch[len(batch) // 2 :], nested)
                return
            if not isinstance(error, Exception) or isinstance(error, StopIteration):
                # Awaited, SystemExit would end the server's loop, and StopIteration is none that can be awaited.
                error = RuntimeError(f"{type(error).__name__}: {error}")
            results = [error]
        for entry, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                entry.future.set_exception(result)
            else:
                entry.future.set_result(result)

    def _interrupt(self, most: float) -> bool:
        """Process a batch of light entries, if there are any; whether there were."""
        if not self._waiting:  # looked at without the lock in every step
            return False
        with self._changed:
            light = [entry for entry in self._waiting if entry.weight <= most]
            if not light:
                return False
            chosen = self._choose(light, most)
        self._begin(chosen, nested=True)
        return True


class _Steps(Generic[Item, Result]):
    """The step callback of a batch: reports cancelled items, and lets light batches preempt.

    A batch gives away at most half of its time.
    """

    def __init__(self, stage: Stage[Item, Result], batch: list[_Entry[Item, Result]], nested: bool) -> None:
        self._stage, self._batch, self._nested = stage, batch, nested
        # Below 1, so that the batch does not wait for itself among the running ones.
        self._light = LIGHT * max(entry.weight for entry in batch)
        self._begin, self._away = time.monotonic(), 0.0

    def __call__(self) -> list[int]:
        unwanted = [number for number, entry in enumerate(self._batch) if entry.unwanted()]
        if len(unwanted) == len(self._batch) or self._stage._stopped:
            raise Cancelled
        if not self._nested:
            now, stage = time.monotonic(), self._stage
            # Its own work, now - begin - away, less its patience and the time that it gave away.
            left = now - self._begin - stage._patience - 2 * self._away
            if left >= 0 and (stage._interrupt(self._light) or stage._running.wait_for_light(self._light, left)):
                self._away += time.monotonic() - now
        return unwanted
