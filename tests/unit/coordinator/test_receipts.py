"""A receipt is taken from its slot's owner alone, if the contract would take it; one a speaker, until the freeze."""

from __future__ import annotations

import json
from typing import Any

import pytest
from eth_account import Account
from eth_account.signers.local import LocalAccount

from coordinator import receipts
from coordinator.models import ClaimRow, CursorRow, JobRow, NodeRow, ReceiptRow, RoundRow
from lockstep.protocol.jobs import Receipt
from lockstep.protocol.market.ids import receipt_hash
from lockstep.protocol.types import Address, JobId
from lockstep.runtime.identity import NodeKey

from .conftest import CHAIN_ID, DELEGATE, JOB, MARKET, NOW, WORKER, Api, claim_row

PATH = "/api/v1/receipts"
STRANGER: LocalAccount = Account.from_key(bytes([9]) * 32)
STRANGERS_NODE = NodeKey(bytes([8]) * 32)


def receipt(
    account: LocalAccount = WORKER, chain_id: int = CHAIN_ID, signed_mask: int | None = None, **changes: Any
) -> bytes:
    """The owner of slot 1 names slots 0 and 1; `changes` are made before it is signed."""
    fields = {"job": JOB, "round": 0, "attempt": 0, "who": 1, "mask": 0b011} | changes
    said = fields["mask"] if signed_mask is None else signed_mask
    job = JobId(bytes.fromhex(fields["job"][2:]))
    digest = receipt_hash(chain_id, Address(MARKET), job, fields["round"], fields["attempt"], fields["who"], said)
    signature = bytes(account.unsafe_sign_hash(digest).signature)
    return json.dumps(fields | {"mask": str(fields["mask"]), "signature": "0x" + signature.hex()}).encode()


def held(api: Api) -> list[Receipt]:
    with api.context.database.reading() as session:
        return receipts.held(session, JOB, 0, 0, range(64))


@pytest.fixture(autouse=True)
def _revealed(api: Api) -> None:
    with api.context.database.session() as session:
        session.get_one(ClaimRow, claim_row().id).state = "revealed"
        session.get_one(RoundRow, (JOB, 0)).state = "training"


def test_a_receipt_is_kept_as_it_was_signed_and_pokes_the_worker(api: Api) -> None:
    body = receipt()
    answer = api.signed("POST", PATH, body)
    assert answer.status_code == 202, answer.text
    assert answer.json() == {"job": JOB, "round": 0, "attempt": 0, "who": 1}
    assert held(api) == [Receipt(1, 0b011, bytes.fromhex(json.loads(body)["signature"][2:]))]
    assert api.notified == [JOB]
    with api.context.database.reading() as session:
        row = session.get_one(ReceiptRow, (JOB, 0, 0, 1))
        assert (row.account, row.time) == (WORKER.address, NOW)
        assert receipts.masks(session, JOB, 0, 0) == {1: 0b011}
        assert receipts.masks(session, JOB, 0, 1) == {}, "of that attempt alone"
        assert receipts.held(session, JOB, 0, 0, [0, 2]) == []
        assert receipts.count(session, JOB) == 1


def test_the_same_again_is_fine_and_another_is_refused(api: Api) -> None:
    for _ in range(3):
        assert api.signed("POST", PATH, receipt()).status_code == 202
    first = held(api)
    assert api.signed("POST", PATH, receipt(DELEGATE)).status_code == 202, "the same word, in the delegate's hand"
    other = api.signed("POST", PATH, receipt(mask=0b111))
    assert (other.status_code, other.json()["code"]) == (409, "receipt_given")
    assert "mask 3" in other.json()["detail"]
    assert held(api) == first


def test_a_delegate_signs_for_the_owner(api: Api) -> None:
    assert api.signed("POST", PATH, receipt(DELEGATE)).status_code == 202
    assert len(held(api)) == 1


