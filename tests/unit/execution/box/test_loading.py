"""A job in a box computes the bits of one that runs here, and none of its Programs ends this process."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.base.machine import Memory
from lockstep.execution import capacity, footprint, jobs
from lockstep.execution.box import loading, segments
from lockstep.execution.box.executable import BoxedExecutable
from lockstep.execution.box.handle import Box, Cancelled, Overdue, Starved, end_all
from lockstep.execution.box.loading import JobBox
from lockstep.execution.capacity import ChainPace
from lockstep.execution.invalidity import Undefendable
from lockstep.execution.jobs import ClaimRun, Job, merge_run, payload_of, slot_run
from lockstep.execution.losses import Losses
from lockstep.numerics import cuda
from lockstep.numerics.builder import ProgramBuilder
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.protocol.errors import BlobMissing, Crashed, LockstepError, TryLater, Unfit, Unreachable, WrongBits
from lockstep.protocol.market import moving
from lockstep.protocol.types import Cid, JobId
from lockstep.storage import ContentStore
from lockstep.storage.cache import mapped_file
from lockstep.storage.containers import encode_program
from lockstep.storage.directory import DirectoryStore
from tests.support import broken, hostile, toyjob
from tests.support.hostile import HOSTILE
from tests.support.takeover import SECONDS, Exploit
from tests.support.waiting import wait

FITS = footprint.Fitting(footprint.worker)


@pytest.fixture(scope="module")
def boxed(toy: Job, toy_store: ContentStore) -> Iterator[Job]:
    job = loading.load(toy.id, toy.params, toy_store, fits=FITS)
    yield job
    assert job.box is not None
    job.box.close()


def slot(job: Job) -> ClaimRun:
    return slot_run(job, job.genesis, toyjob.SEED, 0, 1)


def test_every_transition_has_the_bits_of_a_run_here(boxed: Job, toy: Job) -> None:
    mine, theirs = slot(toy), slot(boxed)
    for (t, state, root), (_, other, same) in zip(mine.states(), theirs.states(), strict=True):
        assert root == same, t
        for one, two in zip(state, other, strict=True):
            assert (one is None) == (two is None), t
            assert one is None or np.array_equal(one.view(np.uint32), two.view(np.uint32))  # type: ignore[union-attr]
    payload = payload_of(toy, list(mine.states())[-1][1])
    merges = [merge_run(job, job.genesis, [payload] * 3, toyjob.SEED, 0) for job in (toy, boxed)]
    assert merges[0].root(1, merges[0].advance(1, merges[0].start)) == merges[1].root(
        1, merges[1].advance(1, merges[1].start)
    )


def test_a_step_is_the_childs_memory_and_the_last_steps_is_free(boxed: Job) -> None:
    """Nothing waits for the collector of cycles: a state of a gigabyte would be held several times."""
    assert boxed.box is not None
    run = slot(boxed)
    state = run.advance(1, run.start)
    segments = boxed.box._at_work().segments
    gc.disable()
    try:
        made = segments._made
        for t in (2, 3) * 10:
            state = run.advance(t, state)
        assert segments._made <= made + 1, "two segments of a state's size take turns"
    finally:
        gc.enable()


def test_a_child_reads_a_large_dataset_from_its_file(
    boxed: Job, toy: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "LARGE", 1)
    (path := tmp_path / "rows").write_bytes(toy.dataset.tobytes())
    rows = np.frombuffer(mapped_file(path), "<i4").reshape(toy.dataset.shape)
    job = replace(boxed, dataset=rows)
    (made, _), (due, _) = (itertools.islice(slot(j).states(), 1, 3) for j in (job, toy))
    assert made[2] == due[2]
    assert job.box is not None
    child = job.box._box
    assert child is not None
    place = child.segments.given([rows])[0][0]
    assert place is not None
    assert child.segments._by_number[place.segment].memory is None, "no copy of it was made"


def test_a_step_is_shown_as_one_here_is(boxed: Job, toy: Job) -> None:
    shown = [run.materialise(2, run.advance(1, run.start)) for run in (slot(toy), slot(boxed))]
    assert shown[0].roots == shown[1].roots
    assert shown[0].root == shown[1].root
    for op in range(len(toy.programs.step.ops)):
        one, two = (step.output(op).array for step in shown)
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        assert one.tobytes() == two.tobytes(), op


def test_a_leaf_of_what_a_child_computed_is_proven_and_is_another_in_every_state(boxed: Job, toy: Job) -> None:
    run, found = slot(boxed), []
    for t, state, root in itertools.islice(run.states(), toyjob.STEPS):
        leaf = run.leaf(t, state, 11)
        moving.require_leaf(root, boxed.params.role.step_program, 11, leaf)
        assert leaf == slot(toy).leaf(t, slot(toy).state_before(t + 1), 11)
        found.append(leaf.digest)
    assert len({*found, run.leaf(1, run.start, 11).digest}) == len(found) + 1


def test_the_planner_and_the_clock_are_the_childs(boxed: Job, toy: Job) -> None:
    assert boxed.box is not None
    pace = boxed.box.measure(boxed, capacity.require_claimant, ChainPace())
    boxed.box.compare(boxed)
    assert pace.step > 0
    assert pace.shown > 0
    assert pace.merge > 0
    assert boxed.box.estimate().merge > 0
    with pytest.raises(Unfit, match="and a commitment"):
        boxed.box.measure(boxed, capacity.require_claimant, ChainPace(block=1e6))


def test_what_a_device_computes_is_compared_in_a_child_first_as_far_as_the_processor_can(
    boxed: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []
    ends: list[Exception] = [Overdue("late", ""), WrongBits("op 7", ""), Overdue("late", "")]

    def compare(box: JobBox, job: Job, at_most: float) -> None:
        looks.append(at_most)
        if ends:
            raise ends.pop()

    monkeypatch.setattr(JobBox, "compare", compare)
    assert boxed.box is not None
    with pytest.raises(Overdue):
        boxed.box.compare_first(boxed, 7.0)
    with pytest.raises(WrongBits):
        boxed.box.compare_first(boxed, 8.0)
    boxed.box.compare_first(boxed)
    need = footprint.worker(boxed.programs, boxed.params.role.slots).total
    with monkeypatch.context() as patch:
        patch.setattr(footprint, "memory", lambda: Memory(need - 1, need - 1))
        boxed.box.compare_first(boxed, 10.0)
    monkeypatch.setattr(boxed.box, "_fits", footprint.Fitting(footprint.worker, need - 1))
    boxed.box.compare_first(boxed, 11.0)
    assert looks == [7.0, 8.0, loading.LOOK_SECONDS], "not without the memory, nor with more than its owner lends"


def test_a_job_is_planned_for_its_device_before_its_data_is_fetched(
    toy: Job, toy_store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits, device = footprint.Fitting(footprint.worker, path="emulated"), Emulator()
    monkeypatch.setattr(cuda, "open_device", lambda label: device)
    share = fits.share(toy.programs, toy.params)
    assert share is not None
    beside = footprint.worker(toy.programs, toy.params.role.slots, share.beside).total
    monkeypatch.setattr(footprint, "memory", lambda: Memory(beside, beside))
    job = loading.load(toy.id, toy.params, toy_store, path="emulated", fits=fits)
    assert job.box is not None
    job.box.close()
    device._size = 1000
    monkeypatch.setattr(jobs, "load_dataset", lambda *_, **__: pytest.fail("it is fetched"))
    with pytest.raises(Unfit, match=r"emulated has 1\.0 kB"):
        loading.load(toy.id, toy.params, toy_store, path="emulated", fits=fits)


def test_what_a_child_has_lost_is_given_to_the_next_one(boxed: Job, toy: Job) -> None:
    run = slot(boxed)
    state = run.advance(1, run.start)
    assert boxed.box is not None
    boxed.box.stop()
    after = run.advance(2, state)
    honest = slot(toy)
    assert run.root(2, after) == honest.root(2, honest.advance(2, honest.advance(1, honest.start)))


class Moody(DirectoryStore):
    """A store that does not answer now."""

    silent = False

    def fetch_block(self, cid: Cid) -> bytes:
        if self.silent:
            raise Unreachable("the store does not answer")
        return super().fetch_block(cid)


def test_a_child_that_could_not_be_loaded_is_followed_by_another(tmp_path: Path) -> None:
    store = Moody(tmp_path)
    job = loading.load(toyjob.ID, toyjob.load(store).params, store, fits=FITS)
    assert isinstance(job.box, JobBox)
    with closing(job.box):
        run = slot(job)
        job.box.stop()
        store.silent = True
        with pytest.raises(Unreachable):
            run.advance(1, run.start)
        assert job.box._box is None
        store.silent = False
        assert run.root(1, run.advance(1, run.start))


def test_whoever_waits_for_a_child_that_is_stopped_is_told(toy_store: ContentStore, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    params = hostile.publish(store, hostile.endless_sum)
    job = loading.load(toyjob.ID, params, store, fits=FITS)
    assert job.box is not None
    run, failed = slot(job), []
    at_work = threading.Event()

    def work() -> None:
        at_work.set()
        try:
            run.advance(1, run.start)
        except Cancelled as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    at_work.wait()
    job.box.close()
    thread.join()
    assert len(failed) == 1
    with pytest.raises(Cancelled):
        run.advance(1, run.start)


def test_who_stops_one_threads_work_ends_no_other(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    job = loading.load(toyjob.ID, hostile.publish(store, hostile.endless_sum), store, fits=FITS)
    box, failed = job.box, []
    assert isinstance(box, JobBox)
    run = slot(job)

    def work() -> None:
        try:
            run.advance(1, run.start)
        except Cancelled as error:
            failed.append(error)

    with box:
        thread = threading.Thread(target=work)
        thread.start()
        wait(lambda: box._ordered_by == thread.ident, "its order", every=0.01)
        child = box._at_work()
        box.stop(threading.get_ident())
        assert (box._box, child.alive) == (child, True), "it is another's order by now"
        assert thread.ident is not None
        box.stop(thread.ident)
        thread.join()
        assert len(failed) == 1
        box.stop(thread.ident)
        assert box._ordered_by is None, "it has none any more"


class Slow(DirectoryStore):
    """A store that answers once it is let go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked, self.goes_on = threading.Event(), threading.Event()
        self.goes_on.set()

    def fetch_block(self, cid: Cid) -> bytes:
        self.asked.set()
        self.goes_on.wait()
        return super().fetch_block(cid)


