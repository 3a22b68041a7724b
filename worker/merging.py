"""Merging a round, where it is our turn: computed on the worker thread, bound in the guard, claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.execution import merging
from lockstep.node.acts import Act
from lockstep.node.guard.memory import Place
from lockstep.node.sender import Sender
from lockstep.protocol.errors import DoctorError
from lockstep.protocol.jobs import Phase
from lockstep.protocol.market import ids, views
from lockstep.protocol.types import MERGE_SLOT, Cid, ClaimId, Seconds, Seed, StateRoot
from lockstep.storage.payload import store_checkpoint
from worker.bases import Bases
from worker.computing import Trained
from worker.decide import RoundView
from worker.parts import Taken, merge_name
from worker.progress import Material, WorkFolder
from worker.training import Training

if TYPE_CHECKING:
    from worker.defending import Defence
    from worker.parts import WorkerParts


class Merger:
    """The merges that this worker claims."""

    def __init__(
        self, parts: WorkerParts, sender: Sender[Act], training: Training, bases: Bases, defence: Defence
    ) -> None:
        self._parts = parts
        self._sender = sender
        self._training = training
        self._bases = bases
        self._defence = defence

    def merge(self, taken: Taken, r: RoundView, act: Act, key: str, now: Seconds) -> None:
        """Have the round's merge computed, then claim it; of one that is merged already, the same outputs alone."""
        assert taken.view is not None, "acts follow from a view"
        # INVARIANT: what is computed is kept by what it follows from; its claim's id is known once it is mined.
        name = merge_name(taken.ledger.id, r.number, r.state.attempt)
        if not self._training.busy(name, now):
            self._training.begin(name, self._work(taken, r, name))
        trained = self._training.trained(name)
        if trained is None:
            return
        material = trained.material
        out, out2 = StateRoot(material.out), StateRoot(material.out2)
        # INVARIANT: who merges again has computed what it claims, and false outputs are nobody's to back.
        if r.phase == Phase.LEAD and (out, out2) != (r.state.next_shared, r.state.next_outer):
            return
        attempt = views.merge_attempt(taken.view.job, r.phase)
        foreseen = ids.claim_id(taken.ledger.id, r.number, attempt, MERGE_SLOT)
        place = Place(foreseen, Seed(r.state.seed), StateRoot(r.state.merge_in))
        self._parts.guard.bind(place, material.promise(bytes(32)))
        call = self._parts.contracts.market.merge(
            taken.ledger.id, r.number, out, out2, material.payload_cid, act.rounds
        )
        self._sender.submit(f"{key}/{attempt}", call, act)

    def _work(self, taken: Taken, r: RoundView, name: ClaimId) -> Callable[[], Trained]:
        records = taken.ledger.records_behind(taken.ledger.rounds[r.number], taken.params.role.slots)
        record = taken.ledger.rounds[r.number].record(taken.params.role.slots)

        def work() -> Trained:
            start = self._bases.load(taken, records, (r.state.base, r.state.outer)).checkpoint
            payloads = merging.fetch_payloads(taken.job, self._parts.store, record.payloads)
            merged = merging.merge_round(taken.job, start, payloads, record.seed, r.number)
            # INVARIANT: what is merged is what the contract froze.
            if merged.run.root(0, merged.run.start) != r.state.merge_in:
                raise DoctorError(
                    "the merge's input hashes differently here than on chain",
                    hint="run `lockstep doctor`: a claim of this build would lose its stake",
                )
            material = Material(
                name, taken.ledger.id, r.number, r.state.attempt, MERGE_SLOT, record.seed, (merged.root,), merged.out,
                merged.out2, Cid(""), store_checkpoint(self._parts.store, merged.checkpoint),
            )  # fmt: skip
            WorkFolder(self._parts.home, name).save_material(material)
            self._defence.hold(name, merged.run, material.roots)
            return Trained(material, 0.0, 0)

        return work
