"""Runs a coordinator's three processes: the API here, and Celery's worker and beat as children that never outlive it.

A child that dies is restarted, with growing pauses. At SIGTERM the API drains, then beat, then the worker after its
current task; a child that does not stop is killed. A killed parent closes the children's standard input, which ends
them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from lockstep.base import lines
from lockstep.base.log import Logger
from lockstep.protocol.errors import DoctorError
from lockstep.storage import connections

DRAIN_SECONDS = 20.0
API_DRAIN_SECONDS = 5
RESTART_SECONDS = (0.5, 30.0)
"""First pause before a dead child is started again, and the longest."""
STEADY_SECONDS = 60.0
"""A child that lived this long starts again without a pause."""

OnStop = Callable[[], Awaitable[None]]

log = Logger(__name__)


class Child:
    """A child process that is kept alive until `stop`."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str]) -> None:
        self.name = name
        self._command = command
        self._environment = {**os.environ, **environment}
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process = self._spawn()
        self._watch = threading.Thread(target=self._keep, name=f"keep-{name}", daemon=True)
        self._watch.start()

    @property
    def pid(self) -> int:
        """The present process's id."""
        return self._process.pid

    def stop(self, seconds: float) -> None:
        """Sends SIGTERM, and SIGKILL after `seconds`; returns once the process has ended."""
        with self._lock:
            self._stopping.set()
            process = self._process
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            log.warning("a child process was killed", child=self.name, after_seconds=seconds)
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._watch.join(timeout=1)

    def _spawn(self) -> subprocess.Popen[bytes]:
        told = subprocess.PIPE if lines.narrates() else None
        process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=told, env=self._environment)
        if process.stdout is not None:
            threading.Thread(target=lines.relay, args=(process.stdout,), name=f"tell-{self.name}", daemon=True).start()
        return process

    def _keep(self) -> None:
        pause = RESTART_SECONDS[0]
        while True:
            began = time.monotonic()
            code = self._process.wait()
            if self._stopping.is_set():
                return
            pause = RESTART_SECONDS[0] if time.monotonic() - began > STEADY_SECONDS else pause
            log.error("a child process died", child=self.name, code=code, restart_in_seconds=pause)
            if self._stopping.wait(pause):
                return
            pause = min(2 * pause, RESTART_SECONDS[1])
            with self._lock:
                if self._stopping.is_set():
                    return
                self._process = self._spawn()


class _ReadyServer(uvicorn.Server):
    """A uvicorn server with callbacks for when it serves, and when it begins to stop."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], on_stop: OnStop | None) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._on_stop = on_stop

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Before the answers are waited for: one without an end would be cut off when that time is over.
        if self._on_stop is not None:
            await self._on_stop()
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes any free one. Raises DoctorError."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise DoctorError(f"cannot listen on {host}:{port}: {error.strerror}", hint="pass --port 0 for any") from error
    return sock


def run(
    app: FastAPI,
    sock: socket.socket,
    children: dict[str, list[str]],
    environment: dict[str, str],
    on_ready: Callable[[], None],
    on_stop: OnStop | None = None,
) -> None:
    """Serve `app` on `sock` beside `children` (started in order, stopped in reverse) until SIGTERM or SIGINT.

    `on_stop` ends those answers on the server's loop that have no end of their own.
    """
    server = _ReadyServer(connections.config(app, drain_seconds=API_DRAIN_SECONDS), on_ready, on_stop)

    def leave(_number: int, _frame: FrameType | None) -> None:
        server.should_exit = True

    # uvicorn takes these signals over while it serves and raises them once more when it has drained: without ours, that
    # would end this process before its children.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    started: list[Child] = []
    try:
        for name, command in children.items():
            started.append(Child(name, command, environment))
        server.run(sockets=[sock])
    finally:
        for child in reversed(started):
            child.stop(DRAIN_SECONDS)
        sock.close()


def queue_children() -> dict[str, list[str]]:
    """The commands of Celery's worker and beat."""
    return {role: [sys.executable, "-m", "coordinator.queue", role] for role in ("worker", "beat")}
