"""A webhook: each event once and in order, retried, and never in the way of who tells it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import stamina
import structlog

from lockstep.protocol.errors import UsageError
from lockstep.runtime import webhook
from lockstep.runtime.webhook import Webhook, redacted


class Hook:
    """A server whose answers are listed; 204 after them."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.got: list[dict[str, Any]] = []
        self.waits = threading.Event()
        self.waits.set()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.waits.wait()
                status = hook.answers.pop(0) if hook.answers else 204
                if status == 204:
                    hook.got.append(body)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks/s3cret?token=s3cret"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def hook() -> Iterator[Hook]:
    made = Hook()
    with stamina.set_testing(True, attempts=3):
        yield made
    made.waits.set()
    made.server.shutdown()
    made.server.server_close()


def given_up(logs: list[Any]) -> list[str]:
    """Why, of each event that was; retries are logged, too."""
    return [entry["why"] for entry in logs if entry["event"] == "an event did not reach the webhook"]


def test_events_come_once_in_order_though_the_server_says_later(hook: Hook) -> None:
    hook.answers = [503, 429]
    with Webhook(hook.url) as told:
        for i in range(3):
            told.tell({"event": "moved", "i": i})
    assert hook.got == [{"event": "moved", "i": i} for i in range(3)]


def test_an_event_that_is_refused_is_given_up_and_the_next_one_comes(hook: Hook) -> None:
    hook.answers = [400, 500, 500, 500]
    with structlog.testing.capture_logs() as logs, Webhook(hook.url) as told:
        for i in range(3):
            told.tell({"i": i})
    assert hook.got == [{"i": 2}]
    assert given_up(logs) == ["400", "500"]
    assert "s3cret" not in str(logs)


def test_a_server_that_does_not_answer_holds_nobody_up(hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    hook.waits.clear()
    monkeypatch.setattr(webhook, "WAITING", 2)
    with structlog.testing.capture_logs() as logs:
        told = Webhook(hook.url)
        for i in range(6):
            told.tell({"i": i})
        told.close(0.2)
    assert not hook.waits.is_set(), "it answers nothing to this day"
    assert {"an event is dropped: the webhook takes too long", "the last events did not reach the webhook"} <= {
        entry["event"] for entry in logs
    }
    assert "s3cret" not in str(logs)


def test_a_server_that_is_not_there_is_a_warning(hook: Hook) -> None:
    with structlog.testing.capture_logs() as logs, Webhook("http://127.0.0.1:9/s3cret") as told:
        told.tell({"i": 0})
    assert given_up(logs) == ["ConnectError"]
    assert "s3cret" not in str(logs)


@pytest.mark.parametrize("url", ["", "ftp://host/s3cret", "https:///s3cret", "http://[s3cret", "s3cret"])
def test_what_is_no_url_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        redacted(url)
    assert "s3cret" not in refused.value.message + refused.value.hint


def test_a_url_is_shown_without_its_secrets() -> None:
    assert redacted("https://me:s3cret@hooks.example:8443/s3cret?token=s3cret") == "https://hooks.example:8443/..."
