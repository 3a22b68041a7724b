"""The user's cache of blobs: fetched once, resumed, shared, bounded."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from lockstep.protocol.errors import BlobMissing, PayloadInvalid, Unreachable
from lockstep.protocol.types import Cid, Digest
from lockstep.storage import cache as module
from lockstep.storage.cache import BlobCache
from lockstep.storage.dagpb import Link
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.store import MAPPED_BYTES
from lockstep.storage.unixfs import CHUNK_BYTES, MAX_LINKS
from tests.support.waiting import PATIENCE

MIB = 1 << 20
SIZE = (MAX_LINKS + 30) * CHUNK_BYTES + 5
"""Two nodes of leaves."""
CHILD = """
import sys, time
from functools import cache
from pathlib import Path
from lockstep.storage.directory import DirectoryStore

class Slow(DirectoryStore):
    def fetch_leaves(self, cid, links, first=0):
        for leaf in super().fetch_leaves(cid, links, first):
            print("leaf", flush=True)
            time.sleep(float(sys.argv[4]))
            yield leaf

store = Slow(sys.argv[1])
data = store.blob(sys.argv[2], int(sys.argv[3]))
print("whole", len(data), flush=True)
"""


class Counted(DirectoryStore):
    """A store that counts the bytes of the leaves that are read."""

    fetched = 0
    whole: Cid
    """Of `content()`, which it holds."""

    def fetch_leaves(self, cid: Cid, links: Sequence[Link], first: int = 0) -> Iterator[bytes]:
        for leaf in super().fetch_leaves(cid, links, first):
            self.fetched += len(leaf)
            yield leaf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Cid]:
    """A store's folder with `content()`."""
    home = Path(tmp_path_factory.mktemp("whole"))
    return home, DirectoryStore(home).put(content())


@pytest.fixture
def store(tmp_path: Path, whole: tuple[Path, Cid], monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    home, cid = whole
    shutil.copytree(home, tmp_path / "blocks", copy_function=os.link)
    found = Counted(tmp_path / "blocks")
    found.whole = cid
    return found


@cache
def content(size: int = SIZE, name: str = "") -> bytes:
    return hashlib.shake_256(f"{size}{name}".encode()).digest(size)


def folder(store: Counted) -> Path:
    return store.cache.folder


def names(store: Counted) -> list[str]:
    return sorted(path.name for path in folder(store).iterdir()) if folder(store).exists() else []


def child(store: Counted, cid: Cid, size: int, pause: float) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", CHILD, str(store.home), cid, str(size), str(pause)]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_a_blob_is_fetched_once_and_mapped(store: Counted) -> None:
    data, cid = content(), store.whole
    found = store.blob(cid, SIZE)
    assert bytes(found) == data, "copied: views are compared one byte after the other"
    assert found.readonly, "nobody writes to what all processes see"
    assert store.fetched == SIZE
    assert bytes(store.blob(cid, SIZE)) == data
    assert bytes(DirectoryStore(store.home).blob(cid, SIZE)) == data, "another store of the machine maps the same file"
    assert store.fetched == SIZE, "once"
    assert names(store) == [cid]
    assert oct((folder(store) / cid).stat().st_mode & 0o777) == "0o600"


def test_a_small_blob_needs_no_file(store: Counted) -> None:
    for size in (1, CHUNK_BYTES, MAPPED_BYTES - 1):
        assert store.blob(store.put(content(size)), size) == content(size)
    assert names(store) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, MAPPED_BYTES])
def test_a_blob_of_another_size_leaves_no_file(store: Counted, size: int) -> None:
    cid = store.whole
    with pytest.raises(PayloadInvalid, match=f"{SIZE} bytes where {size} are due"):
        store.blob(cid, size)
    assert names(store) == []
    kept = store.blob(cid, SIZE)
    with pytest.raises(PayloadInvalid):
        store.blob(cid, size)
    assert bytes(store.blob(cid, SIZE)) == bytes(kept), "whoever asks for another size removes nothing"
    assert store.fetched == SIZE


@pytest.mark.slow
def test_a_killed_download_goes_on_where_it_was(store: Counted) -> None:
    data, cid = content(), store.whole
    got = 0
    for _ in range(3):
        process = child(store, cid, SIZE, 0.002)
        assert process.stdout is not None
        for _ in range(50):
            assert process.stdout.readline() == "leaf\n"
        os.kill(process.pid, signal.SIGKILL)
        got += 50 + process.stdout.read().count("leaf")
        process.wait()
        process.stdout.close()
        assert names(store) == [f"{cid}.part"], "what is not whole has no whole one's name"
    assert bytes(store.blob(cid, SIZE)) == data
    assert names(store) == [cid]
    again = got * CHUNK_BYTES + store.fetched - SIZE
    # A leaf that was fetched and not yet written, at each kill.
    assert 0 <= again <= 3 * 2 * CHUNK_BYTES, f"{again} bytes were fetched twice"


