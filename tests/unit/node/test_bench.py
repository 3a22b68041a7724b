"""Work beside a loop: by key, its result or error once, never waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from lockstep.node.bench import Bench, Stopped


@pytest.fixture
def bench() -> Iterator[Bench[str, int]]:
    made: Bench[str, int] = Bench("test")
    yield made
    made.close()


def test_a_result_is_taken_once(bench: Bench[str, int]) -> None:
    woken = threading.Event()
    told: Bench[str, int] = Bench("told", woken.set)
    told.begin("a", lambda: 7)
    assert woken.wait(10), "the loop need not ask again and again"
    told.close()
    assert told.over("a")
    assert told.take("a") == 7
    assert "a" not in told
    assert told.take("a") is None


def test_one_piece_of_work_has_a_key(bench: Bench[str, int]) -> None:
    go, begun = threading.Event(), []

    def work() -> int:
        begun.append(1)
        go.wait(10)
        return len(begun)

    bench.begin("a", work)
    bench.begin("a", work)
    assert ("a" in bench, bench.over("a"), bench.take("a"), len(bench)) == (True, False, None, 1)
    go.set()
    bench.close()
    assert bench.take("a") == 1


def test_what_work_raises_is_raised_where_it_is_taken(bench: Bench[str, int]) -> None:
    def work() -> int:
        raise KeyError("a")

    bench.begin("a", work)
    bench.close()
    with pytest.raises(KeyError):
        bench.take("a")
    assert "a" not in bench, "it may be begun again"


def test_closing_stops_work_between_its_steps(bench: Bench[str, int]) -> None:
    began = threading.Event()

    def work() -> int:
        began.set()
        while True:
            bench.go_on()

    bench.begin("a", work)
    assert began.wait(10)
    bench.close()
    with pytest.raises(Stopped):
        bench.take("a")


def test_cancelled_work_stops_between_its_steps_and_frees_its_key_when_it_is_taken() -> None:
    bench: Bench[str, int] = Bench("two", threads=2)
    enough = threading.Event()

    def work(key: str) -> int:
        while not enough.wait(0.01):
            bench.go_on(key)
        return 7

    bench.cancel("a")
    for key in ("a", "b"):
        bench.begin(key, partial(work, key))
    assert bench.finished() == [], "what is cancelled before it begins is begun all the same"
    bench.cancel("a")
    wait_for(bench, "a")
    assert bench.finished() == ["a"], "the other goes on"
    with pytest.raises(Stopped):
        bench.take("a")
    bench.begin("a", partial(work, "a"))
    enough.set()
    for key in ("a", "b"):
        wait_for(bench, key)
        assert bench.take(key) == 7, "what was cancelled may be begun again"
    bench.close()


def wait_for(bench: Bench[str, int], key: str) -> None:
    until = time.monotonic() + 10
    while not bench.over(key):
        assert time.monotonic() < until
        time.sleep(0.01)
