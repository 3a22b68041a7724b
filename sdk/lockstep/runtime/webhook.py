"""POSTs events to a webhook as JSON on a thread of its own; no failure there reaches the caller.

tell(event) -> queue -> one thread: POST, retried with growing pauses -> delivered, or dropped with a warning
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lockstep.base.closing import Closing
from lockstep.base.log import Logger
from lockstep.base.retries import retry_context
from lockstep.protocol.errors import UsageError

if TYPE_CHECKING:
    import httpx2

ATTEMPTS, RETRY_SECONDS, TIMEOUT_SECONDS = 6, 60.0, 10.0
"""Most POSTs of one event, their total time limit in seconds, and the timeout of each."""
LATER = (408, 425, 429)
"""HTTP statuses below 500 after which a POST is retried."""
WAITING = 1_000
"""Most queued events; further ones are dropped with a warning."""
FLUSH_SECONDS = 5.0
"""Seconds that `close` waits for queued events."""

log = Logger(__name__)


class Webhook(Closing):
    """Delivers events to one URL, in order."""

    def __init__(self, url: str) -> None:
        """Raises UsageError unless it is an http(s) URL; nothing is contacted yet."""
        self.shown = redacted(url)
        self._url = url
        self._waiting: queue.Queue[Mapping[str, Any] | None] = queue.Queue(WAITING)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def tell(self, event: Mapping[str, Any]) -> None:
        """Queues an event to be POSTed, without waiting."""
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            log.warning("an event is dropped: the webhook takes too long", url=self.shown)

    def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Waits up to `seconds` for queued events, then drops them."""
        end = time.monotonic() + seconds
        try:
            self._waiting.put(None, timeout=seconds)
        except queue.Full:
            self._over.set()
        self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            self._over.set()
            log.warning("the last events did not reach the webhook", url=self.shown)

    def _run(self) -> None:
        import httpx2

        with httpx2.Client(timeout=TIMEOUT_SECONDS, follow_redirects=False) as client:
            while (event := self._waiting.get()) is not None and not self._over.is_set():
                try:
                    self._post(client, event)
                except Undelivered as error:
                    log.warning("an event did not reach the webhook", url=self.shown, why=error.why)
                except Exception as error:  # no failure of another party's server may end the thread
                    log.warning("an event did not reach the webhook", url=self.shown, why=type(error).__name__)

    def _post(self, client: httpx2.Client, event: Mapping[str, Any]) -> None:
        import httpx2

        def passes(error: Exception) -> bool:
            return isinstance(error, Undelivered) and error.passes and not self._over.is_set()

        for attempt in retry_context(on=passes, attempts=ATTEMPTS, timeout=RETRY_SECONDS):
            with attempt:
                try:
                    status = client.post(self._url, json=dict(event)).status_code
                except httpx2.TransportError as error:
                    raise Undelivered(type(error).__name__, passes=True) from None
                if not 200 <= status < 300:
                    raise Undelivered(str(status), passes=status in LATER or status >= 500)


class Undelivered(Exception):
    """One POST did not succeed. INVARIANT: it names no URL, which the client's own errors do: retries are logged."""

    def __init__(self, why: str, *, passes: bool) -> None:
        super().__init__(why)
        self.why = why
        self.passes = passes
        """True if a retry may succeed."""


def redacted(url: str) -> str:
    """Returns only scheme, host and port of a webhook's URL, whose path and query are secret. Raises UsageError if it
    is no http(s) URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host:
        raise UsageError("--webhook is not an http(s) URL", hint="write http://host/path or https://host/path")
    return f"{parts.scheme}://{host}{'' if port is None else f':{port}'}/..."
