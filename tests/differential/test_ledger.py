"""What the events tell is what the contracts store: ledgers of random histories against the State that they end in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstep.chain.contracts import Contracts
from lockstep.chain.deployment import deploy
from lockstep.chain.events import EventReader
from lockstep.market.ledger import JobLedger, Ledger, RoundLedger, Watcher
from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol.dispute.moves import GamePhase as GamePhase
from lockstep.protocol.jobs import NO_CLAIM, ClaimStatus, JobStatus, Phase
from lockstep.protocol.market import ids
from lockstep.protocol.market.calls import Block
from lockstep.protocol.market.state import State
from lockstep.protocol.market.types import Status
from lockstep.protocol.types import Address
from tests.support.market.wander import Wanderer
from tests.support.memory import abi
from tests.support.memory.devnet import MemoryDevnet
from tests.support.memory.machine import FIELDS

BLOCKS = 90
GAS = 5_000_000
Difference = tuple[str, object, object]


def played(seed: int, seen: Callable[[Contracts, State, Block, Ledger], None] | None = None) -> tuple[State, Ledger]:
    """A history of everybody at random, and what its events tell; `seen` looks at it now and then."""
    devnet = MemoryDevnet(seed=seed, arbiter=ReferenceArbiter())
    at = deploy(devnet.w3, devnet.account("deployer"))
    contracts = Contracts.at(devnet.w3, at)
    keys = {Address(account.address): account for account in (devnet.account(f"wanderer {i}") for i in range(8))}
    devnet._request("anvil_autoImpersonateAccount", [True])
    devnet._request("evm_setAutomine", [False])
    dice, watcher = random.Random(seed), Watcher(EventReader(devnet.w3, at))
    wanderer = Wanderer(dice, keys)

    def state() -> State:
        found = devnet.chain.world.states[at.token]
        assert found is not None
        return found

    def mine(calls: Any) -> None:
        for call in calls:
            data = "0x" + abi.data_of(call).hex()
            to = getattr(at, FIELDS[call.contract])
            devnet._request("eth_sendTransaction", [{"from": call.sender, "to": to, "data": data, "gas": hex(GAS)}])
        devnet.chain.next_time = devnet.chain.head.time + dice.choice((1, 1, 1, 2, 12, 30, 45))
        for receipt in devnet.chain.mine().receipts:
            wanderer.learn(receipt.outcome.events)

    for calls in wanderer.first_calls(state()):
        mine(calls)
    for _ in range(BLOCKS):
        mine(wanderer.calls(state(), devnet.chain.environment(devnet.chain.head)))
        if dice.random() < 0.3:
            watcher.poll()
            if seen is not None:
                seen(contracts, state(), devnet.chain.environment(devnet.chain.head), watcher.ledger)
    watcher.poll()
    return state(), watcher.ledger


def differences(s: State, ledger: Ledger) -> Iterator[Difference]:
    """(what, stored, told) wherever they differ."""
    yield "jobs", set(s.jobs), set(ledger.jobs)
    for job, told in ledger.jobs.items():
        yield f"job {job.hex()[:6]} is done", s.jobs[job].status == JobStatus.DONE, told.done
        yield f"attempt of job {job.hex()[:6]}", s.jobs[job].attempt, told.attempt
        for r, round_ in told.rounds.items():
            yield from _of_round(s, told, round_, r)
    open_ = {id_ for id_, g in s.games.items() if g.phase != GamePhase.CLOSED}
    yield "open games", open_, set(ledger.games)
    yield "verdicts", {id_: s.games[id_].verdict for id_ in s.games if id_ not in open_}, {
        id_: g.verdict for id_, g in ledger.ended.items()
    }  # fmt: skip
    locked = {key: lock.account for key, lock in s.locks.items() if lock.amount}
    yield "locks", locked, ledger.locks
    for account in set(locked.values()):
        own = {key for key, owner in locked.items() if owner == account and key in s.claims}
        yield f"stakes of {account}", own, set(ledger.staked(account))
    yield "demands", {id_ for id_, d in s.demands.items() if d.status == Status.OPEN}, set(ledger.demands)
    yield "audits", set(s.audits), set(ledger.audits)
    for audit, found in ledger.audits.items():
        a = s.audits[audit]
        stored = (a.status, a.beacon, a.commit_ends, a.reveal_ends, a.duties, a.committed)
        t = found.state
        yield "audit", stored, (t.status, t.beacon, t.commit_ends, t.reveal_ends, t.duties, t.committed)
        duties = [s.duties[audit, i] for i in range(a.duties)]
        yield "duties", [(d.account, d.slot, d.serial, d.status, d.t) for d in duties], [
            (d.account, d.slot, d.serial, d.status, d.t) for d in found.duties
        ]  # fmt: skip


def _of_round(s: State, job: JobLedger, told: RoundLedger, r: int) -> Iterator[Difference]:
    ro, p = s.rounds[job.id, r], s.params[job.id]
    assert p is not None
    name = f"round {r}"
    yield f"{name}: attempt, base, seed", (ro.attempt, ro.base, ro.seed), (told.attempt, told.base, told.seed)
    # JOINING stands for every phase before the freeze.
    yield f"{name}: phase", ro.phase, told.phase if told.phase >= Phase.MERGING else Phase.JOINING
    if ro.phase in (Phase.LEAD, Phase.FINAL):
        yield f"{name}: merge", ro.merge_claim, told.merge.id if told.merge is not None else NO_CLAIM
        yield f"{name}: mask, mergeIn", (ro.mask, ro.merge_in), (told.mask, told.merge_in)
    for slot in range(p.role.slots):
        claim = ids.claim_id(job.id, r, ro.attempt, slot)
        c = s.claims[claim]
        holder = told.holders.get(slot)
        stored = (c.worker, c.status) if c.status != ClaimStatus.NONE else None
        # What a void round's claims were is nobody's business any more.
        if ro.phase != Phase.VOID:
            yield f"{name}, slot {slot}", stored, holder
        if slot in told.claims:
            known = told.claims[slot]
            yield f"{name}, slot {slot}: claim", (claim, c.digest), (known.id, ids.body_hash(known.body))
            yield f"{name}, slot {slot}: convicted", c.status == ClaimStatus.CONVICTED, known.convicted
    if ro.phase == Phase.JOINING and ro.revealed:
        revealed = [ids.claim_id(job.id, r, ro.attempt, slot) for slot in range(p.role.slots)]
        digests = [s.claims[id_].digest for id_ in revealed if s.claims[id_].status == ClaimStatus.REVEALED]
        yield f"{name}: bodies", digests, [ids.body_hash(body) for body in told.bodies]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_a_ledger_is_what_the_contracts_store(seed: int) -> None:
    s, ledger = played(seed)
    assert s.claims
    for what, stored, told in differences(s, ledger):
        assert stored == told, what


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 400))
def test_ledgers_are_what_the_contracts_store(seed: int) -> None:
    test_a_ledger_is_what_the_contracts_store(seed)
