"""Doing what was decided: one transaction, or one piece of work on the bench, for each act."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.node.sender import Sender
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Seconds
from worker import decide
from worker.admission import Admission
from worker.attesting import Attesting
from worker.bases import Bases
from worker.commitments import Commitments
from worker.decide import Act, Do, JobView
from worker.defending import Defence
from worker.merging import Merger
from worker.parts import Taken, WorkBench
from worker.training import Training

if TYPE_CHECKING:
    from worker.parts import WorkerParts


@dataclass(frozen=True)
class Skills:
    """The parts of a worker that carry out its acts, each in a module of its own."""

    bench: WorkBench
    admission: Admission
    bases: Bases
    training: Training
    commitments: Commitments
    attesting: Attesting
    merging: Merger
    defence: Defence

    @staticmethod
    def of(parts: WorkerParts, sender: Sender[Act], wake: Callable[[], None]) -> Skills:
        """An honest worker's. `wake` is called from a bench whenever something is done there."""
        bench = WorkBench("train", wake)
        bases, defence = Bases(parts.store, bench), Defence(parts, wake)
        training = Training(parts, bench, bases, defence)
        return Skills(
            bench, Admission(parts, sender), bases, training, Commitments(parts, sender, training),
            Attesting(parts, sender, bench), Merger(parts, sender, training, bases, defence), defence,
        )  # fmt: skip

    def close(self) -> None:
        """Stop after the step in work; what was computed is on disk."""
        self.admission.close()
        self.bench.close()
        self.defence.close()


class Acting:
    """Does the acts of one worker."""

    def __init__(self, parts: WorkerParts, sender: Sender[Act], skills: Skills) -> None:
        self._market = parts.contracts.market
        self._witnesses = parts.contracts.witnesses
        self._sender = sender
        self._skills = skills

    def do(self, taken: Taken, view: JobView, act: Act, now: Seconds) -> None:
        """Do one act that follows from a view."""
        job, market, submit, skills = view.id, self._market, self._sender.submit, self._skills
        r = view.round(act.round)
        # A round that is not started yet, or is void and starts again, will be of the job's attempt.
        attempt = view.job.attempt if r is None or r.phase == Phase.VOID else r.state.attempt
        key = f"{job.hex()[:16]}/{act.round}/{attempt}/{act.do}"
        match act.do:
            case Do.FETCH:
                skills.bases.fetch(taken, act.round, decide.base_of(view, act.round), now)
            case Do.START:
                submit(f"{key}/{view.job.attempt}", market.start_round(job, act.round), act)
            case Do.JOIN:
                submit(f"{key}/{act.slot}", market.join(job, act.round, act.slot), act)
            case Do.FINISH:
                submit(key, market.finish(job), act)
        if r is None:
            return
        match act.do:
            case Do.LEAVE:
                submit(f"{key}/{act.slot}", market.leave(job, act.round, act.slot), act)
            case Do.SEAL:
                submit(f"{key}/{r.state.seed_block}", market.seal(job, act.round), act)
            case Do.FREEZE:
                submit(key, market.freeze(job, act.round, taken.ledger.rounds[act.round].bodies), act)
            case Do.FINALIZE:
                submit(key, market.finalize(job, act.round), act)
            case Do.RELEASE:
                # Once for each stake: what a game holds back is released when it is over.
                locks = ",".join(str(s) for v in view.rounds for s in sorted(v.idle_locks))
                submit(f"{key}/{r.state.attempt}/{view.job.settled}/{locks}", market.release(job, act.round), act)
            case Do.TRAIN:
                skills.training.train(taken, r, act.slot, now)
            case Do.COMMIT:
                skills.commitments.commit(taken, r, act, f"{key}/{act.slot}", now)
            case Do.REVEAL:
                skills.commitments.reveal(taken, r, act, f"{key}/{act.slot}", now)
            case Do.DRAW:
                stage = view.block if r.audit is not None else "open"
                submit(f"{key}/{stage}", self._witnesses.draw(job, act.round), act)
            case Do.PUBLISH:
                skills.commitments.publish(taken, r, act, f"{key}/{act.slot}", now)
            case Do.ATTEST:
                skills.attesting.attest(taken, r, act, f"{key}/{act.slot}", now)
            case Do.MERGE:
                skills.merging.merge(taken, r, act, key, now)
            case Do.BACK:
                submit(f"{key}/{view.job.attempt}/{r.state.backed}", market.back(job, act.round, act.rounds), act)
