"""Losses for the pages: those of `train metrics`, one a look, of merges that stand, given up where they are dear."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from coordinator import losses
from coordinator.db import Database
from coordinator.losses import RunLosses, due
from coordinator.models import ClaimRow, LossRow, RoundRow
from lockstep.execution.jobs import Job
from lockstep.execution.losses import Losses
from lockstep.numerics.builder import ProgramBuilder
from lockstep.protocol.errors import Crashed
from lockstep.protocol.programs.program import F32, I32, Program
from lockstep.protocol.types import MERGE_SLOT, Seed
from lockstep.runtime.refusals import LOSSES, Refusals
from lockstep.storage import ContentStore
from lockstep.storage.containers import encode_program
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob

NAME = "0x" + toyjob.ID.hex()
SEEDS = [bytes([7 + number]) * 32 for number in range(3)]


def loss_program() -> Program:
    """The squares of the parameters, added up."""
    b = ProgramBuilder([(F32, toyjob.SIZE), None, (F32, toyjob.SIZE), None, (F32, toyjob.SIZE), (F32, toyjob.SIZE),
                        (I32, None), None])  # fmt: skip
    p = b.input(0)
    return b.finish([b.sum(b.map((toyjob.SIZE,), [p], lambda e, x: e.fmul(x, x), name="squares"), name="loss")])


@pytest.fixture
def store(tmp_path: Path) -> ContentStore:
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def job(store: ContentStore) -> Job:
    loaded = toyjob.load(store)
    cid = store.put(encode_program(loss_program(), store.put))
    return replace(loaded, spec=replace(loaded.spec, programs={**loaded.spec.programs, "loss": cid}))


def merge_row(job: Job, number: int, state: str = "final") -> ClaimRow:
    """A merge whose checkpoint is the first one."""
    return ClaimRow(
        id=f"0x{number:064x}", job=NAME, round=number, attempt=0, slot=MERGE_SLOT, worker="0x" + "44" * 20, state=state,
        out="0x" + job.params.genesis.shared.hex(), out2="0x" + job.params.genesis.outer.hex(),
        payload_cid=job.spec.genesis, paid="0", slashed="0", block=5, time=6,
    )  # fmt: skip


def fill(database: Database, job: Job, states: tuple[str, ...]) -> None:
    """A round for each state of its merge."""
    with database.session() as session:
        for number, state in enumerate(states):
            session.add(RoundRow(job=NAME, number=number, attempt=0, state="final", seed="0x" + SEEDS[number].hex(),
                                 started=1, updated=2))  # fmt: skip
            session.add(merge_row(job, number, state))


def kept(database: Database) -> dict[int, str]:
    """Losses by the merges behind them."""
    with database.reading() as session:
        return {row.merges: row.loss for row in session.scalars(select(LossRow))}


def test_the_losses_are_those_of_the_program_bit_for_bit(
    database: Database, store: ContentStore, job: Job, tmp_path: Path
) -> None:
    fill(database, job, ("final", "convicted", "merged"))
    runs = RunLosses(database, store, tmp_path)
    assert [runs.poll(toyjob.ID, lambda: job) for _ in range(4)] == [True, True, True, False], "one a look"
    whole = Losses.of(job, store)
    assert whole is not None
    wanted = {0: whole.at(job.genesis, Seed(SEEDS[0]), 0), 1: whole.at(job.genesis, Seed(SEEDS[0]), 1),
              2: whole.at(job.genesis, Seed(SEEDS[2]), 2)}  # fmt: skip
    assert kept(database) == {merges: repr(loss) for merges, loss in wanted.items()}


def test_a_merge_that_fell_is_replaced(database: Database, store: ContentStore, job: Job, tmp_path: Path) -> None:
    fill(database, job, ("final", "final"))
    runs = RunLosses(database, store, tmp_path)
    while runs.poll(toyjob.ID, lambda: job):
        pass
    with database.session() as session:
        session.get_one(ClaimRow, f"0x{0:064x}").state = "convicted"
        found = due(session, NAME)
    assert found is not None
    assert (found.merges, found.round) == (1, 1), "the second merge is the first now"
    assert runs.poll(toyjob.ID, lambda: job)
    with database.reading() as session:
        rows = {row.claim: row.merges for row in session.scalars(select(LossRow))}
    assert rows == {"": 0, f"0x{1:064x}": 1}


def test_nothing_is_due_before_the_first_seed(
    database: Database, store: ContentStore, job: Job, tmp_path: Path
) -> None:
    assert not RunLosses(database, store, tmp_path).poll(toyjob.ID, lambda: job)
    with database.session() as session:
        session.add(RoundRow(job=NAME, number=0, attempt=0, state="joining", started=1, updated=2))
    assert not RunLosses(database, store, tmp_path).poll(toyjob.ID, lambda: job)


def test_a_job_without_a_loss_is_looked_at_once(
    database: Database, store: ContentStore, job: Job, tmp_path: Path
) -> None:
    fill(database, job, ("final",))
    plain = replace(job, spec=replace(job.spec, programs={k: v for k, v in job.spec.programs.items() if k != "loss"}))
    asked: list[int] = []

    def loaded() -> Job:
        asked.append(1)
        return plain

    runs = RunLosses(database, store, tmp_path)
    assert [runs.poll(toyjob.ID, loaded) for _ in range(3)] == [False] * 3
    assert len(asked) == 1
    runs.drop(toyjob.ID)


def test_a_dear_job_is_shown_without_in_every_later_process(
    database: Database, store: ContentStore, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(database, job, ("final", "final"))
    assert RunLosses(database, store, tmp_path).poll(toyjob.ID, lambda: job), "the first one is cheap"
    monkeypatch.setattr(losses, "DEAR_SECONDS", 0.0)
    asked: list[int] = []

    def loaded() -> Job:
        asked.append(1)
        return job

    runs = RunLosses(database, store, tmp_path)
    assert [runs.poll(toyjob.ID, loaded) for _ in range(2)] == [False, False]
    assert asked
    asked.clear()
    runs.drop(toyjob.ID)
    assert not runs.poll(toyjob.ID, loaded), "the job is looked at again"
    monkeypatch.undo()
    later = RunLosses(database, store, tmp_path)
    assert [later.poll(toyjob.ID, loaded) for _ in range(2)] == [False, False]
    assert asked == [], "it is not even loaded"
    assert Refusals(tmp_path).all() == {}, "its merges are made as before"
    assert list(kept(database)) == [0]
    Refusals(tmp_path, LOSSES).forget(toyjob.ID)
    assert [later.poll(toyjob.ID, loaded), *kept(database)] == [True, 0, 1], "as `lockstep coordinator retry` has it"


def test_all_slots_of_a_loss_have_one_deadline(store: ContentStore, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = replace(job, params=replace(job.params, roles=(replace(job.params.role, slots=64),)))
    whole = Losses.of(wide, store)
    assert whole is not None
    now, runs, executable = [0.0], list[float](), whole._executable

    class Slow:
        """Takes three seconds a slot."""

        def run(self, *given: Any) -> Any:
            now[0] += 3.0
            runs.append(now[0])
            return executable.run(*given)

        def free_scratch(self) -> None:
            pass

    monkeypatch.setattr(whole, "_executable", Slow())
    monkeypatch.setattr("lockstep.execution.losses.time.monotonic", lambda: now[0])
    with pytest.raises(Crashed, match="longer than 10 s"):
        whole.at(wide.genesis, Seed(SEEDS[0]), 0, losses.DEAR_SECONDS)
    assert runs == [3.0, 6.0, 9.0, 12.0], "no slot begins beyond it"


def test_a_checkpoint_that_cannot_be_had_rests(
    database: Database, store: ContentStore, job: Job, tmp_path: Path
) -> None:
    fill(database, job, ("final",))
    with database.session() as session:
        session.get_one(ClaimRow, f"0x{0:064x}").payload_cid = "bafkrei" + "a" * 52
    now = [100.0]
    runs = RunLosses(database, store, tmp_path, lambda: now[0])
    asked: list[int] = []

    def loaded() -> Any:
        asked.append(1)
        return job

    assert runs.poll(toyjob.ID, loaded)
    assert not runs.poll(toyjob.ID, loaded)
    assert not runs.poll(toyjob.ID, loaded)
    assert len(asked) == 2, "the third look came too early"
    now[0] += 6
    runs.poll(toyjob.ID, loaded)
    assert len(asked) == 3
