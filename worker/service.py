"""The worker's loop: load (chain, ledger, jobs), decide (pure), act; training and defending run in parallel.

One thread talks to the chain, one computes claims, two play games, one announces. Everything that must survive a kill
is on disk before the transaction that relies on it: guard row, material, outbox. The process outlives its jobs: it
stays until no game about its claims is open and none of its stakes is locked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from itertools import chain

from lockstep.base.durations import moment
from lockstep.base.lines import event
from lockstep.base.log import Logger
from lockstep.base.machine import room_on_disk
from lockstep.base.vitals import VITALS
from lockstep.chain.finality import FinalityTracker
from lockstep.chain.game_table import GameTable
from lockstep.disputes.abandoned import Abandoned
from lockstep.execution.box.handle import end_all
from lockstep.execution.jobs import ClaimRun
from lockstep.market.acts import Action
from lockstep.market.demands import DemandResponder
from lockstep.market.ledger import Ledger
from lockstep.protocol.errors import DoctorError, FundsError, GuardRefused, LockstepError, TryLater, Unreachable
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.types import JobId, Seconds, Wei
from lockstep.runtime.error_boundary import ErrorBoundary
from lockstep.runtime.feewatch import FeeWatch, waiting_for_fee
from lockstep.runtime.idle import IdleSince
from lockstep.runtime.outage import Outage
from lockstep.runtime.party import Head, HeadTracker
from lockstep.runtime.sender import Sender
from worker import decide
from worker.acting import Acting, ActionHandlers
from worker.decide import JobView, WorkerFacts
from worker.horizon import free_by, latest
from worker.leaving import Leaving
from worker.notes import STOPPED, WORKING, Note, of_halt, of_refusal
from worker.parts import TrackedJob, WorkerParts
from worker.progress import Material, materials
from worker.reading import poll
from worker.taking import Jobs
from worker.telling import WorkerEventPrinter

log = Logger(__name__)

POLL_SECONDS = 0.25
FATAL = (DoctorError, GuardRefused, FundsError)
"""Errors of this machine, its home or its account, and not of a job."""


class Worker:
    """One worker process: its loop over the chain's blocks."""

    def __init__(self, parts: WorkerParts, *, once: bool = False, only: JobId | None = None) -> None:
        """`once`: leave when a job is done and nothing of this key is at stake any more. `only`: join no other job."""
        self.parts = parts
        self._once = once
        self._head = Head(-1, Seconds(0))
        self._free = Wei(0)
        self._wake = threading.Event()
        self._asked_to_leave = 0
        self._sender: Sender[Action] = Sender(parts.outbox)
        self._handlers = self.handlers(self._sender, self._wake.set)
        self._acting = Acting(parts, self._sender, self._handlers)
        self._jobs = Jobs(parts, self._sender, self._wake.set, only)
        self._leaving = Leaving(parts, self._sender)
        self._answers = DemandResponder(parts.contracts, parts.store, parts.address)
        table = GameTable(parts.contracts.game, parts.contracts.addresses.block)
        self._abandoned = Abandoned(table, parts.address)
        self._printer = WorkerEventPrinter(parts.address)
        self._boundary = ErrorBoundary()
        self._outage = Outage(event)
        self._fees = FeeWatch(parts.outbox, event)
        self._head_tracker = HeadTracker(lambda: parts.party.head(), POLL_SECONDS)
        self._loaded = self._head
        """The last block that was processed to the end."""
        self._told_why = False
        self._idle = IdleSince(fresh=not parts.outbox.keys(""))
        self._finality = FinalityTracker(lambda number: parts.party.relied(number))

    def handlers(self, sender: Sender[Action], on_done: Callable[[], None]) -> ActionHandlers:
        """Returns the parts that carry out this worker's acts."""
        return ActionHandlers.of(self.parts, sender, on_done)

    # -- from outside

    def drain(self) -> None:
        """Stops joining, finishes and defends the joined rounds, then ends the process; a second call ends it at
        once."""
        self._asked_to_leave += 1
        self._wake.set()

    def run(self) -> None:
        """Runs until drained, or with `once` until a job is done, and until nothing is at stake. Raises the errors that
        a worker cannot survive."""
        try:
            self.parts.notes.begins()
            began = self._start()
            while not self._finished():
                try:
                    with room_on_disk(), waiting_for_fee():
                        self._tick(began)
                    self._outage.over()
                    self._beat()
                    self.parts.notes.is_in(self._state())
                    pause = POLL_SECONDS
                except (Unreachable, TryLater) as error:
                    # INVARIANT: no outage ends the process.
                    pause = self._outage.failed(error)
                    again = int(self._now + pause + 1) if self._now else None
                    self.parts.notes.is_in(Note(error.code, f"{error.message}: trying again", again))
                self._wake.wait(pause)
                self._wake.clear()
            self.parts.notes.is_in(STOPPED)
        except LockstepError as error:
            self.parts.notes.ended(error)
            raise
        finally:
            self._jobs.close()
            end_all()
            self._handlers.close()
            self.parts.announcer.close()

    def _beat(self) -> None:
        """Writes the numbers of this pass for monitoring."""
        ledger, me = self._ledger, self.parts.address
        staked = ledger.staked(me)
        VITALS.beat(
            self._head.number, self._now, tuple(g.id for g in ledger.games_against(me)), tuple(staked),
            {
                "jobs_known": sum(not job.done for job in ledger.jobs.values()),
                "jobs_refused": len(self.parts.notes.jobs), "claims_live": len(staked),
            },
        )  # fmt: skip

    # -- load

    @property
    def _ledger(self) -> Ledger:
        return self.parts.watcher.ledger

    @property
    def _now(self) -> Seconds:
        return self._head.time

    def _start(self) -> int:
        """Reports that the worker runs, and if it listens first; returns the block from which on events are
        reported."""
        self.parts.watcher.poll()
        head, watch = self.parts.party.head(), self.parts.watch
        event("ready", address=self.parts.address, node_key=self.parts.node.public.hex(), home=str(self.parts.home))
        for job in self._ledger.jobs.values():
            # INVARIANT: a claim of ours that was mined while this home was down is none of another home.
            self._boundary.run(partial(self._handlers.defence.adopt, job), job.id, job=job.id.hex())
        self._jobs.kept = {m.job for m in materials(self.parts.home)}
        reasons = watch.begin(self._ledger, head.time)
        if watch.until is not None:
            event("listening", time=head.time, until=watch.until, reasons=reasons)
        elif reasons:
            log.warning("doppelganger protection is off: this key may be at work in another home", reasons=reasons)
        return head.number

    def _tick(self, began: int) -> None:
        head = self._head_tracker.poll()
        if head != self._loaded:
            self._load(began, head)
        # INVARIANT: nothing is signed before the home knows that nobody else signs for its key.
        if self.parts.watch.may_sign(self._ledger, self._now, self._head.number):
            for taken in list(self._jobs.taken.values()):
                if taken.view is not None:
                    self._guarded(taken, partial(self._act, taken, taken.view))
        self._handlers.defence.defend(self._ledger, self._head, self._run_of)
        # After the moves: a provider that is slow to name a block holds none of them up.
        self._finality.poll(head.number)

    def _at_stake(self) -> tuple[int, int]:
        """Returns the number of this account's locked stakes and of the games about its claims."""
        me = self.parts.address
        return len(self._ledger.staked(me)), len(self._ledger.games_against(me))

    def _load(self, began: int, head: Head) -> None:
        """Takes in a new block: events, jobs, a look at each of them."""
        watcher, watch = self.parts.watcher, self.parts.watch
        events = [e for e in watcher.poll() if e.block > began]
        self._head = head
        watch.hear(events)
        self._printer.print_events(events, self._ledger)
        self._sender.settle()
        if watch.is_over(self._ledger, self._now):
            self._register()
        self._free = self.parts.contracts.vault.free(self.parts.address)
        for over in self._jobs.take(self._ledger, self._free, not self._asked_to_leave, self._now):
            self._handlers.training.forget(over)
        for taken in self._jobs.taken.values():
            # Before a move is made that may need it.
            self._guarded(taken, partial(self._handlers.defence.adopt, taken.ledger))
            self._guarded(taken, partial(self._look, taken))
        staked, games = self._at_stake()
        self._idle.see(bool(staked or games), watcher.block, self.parts.address in self._ledger.stakers)
        self._answer()
        # Whoever did not answer meanwhile is asked again at the next look.
        self._loaded = head

    def _state(self) -> Note:
        """Returns the state of this process, which `worker status` shows."""
        held = self._fees.poll(self._head)
        if halted := of_halt(self._head_tracker.still, self._head.time):
            return halted
        if self.parts.watch.until is not None:
            return Note("listening", "it listens whether another home uses its key", self.parts.watch.until)
        if self._asked_to_leave:
            staked, games = self._at_stake()
            held = f"{staked} stakes, {games} games" if staked or games else "nothing is"
            if not (staked or games) and not self._idle.at(self._finality.block):
                held += f", which is relied on once that block is {self.parts.party.settings.finality_text}"
            return Note(
                "draining", f"it joins nothing more, and leaves once nothing is at stake: {held}", self._until()
            )
        if held:
            by = self._until()
            return Note("fee", held if by is None else f"{held}; a missed deadline costs stake", by)
        closed = self.parts.policy.closed_now()
        if closed:
            # To the minute: the note is rewritten when it changes.
            return Note("hours", "--hours excludes joining now", (self._now + closed + 30) // 60 * 60)
        return WORKING

    def _look(self, taken: TrackedJob) -> None:
        market, number = self.parts.contracts.market, self._head.number
        me = self.parts.address
        taken.view = poll(market, self._ledger, taken.ledger, taken.params, me, self._now, number)

    def _guarded(self, taken: TrackedJob, work: Callable[[], None]) -> None:
        """Runs work about one job. An error there stops the joining of this job; it ends the process only if the
        machine or the account is at fault and nothing is left that must be defended."""
        error = self._boundary.run(work, taken.ledger.id, job=taken.ledger.id.hex())
        if error is None or isinstance(error, TryLater):
            return
        # INVARIANT: no job ends what defends the claims of others.
        if isinstance(error, FATAL) and not self._ledger.at_stake(self.parts.address):
            raise error
        taken.joins = False

    def _run_of(self, material: Material) -> ClaimRun | None:
        taken = self._jobs.taken.get(material.job)
        return None if taken is None else self._handlers.training.run_of(material, taken)

    # -- decide, act

    def _act(self, taken: TrackedJob, view: JobView) -> None:
        if taken.ledger.done and self._left(taken):
            return
        me = self._self(taken)
        possible = decide.acts(view, me)
        taken.since = decide.remember(possible, taken.since, self._now)
        aggregated = view.params.merge.aggregator != ZERO_ADDRESS
        for act in decide.due(possible, taken.since, self._now, decide.rank(view, me), aggregated):
            self._acting.do(taken, view, act, self._now)
        for act in decide.ahead(view, me, self._sender.acts()):
            self._acting.do(taken, view, act, self._now)

    def _self(self, taken: TrackedJob) -> WorkerFacts:
        """Returns the facts about this worker that a decision needs; stakes first on a job that it would join."""
        me, job, draining = self.parts.address, taken.ledger.id, self._asked_to_leave > 0
        # INVARIANT: a worker stakes on and joins only jobs whose windows its machine can keep.
        refusal = self.parts.refusals.of(job)
        if refusal is not None:
            self.parts.notes.refused(job, of_refusal(refusal), self._now)
        joins = taken.joins and refusal is None
        fit = joins and self._handlers.admission.fits(taken, self._staked_on(), self._now)
        closed = self.parts.policy.closed_now() > 0
        if fit and not taken.staked and not draining and not closed:
            self._handlers.admission.stake(taken, self._free, bool(self._ledger.at_stake(me)), self._now)
        if fit and taken.staked:
            self.parts.notes.joins(job)
        place = self._ledger.place(me, frozenset({taken.params.merge.aggregator}))
        ready, held = self._handlers.training.ready(taken), self._handlers.bases.held(job)
        return WorkerFacts(
            me,
            self._free,
            place,
            draining or closed or not joins,
            ready,
            fit and taken.staked,
            held,
            self._finality.block,
            refusal is not None,
        )

    def _staked_on(self) -> list[TrackedJob]:
        """Returns the jobs of this account's live claims, one entry for each claim."""
        jobs = [self._ledger.places[claim][0] for claim in self._ledger.staked(self.parts.address)]
        return [self._jobs.taken[job] for job in jobs if job in self._jobs.taken]

    def _left(self, taken: TrackedJob) -> bool:
        """Withdraws a job's pay; returns True if the job is forgotten."""
        job = taken.ledger.id
        if not self._leaving.leave(taken, self._ledger, job in self._jobs.kept, self._now):
            return False
        self._jobs.kept.discard(job)
        self._handlers.training.forget(job)
        self._jobs.leave(job)
        return True

    def _register(self) -> None:
        """Registers this home's node key on chain: the fencing token between two homes of one account."""
        me, node = self.parts.address, self.parts.node.public
        if self._ledger.nodes.get(me) != node:
            key = f"node/{node.hex()}/{self._ledger.registrations.get(me, 0)}"
            with waiting_for_fee():
                self._sender.submit(key, self.parts.contracts.vault.register_node(node))

    def _answer(self) -> None:
        """Does what any account may do: shows demanded data, proves jobs that break a rule, ends games that both sides
        abandoned."""
        try:
            with waiting_for_fee():
                self._jobs.prove(self._now)
            answers = self._answers.due(self._ledger, self._jobs.loaded, self._now)
            for key, call in chain(answers, self._abandoned.due(self._ledger, self._now)):
                with waiting_for_fee():
                    self._sender.submit(key, call)
        except (Unreachable, TryLater):
            raise
        except LockstepError as error:
            self._boundary.log(error, "answers")

    # -- end

    def _until(self) -> Seconds | None:
        """Returns the chain time by which the last stake is free; None: nothing is at stake, or a game decides."""
        times: list[Seconds | None] = []
        for claim in self._ledger.staked(self.parts.address):
            job, number = self._ledger.places[claim]
            view = self._jobs.taken[job].view if job in self._jobs.taken else None
            r = None if view is None else view.round(number)
            times.append(None if view is None or r is None else free_by(view.params, r.state, r.phase, self._now))
        return latest(times)

    def _finished(self) -> bool:
        if self._asked_to_leave > 1:
            return True
        if self._once and self._leaving.done:
            self._asked_to_leave = max(self._asked_to_leave, 1)
        if not self._asked_to_leave or not self._sender.idle:
            return False
        me = self.parts.address
        if any(decide.owes(t.view, me) for t in self._jobs.taken.values() if t.view is not None):
            return False
        # INVARIANT: who could still lose a stake by silence stays.
        staked, games = self._at_stake()
        if (staked or games) and not self._told_why:
            self._told_why, until = True, self._until()
            event("staying", time=self._now, stakes=staked, games=games, until=until)
            free = "once the games end" if until is None else f"by {moment(until)} if nobody challenges"
            log.warning(f"the worker keeps running until nothing is at stake: {free}", stakes=staked, games=games)
        if staked or games or not self._handlers.defence.idle:
            return False
        return self._idle.at(self._finality.block)
