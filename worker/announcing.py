"""Announcing claims to a coordinator: signed, in a thread of its own, never in the way of the claim itself."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from lockstep.protocol.claims import typed_data
from lockstep.protocol.jobs import Body, Claim
from lockstep.protocol.types import Address, ClaimId, Seconds, StateRoot, TraceRoot
from worker.progress import Material

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

    from lockstep.identity import NodeKey

log = structlog.get_logger(__name__)

TIMEOUT_SECONDS = 5.0
PATH = "/api/v1/claims"


class Announcer:
    """Tells one coordinator about claims; without a URL it tells nobody."""

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
        body = json.dumps(self.body(material, base, transitions)).encode()
        target = urlsplit(self._url).path.rstrip("/") + PATH
        headers = self._node.sign_request("POST", target, body, now=now)
        self._thread.submit(self._send, body, headers)

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

    def _send(self, body: bytes, headers: dict[str, str]) -> None:
        import httpx2

        try:
            answer = httpx2.post(
                self._url + PATH,
                content=body,
                headers={**headers, "content-type": "application/json"},
                timeout=TIMEOUT_SECONDS,
            )
        except httpx2.HTTPError as error:
            log.info("coordinator not told", error=str(error))
            return
        if answer.status_code >= 400:
            log.info("coordinator refused the claim", status=answer.status_code, body=answer.text[:300])
