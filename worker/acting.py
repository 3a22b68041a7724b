"""Carries out a worker's decisions: each act becomes one transaction, or one piece of work on the worker thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.market.acts import CALLS, Action, ActionKind, call_of
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
from worker.parts import ComputeExecutor, TrackedJob
from worker.training import Training

if TYPE_CHECKING:
    from worker.parts import WorkerParts


@dataclass(frozen=True)
class ActionHandlers:
    """The parts of a worker that carry out its acts, each in a module of its own."""

    executor: ComputeExecutor
    admission: Admission
    bases: Bases
    training: Training
    commitments: Commitments
    attesting: Attesting
    defence: Defence

    @staticmethod
    def of(parts: WorkerParts, sender: Sender[Action], on_done: Callable[[], None]) -> ActionHandlers:
        """Returns the handlers of an honest worker. A thread calls `on_done` whenever it ends a piece of work."""
        executor = ComputeExecutor("train", on_done)
        bases, defence = Bases(parts.store, executor), Defence(parts, on_done)
        training = Training(parts, executor, bases, defence)
        return ActionHandlers(
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

    def __init__(self, parts: WorkerParts, sender: Sender[Action], handlers: ActionHandlers) -> None:
        self._market = parts.contracts.market
        self._witnesses = parts.contracts.witnesses
        self._sender = sender
        self._handlers = handlers

    def do(self, taken: TrackedJob, view: JobView, act: Action, now: Seconds) -> None:
        """Carries out one act, which was decided from `view`."""
        job, handlers, r = view.id, self._handlers, view.round(act.round)
        # A round that is not started yet, or is void and starts again, will be of the job's attempt.
        attempt = view.job.attempt if r is None or r.phase == Phase.VOID else r.state.attempt
        key = f"{job.hex()[:16]}/{act.round}/{attempt}/{act.kind}"
        if act.kind == ActionKind.FETCH:
            handlers.bases.fetch(taken, act.round, decide.base_of(view, act.round), now)
            return
        if act.kind in CALLS:
            call = call_of(self._market, job, act, lambda: taken.ledger.rounds[act.round].bodies)
            self._sender.submit(_key_of(key, view, r, act), call, act)
            return
        assert r is not None, "what is computed is of a round in view"
        match act.kind:
            case ActionKind.TRAIN:
                handlers.training.train(taken, r, act.slot, now)
            case ActionKind.COMMIT:
                handlers.commitments.commit(taken, r, act, f"{key}/{act.slot}", now)
            case ActionKind.REVEAL:
                handlers.commitments.reveal(taken, r, act, f"{key}/{act.slot}", now)
            case ActionKind.DRAW:
                stage = view.block if r.audit is not None else "open"
                self._sender.submit(f"{key}/{stage}", self._witnesses.draw(job, act.round), act)
            case ActionKind.PUBLISH:
                handlers.commitments.publish(taken, r, act, f"{key}/{act.slot}", now)
            case ActionKind.ATTEST:
                handlers.attesting.attest(taken, r, act, f"{key}/{act.slot}", now)
            case ActionKind.MERGE:
                handlers.commitments.merge(taken, r, act, key, now)


def _key_of(key: str, view: JobView, r: RoundView | None, act: Action) -> str:
    """Returns the outbox key under which a call is sent once: `key`, and what may change before the call must be sent
    again."""
    match act.kind:
        case ActionKind.START:
            return f"{key}/{view.job.attempt}"
        case ActionKind.JOIN | ActionKind.LEAVE:
            return f"{key}/{act.slot}"
        case ActionKind.SEAL if r is not None:
            return f"{key}/{r.state.seed_block}"
        case ActionKind.RELEASE if r is not None:
            # Once for each stake: what a game holds back is released when it is over.
            locks = ",".join(str(s) for v in view.rounds for s in sorted(v.idle_locks))
            return f"{key}/{r.state.attempt}/{view.job.settled}/{locks}"
        case ActionKind.BACK if r is not None:
            return f"{key}/{view.job.attempt}/{r.state.backed}"
    return key
