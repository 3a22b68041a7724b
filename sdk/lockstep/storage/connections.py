"""HTTP connections of a public server: silent, slow and surplus connections are closed.

    head    no request yet, or none since the last answer      HEAD: so long, then it is closed
    body    a request whose body is on its way                 BODY: bytes within a number of seconds
    rest    answered, and still sending a body nobody reads    REST
    send    a response that the client has not received        SEND: bytes within a number of seconds
    work    the server's turn                                  bounded in number, not in time

uvicorn's own limit counts connections, so 64 silent ones would block a server, and its only timeout begins after the
first answer. This module counts requests in progress. If there are too many connections, it closes the one that has
kept the server waiting longest.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import h11
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

State = Literal["head", "body", "rest", "send", "work"]
TICK_SECONDS = 1.0
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 2\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
HEALTH = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that are answered however many requests are in progress."""
STREAMS = frozenset({"/api/v1/stream"})
"""Paths with endless answers, which mostly wait: they do not count as requests in progress."""


@dataclass(frozen=True)
class Limits:
    """Limits on a server's clients; times are in seconds of this machine's clock."""

    connections: int = 256
    per_peer: int = 128
    """Most connections from one address; all clients behind a proxy share its address."""
    requests: int = 64
    """Most requests in progress; a further one is answered with status 503."""
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    body_bytes: int = 64 << 10
    """Least bytes of a request's body in `body_seconds`, unless it ends sooner."""
    rest_seconds: float = 2.0
    send_seconds: float = 30.0
    send_bytes: int = 64 << 10
    """Least bytes of an answer that a client must read in `send_seconds`, unless it reads the rest."""


class Connection(H11Protocol):
    """One connection, held to `limits`."""

    limits: ClassVar[Limits] = Limits()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._served: ASGIApp = cast(ASGIApp, self.app)
        self.app = cast(Any, self._admit)
        self._peer = ""
        self._gone = False
        self._received = 0
        self._drained = 0
        self._mark: tuple[Any, ...] = ()
        self._since = self.loop.time()
        self._then = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def state(self) -> State:
        """The phase of the connection, which determines the side that it waits for."""
        answering = self.cycle is not None and not self.cycle.response_complete
        sending = self.conn.their_state is h11.SEND_BODY
        if self.flow.write_paused or (not answering and self.transport.get_write_buffer_size()):
            return "send"
        if not answering:
            return "rest" if sending else "head"
        # A body that the server itself has stopped reading is not the client's fault.
        return "body" if sending and not self.flow.read_paused else "work"

    @property
    def streams(self) -> bool:
        """True while the connection serves an endless answer."""
        return self.cycle is not None and self.cycle.scope.get("path") in STREAMS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        # INVARIANT: whoever keeps the server waiting makes room for those who come.
        if not self._room():
            self._gone = True
            transport.write(REFUSAL)
            transport.close()
            return
        super().connection_made(transport)
        self._since = self.loop.time()
        self._timer = self.loop.call_later(TICK_SECONDS, self._tick)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.transport is not None:
            super().connection_lost(exc)
        self._gone = True

    def data_received(self, data: bytes) -> None:
        if self._gone:
            return
        self._received += len(data)
        super().data_received(data)

    def resume_writing(self) -> None:
        self._drained += 1
        super().resume_writing()

    def cut(self) -> None:
        """Closes the connection at once, in any phase."""
        self._gone = True
        self.connections.discard(self)
        self.transport.abort()

    def _room(self) -> bool:
        """Makes room for this connection; returns False if all others are processing requests."""
        others = [c for c in self.connections if isinstance(c, Connection)]
        mine = [c for c in others if c._peer == self._peer]
        if len(mine) >= self.limits.per_peer:
            return _cut_longest(mine)
        if len(others) < self.limits.connections:
            return True
        peers = [c._peer for c in others]
        most = max(peers, key=peers.count)
        return _cut_longest(c for c in others if c._peer == most) or _cut_longest(others)

    def _tick(self) -> None:
        """Checks once a second whether the client has kept the server waiting too long."""
        state, now, limits = self.state, self.loop.time(), self.limits
        # Each request, and each answer that was read, restarts the time limit.
        mark = (state, self.cycle, self._drained)
        done = self._received if state == "body" else -self.transport.get_write_buffer_size()
        if mark != self._mark:
            self._mark, self._since, self._then = mark, now, done
        # (seconds, least bytes in this time)
        allowed = {
            "head": (limits.head_seconds, sys.maxsize),
            "body": (limits.body_seconds, limits.body_bytes),
            "rest": (limits.rest_seconds, sys.maxsize),
            "send": (limits.send_seconds, limits.send_bytes),
        }
        seconds, least = allowed.get(state, (sys.maxsize, 0))
        if now - self._since >= seconds:
            if done - self._then < least:
                return self.cut()
            self._since, self._then = now, done
        self._timer = self.loop.call_later(TICK_SECONDS, self._tick)
        return None

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers status 503 while too many requests are in progress."""
        others = [c for c in self.connections if isinstance(c, Connection) and not c.streams]
        at_work = sum(c.state in ("work", "send") for c in others)
        if at_work > self.limits.requests and scope.get("path") not in HEALTH:
            refusal = PlainTextResponse("too many requests at work", 503, {"Retry-After": "2", "Connection": "close"})
            await refusal(scope, receive, send)
        else:
            await self._served(scope, receive, send)


def config(app: ASGIApp, *, drain_seconds: int, limits: Limits | None = None) -> uvicorn.Config:
    """Returns uvicorn's configuration for a server with these connections; it has no log of its own."""
    kind = Connection if limits is None else type("Connection", (Connection,), {"limits": limits})
    return uvicorn.Config(
        cast(Any, app),
        http=cast(Any, kind),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=drain_seconds,
    )


def _cut_longest(connections: Iterable[Connection]) -> bool:
    """Closes the connection that has kept the server waiting longest; returns False if none does."""
    waiting = [c for c in connections if c.state in ("head", "body", "rest")]
    if not waiting:
        return False
    min(waiting, key=lambda c: c._since).cut()
    return True
