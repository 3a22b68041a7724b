"""Work in progress: a killed worker loses at most two steps, and ends with the same bits."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from lockstep.execution.jobs import ClaimRun, Job, State, trace_root
from lockstep.numerics.trace import StepTrace
from lockstep.protocol.errors import Mismatch, WrongBits
from lockstep.protocol.types import ClaimId
from lockstep.runtime.keyed_executor import Stopped
from lockstep.storage import ContentStore
from lockstep.storage.directory import DirectoryStore
from tests.support.wrong import WrongRun
from worker import computing, progress
from worker.computing import check_of, check_step, compute, train
from worker.progress import MATERIAL, PROGRESS, UNCHECKED, Material, WorkFolder, materials

CLAIM = ClaimId(b"\xaa" * 32)
ATTEMPT = 0


def folder(home: Path) -> WorkFolder:
    return WorkFolder(home, CLAIM)


def going_on(stop: threading.Event) -> Callable[[], None]:
    """What is asked before each step."""

    def go_on() -> None:
        if stop.is_set():
            raise Stopped

    return go_on


def stop_after(run: ClaimRun, work: WorkFolder, steps: int) -> None:
    """Do some steps as a worker does, and leave."""
    state, roots, _ = *work.resume(run), 0
    for t in range(len(roots) + 1, steps + 1):
        state = run.advance(t, state)
        roots.append(run.root(t, state))
        work.save_step(run, state, roots)


@pytest.mark.parametrize("steps", [0, 1, 3, 5, 6])
def test_a_claim_resumed_anywhere_has_the_same_trace(steps: int, honest_run: ClaimRun, tmp_path: Path) -> None:
    whole = [root for _, _, root in honest_run.states()]
    stop_after(honest_run, folder(tmp_path), steps)
    _, roots, resumed = train(honest_run, folder(tmp_path), lambda: None, None)
    assert resumed == steps, "what was done is not done again"
    assert roots == whole


def test_torn_or_foreign_progress_is_not_believed(honest_run: ClaimRun, tmp_path: Path) -> None:
    stop_after(honest_run, folder(tmp_path), 3)
    path = folder(tmp_path).path / PROGRESS
    data = path.read_bytes()
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    for damaged in (data[:-1], data + b"\0", flipped, b"", b"{}\n", data.split(b"\n", 1)[0]):
        path.write_bytes(damaged)
        assert folder(tmp_path).resume(honest_run) == (honest_run.start, []), damaged[:20]
    path.write_bytes(data)
    state, roots = folder(tmp_path).resume(honest_run)
    assert len(roots) == 3
    assert honest_run.root(3, state) == roots[-1]


def test_stopping_keeps_every_step_that_was_computed(honest_run: ClaimRun, tmp_path: Path) -> None:
    """Also the last one, which is hashed and written beside the step that is then not begun."""
    stop, computed = threading.Event(), []

    class Stopping(type(honest_run)):  # type: ignore[misc]
        def advance(self, t: int, state: State) -> State:
            computed.append(t)
            if t == 3:
                stop.set()
            return super().advance(t, state)

    run = Stopping(honest_run.job, honest_run.slot, honest_run.round, honest_run.seed, honest_run.start)
    with pytest.raises(Stopped):
        train(run, folder(tmp_path), going_on(stop), None)
    assert computed == [1, 2, 3]
    assert len(folder(tmp_path).resume(honest_run)[1]) == 3


def test_what_cannot_be_written_stops_the_training(honest_run: ClaimRun, tmp_path: Path) -> None:
    (tmp_path / "work").write_text("no folder")
    with pytest.raises(OSError, match="work"):
        train(honest_run, folder(tmp_path), lambda: None, None)


def test_stopping_raises_between_steps_and_keeps_them(honest_run: ClaimRun, tmp_path: Path) -> None:
    stop = threading.Event()
    stop_after(honest_run, folder(tmp_path), 2)
    stop.set()
    with pytest.raises(Stopped):
        train(honest_run, folder(tmp_path), going_on(stop), None)
    assert len(folder(tmp_path).resume(honest_run)[1]) == 2


SCRIPT = """
import sys, threading, time
sys.path.insert(0, ".")
from pathlib import Path
from lockstep.execution.jobs import slot_run
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob
from worker.computing import train
from worker.progress import WorkFolder

