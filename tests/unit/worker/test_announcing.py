"""Announcements: signed by both keys, sent once, never in the way."""

import json
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from lockstep.market.signed import MACHINE_CHARACTERS
from lockstep.protocol import merkle
from lockstep.protocol.jobs import Body, Claim, Receipt
from lockstep.protocol.market.ids import typed_data
from lockstep.protocol.types import Address, Cid, ClaimId, Digest, JobId, Seconds, Seed, StateRoot, TraceRoot
from lockstep.runtime.identity import NodeKey, verify_request
from lockstep.runtime.requests import RequestSignature
from worker.announcing import CLAIMS, RECEIPTS, Announcer, ReceiptAnswer
from worker.progress import Material

STAKING = Account.from_key(b"\x11" * 32)
NODE = NodeKey(b"\x22" * 32)
MARKET = Address("0x" + "33" * 20)
OUT, OUT2 = Digest(b"o" * 32), Digest(b"p" * 32)
MATERIAL = Material(
    ClaimId(b"c" * 32), JobId(b"j" * 32), 3, 1, 2, Seed(b"s" * 32),
    (StateRoot(b"1" * 32), StateRoot(merkle.node(OUT, OUT2))), OUT, OUT2, Cid("bafytrace"), Cid("bafypayload"),
)  # fmt: skip
BASE = StateRoot(b"b" * 32)
RECEIPT = Receipt(2, 1 << 63 | 5, b"w" * 65)


class Coordinator(HTTPServer):
    """Takes what is posted, and answers as it is told."""

    def __init__(self, status: int = 202) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.status = status
        self.got: list[tuple[str, dict[str, str], bytes]] = []


class Handler(BaseHTTPRequestHandler):
    server: Coordinator

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.append((self.path, dict(self.headers), body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    server = Coordinator()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def announcer(url: str) -> Announcer:
    return Announcer(url, STAKING, NODE, 31337, MARKET, "Nine\u2122 \u001b[1m@ 2 GHz" + 99 * "!")


def test_a_claim_is_announced_once_signed_by_node_and_staking_key(coordinator: Coordinator) -> None:
    teller = announcer(f"http://127.0.0.1:{coordinator.server_port}")
    for _ in range(3):
        teller.announce(MATERIAL, BASE, 2, Seconds(1000))
    teller.close()
    assert len(coordinator.got) == 1, "once"
    path, headers, sent = coordinator.got[0]
    assert path == CLAIMS
    signature = RequestSignature.parse({k.lower(): v for k, v in headers.items()})
    verify_request(signature, NODE.public, "POST", path)
    signature.check_body(sha256(sent).digest())
    assert signature.account == STAKING.address.lower()
    said = json.loads(sent)
    claim = Claim(
        job=MATERIAL.job, round=3, attempt=1, slot=2, transitions=2,
    )  # fmt: skip
    body = Body(TraceRoot(MATERIAL.trace_root), StateRoot(OUT), StateRoot(OUT2))
    message = typed_data(31337, MARKET, claim, body, MATERIAL.seed, BASE)
    signer = Account.recover_message(encode_typed_data(full_message=message), signature=said["signature"])
    assert signer == said["worker"] == STAKING.address
    assert said["claim"]["traceRoot"] == "0x" + MATERIAL.trace_root.hex()
    assert said["machine"] == ("Nine [1m@ 2 GHz" + 99 * "!")[:MACHINE_CHARACTERS], "what the coordinator takes"
    assert (said["trace_cid"], said["payload_cid"]) == ("bafytrace", "bafypayload")


def test_a_coordinator_that_refuses_or_is_gone_is_no_failure(coordinator: Coordinator) -> None:
    coordinator.status = 503
    refused = announcer(f"http://127.0.0.1:{coordinator.server_port}")
    refused.announce(MATERIAL, BASE, 2, Seconds(1000))
    refused.close()
    gone = announcer("http://127.0.0.1:9")
    gone.announce(MATERIAL, BASE, 2, Seconds(1000))
    gone.close()
    assert len(coordinator.got) == 1


def test_without_a_url_nobody_is_told() -> None:
    teller = announcer("")
    teller.announce(MATERIAL, BASE, 2, Seconds(1000))
    assert teller.give(MATERIAL.job, 3, 1, RECEIPT, Seconds(1000)).result() is ReceiptAnswer.REFUSED
    teller.close()


def test_a_receipt_is_handed_over_as_attest_takes_it_signed_by_the_node(coordinator: Coordinator) -> None:
    giver = announcer(f"http://127.0.0.1:{coordinator.server_port}/behind/a/path")
    assert giver.give(MATERIAL.job, 3, 1, RECEIPT, Seconds(1000)).result() is ReceiptAnswer.TAKEN
    giver.close()
    ((path, headers, sent),) = coordinator.got
    assert path == "/behind/a/path" + RECEIPTS
    signature = RequestSignature.parse({k.lower(): v for k, v in headers.items()})
    verify_request(signature, NODE.public, "POST", path)
    signature.check_body(sha256(sent).digest())
    assert signature.account == STAKING.address.lower()
    assert json.loads(sent) == {
        "job": "0x" + MATERIAL.job.hex(), "round": 3, "attempt": 1, "who": 2, "mask": str(1 << 63 | 5),
        "signature": "0x" + "77" * 65,
    }  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (202, ReceiptAnswer.TAKEN),
        (503, ReceiptAnswer.LATER),
        (401, ReceiptAnswer.REFUSED),
        (409, ReceiptAnswer.REFUSED),
        (500, ReceiptAnswer.REFUSED),
    ],
)
def test_what_became_of_a_receipt_is_told(coordinator: Coordinator, status: int, answer: ReceiptAnswer) -> None:
    coordinator.status = status
    giver = announcer(f"http://127.0.0.1:{coordinator.server_port}")
    assert giver.give(MATERIAL.job, 3, 1, RECEIPT, Seconds(1000)).result() is answer
    giver.close()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://not a host"])
def test_a_coordinator_that_is_gone_takes_no_receipt(url: str) -> None:
    giver = announcer(url)
    assert giver.give(MATERIAL.job, 3, 1, RECEIPT, Seconds(1000)).result() is ReceiptAnswer.REFUSED
    giver.close()
