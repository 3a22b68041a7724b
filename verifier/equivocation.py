"""Finds equivocations, two different claims that one worker signed for one slot, and convicts their worker without a
game.

    GET /api/v1/signed -> the signature is the slot owner's, the work is the chain's own -> kept -> a pair -> equivocate

Signed claims come from coordinators, and the home keeps them: a pair is found even if two coordinators received
different claims, or if one lost its index. A conviction costs gas and earns no prize, and it waits while a game is open
on the claim.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from lockstep.base.decoding import U64, anything, from_json, refusing, several, table, whole
from lockstep.base.log import Logger
from lockstep.chain.contracts import Call, Contracts
from lockstep.market.ledger import UNSEALED, ClaimRecord, Ledger, RoundLedger
from lockstep.market.signed import SignedClaim
from lockstep.protocol.errors import LockstepError, Mismatch, Unreachable
from lockstep.protocol.types import ClaimId
from lockstep.runtime.keyed_executor import KeyedExecutor
from verifier import decide
from verifier.journal import Journal

PATH = "/api/v1/signed"
POLL_SECONDS = 2.0
"""Machine seconds between two polls of the coordinators."""
TIMEOUT_SECONDS = 5.0
PAGE = 200
MAX_PAGE_BYTES = 1 << 20
PAGE_OF = table({"items": several(anything, 4096), "last": whole(0, U64)})

Pages = dict[str, tuple[list[Any], int]]
"""By coordinator: its new signed claims, and the number from which the next page starts."""

log = Logger(__name__)


class Equivocations:
    """Collects signed claims from the coordinators at `urls` and finds workers that signed two for one slot."""

    def __init__(self, urls: Sequence[str], contracts: Contracts, journal: Journal) -> None:
        self._contracts = contracts
        self._journal = journal
        self._after = {url.rstrip("/"): 0 for url in urls}
        self._executor: KeyedExecutor[str, Pages] = KeyedExecutor("signed")
        self._read_at = 0.0
        self.looks = 0
        """Number of polls of all coordinators."""
        self._pending: list[Mapping[str, Any]] = []
        """Signed claims about rounds or slots that the ledger does not know yet."""

    def step(self, ledger: Ledger) -> None:
        """Keeps the signed claims that a thread has read since the last call, and starts the next poll."""
        if self._executor.over(PATH):
            self.looks += 1
            for url, (items, last) in (self._executor.take(PATH) or {}).items():
                self._after[url] = last
                self._pending += items
        self._pending = [fields for fields in self._pending if not self._keep(ledger, fields)][-PAGE:]
        if self._after and PATH not in self._executor and time.monotonic() - self._read_at >= POLL_SECONDS:
            self._read_at = time.monotonic()
            self._executor.begin(PATH, partial(_read_all, dict(self._after)))

    def due(self, ledger: Ledger) -> Iterator[tuple[ClaimRecord, Call]]:
        """Yields every standing claim whose worker signed another one for the slot, with the transaction that convicts
        it."""
        for claim, work in self._journal.contradicted():
            found = ledger.find(claim)
            if found is None:
                continue
            job, round_, record = found
            over = round_.phase in decide.ENDED or job.rounds.get(round_.number) is not round_
            if over or record.convicted:
                continue
            # INVARIANT: games come first: the contract refuses two signatures meanwhile, and no prize is lost to them.
            if self._contracts.market.claim(claim).open_games:
                continue
            a, b = (SignedClaim.parse(json.loads(text)) for text in self._journal.signed(claim, work))
            yield record, self._contracts.game.call("equivocate", a.work(), a.signed(), b.signed())

    def close(self) -> None:
        """Waits for the request in flight, at most its timeout."""
        self._executor.close()

    def _keep(self, ledger: Ledger, fields: Mapping[str, Any]) -> bool:
        """Keeps a signed claim unless it proves nothing; returns False while its round is unknown or has no seed."""
        try:
            signed = SignedClaim.parse(fields)
            round_ = _round_of(ledger, signed)
            if round_ is None or round_.seed == UNSEALED:
                return False
            addresses = self._contracts.addresses
            signer = signed.signer(addresses.chain_id, addresses.market)
            self._require_real(round_, signed, signer)
        except Mismatch as error:
            log.info("a signed claim is ignored: its signer, seed or base does not match the slot", why=error.message)
            return True
        digest = signed.digest(addresses.chain_id, addresses.market)
        self._journal.keep_signed(signed.id, signed.seed + signed.base, digest, json.dumps(fields, sort_keys=True))
        return True

    @staticmethod
    def _require_real(round_: RoundLedger, signed: SignedClaim, signer: str) -> None:
        holder = round_.holders.get(signed.claim.slot)
        if holder is None or holder[0] != signer:
            raise Mismatch("it is not signed by the slot's owner")
        # INVARIANT: whoever fills the journal signs what convicts it: only the chain's own work is kept, twice a slot.
        if (signed.seed, signed.base) != (round_.seed, round_.base):
            raise Mismatch("its seed or base is not the round's")


def _round_of(ledger: Ledger, signed: SignedClaim) -> RoundLedger | None:
    job = ledger.jobs.get(signed.claim.job)
    rounds = () if job is None else job.all_rounds()
    return next((r for r in rounds if (r.number, r.attempt) == (signed.claim.round, signed.claim.attempt)), None)


def _read_all(after: Mapping[str, int]) -> Pages:
    """Returns one page of each coordinator that answers."""
    found: Pages = {}
    for url, number in after.items():
        try:
            found[url] = _read(url, number)
        except LockstepError as error:
            log.info("a coordinator's signed claims cannot be read", url=url, why=error.message)
    return found


def _read(url: str, after: int) -> tuple[list[Any], int]:
    import httpx2

    request = {"after": after, "limit": PAGE}
    content = bytearray()
    try:
        with httpx2.stream("GET", f"{url}{PATH}", params=request, timeout=TIMEOUT_SECONDS) as answer:
            for chunk in answer.iter_bytes():
                content += chunk
                # INVARIANT: a coordinator fills nobody's memory.
                if answer.status_code != 200 or len(content) > MAX_PAGE_BYTES:
                    raise Mismatch(f"{answer.status_code}, {len(content)} bytes or more")
    except httpx2.HTTPError as error:
        raise Unreachable(f"{urlsplit(url).netloc} does not answer: {error}") from error
    with refusing(Mismatch, "a page of signed claims"):
        page = PAGE_OF(from_json(bytes(content), MAX_PAGE_BYTES), "page")
    # A number below ours: the index was made anew and counts from the start.
    return page["items"][:PAGE], page["last"] if page["last"] >= after else 0


def urls_of(setting: str) -> list[str]:
    """Splits a setting of comma-separated coordinator URLs."""
    return [url.strip() for url in setting.split(",") if url.strip()]


def key_of(claim: ClaimId) -> str:
    """Returns the outbox key of the transaction that convicts a claim's worker."""
    return f"equivocate/{claim.hex()}"
