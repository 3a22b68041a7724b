"""A job on a device: the processor's roots, states that stay there, and the processor where the device cannot go on."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lockstep.base.cache import MemoryCache
from lockstep.base.machine import Memory, readable
from lockstep.execution import capacity, comparing, footprint
from lockstep.execution.capacity import ChainPace, keep_up, require_nothing
from lockstep.execution.footprint import DeviceShare, Fitting
from lockstep.execution.jobs import ClaimRun, Job, checkpoint_of, merge_run, payload_of, slot_run
from lockstep.execution.states import ClaimStates, States
from lockstep.market.held import HeldClaim
from lockstep.numerics import cuda
from lockstep.numerics.cuda import loaded as loaded_module
from lockstep.numerics.cuda.device import Device, DeviceMemory
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.loaded import available
from lockstep.numerics.resident import DeviceFailed, Resident
from lockstep.protocol.errors import Mismatch, PayloadInvalid, Unfit
from lockstep.protocol.types import ClaimId, StateRoot
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob
from worker import computing
from worker.computing import check_of, train
from worker.progress import WorkFolder

Load = Callable[[Device], Job]
CLAIM = ClaimId(b"\xaa" * 32)


class Counting(Emulator):
    """A device that counts what is copied from it, in words, and can be made to fail."""

    def __init__(self, size: int | None = None) -> None:
        super().__init__(size=size)
        self.copied: list[int] = []
        self.lost = False
        self.most = 0
        """Bytes that were allocated at a time."""

    def read(self, address: int, words: np.ndarray) -> None:
        self._alive()
        self.copied.append(words.size)
        super().read(address, words)

    def write(self, address: int, words: np.ndarray) -> None:
        self._alive()
        super().write(address, words)

    def allocate(self, words: int) -> int:
        self._alive()
        address = super().allocate(words)
        self.most = max(self.most, self.memory.total - self.memory.free)
        return address

    def _alive(self) -> None:
        if self.lost:
            raise DeviceFailed("the device fell off the bus", hint="nvidia-smi")


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """The toy job on a device."""

    def on(device: Device) -> Job:
        monkeypatch.setattr(cuda, "open_device", lambda label: device)
        job = toyjob.load(DirectoryStore(tmp_path / "blocks"), carry=1)
        object.__setattr__(job, "path", "emulated")
        return job

    return on


@pytest.fixture
def processor(tmp_path: Path) -> Job:
    return toyjob.load(DirectoryStore(tmp_path / "blocks"), carry=1)


def slot(job: Job) -> ClaimRun:
    return slot_run(job, job.genesis, toyjob.SEED, 0, 1)


def roots(run: ClaimRun) -> list[StateRoot]:
    return [root for _, _, root in run.states()]


def test_claims_and_merges_have_the_processors_roots(load: Load, processor: Job) -> None:
    job = load(Emulator())
    (*_, (_, final, _)), due = slot(job).states(), roots(slot(processor))
    assert roots(slot(job)) == due
    payload = payload_of(job, final)
    merges = [merge_run(j, j.genesis, [payload, None, None], toyjob.SEED, 0) for j in (job, processor)]
    assert roots(merges[0]) == roots(merges[1])
    outs = [m.job.checkpoint_roots(checkpoint_of(m.job, m.advance(1, m.start))) for m in merges]
    assert outs[0] == outs[1]


def test_a_claim_copies_digests_alone_until_somebody_asks_for_a_tensor(load: Load) -> None:
    device = Counting()
    run = slot(load(device))
    state = run.advance(1, run.start)
    for t in range(2, run.transitions + 1):
        state = run.advance(t, state)
        run.root(t, state)
    assert max(device.copied) <= 8 * 5, "digests of what a step changes"
    assert isinstance(state, Resident)
    device.copied.clear()
    assert state[0] is state[0]
    assert device.copied == [toyjob.SIZE], "one tensor, once"
    whole = run.advance(1, run.start)
    assert whole[2] is run.start[2], "the anchor is the one that was given"


def test_a_state_of_another_layout_is_refused(load: Load) -> None:
    job = load(Emulator())
    run = slot(job)
    state = run.advance(1, run.start)
    with pytest.raises(Mismatch, match="layout"):
        run.root(run.transitions, state)
    with pytest.raises(PayloadInvalid, match="layout"):
        job.executable(job.programs.merge).advance(state, run.context(1))


def test_what_a_game_asks_is_the_processors(load: Load, processor: Job, tmp_path: Path) -> None:
    run, due = slot(load(Emulator())), slot(processor)
    cache = MemoryCache()
    held = HeldClaim(run, roots(run), cache, ClaimStates(States(tmp_path / "states", 1 << 20), CLAIM))
    for t in (3, run.transitions):
        before = held.approach(t)
        assert before is not None
        step = held.hold(t, before)
        other = due.materialise(t, due.state_before(t))
        assert (step.graph, step.prev) == (other.graph, other.prev)
    assert held.states is not None
    assert held.states.kept(), "states that a game argues from are on disk"
    kept = [item.value for key, item in cache._items.items() if key[1] == "state"]  # type: ignore[index]
    assert not any(isinstance(state, Resident) for state in kept), "a device's memory is for what it computes"


def test_work_in_progress_is_resumed_on_the_other_side(load: Load, processor: Job, tmp_path: Path) -> None:
    run, due = slot(load(Emulator())), slot(processor)
    folder = WorkFolder(tmp_path, CLAIM)
    state, done = run.start, []
    for t in range(1, 4):
        state = run.advance(t, state)
        done.append(run.root(t, state))
    folder.save_step(run, state, done)
    _, found, resumed = train(due, folder, lambda: None, None)
    assert resumed == 3
    assert found == roots(due)


def test_what_a_device_computes_is_compared_with_other_code(load: Load) -> None:
    for exact in (comparing.EXACT_OPERATIONS, 0):
        comparing.check_job(load(Emulator()), exact)


def test_no_state_of_a_device_lies_behind_a_check_that_has_not_passed(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, folder = slot(load(Emulator())), WorkFolder(tmp_path, CLAIM)
    due = check_of(CLAIM, run.seed).randint(1, run.transitions)
    seen: list[int] = []

    def check(*_: object) -> None:
        seen.append(len(folder.resume(run)[1]))

    monkeypatch.setattr(computing, "check_step", check)
    train(run, folder, lambda: None, check_of(CLAIM, run.seed))
    assert seen[0] < due
    assert len(folder.resume(run, due)[1]) in (*range(due), run.transitions)


def test_states_on_a_device_are_written_as_often_as_leaves_it_its_time(
    load: Load, processor: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def slow(folder: WorkFolder, run: ClaimRun, state: object, found: list[StateRoot], due: int) -> None:
        written.append(len(found))
        time.sleep(10)

    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    monkeypatch.setattr(WorkFolder, "save_step", slow)
    train(slot(processor), WorkFolder(tmp_path / "processor", CLAIM), lambda: None, None)
    assert written == [1, 2, 3, 4, 5, 6], "every step on the processor"
    written.clear()
    train(slot(load(Emulator())), WorkFolder(tmp_path / "device", CLAIM), lambda: None, None)
    assert written == [1, 6], "the rest took less than four times as long as writing the first, and the last is written"


def test_a_program_that_does_not_fit_runs_on_the_processor(
    load: Load, processor: Job, caplog: pytest.LogCaptureFixture
) -> None:
    job = load(Emulator(size=2000))
    with caplog.at_level(logging.WARNING):
        assert roots(slot(job)) == roots(slot(processor))
    assert "a step takes" in caplog.text
    assert "bytes of emulated, which has 2,000 free" in caplog.text
    assert capacity.measure(job).trains == "cpu", "its pace is that of what computes"


def test_games_are_played_on_the_processor_where_the_device_lacks_the_memory(load: Load, processor: Job) -> None:
    roomy = load(Emulator())
    need = roomy.executable(roomy.programs.step).need  # type: ignore[attr-defined]
    device = Emulator()
    job = load(device)
    assert job.executable(job.programs.step).shows
    found = capacity.measure(job)
    assert (found.trains, found.defends) == ("emulated", "emulated")
    device._size -= available(device) - (need.shown - 1)
    found = capacity.measure(job)
    assert (found.trains, found.defends) == ("emulated", "cpu")
    assert (
        slot(job).materialise(1, slot(job).start).graph == slot(processor).materialise(1, slot(processor).start).graph
    )


def test_what_a_job_keeps_for_its_next_step_makes_room_for_another_job(load: Load, processor: Job) -> None:
    device = Emulator()
    first = load(device)
    due = roots(slot(first))
    used = device._size - device.memory.free
    kept = available(device) - device.memory.free
    assert kept > used // 4, "most of what a step takes"
    device._size = 2 * used - kept + 4000  # two jobs' constants, and what one of them computes with
    second = load(device)
    assert roots(slot(second)) == due
    assert roots(slot(first)) == due, "and the other way round"
    assert second.executable(second.programs.step).place == "emulated"


def test_a_device_that_is_lost_is_replaced_and_the_claim_defended(load: Load, processor: Job) -> None:
    device = Counting()
    job = load(device)
    run, due = slot(job), roots(slot(processor))
    held = HeldClaim(run, due)
    state = run.advance(1, run.start)
    device.lost = True
    with pytest.raises(DeviceFailed):
        run.advance(2, state)  # the state was there alone
    before = held.approach(4)
    assert before is not None, "from the start, on the processor"
    assert run.root(3, before) == due[2]
    assert held.hold(4, before).root == due[3]
    assert roots(run) == due
    assert run.advance(run.transitions, run.state_before(run.transitions)) is not None


def test_the_least_that_a_step_takes_is_a_devices(load: Load, processor: Job) -> None:
    assert capacity.least(load(Emulator())).step < capacity.least(processor).step


AT_ONCE = ChainPace()
UNCOUNTED = 3 * (4096 + 256 * 4)
"""Bytes of a device beside a plan: guards, roots of empty tensors, a step's context."""


