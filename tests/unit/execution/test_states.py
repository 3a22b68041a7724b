"""States on disk: the same bits come back or none, whatever a crash or a full disk does; the needed ones stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lockstep.execution.jobs import ClaimRun, Job, State, slot_run
from lockstep.execution.states import SUFFIX, ClaimStates, States
from lockstep.market.held import HeldClaim
from lockstep.protocol.types import ClaimId, Seed, StateRoot
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob
from tests.unit.disputes.test_player import counted

A, B = (ClaimId(c * 32) for c in (b"a", b"b"))
ROOMY = 1 << 30


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return toyjob.load(DirectoryStore(tmp_path_factory.mktemp("toy")))


@pytest.fixture(scope="module")
def run(job: Job) -> ClaimRun:
    return slot_run(job, job.genesis, toyjob.SEED, 0, 0)


@pytest.fixture(scope="module")
def path(run: ClaimRun) -> list[tuple[State, StateRoot]]:
    """S_0 .. S_T."""
    return [(run.start, run.root(0, run.start)), *((state, root) for _, state, root in run.states())]


def test_a_state_comes_back_as_it_was(tmp_path: Path, run: ClaimRun, path: list[tuple[State, StateRoot]]) -> None:
    States(tmp_path, ROOMY).save(A, run, 2, path[2][0])
    again = States(tmp_path, ROOMY).load(A, run, 2, path[2][1])
    assert again is not None
    for k, (a, b) in enumerate(zip(again, path[2][0], strict=True)):
        np.testing.assert_array_equal(a, b, err_msg=f"entry {k}")  # type: ignore[arg-type]
    assert again[2] is run.start[2], "the anchor is S_0's, and not on disk twice"


def test_a_claim_begins_from_its_own_disk(tmp_path: Path, job: Job, run: ClaimRun) -> None:
    States(tmp_path, ROOMY).save(A, run, 0, run.start)
    again = States(tmp_path, ROOMY).start(A, job)
    assert again is not None
    assert (again.slot, again.round, again.seed) == (run.slot, run.round, run.seed)
    assert HeldClaim.of(again).trace == HeldClaim.of(run).trace
    assert States(tmp_path, ROOMY).start(B, job) is None


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "head"])
@pytest.mark.parametrize("t", [0, 2])
def test_damage_is_seen_and_removed(
    tmp_path: Path, job: Job, run: ClaimRun, path: list[tuple[State, StateRoot]], damage: str, t: int
) -> None:
    states = States(tmp_path, ROOMY)
    states.save(A, run, t, path[t][0])
    file = tmp_path / A.hex() / f"{t}{SUFFIX}"
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
    elif damage == "cut":
        del data[-4:]
    elif damage == "empty":
        data.clear()
    else:
        data[: data.index(b"\n")] = b'{"t": 2, "entries": [[99, 99]], "slot": 0, "round": 0, "carried": null}'
    file.write_bytes(data)
    assert (states.start(A, job) if t == 0 else states.load(A, run, t, path[t][1])) is None
    assert damage == "empty" or not file.exists()


def test_a_state_of_another_claim_is_not_believed(
    tmp_path: Path, job: Job, run: ClaimRun, path: list[tuple[State, StateRoot]]
) -> None:
    states = States(tmp_path, ROOMY)
    other = slot_run(job, job.genesis, Seed(b"x" * 32), 0, 0)
    states.save(A, other, 2, list(other.states())[1][1])
    assert states.load(A, run, 2, path[2][1]) is None


def test_what_no_game_needs_goes_first_and_what_is_needed_less_is_not_kept(
    tmp_path: Path, run: ClaimRun, path: list[tuple[State, StateRoot]]
) -> None:
    States(tmp_path / "one", ROOMY).save(A, run, 2, path[2][0])
    size = (tmp_path / "one" / A.hex() / f"2{SUFFIX}").stat().st_size
    states = States(tmp_path / "all", int(2.5 * size))
    assert states.save(A, run, 2, path[2][0])
    assert states.save(B, run, 2, path[2][0])
    states.need({B: {2, 3}})
    assert states.save(B, run, 3, path[3][0])
    assert (states.kept(A), states.kept(B)) == ([], [2, 3]), "the claim without a game went"
    assert not states.save(A, run, 2, path[2][0]), "nothing here is needed less"
    states.need({A: {1}, B: {3}})
    assert states.save(A, run, 1, path[1][0])
    assert (states.kept(A), states.kept(B)) == ([1], [3]), "a waypoint goes before what a game argues from"
    assert not States(tmp_path / "none", 10).save(A, run, 1, path[1][0])
    states.forget(A)
    assert states.kept(A) == []


def test_a_folder_that_cannot_be_written_costs_no_move(
    tmp_path: Path, run: ClaimRun, path: list[tuple[State, StateRoot]]
) -> None:
    (tmp_path / "file").write_bytes(b"")
    held = HeldClaim(run, [r for _, r in path[1:]], states=ClaimStates(States(tmp_path / "file", ROOMY), A))
    assert held.step(4).root == path[4][1]  # type: ignore[attr-defined]


def test_after_a_kill_a_claim_goes_on_from_the_nearest_state(
    tmp_path: Path, run: ClaimRun, path: list[tuple[State, StateRoot]], monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = [r for _, r in path[1:]]
    HeldClaim(run, roots, states=ClaimStates(States(tmp_path, ROOMY), A)).step(5)
    advanced = counted(monkeypatch)
    again = HeldClaim(run, roots, states=ClaimStates(States(tmp_path, ROOMY), A))
    assert again.step(5).root == roots[4]  # type: ignore[attr-defined]
    assert advanced == []
    assert again.step(3).root == roots[2]  # type: ignore[attr-defined]
    assert advanced == [], "waypoints of the first replay"