def test_who_stops_a_child_does_not_wait_for_its_store(tmp_path: Path) -> None:
    store = Slow(tmp_path)
    box = JobBox(toyjob.ID, toyjob.load(store).params, store, 1, "auto", FITS)
    store.asked.clear()
    store.goes_on.clear()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            box.plan()
        except Cancelled as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    store.asked.wait()
    child = box._box
    assert child is not None
    box.stop()
    assert not failed, "the store is still waited for"
    store.goes_on.set()
    thread.join()
    assert len(failed) == 1
    assert child._wire.fileno() == -1, "whoever waited has closed it"


def test_a_child_that_is_started_while_its_job_is_closed_is_ended(
    toy: Job, toy_store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = JobBox(toy.id, toy.params, toy_store, 1, "auto", FITS)
    started = []

    def start(*given: Any) -> Box:
        started.append(Box(*given))
        box.close()
        return started[0]

    monkeypatch.setattr(loading, "Box", start)
    with pytest.raises(Cancelled):
        box.plan()
    assert [child.alive for child in started] == [False]


def test_few_children_wait_for_orders_and_one_that_was_ended_comes_back(
    toy: Job, toy_store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MOST_IDLE", 1)
    one, other = (JobBox(toy.id, toy.params, toy_store, 1, "auto", FITS) for _ in range(2))
    with one, other:
        first, planned = one._at_work(), one.plan()
        other.plan()
        assert not first.alive
        assert one.plan() == planned
        assert one._at_work().alive
        assert other._box is None


def test_a_job_is_refused_if_the_kernel_ends_its_child_twice_in_a_row(boxed: Job) -> None:
    assert isinstance(boxed.box, JobBox)
    run = slot(boxed)

    def killed() -> None:
        child = boxed.box._at_work()  # type: ignore[union-attr]
        ended = "import os; os.kill(os.getpid(), 9)"
        child.call("roots", seconds=SECONDS, program=Exploit(ended), state=(), context=None, dataset=None)

    def starved(box: Box, *_: object, **__: object) -> None:
        raise Starved("the kernel ended it")

    with pytest.raises(Starved):
        killed()
    for _ in range(2):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Box, "call", starved)
            with pytest.raises(TryLater):
                run.advance(1, run.start)
        assert run.root(1, run.advance(1, run.start)), "it is no longer held against the job"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Box, "call", starved)
        with pytest.raises(TryLater):
            run.advance(1, run.start)
        with pytest.raises(Crashed):
            run.advance(1, run.start)
    assert run.advance(1, run.start)


