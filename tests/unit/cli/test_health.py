"""`lockstep worker doctor` and its like as commands: a line a check, JSON, exit code 3."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Lockstep


@pytest.mark.parametrize("role", ["worker", "verifier", "coordinator"])
def test_what_is_missing_is_said_a_line_a_check_and_exits_with_3(lockstep: Lockstep, role: str, tmp_path: Path) -> None:
    where = ("--home", tmp_path / "none", "--storage", f"dir://{tmp_path}/blocks", "--device", "cpu")
    ended = lockstep(role, "doctor", *where)
    assert ended.code == 3
    lines = ended.out.splitlines()
    assert any(line.startswith("FAILED  home: the home ") for line in lines), ended.out
    assert any(line.startswith("ok      device: cpu") for line in lines), ended.out
    told = lockstep(role, "doctor", *where, "--json")
    assert told.code == 3
    assert {row["check"] for row in told.data if not row["ok"]} == {"home", "key", "deployment"}
    assert not (tmp_path / "none").exists(), "a doctor makes nothing"
