"""The queue's broker: a folder of the home by default, a usage error if there is no such thing."""

from __future__ import annotations

from pathlib import Path
from queue import Empty

import pytest
from kombu import Connection
from structlog.testing import capture_logs

from coordinator import queue
from coordinator.settings import resolve_coordinator
from lockstep.protocol.errors import UsageError
from tests.support.waiting import PATIENCE


def test_by_default_the_broker_is_a_folder_of_the_home(tmp_path: Path) -> None:
    app = queue.build(resolve_coordinator(home=str(tmp_path)))
    assert app.conf.broker_url == "folder://"
    assert app.conf.task_always_eager is False
    folders = {Path(app.conf.broker_transport_options[k]) for k in ("data_folder_in", "data_folder_out")}
    assert folders == {tmp_path / "queue"}


def test_a_broker_that_is_none_is_a_usage_error_and_its_password_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'nonsense'") as refused:
        queue.build(resolve_coordinator(home=str(tmp_path), broker="nonsense://user:hush@host"))
    assert refused.value.hint
    assert "hush" not in refused.value.message + refused.value.hint
    assert list(tmp_path.iterdir()) == []


def test_coordinators_that_share_a_broker_have_a_queue_each(tmp_path: Path, redis: str) -> None:
    one, other = (resolve_coordinator(home=str(tmp_path / name), broker=redis) for name in "ab")
    queue.notifier(one)("0x01")
    with Connection(redis) as connection:
        waiting = [connection.SimpleQueue(queue.build(s).conf.task_default_queue) for s in (other, one)]
        with pytest.raises(Empty):
            waiting[0].get(timeout=0.1)
        message = waiting[1].get(timeout=PATIENCE)
        message.ack()
        assert message.headers["task"] == queue.LOOK
        assert message.payload[0] == ["0x01"]
        assert "expires" in message.headers, "a message that nobody takes does not stay for ever"


def test_a_redis_that_is_gone_costs_a_poke_and_is_told(tmp_path: Path) -> None:
    notify = queue.notifier(resolve_coordinator(home=str(tmp_path), broker="redis://127.0.0.1:1/0"))
    with capture_logs() as logs:
        notify("0x01")
    assert [line["event"] for line in logs] == ["a task could not be queued"]
