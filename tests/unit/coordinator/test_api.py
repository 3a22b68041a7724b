"""The API's contract: what strangers may read, what nodes may write, how failures read."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from eth_utils.address import to_checksum_address
from sqlalchemy import delete
from sqlalchemy.event import listen
from sqlalchemy.orm import Session

from coordinator import quotas
from coordinator.folds import apply
from coordinator.models import ClaimRow, CursorRow, EventRow, JobRow, LockRow, NodeRow, RoundRow
from coordinator.projections import claim_id_hex
from lockstep.protocol.types import Address, Seconds
from lockstep.runtime.identity import NodeKey
from lockstep.runtime.requests import LIFETIME, MAX_LIFETIME
from lockstep.storage import cid_of

from .conftest import JOB, NODE, NOW, WORKER, Api, claim_row, job_row
from .test_announcements import announcement

ATTACKER = to_checksum_address("0x" + "de" * 20)

BLOB = b"four legs good" * 100


@pytest.mark.sampled(1)
def test_unsigned_is_401_with_a_challenge(api: Api) -> None:
    answer = api.client.post("/api/v1/blobs", content=BLOB)
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"]
    assert answer.json()["code"] == "auth.unsigned"
    assert answer.json()["type"] == "urn:lockstep:problem:auth.unsigned"
    assert answer.json()["hint"]


def test_an_account_without_a_key_is_401(api: Api) -> None:
    answer = api.signed("POST", "/api/v1/blobs", BLOB, account=ATTACKER)
    assert (answer.status_code, answer.json()["code"]) == (401, "auth.unknown")


def test_another_key_than_the_account_registered_is_401(api: Api) -> None:
    answer = api.signed("POST", "/api/v1/blobs", BLOB, node=NodeKey(bytes(32)))
    assert (answer.status_code, answer.json()["code"]) == (401, "auth.signature")


@pytest.mark.parametrize("order", [(WORKER.address, ATTACKER), (ATTACKER, WORKER.address)])
def test_who_registers_anothers_key_gains_nothing(api: Api, order: tuple[str, str]) -> None:
    with api.context.database.session() as session:
        session.execute(delete(NodeRow))
        for block, account in enumerate(order):
            args = {"account": account, "key": "0x" + NODE.public.hex()}
            registered = EventRow(
                block=30 + block, log_index=0, block_hash="0x", tx="0x", time=NOW, contract="StakeVault",
                name="NodeRegistered", args=args,
            )  # fmt: skip
            assert apply(session, registered)
    answer = api.signed("POST", "/api/v1/claims", announcement())
    assert answer.status_code == 202, "the victim's requests count as its own"
    headers = NODE.sign_request(WORKER.address, "POST", "/api/v1/blobs", BLOB, now=NOW)
    stolen = api.client.post("/api/v1/blobs", content=BLOB, headers=headers | {"Lockstep-Account": ATTACKER.lower()})
    assert (stolen.status_code, stolen.json()["code"]) == (401, "auth.signature"), "nor as the attacker's"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("key", [bytes(32), b"\xff" * 32, b"\1" + bytes(31)])
def test_a_registered_key_that_is_no_key_is_401(api: Api, key: bytes) -> None:
    with api.context.database.session() as session:
        session.get_one(NodeRow, WORKER.address).key = "0x" + key.hex()
    assert api.signed("POST", "/api/v1/blobs", BLOB).status_code == 401


class Body:
    """A body in pieces, which counts those that were taken."""

    def __init__(self, size: int) -> None:
        self.left, self.taken = size, 0

    def __iter__(self) -> Iterator[bytes]:
        while self.left:
            piece = bytes(min(self.left, 1 << 16))
            self.left -= len(piece)
            self.taken += len(piece)
            yield piece


def test_a_strangers_body_is_not_read(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr("coordinator.auth._read", lambda request, length: read.append(length))
    size = api.context.max_blob_bytes
    nonce = bytes([9]) * 16
    old = NODE.sign_request(WORKER.address, "POST", "/api/v1/blobs", b"", now=Seconds(NOW - 900))
    forged = NodeKey(bytes([9]) * 32).sign_request(WORKER.address, "POST", "/api/v1/blobs", b"", now=NOW)
    unknown = NODE.sign_request(ATTACKER, "POST", "/api/v1/blobs", b"", now=NOW)
    seen = NODE.sign_request(WORKER.address, "POST", "/api/v1/blobs", b"", now=NOW, nonce=nonce)
    api.context.nonces.use_nonce(Address(WORKER.address.lower()), nonce, Seconds(NOW + 1))
    for headers, status in (({}, 401), (old, 401), (forged, 401), (unknown, 401), (seen, 409)):
        sent = {**headers, "Content-Length": str(size)}
        assert api.client.post("/api/v1/blobs", content=Body(size), headers=sent).status_code == status
    assert read == []


def test_an_account_has_a_share(api: Api) -> None:
    with ExitStack() as taken:
        for _ in range(quotas.REQUESTS_IN_FLIGHT):
            taken.enter_context(api.context.quotas.share(Address(WORKER.address.lower()), 1))
        answer = api.signed("POST", "/api/v1/blobs", BLOB)
        assert (answer.status_code, answer.json()["code"]) == (429, "quota")
        assert answer.headers["retry-after"]
    assert api.signed("POST", "/api/v1/blobs", BLOB).status_code == 201


def test_bodies_of_all_accounts_have_a_bound(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "BYTES_IN_FLIGHT", len(BLOB) - 1)
    answer = api.signed("POST", "/api/v1/blobs", BLOB)
    assert (answer.status_code, answer.json()["code"]) == (503, "busy")


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
    headers = NODE.sign_request(WORKER.address, "POST", "/api/v1/blobs", BLOB, now=NOW, nonce=bytes([2]) * 16)
    forged = api.client.post("/api/v1/blobs", content=BLOB + b"!", headers=headers)
    assert forged.status_code in (400, 401), "longer than declared, or another body"
    other = api.client.post("/api/v1/blobs", content=b"!" * len(BLOB), headers=headers)
    assert (other.status_code, other.json()["code"]) == (401, "auth.body")
    assert api.client.post("/api/v1/blobs", content=BLOB, headers=headers).status_code == 201


def test_the_query_is_signed_too(api: Api) -> None:
    headers = NODE.sign_request(WORKER.address, "POST", "/api/v1/blobs", BLOB, now=NOW)
    assert api.client.post("/api/v1/blobs?pin=1", content=BLOB, headers=headers).status_code == 401


def test_a_body_beyond_its_limit_is_413_and_an_undeclared_one_411(api: Api) -> None:
    large = bytes(api.context.max_blob_bytes + 1)
    answer = api.signed("POST", "/api/v1/blobs", large)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")

    def pieces() -> Iterator[bytes]:
        yield large[:1000]
        yield large[1000:]

    headers = NODE.sign_request(WORKER.address, "POST", "/api/v1/blobs", large, now=NOW)
    assert api.client.post("/api/v1/blobs", content=pieces(), headers=headers).status_code == 411


def test_an_index_without_a_chain_takes_no_writes(api: Api) -> None:
    with api.context.database.session() as session:
        session.delete(session.get_one(CursorRow, 1))
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
    assert job["params"]["roles"][0]["slot_price"] == "1" + "0" * 30


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
    (only,) = api.client.get(f"/api/v1/jobs/{JOB}/rounds").json()["items"]
    assert only["number"] == 0
    assert [c["id"] for c in only["claims"]] == [claim_row().id]


def many_rounds(rounds: int, slots: int) -> Iterator[RoundRow | ClaimRow]:
    for r in range(1, rounds + 1):
        yield RoundRow(job=JOB, number=r, attempt=0, state="final", started=1, updated=1)
        for slot in range(slots):
            yield ClaimRow(
                id=claim_id_hex(JOB, r, 0, slot), job=JOB, round=r, attempt=0, slot=slot, worker=WORKER.address,
                state="final", paid="0", slashed="0", block=1, time=1,
            )  # fmt: skip


def test_rounds_come_in_pages_newest_first(api: Api) -> None:
    with api.context.database.session() as session:
        session.add_all(many_rounds(24, 3))
    seen: list[int] = []
    cursor: str | None = None
    while True:
        params = {"limit": 7} | ({"cursor": cursor} if cursor else {})
        page = api.client.get(f"/api/v1/jobs/{JOB}/rounds", params=params).json()
        seen += [r["number"] for r in page["items"]]
        assert all(c["round"] == r["number"] for r in page["items"] for c in r["claims"])
        assert all([c["slot"] for c in r["claims"]] == [0, 1, 2] for r in page["items"] if r["number"])
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == list(range(24, -1, -1))


def plan_of(session: Session, sql: str, params: Any) -> list[str]:
    """The database's plan of a statement: PostgreSQL's with an index wherever one will do, however small the table."""
    connection = session.connection()
    if connection.dialect.name == "sqlite":
        return [row[-1] for row in connection.exec_driver_sql("EXPLAIN QUERY PLAN " + sql, params)]
    for way in ("seqscan", "sort"):
        connection.exec_driver_sql(f"SET LOCAL enable_{way} = off")
    return [row[0] for row in connection.exec_driver_sql("EXPLAIN " + sql, params)]


@pytest.mark.sampled(1)
def test_a_page_of_rounds_costs_what_the_page_holds(api: Api) -> None:
    """1,000 rounds of 16 slots took 7.6 s at once; a page reads its own rows alone, wherever it begins."""
    with api.context.database.session() as session:
        session.add_all(many_rounds(250, 16))
    statements: list[tuple[str, Any]] = []
    listen(api.context.database.engine, "before_cursor_execute", lambda c, k, sql, p, x, m: statements.append((sql, p)))
    first = api.client.get(f"/api/v1/jobs/{JOB}/rounds", params={"limit": 100}).json()
    of_one = len(statements)
    second = api.client.get(f"/api/v1/jobs/{JOB}/rounds", params={"limit": 100, "cursor": first["next"]}).json()
    assert len(first["items"]) == 100
    assert sum(len(r["claims"]) for r in first["items"]) == 1_600
    assert (len(second["items"]), len(statements)) == (100, 2 * of_one), "a later page asks as little as the first"
    with api.context.database.reading() as session:
        for sql, params in {s: p for s, p in statements if s.startswith("SELECT")}.items():
            plan = plan_of(session, sql, params)
            assert not any("SCAN" in line or "Seq Scan" in line for line in plan), (sql, plan)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("path", ["jobs", "games", "games?open_only=true", "nodes", "signed"])
def test_a_page_runs_along_an_index(api: Api, path: str) -> None:
    statements: list[tuple[str, Any]] = []
    listen(api.context.database.engine, "before_cursor_execute", lambda c, k, sql, p, x, m: statements.append((sql, p)))
    assert api.client.get(f"/api/v1/{path}").status_code == 200
    with api.context.database.reading() as session:
        for sql, params in [s for s in statements if s[0].startswith("SELECT")]:
            plan = plan_of(session, sql, params)
            assert not any("TEMP B-TREE" in line or "Sort" in line for line in plan), (sql, plan)


def test_games_can_be_narrowed_to_the_open_ones(api: Api) -> None:
    assert len(api.client.get("/api/v1/games").json()["items"]) == 1
    assert len(api.client.get("/api/v1/games?open_only=true").json()["items"]) == 1


def test_nodes_and_status_say_what_is_indexed(api: Api) -> None:
    (node,) = api.client.get("/api/v1/nodes").json()["items"]
    assert node == {"account": WORKER.address, "key": "0x" + NODE.public.hex(), "block": 5}
    status = api.client.get("/api/v1/status").json()
    assert (status["block"], status["head"], status["jobs"], status["games_open"]) == (20, 21, 1, 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/jobs/0x" + "00" * 32, 404),
        ("/api/v1/claims/0x" + "00" * 32, 404),
        ("/api/v1/jobs/7", 422),
        ("/api/v1/jobs?limit=0", 422),
        ("/api/v1/jobs?cursor=%21", 400),
        ("/api/v1/jobs?cursor=eyJhIjoxfQ", 400),
        ("/api/v1/jobs?cursor=" + base64.urlsafe_b64encode(json.dumps([1 << 70, "x"]).encode()).decode(), 400),
        ("/api/v1/jobs?cursor=" + base64.urlsafe_b64encode(b"[" * 20_000).decode(), 400),
        ("/api/v1/jobs?cursor=" + base64.urlsafe_b64encode(json.dumps([1, "0x\0"]).encode()).decode(), 400),
        (f"/api/v1/jobs/{JOB}/rounds?limit=101", 422),
        (f"/api/v1/jobs/{JOB}/rounds?cursor=x", 400),
        ("/api/v1/signed?after=99999999999999999999", 422),
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
        session.get_one(CursorRow, 1).checked = int(time.time()) - 300
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


def documented(text: str) -> Iterator[tuple[str, str]]:
    """(verb, path) of each endpoint in docs/processes.md's table; one without a verb has that of the one before."""
    table = text.partition("\nThe HTTP API under `/api/v1`:\n")[2].partition("\n\nLists come in pages")[0]
    for cell, what in re.findall(r"^\| (`.*`) \| (.*) \|$", table, re.MULTILINE):
        prefix, verb = "" if "outside of `/api/v1`" in what else "/api/v1", "get"
        for word in re.sub("[`,]", "", cell).split():
            if word.isupper():
                verb = word.lower()
            else:
                yield verb, prefix + unnamed(word.partition("?")[0])


