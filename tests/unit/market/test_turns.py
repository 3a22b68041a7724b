"""What anybody may do is done by one or two of sixteen, whatever the length of a block, and by somebody in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockstep.market.turns import DRAWN, TURN_SECONDS, Turns, place_of
from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import Address, Seconds

ALL = [Address(f"0x{k + 1:040x}") for k in range(16)]
SUBJECTS = [keccak(bytes([k])) for k in range(64)]
SINCE = 1_000


def sent(subject: bytes, known: list[Address], heads: Callable[[int], Seconds], clock: list[float]) -> list[Address]:
    """Those of sixteen who send before they see the thing done: two looks after the first of them.

    `heads`: the chain's time at each look; `clock`: this machine's, which a look takes a second of.
    """
    turns = {account: Turns(account, lambda: clock[0]) for account in ALL}
    found: list[Address] = []
    done: int | None = None
    for look in range(100_000):
        found += [
            account
            for account, own in turns.items()
            if account not in found and own.mine(subject, SINCE, heads(look), known)
        ]
        if found and done is None:
            done = look + 1
        if done is not None and look >= done:
            return found
        clock[0] += 1
    raise AssertionError("nobody sends")


@pytest.mark.parametrize("block", [1, 12], ids=["blocks of a second", "blocks of twelve seconds"])
@pytest.mark.parametrize("known", [0, 16], ids=["nobody is known", "all are known"])
def test_one_or_two_of_sixteen_send(block: int, known: int) -> None:
    senders = [len(sent(s, ALL[:known], lambda look: Seconds(SINCE + block * look), [0.0])) for s in SUBJECTS]
    assert sum(senders) / len(senders) < (1.01 if known else 2)
    assert max(senders) <= (1 if known else 5)


def test_a_chain_without_time_is_no_reason_to_wait_for_ever() -> None:
    senders = [len(sent(s, [], lambda _: Seconds(SINCE), [0.0])) for s in SUBJECTS]
    assert sum(senders) / len(senders) < 2


def test_the_known_come_first_and_nobody_is_always_the_first() -> None:
    known = ALL[:4]
    assert sorted(place_of(SUBJECTS[0], account, known) for account in known) == [0, 1, 2, 3]
    assert all(4 <= place_of(SUBJECTS[0], account, known) < 4 + DRAWN for account in ALL[4:])
    assert {min(known, key=lambda account: place_of(s, account, known)) for s in SUBJECTS} == set(known)


def test_whoever_is_left_alone_acts_at_the_end_of_its_turns_in_every_process() -> None:
    last = Seconds(SINCE + int(TURN_SECONDS * (len(ALL) + DRAWN)))
    for account in ALL:
        assert Turns(account).mine(SUBJECTS[0], SINCE, last, ALL), "the chain's time is the same after a restart"
