"""Notifications go out beside the requests that ask for them."""

from __future__ import annotations

import threading

from coordinator.notifying import Notifications
from tests.support.waiting import PATIENCE


def test_a_broker_that_hangs_keeps_no_request_and_a_job_waits_once() -> None:
    sent: list[str] = []
    begun, free, last = threading.Event(), threading.Event(), threading.Event()

    def send(job: str) -> None:
        begun.set()
        assert free.wait(PATIENCE)
        sent.append(job)
        if job == "last":
            last.set()

    notifications = Notifications(send)
    notifications("a")
    assert begun.wait(PATIENCE)
    for job in ("a", "b", "b", "a", "last"):
        notifications(job)
    assert sent == [], "each call returned while the broker hung"
    free.set()
    assert last.wait(PATIENCE)
    assert sent == ["a", "a", "b", "last"], "an a that came after the first was taken is sent again, once"
    notifications.close()


def test_nothing_is_sent_once_it_is_closed() -> None:
    sent: list[str] = []
    notifications = Notifications(sent.append)
    notifications.close()
    notifications._thread.join(10)
    notifications("a")
    assert not notifications._thread.is_alive()
    assert sent == []
