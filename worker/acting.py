"""Carries out a worker's decisions: each act becomes one transaction, or one piece of work on the worker thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.market.acts import CALLS, Act, Do, call_of
from lockstep.protocol.jobs import Phase
from lockstep.protocol.types import Seconds
from lockstep.runtime.sender import Sender
from worker import decide
from worker.admission import Admission
from worker.attesting import Attesting
from worker.bases import Bases
from worker.commitments import Commitments
from worker.decide import JobView, RoundView
from worker.defending import Defence
from worker.parts import ComputeExecutor, Taken
from worker.training import Training

if TYPE_CHECKING:
    from worker.parts import WorkerParts


@dataclass(frozen=True)
class Skills:
    """The parts of a worker that carry out its acts, each in a module of its own."""

    executor: ComputeExecutor
    admission: Admission
    bases: Bases
    training: Training
    commitments: Commitments
    attesting: Attesting
    defence: Defence

    @staticmethod
    def of(parts: WorkerParts, sender: Sender[Act], wake: Callable[[], None]) -> Skills:
        """Returns the parts of an honest worker. A worker thread calls `wake` whenever it finishes a piece of work."""
        executor = ComputeExecutor("train", wake)
        bases, defence = Bases(parts.store, executor), Defence(parts, wake)
        training = Training(parts, executor, bases, defence)
        return Skills(
            executor, Admission(parts, sender), bases, training, Commitments(parts, sender, training),
            Attesting(parts, sender, executor), defence,
        )  # fmt: skip

    def close(self) -> None:
        """Stops after the current step; what was computed is on disk."""
        self.admission.close()
        self.executor.close()
        self.defence.close()


class Acting:
    """Carries out the acts of one worker."""

    def __init__(self, parts: WorkerParts, sender: Sender[Act], skills: Skills) -> None:
        self._market = parts.contracts.market
        self._witnesses = parts.contracts.witnesses
        self._sender = sender
        self._skills = skills

    def do(self, taken: Taken, view: JobView, act: Act, now: Seconds) -> None:
        """Carries out one act, which was decided from `view`."""
        job, skills, r = view.id, self._skills, view.round(act.round)
        # A round that is not started yet, or is void and starts again, will be of the job's attempt.
        attempt = view.job.attempt if r is None or r.phase == Phase.VOID else r.state.attempt
        key = f"{job.hex()[:16]}/{act.round}/{attempt}/{act.do}"
        if act.do == Do.FETCH:
            skills.bases.fetch(taken, act.round, decide.base_of(view, act.round), now)
            return
        if act.do in CALLS:
            call = call_of(self._market, job, act, lambda: taken.ledger.rounds[act.round].bodies)
            self._sender.submit(_key_of(key, view, r, act), call, act)
            return
        assert r is not None, "what is computed is of a round in view"
        match act.do:
            case Do.TRAIN:
                skills.training.train(taken, r, act.slot, now)
            case Do.COMMIT:
                skills.commitments.commit(taken, r, act, f"{key}/{act.slot}", now)
            case Do.REVEAL:
                skills.commitments.reveal(taken, r, act, f"{key}/{act.slot}", now)
            case Do.DRAW:
                stage = view.block if r.audit is not None else "open"
                self._sender.submit(f"{key}/{stage}", self._witnesses.draw(job, act.round), act)
            case Do.PUBLISH:
                skills.commitments.publish(taken, r, act, f"{key}/{act.slot}", now)
            case Do.ATTEST:
                skills.attesting.attest(taken, r, act, f"{key}/{act.slot}", now)
            case Do.MERGE:
                skills.commitments.merge(taken, r, act, key, now)


def _key_of(key: str, view: JobView, r: RoundView | None, act: Act) -> str:
    """Returns the outbox key under which a call is sent once: `key`, and what may change before the call must be sent
    again."""
    match act.do:
        case Do.START:
            return f"{key}/{view.job.attempt}"
        case Do.JOIN | Do.LEAVE:
            return f"{key}/{act.slot}"
        case Do.SEAL if r is not None:
            return f"{key}/{r.state.seed_block}"
        case Do.RELEASE if r is not None:
            # Once for each stake: what a game holds back is released when it is over.
            locks = ",".join(str(s) for v in view.rounds for s in sorted(v.idle_locks))
            return f"{key}/{r.state.attempt}/{view.job.settled}/{locks}"
        case Do.BACK if r is not None:
            return f"{key}/{view.job.attempt}/{r.state.backed}"
    return key
