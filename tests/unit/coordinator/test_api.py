"""The API's contract: what strangers may read, what nodes may write, how failures read."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from coordinator.models import Cursor
from lockstep.identity import NodeKey
from lockstep.protocol.requests import LIFETIME, MAX_LIFETIME
from lockstep.protocol.types import Seconds
from lockstep.storage import cid_of

from .conftest import JOB, NODE, NOW, WORKER, Api, claim_row, job_row

BLOB = b"four legs good" * 100


def test_unsigned_is_401_with_a_challenge(api: Api) -> None:
    answer = api.client.post("/api/v1/blobs", content=BLOB)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"]
    assert answer.json()["code"] == "auth.unsigned"
    assert answer.json()["type"] == "urn:lockstep:problem:auth.unsigned"
    assert answer.json()["hint"]


def test_an_unregistered_key_is_401(api: Api) -> None:
    answer = api.signed("POST", "/api/v1/blobs", BLOB, node=NodeKey(bytes(32)))
    assert (answer.status_code, answer.json()["code"]) == (401, "auth.unknown")


@pytest.mark.parametrize("now", [NOW - LIFETIME - 1, NOW + MAX_LIFETIME])
def test_expired_and_everlasting_are_401(api: Api, now: int) -> None:
    answer = api.signed("POST", "/api/v1/blobs", BLOB, now=Seconds(now))
    assert (answer.status_code, answer.json()["code"]) == (401, "auth.expired")


def test_replayed_is_409_and_acts_once(api: Api) -> None:
    nonce = bytes(16)
    assert api.signed("POST", "/api/v1/blobs", BLOB, nonce=nonce).status_code == 201
    answer = api.signed("POST", "/api/v1/blobs", BLOB, nonce=nonce)
    assert (answer.status_code, answer.json()["code"]) == (409, "auth.replayed")
    other = api.signed("POST", "/api/v1/blobs", b"another body", nonce=nonce)
    assert other.status_code == 409, "the nonce is the key's, whatever it signs"


def test_the_nonce_is_spent_though_the_request_fails(api: Api) -> None:
    nonce = bytes([1]) * 16
    assert api.signed("POST", "/api/v1/claims", b"{}", nonce=nonce).status_code == 400
    assert api.signed("POST", "/api/v1/claims", b"{}", nonce=nonce).status_code == 409


def test_a_forged_request_spends_no_nonce(api: Api) -> None:
    headers = NODE.sign_request("POST", "/api/v1/blobs", BLOB, now=NOW, nonce=bytes([2]) * 16)
    forged = api.client.post("/api/v1/blobs", content=BLOB + b"!", headers=headers)
    assert (forged.status_code, forged.json()["code"]) == (401, "auth.signature")
    assert api.client.post("/api/v1/blobs", content=BLOB, headers=headers).status_code == 201


def test_the_query_is_signed_too(api: Api) -> None:
    headers = NODE.sign_request("POST", "/api/v1/blobs", BLOB, now=NOW)
    assert api.client.post("/api/v1/blobs?pin=1", content=BLOB, headers=headers).status_code == 401


def test_a_body_beyond_its_limit_is_413_declared_or_not(api: Api) -> None:
    large = bytes(api.context.max_blob_bytes + 1)
    answer = api.signed("POST", "/api/v1/blobs", large)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")

    def pieces() -> Iterator[bytes]:
        yield large[:1000]
        yield large[1000:]

    headers = NODE.sign_request("POST", "/api/v1/blobs", large, now=NOW)
    assert api.client.post("/api/v1/blobs", content=pieces(), headers=headers).status_code == 413


def test_an_index_without_a_chain_takes_no_writes(api: Api) -> None:
    with api.context.database.session() as session:
        session.delete(session.get_one(Cursor, 1))
    answer = api.signed("POST", "/api/v1/blobs", BLOB)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]


def test_a_blob_goes_through_storage_and_back(api: Api) -> None:
    answer = api.signed("POST", "/api/v1/blobs", BLOB)
    assert answer.status_code == 201
    assert answer.json() == {"cid": cid_of(BLOB), "bytes": len(BLOB)}
    got = api.client.get(answer.headers["location"])
    assert got.content == BLOB
    assert got.headers["etag"] == f'"{cid_of(BLOB)}"'
    assert "immutable" in got.headers["cache-control"]


def test_a_missing_blob_is_404_and_a_bad_cid_400(api: Api) -> None:
    assert api.client.get(f"/api/v1/blobs/{cid_of(b'never stored')}").status_code == 404
    assert api.client.get("/api/v1/blobs/not-a-cid").status_code == 400


def test_amounts_are_decimal_strings(api: Api) -> None:
    job = api.client.get(f"/api/v1/jobs/{JOB}").json()
    assert job["paid"] == "1" + "0" * 30
    assert job["params"]["slot_price"] == "1" + "0" * 30


def test_pages_cover_every_row_once_newest_first(api: Api) -> None:
    with api.context.database.session() as session:
        session.add_all([job_row(n) for n in range(1, 8)])
    seen, cursor = [], None
    for _ in range(10):
        page = api.client.get("/api/v1/jobs", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        seen += [j["block"] for j in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == list(range(17, 9, -1))


def test_rounds_carry_their_claims(api: Api) -> None:
    (only,) = api.client.get(f"/api/v1/jobs/{JOB}/rounds").json()
    assert only["number"] == 0
    assert [c["id"] for c in only["claims"]] == [claim_row().id]


def test_games_can_be_narrowed_to_the_open_ones(api: Api) -> None:
    assert len(api.client.get("/api/v1/games").json()["items"]) == 1
    assert len(api.client.get("/api/v1/games?open_only=true").json()["items"]) == 1


def test_nodes_and_status_say_what_is_indexed(api: Api) -> None:
    (node,) = api.client.get("/api/v1/nodes").json()["items"]
    assert node == {"account": WORKER.address, "key": "0x" + NODE.public.hex(), "block": 5}
    status = api.client.get("/api/v1/status").json()
    assert (status["block"], status["head"], status["jobs"], status["games_open"]) == (20, 21, 1, 1)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/jobs/0x" + "00" * 32, 404),
        ("/api/v1/claims/0x" + "00" * 32, 404),
        ("/api/v1/jobs/7", 422),
        ("/api/v1/jobs?limit=0", 422),
        ("/api/v1/jobs?cursor=%21", 400),
        ("/api/v1/jobs?cursor=eyJhIjoxfQ", 400),
        ("/nowhere", 404),
    ],
)
def test_every_failure_is_a_problem(api: Api, path: str, status: int) -> None:
    answer = api.client.get(path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert {"type", "title", "status", "detail", "code", "hint"} <= answer.json().keys()
    assert answer.json()["status"] == status


def test_a_wrong_method_is_a_problem_that_names_the_right_one(api: Api) -> None:
    answer = api.client.delete("/api/v1/jobs")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET"
    assert answer.json()["code"] == "method_not_allowed"


def test_ready_means_that_the_chain_was_heard(api: Api) -> None:
    assert api.client.get("/healthz").json() == {"status": "ok"}
    assert api.client.get("/readyz").json() == {"status": "ok", "block": 20, "behind": 1}
    with api.context.database.session() as session:
        session.get_one(Cursor, 1).checked = int(time.time()) - 300
    assert api.client.get("/readyz").status_code == 503
    assert api.client.get("/healthz").status_code == 200


def test_metrics_have_the_prefix_and_few_labels(api: Api) -> None:
    api.client.get(f"/api/v1/jobs/{JOB}")
    text = api.client.get("/metrics").text
    assert 'lockstep_coordinator_jobs{state="active"} 1.0' in text
    assert "lockstep_coordinator_indexed_block 20.0" in text
    assert 'route="/api/v1/jobs/{job}"' in text
    assert JOB not in text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert all(name.startswith("lockstep_") for name in names)


def test_openapi_names_every_path(api: Api) -> None:
    paths = api.client.get("/openapi.json").json()["paths"]
    for path in ("/jobs", "/jobs/{job}", "/jobs/{job}/rounds", "/claims/{claim}", "/games", "/nodes", "/status"):
        assert "get" in paths["/api/v1" + path]
    for path in ("/claims", "/receipts"):
        assert "post" in paths["/api/v1" + path]
    assert {"/healthz", "/readyz", "/metrics"} <= paths.keys()
