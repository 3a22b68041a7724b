"""What one address may ask, signed or not: a rate with a burst, and a bound on what is remembered."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from coordinator import rates
from coordinator.api import create_app
from coordinator.rates import RequestRates

from .conftest import Api


def test_a_burst_then_a_steady_rate() -> None:
    now = [0.0]
    limit = RequestRates(10, clock=lambda: now[0])
    assert [limit.wait("10.0.0.1") for _ in range(40)] == [0.0] * 40
    assert limit.wait("10.0.0.1") == pytest.approx(0.1)
    assert limit.wait("10.0.0.2") == 0.0, "another's is its own"
    now[0] = 0.1
    assert limit.wait("10.0.0.1") == 0.0
    assert limit.wait("10.0.0.1") > 0
    now[0] = 1000.0
    assert sum(limit.wait("10.0.0.1") == 0 for _ in range(100)) == 40, "rest fills the bucket, and no more"


def test_a_network_of_ipv6_is_one_address_and_a_mapped_one_is_ipv4() -> None:
    limit = RequestRates(0.25, clock=lambda: 0.0)
    assert limit.wait("2001:db8::1") == 0
    assert limit.wait("2001:db8::2:3") > 0
    assert limit.wait("2001:db8:0:1::1") == 0
    assert limit.wait("::ffff:10.0.0.1") == 0
    assert limit.wait("10.0.0.1") > 0


def test_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "FORGET_ADDRESSES", 100)
    limit = RequestRates(1, clock=lambda: 0.0)
    for n in range(5_000):
        limit.wait(f"10.0.{n >> 8}.{n & 255}")
    assert len(limit._buckets) <= 100


@pytest.mark.sampled(1)
def test_whoever_asks_too_often_is_told_when_to_ask_again_and_health_is_answered(api: Api) -> None:
    """In front of both databases: the fixture is SQLite's, then PostgreSQL's."""
    context = replace(api.context, rates=RequestRates(1.0, clock=lambda: 0.0))
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        paths = ("/api/v1/jobs", "/api/v1/status", "/nowhere", "/openapi.json")
        assert [client.get(path).status_code for path in paths] == [200, 200, 404, 200]
        for answer in (client.get("/api/v1/jobs"), client.get("/nowhere"), client.post("/api/v1/blobs", content=b"x")):
            assert (answer.status_code, answer.json()["code"]) == (429, "rate")
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["content-type"] == "application/problem+json"
        assert [client.get(path).status_code for path in ("/healthz", "/readyz", "/metrics")] == [200] * 3


def test_a_request_beyond_its_rate_has_its_body_unread(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr("coordinator.auth._read", lambda request, length: read.append(length))
    monkeypatch.setattr("coordinator.auth._known", lambda *_: read.append("the index"))
    context = replace(api.context, rates=RequestRates(0.25, clock=lambda: 0.0))
    with TestClient(create_app(context), raise_server_exceptions=False) as client:
        client.get("/api/v1/status")
        headers = {"Content-Length": "1000000"}
        assert client.post("/api/v1/blobs", content=b"", headers=headers).status_code == 429
    assert read == [], "neither the body nor the database"
