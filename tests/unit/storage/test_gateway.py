"""Gateways over HTTP: one that serves blocks, and those that lie, cut off, stall, redirect and never end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lockstep.protocol.errors import (
    BlobCorrupt,
    BlobMissing,
    DoctorError,
    LockstepError,
    Unreachable,
    UsageError,
)
from lockstep.protocol.types import Cid
from lockstep.storage import ContentStore, cid_of, open_store
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.gateway import MEDIA_TYPE, PROBE, GatewayStore, Readable
from lockstep.storage.unixfs import CHUNK_BYTES, MAX_BLOCK_BYTES

CONTENT = b"content"
CID = cid_of(CONTENT)
SECONDS = 0.5
LONG = 60
"""Seconds that a busy machine may take for that, and much less than what gateways here would have a reader wait."""
Answer = Callable[[BaseHTTPRequestHandler], None]


class Served:
    """What a gateway was asked."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.paths: list[str] = []


@contextmanager
def server(answer: Answer) -> Iterator[Served]:
    """An HTTP server that answers every GET by `answer`, after it has looked at the protocol."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            served.paths.append(self.path)
            # The specification of trustless gateways: either says which form is wanted.
            if not self.path.endswith("?format=raw") or self.headers["Accept"] != MEDIA_TYPE:
                self.send_error(406)
                return
            try:
                answer(self)
            except OSError:
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads, http.block_on_close = True, False
    served = Served(f"http://127.0.0.1:{http.server_port}")
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def says(body: bytes, status: int = 200, promised: int | None = None, **headers: str) -> Answer:
    """The same answer to every request; `promised` is a Content-Length that is not kept."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"Content-Type": MEDIA_TYPE, **headers}.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body) if promised is None else promised))
        request.end_headers()
        request.wfile.write(body)
        request.close_connection = promised is not None

    return answer


def blocks_of(store: DirectoryStore) -> Answer:
    """A gateway over a store."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        cid = request.path.removeprefix("/ipfs/").removesuffix("?format=raw")
        try:
            says(b"" if cid == PROBE else store.fetch_block(Cid(cid)))(request)
        except BlobMissing:
            says(b"no such block", 404)(request)

    return answer


def endless(request: BaseHTTPRequestHandler) -> None:
    """Ten gigabytes, if somebody takes them."""
    request.send_response(200)
    request.send_header("Content-Length", str(10 << 30))
    request.end_headers()
    for _ in range(10 << 10):
        request.wfile.write(bytes(1 << 20))


def silent(request: BaseHTTPRequestHandler) -> None:
    """Nothing at all, until the reader goes."""
    request.rfile.read(1)
    request.close_connection = True


def dripping(request: BaseHTTPRequestHandler) -> None:
    """A byte now and then: no pause is long, and the block never comes."""
    request.send_response(200)
    request.send_header("Content-Length", "100000")
    request.end_headers()
    for _ in range(4_000):
        request.wfile.write(b"x")
        request.wfile.flush()
        time.sleep(SECONDS / 10)


def dripping_head(request: BaseHTTPRequestHandler) -> None:
    """A head that does not end."""
    request.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(4_000):
        request.wfile.write(f"X-{number}: x\r\n".encode())
        request.wfile.flush()
        time.sleep(SECONDS / 10)


def redirecting(request: BaseHTTPRequestHandler) -> None:
    """Somewhere inside the reader's own network."""
    says(b"", 302, Location="http://127.0.0.1:1/secret")(request)


@pytest.mark.parametrize("status", [429, 503])
def test_a_gateway_that_says_when_to_come_back_is_waited_for(status: int) -> None:
    asked: list[float] = []

    def busy_once(request: BaseHTTPRequestHandler) -> None:
        asked.append(time.monotonic())
        says(b"", status, **{"Retry-After": "1"})(request) if len(asked) == 1 else says(CONTENT)(request)

    with server(busy_once) as served, GatewayStore(served.url, block_seconds=20) as store:
        assert store.get(CID, max_bytes=100) == CONTENT
    assert len(asked) == 2
    assert asked[1] - asked[0] >= 1


@pytest.mark.parametrize("after", ["9999", "99999", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "1e9"])
def test_no_gateway_makes_a_reader_wait_longer_than_for_a_block(after: str) -> None:
    with (
        server(says(b"", 429, **{"Retry-After": after})) as served,
        GatewayStore(served.url, block_seconds=SECONDS) as store,
    ):
        began = time.monotonic()
        with pytest.raises(Unreachable):
            store.get(CID, max_bytes=100)
        assert time.monotonic() - began < LONG


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (says(CONTENT), None),
        (says(b"lie"), BlobCorrupt),
        (says(b""), BlobCorrupt),
        (says(CONTENT + b"more"), BlobCorrupt),
        (says(bytes(MAX_BLOCK_BYTES + 1)), BlobCorrupt),
        (endless, BlobCorrupt),
        (says(b"cont", promised=7), Unreachable),
        (silent, Unreachable),
        (dripping, Unreachable),
        (dripping_head, Unreachable),
        (redirecting, DoctorError),
        (says(b"", 404), BlobMissing),
        (says(b"", 410), BlobMissing),
        (says(b"", 451), Unreachable),
        (says(b"", 429), Unreachable),
        (says(b"", 500), Unreachable),
        (says(b"", 504), Unreachable),
        (says(b"<html>", 403), DoctorError),
    ],
)
def test_an_answer_has_one_meaning_in_time(answer: Answer, expected: type[LockstepError] | None) -> None:
    with server(answer) as served, GatewayStore(served.url, block_seconds=SECONDS) as store:
        began = time.monotonic()
        if expected is None:
            assert store.get(CID, max_bytes=100) == CONTENT
        else:
            with pytest.raises(expected) as error:
                store.get(CID, max_bytes=100)
            assert type(error.value) is expected, "exactly that"
            assert error.value.hint, "with a hint"
        assert time.monotonic() - began < LONG
        assert served.paths == [f"/ipfs/{CID}?format=raw"], "one request, and none elsewhere"


