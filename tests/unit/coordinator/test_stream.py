"""The stream of events: nothing is missed over a restart, nothing is kept for a client, few may listen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import delete

from coordinator.db import Database
from coordinator.models import EventRow
from coordinator.stream import PAGE, PER_ADDRESS, STREAMS, Events, Position, Stream, parse
from lockstep.protocol.errors import TryLater, UsageError
from tests.support.waiting import PATIENCE

from .conftest import JOB, Api


def add(database: Database, blocks: range, digits: str = "ab") -> None:
    """Two events a block."""
    with database.session() as session:
        session.add_all(
            EventRow(
                block=block, log_index=i, block_hash="0x" + digits * 32, tx="0x" + "01" * 32, time=100 + block,
                contract="JobMarket", name="Joined", job=JOB, args={"long": "x" * 9000},
            )
            for block in blocks
            for i in range(2)
        )  # fmt: skip


def stream_of(database: Database, **options: Any) -> Stream:
    """A stream that looks often."""
    return Stream(database, **{"period_seconds": 0.02, "beat_seconds": 0.2} | options)


async def taken(events: AsyncIterator[bytes], n: int, into: list[str] | None = None) -> list[str]:
    """The ids of the next `n` events, each in `into` as soon as it is there; a reset is "reset"."""
    ids: list[str] = [] if into is None else into
    async with asyncio.timeout(PATIENCE):
        async for piece in events:
            text = piece.decode()
            if text.startswith("event: reset"):
                ids.append("reset")
            elif text.startswith("id: "):
                data = json.loads(text.partition("data: ")[2])
                assert text.startswith(f"id: {data['id']}\nevent: chain\n")
                assert "args" not in data
                ids.append(data["id"])
            if len(ids) == n:
                return ids
    return ids


def test_a_client_gets_what_comes_after_it_came(database: Database) -> None:
    add(database, range(3))

    async def listens() -> list[str]:
        stream = stream_of(database)
        key = stream.enter("10.0.0.1")
        position, reset = await stream.begin(None)
        assert (position, reset) == (Position(2, 1, "abababab"), False)
        waiting = asyncio.create_task(taken(stream.events(position), 4))
        await asyncio.sleep(0.05)
        add(database, range(3, 5))
        found = await waiting
        stream.leave(key)
        return found

    assert asyncio.run(listens()) == ["3-0-abababab", "3-1-abababab", "4-0-abababab", "4-1-abababab"]


def test_over_a_restart_nothing_is_missed_and_nothing_comes_twice(database: Database) -> None:
    blocks = PAGE  # two events a block: several pages
    add(database, range(blocks))
    due = [f"{block}-{i}-abababab" for block in range(blocks) for i in range(2)]

    async def listens(last: str | None, n: int) -> list[str]:
        stream = stream_of(database)
        key = stream.enter("10.0.0.1")
        position, reset = await stream.begin(last)
        assert not reset
        found = await taken(stream.events(position), n)
        stream.leave(key)
        return found

    first = asyncio.run(listens(due[0], 150))
    second = asyncio.run(listens(first[-1], len(due) - 151))
    assert [due[0], *first, *second] == due, "each run is a process of its own to the client"


@pytest.mark.parametrize("last", ["7-0-ffffffff", "99-0-abababab"])
def test_who_stood_on_a_block_that_is_gone_reads_anew(database: Database, last: str) -> None:
    add(database, range(9))

    async def listens() -> tuple[Position, bool]:
        stream = stream_of(database)
        key = stream.enter("10.0.0.1")
        found = await stream.begin(last)
        stream.leave(key)
        return found

    assert asyncio.run(listens()) == (Position(8, 1, "abababab"), True)


def test_a_reorganisation_says_reset_to_those_who_listen(database: Database) -> None:
    add(database, range(5))

    async def listens() -> list[str]:
        stream = stream_of(database)
        key = stream.enter("10.0.0.1")
        position, _ = await stream.begin(None)
        waiting = asyncio.create_task(taken(stream.events(position), 3))
        await asyncio.sleep(0.1)
        with database.session() as session:
            session.execute(delete(EventRow).where(EventRow.block > 2))
        await asyncio.sleep(0.3)
        add(database, range(3, 4), "cd")
        found = await waiting
        stream.leave(key)
        return found

    assert asyncio.run(listens()) == ["reset", "3-0-cdcdcdcd", "3-1-cdcdcdcd"]


def test_who_is_ahead_of_the_watch_is_not_told_to_read_anew(database: Database) -> None:
    add(database, range(3))

    async def listens() -> list[str]:
        stream = stream_of(database, period_seconds=0.5)
        key = stream.enter("10.0.0.1")
        position, _ = await stream.begin(None)
        await asyncio.sleep(0.1)
        found = []
        # Each is read as soon as it is there, long before the watch has seen it.
        for block in range(3, 6):
            add(database, range(block, block + 1))
            found += await taken(stream.events(position), 2)
            position = parse(found[-1])
        stream.leave(key)
        return found

    assert asyncio.run(listens()) == [f"{block}-{i}-abababab" for block in range(3, 6) for i in range(2)]


def test_a_reorganisation_between_two_looks_is_seen(database: Database) -> None:
    add(database, range(5))

    async def listens() -> list[str]:
        stream = stream_of(database, period_seconds=0.3)
        key = stream.enter("10.0.0.1")
        position, _ = await stream.begin(None)
        waiting = asyncio.create_task(taken(stream.events(position), 1))
        await asyncio.sleep(0.1)
        with database.session() as session:
            session.execute(delete(EventRow).where(EventRow.block > 2))
        add(database, range(3, 9), "cd")
        found = await waiting
        stream.leave(key)
        return found

    assert asyncio.run(listens()) == ["reset"], "the chain is longer than before, and another one"


def test_few_may_listen_and_one_address_has_a_part(database: Database) -> None:
    stream = stream_of(database, streams=3, per_address=2)
    first, _ = stream.enter("10.0.0.1"), stream.enter("10.0.0.1")
    with pytest.raises(TryLater):
        stream.enter("10.0.0.1")
    stream.enter("10.0.0.2")
    with pytest.raises(TryLater):
        stream.enter("10.0.0.3")
    stream.leave(first)
    stream.enter("10.0.0.3")
    assert stream.listening == 3


def test_whoever_comes_after_those_who_take_all_they_can_finds_a_stream(database: Database) -> None:
    stream = stream_of(database)
    for k in range(6):
        before = stream.listening
        with suppress(TryLater):
            for _ in range(STREAMS):
                stream.enter(f"10.0.{k}.1")
        assert stream.listening > before
        assert k or stream.listening == PER_ADDRESS, "the first has its whole part"
    assert stream.listening < STREAMS


def test_a_silent_stream_beats_and_a_client_that_goes_gives_its_place_back(database: Database) -> None:
    add(database, range(2))

    async def listens() -> int:
        stream = stream_of(database, beat_seconds=0.05)
        key = stream.enter("10.0.0.1")
        position, _ = await stream.begin(None)
        pieces: list[bytes] = []

        async def send(message: Any) -> None:
            if body := message.get("body"):
                pieces.append(body)
            if b": beat\n\n" in pieces:
                raise OSError("the client has gone")

        async def receive() -> Any:
            await asyncio.sleep(60)

        answer = Events(stream, key, stream.events(position))
        assert stream.listening == 1
        with pytest.raises(BaseException):  # noqa: B017, PT011 - starlette's own, whichever it is
            await answer({"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send)
        return stream.listening

    assert asyncio.run(listens()) == 0


@pytest.mark.parametrize("text", ["", "1", "1-2", "1-2-xyz", "-1-0-ab", "1-2-ab\n", "9" * 30 + "-0-ab"])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_a_wrong_id_is_a_problem_and_takes_no_place(api: Api) -> None:
    answer = api.client.get("/api/v1/stream", headers={"Last-Event-ID": "nonsense"})
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert api.client.app.state.stream.listening == 0  # type: ignore[attr-defined]


def test_a_server_that_stops_ends_its_streams_and_takes_no_more(database: Database) -> None:
    add(database, range(1))

    async def listens() -> list[list[str]]:
        stream = stream_of(database, beat_seconds=60)
        places = []
        for _ in range(3):
            stream.enter("10.0.0.1")
            places.append((await stream.begin(None))[0])
        found: list[list[str]] = [[], [], []]
        waiting = [
            asyncio.create_task(taken(stream.events(place), 9, ids)) for place, ids in zip(places, found, strict=True)
        ]
        add(database, range(1, 2))
        async with asyncio.timeout(PATIENCE):
            while any(len(ids) < 2 for ids in found):
                await asyncio.sleep(0.02)
        await stream.close()
        with pytest.raises(TryLater, match="is stopping"):
            stream.enter("10.0.0.2")
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*waiting)

    assert asyncio.run(listens()) == [["1-0-abababab", "1-1-abababab"]] * 3, "what came is sent, then it ends"