def test_what_a_part_holds_is_believed_only_if_it_hashes(store: Counted) -> None:
    data, cid = content(), store.whole
    folder(store).mkdir(parents=True)
    part = bytearray(data[: SIZE // 2])
    part[3 * CHUNK_BYTES + 9] ^= 1
    (folder(store) / f"{cid}.part").write_bytes(part)
    assert bytes(store.blob(cid, SIZE)) == data
    # Of the first node everything from the damaged leaf on; of the second what is not there.
    assert store.fetched == SIZE - 3 * CHUNK_BYTES
    longer = store.put(content(2 * MIB))
    (folder(store) / f"{longer}.part").write_bytes(content(2 * MIB) + b"more")
    assert bytes(store.blob(longer, 2 * MIB)) == content(2 * MIB), "what lies behind the end is cut off"


def test_sixteen_that_ask_at_once_fetch_it_once(store: Counted) -> None:
    data, cid = content(), store.whole
    stores = [Counted(store.home) for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        assert all(bytes(found) == data for found in pool.map(lambda s: s.blob(cid, SIZE), stores))
    assert sum(s.fetched for s in stores) == SIZE


@pytest.mark.slow
def test_processes_that_ask_at_once_fetch_it_once(store: Counted) -> None:
    cid = store.whole
    processes = [child(store, cid, SIZE, 0.001) for _ in range(4)]
    said = [p.communicate(timeout=PATIENCE)[0] for p in processes]
    assert [p.returncode for p in processes] == [0] * 4
    assert all(s.endswith(f"whole {SIZE}\n") for s in said)
    assert sum(s.count("leaf") for s in said) == -(-SIZE // CHUNK_BYTES)


@pytest.mark.slow
def test_nobody_waits_for_ever_for_a_process_that_was_stopped(store: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    data, cid = content(), store.whole
    process = child(store, cid, SIZE, 0.01)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.readline()
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(module, "STILL_SECONDS", 0.5)
    with pytest.raises(Unreachable, match="made no progress") as caught:
        store.blob(cid, SIZE)
    assert caught.value.hint
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert bytes(store.blob(cid, SIZE)) == data, "its lock ended with it"


def test_what_breaks_off_is_kept_and_said(store: Counted) -> None:
    data, cid = content(), store.whole
    leaves = [link for _, links in module.leaf_nodes(store, cid, SIZE) for link in links]
    missing = store.home / "blocks" / leaves[100].cid[-3:-1] / leaves[100].cid
    block = missing.read_bytes()
    missing.unlink()
    with pytest.raises(BlobMissing, match=leaves[100].cid):
        store.blob(cid, SIZE)
    assert names(store) == [f"{cid}.part"]
    missing.write_bytes(block)
    assert bytes(store.blob(cid, SIZE)) == data
    assert store.fetched == SIZE, "no leaf was read twice"
    with pytest.raises(BlobMissing):
        store.blob(store.put(b"x")[:-1] + "a", SIZE)
    assert names(store) == [cid], "what nobody holds leaves no file"


def test_a_file_that_was_cut_off_is_fetched_again(store: Counted) -> None:
    cid = store.whole
    store.blob(cid, SIZE)
    os.truncate(folder(store) / cid, 99)
    assert bytes(store.blob(cid, SIZE)) == content()
    assert store.fetched == 2 * SIZE


def test_a_damaged_file_is_fetched_again_once_a_root_tells(store: Counted) -> None:
    data, cid = content(), store.whole
    store.blob(cid, SIZE)
    store.cache.refresh(cid)
    store.blob(cid, SIZE)
    assert store.fetched == SIZE, "a sound file stays"
    with open(folder(store) / cid, "r+b") as file:
        file.write(b"damage")
    assert bytes(store.blob(cid, SIZE)) != data, "the user's own disk is believed"
    store.cache.refresh(cid)
    assert bytes(store.blob(cid, SIZE)) == data
    store.cache.refresh(store.put(b"never cached"))


def test_a_root_is_computed_once_for_a_file(store: Counted) -> None:
    data, calls = content(2 * MIB), []
    cid = store.put(data)

    def root() -> Digest:
        calls.append(1)
        return Digest(bytes([len(calls)]) * 32)

    assert store.cache.tree(cid, root) == bytes([1]) * 32, "nothing is kept of what is not here"
    store.blob(cid, 2 * MIB)
    assert store.cache.tree(cid, root) == store.cache.tree(cid, root) == bytes([2]) * 32
    with open(folder(store) / cid, "r+b") as file:
        file.write(b"written to")
    assert store.cache.tree(cid, root) == bytes([3]) * 32, "of another file it is computed again"
    (folder(store) / f"{cid}.tree").write_bytes(b"short")
    assert store.cache.tree(cid, root) == bytes([4]) * 32
    store.cache.refresh(cid)
    assert not (folder(store) / f"{cid}.tree").exists()


def test_what_is_made_is_made_once(store: Counted) -> None:
    calls = []

    def parts() -> Iterator[bytes]:
        calls.append(1)
        yield from (b"made ", b"of parts")

    for _ in range(2):
        assert store.cache.made("name.words", 13, parts) == b"made of parts"
    assert len(calls) == 1


def test_what_was_used_longest_ago_goes_and_stays_mapped(store: Counted, tmp_path: Path) -> None:
    small = BlobCache(tmp_path / "small", 5 * MIB)
    cids = [store.put(content(2 * MIB, str(k))) for k in range(3)]
    first, second = (small.blob(store, cid, 2 * MIB) for cid in cids[:2])
    time.sleep(0.01)
    assert small.blob(store, cids[0], 2 * MIB) == first, "used again"
    small.tree(cids[1], lambda: Digest(bytes(32)))
    small.blob(store, cids[2], 2 * MIB)
    assert sorted(p.name for p in small.folder.iterdir()) == sorted([cids[0], cids[2]])
    assert second == content(2 * MIB, "1"), "whoever had it mapped has it still"
    with pytest.raises(Unreachable, match="holds 5"):
        small.require(6 * MIB)
    large = store.put(content(7 * MIB))
    assert small.blob(store, large, 7 * MIB) == content(7 * MIB), "the newest is kept however large it is"
    assert [p.name for p in small.folder.iterdir()] == [large]


def test_blobs_that_put_each_other_out_are_refused_before_any_is_fetched(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE_MIB", "3")
    wanted = [(store.put(content(2 * MIB, str(k))), 2 * MIB) for k in range(2)]
    with pytest.raises(Unreachable, match="4 MiB are needed at once") as caught:
        store.blobs(wanted)
    assert "LOCKSTEP_CACHE_MIB" in caught.value.hint
    assert store.fetched == 0
    assert [len(b) for b in store.blobs(wanted[:1] * 2)] == [2 * MIB] * 2, "the same one counts once"


def test_a_part_that_is_being_fetched_is_not_put_out(store: Counted, tmp_path: Path) -> None:
    small = BlobCache(tmp_path / "small", 3 * MIB)
    begun, go_on = threading.Event(), threading.Event()

    def parts() -> Iterator[bytes]:
        yield bytes(2 * MIB)
        begun.set()
        assert go_on.wait(PATIENCE)
        yield bytes(MIB)

    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(small.made, "slow", 3 * MIB, parts)
        assert begun.wait(PATIENCE)
        small.made("fast", 2 * MIB, lambda: [bytes(2 * MIB)])
        (small.folder / "left.part").write_bytes(bytes(MIB))
        small.made("faster", 2 * MIB, lambda: [bytes(2 * MIB)])
        assert sorted(p.name for p in small.folder.iterdir()) == ["faster", "slow.part"], "a dead one's part goes"
        go_on.set()
        assert len(slow.result()) == 3 * MIB


def test_a_full_disk_is_said_with_its_figures(store: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    cid = store.whole

    def full(file: int, data: memoryview, at: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(Unreachable, match="No space left on device") as caught:
        store.blob(cid, SIZE)
    assert "LOCKSTEP_CACHE" in caught.value.hint
    assert names(store) == [], "nothing empty is left"
    monkeypatch.undo()
    usage = type("Usage", (), {"free": 5 * MIB})
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(Unreachable, match="51 MiB are needed, 5 MiB are free"):
        BlobCache(store.home / "own", 1 << 40).blob(store, cid, SIZE)


def test_a_cache_that_cannot_be_is_unreachable_and_nobodys_fault(
    store: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cid = store.whole
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "open").mkdir(mode=0o755)
    for place, what in (("file/cache", "cannot be a cache"), ("open", "open to others")):
        monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / place))
        with pytest.raises(Unreachable, match=what):
            Counted(store.home).blob(cid, SIZE)
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "mine"))
    (tmp_path / "mine").mkdir(mode=0o700)
    (tmp_path / "mine" / "blobs").write_bytes(b"a file where a folder is due")
    with pytest.raises(Unreachable, match="cannot be used"):
        Counted(store.home).blob(cid, SIZE)
