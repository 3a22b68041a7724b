"""Demands unavailable data on chain, answers demands for dataset rows, and settles own demands that nobody answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lockstep.base.log import Logger
from lockstep.chain.contracts import Call
from lockstep.market.demands import DEMAND_EVENTS, DemandIssuer, DemandResponder
from lockstep.market.ledger import ClaimRecord
from lockstep.protocol.errors import FundsError, RowMissing, TryLater
from lockstep.protocol.jobs import Phase
from lockstep.protocol.market.types import Status
from lockstep.protocol.types import ClaimId, JobId, Wei
from lockstep.runtime.party import Party
from lockstep.runtime.sender import Sender
from verifier.loading import LoadedJobs
from verifier.reading import MarketView
from verifier.staking import Wallet
from verifier.telling import EventPrinter

NOT_THERE = ("blob_missing", "blob_corrupt", "payload_invalid", "mismatch")
"""Faults of a stored payload that its worker can repair by posting it; a store that does not answer is no such
fault."""

ANSWERED = {"commit": "precommitted", "answer": "answered", "settle": "settled"}
"""The event printed after an act about a demand, by the first part of the act's outbox key; other acts print none."""

log = Logger(__name__)


class Demander:
    """Makes one account's demands for data, and answers the demands of others."""

    def __init__(
        self, party: Party, jobs: LoadedJobs, sender: Sender[None], wallet: Wallet, printer: EventPrinter
    ) -> None:
        """`jobs` are those whose rows can be posted."""
        self._contracts = party.contracts
        self._jobs = jobs
        self._sender = sender
        self._wallet = wallet
        self._printer = printer
        self._lacking: dict[ClaimId, tuple[ClaimRecord, Sequence[tuple[int, int]]]] = {}
        """Claims whose payload is to be demanded, with its (tensor, leaf) that are known to be missing or wrong."""
        self._under_way: dict[str, tuple[str, dict[str, Any]]] = {}
        """By outbox key, the event to print once that transaction is mined, and its fields."""
        self._asks = DemandIssuer(party.contracts, party.address)
        self._answers = DemandResponder(party.contracts, party.store, party.address)

    def demand_payload(self, record: ClaimRecord, fault: str | None, lacking: Sequence[tuple[int, int]]) -> None:
        """Demands a payload that is not at the CID its worker published, while that can still exclude it from the
        merge."""
        if fault in NOT_THERE and not record.is_merge:
            self._lacking[record.id] = record, lacking
            self._demand_lacking()

    def demand_carry(self, record: ClaimRecord) -> bool:
        """Demands the carry that a claim starts from, while that can still exclude the claim from the merge.

        Returns True once the demand is sent, while it is open, and if nobody answered it, in which case the claim is
        excluded. Returns False if it was answered or cannot be made: then the carry must be computed again.
        """
        market = self._contracts.market
        key, _ = found = self._asks.carry(record.job, record.round, record.slot, record.id)
        if not self._sender.known(key):
            if market.phase(record.job, record.round) != Phase.ATTESTING:
                return False
            told = {"claim": record.id.hex(), "round": record.round, "slot": record.slot, "carry": True}
            self._demand(market.bond_of(record.job), found, told)
        if self._sender.known(key) and not self._sender.done(key):
            return True
        stored = self._asks.carry_demand(record.id)
        return stored is not None and stored.status != Status.ANSWERED

    def demand_row(self, view: MarketView, job: JobId, missing: RowMissing) -> None:
        """Demands a dataset row that cannot be fetched, if free stake covers the bond: without it nobody can judge the
        job."""
        found = self._asks.row(job, view.params[job], missing, view.now)
        bond = self._contracts.demands.row_bond_of(job, missing.row)
        self._demand(bond, found, {"job": job.hex(), "row": missing.row})

    def step(self, view: MarketView) -> None:
        """Posts demanded rows, settles own demands that nobody answered, and prints what was mined since the last
        call."""
        self._demand_lacking()
        told = set(self._tell_done())
        for key, call in self._answers.due(view.ledger, self._jobs.find, view.now):
            act, demand, *_ = key.split("/")
            if key not in told:
                self._send(key, call, DEMAND_EVENTS.get(act), {"demand": demand})

    def _demand_lacking(self) -> None:
        """Demands the payloads in `_lacking` while their rounds allow it; a demand that cannot be sent now is
        retried."""
        market = self._contracts.market
        for record, lacking in list(self._lacking.values()):
            del self._lacking[record.id]
            if market.phase(record.job, record.round) != Phase.ATTESTING:
                continue
            found = self._asks.payload(record.job, record.round, record.slot, record.id, lacking)
            told = {"claim": record.id.hex(), "round": record.round, "slot": record.slot}
            self._demand(market.bond_of(record.job), found, told)
            if not self._sender.known(found[0]):
                self._lacking[record.id] = record, lacking

    def _tell_done(self) -> Iterator[str]:
        """Prints the events of transactions mined since the last call; yields their keys."""
        for key, (event, fields) in list(self._under_way.items()):
            done = self._sender.done(key)
            if done:
                self._printer.print_event(event, **fields)
                yield key
            if done or not self._sender.known(key):
                del self._under_way[key]

    def _demand(self, bond: Wei, found: tuple[str, Call] | None, told: dict[str, Any]) -> None:
        if found is None or self._sender.known(found[0]):
            return
        key, demand = found
        self._send(key, demand, "demanded", told, self._wallet.missing(bond, key))

    def _send(
        self, key: str, call: Call, event: str | None, fields: dict[str, Any], after: tuple[str, Call] | None = None
    ) -> None:
        """Sends a transaction, and has `event` printed once it is mined."""
        try:
            # INVARIANT: no move of an own game waits until a demand, or an answer to one, is mined.
            sent = self._sender.submit(key, call, after=after)
        except (FundsError, TryLater) as error:
            log.info("a transaction about a demand was not sent", key=key, why=error.message)
            return
        if sent and event is not None:
            self._under_way.setdefault(key, (event, fields))
