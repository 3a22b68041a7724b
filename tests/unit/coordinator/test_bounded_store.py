"""A store that hangs keeps its own threads, and no others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from coordinator.api import create_app
from coordinator.bounded_store import StoreCalls
from lockstep.protocol.errors import BlobMissing
from lockstep.storage import ContentStore, cid_of
from tests.support.waiting import wait

from .conftest import Api

PIECES = 5 << 20


class Hanging:
    """A store whose reads wait until they are let go."""

    def __init__(self, store: ContentStore) -> None:
        self._store = store
        self.go = threading.Event()
        self.running = 0

    def get_stream(self, cid: str, *, max_bytes: int) -> Iterator[bytes]:
        self.running += 1
        self.go.wait()
        self.running -= 1
        yield from self._store.get_stream(cid, max_bytes=max_bytes)


def served(api: Api, store: object, calls: int = 3) -> TestClient:
    backing = StoreCalls(calls, wait_seconds=0.2, call_seconds=0.5)
    context = replace(api.context, store=store, backing=backing)  # type: ignore[arg-type]
    return TestClient(create_app(context), raise_server_exceptions=False)


def test_a_store_that_hangs_is_503_and_health_is_answered(api: Api) -> None:
    hanging = Hanging(api.context.store)
    path = f"/api/v1/blobs/{api.context.store.put(b'four legs good')}"
    with served(api, hanging) as client, ThreadPoolExecutor(60) as strangers:
        asked = [strangers.submit(client.get, path) for _ in range(60)]
        wait(lambda: hanging.running == 3, "reads that hang")
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 200
        answers = [a.result() for a in asked]
        assert {a.status_code for a in answers} == {503}
        assert {a.json()["code"] for a in answers} == {"busy"}
        assert all(a.headers["retry-after"] for a in answers)
        assert hanging.running == 3, "a call that nobody waits for any more holds its place"
        hanging.go.set()
        wait(lambda: client.get(path).status_code == 200, "its place is given back")
        assert client.get(path).content == b"four legs good"


def test_content_of_many_blocks_is_streamed(api: Api) -> None:
    content = bytes(range(256)) * (PIECES // 256)
    context = replace(api.context, max_blob_bytes=PIECES)
    cid = context.store.put(content)
    with TestClient(create_app(context)) as client:
        assert client.get(f"/api/v1/blobs/{cid}").content == content
        assert client.get(f"/api/v1/blobs/{context.store.put(b'')}").content == b""
        assert client.get(f"/api/v1/blobs/{context.store.put(content + b'!')}").status_code == 422
        assert client.get(f"/api/v1/blobs/{cid_of(b'nowhere')}").status_code == 404


def test_content_that_ends_midway_is_not_taken_for_whole(api: Api) -> None:
    class Broken:
        def get_stream(self, cid: str, *, max_bytes: int) -> Iterator[bytes]:
            yield b"four legs "
            raise BlobMissing("the next block is gone")

    with served(api, Broken()) as client:
        answer = client.get(f"/api/v1/blobs/{cid_of(b'x')}")
        assert answer.content == b"four legs "
        assert "content-length" not in answer.headers, "its end is not announced, and the server closes before it"


def test_a_call_that_fails_gives_its_place_back() -> None:
    def fail() -> None:
        raise BlobMissing("gone")

    async def calls() -> None:
        backing = StoreCalls(1, wait_seconds=0.5)
        for _ in range(4):
            with pytest.raises(BlobMissing):
                await backing.call(fail)
        assert await backing.call(lambda: 7) == 7

    asyncio.run(calls())


def test_a_call_that_nobody_awaits_any_more_gives_its_place_back() -> None:
    async def calls() -> None:
        backing, go = StoreCalls(1, wait_seconds=5), threading.Event()
        waiting = asyncio.create_task(backing.call(go.wait))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        go.set()
        assert await backing.call(lambda: 7) == 7

    asyncio.run(calls())
