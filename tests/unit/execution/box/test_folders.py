"""Folders of jobs: found again, bounded in number and in bytes, and never taken from who uses them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.execution import footprint
from lockstep.execution.box import folders
from lockstep.execution.box.folders import folder_of
from lockstep.execution.box.loading import JobBox
from lockstep.execution.jobs import Job
from lockstep.protocol.types import JobId
from lockstep.storage import ContentStore


@pytest.fixture(autouse=True)
def boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of folders; three of them are kept."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(folders, "KEPT", 3)
    return tmp_path / "cache" / folders.FOLDER


def job(number: int) -> JobId:
    return JobId(bytes([number]) * 32)


def looked_at(*numbers: int) -> None:
    """Jobs that were run and are through."""
    for number in numbers:
        folder_of(job(number)).close()


def test_a_folder_is_found_again_with_what_was_compiled_in_it(boxes: Path) -> None:
    looked_at(1)
    (boxes / job(1).hex() / "made.so").write_bytes(b"code")
    folder = folder_of(job(1))
    assert [path.name for path in folder.path.iterdir()] == ["made.so"]
    folder.close()


def test_however_many_jobs_are_looked_at_no_folder_in_use_is_removed(boxes: Path) -> None:
    used = [folder_of(job(number)) for number in (1, 2, 3, 4)]
    looked_at(*range(5, 12))
    assert all(folder.path.is_dir() for folder in used)
    assert len(list(boxes.iterdir())) == len(used) + 1, "of the others, the one that was just begun"
    for folder in used:
        folder.close()
    looked_at(12)
    assert len(list(boxes.iterdir())) == 3, "now they go, too"


def test_a_folder_that_two_use_is_kept_until_both_are_through() -> None:
    one, other = folder_of(job(1)), folder_of(job(1))
    one.close()
    looked_at(*range(2, 9))
    assert other.path.is_dir()
    other.close()
    looked_at(9)
    assert not other.path.is_dir()


def test_a_folder_that_holds_too_much_is_emptied_once_nobody_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "KEPT_BYTES", 3)
    first = folder_of(job(1))
    made = first.path / "made.so"
    made.write_bytes(b"code")
    second = folder_of(job(1))
    assert made.exists(), "another child runs it"
    for folder in (first, second):
        folder.close()
    looked_at(1)
    assert not made.exists()


def test_a_folder_that_its_job_closed_to_its_user_is_opened() -> None:
    looked_at(1)
    path = folder_of(job(1)).path
    path.chmod(0)
    looked_at(1)
    assert path.stat().st_mode & 0o777 == 0o700


def test_a_child_keeps_its_folder_for_as_long_as_it_runs(toy: Job, toy_store: ContentStore, boxes: Path) -> None:
    box = JobBox(toy.id, toy.params, toy_store, 1, "auto", footprint.Fitting(footprint.worker))
    with box:
        box.plan()
        looked_at(*range(1, 8))
        assert (boxes / toy.id.hex()).is_dir()
    looked_at(8)
    assert not (boxes / toy.id.hex()).exists()
