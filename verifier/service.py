"""The verifier at work, one look a block: read the market -> decide (pure) -> act.

    read     reading      the market at this look
    act      playing      every move that is due in own games, before anything else
             challenging  a game about each claim that was found wrong
             reporting    what convicts without a game
             demanding    data that is unavailable
             witness      duties that this account was drawn for
             replaying    the next claim, on a worker thread beside the loop
             staking      credits, once nothing runs

What each does is decided by `decide` and `choosing`. All of it is decided from the chain, so this may be killed at any
line: the next process sits down again at its games and goes on with the windows still open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from threading import Event as Flag

from lockstep.base.cache import MemoryCache
from lockstep.base.lines import event
from lockstep.base.log import Logger
from lockstep.base.machine import room_on_disk
from lockstep.base.vitals import VITALS
from lockstep.chain.finality import FinalityTracker
from lockstep.chain.game_table import GameTable
from lockstep.disputes.abandoned import Abandoned
from lockstep.execution.box import loading
from lockstep.execution.box.handle import end_all
from lockstep.execution.states import States
from lockstep.protocol.errors import TryLater, Unreachable
from lockstep.protocol.types import ClaimId, Seconds
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.error_boundary import ErrorBoundary
from lockstep.runtime.feewatch import FeeWatch
from lockstep.runtime.idle import IdleSince
from lockstep.runtime.outage import Outage
from lockstep.runtime.party import Head, HeadTracker, Party
from lockstep.runtime.refusals import Refusals
from lockstep.runtime.sender import Sender
from verifier import decide
from verifier.challenging import Challenger
from verifier.choosing import Backlog
from verifier.demanding import Demander
from verifier.equivocation import Equivocations, urls_of
from verifier.journal import Journal
from verifier.loading import LoadedJobs
from verifier.playing import GamePlayers
from verifier.proving import Prover
from verifier.reading import MarketReader, MarketView
from verifier.replaying import Replayed, Replayer
from verifier.root_lists import Lists
from verifier.staking import Wallet
from verifier.telling import EventPrinter
from verifier.witness.duties import Duties

POLL_SECONDS = 0.2
"""Machine seconds between two polls for a new block."""

STATES = "states"

log = Logger(__name__)


class Verifier:
    """One verifier: the loop, and the parts that act in it."""

    def __init__(self, party: Party, journal: Journal, *, witness: bool = False, volunteer: bool = True) -> None:
        """`witness`: serve the duties for which this account is drawn, for a fee. `volunteer`: replay every claim."""
        cache = MemoryCache(party.settings.memory_bytes)
        states = States(party.settings.home_dir / STATES, party.settings.disk_bytes)
        table = GameTable(party.contracts.game, party.addresses.block, party.contracts.market)
        self._jobs = jobs = LoadedJobs(party, loading.load, cache)
        sender: Sender[None] = Sender(party.outbox)
        # One for all: a claim that is about to be convicted is neither replayed nor challenged meanwhile.
        backoff: Backoff[ClaimId] = Backoff(decide.RETRY_SECONDS)
        equivocations = Equivocations(urls_of(party.settings.coordinator), party.contracts, journal)
        self._party = party
        self._head_tracker = HeadTracker(lambda: party.head(), POLL_SECONDS)
        self._seen = Head(-1, Seconds(0))
        """The block that was processed last."""
        self._waiting = 0
        self._market = MarketReader(party)
        self._boundary = ErrorBoundary()
        self._outage = Outage(event)
        self._idle = IdleSince(fresh=not party.outbox.keys(""))
        self._finality = FinalityTracker(lambda number: party.relied(number))
        self._fees = FeeWatch(party.outbox, event)
        self._printer = printer = EventPrinter()
        self._wallet = Wallet(party, sender, printer)
        self._seats = GamePlayers(party, table, states, printer)
        self._lists = Lists(party.store)
        self._challenger = Challenger(party, table, self._wallet, self._seats, printer, self._lists, backoff)
        self._prover = Prover(party, equivocations, sender, printer, backoff)
        self._demander = Demander(party, jobs, sender, self._wallet, printer)
        self._abandoned = Abandoned(table, party.address)
        self._sender = sender
        refused = Refusals(party.settings.home_dir)
        self._backlog = Backlog(journal, printer, backoff, refused, volunteers=volunteer, witnesses=witness)
        self._replayer = Replayer(
            party.store, jobs, cache, states, self._backlog, self._seats, self._demander, self._prover
        )
        self._duties = (
            Duties(party, journal, sender, self._wallet, self._demander, self._backlog, self._lists, printer)
            if witness
            else None
        )

    def run(self, stop: Flag) -> None:
        """Runs until `stop` is set and every own game is over."""
        for key in self._party.settle():
            log.info("a transaction of an earlier process reverted", key=key)
        try:
            while True:
                draining = stop.is_set()
                try:
                    with room_on_disk():
                        view = self.poll(draining)
                    self._outage.over()
                    if draining and self._at_rest(view):
                        return
                except (Unreachable, TryLater) as error:
                    # INVARIANT: no outage ends the process.
                    pause = self._outage.failed(error)
                    if draining and not len(self._seats) and self._idle.always:
                        return
                    time.sleep(pause)
                time.sleep(POLL_SECONDS)
        finally:
            self.close()

    def poll(self, draining: bool = False) -> MarketView:
        """Look once: act if the chain has a new block, then take what was done beside. Returns what it acted on."""
        head = self._head_tracker.poll()
        # While it ends, every look counts: the last one pays the credits out.
        fresh = head != self._seen or draining
        if fresh:
            self._market.read()
        view = self._market.view(head, draining)
        if fresh:
            self._step(view)
            self._seen = head
        self._collect(view)
        self._seats.play(view)
        self._fees.poll(head)
        self._beat(view, fresh)
        return view

    def _beat(self, view: MarketView, fresh: bool) -> None:
        """Writes the numbers of this pass for monitoring."""
        if fresh:
            self._waiting = self._backlog.waiting(view)
        me, ledger = self._party.address, view.ledger
        own = tuple(key for key, owner in ledger.locks.items() if owner == me)
        games = tuple(g.id for g in ledger.games.values() if g.challenger == me)
        # Up to the ledger's block, which is the head's or a later one: what is at stake is the ledger's word.
        self._idle.see(bool(own or games), view.block, me in ledger.stakers)
        VITALS.beat(
            view.head.number, view.now, games, own,
            {
                "jobs_known": sum(not job.done for job in ledger.jobs.values()),
                "jobs_refused": self._backlog.refusals, "replays_waiting": self._waiting,
            },
        )  # fmt: skip

    def close(self) -> None:
        """Stops the work of all threads; sent transactions stay sent."""
        self._market.close()
        end_all()
        self._seats.close()
        self._replayer.close()
        self._prover.close()
        self._lists.close()
        if self._duties is not None:
            self._duties.close()

    def _step(self, view: MarketView) -> None:
        """Acts on a new block."""
        self._printer.now = view.now
        self._seats.tell_ends(view)
        for claim in self._seats.leave_undone(view):
            self._backlog.reopen(claim)
        self._seats.play(view)
        # INVARIANT: nothing that a stranger published keeps a running game's move.
        for part in self._parts():
            self._boundary.run(partial(part, view), part.__qualname__, where=part.__qualname__)

    def _parts(self) -> Iterator[Callable[[MarketView], None]]:
        yield self._challenger.step
        yield self._prover.step
        yield self._demander.step
        yield self._end_abandoned
        if self._duties is not None:
            yield self._duties.step
        yield self._replayer.step
        yield self._let_go
        yield self._withdraw
        yield self._tend

    def _end_abandoned(self, view: MarketView) -> None:
        """Ends games that both of their sides have abandoned."""
        for key, call in self._abandoned.due(view.ledger, view.now):
            # INVARIANT: however many games strangers leave, no move of an own one waits until they are ended.
            self._sender.try_again(key, call)

    def _collect(self, view: MarketView) -> None:
        """Processes the worker thread's result, if there is one, and starts its next work at once."""
        if self._replayer.done:
            found = self._replayer.take(view)
            if found is not None:
                self._act_on(found, view)
            self._replayer.begin(view)

    def _act_on(self, found: Replayed, view: MarketView) -> None:
        record, game = found.task.claim, found.task.game
        if game is not None:
            self._seats.join(game.id, record.id, found.audit.held)
            return
        self._demander.demand_payload(record, found.payload, found.lacking)
        if self._duties is not None:
            self._duties.audited(record, found.audit)
        if found.audit.matches:
            self._backlog.matched(record, found.seconds, found.payload)
        else:
            self._challenger.add(record, found.audit)
            self._backlog.mismatched(record, found.audit.t, found.seconds)
            self._challenger.step(view)

    def _let_go(self, view: MarketView) -> None:
        """Drops loaded jobs in which nothing is left to do."""
        over = decide.over(self._party.address, view.ledger) - self._challenger.jobs
        self._jobs.let_go(over - {self._replayer.job})
        if self._duties is not None:
            self._duties.let_go(over)

    def _withdraw(self, view: MarketView) -> None:
        running = len(self._seats) + len(self._challenger)
        if decide.may_withdraw(running, view.ledger.jobs.values(), view.draining):
            self._wallet.withdraw(view.head.number)

    def _tend(self, _: MarketView) -> None:
        self._sender.settle()

    def _at_rest(self, view: MarketView) -> bool:
        """Tells if the process can end now without a loss."""
        done = self._duties is None or self._duties.at_rest(view)
        if not done or not self._seats.at_rest(view) or len(self._challenger) or not self._sender.idle:
            return False
        return self._idle.at(self._finality.poll(view.head.number))