class Slow(WorkFolder):
    def save_step(self, run, state, roots, due=0):
        super().save_step(run, state, roots, due)
        print(len(roots), flush=True)
        time.sleep(0.05)

job = toyjob.load(DirectoryStore(Path(sys.argv[1]) / "store"))
run = slot_run(job, job.genesis, toyjob.SEED, 0, 1)
train(run, Slow(Path(sys.argv[1]), bytes.fromhex("aa" * 32)), lambda: None, None)
"""


@pytest.mark.slow
def test_a_worker_killed_in_any_moment_goes_on_with_the_same_bits(
    honest_run: ClaimRun, tmp_path: Path, repository: Path
) -> None:
    """kill -9 after the third step was printed: the next process has at least three, and the same trace root."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=repository) as child:
        assert child.stdout is not None
        done = 0
        while done < 3:
            done = int(child.stdout.readline())
        time.sleep(0.01)
        os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    _, roots, resumed = train(honest_run, folder(tmp_path), lambda: None, None)
    assert resumed >= 3, "what was written was not lost"
    assert trace_root(roots) == trace_root([root for _, _, root in honest_run.states()])


def test_material_is_on_disk_when_the_claim_is_ready_and_says_it_all(
    honest_run: ClaimRun, toy_store: ContentStore, toy: Job, tmp_path: Path
) -> None:
    done = compute(honest_run, ATTEMPT, folder(tmp_path), toy_store, lambda: None, Random(0))
    assert folder(tmp_path).material() == done.material
    assert materials(tmp_path) == [done.material]
    assert not (folder(tmp_path).path / PROGRESS).exists(), "tensors are not kept: the material computes them again"
    material = done.material
    assert toy_store.get(material.trace_cid, max_bytes=1000) == b"".join(material.roots)
    assert material.trace_root == trace_root([root for _, _, root in honest_run.states()])
    again = compute(honest_run, ATTEMPT, folder(tmp_path), toy_store, lambda: None, Random(0))
    assert again.material == material, "a claim is computed once"
    folder(tmp_path).remove()
    assert materials(tmp_path) == []


def test_material_that_does_not_add_up_is_refused(
    honest_run: ClaimRun, toy_store: ContentStore, tmp_path: Path
) -> None:
    material = compute(honest_run, ATTEMPT, folder(tmp_path), toy_store, lambda: None, None).material
    path = folder(tmp_path).path / MATERIAL
    path.write_text(material.to_json().replace(material.out.hex(), "00" * 32))
    with pytest.raises(Mismatch):
        folder(tmp_path).material()
    assert Material.from_json(material.to_json()) == material
    earlier = json.loads(material.to_json()) | {"base": "bafybase", "payloads": [None]}
    assert Material.from_json(json.dumps(earlier)) == material, "as an earlier version wrote it"


def test_the_self_check_passes_every_honest_step(honest_run: ClaimRun) -> None:
    state = honest_run.start
    for t in range(1, honest_run.transitions + 1):
        step = honest_run.materialise(t, state)
        check_step(step, t, step.root, Random(t))
        state = honest_run.advance(t, state)


def test_the_self_check_stops_a_machine_that_computes_other_bits(honest_run: ClaimRun, toy: Job) -> None:
    honest_step = honest_run.materialise(1, honest_run.start)
    lies = pytest.importorskip("lockstep.demo.cheats.lies")
    wrong = (
        lies.cheat_of("other-data", toy.programs, toy.params, 0, 31337).run(honest_run).materialise(1, honest_run.start)
    )
    assert isinstance(wrong, StepTrace)
    with pytest.raises(WrongBits):
        check_step(wrong, 1, honest_step.root, Random(0))
    found = 0
    for seed in range(8):
        try:
            check_step(wrong, 1, wrong.root, Random(seed))
        except WrongBits:
            found += 1
    assert found > 0, "wrong words of a consistent step are found by chance, not always"


