"""A machine joins what it can keep up with, and says of the rest which window is too short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.jobs import Job
from lockstep.pace import Pace, measure, require_claimant, require_witness
from lockstep.protocol.errors import TooSlow
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import Seconds
from lockstep.storage.directory import DirectoryStore
from tests import toyjob
from tests.auditing import PARAMS

TERMS = replace(
    PARAMS, inner_steps=99, train_seconds=Seconds(100), step_seconds=Seconds(4), clock_seconds=Seconds(208),
    audit_seconds=Seconds(200),
)  # fmt: skip
"""Just long enough at a second a step, and four for one that is shown."""


def test_what_just_fits_is_joined_and_witnessed() -> None:
    require_claimant(TERMS, Pace(1.0, 4.0))
    require_witness(TERMS, Pace(1.0, 4.0))


@pytest.mark.parametrize(
    ("window", "short", "require"),
    [
        ("train_seconds", 99, require_claimant),
        ("step_seconds", 3, require_claimant),
        ("clock_seconds", 207, require_claimant),
        ("audit_seconds", 199, require_witness),
    ],
)
def test_a_window_that_is_too_short_is_named(
    window: str, short: int, require: Callable[[JobParams, Pace], None]
) -> None:
    with pytest.raises(TooSlow, match=window) as refused:
        require(replace(TERMS, **{window: Seconds(short)}), Pace(1.0, 4.0))
    assert "threads" in refused.value.hint


def test_the_pace_is_that_of_the_jobs_own_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, ran, executable = toyjob.load(DirectoryStore(tmp_path)), [], Job.executable
    monkeypatch.setattr(Job, "executable", lambda self, program: ran.append(program) or executable(self, program))
    pace = measure(job)
    assert pace.step > 0
    assert pace.shown > 0
    assert ran == [job.programs.step] * 3, "one that is not counted, one that is, one as a game shows it"