def unnamed(path: str) -> str:
    """A path whose parameters have no names."""
    return re.sub(r"\{\w+\}", "{}", path)


def test_openapi_and_the_documents_name_the_same_paths(api: Api, repository: Path) -> None:
    paths = api.client.get("/openapi.json").json()["paths"]
    served = {(verb, unnamed(path)) for path, verbs in paths.items() for verb in verbs}
    beside = {("get", "/openapi.json"), ("get", "/api/v1/stream")}
    assert served | beside == set(documented((repository / "docs/processes.md").read_text()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("period", "states", "last"),
    [
        (0, ("lead", "lead"), 0),
        (3, ("lead", "training"), 2),
        (3, ("lead", "failed"), 1),
        (2, ("training", "training"), 1),
    ],
)
def test_a_lock_of_a_job_that_carries_lasts_until_its_period_is_over(
    api: Api, period: int, states: tuple[str, str], last: int
) -> None:
    with api.context.database.session() as session:
        job, claim = session.get_one(JobRow, JOB), session.get_one(ClaimRow, claim_row().id)
        roles = [{**job.params["roles"][0], "carry_period": period}]
        job.params = {**job.params, "roles": roles, "windows": {"challenge_seconds": 1_000}}
        claim.state = "accepted"
        session.add(LockRow(key=claim.id, account=WORKER.address, amount="5", block=12, time=NOW - 80))
        for number, state in enumerate(states, 1):
            session.add(RoundRow(job=JOB, number=number, attempt=0, state=state, started=NOW, updated=NOW + number))
    (lock,) = api.client.get(f"/api/v1/accounts/{WORKER.address}").json()["locks"]
    assert lock["what"] == "claim"
    assert lock["until"] == 1_000 + (NOW + last if last else NOW - 80)
