"""Connections that keep a server waiting: silent ones, slow heads, slow bodies, slow readers, too many of them."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import requests
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from lockstep.storage.connections import Limits, config
from tests.support.waiting import PATIENCE, wait

HEAD = b"POST /api/v0/version HTTP/1.1\r\nHost: x\r\n"
QUICK = Limits(
    connections=12, per_peer=12, requests=2, head_seconds=1, body_seconds=1, body_bytes=1000, rest_seconds=1,
    send_seconds=1, send_bytes=1000,
)  # fmt: skip
LARGE = bytes(64 << 20)


class Site:
    """A server in a thread: /echo reads its body, /refuse does not, /large answers much, /wait answers when told."""

    def __init__(self, limits: Limits) -> None:
        self.go = asyncio.Event()
        routes = [
            Route("/echo", self.echo, methods=["POST"]), Route("/refuse", self.refuse, methods=["POST"]),
            Route("/large", self.large), Route("/wait", self.wait), Route("/healthz", self.refuse),
            Route("/api/v1/stream", self.wait),
        ]  # fmt: skip
        self.server = uvicorn.Server(config(Starlette(routes=routes), drain_seconds=1, limits=limits))
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)

    def _run(self) -> None:
        asyncio.run(self.server.serve(sockets=[self.socket]))

    async def echo(self, request: Request) -> Response:
        return PlainTextResponse(str(len(await request.body())))

    async def refuse(self, request: Request) -> Response:
        return PlainTextResponse("no", 200 if request.method == "GET" else 401)

    async def large(self, request: Request) -> Response:
        return Response(LARGE)

    async def wait(self, request: Request) -> Response:
        await self.go.wait()
        return PlainTextResponse("done")

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        client.sendall(sent)
        return client

    def at_work(self, number: int) -> None:
        """Waits until so many connections are answered."""
        wait(lambda: sum(c.state == "work" for c in list(self.server.server_state.connections)) == number, "requests")

    def get(self, path: str) -> int:
        return requests.get(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE).status_code

    def close(self) -> None:
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(10)


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site(QUICK)
    yield site
    site.close()


def cut_after(client: socket.socket, drip: bytes = b"") -> float:
    """Seconds until the server closes the connection, while `drip` is sent ten times a second."""
    began = time.monotonic()
    client.settimeout(0.1)
    while time.monotonic() - began < PATIENCE:
        try:
            if drip:
                client.sendall(drip)
            if client.recv(1 << 16) == b"":
                return time.monotonic() - began
        except TimeoutError:
            continue
        except OSError:
            return time.monotonic() - began
    raise AssertionError("it is never cut")


def post(path: str, length: int) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sent", "drip"),
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\n", b""),
        (b"GET /healthz HTTP/1.1\r\n", b"X-A: b\r\n"),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n", b"G"),
        (post("/echo", 10_000), b""),
        (post("/echo", 10_000), b"x"),
        (post("/refuse", 10**9), b"x" * 100),
    ],
    ids=["silent", "half a head", "a dripping head", "a second head", "no body", "a dripping body", "an unread body"],
)
def test_who_keeps_the_server_waiting_is_cut(site: Site, sent: bytes, drip: bytes) -> None:
    assert cut_after(site.connect(sent), drip) > 0.5, "it is given a second"


@pytest.mark.slow
def test_a_client_that_takes_no_answer_is_cut(site: Site) -> None:
    client = site.connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    time.sleep(4)
    taken = b"x"
    total = 0
    client.settimeout(5)
    try:
        while taken:
            taken = client.recv(1 << 20)
            total += len(taken)
    except ConnectionError:
        pass
    assert total < len(LARGE), "the answer was broken off"


@pytest.mark.slow
def test_a_client_that_takes_a_byte_at_a_time_is_cut(site: Site) -> None:
    client = site.connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    wait(lambda: bool(site.server.server_state.connections), "the connection")

    def cut() -> bool:
        client.recv(1)
        return not site.server.server_state.connections

    wait(cut, "its end")


@pytest.mark.slow
def test_a_slow_but_steady_client_is_served(site: Site) -> None:
    client = site.connect(post("/echo", 5_000))
    for _ in range(5):
        time.sleep(0.5)
        client.sendall(b"x" * 1_000)
    assert client.recv(1 << 16).startswith(b"HTTP/1.1 200")
    total = 0
    reader = site.connect(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    # Slower than the server, faster than the kernel's own buffers hide within a second.
    while total <= len(LARGE):
        piece = reader.recv(1 << 20)
        assert piece, f"broken off after {total} bytes"
        total += len(piece)
        time.sleep(len(piece) / (16 << 20))


@pytest.mark.slow
def test_a_busy_connection_lives_longer_than_a_head_may_take(site: Site) -> None:
    with requests.Session() as session:
        for _ in range(12):
            assert session.get(f"http://127.0.0.1:{site.port}/healthz", timeout=PATIENCE).status_code == 200
            time.sleep(0.2)


def test_silent_connections_make_room(site: Site) -> None:
    with ExitStack() as open_:
        for _ in range(3 * QUICK.connections):
            open_.enter_context(site.connect())
        assert site.get("/healthz") == 200


def test_slow_bodies_make_room(site: Site) -> None:
    with ExitStack() as open_:
        for _ in range(3 * QUICK.connections):
            open_.enter_context(site.connect(post("/echo", 10_000) + b"x"))
        assert site.get("/healthz") == 200


def test_requests_at_work_are_bounded_and_health_is_answered_all_the_same(site: Site) -> None:
    with ExitStack() as open_:
        for _ in range(QUICK.requests):
            open_.enter_context(site.connect(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"))
        site.at_work(QUICK.requests)
        refused = requests.get(f"http://127.0.0.1:{site.port}/large", timeout=PATIENCE)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        assert site.get("/healthz") == 200


def test_streams_are_no_requests_at_work(site: Site) -> None:
    streams = [site.connect(b"GET /api/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(QUICK.requests + 3)]
    site.at_work(QUICK.requests + 3)
    assert site.get("/large") == 200
    for stream in streams:
        stream.close()


def test_where_all_connections_are_at_work_the_next_is_refused() -> None:
    site = Site(Limits(connections=3, per_peer=3, requests=9))
    with ExitStack() as open_:
        for _ in range(3):
            open_.enter_context(site.connect(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n"))
        site.at_work(3)
        late = site.connect()
        assert late.recv(1 << 16).startswith(b"HTTP/1.1 503")
    site.close()


# -- the store, as it is served ---------------------------------------------------------------------------------------


@contextmanager
def store(folder: Path) -> Iterator[Callable[[], int]]:
    program = f"""
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.server import serve
serve(DirectoryStore({str(folder)!r}), host="127.0.0.1", port=0, max_bytes=1 << 20,
      on_ready=lambda host, port: print(port, flush=True))
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())

    def ask() -> int:
        return requests.post(f"http://127.0.0.1:{port}/api/v0/version", timeout=PATIENCE).status_code

    ask.port = port  # type: ignore[attr-defined]
    try:
        yield ask
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("silent", [64, 256])
@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"Content-Length: 999\r\n\r\nx"], ids=["silent", "head", "body"])
def test_the_store_answers_beside_connections_that_say_nothing(tmp_path: Path, silent: int, sent: bytes) -> None:
    with store(tmp_path) as ask, ExitStack() as open_:
        for _ in range(silent):
            client = open_.enter_context(socket.create_connection(("127.0.0.1", ask.port)))  # type: ignore[attr-defined]
            client.sendall(sent)
        began = time.monotonic()
        assert ask() == 200
        assert time.monotonic() - began < 3
