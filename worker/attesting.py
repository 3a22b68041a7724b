"""Attests the availability of a round's payloads: fetches and decodes them on the worker thread, signs a receipt, sends
it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from lockstep.base.lines import event
from lockstep.base.log import Logger
from lockstep.execution import merging
from lockstep.execution.rounds import Payload
from lockstep.market.acts import Action
from lockstep.market.demands import DemandIssuer, to_demand
from lockstep.protocol.jobs import Receipt
from lockstep.protocol.market.receipts import FINAL_REPORTS, Report, last_chance, mask_of
from lockstep.protocol.types import ClaimId, Seconds
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.sender import Sender
from worker.decide import RoundView
from worker.parts import ComputeExecutor, TrackedJob, claim_of
from worker.receipt_delivery import Handover

if TYPE_CHECKING:
    from worker.parts import WorkerParts

RETRY_SECONDS = 1

log = Logger(__name__)


class Attesting:
    """Makes and sends one worker's receipts (availability attestations)."""

    def __init__(self, parts: WorkerParts, sender: Sender[Action], executor: ComputeExecutor) -> None:
        self._parts = parts
        self._sender = sender
        self._executor = executor
        self._market = parts.contracts.market
        self._reports: dict[ClaimId, dict[int, Report]] = {}
        """By this worker's own claim: a report on the payload of each slot in its round."""
        self._receipts: dict[ClaimId, Receipt] = {}
        """By this worker's own claim: its receipt, which never changes once it is signed."""
        self._backoff: Backoff[ClaimId] = Backoff(RETRY_SECONDS)
        self._handover = Handover(parts.announcer)
        self._asks = DemandIssuer(parts.contracts, parts.address)

    def attest(self, taken: TrackedJob, r: RoundView, act: Action, key: str, now: Seconds) -> None:
        """Fetches and decodes the revealed payloads, then attests the available ones: through the coordinator if that
        submits the receipt in time, else by a transaction of its own."""
        assert taken.view is not None, "acts follow from a view"
        claim = claim_of(taken, r, act.slot)
        receipt = self._receipts.get(claim) or self._receipt(taken, r, act.slot, claim, now)
        if receipt is None or self._handover.entrusted(taken.view, r, receipt):
            return
        self._sender.submit(key, self._market.attest(taken.ledger.id, r.number, [receipt]), act)

    def _receipt(self, taken: TrackedJob, r: RoundView, slot: int, claim: ClaimId, now: Seconds) -> Receipt | None:
        """Returns the signed receipt of a slot's owner for the round; None while its contents are not known.

        What is missing may yet come: it is looked for again until a quarter of the window is left.
        """
        key = ("judge", claim)
        if key not in self._executor:
            if not self._backoff.in_backoff(claim, now):
                payloads = taken.ledger.rounds[r.number].payloads
                self._executor.begin(key, partial(self._judge, taken, payloads, self._reports.get(claim, {})))
            return None
        reports = self._executor.take(key)
        if reports is None:
            return None
        self._reports[claim] = reports
        last = last_chance(r.state.attest_ends, taken.params.role.attest_seconds, now)
        if not last and (len(reports) < r.state.revealed or any(x not in FINAL_REPORTS for x in reports.values())):
            self._backoff.failed(claim, now)
            return None
        if self._demanded(taken, r, reports, now):
            # Receipts may end the phase: ours follows the demand, in this account's own order.
            self._handover.keep(claim)
        (self._receipts[claim],) = self._parts.contracts.sign_receipts(
            self._parts.party.account, taken.ledger.id, r.number, r.state.attempt, mask_of(reports), [slot]
        )
        return self._receipts[claim]

    def _demanded(self, taken: TrackedJob, r: RoundView, reports: Mapping[int, Report], now: Seconds) -> bool:
        """Demands a payload that other workers would merge and that this one cannot fetch; returns True if one is
        demanded."""
        others = {s: report for s, report in reports.items() if s not in r.slots_of(self._parts.address)}
        slot, vault = to_demand(others, r.state), self._parts.contracts.vault
        if slot is None or vault.free(self._parts.address) < self._market.bond_of(taken.ledger.id):
            return False
        claim = claim_of(taken, r, slot)
        key, demand = self._asks.payload(taken.ledger.id, r.number, slot, claim)
        known = self._sender.known(key)
        if not known and self._sender.submit(key, demand):
            event("demanded", time=now, claim=claim.hex(), round=r.number, slot=slot)
        return known or self._sender.known(key)

    def _judge(
        self, taken: TrackedJob, payloads: Mapping[int, Payload], known: Mapping[int, Report]
    ) -> dict[int, Report]:
        found = dict(known)
        for slot, report, why in merging.judge_payloads(taken.job, self._parts.store, payloads, known):
            found[slot] = report
            log.info("payload checked", slot=slot, report=report.value, why=why)
        return found
