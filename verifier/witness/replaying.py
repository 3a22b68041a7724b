"""Replays the claim of a duty up to the secret step t*, and commits to S_t* and to a leaf of it.

The witness's secret determines both t* and the leaf. The result, and the salt that hides it, are on disk before the
commitment is sent; the leaf's Merkle proof is kept too, since a restarted process no longer has the state.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from secrets import token_bytes
from typing import Any

from lockstep.base.log import Logger
from lockstep.market.ledger import AuditLedger, ClaimRecord, JobLedger, RoundLedger
from lockstep.market.replay import WrongSource
from lockstep.protocol.errors import BlobMissing, LockstepError, RowMissing
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.market import draws, ids
from lockstep.protocol.market.types import DutyStatus, StateLeaf
from lockstep.protocol.types import AuditId, ClaimId, Digest, Seconds, StateRoot
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.keyed_executor import KeyedExecutor, Stopped
from lockstep.runtime.party import Party
from lockstep.runtime.sender import Sender
from verifier.choosing import Backlog
from verifier.demanding import Demander
from verifier.journal import Journal, Observation
from verifier.loading import LoadedJobs
from verifier.reading import MarketView
from verifier.telling import EventPrinter
from verifier.witness.decide import left_out, round_of
from verifier.witness.enrolling import LOAD_SECONDS, Enrolment

RETRY_SECONDS = Seconds(3)
"""Chain seconds until a duty whose data could not be fetched is tried again."""

log = Logger(__name__)


@dataclass(frozen=True)
class ReplayTask:
    """Work for the worker thread: the replay for a duty."""

    audit: AuditId
    i: int


@dataclass(frozen=True)
class ReplayResult:
    """The result of a duty's replay: the roots S_1 .. S_t*."""

    roots: tuple[StateRoot, ...]
    u: int
    """The step whose state the verdict commits to."""
    leaf: StateLeaf
    """A leaf of that state."""
    seconds: float
    """The duration of the replay on this machine."""


class CarryMissing(BlobMissing):
    """The claim that a witness was drawn for starts from a carry that nobody stores."""

    def __init__(self, record: ClaimRecord) -> None:
        super().__init__(
            f"the carry that slot {record.slot} of round {record.round} starts from is unavailable",
            hint="no action is needed: it is demanded on chain, and recomputed if its owner shows it",
        )
        self.record = record
        """The claim that starts from it."""


