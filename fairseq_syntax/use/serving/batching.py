"""Dynamic batching in a worker thread, with fair queueing, deadlines and preemption.

The queue uses start-time fair queueing (Goyal, Vin and Cheng, 1996): an item is scheduled after the earlier work of its
own request, so a large request delays its own later items but not those of other requests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_syntax.inference.search_control import OnStep


LIGHT = 0.25  # an item may interrupt a batch if its weight is at most this share of the heaviest item's
PATIENCE = 0.2  # seconds before a batch can be interrupted; most batches finish earlier
PAUSE = 0.005  # seconds for which a heavy batch waits before it looks again whether a light one of another stage runs


class Cancelled(TimeoutError):
    """An item was cancelled, missed its deadline, or was still unfinished when the stage was closed."""


class _Entry(Future[Any]):
    """An item and its future result; it also records a cancellation while the item is being processed."""

    def __init__(self, item: Any, key: Hashable, weight: float, turn: float, deadline: float) -> None:
        super().__init__()
        self.item, self.key, self.weight, self.turn, self.deadline = item, key, weight, turn, deadline
        self._refused = False

    def cancel(self) -> bool:
        self._refused = True
        return super().cancel()

    def unwanted(self) -> bool:
        return self._refused or time.monotonic() > self.deadline


class BatchWorker:
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
        running: the weight of the heaviest item of each batch that is being processed, in a list shared with other
            stages: heavy batches wait for their light ones. Otherwise they would compete for the processors, and
            another model's short sentence would take twice as long.

    If ``work`` raises, the batch is halved and tried again, so an item that fails does not affect the others; its
    result is the exception.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Any, list[Any], OnStep, bool], Sequence[Any]],
        *,
        size: int,
        weight: float,
        running: list[float] | None = None,
    ) -> None:
        self._work, self._size, self._weight = work, size, weight
        self._running = [] if running is None else running
        self._waiting: dict[_Entry, None] = {}  # in the order of arrival
        self._changed = threading.Condition()
        self._clock = 0.0  # virtual time: the start tag of the batch in progress
        self._turns: dict[Hashable, float] = {}  # the start tag of each request's next item
        self._closed = self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(
        self,
        item: Any,
        *,
        key: Hashable = None,
        weight: float = 1,
        request: Hashable = None,
        deadline: float = float("inf"),
    ) -> Future[Any]:
        """Add an item to the queue.

        Cancelling the returned future removes the item; if it is being processed, its processing ends at the next step.

        Args:
            key: only items with the same key share a batch
            weight: the amount of work
            request: what the item belongs to; None for a request of its own
            deadline: on the clock of ``time.monotonic``; afterwards the result is :class:`Cancelled`
        """
        with self._changed:
            if self._closed:
                raise RuntimeError("this stage is closed")
            turn = self._clock
            if request is not None:
                # After the request's earlier work, but not before now: an idle request earns no credit.
                turn = max(turn, self._turns.get(request, 0.0))
                if len(self._turns) > 1024:  # tags that have passed equal the clock anyway
                    self._turns = {name: at for name, at in self._turns.items() if at > self._clock}
                self._turns[request] = turn + weight
            entry = _Entry(item, key, weight, turn, deadline)
            self._waiting[entry] = None
            self._changed.notify()
        entry.add_done_callback(lambda _: self._forget(entry) if entry.cancelled() else None)
        return entry

    def close(self, seconds: float | None = None) -> None:
        """Process the items that were submitted, then end the thread. No further items are accepted.

        Args:
            seconds: time limit, after which remaining items are cancelled (default: none); work that makes no steps may
                go on
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._stopped = True
            # Work that makes steps ends at its next one.
            self._thread.join(1.0)

    def _forget(self, entry: _Entry) -> None:
        with self._changed:
            self._waiting.pop(entry, None)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return
                chosen = self._choose(list(self._waiting), self._weight)
            self._begin(chosen)

    def _choose(self, waiting: list[_Entry], most: float) -> list[_Entry]:
        """Take the next entry from the queue, and others with its key that fit into the batch."""
        queue = sorted(waiting, key=lambda entry: entry.turn)
        first = queue[0]
        chosen, heaviest = [first], first.weight
        # A light entry may overtake entries with earlier tags; the clock never goes back.
        self._clock = max(self._clock, first.turn)
        for entry in queue[1:]:
            if entry.key != first.key:
                continue
            heaviest = max(heaviest, entry.weight)
            # Not `continue`: lighter entries behind this one must not overtake it.
            if len(chosen) == self._size or (len(chosen) + 1) * heaviest > most:
                break
            chosen.append(entry)
        for entry in chosen:
            del self._waiting[entry]
        return chosen

    def _begin(self, chosen: list[_Entry], *, nested: bool = False) -> None:
        """Process a batch, except for its cancelled entries."""
        # A running future cannot be cancelled any more; `unwanted` records the wish.
        batch = [entry for entry in chosen if entry.set_running_or_notify_cancel()]
        for entry in batch:
            if entry.unwanted() or self._stopped:
                entry.set_exception(Cancelled("too late"))
        batch = [entry for entry in batch if not entry.done()]
        if batch:
            weight = max(entry.weight for entry in batch)
            self._running.append(weight)  # atomic, as is its removal
            try:
                self._finish(batch, nested)
            finally:
                self._running.remove(weight)

    def _finish(self, batch: list[_Entry], nested: bool) -> None:
        try:
            items, on_step = [entry.item for entry in batch], self._on_step(batch, nested)
            results = list(self._work(batch[0].key, items, on_step, nested))
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
        for entry, result in zip(batch, results):
            if isinstance(result, Exception):
                entry.set_exception(result)
            else:
                entry.set_result(result)

    def _on_step(self, batch: list[_Entry], nested: bool) -> OnStep:
        """The step callback of a batch: reports cancelled items, and lets light batches interrupt.

        Interruptions take at most half of a batch's time.
        """
        # LIGHT is below 1, so the batch does not wait for itself.
        light = LIGHT * max(entry.weight for entry in batch)
        begin, away = time.monotonic(), 0.0

        def on_step() -> list[int]:
            nonlocal away
            unwanted = [number for number, entry in enumerate(batch) if entry.unwanted()]
            if len(unwanted) == len(batch) or self._stopped:
                raise Cancelled
            now = time.monotonic()
            # The batch's own time (now - begin - away), less the patience and the time of earlier interruptions.
            left = now - begin - PATIENCE - 2 * away
            if not nested and left >= 0:
                if not self._interrupt(light):
                    while time.monotonic() < now + left and any(weight <= light for weight in tuple(self._running)):
                        time.sleep(PAUSE)
                away += time.monotonic() - now
            return unwanted

        return on_step

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
