"""The jobs that a coordinator loads, and those that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from coordinator import reading
from coordinator.merging import Aggregators
from lockstep.base.machine import Memory
from lockstep.execution import footprint
from lockstep.execution.box import loading
from lockstep.execution.capacity import AGAIN_SECONDS
from lockstep.protocol.errors import Crashed, Mismatch
from lockstep.protocol.types import ClaimId, Seconds
from tests.support import toyjob
from tests.support.coordinating import JOB, Held, claim
from tests.unit.coordinator.test_decide import PARAMS


def test_a_job_that_does_not_fit_is_refused_for_a_while_unless_a_merge_of_ours_is_there(
    parts: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = toyjob.load(parts.party.store)
    aggregators = Aggregators(parts)
    monkeypatch.setattr(footprint, "memory", lambda: Memory(1, 1))
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [])
    with capture_logs() as logs:
        for now in (1000, 1001, 1000 + AGAIN_SECONDS, 1000 + 2 * AGAIN_SECONDS):
            assert not aggregators.prepared(toy.id, toy.params, Seconds(now))
    assert len(logs) == 1, "said once"
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [claim(1)])
    assert not aggregators.prepared(toy.id, toy.params, Seconds(1001 + 2 * AGAIN_SECONDS)), "it rests"
    later = Seconds(1000 + 3 * AGAIN_SECONDS)
    assert aggregators.prepared(toy.id, toy.params, later), "what may be challenged is defended"


def test_a_job_that_is_not_what_the_chain_names_is_refused_for_good(
    parts: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregators, asked = Aggregators(parts), []

    def load(*args: Any, **_: Any) -> Any:
        asked.append(args)
        raise Mismatch("another Program than the chain names", "")

    monkeypatch.setattr(loading, "load", load)
    with capture_logs() as logs:
        for now in (1000, 1000 + 9 * AGAIN_SECONDS):
            assert not aggregators.prepared(JOB, PARAMS, Seconds(now))
    assert (len(asked), len(logs)) == (1, 1), "neither loaded nor told again"


def test_a_job_that_ends_what_runs_it_is_refused_by_the_next_process_too(
    parts: Any, games: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def load(*args: Any, **_: Any) -> Any:
        asked.append(args)
        raise Crashed("it was ended: SIGSEGV", "")

    monkeypatch.setattr(loading, "load", load)
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [])
    for now in (1000, 1000 + 9 * AGAIN_SECONDS):
        assert not Aggregators(parts).prepared(JOB, PARAMS, Seconds(now))
    assert len(asked) == 1
    monkeypatch.setattr(reading, "merges_by", lambda session, job, me: [claim(1)])
    assert not Aggregators(parts).prepared(JOB, PARAMS, Seconds(1000))
    assert len(asked) == 2, "what may be challenged is tried again"


def test_only_a_loaded_jobs_merge_has_anything_to_forget(parts: Any) -> None:
    aggregators: Any = Aggregators(parts)
    aggregators.forget(claim(1))
    held = aggregators._made[JOB] = Held()
    aggregators.forget(claim(1))
    assert held.forgotten == [ClaimId(bytes([1]) * 32)]
