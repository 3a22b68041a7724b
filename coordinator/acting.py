"""Sends the decisions about one job: each act becomes a transaction, and all are sent before any is waited for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from coordinator import reading, receipts
from coordinator.decide import AggregatorJob, AggregatorRound, Decider, receipts_due
from coordinator.merging import Aggregators
from lockstep.base.lines import event
from lockstep.base.log import Logger
from lockstep.market.acts import Action, ActionKind, call_of
from lockstep.market.demands import DemandIssuer
from lockstep.protocol.errors import Crashed, LockstepError, Mismatch, TryLater
from lockstep.protocol.jobs import Body
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import JobId
from lockstep.runtime.merges import may_claim, place_of_merge
from lockstep.runtime.sender import Sender

if TYPE_CHECKING:
    from coordinator.parts import CoordinatorParts
    from lockstep.chain.contracts import Call

log = Logger(__name__)

Beside = Callable[[JobId, Callable[[], Any]], Any]
"""(job, work) -> what the work returns."""


class ActionSender:
    """Sends the transactions of a coordinator's decisions."""

    def __init__(
        self, parts: CoordinatorParts, sender: Sender[None], aggregators: Aggregators, beside: Beside
    ) -> None:  # fmt: skip
        """`beside` runs a job's long work on a thread, and meanwhile plays other jobs' games."""
        self._parts = parts
        self._beside = beside
        self._contracts = parts.party.contracts
        self._sender = sender
        self._aggregators = aggregators
        self._asks = DemandIssuer(self._contracts, parts.me)

    def act(self, job: JobId, seen: AggregatorJob, acts: Iterable[Action], decider: Decider) -> bool:
        """Sends all acts before it waits for any; returns True if one of them took effect."""
        sent = []
        for act in acts:
            try:
                key, call = self._call(job, seen, act, decider)
                # A payload is demanded once: an index that lags has not seen it.
                if act.kind == ActionKind.DEMAND and self._sender.known(key):
                    continue
                self._sender.again(key, call)
                sent.append(key)
                if act.kind == ActionKind.DEMAND:
                    claim = key.removeprefix("demand/")
                    event("demanded", time=decider.now, claim=claim, round=act.round, slot=act.slot)
            except Crashed as error:
                log.error("a merge ended the process that ran it", job=job.hex(), why=error.message, hint=error.hint)
            except LockstepError as error:
                # Mostly that anybody may call these, and somebody was first; what stays due is tried again.
                log.info(
                    "a transaction was not sent: another party may have been first",
                    action=act.kind.value,
                    why=error.message,
                    hint=error.hint,
                )
        return sum(self._sender.mined(key) for key in sent) > 0

    def _call(self, job: JobId, seen: AggregatorJob, act: Action, decider: Decider) -> tuple[str, Call]:
        """Returns (key, transaction) of an act; for a merge, runs the merge Program first."""
        name = f"{act.kind.lower()}/{job.hex()}/{seen.job.attempt}"
        match act.kind:
            case ActionKind.DEPOSIT:
                return f"{name}/{decider.block}", self._parts.party.deposit(act.amount, decider.now)
            case ActionKind.WITHDRAW:
                return f"{name}/{decider.block}", self._contracts.vault.withdraw()
        market, r = self._contracts.market, seen.round(act.round)
        if act.kind == ActionKind.FINISH:
            return name, call_of(market, job, act, tuple)
        name += f"/{act.round}"
        if r is None:
            # The round that is started.
            return name, call_of(market, job, act, tuple)
        match act.kind:
            case ActionKind.DEMAND:
                return self._asks.payload(job, r.number, act.slot, claim_id(job, r.number, r.state.attempt, act.slot))
            case ActionKind.ATTEST:
                return name, self._attest(job, r, receipts_due(r, seen.params, decider.now))
            case ActionKind.MERGE:
                return self._merge(job, seen, r, act.rounds)
            case ActionKind.SEAL:
                name += "/draw" if r.state.seed_block > 0 else "/close"
            case ActionKind.BACK:
                name += f"/{r.state.backed}"
        return name, call_of(market, job, act, lambda: self._bodies(job, r))

    def _bodies(self, job: JobId, r: AggregatorRound) -> list[Body]:
        with self._parts.database.reading() as session:
            return reading.bodies(session, reading.hex32(job), r.number, r.state.attempt)

    def _attest(self, job: JobId, r: AggregatorRound, slots: Collection[int]) -> Call:
        """Returns one transaction with all these slots' receipts, without those that the contract would refuse now."""
        with self._parts.database.reading() as session:
            given = receipts.held(session, reading.hex32(job), r.number, r.state.attempt, slots)
        whole = self._contracts.market.attest(job, r.number, given)
        if self._sender.allowed(whole):
            return whole
        alone = [one for one in given if self._sender.allowed(self._contracts.market.attest(job, r.number, [one]))]
        if not alone:
            raise TryLater("the chain accepts none of these receipts now", hint="others may have sent them already")
        return self._contracts.market.attest(job, r.number, alone)

    def _merge(self, job: JobId, seen: AggregatorJob, r: AggregatorRound, rounds: int) -> tuple[str, Call]:
        place = place_of_merge(job, seen.job, r)
        with self._parts.database.reading() as session:
            records = reading.merge_inputs(session, reading.hex32(job), r.number, r.state, seen.params)
        out, out2, cid = self._beside(job, partial(self._aggregators.merge, job, seen.params, place, records))
        if not may_claim(self._parts.guard, place, r, out, out2):
            why = f"round {r.number} was merged with other outputs than here"
            raise Mismatch(why, hint="a verifier can challenge that")
        return f"merge/{place.claim.hex()}", self._contracts.market.merge(job, r.number, out, out2, cid, rounds)
