"""Batches of what waits: who goes together, what a bad item does to the others, what is dropped."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError

import pytest

from fairseq_syntax.use.serving.batching import Stage


class Work:
    """Doubles numbers, in batches that it notes; the first waits until ``go`` is set."""

    def __init__(self) -> None:
        self.batches: list[tuple[object, list[int]]] = []
        self.began, self.go = threading.Event(), threading.Event()

    def __call__(self, key: object, items: list[int]) -> list[int]:
        self.batches.append((key, list(items)))
        self.began.set()
        assert self.go.wait(20)
        if 13 in items:
            raise ValueError("thirteen")
        return [2 * item for item in items]


@pytest.fixture
def stage():
    work = Work()
    made = Stage("test", work, size=4, words=20)
    made.submit(0)
    assert work.began.wait(20)
    yield made, work
    work.go.set()
    made.close()


def test_what_waits_goes_together_by_key_oldest_first(stage):
    made, work = stage
    futures = [made.submit(i, key=i % 2) for i in range(1, 9)]
    assert made.waiting() == 8
    work.go.set()
    assert [f.result(20) for f in futures] == [2, 4, 6, 8, 10, 12, 14, 16]
    assert work.batches[1:] == [(1, [1, 3, 5, 7]), (0, [2, 4, 6, 8])]


def test_a_batch_is_bounded_in_items_and_in_padded_words(stage):
    made, work = stage
    futures = [made.submit(i, words=words) for i, words in enumerate([1, 1, 1, 1, 1, 5, 9, 9, 30, 1])]
    work.go.set()
    assert [f.result(20) for f in futures] == [2 * i for i in range(10)]
    # four items; the next five words times three, not nine times three; a long one alone
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
    assert futures[1].cancel() and made.waiting() == 2
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
    def work(key, items):
        if key == "bad":
            if isinstance(fault, BaseException):
                raise fault
            return []
        return items

    made = Stage("test", work, size=4, words=20)
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