def test_a_compressed_answer_is_not_inflated() -> None:
    import gzip

    squeezed = says(gzip.compress(CONTENT), **{"Content-Encoding": "gzip"})
    with server(squeezed) as served, GatewayStore(served.url) as store, pytest.raises(BlobCorrupt):
        store.get(CID, max_bytes=100)


@pytest.fixture
def origin(tmp_path: Path) -> DirectoryStore:
    """Where the gateway's blocks are."""
    (tmp_path / "origin").mkdir()
    return DirectoryStore(tmp_path / "origin")


def test_a_file_of_many_blocks_comes_from_a_gateway_alone(origin: DirectoryStore) -> None:
    data = bytes(range(256)) * (5 * CHUNK_BYTES // 256) + b"tail"
    cid = origin.put(data)
    with server(blocks_of(origin)) as served, open_store(f"gateway+{served.url}") as store:
        store.check()
        assert store.get(cid, max_bytes=len(data)) == data
        assert bytes(store.blob(cid, len(data))) == data
        assert store.url == f"gateway+{served.url}"
        assert not store.has(cid)
        for put in (lambda: store.put(b"x"), lambda: store.put_node(1)):
            with pytest.raises(UsageError, match="gateway"):
                put()


def test_what_is_written_lies_in_the_store_and_what_is_read_comes_from_whoever_has_it(
    origin: DirectoryStore, tmp_path: Path
) -> None:
    theirs = origin.put(bytes(3 * CHUNK_BYTES))
    with server(blocks_of(origin)) as served, open_store(f"dir://{tmp_path}/own,gateway+{served.url}") as store:
        store.check()
        mine = store.put(b"mine")
        asked = len(served.paths)
        assert store.get(mine, max_bytes=10) == b"mine"
        assert len(served.paths) == asked, "the gateway is not asked for what the store has"
        assert store.get(theirs, max_bytes=3 * CHUNK_BYTES) == bytes(3 * CHUNK_BYTES)
        with pytest.raises(BlobMissing, match="own"):
            store.get(CID, max_bytes=100)


def test_a_block_that_the_store_has_damaged_or_lacks_is_read_from_the_gateway(
    origin: DirectoryStore, tmp_path: Path
) -> None:
    data = b"".join(bytes([n]) * CHUNK_BYTES for n in range(4))
    cid = origin.put(data)
    own = DirectoryStore(tmp_path / "own")
    own.put(data)
    leaves = sorted((tmp_path / "own" / "blocks").glob("*/bafkrei*"))
    leaves[0].write_bytes(b"damaged")
    leaves[1].unlink()
    with server(blocks_of(origin)) as served, GatewayStore(served.url) as gateway:
        assert Readable(own, [gateway]).get(cid, max_bytes=len(data)) == data


def test_a_gateway_takes_nothing_away(origin: DirectoryStore, tmp_path: Path) -> None:
    """Whoever must know that content is missing learns it from the store, whatever gateways do."""
    own = DirectoryStore(tmp_path / "own")
    own.put(b"something")
    for answer in (says(b"lie"), silent, redirecting, says(b"", 500)):
        with server(answer) as served, GatewayStore(served.url, block_seconds=0.2) as gateway:
            store = Readable(own, [gateway])
            with pytest.raises(BlobMissing):
                store.get(CID, max_bytes=100)


def test_a_gateway_that_failed_is_asked_after_the_others_for_a_while(origin: DirectoryStore) -> None:
    cids = [origin.put(bytes([n]) * 9) for n in range(4)]
    now = 0.0
    with server(says(b"lie")) as liar, server(blocks_of(origin)) as honest:
        gateways = [GatewayStore(liar.url), GatewayStore(honest.url)]
        store = Readable(None, gateways, clock=lambda: now)
        for cid in cids[:3]:
            store.get(cid, max_bytes=9)
        assert len(liar.paths) == 1
        now = 31.0
        store.get(cids[3], max_bytes=9)
        assert len(liar.paths) == 2, "it is tried again"
        store.close()


def test_unreachable_is_never_missing(origin: DirectoryStore) -> None:
    with server(blocks_of(origin)) as without, server(says(b"", 503)) as broken:
        stores: ContentStore = open_store(f"gateway+{without.url},gateway+{broken.url}")
        with stores, pytest.raises(Unreachable):
            stores.get(CID, max_bytes=100)
        with open_store(f"gateway+{broken.url}") as alone, pytest.raises(Unreachable):
            alone.check()
        stores = open_store(f"gateway+{without.url},gateway+{broken.url}")
        with stores:
            stores.check()


@pytest.mark.parametrize("url", ["gateway+ftp://x", "gateway+", "gateway+https://", "gateway+https://h/?token=abcdef"])
def test_what_is_no_gateway_is_a_usage_error_without_its_secrets(url: str) -> None:
    with pytest.raises(UsageError) as error:
        open_store(url)
    assert error.value.hint
    assert "abcdef" not in error.value.message
