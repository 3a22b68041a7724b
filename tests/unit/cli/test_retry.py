"""`retry`, of each program whose home refuses jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.protocol.errors import Crashed
from lockstep.protocol.types import JobId
from lockstep.runtime.refusals import LOSSES, Refusals
from tests.unit.cli.conftest import Lockstep

JOB, OTHER = JobId(b"\x0a" * 32), JobId(b"\x0b" * 32)


@pytest.mark.parametrize("program", ["worker", "verifier", "coordinator"])
def test_a_refused_job_is_tried_again_and_no_other(lockstep: Lockstep, tmp_path: Path, program: str) -> None:
    kept = Refusals(tmp_path / "home")
    for job in (JOB, OTHER):
        kept.record(job, Crashed("what runs its Programs was ended: SIGSEGV", ""))
    home = ["--home", str(tmp_path / "home"), "--json"]
    assert lockstep(program, "retry", "ffffff", *home).error["code"] == "not_found"
    told = lockstep(program, "retry", JOB.hex()[:8], *home).data
    assert (told["job"], "SIGSEGV" in told["was"]) == (JOB.hex(), True)
    assert set(kept.all()) == {OTHER}
    assert lockstep(program, "retry", JOB.hex()[:8], *home).error["code"] == "not_found", "once"


def test_a_job_whose_loss_alone_is_refused_is_tried_again(lockstep: Lockstep, tmp_path: Path) -> None:
    kept = Refusals(tmp_path / "home", LOSSES)
    kept.record(JOB, Crashed("its loss takes longer than 10 s", ""))
    told = lockstep("coordinator", "retry", JOB.hex()[:8], "--home", str(tmp_path / "home"), "--json").data
    assert "10 s" in told["was"]
    assert kept.all() == {}
