"""A machine joins what it can keep up with, and says of the rest which window is too short."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep import pace
from lockstep.jobs import Job
from lockstep.pace import Pace, Require, keep_up, least, measure, operations, require_claimant, require_witness
from lockstep.protocol.errors import Unfit
from lockstep.protocol.types import Seconds
from lockstep.storage.directory import DirectoryStore
from tests import toyjob
from tests.auditing import PARAMS

TERMS = replace(
    PARAMS, inner_steps=99, train_seconds=Seconds(208), step_seconds=Seconds(4), clock_seconds=Seconds(208),
    audit_seconds=Seconds(200),
)  # fmt: skip
"""Just long enough at a second a step, and four for one that is shown."""


@pytest.fixture
def toy(tmp_path: Path) -> Job:
    return toyjob.load(DirectoryStore(tmp_path))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The Programs that are run."""
    programs: list[object] = []
    executable = Job.executable
    monkeypatch.setattr(Job, "executable", lambda self, program: programs.append(program) or executable(self, program))
    return programs


def test_what_just_fits_is_joined_and_witnessed() -> None:
    require_claimant(TERMS, Pace(1.0, 4.0))
    require_witness(TERMS, Pace(1.0, 4.0))


@pytest.mark.parametrize(
    ("window", "short", "require"),
    [
        ("train_seconds", 207, require_claimant),
        ("step_seconds", 3, require_claimant),
        ("clock_seconds", 207, require_claimant),
        ("audit_seconds", 199, require_witness),
    ],
)
def test_a_window_that_is_too_short_is_named(window: str, short: int, require: Require) -> None:
    with pytest.raises(Unfit, match=window) as refused:
        require(replace(TERMS, **{window: Seconds(short)}), Pace(1.0, 4.0))
    assert "threads" in refused.value.hint


def test_the_pace_is_that_of_the_jobs_own_steps(toy: Job, ran: list[object]) -> None:
    found = measure(toy)
    assert found.step > 0
    assert found.shown > 0
    assert set(map(id, ran)) == {id(toy.programs.step)}
    assert len(ran) == 1 + 2 * pace.SAMPLES, "one that is not counted, three that are, three as a game shows them"
    keep_up(toy, require_claimant)


def test_a_step_that_could_not_be_in_time_is_not_even_tried(toy: Job, ran: list[object]) -> None:
    assert operations(toy.programs.step) > 2 * toyjob.TERMS, "a fold counts its terms"
    assert least(toy).step < measure(toy).step
    ran.clear()
    giant = replace(toy, params=replace(toy.params, inner_steps=10**15))
    with pytest.raises(Unfit, match="train_seconds"):
        keep_up(giant, require_claimant)
    assert ran == []


def test_a_step_whose_tensors_do_not_fit_is_not_tried(
    toy: Job, ran: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = 4 * sum(op.header.elements for op in toy.programs.step.ops)
    memory = {"SC_PHYS_PAGES": kept - 1, "SC_PAGE_SIZE": 1}
    monkeypatch.setattr(os, "sysconf", memory.__getitem__)
    with pytest.raises(Unfit, match=f"{kept:,} bytes"):
        keep_up(toy, require_claimant)
    assert ran == []