@pytest.mark.parametrize("state", ["joined", "committed"])
def test_a_reveal_that_the_index_has_not_seen_yet_is_no_reason_to_refuse(api: Api, state: str) -> None:
    with api.context.database.session() as session:
        session.get_one(ClaimRow, claim_row().id).state = state
    assert api.signed("POST", PATH, receipt()).status_code == 202


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (receipt(STRANGER), 422),
        (receipt(chain_id=1), 422),
        (receipt(signed_mask=0b111), 422),
        (receipt(who=0), 422),
        (receipt(who=65), 422),
        (receipt(mask=0b1000), 422),
        (receipt(mask=(1 << 256) - 1), 422),
        (receipt(round=1), 404),
        (receipt(attempt=1), 404),
        (receipt(job="0x" + "00" * 32), 404),
    ],
    ids=[
        "signed by another", "for another chain", "another mask than was signed", "another slot", "a witness",
        "a mask beyond the slots", "a mask beyond everything", "an unknown round", "another attempt", "an unknown job",
    ],
)  # fmt: skip
def test_what_the_contract_would_refuse_is_refused(api: Api, body: bytes, status: int) -> None:
    answer = api.signed("POST", PATH, body)
    assert answer.status_code == status, answer.text
    assert answer.json()["hint"]
    assert held(api) == []
    assert api.notified == []


def test_anothers_receipt_is_refused_though_it_is_right(api: Api) -> None:
    with api.context.database.session() as session:
        session.add(NodeRow(account=STRANGER.address, key="0x" + STRANGERS_NODE.public.hex(), block=6))
    answer = api.signed("POST", PATH, receipt(), node=STRANGERS_NODE, account=STRANGER.address)
    assert answer.status_code == 422, answer.text
    assert STRANGER.address in answer.json()["detail"]
    assert held(api) == []


def test_a_high_s_is_no_signature_as_the_contract_sees_it(api: Api) -> None:
    fields = json.loads(receipt())
    raw = bytes.fromhex(fields["signature"][2:])
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    s = order - int.from_bytes(raw[32:64], "big")
    fields["signature"] = "0x" + (raw[:32] + s.to_bytes(32, "big") + bytes([55 - raw[64]])).hex()
    assert api.signed("POST", PATH, json.dumps(fields).encode()).status_code == 422
    assert api.signed("POST", PATH, receipt()).status_code == 202


@pytest.mark.sampled(1)
def test_a_coordinator_that_does_not_aggregate_the_job_takes_nothing(api: Api) -> None:
    with api.context.database.session() as session:
        session.get_one(JobRow, JOB).aggregator = "0x" + "55" * 20
    answer = api.signed("POST", PATH, receipt())
    assert answer.status_code == 422
    assert "0x" + "55" * 20 in answer.json()["detail"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("state", ["accepted", "excluded", "convicted", "absent", "void", "final"])
def test_no_receipt_is_taken_for_a_claim_that_cannot_speak(api: Api, state: str) -> None:
    with api.context.database.session() as session:
        session.get_one(ClaimRow, claim_row().id).state = state
    assert api.signed("POST", PATH, receipt()).status_code == 422


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"{}", receipt().replace(b'"3"', b"3"), receipt().replace(b'"3"', b'"03"'),
        receipt().replace(b'"3"', b'"-3"'), receipt().replace(b'"0x', b'"1x'), receipt().replace(b"}", b', "more": 1}'),
    ],
)  # fmt: skip
def test_a_malformed_receipt_is_400(api: Api, body: bytes) -> None:
    answer = api.signed("POST", PATH, body)
    assert answer.status_code == 400, answer.text
    assert "ReceiptIn" in answer.json()["hint"]


def test_an_unsigned_request_is_401(api: Api) -> None:
    assert api.client.post(PATH, content=receipt()).status_code == 401


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("round_state", "attempt", "job_state", "kept"),
    [
        ("training", 0, "active", True),
        ("attested", 0, "active", True),
        ("attested", 0, "cancelled", True),
        ("merging", 0, "active", False),
        ("failed", 0, "active", False),
        ("final", 0, "active", False),
        ("training", 1, "active", False),
        ("training", 0, "void", False),
        ("training", 0, "done", False),
    ],
)
def test_receipts_are_forgotten_with_their_round(
    api: Api, round_state: str, attempt: int, job_state: str, kept: bool
) -> None:
    assert api.signed("POST", PATH, receipt()).status_code == 202
    with api.context.database.session() as session:
        row = session.get_one(RoundRow, (JOB, 0))
        row.state, row.attempt = round_state, attempt
        session.get_one(JobRow, JOB).state = job_state
        session.flush()
        receipts.forget(session)
    assert len(held(api)) == kept


def test_receipts_need_an_index_that_follows_the_chain(api: Api) -> None:
    with api.context.database.session() as session:
        session.delete(session.get_one(CursorRow, 1))
    assert api.signed("POST", PATH, receipt()).status_code == 503
