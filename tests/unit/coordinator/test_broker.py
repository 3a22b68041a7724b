"""The default broker: what is read is whole, and what cannot be written is left out."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import pytest
from kombu import Connection
from kombu.simple import SimpleQueue

from coordinator import broker
from tests.support.waiting import PATIENCE


@pytest.fixture(autouse=True)
def another_process() -> None:
    """Kombu remembers for a process what it has declared: each test begins as a new one."""
    broker.Transport.global_state.clear()


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection to the folder of a home."""
    with Connection(f"{broker.SCHEME}://", transport_options=broker.prepare(tmp_path, 0.01)) as opened:
        yield opened


def got(queue: SimpleQueue) -> object:
    """The next message, acknowledged."""
    message = queue.get(timeout=PATIENCE)
    message.ack()
    return message.payload


def test_messages_arrive_in_the_order_in_which_they_were_sent(connection: Connection, tmp_path: Path) -> None:
    with connection.SimpleQueue("jobs") as queue:
        for number in range(12):
            queue.put({"job": number})
        assert [got(queue) for _ in range(12)] == [{"job": number} for number in range(12)]
        with pytest.raises(Empty):
            queue.get(timeout=0.05)
    assert list((tmp_path / "queue").iterdir()) == []


@pytest.mark.parametrize("torn", [b"", b'{"body": "e3', b"\xff\xfe"])
def test_a_torn_message_is_dropped_and_the_next_one_read(connection: Connection, tmp_path: Path, torn: bytes) -> None:
    (tmp_path / "queue/!first.jobs.msg").write_bytes(torn)
    with connection.SimpleQueue("jobs") as queue:
        queue.put("whole")
        assert got(queue) == "whole"
    assert list((tmp_path / "queue").iterdir()) == []


def test_on_a_full_disk_a_message_is_left_out_and_nothing_of_it_stays(
    connection: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        path.write_bytes(text.encode()[:7])
        raise OSError(errno.ENOSPC, "No space left on device")

    with connection.SimpleQueue("jobs") as queue:
        with monkeypatch.context() as disk:
            disk.setattr(Path, "write_text", full)
            queue.put("lost")
        assert list((tmp_path / "queue").iterdir()) == []
        queue.put("sent")
        assert got(queue) == "sent"


@pytest.mark.parametrize("torn", [b"", b'[["jobs", '])
def test_a_torn_table_of_queues_is_begun_anew(tmp_path: Path, torn: bytes) -> None:
    options = broker.prepare(tmp_path, 0.01)
    (tmp_path / "queue-control/jobs.exchange").write_bytes(torn)
    with Connection(f"{broker.SCHEME}://", transport_options=options) as opened, opened.SimpleQueue("jobs") as queue:
        queue.put("sent")
        assert got(queue) == "sent"
    assert (tmp_path / "queue-control/jobs.exchange").read_bytes() != torn


def test_what_a_killed_process_began_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    broker.prepare(tmp_path, 0.01)
    old, new = (tmp_path / "queue" / f"{name}.jobs.msg{broker.UNFINISHED}" for name in ("old", "new"))
    for part in (old, new):
        part.touch()
    os.utime(old, (0, 0))
    broker.prepare(tmp_path, 0.01)
    assert [p.name for p in (tmp_path / "queue").iterdir()] == [new.name]
