"""Demands data that cannot be had, answers demands for rows, ends own demands that nobody answered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import structlog

from lockstep.chain.contracts import Call
from lockstep.market.demands import DEMAND_EVENTS, Answers, Asks
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
from verifier.telling import Teller

NOT_THERE = ("blob_missing", "blob_corrupt", "payload_invalid", "mismatch")
"""Faults of a stored payload that its worker can mend by posting it; nobody answering is none."""

log = structlog.get_logger(__name__)


class Demander:
    """One account's demands for data, and its answers to the demands of others."""

    def __init__(self, party: Party, jobs: LoadedJobs, sender: Sender[None], wallet: Wallet, teller: Teller) -> None:
        """`jobs`: those whose rows can be posted."""
        self._contracts = party.contracts
        self._jobs = jobs
        self._sender = sender
        self._wallet = wallet
        self._teller = teller
        self._lacking: dict[ClaimId, tuple[ClaimRecord, Sequence[tuple[int, int]]]] = {}
        """Claims whose payload is to be demanded, with what is known to lack of it."""
        self._under_way: dict[str, tuple[str, dict[str, Any]]] = {}
        """By what was sent, the event that is told once it is mined, and its fields."""
        self._asks = Asks(party.contracts, party.address)
        self._answers = Answers(party.contracts, party.store, party.address)

    def demand_payload(self, record: ClaimRecord, fault: str | None, lacking: Sequence[tuple[int, int]]) -> None:
        """Demand a payload that is not where its worker said, while that can still keep it out of the merge."""
        if fault in NOT_THERE and not record.is_merge:
            self._lacking[record.id] = record, lacking
            self._demand_lacking()

    def demand_carry(self, record: ClaimRecord) -> bool:
        """Demand the carry that a claim starts from, while that can still keep the claim out of the merge.

        Returns True once the demand is sent, while it is open, and if nobody answered it: the claim is left out then.
        False if it was answered, or cannot be made: the carry has to be computed again.
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
        """Demand a row of the dataset that cannot be had, when that pays: nobody can judge the job without it."""
        found = self._asks.row(job, view.params[job], missing, view.now)
        bond = self._contracts.demands.row_bond_of(job, missing.row)
        self._demand(bond, found, {"job": job.hex(), "row": missing.row})

    def step(self, view: MarketView) -> None:
        """Post rows that somebody demands, end own demands that nobody answered, and tell what was done since."""
        self._demand_lacking()
        told = set(self._tell_done())
        for key, call in self._answers.due(view.ledger, self._jobs.find, view.now):
            act, demand, *_ = key.split("/")
            if key not in told:
                self._send(key, call, DEMAND_EVENTS.get(act), {"demand": demand})

    def _demand_lacking(self) -> None:
        """Demand payloads, as long as that can be done; what the chain does not take now is demanded again."""
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
        """Tell what was mined since; the keys of that."""
        for key, (event, fields) in list(self._under_way.items()):
            done = self._sender.done(key)
            if done:
                self._teller.tell(event, **fields)
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
        """Send what is told of once it is mined."""
        try:
            # INVARIANT: no move of an own game waits until a demand, or an answer to one, is mined.
            sent = self._sender.submit(key, call, after=after)
        except (FundsError, TryLater) as error:
            log.info("not sent", key=key, why=error.message)
            return
        if sent and event is not None:
            self._under_way.setdefault(key, (event, fields))
