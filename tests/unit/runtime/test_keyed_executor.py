"""Work beside a loop: by key, its result or error once, never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from lockstep.runtime.keyed_executor import KeyedExecutor, Stopped
from tests.support.waiting import PATIENCE


@pytest.fixture
def executor() -> Iterator[KeyedExecutor[str, int]]:
    made: KeyedExecutor[str, int] = KeyedExecutor("test")
    yield made
    made.close()


def test_a_result_is_taken_once(executor: KeyedExecutor[str, int]) -> None:
    woken = threading.Event()
    told: KeyedExecutor[str, int] = KeyedExecutor("told", woken.set)
    told.begin("a", lambda: 7)
    assert woken.wait(PATIENCE), "the loop need not ask again and again"
    told.close()
    assert told.over("a")
    assert told.take("a") == 7
    assert "a" not in told
    assert told.take("a") is None


def test_one_piece_of_work_has_a_key(executor: KeyedExecutor[str, int]) -> None:
    go, begun = threading.Event(), []

    def work() -> int:
        begun.append(1)
        go.wait(PATIENCE)
        return len(begun)

    executor.begin("a", work)
    executor.begin("a", work)
    assert ("a" in executor, executor.over("a"), executor.take("a"), len(executor)) == (True, False, None, 1)
    go.set()
    executor.close()
    assert executor.take("a") == 1


def test_what_work_raises_is_raised_where_it_is_taken(executor: KeyedExecutor[str, int]) -> None:
    def work() -> int:
        raise KeyError("a")

    executor.begin("a", work)
    executor.close()
    with pytest.raises(KeyError):
        executor.take("a")
    assert "a" not in executor, "it may be begun again"


def test_closing_stops_work_between_its_steps(executor: KeyedExecutor[str, int]) -> None:
    began = threading.Event()

    def work() -> int:
        began.set()
        while True:
            executor.go_on()

    executor.begin("a", work)
    assert began.wait(PATIENCE)
    executor.close()
    with pytest.raises(Stopped):
        executor.take("a")


def test_cancelled_work_stops_between_its_steps_and_frees_its_key_when_it_is_taken() -> None:
    executor: KeyedExecutor[str, int] = KeyedExecutor("two", threads=2)
    enough = threading.Event()

    def work(key: str) -> int:
        while not enough.wait(0.01):
            executor.go_on(key)
        return 7

    executor.cancel("a")
    for key in ("a", "b"):
        executor.begin(key, partial(work, key))
    assert executor.finished() == [], "what is cancelled before it begins is begun all the same"
    executor.cancel("a")
    wait_for(executor, "a")
    assert executor.finished() == ["a"], "the other goes on"
    with pytest.raises(Stopped):
        executor.take("a")
    executor.begin("a", partial(work, "a"))
    enough.set()
    for key in ("a", "b"):
        wait_for(executor, key)
        assert executor.take(key) == 7, "what was cancelled may be begun again"
    executor.close()


def wait_for(executor: KeyedExecutor[str, int], key: str) -> None:
    until = time.monotonic() + PATIENCE
    while not executor.over(key):
        assert time.monotonic() < until
        time.sleep(0.01)
