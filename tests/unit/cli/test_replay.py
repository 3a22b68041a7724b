"""A replay that a person asks for runs in a child, by `lockstep replay` and by the manual player."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.cli.replay import prepared
from lockstep.disputes.manual import ManualPlayer
from lockstep.disputes.player import Side
from lockstep.execution.box.executable import BoxedExecutable
from lockstep.execution.box.handle import Box
from lockstep.market.replay import audit
from lockstep.protocol.errors import Crashed, Inconclusive
from lockstep.protocol.types import ClaimId
from tests.adversarial.court import Court


@pytest.fixture(scope="module")
def court(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Court]:
    running = Court.in_memory(tmp_path_factory.mktemp("market"))
    running.reset(rounds=1)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def claim(court: Court) -> ClaimId:
    return court.claim()[0]


def player(court: Court, home: Path) -> ManualPlayer:
    settings = SimpleNamespace(
        threads=1, path="auto", home_dir=home, memory_bytes=None, disk_bytes=1 << 30
    )  # fmt: skip
    party: Any = SimpleNamespace(settings=settings, store=court.store, contracts=court.contracts)
    return ManualPlayer(party, lambda _: None)


def test_a_replay_runs_in_a_child_that_ends_with_it(court: Court, claim: ClaimId) -> None:
    found = court.ledger().claim_named(claim.hex())
    with prepared(court.contracts, court.store, found, 1, "auto") as (public, run):
        assert isinstance(run.job.executable(run.program(1)), BoxedExecutable)
        assert audit(run, found[2], public.store).matches
        box = run.job.box
        assert box is not None
    assert box._box is None, "it is gone"


def test_a_replay_by_hand_runs_in_a_child_that_ends_with_it(court: Court, claim: ClaimId, tmp_path: Path) -> None:
    known = court.ledger().claim_named(claim.hex())
    with closing(player(court, tmp_path)) as mine:
        held = mine.hold(known, Side.DEFENDER)
        assert isinstance(held.run.job.executable(held.run.program(1)), BoxedExecutable)
        box = held.run.job.box
        assert box is not None
        again = mine.hold(known, Side.DEFENDER)
        assert again.run.job is held.run.job, "one child a job"
        assert box._box is not None
        mine.forget(claim)
        assert box._box is None, "no game of the job is open"
        assert mine.hold(known, Side.DEFENDER).run.job is not held.run.job
        (job,) = mine._jobs.values()
    assert job.box is not None
    assert job.box._box is None


def test_a_claim_whose_programs_end_what_runs_them_is_undecided(
    court: Court, claim: ClaimId, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise Crashed("what runs its Programs was ended: SIGSEGV", "")

    monkeypatch.setattr(Box, "call", dies)
    known = court.ledger().claim_named(claim.hex())
    with pytest.raises(Inconclusive, match="SIGSEGV"), prepared(court.contracts, court.store, known, 1, "auto"):
        pytest.fail("nothing is replayed")
    with closing(player(court, tmp_path)) as mine, pytest.raises(Inconclusive, match="SIGSEGV"):
        mine.hold(known, Side.DEFENDER)
