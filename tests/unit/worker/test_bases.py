"""What a round starts from is fetched beside the loop, again after a failure, and anew where a rewind changed it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.execution.jobs import Job
from lockstep.market.ledger import ClaimRecord, JobLedger, RoundLedger
from lockstep.protocol.types import MERGE_SLOT, Address, Cid, ClaimId, Digest, Seconds, StateRoot, TraceRoot
from lockstep.storage import ContentStore
from lockstep.storage.payload import Checkpoint, store_checkpoint
from worker.bases import RETRY_SECONDS, Bases
from worker.decide import Roots
from worker.parts import ComputeExecutor

SOMEBODY = Address("0x" + "ab" * 20)
NOWHERE = Cid("bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku")


@pytest.fixture
def executor() -> Iterator[ComputeExecutor]:
    made = ComputeExecutor("train")
    yield made
    made.close()


@pytest.fixture
def bases(executor: ComputeExecutor, toy_store: ContentStore) -> Bases:
    return Bases(toy_store, executor)


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


def settle(executor: ComputeExecutor) -> None:
    """Until the worker thread is free."""
    executor.begin("settle", lambda: True)
    while not executor.take("settle"):
        time.sleep(0.002)


def test_the_genesis_is_held_after_a_fetch(bases: Bases, executor: ComputeExecutor, taken: SimpleNamespace) -> None:
    assert bases.held(taken.job.id) is None
    bases.fetch(taken, 0, genesis(taken.job), Seconds(100))
    settle(executor)
    assert bases.held(taken.job.id) == genesis(taken.job)


def test_a_base_that_is_not_there_is_looked_for_again(
    bases: Bases, executor: ComputeExecutor, taken: SimpleNamespace, toy_store: ContentStore
) -> None:
    roots = merged(taken, toy_store, 1.0, NOWHERE)
    bases.fetch(taken, 1, roots, Seconds(100))
    settle(executor)
    bases.fetch(taken, 1, roots, Seconds(100))
    assert bases.held(taken.job.id) is None
    merged(taken, toy_store, 1.0)
    for now in (101, 100 + RETRY_SECONDS):
        settle(executor)
        assert bases.held(taken.job.id) is None, "it rests for a while"
        bases.fetch(taken, 1, roots, Seconds(now))
    settle(executor)
    assert bases.held(taken.job.id) == roots


def test_what_the_events_do_not_name_yet_is_waited_for(
    bases: Bases, executor: ComputeExecutor, taken: SimpleNamespace, toy_store: ContentStore
) -> None:
    roots = merged(taken, toy_store, 2.0)
    (record,) = taken.ledger.rounds[0].merges
    taken.ledger.rounds[0].merges = []
    bases.fetch(taken, 1, roots, Seconds(100))
    settle(executor)
    assert bases.held(taken.job.id) is None
    taken.ledger.rounds[0].merges = [record]
    bases.fetch(taken, 1, roots, Seconds(100))
    settle(executor)
    assert bases.held(taken.job.id) == roots, "the next block names it, and nothing had to rest"


def test_a_rewind_changes_what_is_fetched(
    bases: Bases, executor: ComputeExecutor, taken: SimpleNamespace, toy_store: ContentStore
) -> None:
    lie = merged(taken, toy_store, 3.0)
    bases.fetch(taken, 1, lie, Seconds(100))
    (convicted,) = taken.ledger.rounds[0].merges
    truth = merged(taken, toy_store, 4.0)
    taken.ledger.rounds[0].merges.insert(0, replace(convicted, convicted=True))
    settle(executor)
    assert bases.held(taken.job.id) == lie
    bases.fetch(taken, 1, truth, Seconds(101))
    settle(executor)
    assert bases.held(taken.job.id) == truth
    bases.fetch(taken, 1, lie, Seconds(102))
    settle(executor)
    assert bases.held(taken.job.id) == lie, "what was held before can be fetched again"
