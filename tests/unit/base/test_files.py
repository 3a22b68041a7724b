"""A file is whole under its name, or as it was before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockstep.base.files import remove_partials, write_atomically
from lockstep.protocol.errors import DoctorError, UsageError


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "model.bin"
    target.write_bytes(b"old")

    def chunks():  # type: ignore[no-untyped-def]
        yield b"new"
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError):
        write_atomically(target, chunks())
    assert target.read_bytes() == b"old", "as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"], "and alone"
    with pytest.raises(UsageError):
        write_atomically(tmp_path / "no folder" / "x", [b""])


def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model.bin"
    target.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DoctorError, match="No space left"):
        write_atomically(target, [b"new"])
    assert target.read_bytes() == b"old", "as it was"
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"], "and alone"


@pytest.mark.parametrize(("mode", "seen"), [(0o600, 0o600), (0o644, 0o644), (0o666, 0o640)])
def test_a_file_has_its_mode_from_the_first_byte_on(tmp_path: Path, mode: int, seen: int) -> None:
    target, modes = tmp_path / "key", list[int]()
    target.write_bytes(b"old")
    target.chmod(0o666)

    def chunks():  # type: ignore[no-untyped-def]
        (part,) = (p for p in tmp_path.iterdir() if p != target)
        modes.append(part.stat().st_mode & 0o777)
        yield b"secret"

    before = os.umask(0o022 if mode != 0o666 else 0o027)
    try:
        assert write_atomically(target, chunks(), mode=mode) == len(b"secret")
    finally:
        os.umask(before)
    assert modes == [seen]
    assert target.stat().st_mode & 0o777 == seen, "whatever the old file had"


def test_the_size_counts_bytes_and_not_items(tmp_path: Path) -> None:
    words = memoryview(bytes(8)).cast("I")
    assert write_atomically(tmp_path / "words", [b"a", words]) == 9


def test_without_sync_nothing_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_atomically(tmp_path / "progress", [b"x"], sync=False)
    assert ((tmp_path / "progress").read_bytes(), synced) == (b"x", [])
    write_atomically(tmp_path / "progress", [b"y"])
    assert len(synced) == 2, "the file and its folder"


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in (".progress.17-abcdef01", "progress", ".progress", ".other.17-abcdef01"):
        (tmp_path / name).write_bytes(b"x")
    remove_partials(tmp_path / "progress")
    assert sorted(p.name for p in tmp_path.iterdir()) == [".other.17-abcdef01", ".progress", "progress"]


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = [".progress.7-ab", "progress.partial"]
    kept = ["progress", "progress2.partial", ".progress2.7-ab", "material.json"]
    for name in (*left, *kept):
        (tmp_path / name).write_bytes(b"x")
    remove_partials(tmp_path / "progress")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