def test_of_jobs_whose_children_the_kernel_ended_the_latest_are_remembered(
    toy: Job, toy_store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {JobId(i.to_bytes(32, "big")): ("step", None) for i in range(loading.MOST_STARVED)}
    monkeypatch.setattr(loading, "_STARVED", known)

    def starved(*_: object, **__: object) -> None:
        raise Starved("the kernel ended it")

    with JobBox(toy.id, toy.params, toy_store, 1, "auto", FITS) as box, pytest.raises(TryLater):
        box._call(SimpleNamespace(call=starved), "step")  # type: ignore[arg-type]
    assert list(known) == [*(JobId(i.to_bytes(32, "big")) for i in range(1, loading.MOST_STARVED)), toy.id]


def test_all_children_of_a_process_end_at_once(toy: Job, toy_store: ContentStore) -> None:
    job = loading.load(toy.id, toy.params, toy_store, fits=FITS)
    assert job.box is not None
    end_all()
    run = slot(job)
    assert run.root(1, run.advance(1, run.start)), "whoever goes on has another"
    job.box.close()


def test_a_job_that_breaks_a_rule_is_refused_with_the_evidence(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with pytest.raises(Undefendable, match="33 instructions"):
        loading.load(toyjob.ID, broken.publish(store), store, fits=FITS)


def test_parts_that_nobody_has_are_missing_and_no_fault_of_the_job(toy: Job, tmp_path: Path) -> None:
    with pytest.raises(BlobMissing):
        loading.load(toy.id, toy.params, DirectoryStore(tmp_path), fits=FITS)


def test_a_job_that_is_too_large_is_told_with_the_figure(
    toy: Job, toy_store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footprint, "memory", lambda: Memory(1 << 20, 1 << 20))
    with pytest.raises(Unfit, match="this machine has"):
        loading.load(toy.id, toy.params, toy_store, fits=FITS)


def test_a_child_that_needs_more_than_there_is_ends_alone(
    toy: Job, toy_store: ContentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "memory", lambda: Memory(1 << 10, 1 << 10))
    # What so small a job takes may lie in what the child held before: its data do not.
    with pytest.raises(Crashed):
        _compared(loading.load(toy.id, toy.params, toy_store, fits=FITS))


def _compared(job: Job) -> None:
    assert job.box is not None
    with closing(job.box):
        job.box.compare(job)


def test_a_plan_that_is_late_is_refused(toy: Job, toy_store: ContentStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(loading, "PLAN_SECONDS", 0.0)
    with pytest.raises(Crashed, match="was not done after"):
        loading.load(toy.id, toy.params, toy_store, fits=FITS)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_program_harms_more_than_its_child(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a build plans and runs such a step or not, a party that looks at it is there afterwards."""
    monkeypatch.setattr(loading, "memory", lambda: Memory(1 << 30, 1 << 30))
    monkeypatch.setattr(footprint, "memory", lambda: Memory(1 << 30, 1 << 30))
    store = DirectoryStore(tmp_path)
    params = hostile.publish(store, HOSTILE[name])
    try:
        job = loading.load(toyjob.ID, params, store, fits=FITS)
    except LockstepError:
        return
    assert job.box is not None
    try:
        job.box.measure(job, capacity.require_claimant, ChainPace())
        job.box.compare(job)
        run = slot(job)
        assert len([root for _, _, root in run.states()]) == run.transitions
    except LockstepError:
        pass
    finally:
        job.box.close()


def test_a_loss_is_computed_in_the_child_and_given_up_when_it_is_late(
    boxed: Job, toy: Job, monkeypatch: pytest.MonkeyPatch, toy_store: ContentStore
) -> None:
    entries = [None if h is None else (h.dtype, h.elements if h.shape else None) for h in toy.programs.step.inputs]
    b = ProgramBuilder(entries)
    program = b.finish([b.sum(b.input(0))])
    cid = toy_store.put(encode_program(program))
    spec = replace(toy.spec, programs={**toy.spec.programs, "loss": cid})
    here, there = (Losses.of(replace(job, spec=spec), toy_store) for job in (toy, boxed))
    assert here is not None
    assert there is not None
    assert isinstance(there._executable, BoxedExecutable)
    assert here.at(toy.genesis, toyjob.SEED, 0) == there.at(toy.genesis, toyjob.SEED, 0)
    given: list[float] = []
    call = Box.call

    def called(box: Box, verb: str, *, seconds: float, **more: Any) -> Any:
        given.append(seconds)
        # The second slot has what the first one left of one deadline.
        return call(box, verb, seconds=0.0 if len(given) == 2 else seconds, **more)

    assert toy.params.role.slots > 1
    with monkeypatch.context() as patched:
        patched.setattr(Box, "call", called)
        with pytest.raises(Crashed, match="was not done after"):
            there.at(toy.genesis, toyjob.SEED, 0, seconds=20.0)
    assert 20.0 >= given[0] > given[1]
    monkeypatch.setattr(loading, "LOSS_SECONDS", 0.0)
    with pytest.raises(Crashed, match="was not done after"):
        there.at(toy.genesis, toyjob.SEED, 0)
