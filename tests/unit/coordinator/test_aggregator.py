"""The aggregator judges payloads, binds merges before it tells them, and can always defend what it claimed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.aggregator import Aggregator
from coordinator.decide import Report
from lockstep.base.cache import MemoryCache
from lockstep.execution.box import loading
from lockstep.execution.jobs import Job, merge_run
from lockstep.execution.merging import finish_in_turn, load_checkpoint, merge_round
from lockstep.execution.rounds import Payload
from lockstep.protocol import merkle
from lockstep.protocol.errors import Crashed, GuardRefused, Mismatch
from lockstep.protocol.types import Cid, ClaimId, Digest, StateRoot, TraceRoot
from lockstep.runtime.guard.memory import GuardMemory, SigningRecord
from lockstep.storage import ContentStore, cid_of, open_store
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob
from tests.support.merges import CLAIM, SCOPE, frozen, merge_place, merging_parts, put, trained
from tests.support.params import amended

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return DirectoryStore(tmp_path / "blocks")


@pytest.fixture
def job(store: ContentStore) -> Job:
    return toyjob.load(store)


@pytest.fixture
def guard(tmp_path: Path) -> Iterator[GuardMemory]:
    with GuardMemory(tmp_path, SCOPE) as guard:
        yield guard


def aggregator_of(job: Job, store: ContentStore, guard: GuardMemory, home: Path) -> Aggregator:
    return Aggregator(job, merging_parts(store, guard, home), MemoryCache())


@pytest.fixture
def aggregator(job: Job, store: ContentStore, guard: GuardMemory, tmp_path: Path) -> Aggregator:
    return aggregator_of(job, store, guard, tmp_path)


def test_reports_tell_the_four_cases_apart(
    aggregator: Aggregator, job: Job, store: ContentStore, guard: GuardMemory, tmp_path: Path
) -> None:
    good = put(job, store, trained(job, 0))
    assert aggregator.judge(good) == (Report.DECODED, "")
    wrong_root = replace(good, out=Digest(bytes(32)))
    assert aggregator.judge(wrong_root)[0] is Report.REFUSED
    wrong_shape = replace(good, cid=store.put(b"not a payload"))
    assert aggregator.judge(wrong_shape)[0] is Report.REFUSED
    assert aggregator.judge(replace(good, cid=cid_of(b"never stored")))[0] is Report.MISSING
    # A name that is no CID names nothing that could be there.
    assert aggregator.judge(replace(good, cid=Cid("not-a-cid")))[0] is Report.MISSING
    deaf = aggregator_of(job, open_store(NOWHERE), guard, tmp_path)
    assert deaf.judge(good)[0] is Report.UNREACHABLE


def test_a_merge_is_bound_archived_stored_and_right(
    aggregator: Aggregator, job: Job, store: ContentStore, guard: GuardMemory
) -> None:
    payloads = [trained(job, 0), None, trained(job, 2)]
    refs = [None if p is None else put(job, store, p) for p in payloads]
    out, out2, cid = aggregator.merge(merge_place(job, refs), frozen(refs))
    honest = merge_round(job, job.genesis, payloads, toyjob.SEED, 0)
    assert (out, out2) == (honest.out, honest.out2)
    (promised,) = guard.records()
    assert promised[1].values[1:] == (out, out2)
    loaded = load_checkpoint(job, store, cid, out, out2)
    np.testing.assert_array_equal(loaded.shared[0], honest.checkpoint.shared[0])


@pytest.mark.parametrize("changes", [{"turn_seconds": 0}, {"clock_seconds": 3}], ids=["its turn", "a game's clock"])
def test_a_merge_that_is_not_done_in_its_turn_is_ended_as_one_that_crashed(
    job: Job, store: ContentStore, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int]
) -> None:
    with loading.JobBox(job.id, job.params, store, 1, "auto", None) as box:
        box.plan()
        box.roots.add(job.programs.merge.root)
        own = replace(job, box=box, params=amended(job.params, **changes))
        run = merge_run(own, job.genesis, [None] * 3, toyjob.SEED, 0)
        monkeypatch.setattr(loading, "LEAST_SECONDS", 0)
        with pytest.raises(Crashed, match="after 0 s"):
            finish_in_turn(run)
        monkeypatch.undo()
        assert finish_in_turn(run).out == merge_round(job, job.genesis, [None] * 3, toyjob.SEED, 0).out, "a new child"


def test_inputs_that_the_contract_did_not_freeze_are_not_merged(
    aggregator: Aggregator, job: Job, store: ContentStore, guard: GuardMemory
) -> None:
    refs: list[Payload | None] = [put(job, store, trained(job, s)) for s in range(3)]
    with pytest.raises(Mismatch, match="mergeIn"):
        aggregator.merge(replace(merge_place(job, refs), base=StateRoot(bytes(32))), frozen(refs))
    assert guard.records() == []


def test_other_outputs_than_those_bound_are_never_told(
    aggregator: Aggregator, job: Job, store: ContentStore, guard: GuardMemory
) -> None:
    refs: list[Payload | None] = [put(job, store, trained(job, s)) for s in range(3)]
    place = merge_place(job, refs)
    other = SigningRecord(TraceRoot(b"t" * 32), Digest(b"x" * 32), Digest(b"y" * 32), bytes(32), Cid(""), Cid(""))
    guard.bind(place, other)
    with pytest.raises(GuardRefused):
        aggregator.merge(merge_place(job, refs), frozen(refs))


@pytest.mark.parametrize("archive", ["kept", "damaged", "lost"])
def test_a_claim_is_defended_after_a_restart(
    aggregator: Aggregator, job: Job, store: ContentStore, guard: GuardMemory, tmp_path: Path, archive: str
) -> None:
    refs: list[Payload | None] = [put(job, store, trained(job, s)) for s in range(3)]
    place, records = merge_place(job, refs), frozen(refs)
    out, out2, _ = aggregator.merge(place, records)
    (file,) = (tmp_path / "claims").iterdir()
    if archive == "damaged":
        file.write_bytes(file.read_bytes()[:-9])
    if archive == "lost":
        file.unlink()
    source = store if archive != "kept" else open_store(NOWHERE)
    again = aggregator_of(job, source, guard, tmp_path)
    held = again.held(place, records)
    assert held.state_zero == place.base
    assert list(held.trace) == [merkle.node(out, out2)]
    assert held.step(1).graph[-1][0] == aggregator.held(place, records).step(1).graph[-1][0]
    again.forget(CLAIM)
    assert list((tmp_path / "claims").iterdir()) == []


def test_a_claim_of_another_id_than_was_foreseen_is_defended_though_its_payloads_are_withheld(
    aggregator: Aggregator, job: Job, store: ContentStore, guard: GuardMemory, tmp_path: Path
) -> None:
    refs = [put(job, store, trained(job, slot)) for slot in range(3)]
    place, records = merge_place(job, refs), frozen(refs)
    aggregator.merge(place, records)
    given = replace(place, claim=ClaimId(bytes(31) + b"2"))
    again = aggregator_of(job, open_store(NOWHERE), guard, tmp_path)
    held = again.held(given, records)
    assert held.state_zero == place.base
    again.forget(given.claim)
    assert not list((tmp_path / "claims").iterdir())


@pytest.mark.slow
def test_no_torch_in_the_coordinators_process() -> None:
    import subprocess

    loaded = "import coordinator.service, coordinator.queue, coordinator.api, sys; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
