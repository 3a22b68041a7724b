"""What memory this machine has (physical, or what a cgroup leaves of it), and what a full disk does."""

from __future__ import annotations

import errno
import platform
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from lockstep.base.files import write_atomically
from lockstep.base.machine import Memory, is_full, memory, processor_name, readable, room_on_disk
from lockstep.protocol.errors import DoctorError, Unfit, Unreachable

GIB = 1 << 30


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """The files of a machine of 16 GiB, 10 of them available."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {10 << 20} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_has_what_its_kernel_says() -> None:
    told = dict(re.findall(r"(\w+): +(\d+) kB", Path("/proc/meminfo").read_text()))
    held = memory()
    assert 0 < held.available <= held.total <= 1024 * int(told["MemTotal"])


def test_without_a_limit_physical_memory_counts(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/user\n", {"user/memory.max": "max\n", "memory.max": "max\n"})
    assert memory(root) == Memory(16 * GIB, 10 * GIB)


def test_the_tightest_group_above_counts_less_what_it_uses_and_cannot_reclaim(tmp_path: Path) -> None:
    files = {
        "a/memory.max": f"{8 * GIB}", "a/memory.current": f"{5 * GIB}",
        "a/memory.stat": f"anon 1\ninactive_file {GIB}\n",
        "a/b/memory.max": f"{12 * GIB}", "a/b/memory.current": "0",
    }  # fmt: skip
    assert memory(machine(tmp_path, "0::/a/b\n", files)) == Memory(8 * GIB, 4 * GIB)


def test_groups_of_the_first_version_count_and_their_unlimited_is_none(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/job/memory.limit_in_bytes": f"{4 * GIB}",
        "memory/job/memory.usage_in_bytes": f"{3 * GIB}",
        "memory/job/memory.stat": f"inactive_file 5\ntotal_inactive_file {2 * GIB}\n",
    }
    groups = "5:devices:/\n4:cpu,memory:/job\n0::/\n"
    assert memory(machine(tmp_path, groups, files)) == Memory(4 * GIB, 3 * GIB)


def test_a_processor_has_the_kernel_s_name_or_its_architecture(tmp_path: Path) -> None:
    at = machine(tmp_path, "", {})
    assert processor_name(at) == platform.machine()
    (at / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Example  Nine @ 2 GHz\nflags\t: avx2\n")
    assert processor_name(at) == "Example Nine @ 2 GHz"


def test_a_path_that_a_container_cannot_see_is_its_mounts_root(tmp_path: Path) -> None:
    files = {"memory.max": f"{2 * GIB}\n", "memory.current": f"{3 * GIB}\n"}
    assert memory(machine(tmp_path, "0::/kubepods/../pod\n", files)) == Memory(2 * GIB, 0)


def test_a_job_that_does_not_fit_is_refused_with_the_figure() -> None:
    held = Memory(23_400_000_000, 19_800_000_000)
    held.require(19_800_000_000)
    held.require(20_000_000_000, present=200_000_000)
    with pytest.raises(Unfit) as refused:
        held.require(41_200_000_000)
    assert refused.value.message == "needs 41.2 GB of memory, this machine has 23.4 GB (19.8 GB available)"
    assert "larger" in refused.value.hint
    with pytest.raises(Unfit, match="needs 20") as busy:
        held.require(20_000_000_000)
    assert "end what else" in busy.value.hint
    with pytest.raises(Unfit, match=r"cuda:0 has 80\.0 GB \(1\.0 MB available\)"):
        Memory(80 * 10**9, 10**6, "cuda:0").require(10**9)


@pytest.mark.parametrize(("count", "text"), [(999, "1.0 kB"), (12_300, "12.3 kB"), (5 * 10**12, "5.0 TB")])
def test_bytes_are_read_in_powers_of_ten(count: int, text: str) -> None:
    assert readable(count) == text


def full_database(folder: Path) -> sqlite3.Error:
    """What SQLite raises when its file may not grow."""
    with closing(sqlite3.connect(folder / "small.sqlite")) as database:
        database.execute("CREATE TABLE t (x BLOB)")
        database.execute("PRAGMA max_page_count = 3")
        with pytest.raises(sqlite3.OperationalError) as caught:
            database.execute("INSERT INTO t VALUES (zeroblob(100000))")
    return caught.value


def test_a_file_that_finds_no_room_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DoctorError, match="cannot write") as told:
        write_atomically(tmp_path / "state", [b"x"])
    assert is_full(told.value), "for a person it is an error with a hint, for a service something that passes"
    with pytest.raises(Unreachable, match="the disk is full"), room_on_disk():
        write_atomically(tmp_path / "state", [b"x"])
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_waited_for_and_nothing_else_is(tmp_path: Path) -> None:
    for passing in (OSError(errno.ENOSPC, "no space"), OSError(errno.EDQUOT, "quota"), full_database(tmp_path)):
        with pytest.raises(Unreachable, match="the disk is full"), room_on_disk():
            raise passing
    for other in (FileNotFoundError(errno.ENOENT, "gone"), sqlite3.OperationalError("locked"), ValueError("x")):
        with pytest.raises(type(other)), room_on_disk():
            raise other
        assert not is_full(other)
    assert not is_full(None)
    with room_on_disk():
        pass
