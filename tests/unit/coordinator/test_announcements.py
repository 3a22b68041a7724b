"""An announced claim is signed by its worker, for this chain and market, about its own slot."""

from __future__ import annotations

import json
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from lockstep.protocol.claims import CLAIM_TYPE, domain
from lockstep.storage import cid_of

from .conftest import CHAIN_ID, JOB, MARKET, WORKER, Api, claim_row

CLAIM: dict[str, Any] = {
    "job": JOB, "round": 0, "attempt": 0, "slot": 1, "seed": "0x" + "01" * 32, "base": "0x" + "02" * 32,
    "traceRoot": "0x" + "03" * 32, "transitions": 21, "out": "0x" + "04" * 32, "out2": "0x" + "05" * 32,
}  # fmt: skip
PAYLOAD = cid_of(b"payload")


def announcement(account: Any = WORKER, chain_id: int = CHAIN_ID, **changes: Any) -> bytes:
    """A signed announcement; `changes` are made to the claim before it is signed."""
    claim = CLAIM | changes
    message = {k: bytes.fromhex(v[2:]) if isinstance(v, str) else v for k, v in claim.items()}
    typed = encode_typed_data(domain(chain_id, MARKET), CLAIM_TYPE, message)
    signature = account.sign_message(typed).signature
    body = {
        "claim": claim, "worker": WORKER.address, "signature": "0x" + signature.hex(), "trace_cid": cid_of(b"trace"),
        "payload_cid": PAYLOAD,
    }  # fmt: skip
    return json.dumps(body).encode()


def test_an_announced_claim_pokes_the_worker_and_shows_its_cids(api: Api) -> None:
    answer = api.signed("POST", "/api/v1/claims", announcement())
    assert answer.status_code == 202, answer.text
    assert answer.json() == {"id": claim_row().id}
    assert api.poked == [JOB]
    assert api.client.get(answer.headers["location"]).json()["payload_cid"] == PAYLOAD


@pytest.mark.parametrize(
    "body",
    [
        announcement(account=Account.from_key(bytes([9]) * 32)),
        announcement(chain_id=1),
        announcement(slot=0),
        announcement(attempt=1),
    ],
    ids=["signed by another", "for another chain", "another slot", "another attempt"],
)
def test_a_claim_that_is_not_the_workers_is_422(api: Api, body: bytes) -> None:
    answer = api.signed("POST", "/api/v1/claims", body)
    assert answer.status_code == 422, answer.text
    assert api.poked == []


def test_an_unknown_job_is_404(api: Api) -> None:
    answer = api.signed("POST", "/api/v1/claims", announcement(job="0x" + "00" * 32))
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"claim": {}}', announcement().replace(b'"round": 0', b'"round": -1')]
)
def test_a_malformed_announcement_is_400(api: Api, body: bytes) -> None:
    answer = api.signed("POST", "/api/v1/claims", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["hint"]
