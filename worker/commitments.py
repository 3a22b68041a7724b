"""Publishes computed claims: binds them in the guard, commits, reveals, publishes traces, merges, informs the
coordinator."""

from __future__ import annotations

from dataclasses import replace
from random import SystemRandom
from typing import TYPE_CHECKING

from lockstep.base.lines import event
from lockstep.base.log import Logger
from lockstep.market.acts import Action
from lockstep.protocol.jobs import Body, Reveal
from lockstep.protocol.market import ids
from lockstep.protocol.market.views import merge_attempt
from lockstep.protocol.types import MERGE_SLOT, ClaimId, Digest, Seconds, Seed, StateRoot
from lockstep.runtime.guard.memory import RecordKey, SigningRecord
from lockstep.runtime.merges import may_claim, place_of_merge
from lockstep.runtime.sender import Sender
from worker.decide import RoundView
from worker.parts import TrackedJob, claim_of
from worker.progress import Material, WorkFolder
from worker.training import Training

if TYPE_CHECKING:
    from worker.parts import WorkerParts

log = Logger(__name__)


class Commitments:
    """Makes this worker's statements about its claims: commitments, reveals, published traces of state roots,
    merges."""

    def __init__(self, parts: WorkerParts, sender: Sender[Action], training: Training) -> None:
        self._parts = parts
        self._sender = sender
        self._training = training
        self._market = parts.contracts.market
        self._reported: set[ClaimId] = set()

    def commit(self, taken: TrackedJob, r: RoundView, act: Action, key: str, now: Seconds) -> None:
        """Binds a computed claim in the guard, then commits it on chain."""
        claim = claim_of(taken, r, act.slot)
        trained = self._training.trained(claim)
        if trained is None or self._sender.known(key):
            return
        material = trained.material
        # INVARIANT: the guard's row is on disk before the transaction that it guards.
        bound = self._parts.guard.bind(place_of(claim, r), material.record(SystemRandom().randbytes(32)))
        if claim not in self._reported:
            self._reported.add(claim)
            event(
                "trained", time=now, round=r.number, slot=act.slot, seconds=round(trained.seconds, 3),
                resumed_from=trained.resumed_from,
            )  # fmt: skip
        commitment = ids.commitment(claim, self._parts.address, _reveal(material, bound))
        self._sender.submit(key, self._market.commit(taken.ledger.id, r.number, act.slot, commitment), act)

    def reveal(self, taken: TrackedJob, r: RoundView, act: Action, key: str, now: Seconds) -> None:
        """Reveals the committed claim, and announces it to the coordinator."""
        claim = claim_of(taken, r, act.slot)
        material, bound = WorkFolder(self._parts.home, claim).material(), self._parts.guard.record(place_of(claim, r))
        if material is None or bound is None:
            log.error(
                "the files of a committed claim are missing from this home: it cannot be revealed", claim=claim.hex()
            )
            return
        # What is revealed is signed for the coordinator too: the guard is asked again.
        bound = self._parts.guard.bind(place_of(claim, r), material.record(bound.nonce))
        opened = _reveal(material, bound)
        if taken.params.role.witnesses:
            # Who could read the roots now could say that it had looked.
            opened = replace(opened, trace_cid="")
        sent = self._sender.submit(key, self._market.reveal(taken.ledger.id, r.number, act.slot, opened), act)
        if sent and not taken.params.role.witnesses:
            self.announce(taken, r, material, now)

    def publish(self, taken: TrackedJob, r: RoundView, act: Action, key: str, now: Seconds) -> None:
        """Publishes the CID of the claim's state roots, once the witnesses have committed their verdicts."""
        material = WorkFolder(self._parts.home, claim_of(taken, r, act.slot)).material()
        if material is None:
            log.error(
                "the files of a revealed claim are missing: its state roots cannot be published",
                round=r.number,
                slot=act.slot,
            )
            return
        call = self._parts.contracts.witnesses.publish(taken.ledger.id, r.number, act.slot, material.trace_cid)
        if self._sender.submit(key, call, act):
            self.announce(taken, r, material, now)

    def merge(self, taken: TrackedJob, r: RoundView, act: Action, key: str, now: Seconds) -> None:
        """Has the round's merge computed, then claims it. A round that is merged already is claimed again only with the
        same outputs."""
        assert taken.view is not None, "acts follow from a view"
        place = place_of_merge(taken.ledger.id, taken.view.job, r)
        self._training.merge(taken, r, place, now)
        trained = self._training.trained(claim_of(taken, r, MERGE_SLOT))
        if trained is None:
            return
        made = trained.material
        out, out2 = StateRoot(made.out), StateRoot(made.out2)
        if may_claim(self._parts.guard, place, r, out, out2):
            call = self._market.merge(taken.ledger.id, r.number, out, out2, made.payload_cid, act.rounds)
            self._sender.submit(f"{key}/{merge_attempt(taken.view.job, r.phase)}", call, act)

    def announce(self, taken: TrackedJob, r: RoundView, material: Material, now: Seconds) -> None:
        """Sends the signed claim to the coordinator."""
        self._parts.announcer.announce(material, r.state.base, taken.params.role.transitions, now)


def place_of(claim: ClaimId, r: RoundView) -> RecordKey:
    """Returns the key under which the guard binds a claim of a round."""
    return RecordKey(claim, Seed(r.state.seed), StateRoot(r.state.base))


def _reveal(material: Material, bound: SigningRecord) -> Reveal:
    body = Body(bound.trace_root, StateRoot(bound.out), StateRoot(bound.out2))
    return Reveal(body, Digest(bound.nonce), material.proof_t, bound.trace_cid, bound.payload_cid, material.carries)