@pytest.mark.parametrize("saved", range(7))
def test_a_claim_whose_check_has_not_passed_is_not_made_however_much_of_it_is_on_disk(
    honest_run: ClaimRun, tmp_path: Path, saved: int
) -> None:
    wrong = WrongRun.like(honest_run)
    stop_after(wrong, folder(tmp_path), saved)
    for _ in range(3):
        with pytest.raises(WrongBits, match="another state when its tensors are kept"):
            train(wrong, folder(tmp_path), lambda: None, check_of(CLAIM, honest_run.seed))


def due(run: ClaimRun) -> int:
    """The step that is drawn to be checked."""
    return check_of(CLAIM, run.seed).randint(1, run.transitions)


def test_the_checked_step_does_not_depend_on_what_was_resumed(
    honest_run: ClaimRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[int] = []
    monkeypatch.setattr(computing, "check_step", lambda step, t, root, random: checked.append(t))
    whole = [root for _, _, root in honest_run.states()]
    for steps in range(due(honest_run)):
        folder(tmp_path).drop_progress()
        stop_after(honest_run, folder(tmp_path), steps)
        _, roots, resumed = train(honest_run, folder(tmp_path), lambda: None, check_of(CLAIM, honest_run.seed))
        assert (resumed, roots) == (steps, whole)
    assert checked == [due(honest_run)] * due(honest_run)


def test_who_is_killed_before_the_check_comes_to_it_again_and_loses_no_step(
    honest_run: ClaimRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(computing, "check_step", killed)
    with pytest.raises(KeyboardInterrupt):
        train(honest_run, folder(tmp_path), lambda: None, check_of(CLAIM, honest_run.seed))
    assert (folder(tmp_path).path / UNCHECKED).exists(), "the step is computed"
    checked: list[int] = []
    monkeypatch.setattr(computing, "check_step", lambda step, t, root, random: checked.append(t))
    _, _, resumed = train(honest_run, folder(tmp_path), lambda: None, check_of(CLAIM, honest_run.seed))
    assert (resumed, checked) == (due(honest_run) - 1, [due(honest_run)])


def test_progress_behind_a_check_that_passed_is_gone_on_with(honest_run: ClaimRun, tmp_path: Path) -> None:
    stop, random = threading.Event(), check_of(CLAIM, honest_run.seed)
    last = min(due(honest_run) + 1, honest_run.transitions)

    class Stopping(type(honest_run)):  # type: ignore[misc]
        def advance(self, t: int, state: State) -> State:
            if t == last:
                stop.set()
            return super().advance(t, state)

    run = Stopping(honest_run.job, honest_run.slot, honest_run.round, honest_run.seed, honest_run.start)
    if last < run.transitions:
        with pytest.raises(Stopped):
            train(run, folder(tmp_path), going_on(stop), random)
    else:
        train(run, folder(tmp_path), lambda: None, random)
    assert len(folder(tmp_path).resume(honest_run, due(honest_run))[1]) == last


def test_progress_of_another_build_is_not_gone_on_with(
    honest_run: ClaimRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(honest_run, folder(tmp_path), 3)
    assert len(folder(tmp_path).resume(honest_run)[1]) == 3
    monkeypatch.setattr(progress, "build_name", lambda: "a mended one")
    assert folder(tmp_path).resume(honest_run)[1] == []


def test_progress_belongs_to_one_seed(honest_run: ClaimRun, tmp_path: Path, toy: Job) -> None:
    from dataclasses import replace

    stop_after(honest_run, folder(tmp_path), 2)
    other = replace(honest_run, seed=b"\x01" * 32)
    assert folder(tmp_path).resume(other)[1] == []


def test_a_store_can_be_anywhere(honest_run: ClaimRun, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "elsewhere")
    done = compute(honest_run, ATTEMPT, folder(tmp_path), store, lambda: None, None)
    assert store.has(done.material.payload_cid)
