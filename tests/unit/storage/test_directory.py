"""The directory store: what is on disk, and when."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.protocol.errors import BlobMissing, DoctorError, UsageError
from lockstep.storage import cid_of, open_store
from lockstep.storage.directory import STALE_SECONDS, DirectoryStore

KILLED_BEFORE_RENAME = """
import hashlib, os, signal, sys
from lockstep.storage.directory import DirectoryStore
store = DirectoryStore(sys.argv[1])
rename, seen = os.replace, 0
def replace(source, target):
    global seen
    if seen == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    seen += 1
    rename(source, target)
os.replace = replace
store.put(hashlib.shake_256(b"four chunks").digest(1 << 20))
"""
FOUR_CHUNKS = hashlib.shake_256(b"four chunks").digest(1 << 20)


def test_block_lies_below_the_next_to_last_characters_of_its_cid(tmp_path: Path) -> None:
    cid = DirectoryStore(tmp_path).put(b"where am I")
    assert (tmp_path / "blocks" / cid[-3:-1] / cid).read_bytes() == b"where am I"
    assert list(DirectoryStore(tmp_path).blocks()) == [cid], "listed"


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("renamed", [0, 1, 4])
def test_writer_killed_before_a_rename_shows_only_whole_blocks(tmp_path: Path, renamed: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_BEFORE_RENAME, str(tmp_path), str(renamed)], check=False)
    assert done.returncode == -9, "killed"
    store = DirectoryStore(tmp_path)
    cid = cid_of(FOUR_CHUNKS)
    assert len(list(store.blocks())) == renamed, "what was renamed is there"
    for block in store.blocks():
        assert store.fetch_block(block), "and whole"
    assert not store.has(cid), "the root is the last"
    assert len(list((tmp_path / "partial").iterdir())) == 1, "the unfinished one is out of sight"
    assert store.put(FOUR_CHUNKS) == cid, "putting again completes it"
    assert store.get(cid, max_bytes=1 << 20) == FOUR_CHUNKS, "whole"


def test_partial_files_of_killed_writers_are_dropped_when_old(tmp_path: Path) -> None:
    DirectoryStore(tmp_path)
    old, young = tmp_path / "partial/old", tmp_path / "partial/young"
    for path in (old, young):
        path.write_bytes(b"half")
    past = young.stat().st_mtime - STALE_SECONDS - 10
    os.utime(old, (past, past))
    DirectoryStore(tmp_path)
    assert not old.exists(), "nobody writes it any more"
    assert young.exists(), "somebody may"


def test_block_is_on_disk_before_it_is_visible_and_root_after_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def logged_fsync(descriptor: int) -> None:
        calls.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{descriptor}')).relative_to(tmp_path)}")
        fsync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        calls.append(f"rename {source.relative_to(tmp_path)} {target.relative_to(tmp_path)}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    cid = store.put(os.urandom(600_000))
    renames = [call.split() for call in calls if call.startswith("rename")]
    assert len(renames) == 4, "three leaves and a root"
    for _, source, target in renames:
        at = calls.index(f"rename {source} {target}")
        assert f"fsync {source}" in calls[:at], "bytes before name"
        assert f"fsync {Path(target).parent}" in calls[at:], "name before acknowledgement"
    root_at = next(at for at, call in enumerate(calls) if call.endswith(cid))
    for _, _, target in renames[:-1]:
        assert f"fsync {Path(target).parent}" in calls[:root_at], "children are durable before the root is visible"


def test_two_processes_share_a_directory(tmp_path: Path) -> None:
    first, second = DirectoryStore(tmp_path), open_store(f"dir://{tmp_path}")
    cid = first.put(b"shared")
    assert second.get(cid, max_bytes=6) == b"shared"
    with pytest.raises(BlobMissing):
        second.get(cid_of(b"private"), max_bytes=7)


def test_place_that_cannot_be_a_store_is_a_doctor_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DoctorError) as error:
        DirectoryStore(tmp_path / "file")
    assert error.value.hint, "with a hint"


def test_full_disk_is_a_doctor_error_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DoctorError, match="No space left"):
        store.put(b"too much")
    assert not list((tmp_path / "partial").iterdir()), "no half-written file"
    assert not list(store.blocks()), "no block"


@pytest.mark.parametrize(
    "url", ["", "dir:relative", "dir://host/path", "ftp://host/x", "blocks", "http://host", "http://h:1/x"]
)
def test_url_of_no_store_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as error:
        open_store(url)
    assert error.value.hint, "with a hint"


def test_home_url_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cid = open_store("dir://~/a b").put(b"x")
    assert open_store(DirectoryStore(tmp_path / "a b").url).has(cid), "spaces survive the URL"
