"""Streams the chain's events as they are indexed, by server-sent events that clients resume with `Last-Event-ID`.

Nothing is queued for a client: its state is a position in the index, so that a slow reader costs a connection and no
memory. While a client is connected, one task checks the index once a second.

An event's id is block-index-hash. After a restart of the server or of the client, the stream continues after the
client's id; if the chain has dropped that block, or it is too far back, the stream sends `reset`: read everything
again.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from coordinator.db import Database
from coordinator.models import EventRow
from coordinator.rates import network
from lockstep.protocol.errors import LockstepError, TryLater, UsageError

PERIOD_SECONDS = 1.0
BEAT_SECONDS = 15.0
"""Seconds of silence after which a comment is sent, so that a disconnected client is noticed."""
PAGE = 200
"""Number of events that are read at a time."""
DIGITS = 8
PAGES = 4
"""Number of positions whose next events are cached until a new block comes."""
COLUMNS = (
    EventRow.block, EventRow.log_index, EventRow.block_hash, EventRow.time, EventRow.contract, EventRow.name,
    EventRow.job, EventRow.game, EventRow.tx,
)  # fmt: skip
"""The columns of an event without its arguments, which may be long."""
CATCH_UP = 10_000
"""Number of events behind which a client has to read everything again."""
STREAMS = 128
PER_ADDRESS = 64
"""The most streams of one address, which also gets at most half of the free ones, so that each new address finds
some."""
ID = re.compile(r"(\d{1,18})-(\d{1,9})-([0-9a-f]{0,8})")


HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no", "X-Content-Type-Options": "nosniff"}

# Not in /openapi.json: a document of requests and answers has no word for an answer without an end.
router = APIRouter(prefix="/api/v1", include_in_schema=False)


@dataclass(frozen=True)
class Position:
    """A position in the chain's log: all events up to it were sent."""

    block: int
    index: int
    digits: str = ""
    """The first digits of its block's hash, which tell it from the one in its place; "" where nobody knows them."""

    def __str__(self) -> str:
        return f"{self.block}-{self.index}-{self.digits}"


START = Position(-1, -1)


def parse(text: str) -> Position:
    """Parses the position in an event's id; raises UsageError."""
    found = ID.fullmatch(text)
    if found is None:
        raise UsageError(f"{text[:50]!r} is not the id of an event", hint="send back the `id` that an event had")
    return Position(int(found[1]), int(found[2]), found[3])


