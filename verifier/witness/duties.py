"""The duties of a witness: first those that are due, then the enrolments and draws of each job.

    drawn -> replay S_1 .. S_t* -> commit -> (the owner publishes its list) -> compare -> reveal -> settle

Secrets and observations are on disk before any transaction that relies on them is sent, and the chain has everything
else: the process may be killed at any line.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.execution.box import loading
from lockstep.market.ledger import AuditLedger, ClaimRecord, JobLedger
from lockstep.market.replay import Replay
from lockstep.market.turns import COURTESY_SECONDS, DRAWN, SLACK_SHARE, TURN_SECONDS, Turns
from lockstep.protocol.jobs import Phase
from lockstep.protocol.market import ids
from lockstep.protocol.market.receipts import demands_end
from lockstep.protocol.market.types import AuditStatus, DutyStatus
from lockstep.protocol.types import AuditId, JobId, Seconds
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.keyed_executor import KeyedExecutor
from lockstep.runtime.party import Party
from lockstep.runtime.sender import Sender
from verifier.choosing import Backlog
from verifier.demanding import Demander
from verifier.journal import Journal
from verifier.loading import LoadedJobs
from verifier.reading import MarketView
from verifier.root_lists import Lists
from verifier.staking import Wallet
from verifier.telling import EventPrinter
from verifier.witness.attesting import Attester, Judgement
from verifier.witness.decide import DutyAct, decided, next_act, owes, round_of, staked, to_draw
from verifier.witness.enrolling import Enrolment, Trial
from verifier.witness.replaying import RETRY_SECONDS, DutyReplayer, ReplayTask
from verifier.witness.revealing import VerdictRevealer


class Duties:
    """Serves as one account's witness in every job that draws some."""

    def __init__(
        self, party: Party, journal: Journal, sender: Sender[None], wallet: Wallet, demander: Demander,
        backlog: Backlog, lists: Lists, printer: EventPrinter,
    ) -> None:  # fmt: skip
        """`backlog` replays suspects to their end, and has them challenged if they are wrong."""
        self._jobs = loaded = LoadedJobs(party, loading.load)
        self._me = party.address
        self._market = party.contracts.market
        self._contract = party.contracts.witnesses
        self._sender = sender
        self._backlog = backlog
        self._executor: KeyedExecutor[Trial | ReplayTask | Judgement, object] = KeyedExecutor("witness")
        """One thread; work is started only while it is free."""
        self._enrolment = Enrolment(party, journal, loaded, self._executor, sender, wallet, printer)
        self._replayer = DutyReplayer(
            party, journal, loaded, self._executor, self._enrolment, demander, backlog, sender, printer
        )
        self._revealer = VerdictRevealer(party, journal, self._enrolment, backlog, lists, sender, printer)
        self._attester = Attester(party, loaded, self._executor, demander, sender)
        self._turns = Turns(party.address)
        self._inclusion: Seconds | None = None
        self._settling: Backoff[tuple[AuditId, int]] = Backoff(RETRY_SECONDS)

    def step(self, view: MarketView) -> None:
        """Acts on the market at one block."""
        self._take(view)
        # What is owed comes first: a job that is tried takes the worker thread.
        for audit in list(view.ledger.audits.values()):
            if audit.state.status == AuditStatus.DRAWN and audit.state.job in view.params:
                self._audit(view, audit)
        busy = owes(view.ledger, self._me, view.now)
        for job in view.ledger.jobs.values():
            if job.id in view.params and view.params[job.id].role.witnesses:
                self._enrolment.step(view, job, owes=busy)
                if not view.draining and not job.done:
                    self._draw(view, job)

    def audited(self, record: ClaimRecord, found: Replay) -> None:
        """Takes the result of a claim's full replay."""
        self._revealer.audited(record, found)

    def at_rest(self, view: MarketView) -> bool:
        """Tells if leaving now fails no duty and leaves no stake behind."""
        return not owes(view.ledger, self._me, view.now) and not staked(view.ledger, self._me)

    def let_go(self, jobs: Iterable[JobId]) -> None:
        """Drops these jobs, unless the worker thread is busy."""
        if not len(self._executor):
            self._jobs.let_go(jobs)

    def close(self) -> None:
        """Stops the computations in progress."""
        self._executor.close()

    def _take(self, view: MarketView) -> None:
        for work in self._executor.finished():
            if isinstance(work, Trial):
                self._enrolment.take(view, work)
            elif isinstance(work, ReplayTask):
                self._replayer.take(view, work)
            else:
                self._attester.take(view, work)

    def _audit(self, view: MarketView, audit: AuditLedger) -> None:
        mine = [i for i, duty in enumerate(audit.duties) if duty.account == self._me]
        if mine:
            asked = self._replayer.has_asked(view, audit, mine)
            self._attester.attest(view, audit, mine, has_asked=asked)
        for i, duty in enumerate(audit.duties):
            if duty.status == DutyStatus.CLOSED:
                continue
            act = next_act(audit, duty, decided(view.ledger, audit, duty), view.now)
            if act is DutyAct.SETTLE:
                self._settle(view, audit, i, i in mine)
            elif i in mine:
                self._do(view, audit, i, act)

    def _do(self, view: MarketView, audit: AuditLedger, i: int, act: DutyAct) -> None:
        duty = audit.duties[i]
        if duty.status == DutyStatus.DIFFERED:
            self._backlog.suspect(round_of(view.ledger, audit)[1].claims[duty.slot])
        if act is DutyAct.LOOK:
            self._replayer.poll(view, audit, i)
        elif act is DutyAct.SPEAK:
            self._revealer.speak(view, audit, i)

    def _settle(self, view: MarketView, audit: AuditLedger, i: int, is_mine: bool) -> None:
        if self._settling.in_backoff((audit.id, i), view.now):
            return
        if not is_mine:
            late = Seconds(audit.state.reveal_ends + COURTESY_SECONDS)
            drawn = {duty.account for duty in audit.duties} - {audit.duties[i].account}
            if view.now < late or not self._turns.mine(audit.id + i.to_bytes(2, "big"), late, view.now, drawn):
                return
        self._settling.failed((audit.id, i), view.now)
        key = f"witness/settle/{audit.id.hex()}/{i}/{audit.duties[i].status.name}/{audit.state.beacon.hex()}"
        self._sender.try_again(key, self._contract.settle(audit.id, i))

    def _draw(self, view: MarketView, job: JobLedger) -> None:
        """Opens and draws the audits of the job's rounds."""
        for r in to_draw(view.ledger, job, view.head.number):
            if self._market.phase(job.id, r) == Phase.ATTESTING:
                attempt = job.rounds[r].attempt
                audit = ids.audit_id(job.id, r, attempt)
                opened = audit in view.ledger.audits
                if self._may_draw(view, job, r, audit + (b"draw" if opened else b"open")):
                    key = f"witness/draw/{job.id.hex()}/{r}/{attempt}/{view.head.number if opened else 'open'}"
                    self._sender.try_again(key, self._contract.draw(job.id, r))

    def _may_draw(self, view: MarketView, job: JobLedger, r: int, subject: bytes) -> bool:
        """Tells if it is this account's turn among all enrolled ones to draw; after half of the shortest window for
        receipts it is everybody's."""
        if self._inclusion is None:
            self._inclusion = self._market.chain_times().inclusion
        stored = self._market.round(job.id, r)
        window = demands_end(stored.reveal_ends, stored.attest_ends, self._inclusion) - stored.reveal_ends
        # INVARIANT: no round goes without witnesses because those who may have it drawn wait for one another.
        if view.now >= stored.reveal_ends + SLACK_SHARE * window:
            return True
        line = {account for of, account in view.ledger.heads if of == job.id}
        return self._turns.mine(subject, None, view.now, line, turn=min(TURN_SECONDS, window / DRAWN))
