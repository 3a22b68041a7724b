"""What an owner allows: amounts, requesters, prices, hours; what is written wrong is refused with a hint."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lockstep.base.settings import resolve
from lockstep.execution.jobs import Job
from lockstep.execution.rates import PRICED_OPERATIONS, slot_operations
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import Address, Wei
from worker.policy import Policy
from worker.requesters import FORGIVEN, RequesterHistory

ALICE, BOB = "0x" + "a1" * 20, "0x" + "b0" * 20


def policy(**settings: str | int) -> Policy:
    return Policy.of(resolve(**{"max_stake": "all", **settings}))


def test_all_is_no_limit_and_an_amount_counts_what_was_put_in() -> None:
    assert policy().allowance(10**30) is None
    limited = policy(max_stake="40 LST")
    assert [limited.allowance(n * 10**18) for n in (0, 15, 40, 50)] == [40 * 10**18, 25 * 10**18, 0, 0]
    assert policy(max_stake="0").allowance(0) == 0, "nothing at all is a limit, too"


def test_only_the_requesters_that_are_named_are_served() -> None:
    named = policy(jobs_from=f"{ALICE}, {BOB}")
    known = sorted(named.jobs_from)
    assert [named.refuses_requester(a) for a in known] == ["", ""]
    assert "names others" in named.refuses_requester(Address("0x" + "cc" * 20))
    assert policy().refuses_requester(Address("0x" + "cc" * 20)) == ""


def test_a_price_is_compared_by_computed_work(toy: Job) -> None:
    operations = slot_operations(toy.programs, toy.params.role.inner_steps)
    assert operations > 0
    paid = toy.params.role.slot_price * PRICED_OPERATIONS // operations
    enough, more = Policy(min_price=Wei(paid)), Policy(min_price=Wei(paid + 1))
    assert enough.refuses_price(toy.params, operations) == ""
    assert "--min-price" in more.refuses_price(toy.params, operations)


def test_a_requester_that_owes_is_refused_at_the_bound() -> None:
    requester = Address("0x" + "cc" * 20)
    bound = policy(max_unpaid=2)
    assert bound.refuses_history(requester, RequesterHistory(unpaid=1)) == ""
    assert "--max-unpaid is 2" in bound.refuses_history(requester, RequesterHistory(unpaid=2))
    assert bound.refuses_history(requester, RequesterHistory(FORGIVEN, 2)) == "", "what was paid forgives"
    assert policy(max_unpaid=0).refuses_history(requester, RequesterHistory(unpaid=10**6)) == ""


@pytest.mark.parametrize(
    ("hours", "open_hours"),
    [("22-6", {22, 23, 0, 1, 2, 3, 4, 5}), ("9-12", {9, 10, 11}), ("18-24", set(range(18, 24))), ("", set(range(24)))],
)
def test_hours_go_over_midnight(hours: str, open_hours: set[int]) -> None:
    assert {h for h in range(24) if policy(hours=hours).open_at(h)} == open_hours


def test_the_wait_until_the_hours_begin_is_known_to_the_second() -> None:
    night = policy(hours="22-6")
    assert night.closed_for(datetime(2026, 3, 1, 21, 59, 30, tzinfo=UTC)) == 30
    assert night.closed_for(datetime(2026, 3, 1, 6, 0, 0, tzinfo=UTC)) == 16 * 3600
    assert night.closed_for(datetime(2026, 3, 1, 23, 0, 0, tzinfo=UTC)) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_stake", ""), ("max_stake", "much"), ("max_stake", "-1"), ("max_stake", "1,000"),
        ("jobs_from", "0x12"), ("jobs_from", f"{ALICE} {BOB}"),
        ("min_price", "cheap"),
        ("hours", "22"), ("hours", "24-6"), ("hours", "5-5"), ("hours", "1-25"), ("hours", "0-24"),
    ],
)  # fmt: skip
def test_what_is_written_wrong_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(UsageError, match=name) as refused:
        policy(**{name: value})
    assert refused.value.hint