class DutyReplayer:
    """Replays the claims of own duties and commits to the results."""

    def __init__(
        self, party: Party, journal: Journal, jobs: LoadedJobs, executor: KeyedExecutor[Any, Any], enrolment: Enrolment,
        demander: Demander, backlog: Backlog, sender: Sender[None], printer: EventPrinter,
    ) -> None:  # fmt: skip
        self._party = party
        self._journal = journal
        self._jobs = jobs
        self._executor = executor
        self._enrolment = enrolment
        self._demander = demander
        self._sender = sender
        self._printer = printer
        self._backlog = backlog
        self._backoff: Backoff[ReplayTask] = Backoff(LOAD_SECONDS)
        self._asked: set[ClaimId] = set()
        """Claims whose carry was checked: it is stored, or a demand was considered."""
        self._computing: set[ClaimId] = set()
        """Claims whose missing carry must be computed again: its owner showed it on chain, or no demand was
        possible."""

    def poll(self, view: MarketView, audit: AuditLedger, i: int) -> None:
        """Commits to the kept result of a duty's replay, or starts that replay."""
        seen = self._journal.observation(audit.id, i, audit.state.beacon)
        look = ReplayTask(audit.id, i)
        if seen is not None:
            self._commit(view, audit, i, seen)
        elif not len(self._executor) and not self._backoff.in_backoff(look, view.now):
            job, round_ = round_of(view.ledger, audit)
            record = round_.claims[audit.duties[i].slot]
            params, preimage = view.params[job.id], self._enrolment.preimage(view.ledger, audit, i)
            beacon = audit.state.beacon
            t = draws.step_of(preimage, beacon, i, params.role.transitions)
            place = draws.leaf_word(preimage, beacon, i)
            self._executor.begin(look, partial(self._replay, params, job, round_, record, t, place))

    def has_asked(self, view: MarketView, audit: AuditLedger, mine: Sequence[int]) -> bool:
        """Tells if the carries of these duties' claims were checked: a missing one can be demanded only until every
        receipt is given."""
        _, round_ = round_of(view.ledger, audit)
        records = [round_.claims[audit.duties[i].slot] for i in mine if audit.duties[i].status == DutyStatus.DRAWN]
        return all(not record.carries or record.id in self._asked for record in records)

    def take(self, view: MarketView, look: ReplayTask) -> None:
        """Keeps the result of a replay, or schedules a retry."""
        audit = view.ledger.audits.get(look.audit)
        try:
            seen: ReplayResult | None = self._executor.take(look)
        except Stopped:
            return
        except LockstepError as error:
            if isinstance(error, CarryMissing) and audit is not None:
                if left_out(round_of(view.ledger, audit)[1], error.record.slot):
                    # Nobody owes a word on it.
                    self._backoff.failed(look, view.now)
                    return
                self._demand(error.record)
            if isinstance(error, WrongSource) and audit is not None:
                self._differ(audit, look.i, error.record)
                return
            if isinstance(error, RowMissing) and audit is not None:
                # Who is drawn and cannot look is fined: the demand protects.
                self._demander.demand_row(view, audit.state.job, error)
            log.warning(
                "the slot that this witness was drawn for cannot be replayed yet", why=error.message, hint=error.hint
            )
            self._backoff.failed(look, view.now, at_most=RETRY_SECONDS)
            return
        except Exception:
            log.exception(
                "the slot that this witness was drawn for cannot be replayed", audit=look.audit.hex(), duty=look.i
            )
            self._backoff.failed(look, view.now)
            return
        assert seen is not None, "it was over"
        if audit is not None:
            self._keep(audit, look.i, seen)

    def _keep(self, audit: AuditLedger, i: int, seen: ReplayResult) -> None:
        # INVARIANT: what was seen, its leaf and its salt are on disk before the commitment to them is sent.
        salt = Digest(token_bytes(32))
        found = Observation(audit.id, i, audit.state.beacon, salt, seen.roots, seen.u, seen.leaf)
        self._journal.keep_observation(found)
        self._printer.print_event(
            "looked", audit=audit.id.hex(), duty=i, t=len(seen.roots), seconds=round(seen.seconds, 3)
        )

    def _demand(self, record: ClaimRecord) -> None:
        """Demands the carry that a claim starts from, so that its owner shows it or is excluded: computing it again may
        take as many claims as a carry period has rounds."""
        if not self._demander.demand_carry(record):
            self._computing.add(record.id)
        self._asked.add(record.id)

    def _differ(self, audit: AuditLedger, i: int, source: ClaimRecord) -> None:
        """Keeps the verdict "differs" on a claim that starts from a wrong one, and has the wrong one challenged: both
        fall together."""
        self._backlog.suspect(source)
        self._keep(audit, i, ReplayResult((), 0, StateLeaf(Digest(token_bytes(32))), 0.0))

    def _replay(
        self, params: JobParams, job: JobLedger, round_: RoundLedger, record: ClaimRecord, t: int, place: int
    ) -> ReplayResult:
        """Returns S_1 .. S_t, and the leaf at `place`. Runs on the worker thread.

        The leaf is taken in this process and not where the Programs run, so that a stranger's code learns nothing of a
        secret.
        """
        began = time.monotonic()
        public = self._jobs.get(job.id, params)
        computes = record.id in self._computing or not record.carries
        if not computes and public.lacks_carry(job, round_, record.slot):
            raise CarryMissing(record)
        self._asked.add(record.id)
        run = public.run_of(job, round_, record)
        u = draws.seen_of(t, params.role.transitions)
        roots: list[StateRoot] = []
        leaf: StateLeaf | None = None
        for step, state, root in islice(run.states(), t):
            self._executor.go_on()
            roots.append(root)
            if step == u:
                leaf = run.leaf(u, state, place)
        assert leaf is not None, "u is one of the steps up to t"
        return ReplayResult(tuple(roots), u, leaf, time.monotonic() - began)

    def _commit(self, view: MarketView, audit: AuditLedger, i: int, seen: Observation) -> None:
        a = audit.state
        claim = ids.claim_id(a.job, a.round, a.attempt, audit.duties[i].slot)
        preimage = self._enrolment.preimage(view.ledger, audit, i)
        bound = draws.commitment(claim, self._party.address, seen.state, seen.leaf.digest, preimage, seen.salt)
        call = self._party.contracts.witnesses.commit(audit.id, i, bound)
        self._sender.try_again(f"witness/commit/{audit.id.hex()}/{i}/{bound.hex()}", call)
