"""Listening: who must, what it hears, when it ends; the fence between two homes of one account."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain.events import Event
from lockstep.market.ledger import Ledger
from lockstep.protocol.errors import GuardRefused
from lockstep.protocol.jobs import Phase
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import Cid, Digest, JobId, Seconds, Seed, StateRoot, TraceRoot
from lockstep.runtime.guard.doppelganger import FENCE_BLOCKS, Watch
from lockstep.runtime.guard.memory import GuardMemory, RecordKey, SigningRecord
from tests.unit.runtime.guard.promising import SCOPE

ME, SOMEBODY = SCOPE.account, "0x" + "99" * 20
KEY, OTHER_KEY = b"k" * 32, b"o" * 32
JOB, SEED, BASE = JobId(b"j" * 32), Seed(b"s" * 32), StateRoot(b"b" * 32)
CLAIM = claim_id(JOB, 0, 0, 1)
MINE, FOREIGN = b"m" * 32, b"f" * 32


def event(contract: str, name: str, transaction: bytes = FOREIGN, block: int = 7, **args: Any) -> Event:
    """A decoded log."""
    return Event(contract, name, args, block, b"h" * 32, Seconds(0), transaction, 0)


def market(name: str, transaction: bytes = FOREIGN, **args: Any) -> Event:
    """One of job JOB's."""
    return event("JobMarket", name, transaction, **{"job": JOB, "round": 0, "slot": 1, "worker": ME, **args})


@dataclass
class World:
    """A ledger, a memory, and phases that the test sets."""

    memory: GuardMemory
    ledger: Ledger = field(default_factory=Ledger)
    phase: Phase = Phase.TRAINING

    def watch(self, seconds: int = 100, key: bytes = KEY) -> Watch:
        return Watch(self.memory, ME, key, lambda hash_: hash_ == MINE, lambda job, r: self.phase, Seconds(seconds))

    def chain(self, *events: Event) -> None:
        for e in events:
            self.ledger.apply(e)

    def started(self) -> None:
        self.chain(
            event("JobMarket", "JobCreated", job=JOB, requester=SOMEBODY, spec_digest=bytes(32), escrow=1, deposit=1),
            event("JobMarket", "RoundStarted", job=JOB, round=0, attempt=0, base=BASE, outer=BASE),
        )

    def register(self, key: bytes) -> Event:
        registered = event("StakeVault", "NodeRegistered", MINE if key == KEY else FOREIGN, account=ME, key=key)
        self.chain(registered)
        return registered


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with GuardMemory(tmp_path, SCOPE) as memory:
        yield World(memory)


def revealed(out: bytes = b"o" * 32) -> Event:
    return market(
        "Revealed", claim=CLAIM, trace_root=b"t" * 32, out=out, out2=b"p" * 32, trace_cid="c", payload_cid="c"
    )


def known(world: World) -> None:
    promise = SigningRecord(TraceRoot(b"t" * 32), Digest(b"o" * 32), Digest(b"p" * 32), b"n" * 32, Cid("c"), Cid("c"))
    world.memory.bind(RecordKey(CLAIM, SEED, BASE), promise)


def test_a_fresh_home_is_silent_until_it_has_listened_registered_and_waited(world: World) -> None:
    watch = world.watch(seconds=100)
    assert watch.begin(world.ledger, Seconds(1000)) == ["this home has not listened before"]
    assert watch.until == 1100
    assert not watch.may_sign(world.ledger, Seconds(1099), 20)
    assert not watch.may_sign(world.ledger, Seconds(1100), 21), "heard, but not registered yet"
    world.register(KEY)
    assert not watch.may_sign(world.ledger, Seconds(1101), 22), "the fence stands, others have not looked yet"
    assert watch.may_sign(world.ledger, Seconds(1103), 22 + FENCE_BLOCKS)
    again = world.watch()
    assert again.begin(world.ledger, Seconds(2000)) == [], "it has listened once"
    assert again.may_sign(world.ledger, Seconds(2000), 30)


def test_a_home_killed_while_it_listens_listens_again(world: World) -> None:
    world.watch().begin(world.ledger, Seconds(1000))
    watch = world.watch()
    watch.begin(world.ledger, Seconds(1500))
    assert watch.until == 1600


def test_listening_can_be_skipped_and_says_what_it_would_have_listened_for(world: World) -> None:
    watch = world.watch(seconds=0)
    assert watch.begin(world.ledger, Seconds(1000)), "the reasons are told"
    assert watch.until is None
    assert watch.may_sign(world.ledger, Seconds(1000), 20)


@pytest.mark.parametrize("name", ["Joined", "Revealed", "Merged"])
def test_somebody_else_at_work_with_the_key_ends_the_home(world: World, name: str) -> None:
    watch = world.watch()
    watch.begin(world.ledger, Seconds(1000))
    watch.hear([market(name, MINE), market(name, worker=SOMEBODY)])
    with pytest.raises(GuardRefused) as refused:
        watch.hear([market(name)])
    assert refused.value.code == "guard_refused.doppelganger"


def test_a_home_that_signs_still_hears(world: World) -> None:
    world.memory.trust()
    watch = world.watch()
    assert watch.begin(world.ledger, Seconds(1000)) == []
    with pytest.raises(GuardRefused):
        watch.hear([market("Joined")])


def test_of_two_homes_that_register_the_last_one_stands(world: World) -> None:
    first, second = world.watch(key=KEY), world.watch(key=OTHER_KEY)
    first.begin(world.ledger, Seconds(1000))
    mine = world.register(KEY)
    first.hear([mine])
    theirs = world.register(OTHER_KEY)
    with pytest.raises(GuardRefused):
        first.hear([theirs])
    assert second.begin(world.ledger, Seconds(1000)) == ["this home has not listened before"]


def test_a_home_that_another_has_replaced_listens_before_it_returns(world: World) -> None:
    world.memory.trust()
    world.register(KEY)
    world.register(OTHER_KEY)
    watch = world.watch()
    assert watch.begin(world.ledger, Seconds(1000)) == ["another home was the last to register for this account"]
    assert world.ledger.registrations[ME] == 2


@pytest.mark.parametrize("out", [b"o" * 32, b"x" * 32])
def test_a_memory_that_was_rolled_back_listens(world: World, out: bytes) -> None:
    world.memory.trust()
    world.started()
    sealed = event("JobMarket", "Sealed", job=JOB, round=0, seed=SEED)
    world.chain(sealed, market("Joined"), revealed(out))
    if out == b"o" * 32:
        known(world)
        assert world.watch().begin(world.ledger, Seconds(1000)) == [], "it knows its claim"
        return
    assert world.watch().begin(world.ledger, Seconds(1000)) == [
        "this account has made claims that this home does not know"
    ]
    known(world)
    assert world.watch().begin(world.ledger, Seconds(1000)), "nor is a claim with other outputs its own"


def test_a_slot_that_somebody_joined_is_waited_for(world: World) -> None:
    world.started()
    world.chain(market("Joined"))
    watch = world.watch(seconds=100)
    watch.begin(world.ledger, Seconds(1000))
    for phase in (Phase.JOINING, Phase.TRAINING, Phase.REVEALING):
        world.phase = phase
        assert not watch.is_over(world.ledger, Seconds(5000)), phase
    world.phase = Phase.FREEZING
    assert watch.is_over(world.ledger, Seconds(5000)), "its time is over"
