"""Telling a coordinator: claims, and receipts for it to send. Signed, in a thread of its own, never in the way."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from lockstep.protocol.jobs import Body, Claim, Receipt
from lockstep.protocol.market.ids import typed_data
from lockstep.protocol.types import Address, ClaimId, JobId, Seconds, StateRoot, TraceRoot
from worker.progress import Material

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

    from lockstep.runtime.identity import NodeKey

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 5.0
CLAIMS, RECEIPTS = "/api/v1/claims", "/api/v1/receipts"


class ReceiptAnswer(Enum):
    """A coordinator's answer to a receipt."""

    TAKEN = "taken"
    LATER = "later"
    """The coordinator cannot say yet: its index may be behind."""
    REFUSED = "refused"
    """The coordinator will not have it, or nobody answered."""


class Announcer:
    """Tells one coordinator about claims and hands it receipts; without a URL it tells nobody."""

    def __init__(self, url: str, account: LocalAccount, node: NodeKey, chain_id: int, market: Address) -> None:
        self._url = url.rstrip("/")
        self._account = account
        self._node = node
        self._chain_id = chain_id
        self._market = market
        self._thread = ThreadPoolExecutor(1, "announce")
        self._told: set[tuple[ClaimId, TraceRoot]] = set()

    def announce(self, material: Material, base: StateRoot, transitions: int, now: Seconds) -> None:
        """Sign and send a claim once; returns at once. A coordinator that does not answer is no failure."""
        if not self._url or (material.claim, material.trace_root) in self._told:
            return
        self._told.add((material.claim, material.trace_root))
        self._post(CLAIMS, self.body(material, base, transitions), now)

    def give(self, job: JobId, r: int, attempt: int, receipt: Receipt, now: Seconds) -> Future[ReceiptAnswer]:
        """Hand a receipt over, to be sent with others'; returns at once. The same again is no harm."""
        if not self._url:
            nobody: Future[ReceiptAnswer] = Future()
            nobody.set_result(ReceiptAnswer.REFUSED)
            return nobody
        fields = {
            "job": "0x" + job.hex(), "round": r, "attempt": attempt, "who": receipt.who, "mask": str(receipt.mask),
            "signature": "0x" + receipt.signature.hex(),
        }  # fmt: skip
        return self._post(RECEIPTS, fields, now)

    def body(self, material: Material, base: StateRoot, transitions: int) -> dict[str, object]:
        """The request: the claim's fields, the staking key's EIP-712 signature over them, and the CIDs."""
        claim = Claim(
            job=material.job, worker=Address(self._account.address), round=material.round, attempt=material.attempt,
            slot=material.slot, transitions=transitions,
        )  # fmt: skip
        said = Body(material.trace_root, StateRoot(material.out), StateRoot(material.out2))
        message = typed_data(self._chain_id, self._market, claim, said, material.seed, base)
        signature = self._account.sign_typed_data(full_message=message).signature
        fields = {k: "0x" + v.hex() if isinstance(v, bytes) else v for k, v in message["message"].items()}
        return {
            "claim": fields,
            "worker": self._account.address,
            "signature": "0x" + bytes(signature).hex(),
            "trace_cid": material.trace_cid,
            "payload_cid": material.payload_cid,
        }

    def close(self) -> None:
        """Let what is under way end, within its timeout."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _post(self, path: str, fields: dict[str, object], now: Seconds) -> Future[ReceiptAnswer]:
        body = json.dumps(fields).encode()
        target = urlsplit(self._url).path.rstrip("/") + path
        headers = self._node.sign_request(self._account.address, "POST", target, body, now=now)
        return self._thread.submit(self._send, path, body, headers)

    def _send(self, path: str, body: bytes, headers: dict[str, str]) -> ReceiptAnswer:
        import httpx2

        try:
            answer = httpx2.post(
                self._url + path,
                content=body,
                headers={**headers, "content-type": "application/json"},
                timeout=TIMEOUT_SECONDS,
            )
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            log.info("the coordinator cannot be reached", path=path, error=str(error))
            return ReceiptAnswer.REFUSED
        if answer.is_success:
            return ReceiptAnswer.TAKEN
        log.info("coordinator refused", path=path, status=answer.status_code, body=answer.text[:300])
        return ReceiptAnswer.LATER if answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE else ReceiptAnswer.REFUSED
