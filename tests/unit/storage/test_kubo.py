"""The Kubo RPC client against nodes that are not there, not Kubo, slow, or lying."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lockstep.protocol.errors import (
    BlobCorrupt,
    BlobMissing,
    DoctorError,
    LockstepError,
    Mismatch,
    PayloadInvalid,
    Unreachable,
    UsageError,
)
from lockstep.storage import cid_of, open_store
from lockstep.storage.kubo import KuboStore, multiaddr_of_url
from lockstep.storage.unixfs import MAX_BLOCK_BYTES

CID = cid_of(b"content")


@contextmanager
def node(status: int, body: bytes, *, promised: int | None = None) -> Iterator[KuboStore]:
    """A node that gives every request the same answer; `promised` is a Content-Length that it does not keep."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    self.rfile.read(size + 2)
                self.rfile.readline()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if promised is None else promised))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield KuboStore(f"/ip4/127.0.0.1/tcp/{server.server_port}/http", read_seconds=5)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def error_of(message: str) -> bytes:
    return b'{"Message":"%s","Code":0,"Type":"error"}' % message.encode()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, b"content", None),
        (200, b"lie", BlobCorrupt),
        (200, b"", BlobCorrupt),
        (200, bytes(MAX_BLOCK_BYTES + 5), BlobCorrupt),
        (500, error_of("block was not found locally (offline): ipld: could not find x"), BlobMissing),
        (500, error_of("ipld: could not find bafk"), BlobMissing),
        (500, error_of("block in storage has different hash than requested"), BlobCorrupt),
        (500, error_of("context deadline exceeded"), Unreachable),
        (500, error_of("failed to open database"), Unreachable),
        (500, b"out of memory", Unreachable),
        (503, b"", Unreachable),
        (413, error_of("too large"), PayloadInvalid),
        (403, b"forbidden", DoctorError),
        (404, b"<html>", DoctorError),
        (405, b"", DoctorError),
    ],
)
def test_answers_have_one_meaning(status: int, body: bytes, expected: type[LockstepError] | None) -> None:
    with node(status, body) as store:
        if expected is None:
            assert store.get(CID, max_bytes=100) == b"content"
            return
        with pytest.raises(expected) as error:
            store.get(CID, max_bytes=100)
        assert type(error.value) is expected, "exactly that"
        assert error.value.hint, "with a hint"


def test_answer_that_is_cut_off_is_unreachable_not_corrupt() -> None:
    with node(200, b"con", promised=7) as store, pytest.raises(Unreachable):
        store.get(CID, max_bytes=100)


def test_node_that_stores_under_another_name_is_a_mismatch() -> None:
    answer = b'{"Name":"","Hash":"%s","Key":"%s","Size":"1"}' % (CID.encode(), CID.encode())
    with node(200, answer) as store:
        for put in (lambda: store.put(b"other"), lambda: store.put_node("other")):
            with pytest.raises(Mismatch, match=CID):
                put()
        assert store.put(b"content") == CID, "the right name passes"


def test_answer_that_is_not_json_is_unreachable() -> None:
    with node(200, b"\xffhello") as store:
        for call in (store.check, lambda: store.put(b"x"), lambda: store.put_node(1)):
            with pytest.raises(LockstepError) as error:
                call()
            assert isinstance(error.value, (Unreachable, DoctorError)), "nothing is known about what it holds"


def test_silent_node_is_unreachable_after_the_read_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = KuboStore(f"/ip4/127.0.0.1/tcp/{listener.getsockname()[1]}/http", read_seconds=0.2)
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.get(CID, max_bytes=100),
            lambda: store.has(CID),
            lambda: store.put(b"x"),
        )
        for call in calls:
            with pytest.raises(Unreachable):
                call()


@pytest.mark.parametrize(
    ("url", "addr"),
    [
        ("http://127.0.0.1:5001", "/ip4/127.0.0.1/tcp/5001/http"),
        ("http://[::1]:5001/", "/ip6/::1/tcp/5001/http"),
        ("https://node.example:443", "/dns/node.example/tcp/443/https"),
    ],
)
def test_url_and_multiaddr_name_the_same_node(url: str, addr: str) -> None:
    assert multiaddr_of_url(url) == addr
    assert open_store(url).url == open_store(addr).url == addr


@pytest.mark.parametrize(
    "addr", ["/ip4/127.0.0.1", "/ip4/1.2.3.4/udp/1", "/nonsense", "/ip4/127.0.0.1/tcp/5001/ws", "/"]
)
def test_address_of_no_rpc_is_a_usage_error(addr: str) -> None:
    with pytest.raises(UsageError) as error:
        open_store(addr)
    assert error.value.hint, "with a hint"
