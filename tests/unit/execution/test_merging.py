"""Merging: payloads are checked, absent ones count nothing, lost checkpoints are computed again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.execution.jobs import Job, Tensors, carry_of, payload_of, slot_run
from lockstep.execution.merging import (
    ComputedMerge,
    base_checkpoint,
    fetch_carry,
    fetch_payload,
    judge,
    load_checkpoint,
    merge_round,
    merged_again,
    store_payload,
)
from lockstep.execution.rounds import Payload, RoundRecord
from lockstep.protocol import merkle
from lockstep.protocol.errors import BlobMissing, Mismatch, PayloadInvalid
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.types import Cid, Digest
from lockstep.storage import ContentStore, cid_of
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import store_checkpoint
from tests.support import toyjob


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return DirectoryStore(tmp_path)


@pytest.fixture
def job(store: ContentStore) -> Job:
    return toyjob.load(store)


def trained(job: Job, slot: int) -> Tensors:
    *_, (_, final, _) = slot_run(job, job.genesis, toyjob.SEED, 0, slot).states()
    return payload_of(job, final)


def stored(job: Job, store: ContentStore, payload: Tensors) -> Payload:
    return Payload(store_payload(job, store, payload), *job.payload_roots(payload))


def record(job: Job, store: ContentStore, merged: ComputedMerge, payloads: list[Payload | None]) -> RoundRecord:
    return RoundRecord(
        0, toyjob.SEED, tuple(payloads), store_checkpoint(store, merged.checkpoint), merged.out, merged.out2
    )


def test_a_merge_commits_to_its_checkpoint(job: Job) -> None:
    merged = merge_round(job, job.genesis, [trained(job, 0), None, trained(job, 2)], toyjob.SEED, 0)
    assert merged.root == merkle.node(merged.out, merged.out2)
    assert job.checkpoint_roots(merged.checkpoint) == (merged.out, merged.out2)


def test_an_absent_payload_is_not_averaged_in(job: Job) -> None:
    payloads = [trained(job, 0), None, trained(job, 2)]
    merged = merge_round(job, job.genesis, payloads, toyjob.SEED, 0)
    mean = np.mean([p[0].astype(np.float64) for p in payloads if p is not None], axis=0)
    np.testing.assert_allclose(job.genesis.shared[0] - 0.7 * mean, merged.checkpoint.shared[0], rtol=1e-5)


def test_payloads_survive_storage_and_are_checked(job: Job, store: ContentStore) -> None:
    payload = trained(job, 1)
    named = stored(job, store, payload)
    fetched = fetch_payload(job, store, named)
    assert [a.tobytes() for a in fetched] == [a.tobytes() for a in payload]
    with pytest.raises(PayloadInvalid):
        fetch_payload(job, store, replace(named, out=Digest(b"\x01" * 32)))
    with pytest.raises(PayloadInvalid):
        fetch_payload(job, store, replace(named, cid=store.put(b"short")))
    with pytest.raises(BlobMissing):
        fetch_payload(job, store, replace(named, cid=cid_of(b"nowhere")))


def test_a_carry_lies_beside_its_payload_and_each_is_checked_alone(store: ContentStore) -> None:
    job = toyjob.load(store, carry=1)
    *_, (_, final, _) = slot_run(job, job.genesis, toyjob.SEED, 0, 0).states()
    payload, carry = payload_of(job, final), carry_of(job, final)
    named = Payload(store_payload(job, store, payload, carry), *job.payload_roots(payload, carry))
    assert (len(payload), len(carry)) == (1, 2), "the difference, and two moments"
    assert fetch_payload(job, store, named)[0].tobytes() == payload[0].tobytes()
    assert [x.tobytes() for x in fetch_carry(job, store, named)] == [x.tobytes() for x in carry]
    lied = replace(named, out2=Digest(b"\x01" * 32))
    assert judge(lambda: fetch_payload(job, store, lied))[0] == Report.DECODED, "receipts are about the payload alone"
    with pytest.raises(PayloadInvalid, match="a carry does not hash"):
        fetch_carry(job, store, lied)
    plain = replace(named, cid=stored(toyjob.load(store), store, payload).cid)
    with pytest.raises(PayloadInvalid, match="bytes"):
        fetch_payload(job, store, plain)
    assert judge(lambda: fetch_payload(job, store, plain))[0] == Report.REFUSED


def test_a_base_is_fetched_or_computed_again(job: Job, store: ContentStore) -> None:
    named = [stored(job, store, trained(job, s)) for s in range(2)]
    merged = merge_round(job, job.genesis, [*(fetch_payload(job, store, n) for n in named), None], toyjob.SEED, 0)
    entry = record(job, store, merged, [*named, None])
    for cid in (entry.checkpoint, cid_of(b"lost"), store.put(b"garbage")):
        base = base_checkpoint(job, store, [replace(entry, checkpoint=cid)])
        assert job.checkpoint_roots(base) == (merged.out, merged.out2), cid
    failed = RoundRecord(1, toyjob.SEED, (None, None, None), None, Digest(bytes(32)), Digest(bytes(32)))
    assert job.checkpoint_roots(base_checkpoint(job, store, [entry, failed])) == (merged.out, merged.out2)
    assert base_checkpoint(job, store, []) is job.genesis


def test_a_base_that_nobody_holds_and_payloads_do_not_give_is_refused(job: Job, store: ContentStore) -> None:
    named = stored(job, store, trained(job, 0))
    merged = merge_round(job, job.genesis, [fetch_payload(job, store, named), None, None], toyjob.SEED, 0)
    entry = record(job, store, merged, [named, None, None])
    with pytest.raises(Mismatch):
        base_checkpoint(job, store, [replace(entry, checkpoint=cid_of(b"lost"), out=Digest(b"\x01" * 32))])
    lost = replace(entry, checkpoint=cid_of(b"lost"), payloads=(replace(named, cid=cid_of(b"gone")), None, None))
    with pytest.raises(BlobMissing):
        base_checkpoint(job, store, [lost])


def test_rounds_are_merged_again_from_the_genesis_whatever_was_merged(job: Job, store: ContentStore) -> None:
    payloads = [trained(job, slot) for slot in range(3)]
    kept = [stored(job, store, p) for p in payloads]
    first = merge_round(job, job.genesis, [payloads[0], None, payloads[2]], toyjob.SEED, 0)
    second = merge_round(job, first.checkpoint, [None, *payloads[1:]], toyjob.SEED, 1)
    lied = merge_round(job, job.genesis, payloads, toyjob.SEED, 0)
    records = [
        replace(record(job, store, lied, [kept[0], None, kept[2]]), number=0),
        replace(record(job, store, lied, [None, *kept[1:]]), number=1),
    ]
    again = merged_again(job, store, records)
    assert job.checkpoint_roots(again) == (second.out, second.out2)
    assert merged_again(job, store, []) is job.genesis


def test_a_checkpoint_is_checked_against_the_chain(job: Job, store: ContentStore) -> None:
    cid = store_checkpoint(store, job.genesis)
    roots = job.checkpoint_roots(job.genesis)
    assert job.checkpoint_roots(load_checkpoint(job, store, cid, *roots)) == roots
    with pytest.raises(Mismatch):
        load_checkpoint(job, store, Cid(cid), roots[1], roots[1])
