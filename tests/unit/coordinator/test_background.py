"""Nothing that has a deadline waits for what is computed for another job."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import pytest

from coordinator import reading, service
from coordinator.background import run_in_background
from coordinator.service import Coordinator
from lockstep.protocol.errors import Crashed, Unreachable
from lockstep.protocol.types import JobId, Seconds
from lockstep.runtime.party import Head
from tests.support.coordinating import JOB, NAME
from tests.unit.coordinator.test_decide import PARAMS

OTHER = JobId(b"o" * 32)


def test_what_is_tended_goes_on_until_the_work_is_done() -> None:
    enough, here = threading.Event(), threading.get_ident()
    tended, worked = list[int](), list[int]()

    def work() -> str:
        worked.append(threading.get_ident())
        assert enough.wait(60)
        return "done"

    def tend() -> None:
        tended.append(threading.get_ident())
        if len(tended) == 3:
            enough.set()

    assert run_in_background(work, tend, every=0) == "done"
    assert set(tended[:3]) == {here}
    assert worked != [here]


def test_what_the_work_raises_is_raised_here() -> None:
    def work() -> None:
        raise Crashed("ended", "")

    with pytest.raises(Crashed):
        run_in_background(work, lambda: None)


@pytest.fixture
def coordinator(parts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    parts.party.head = lambda: Head(1, Seconds(1))
    monkeypatch.setattr(service, "Indexer", lambda *_: None)
    monkeypatch.setattr(
        service, "run_in_background", lambda work, tend: run_in_background(work, tend, every=0)
    )  # fmt: skip
    monkeypatch.setattr(service.leases, "held", lambda database, name, holder: nullcontext(True))
    monkeypatch.setattr(reading, "jobs_in_game", lambda session, me: [NAME, reading.hex32(OTHER)])
    made = Coordinator(parts)
    made._params |= {OTHER: PARAMS, JOB: PARAMS}
    return made


def test_a_game_is_played_while_another_jobs_merge_is_computed(
    coordinator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved, looks, fails = threading.Event(), list[str](), [Unreachable("nobody", ""), RuntimeError("a defect")]
    played = list[JobId]()

    def defend(job: JobId, *_: object) -> bool:
        played.append(job)
        if fails:
            raise fails.pop()
        moved.set()
        return True

    def merge() -> str:
        assert moved.wait(60), "the move was made before the merge was done"
        return "merged"

    monkeypatch.setattr(coordinator, "_step", lambda: looks.append("new blocks"))
    monkeypatch.setattr(coordinator._aggregators, "defend", defend)
    assert coordinator._beside(JOB, merge) == "merged"
    assert set(played) == {OTHER}, "the busy job's own merge is what its child computes"
    assert len(played) >= 3, "what fails once is tried again"
    assert len(looks) >= 3


def test_nothing_is_played_while_providers_differ(coordinator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "_step", lambda: pytest.fail("it looked"))
    coordinator._differ = True
    coordinator._play_others(JOB)
