"""A file is whole under its name, or as it was before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.base.files import remove_partials, remove_unlocked, write_atomically, written_alone
from lockstep.protocol.errors import DoctorError, UsageError
from lockstep.runtime.guard import lock


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


WRITE = """
import sys, time
from pathlib import Path
from lockstep.base.files import write_atomically, written_alone

def chunks():
    yield b"half"
    print("writing", flush=True)
    time.sleep(600)

def alone(path):
    with written_alone(path) as file:
        file.write(next(made := chunks()))
        file.flush()
        next(made)

way, path = sys.argv[1], Path(sys.argv[2])
alone(path) if way == "alone" else write_atomically(path, chunks())
"""


@contextmanager
def writer(way: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that is writing `path`, and is killed at the end."""
    made = subprocess.Popen([sys.executable, "-c", WRITE, way, str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert made.stdout is not None
        assert made.stdout.readline() == "writing\n"
        yield made
    finally:
        made.kill()
        made.wait()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_what_a_killed_writer_left_goes_with_the_next_process_that_holds_the_home(tmp_path: Path) -> None:
    material = tmp_path / "work" / "claim" / "material.json"
    material.parent.mkdir(parents=True)
    material.write_bytes(b"old")
    with writer("atomically", material) as process:
        with lock.held(tmp_path, "worker"):
            assert len(names(material.parent)) == 2, "a writer that lives keeps its file"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert len(names(material.parent)) == 2, "kill -9 leaves it"
    with lock.held(tmp_path, "worker"):
        assert names(tmp_path) == [lock.FILE_NAME, "material.json"]
    assert material.read_bytes() == b"old"


def test_what_killed_writers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    left = [f".progress.{dead.pid}-0123abcd", f".notes.json.{os.getpid()}-0123abcd"]
    kept = [
        "progress", ".progress", "material.json", ".progress.7-ab", ".progress.x-0123abcd", "queue.msg.part",
        "film.mkv.partial", ".config.new",
        f".other.{os.getppid()}-0123abcd",
    ]  # fmt: skip
    below, own = tmp_path / "work" / "claim", tmp_path / "worker-1"
    for folder in (tmp_path, below, own):
        folder.mkdir(parents=True, exist_ok=True)
        for name in (*left, *kept):
            (folder / name).write_bytes(b"x")
    (own / lock.FILE_NAME).touch()
    remove_partials(tmp_path, held_by=lock.FILE_NAME)
    assert names(below) == sorted(kept), "a living process keeps its own"
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == set(kept)
    assert names(own) == sorted([*left, *kept, lock.FILE_NAME]), "another home is another's"


def test_a_file_that_several_may_write_is_removed_once_its_writer_is_dead(tmp_path: Path) -> None:
    part = tmp_path / "tokens.part"
    with writer("alone", part) as process:
        remove_unlocked([part, tmp_path / "none.part"])
        assert part.read_bytes() == b"half", "its writer lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
    remove_unlocked(tmp_path.glob("*.part"))
    assert names(tmp_path) == []


def test_who_waited_for_a_file_that_was_renamed_meanwhile_writes_another_one(tmp_path: Path) -> None:
    part, whole, read = tmp_path / "a.part", tmp_path / "a", list[bytes]()

    def second() -> None:
        with written_alone(part) as file:
            file.write(b"2")
            file.flush()
            read.extend((whole.read_bytes(), part.read_bytes()))

    with written_alone(part) as file:
        file.write(b"1")
        file.flush()
        waiting = threading.Thread(target=second)
        waiting.start()
        waiting.join(0.2)
        assert (waiting.is_alive(), read) == (True, [])
        part.rename(whole)
    waiting.join(20)
    assert read == [b"1", b"2"]
