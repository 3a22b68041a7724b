"""Sends a coordinator signed claims, and receipts for it to submit; a thread of its own keeps this off the worker's
loop."""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lockstep.base.log import Logger
from lockstep.market.signed import MACHINE_CHARACTERS
from lockstep.protocol.jobs import Body, Claim, Receipt
from lockstep.protocol.market.ids import typed_data
from lockstep.protocol.types import Address, ClaimId, JobId, Seconds, StateRoot, TraceRoot
from worker.progress import Material

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

    from lockstep.runtime.identity import NodeKey

log = Logger(__name__)

TIMEOUT_SECONDS = 5.0
CLAIMS, RECEIPTS = "/api/v1/claims", "/api/v1/receipts"


class ReceiptAnswer(Enum):
    """A coordinator's answer to a receipt."""

    TAKEN = "taken"
    LATER = "later"
    """The coordinator cannot decide yet: its index may be behind the chain."""
    REFUSED = "refused"
    """The coordinator refuses the receipt, or does not answer."""


class Announcer:
    """Sends claims and receipts to one coordinator; without a URL it sends nothing."""

    def __init__(
        self, url: str, account: LocalAccount, node: NodeKey, chain_id: int, market: Address, machine: str = ""
    ) -> None:
        self._url = url.rstrip("/")
        self._account = account
        self._node = node
        self._chain_id = chain_id
        self._market = market
        self._machine = "".join(c for c in machine if c.isascii() and c.isprintable())[:MACHINE_CHARACTERS]
        self._thread = ThreadPoolExecutor(1, "announce")
        self._told: set[tuple[ClaimId, TraceRoot]] = set()

    def announce(self, material: Material, base: StateRoot, transitions: int, now: Seconds) -> None:
        """Signs and sends a claim once, without blocking. A coordinator that does not answer is not an error."""
        if not self._url or (material.claim, material.trace_root) in self._told:
            return
        self._told.add((material.claim, material.trace_root))
        self._post(CLAIMS, self.body(material, base, transitions), now)

    def give(self, job: JobId, r: int, attempt: int, receipt: Receipt, now: Seconds) -> Future[ReceiptAnswer]:
        """Hands a receipt to the coordinator, which submits it with others'; does not block, and may be repeated."""
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
        """Returns the request body: the claim's fields, the staking key's EIP-712 signature over them, the CIDs,
        and the machine's name."""
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
            "machine": self._machine,
        }

    def close(self) -> None:
        """Waits for the request in flight, at most its timeout, and cancels the queued ones."""
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
        log.info("the coordinator refused a request", path=path, status=answer.status_code, body=answer.text[:300])
        return ReceiptAnswer.LATER if answer.status_code == httpx2.codes.SERVICE_UNAVAILABLE else ReceiptAnswer.REFUSED
