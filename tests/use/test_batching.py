"""Batches of what waits: who goes together, what a bad item does to the others, what is dropped."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError, Future
from queue import SimpleQueue
from typing import Any

import pytest

from fairseq_syntax.use.serving.batching import PAUSE, BatchWorker, Cancelled


class Work:
    """Doubles numbers, in batches that it notes; the first waits until ``go`` is set."""

    def __init__(self) -> None:
        self.batches: list[tuple[object, list[int]]] = []
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self, key: object, items: list[int], on_step: Any, nested: bool) -> list[int]:
        self.batches.append((key, list(items)))
        self.began.set()
        assert self.go.wait(20)
        if 13 in items:
            raise ValueError("thirteen")
        return [2 * item for item in items]


@pytest.fixture
def stage():
    work = Work()
    made = BatchWorker("test", work, size=4, weight=20)
    made.submit(0)
    assert work.began.wait(20)
    yield made, work
    work.go.set()
    made.close()


def test_what_waits_goes_together_by_key_oldest_first(stage):
    made, work = stage
    futures = [made.submit(i, key=i % 2) for i in range(1, 9)]
    assert len(made._waiting) == 8
    work.go.set()
    assert [f.result(20) for f in futures] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert work.batches[1:] == [(1, [1, 3, 5, 7]), (0, [2, 4, 6, 8])]


def test_a_batch_is_bounded_in_items_and_in_padded_weight(stage):
    made, work = stage
    futures = [made.submit(i, weight=weight) for i, weight in enumerate([1, 1, 1, 1, 1, 5, 9, 9, 30, 1])]
    work.go.set()
    assert [f.result(20) for f in futures] == [2 * i for i in range(10)]
    # four items; the next weighs five times three, not nine times three; a long one alone
    assert [items for _, items in work.batches[1:]] == [[0, 1, 2, 3], [4, 5], [6, 7], [8], [9]]


def test_a_bad_item_spoils_no_other(stage):
    made, work = stage
    futures = [made.submit(i) for i in (12, 13, 14, 15)]
    work.go.set()
    assert [f.result(20) for f in (futures[0], *futures[2:])] == [24, 28, 30]
    with pytest.raises(ValueError, match="thirteen"):
        futures[1].result(20)


def test_what_is_cancelled_is_never_worked_on(stage):
    made, work = stage
    futures = [made.submit(i) for i in (1, 2, 3)]
    assert futures[1].cancel() and len(made._waiting) == 2
    work.go.set()
    assert futures[2].result(20) == 6
    with pytest.raises(CancelledError):
        futures[1].result(20)
    assert [items for _, items in work.batches[1:]] == [[1, 3]]


def test_closing_finishes_what_was_submitted(stage):
    made, work = stage
    futures = [made.submit(i) for i in range(10)]
    threading.Timer(0.05, work.go.set).start()
    made.close()
    assert [f.result(0) for f in futures] == [2 * i for i in range(10)]
    with pytest.raises(RuntimeError, match="closed"):
        made.submit(1)


@pytest.mark.parametrize("fault", [SystemExit("enough"), KeyboardInterrupt(), StopIteration(), "too few"])
def test_whatever_a_batch_ends_with_the_next_one_is_worked_on(fault):
    def work(key, items, on_step, nested):
        if key == "bad":
            if isinstance(fault, BaseException):
                raise fault
            return []
        return items

    made = BatchWorker("test", work, size=4, weight=20)
    try:
        with pytest.raises(RuntimeError):
            made.submit(1, key="bad").result(20)
        assert made.submit(2, key="good").result(20) == 2

        async def ask():  # as the server does: what ends a program would end its loop
            with pytest.raises(RuntimeError):
                await asyncio.wrap_future(made.submit(1, key="bad"))
            return await asyncio.wrap_future(made.submit(3, key="good"))

        assert asyncio.run(ask()) == 3
    finally:
        made.close()


class Stepping:
    """Steps as often as an item says, and notes what it sees; nested work has steps of its own."""

    def __init__(self) -> None:
        self.steps: dict[int, int] = {}
        self.ended: list[int] = []
        self.began = threading.Event()
        self.nested: list[list[int]] = []

    def __call__(self, key: object, items: list[int], on_step: Any, nested: bool) -> list[int]:
        if nested:
            self.nested.append(list(items))
        for _ in range(max(items)):
            self.ended = on_step()
            for item in items:
                self.steps[item] = self.steps.get(item, 0) + 1
            self.began.set()
            time.sleep(0.002)
        return items


def test_work_that_nobody_waits_for_ends_at_its_next_step():
    work = Stepping()
    stage = BatchWorker("test", work, size=4, weight=20)
    future = stage.submit(10_000)
    assert work.began.wait(20)
    future.cancel()
    at_most = work.steps[10_000] + 1
    assert stage.submit(1).result(20) == 1 and work.steps[10_000] <= at_most
    with pytest.raises(Cancelled):
        future.result(0)
    # after a deadline as well
    end = time.monotonic() + 0.05
    future = stage.submit(10_000, deadline=end)
    with pytest.raises(Cancelled):
        future.result(20)
    with pytest.raises(TimeoutError):
        stage.submit(10_000, deadline=end).result(20)
    stage.close()


def test_one_of_a_batch_is_told_of_alone():
    work = Stepping()
    stage = BatchWorker("test", work, size=4, weight=20)
    stage.submit(50)
    assert work.began.wait(20)
    futures = [stage.submit(200), stage.submit(201)]
    while 200 not in work.steps:
        time.sleep(0.002)
    futures[0].cancel()
    assert futures[1].result(20) == 201 and work.ended == [0]
    stage.close()


@pytest.fixture
def impatient(monkeypatch):
    """Batches can be interrupted from the first step on."""
    monkeypatch.setattr("fairseq_syntax.use.serving.batching.PATIENCE", 0.0)


def test_a_light_item_does_not_wait_for_a_heavy_batch(impatient):
    work = Stepping()
    stage = BatchWorker("test", work, size=4, weight=2000)
    heavy = stage.submit(20_000, weight=1000)  # for long: a busy machine may take seconds for what follows
    assert work.began.wait(20)
    middling = stage.submit(7, weight=500)
    assert stage.submit(5, weight=10).result(20) == 5
    assert not heavy.done() and not middling.done() and work.nested == [[5]]
    heavy.cancel()
    assert middling.result(20) == 7
    stage.close()


def test_light_items_take_half_of_the_time_at_most(impatient):
    work = Stepping()
    stage = BatchWorker("test", work, size=1, weight=2000)
    heavy = stage.submit(100, weight=1000)
    light: list[Future[int]] = []
    done: SimpleQueue[int] = SimpleQueue()  # how many light ones are, when the heavy one is
    heavy.add_done_callback(lambda _: done.put(sum(future.done() for future in light)))
    light += [stage.submit(10, weight=10) for _ in range(30)]
    assert heavy.result(60) == 100
    assert done.get(timeout=60) <= 15
    stage.close()


def test_a_heavy_batch_waits_for_light_ones_of_other_stages_for_half_of_its_time_at_most(monkeypatch, impatient):
    slept, sleep = [], time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: slept.append(seconds) or sleep(seconds))
    work, running, go = Stepping(), [], SimpleQueue()
    stage = BatchWorker("test", work, size=4, weight=2000, running=running)
    other = BatchWorker(
        "other", lambda key, items, on_step, nested: [go.get(timeout=60)], size=1, weight=20, running=running
    )

    def makes_steps(count: int) -> None:
        until = work.steps[10_000] + count
        while work.steps[10_000] < until:
            sleep(0.002)

    heavy = stage.submit(10_000, weight=1000)
    assert work.began.wait(20)
    light = other.submit(0, weight=250)
    while PAUSE not in slept:
        sleep(0.002)
    makes_steps(3)  # a light one that takes for ever does not stop it
    go.put(1)
    assert light.result(20)
    middling = other.submit(0, weight=251)  # not light beside this one: both go on
    while 251 not in running:
        sleep(0.002)
    makes_steps(2)
    slept.clear()
    makes_steps(3)
    assert PAUSE not in slept
    go.put(1)
    assert middling.result(20)
    heavy.cancel()
    stage.close(), other.close()
    assert not running


def test_a_large_request_delays_its_own_items_and_not_those_of_others():
    order: list[int] = []
    go = threading.Event()

    def work(key: object, items: list[int], on_step: Any, nested: bool) -> list[int]:
        assert go.wait(20)
        order.extend(items)
        return items

    stage = BatchWorker("test", work, size=2, weight=100)
    stage.submit(0)
    futures = [stage.submit(i, weight=10, request="large") for i in range(1, 9)]
    futures += [stage.submit(i, weight=10, request=i) for i in (100, 101)]
    go.set()
    for future in futures:
        future.result(20)
    assert order[:4] == [0, 1, 100, 101] or set(order[1:4]) == {1, 100, 101}
    stage.close()


def test_a_light_item_that_overtakes_gives_later_requests_no_credit(stage):
    """The clock of the queue never goes back, or whoever comes later would start before the work of earlier ones."""
    made, _ = stage
    for number in range(4):
        made.submit(number, weight=10, request="large")  # start tags 0, 10, 20 and 30
    with made._changed:
        *_, last = waiting = list(made._waiting)
        made._choose([last], most=10)
        made._choose(waiting[:1], most=10)
    made.submit(100, request="new")
    assert list(made._waiting)[-1].turn == last.turn == 30


def test_closing_with_a_limit_ends_what_runs():
    work = Stepping()
    stage = BatchWorker("test", work, size=4, weight=20)
    futures = [stage.submit(100_000), stage.submit(3, key="other")]
    assert work.began.wait(20)
    stage.close(0.05)
    assert not stage._thread.is_alive()
    with pytest.raises(Cancelled):
        futures[0].result(0)
    with pytest.raises(TimeoutError):
        futures[1].result(0)
