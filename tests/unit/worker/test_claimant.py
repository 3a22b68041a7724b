"""What a round starts from is fetched beside the loop, again after a failure, and anew where a rewind changed it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.execution.jobs import Job
from lockstep.node.ledger import ClaimRecord, JobLedger, RoundLedger
from lockstep.protocol.types import MERGE_SLOT, Address, Cid, ClaimId, Digest, Seconds, StateRoot, TraceRoot
from lockstep.storage import ContentStore
from lockstep.storage.payload import Checkpoint, store_checkpoint
from tests.e2e.market import NOWHERE
from worker.claimant import RETRY_SECONDS, Claimant
from worker.decide import Roots
from worker.defending import Defence

SOMEBODY = Address("0x" + "ab" * 20)


@pytest.fixture
def claimant(tmp_path: Path, toy_store: ContentStore) -> Iterator[Claimant]:
    """A worker's, without a chain: to fetch it needs none."""
    contracts = SimpleNamespace(market=None, game=None, demands=None, addresses=SimpleNamespace(block=0))
    parts = SimpleNamespace(
        contracts=contracts, store=toy_store, home=tmp_path, announcer=None, outbox=None, address=SOMEBODY,
        memory_bytes=None,
        disk_bytes=1 << 30,
    )  # fmt: skip
    defence = Defence(parts, lambda: None)  # type: ignore[arg-type]
    made = Claimant(parts, None, defence, lambda: None)  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.fixture
def taken(toy: Job) -> SimpleNamespace:
    ledger = JobLedger(toy.id, SOMEBODY, 0)
    ledger.rounds[0] = RoundLedger(0, 0, *genesis(toy))
    return SimpleNamespace(job=toy, params=toy.params, ledger=ledger)


def genesis(job: Job) -> Roots:
    return job.params.genesis.shared, job.params.genesis.outer


def merged(taken: SimpleNamespace, store: ContentStore, by: float, cid: Cid | None = None) -> Roots:
    """Round 0 as merged to the genesis plus `by`, at `cid` or where it is stored."""
    start: Checkpoint = taken.job.genesis
    checkpoint = Checkpoint(tuple(x + np.float32(by) for x in start.shared), start.outer)
    out, out2 = taken.job.checkpoint_roots(checkpoint)
    stored = store_checkpoint(store, checkpoint)
    record = ClaimRecord(
        ClaimId(bytes(32)), taken.job.id, 0, 0, MERGE_SLOT, SOMEBODY, TraceRoot(bytes(32)), Digest(out), Digest(out2),
        Cid(""), cid or stored, Seconds(0),
    )  # fmt: skip
    taken.ledger.rounds[0].merges = [record]
    return StateRoot(out), StateRoot(out2)


def settle(claimant: Claimant) -> None:
    """Until the bench is free."""
    claimant.on_bench(lambda: None).result(10)


def test_the_genesis_is_held_after_a_fetch(claimant: Claimant, taken: SimpleNamespace) -> None:
    assert claimant.base_held(taken) is None
    claimant.fetch(taken, 0, genesis(taken.job), Seconds(100))
    settle(claimant)
    assert claimant.base_held(taken) == genesis(taken.job)


def test_a_base_that_is_not_there_is_looked_for_again(
    claimant: Claimant, taken: SimpleNamespace, toy_store: ContentStore
) -> None:
    roots = merged(taken, toy_store, 1.0, NOWHERE)
    claimant.fetch(taken, 1, roots, Seconds(100))
    settle(claimant)
    claimant.fetch(taken, 1, roots, Seconds(100))
    assert claimant.base_held(taken) is None
    merged(taken, toy_store, 1.0)
    for now in (101, 100 + RETRY_SECONDS):
        settle(claimant)
        assert claimant.base_held(taken) is None, "it rests for a while"
        claimant.fetch(taken, 1, roots, Seconds(now))
    settle(claimant)
    assert claimant.base_held(taken) == roots


def test_what_the_events_do_not_name_yet_is_waited_for(
    claimant: Claimant, taken: SimpleNamespace, toy_store: ContentStore
) -> None:
    roots = merged(taken, toy_store, 2.0)
    (record,) = taken.ledger.rounds[0].merges
    taken.ledger.rounds[0].merges = []
    claimant.fetch(taken, 1, roots, Seconds(100))
    settle(claimant)
    assert claimant.base_held(taken) is None
    taken.ledger.rounds[0].merges = [record]
    claimant.fetch(taken, 1, roots, Seconds(100))
    settle(claimant)
    assert claimant.base_held(taken) == roots, "the next block names it, and nothing had to rest"


def test_a_rewind_changes_what_is_fetched(claimant: Claimant, taken: SimpleNamespace, toy_store: ContentStore) -> None:
    lie = merged(taken, toy_store, 3.0)
    claimant.fetch(taken, 1, lie, Seconds(100))
    (convicted,) = taken.ledger.rounds[0].merges
    truth = merged(taken, toy_store, 4.0)
    taken.ledger.rounds[0].merges.insert(0, replace(convicted, convicted=True))
    settle(claimant)
    assert claimant.base_held(taken) == lie
    claimant.fetch(taken, 1, truth, Seconds(101))
    settle(claimant)
    assert claimant.base_held(taken) == truth
    claimant.fetch(taken, 1, lie, Seconds(102))
    settle(claimant)
    assert claimant.base_held(taken) == lie, "what was held before can be fetched again"
