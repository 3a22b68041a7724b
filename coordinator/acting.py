"""Sending what was decided about one job: each action becomes a transaction, all are sent before any is waited for."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import structlog

from coordinator import reading, receipts
from coordinator.decide import (
    Action,
    AggregatorJob,
    AggregatorRound,
    Attest,
    Back,
    Decider,
    DemandPayload,
    Deposit,
    Finalize,
    Finish,
    Freeze,
    Merge,
    Release,
    Seal,
    StartRound,
    Withdraw,
    receipts_due,
)
from coordinator.loading import Aggregators
from lockstep.base.lines import event
from lockstep.node.demands import Asks
from lockstep.node.sender import Sender
from lockstep.protocol.errors import Crashed, LockstepError, Mismatch, TryLater
from lockstep.protocol.jobs import Phase
from lockstep.protocol.market import views
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import MERGE_SLOT, JobId

if TYPE_CHECKING:
    from coordinator.parts import CoordinatorParts
    from lockstep.chain.contracts import Call

log = structlog.get_logger(__name__)


class Actions:
    """The transactions of a coordinator's decisions."""

    def __init__(self, parts: CoordinatorParts, sender: Sender[None], aggregators: Aggregators) -> None:
        self._parts = parts
        self._contracts = parts.party.contracts
        self._sender = sender
        self._aggregators = aggregators
        self._asks = Asks(self._contracts, parts.me)

    def act(self, job: JobId, seen: AggregatorJob, actions: Iterable[Action], decider: Decider) -> bool:
        """Send what was decided, all of it before waiting for any; whether anything took effect."""
        sent = []
        for action in actions:
            try:
                key, call = self._call(job, seen, action, decider)
                # A payload is demanded once: an index that lags has not seen it.
                if isinstance(action, DemandPayload) and self._sender.known(key):
                    continue
                self._sender.again(key, call)
                sent.append(key)
                if isinstance(action, DemandPayload):
                    claim = key.removeprefix("demand/")
                    event("demanded", time=decider.now, claim=claim, round=action.round, slot=action.slot)
            except Crashed as error:
                log.error("a merge ended what ran it", job=job.hex(), why=error.message, hint=error.hint)
            except LockstepError as error:
                # Mostly that anybody may call these, and somebody was first; what stays due is tried again.
                log.info(
                    "the transaction was not sent: another party may have been first",
                    action=type(action).__name__,
                    why=error.message,
                    hint=error.hint,
                )
        return sum(self._sender.mined(key) for key in sent) > 0

    def _call(self, job: JobId, seen: AggregatorJob, action: Action, decider: Decider) -> tuple[str, Call]:
        """(key, transaction) of an action; runs the merge Program for a merge."""
        market, vault = self._contracts.market, self._contracts.vault
        name = f"{type(action).__name__.lower()}/{job.hex()}/{seen.job.attempt}"
        match action:
            case Deposit(amount):
                return f"{name}/{decider.block}", self._parts.party.deposit(amount, decider.now)
            case StartRound(r):
                return f"{name}/{r}", market.start_round(job, r)
            case Seal(r):
                view = seen.round(r)
                drawing = view is not None and view.stored.seed_block > 0
                return f"{name}/{r}/{'draw' if drawing else 'close'}", market.seal(job, r)
            case DemandPayload(r, slot):
                view = seen.round(r)
                assert view is not None, "a demand is decided on a round in view"
                return self._asks.payload(job, r, slot, claim_id(job, r, view.stored.attempt, slot))
            case Attest(r):
                view = seen.round(r)
                assert view is not None, "receipts are decided on a round in view"
                return f"{name}/{r}", self._attest(job, view, receipts_due(view, seen.params, decider.now))
            case Freeze(r):
                view = seen.round(r)
                assert view is not None, "a freeze is decided on a round in view"
                with self._parts.database.reading() as session:
                    bodies = reading.bodies(session, reading.hex32(job), r, view.stored.attempt)
                return f"{name}/{r}", market.freeze(job, r, bodies)
            case Merge(r, rounds):
                return self._merge(job, seen, r, rounds)
            case Back(r, rounds, backed):
                return f"{name}/{r}/{backed}", market.back(job, r, rounds)
            case Finalize(r):
                return f"{name}/{r}", market.finalize(job, r)
            case Release(r):
                return f"{name}/{r}", market.release(job, r)
            case Finish():
                return name, market.finish(job)
            case Withdraw():
                return f"{name}/{decider.block}", vault.withdraw()

    def _attest(self, job: JobId, view: AggregatorRound, slots: Collection[int]) -> Call:
        """All these slots' receipts in one transaction; one that the contract refuses by now keeps no other."""
        with self._parts.database.reading() as session:
            given = receipts.held(session, reading.hex32(job), view.number, view.stored.attempt, slots)
        whole = self._contracts.market.attest(job, view.number, given)
        if self._sender.allowed(whole):
            return whole
        alone = [r for r in given if self._sender.allowed(self._contracts.market.attest(job, view.number, [r]))]
        if not alone:
            raise TryLater("the chain takes none of these receipts now", hint="others may have sent them already")
        return self._contracts.market.attest(job, view.number, alone)

    def _merge(self, job: JobId, seen: AggregatorJob, r: int, rounds: int) -> tuple[str, Call]:
        view = seen.round(r)
        assert view is not None, "a merge is decided on a round in view"
        claim = claim_id(job, r, views.merge_attempt(seen.job, view.phase), MERGE_SLOT)
        with self._parts.database.reading() as session:
            before, accepted = reading.merge_inputs(session, reading.hex32(job), r, view.stored, seen.params)
        with self._aggregators.merging(job, seen.params) as aggregator:
            out, out2, cid = aggregator.merge(claim, r, view.stored, before, accepted)
        # INVARIANT: who merges again has computed what it claims, and false outputs are nobody's to back.
        if view.phase == Phase.LEAD and (out, out2) != (view.stored.next_shared, view.stored.next_outer):
            raise Mismatch(f"round {r} was merged with other outputs than here", hint="a verifier can challenge that")
        return f"merge/{claim.hex()}", self._contracts.market.merge(job, r, out, out2, cid, rounds)
