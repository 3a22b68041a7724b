"""Looks into a duty: replays its claim up to the step t* that the witness's own secret says, and commits to S_t*.

What was seen, and the salt that hides it, are on disk before the commitment to them is sent.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from itertools import islice
from secrets import token_bytes
from typing import Any

import structlog

from lockstep.node.backoff import Backoff
from lockstep.node.bench import Bench, Stopped
from lockstep.node.ledger import AuditLedger, ClaimRecord, JobLedger, RoundLedger
from lockstep.node.party import Party
from lockstep.node.replay import WrongSource
from lockstep.node.sender import Sender
from lockstep.protocol.errors import BlobMissing, LockstepError, RowMissing
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.market import draws, ids
from lockstep.protocol.types import AuditId, ClaimId, Digest, Seconds, StateRoot
from verifier.choosing import Backlog
from verifier.demanding import Demander
from verifier.journal import Journal, Observation
from verifier.loading import LoadedJobs
from verifier.reading import MarketView
from verifier.telling import Teller
from verifier.witness.decide import round_of
from verifier.witness.enrolling import LOAD_SECONDS, Enrolment

RETRY_SECONDS = Seconds(3)
"""Chain time until a duty whose data could not be had is tried again."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Look:
    """Work for the bench: a duty to look into."""

    audit: AuditId
    i: int


@dataclass(frozen=True)
class Seen:
    """The result of a duty's replay: the roots S_1 .. S_t*."""

    roots: tuple[StateRoot, ...]
    seconds: float
    """The duration of the replay on this machine."""


class CarryMissing(BlobMissing):
    """The claim that a witness was drawn for starts from a carry that nobody stores."""

    def __init__(self, record: ClaimRecord) -> None:
        super().__init__(
            f"the carry that slot {record.slot} of round {record.round} starts from cannot be had",
            hint="no action is needed: it is demanded, and computed again",
        )
        self.record = record
        """The claim that starts from it."""


class Looker:
    """Looks into own duties and commits to what it saw."""

    def __init__(
        self, party: Party, journal: Journal, jobs: LoadedJobs, bench: Bench[Any, Any], enrolment: Enrolment,
        demander: Demander, backlog: Backlog, sender: Sender[None], teller: Teller,
    ) -> None:  # fmt: skip
        self._party = party
        self._journal = journal
        self._jobs = jobs
        self._bench = bench
        self._enrolment = enrolment
        self._demander = demander
        self._sender = sender
        self._teller = teller
        self._backlog = backlog
        self._rests: Backoff[Look] = Backoff(LOAD_SECONDS)
        self._demanded: set[ClaimId] = set()
        """Claims whose carry was found missing once: it is computed again."""

    def look(self, view: MarketView, audit: AuditLedger, i: int) -> None:
        """Commit to what was seen, or begin to look."""
        seen = self._journal.observation(audit.id, i, audit.state.beacon)
        look = Look(audit.id, i)
        if seen is not None:
            self._commit(view, audit, i, seen)
        elif not len(self._bench) and not self._rests.rests(look, view.now):
            a = audit.state
            params = view.params[a.job]
            t = draws.step_of(self._enrolment.preimage(view.ledger, audit, i), a.beacon, i, params.role.transitions)
            job, round_ = round_of(view.ledger, audit)
            record = round_.claims[audit.duties[i].slot]
            self._bench.begin(look, partial(self._replay, params, job, round_, record, t))

    def take(self, view: MarketView, look: Look) -> None:
        """Keep what was seen, or try again later."""
        audit = view.ledger.audits.get(look.audit)
        try:
            seen: Seen | None = self._bench.take(look)
        except Stopped:
            return
        except LockstepError as error:
            if isinstance(error, WrongSource):
                self._backlog.suspect(error.record)
            if isinstance(error, CarryMissing):
                # To compute it again may take as many claims as its period has rounds: its owner answers, or is left
                # out.
                self._demander.demand_carry(error.record)
            if isinstance(error, RowMissing) and audit is not None:
                # Who is drawn and cannot look is fined: the demand protects.
                self._demander.demand_row(view, audit.state.job, error)
            log.warning(
                "the slot that this witness was drawn for cannot be replayed yet", why=error.message, hint=error.hint
            )
            self._rests.failed(look, view.now, at_most=RETRY_SECONDS)
            return
        except Exception:
            log.exception(
                "the slot that this witness was drawn for cannot be replayed", audit=look.audit.hex(), duty=look.i
            )
            self._rests.failed(look, view.now)
            return
        assert seen is not None, "it was over"
        if audit is not None:
            # INVARIANT: what was seen, and its salt, are on disk before the commitment to them is sent.
            salt = Digest(token_bytes(32))
            self._journal.keep_observation(Observation(look.audit, look.i, audit.state.beacon, salt, seen.roots))
            self._teller.tell(
                "looked", audit=look.audit.hex(), duty=look.i, t=len(seen.roots), seconds=round(seen.seconds, 3)
            )

    def _replay(self, params: JobParams, job: JobLedger, round_: RoundLedger, record: ClaimRecord, t: int) -> Seen:
        """S_1 .. S_t. On the bench."""
        began = time.monotonic()
        public = self._jobs.get(job.id, params)
        looked = record.id in self._demanded or not params.role.carries
        if not looked and public.lacks_carry(job, round_, record.slot):
            self._demanded.add(record.id)
            raise CarryMissing(record)
        run = public.run_of(job, round_, record)
        roots = []
        for _, _, root in islice(run.states(), t):
            self._bench.go_on()
            roots.append(root)
        return Seen(tuple(roots), time.monotonic() - began)

    def _commit(self, view: MarketView, audit: AuditLedger, i: int, seen: Observation) -> None:
        a = audit.state
        claim = ids.claim_id(a.job, a.round, a.attempt, audit.duties[i].slot)
        preimage = self._enrolment.preimage(view.ledger, audit, i)
        bound = draws.commitment(claim, self._party.address, seen.roots[-1], preimage, seen.salt)
        call = self._party.contracts.witnesses.commit(audit.id, i, bound)
        self._sender.try_again(f"witness/commit/{audit.id.hex()}/{i}/{bound.hex()}", call)
