"""One piece of work at a time, cancelled between two steps."""

import threading
from collections.abc import Callable, Iterator

import pytest

from verifier.bench import Bench, Cancelled


@pytest.fixture
def bench() -> Iterator[Bench[str, int]]:
    made: Bench[str, int] = Bench()
    yield made
    made.close()


def taken(bench: Bench[str, int]) -> Callable[[], int]:
    while (work := bench.take()) is None:
        threading.Event().wait(0.01)
    return work.future.result


def test_result_is_taken_once_and_frees_the_bench(bench: Bench[str, int]) -> None:
    bench.begin("sum", lambda go_on: 1 + 1)
    assert bench.subject == "sum"
    assert taken(bench)() == 2
    assert bench.subject is None
    assert bench.take() is None


def test_unfinished_work_is_not_taken_and_stops_when_cancelled(bench: Bench[str, int]) -> None:
    def forever(go_on: Callable[[], None]) -> int:
        while True:
            go_on()
            threading.Event().wait(0.01)

    bench.begin("forever", forever)
    assert bench.take() is None
    bench.cancel()
    with pytest.raises(Cancelled):
        taken(bench)()


def test_error_of_the_work_comes_with_it(bench: Bench[str, int]) -> None:
    bench.begin("fails", lambda go_on: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        taken(bench)()
