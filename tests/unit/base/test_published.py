"""A market by its coordinator's URL: what is read, what is refused, and where nobody is sent."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from lockstep.base import published
from lockstep.base.settings import DEFAULTS, resolve
from lockstep.chain.addresses import CONTRACTS, Addresses
from lockstep.protocol.errors import LockstepError, Unreachable, UsageError
from lockstep.protocol.types import Address

ADDRESSES = Addresses(31337, *(Address(f"0x{i:040x}") for i, _ in enumerate(CONTRACTS, 1)), block=7)
DOCUMENT = {"deployment": json.loads(ADDRESSES.text()), "rpc_urls": ["http://127.0.0.1:8545"], "gateways": []}


@contextmanager
def coordinator(body: bytes, status: int = 200, asked: list[str] | None = None) -> Iterator[str]:
    """A server that answers every GET by this; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:9/")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user without settings."""
    for name in [*DEFAULTS, "network"]:
        monkeypatch.delenv(f"LOCKSTEP_{name.upper()}", raising=False)
    for name in ("CONFIG", "LOCAL", "CACHE"):
        monkeypatch.setenv(f"LOCKSTEP_{name}", str(tmp_path / name.lower()))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(**changes: Any) -> bytes:
    return json.dumps(DOCUMENT | changes).encode()


def test_a_url_stands_for_the_chain_its_contracts_and_a_store_that_is_read(user: Path) -> None:
    asked: list[str] = []
    with coordinator(said(gateways=["https://ipfs.example"]), asked=asked) as url:
        found = resolve(network=url + "/")
        assert resolve(network=url + "/") == found
        assert resolve(network=url + "/", rpc="http://mine").rpc == "http://mine", "a flag is closer"
    assert asked == ["/api/v1/network"], "once, by GET"
    assert found.rpc == "http://127.0.0.1:8545"
    assert found.storage == f"gateway+{url},gateway+https://ipfs.example"
    assert found.coordinator == url
    assert Addresses.load(found.deployment) == ADDRESSES
    assert Path(found.deployment).is_relative_to(user / "cache")


def test_without_a_public_endpoint_one_is_asked_for(user: Path) -> None:
    with coordinator(said(rpc_urls=[])) as url:
        with pytest.raises(UsageError, match="publishes no RPC endpoint") as refused:
            resolve(network=url)
        assert "--rpc" in refused.value.hint
        assert resolve(network=url, rpc="http://mine").rpc == "http://mine"


@pytest.mark.parametrize(
    ("body", "status", "error", "named"),
    [
        (b"<html>", 200, UsageError, "does not parse"),
        (b"{}", 200, UsageError, "lacks"),
        (said(more=1), 200, UsageError, "more"),
        (said(rpc_urls="http://x"), 200, UsageError, "rpc_urls"),
        (said(deployment={"a": [1]}), 200, UsageError, "deployment"),
        (b"[" * 100_000, 200, UsageError, "bytes"),
        (b"", 404, UsageError, "not a coordinator: HTTP 404"),
        (b"", 302, UsageError, "not a coordinator: HTTP 302"),
        (b"", 429, Unreachable, "HTTP 429"),
        (b"", 503, Unreachable, "HTTP 503"),
    ],
)
def test_what_is_no_coordinators_answer_is_refused(
    body: bytes, status: int, error: type[LockstepError], named: str
) -> None:
    with coordinator(body, status) as url, pytest.raises(error) as refused:
        resolve(network=url)
    assert named in refused.value.message
    assert refused.value.hint


def test_nobody_there_is_unreachable_and_no_url_is_a_mistake() -> None:
    with pytest.raises(Unreachable, match="did not answer"):
        resolve(network="http://127.0.0.1:9")
    for wrong in ("http://", "http://x/?a=b", "https://x/#y"):
        with pytest.raises(UsageError, match="not the URL of a coordinator"):
            resolve(network=wrong)


def test_a_deployment_that_is_none_is_refused_when_it_is_opened() -> None:
    with coordinator(said(deployment={"chain_id": 1})) as url, pytest.raises(UsageError, match="is not a deployment"):
        Addresses.load(resolve(network=url).deployment)


@pytest.mark.parametrize(
    ("endpoint", "coordinator_url", "taken"),
    [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8700", True),
        ("http://127.0.0.1:8545", "http://localhost:8700", True),
        ("http://127.0.0.1:8545", "https://lockstep.example", False),
        ("http://[::1]:8545", "https://lockstep.example", False),
        ("http://localhost:8545", "https://lockstep.example", False),
        ("https://rpc.example", "https://lockstep.example", True),
        ("https://rpc.example,http://127.0.0.1", "https://lockstep.example", False),
        ("file:///etc/passwd", "http://127.0.0.1:8700", False),
        ("ws://rpc.example", "http://127.0.0.1:8700", False),
    ],
)
def test_a_server_elsewhere_sends_nobody_to_their_own_machine(endpoint: str, coordinator_url: str, taken: bool) -> None:
    assert published._reachable(endpoint, coordinator_url) is taken