def test_what_a_device_is_said_to_need_is_what_it_holds(load: Load, caplog: pytest.LogCaptureFixture) -> None:
    job = load(Emulator())
    share = Fitting(footprint.worker, path="emulated").share(job.programs, job.params)
    assert share is not None
    device = Counting(size=share.total + UNCOUNTED)
    job = load(device)
    *_, (_, final, _) = slot(job).states()
    payloads = [payload_of(job, final)] * job.params.role.slots
    roots(merge_run(job, job.genesis, payloads, toyjob.SEED, 0))
    assert caplog.text == "", "the processor has not taken over"
    assert device.most > 0.9 * share.total
    loaded = DeviceShare.loaded(footprint.worker, job)
    assert (loaded.needs, loaded.total) == (share.needs, share.total)
    loaded.memory.require(loaded.total)


def test_a_worker_joins_nothing_that_its_device_lacks_memory_for(
    load: Load, processor: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load(Emulator())
    fits = Fitting(footprint.worker, path="emulated")
    share = fits.share(job.programs, job.params)
    assert share is not None
    device = Counting(size=share.total - 1)
    small = load(device)
    told = f"needs {readable(share.total)} of memory, emulated has {readable(share.total - 1)}"
    with pytest.raises(Unfit, match=re.escape(told)) as refused:
        fits(small.programs, small.params)
    assert "larger machines" in refused.value.hint
    assert device.most == 0, "nothing is allocated for it"
    with pytest.raises(Unfit, match=re.escape(told)):
        keep_up(small, require_nothing, AT_ONCE)
    # Whoever only replays or merges has the processor do it, if this machine's memory holds it.
    whole = footprint.verifier(job.programs, job.params.role.slots).total
    for role in (footprint.verifier, footprint.aggregator):
        monkeypatch.setattr(cuda, "open_device", lambda label: Emulator(size=0))
        Fitting(role, path="emulated")(small.programs, small.params)
    monkeypatch.setattr(footprint, "memory", lambda: Memory(whole - 1, whole - 1))
    with pytest.raises(Unfit, match="this machine has"):
        Fitting(footprint.verifier, path="emulated")(small.programs, small.params)
    fitting = load(Emulator(size=share.total + UNCOUNTED))
    monkeypatch.setattr(footprint, "memory", lambda: Memory(2 * whole, 2 * whole))
    fits(fitting.programs, fitting.params)
    assert roots(slot(fitting)) == roots(slot(processor))
    assert fitting.executable(fitting.programs.step).place == "emulated"


def test_a_machine_need_not_hold_what_its_device_does(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    job = load(Emulator())
    fits, slots = Fitting(footprint.worker, path="emulated"), job.params.role.slots
    share = fits.share(job.programs, job.params)
    assert share is not None
    whole, beside = (footprint.worker(job.programs, slots, *of) for of in ((), (share.beside,)))
    assert beside.arena == 0
    assert beside.total < whole.total
    assert (beside.constants, beside.base) == (whole.constants, whole.base), "they are decoded here"
    for module in (footprint, capacity):
        monkeypatch.setattr(module, "memory", lambda: Memory(beside.total, beside.total))
    fits(job.programs, job.params)
    assert keep_up(job, require_nothing, AT_ONCE).trains == "emulated"
    with pytest.raises(Unfit, match="this machine has"):
        Fitting(footprint.worker)(job.programs, job.params)
    for module in (footprint, capacity):
        monkeypatch.setattr(module, "memory", lambda: Memory(beside.total - 1, beside.total - 1))
    with pytest.raises(Unfit, match=f"needs {readable(beside.total)} of memory, this machine has"):
        fits(job.programs, job.params)
    with pytest.raises(Unfit, match="this machine has"):
        keep_up(job, require_nothing, AT_ONCE)


def test_a_machine_holds_the_steps_of_games_that_its_device_has_no_memory_for(load: Load) -> None:
    job = load(Emulator())
    step = job.programs.step
    fits = Fitting(footprint.worker, path="emulated")
    roomy = fits.share(job.programs, job.params)
    assert roomy is not None
    load(Emulator(size=roomy.total))
    tight = fits.share(job.programs, job.params)
    assert tight is not None
    whole = footprint.of_program(step)
    assert roomy.beside(step).shown < tight.beside(step).shown == whole.results + whole.shown
    assert tight.beside(step).arena == 0


def test_a_device_that_failed_is_given_no_job_and_ends_nothing(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(device: Device) -> DeviceMemory:
        raise DeviceFailed("the device fell off the bus", hint="nvidia-smi")

    job = load(Emulator())
    assert job.executable(job.programs.step).place == "emulated"
    monkeypatch.setattr(Emulator, "memory", property(lost))
    for admit in (
        lambda: Fitting(footprint.worker, path="emulated")(job.programs, job.params),
        lambda: keep_up(job, require_nothing, AT_ONCE),
    ):
        with pytest.raises(Unfit, match="emulated, which failed, has"):
            admit()
    Fitting(footprint.verifier, path="emulated")(job.programs, job.params)


def test_a_program_without_kernels_is_held_by_this_machine(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    job = load(Emulator(size=0))
    monkeypatch.setattr(loaded_module, "MOST_SOURCE", 0)
    fits = Fitting(footprint.worker, path="emulated")
    share = fits.share(job.programs, job.params)
    assert share is not None
    assert share.total == 0
    assert share.beside(job.programs.step) == footprint.of_program(job.programs.step)
    fits(job.programs, job.params)