class Stream:
    """The event stream of one process; its methods run on one event loop."""

    def __init__(
        self, database: Database, *, period_seconds: float = PERIOD_SECONDS, beat_seconds: float = BEAT_SECONDS,
        streams: int = STREAMS, per_address: int = PER_ADDRESS,
    ) -> None:  # fmt: skip
        self._database = database
        self._period_seconds = period_seconds
        self._beat_seconds = beat_seconds
        self._streams, self._per_address = streams, per_address
        self._listening: Counter[str] = Counter()
        """Connected clients by address."""
        self._newest, self._version = START, 0
        self._moved = asyncio.Condition()
        self._watch: asyncio.Task[None] | None = None
        self._closed = False
        self._pages: dict[Position, Sequence[Any]] = {}
        """Events read behind a position since the last news: those who stand together read together."""

    @property
    def listening(self) -> int:
        """Number of connected clients."""
        return self._listening.total()

    def enter(self, address: str) -> str:
        """Admits a client; returns the key for `leave`. Raises TryLater if there are too many."""
        if self._closed:
            raise TryLater("this server is stopping", hint="reconnect with Last-Event-ID: no event is lost")
        key = network(address)
        others = self.listening - self._listening[key]
        share = min(self._per_address, -(-(self._streams - others) // 2))
        # INVARIANT: streams are few, and however many one address opens, the next one finds some.
        if self.listening >= self._streams or self._listening[key] >= share:
            raise TryLater("too many streams are open", hint="poll /api/v1/chain instead", code="quota")
        self._listening[key] += 1
        return key

    def leave(self, key: str) -> None:
        """Releases a client's place."""
        self._listening[key] -= 1
        self._listening += Counter()
        if not self.listening and self._watch is not None:
            self._watch.cancel()
            self._watch = None
            self._pages.clear()

    async def close(self) -> None:
        """Ends every stream between two events, so that its client receives a complete response and reconnects.

        A server that stops waits for its responses to end, but a stream has no end: it would otherwise be cut off.
        """
        async with self._moved:
            self._closed = True
            self._moved.notify_all()

    async def begin(self, last: str | None) -> tuple[Position, bool]:
        """Returns (position, True if the client has to read everything again) for a client whose last event was `last`,
        if any."""
        self._start()
        newest = await run_in_threadpool(self._read_newest)
        if not last:
            return newest, False
        position = parse(last)
        return (position, False) if await run_in_threadpool(self._near, position) else (newest, True)

    async def events(self, position: Position, *, reset: bool = False) -> AsyncIterator[bytes]:
        """Yields the events after a position in the format of server-sent events, and new ones as they come."""
        yield b"retry: 3000\n\n"
        if reset:
            yield anew(position)
        while not self._closed:
            seen = self._version
            try:
                rows = await self._after(position)
                if rows is None:
                    position = await run_in_threadpool(self._read_newest)
                    yield anew(position)
                    continue
            except LockstepError:
                # A database that does not answer is waited for, as between two events.
                rows = []
            for row in rows:
                yield wire(row)
            if rows:
                position = position_of(rows[-1])
            elif not await self._news(seen) and not self._closed:
                yield b": beat\n\n"

    # -- inside

    async def _after(self, position: Position) -> Sequence[Any] | None:
        known = self._pages.get(position)
        if known is None:
            known = await run_in_threadpool(self._read, position)
            if known and len(self._pages) < PAGES:
                self._pages[position] = known
        return known

    async def _news(self, seen: int) -> bool:
        try:
            async with asyncio.timeout(self._beat_seconds), self._moved:
                await self._moved.wait_for(lambda: self._closed or self._version != seen)
        except TimeoutError:
            return False
        return True

    def _start(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            try:
                newest = await run_in_threadpool(self._read_newest)
            except LockstepError:
                newest = self._newest
            if newest != self._newest:
                self._pages.clear()
                async with self._moved:
                    self._newest, self._version = newest, self._version + 1
                    self._moved.notify_all()
            await asyncio.sleep(self._period_seconds)

    def _read_newest(self) -> Position:
        order = (EventRow.block.desc(), EventRow.log_index.desc())
        with self._database.reading() as session:
            found = session.execute(select(*COLUMNS).order_by(*order).limit(1)).first()
        return START if found is None else position_of(found)

    def _read(self, position: Position) -> Sequence[Any] | None:
        """Returns the next events after a position; None if the chain has dropped it."""
        behind = tuple_(EventRow.block, EventRow.log_index) > (position.block, position.index)
        query = select(*COLUMNS).where(behind).order_by(EventRow.block, EventRow.log_index).limit(PAGE)
        with self._database.reading() as session:
            # INVARIANT: what follows an event follows it on the chain that has it: both are read in one view.
            return session.execute(query).all() if _stands(session, position) else None

    def _near(self, position: Position) -> bool:
        """Tells if the chain still has the event, and the client is not too far behind it."""
        behind = tuple_(EventRow.block, EventRow.log_index) > (position.block, position.index)
        newer = select(EventRow.block).where(behind).limit(CATCH_UP + 1).subquery()
        with self._database.reading() as session:
            if not _stands(session, position):
                return False
            return (session.scalar(select(func.count()).select_from(newer)) or 0) <= CATCH_UP


def _stands(session: Session, position: Position) -> bool:
    if position == START:
        return True
    place = (EventRow.block == position.block, EventRow.log_index == position.index)
    found = session.scalar(select(EventRow.block_hash).where(*place))
    return found is not None and found.removeprefix("0x").startswith(position.digits)


def position_of(row: Any) -> Position:
    """Returns the position of an event, whose text is the event's id."""
    return Position(row.block, row.log_index, row.block_hash.removeprefix("0x")[:DIGITS])


def anew(position: Position) -> bytes:
    """Returns the message that tells a client to read everything again."""
    return f"event: reset\nid: {position}\ndata: {{}}\n\n".encode()


def wire(row: Any) -> bytes:
    """Formats one event of the stream: its position and subject; /api/v1/chain has the arguments."""
    data = {"id": str(position_of(row)), "block": row.block, "time": row.time, "contract": row.contract,
            "name": row.name, "job": row.job, "game": row.game, "tx": row.tx}  # fmt: skip
    return f"id: {data['id']}\nevent: chain\ndata: {json.dumps(data)}\n\n".encode()


class Events(StreamingResponse):
    """The response of one client's stream; its place is released however it ends."""

    def __init__(self, stream: Stream, key: str, events: AsyncIterator[bytes]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._stream, self._key = stream, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends events until the client disconnects."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._stream.leave(self._key)


@router.get("/stream")
async def stream(
    request: Request, last_event_id: Annotated[str | None, Header()] = None, after: str | None = None
) -> Response:
    """The chain's events as they come. `after` is `Last-Event-ID` for clients that cannot set a header."""
    hub: Stream = request.app.state.stream
    key = hub.enter(request.client.host if request.client else "")
    try:
        position, reset = await hub.begin(last_event_id or after)
    except BaseException:
        hub.leave(key)
        raise
    return Events(hub, key, hub.events(position, reset=reset))
