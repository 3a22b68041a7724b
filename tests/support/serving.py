"""Serves an application on a socket, in a thread of the test's process."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import uvicorn
from starlette.types import ASGIApp

from lockstep.storage import connections


class Served:
    """A server in a thread, as `lockstep coordinator up` runs it; yields its URL."""

    def __init__(self, app: ASGIApp) -> None:
        config = connections.config(app, drain_seconds=1)
        config.host, config.port = "127.0.0.1", 0
        self._server = uvicorn.Server(config)
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the server has ended"
            time.sleep(0.02)
        host, port = self._server.servers[0].sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server has not ended"
