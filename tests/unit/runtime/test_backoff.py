"""What failed rests, twice as long each time, up to a bound."""

from lockstep.runtime.backoff import Backoff


def test_rests_double_up_to_a_bound() -> None:
    backoff: Backoff[str] = Backoff(1, 4)
    assert not backoff.in_backoff("a", 0)
    now, ends = 0.0, []
    for _ in range(4):
        backoff.failed("a", now)
        while backoff.in_backoff("a", now):
            now += 1
        ends.append(now)
    assert ends == [1, 3, 7, 11]
    assert not backoff.in_backoff("b", 0), "keys are apart"


def test_success_forgets_failures() -> None:
    backoff: Backoff[str] = Backoff(1, 4)
    for _ in range(3):
        backoff.failed("a", 0)
    assert "a" in backoff
    backoff.succeeded("a")
    assert "a" not in backoff
    backoff.failed("a", 10)
    assert not backoff.in_backoff("a", 11)


def test_without_a_bound_every_rest_is_the_same_and_one_may_be_shorter() -> None:
    backoff: Backoff[str] = Backoff(8)
    for now in (0, 100):
        backoff.failed("a", now)
        assert backoff.in_backoff("a", now + 7)
        assert not backoff.in_backoff("a", now + 8)
    backoff.failed("a", 200, at_most=1)
    assert not backoff.in_backoff("a", 201)


def test_a_shorter_rest_makes_the_next_one_no_longer() -> None:
    backoff: Backoff[str] = Backoff(1, 8)
    for now in range(5):
        backoff.failed("a", now, at_most=1)
        assert not backoff.in_backoff("a", now + 1)
    backoff.failed("a", 10)
    assert backoff.in_backoff("a", 10.5)
    assert not backoff.in_backoff("a", 11), "the first that counts"
