"""An announced claim is signed by its worker, for this chain and market, about its own slot."""

from __future__ import annotations

import json
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from coordinator import queries
from coordinator.announcements import KEPT_SIGNED
from coordinator.models import ClaimRow
from lockstep.market.signed import SignedClaim
from lockstep.protocol.errors import Mismatch
from lockstep.protocol.market.ids import CLAIM_TYPE, domain
from lockstep.protocol.types import Address
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
    assert api.notified == [JOB]
    assert api.client.get(answer.headers["location"]).json()["payload_cid"] == PAYLOAD


@pytest.mark.sampled(4)
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
    assert api.notified == []


def test_a_claim_s_page_names_the_machine_that_its_worker_announced(api: Api) -> None:
    page = f"/claims/{claim_row().id}"
    assert 'id="machine"' not in api.client.get(page).text
    body = json.loads(announcement()) | {"machine": "<b>Nine</b>, 2 threads"}
    assert api.signed("POST", "/api/v1/claims", json.dumps(body).encode()).status_code == 202
    assert api.client.get("/api/v1" + page).json()["machine"] == "<b>Nine</b>, 2 threads"
    assert "Computed on &lt;b&gt;Nine&lt;/b&gt;, 2 threads, by its worker" in api.client.get(page).text
    for wrong in (80 * "9" + "9", "Nine\n", "N\u00efne"):
        answer = api.signed("POST", "/api/v1/claims", json.dumps(body | {"machine": wrong}).encode())
        assert answer.status_code == 400, wrong


def test_an_unknown_job_is_404(api: Api) -> None:
    answer = api.signed("POST", "/api/v1/claims", announcement(job="0x" + "00" * 32))
    assert answer.status_code == 404


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"claim": {}}', announcement().replace(b'"round": 0', b'"round": -1')]
)
def test_a_malformed_announcement_is_400(api: Api, body: bytes) -> None:
    answer = api.signed("POST", "/api/v1/claims", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["hint"]


def root(n: int) -> str:
    return f"0x{n:064x}"


def signed(api: Api, after: int = 0, limit: int = 200) -> tuple[list[SignedClaim], int]:
    page = api.client.get("/api/v1/signed", params={"after": after, "limit": limit}).json()
    return [SignedClaim.parse(item) for item in page["items"]], page["last"]


def test_every_signed_claim_is_kept_and_served_not_the_last_alone(api: Api) -> None:
    for body in (announcement(), announcement(traceRoot=root(9)), announcement(), announcement(traceRoot=root(9))):
        assert api.signed("POST", "/api/v1/claims", body).status_code == 202, "the same one again is no news"
    (a, b), last = signed(api)
    assert {a.body.trace_root.hex(), b.body.trace_root.hex()} == {"03" * 32, root(9)[2:]}
    assert a.contradicts(b)
    assert b.contradicts(a)
    assert not a.contradicts(a)
    assert {x.signer(CHAIN_ID, MARKET) for x in (a, b)} == {Address(WORKER.address)}
    assert a.digest(CHAIN_ID, MARKET) != b.digest(CHAIN_ID, MARKET)
    assert "0x" + a.id.hex() == claim_row().id
    assert signed(api, after=last) == ([], last)
    first, going_on = signed(api, limit=1)
    rest, _ = signed(api, after=going_on)
    assert first + rest == [a, b], "page by page, in the order of arrival"


def test_another_seed_is_no_contradiction(api: Api) -> None:
    for body in (announcement(), announcement(seed=root(7), traceRoot=root(9))):
        assert api.signed("POST", "/api/v1/claims", body).status_code == 202
    (a, b), _ = signed(api)
    assert not a.contradicts(b)


def test_more_claims_for_one_slot_than_anybody_needs_are_refused(api: Api) -> None:
    for n in range(KEPT_SIGNED):
        assert api.signed("POST", "/api/v1/claims", announcement(traceRoot=root(n))).status_code == 202
    answer = api.signed("POST", "/api/v1/claims", announcement(traceRoot=root(99)))
    assert (answer.status_code, answer.json()["code"]) == (409, "claims_full")
    assert len(signed(api)[0]) == KEPT_SIGNED


def test_a_page_looks_through_so_many_signed_claims_and_the_next_goes_on(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(3):
        assert api.signed("POST", "/api/v1/claims", announcement(traceRoot=root(n))).status_code == 202
    every, last = signed(api)
    monkeypatch.setattr(queries, "SEEN_SIGNED", 2)
    first, going_on = signed(api)
    assert (first, going_on) == (every[:2], 2)
    assert signed(api, after=going_on) == (every[2:], last)
    assert signed(api, after=last + 9) == ([], last), "an index that was made anew"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("state", "served"), [("revealed", 1), ("excluded", 1), ("final", 0), ("convicted", 0)])
def test_what_nobody_can_judge_any_more_is_not_served(api: Api, state: str, served: int) -> None:
    assert api.signed("POST", "/api/v1/claims", announcement()).status_code == 202
    with api.context.database.session() as session:
        session.get_one(ClaimRow, claim_row().id).state = state
    assert len(signed(api)[0]) == served


@pytest.mark.parametrize(
    "changed", [{"claim": {}}, {"signature": 7}, {"signature": "0xzz"}, {"signature": "0x" + "11" * 65}]
)
def test_what_is_no_signed_claim_is_a_mismatch(changed: dict[str, Any]) -> None:
    fields = json.loads(announcement()) | changed
    with pytest.raises(Mismatch):
        SignedClaim.parse(fields).signer(CHAIN_ID, MARKET)
