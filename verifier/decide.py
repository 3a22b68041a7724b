"""A verifier's decisions: pure functions of the chain's events and of the verifier's own records.

They choose the claim to replay, the game to open on it, the games to sit at, and the time to withdraw credits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from lockstep.market.ledger import ClaimRecord, GameRecord, JobLedger, Ledger, RoundLedger
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.jobs import NEVER, JobParams, Phase
from lockstep.protocol.market.types import Audit, AuditStatus
from lockstep.protocol.types import Address, ClaimId, JobId, Seconds, TraceRoot, Wei

RETRY_SECONDS = Seconds(5)
"""Chain time until a claim whose data could not be had is tried again."""

ENDED = (Phase.FINAL, Phase.VOID)


class AuditResult(StrEnum):
    """The outcome of a claim's audit, as the event `audited` reports it."""

    MATCH = "match"
    MISMATCH = "mismatch"
    UNAVAILABLE = "unavailable"
    """Its inputs could not be fetched so far; the replay is retried while its window is open."""
    CLOSED = "closed"
    """Its challenge window ended before it was replayed."""


@dataclass(frozen=True)
class Candidate:
    """A revealed claim that a verifier may replay."""

    record: ClaimRecord
    window_ends: Seconds
    """Chain time from which no game can be opened on it; a lower bound while `undecided`."""
    stands: bool
    """True if it is neither convicted, nor merged again, nor final, nor of a voided round."""
    undecided: bool = False
    """True if a round that is not merged yet may build on it: its window lasts at least until that merge."""

    def open_at(self, now: Seconds) -> bool:
        """Returns True if a game may be opened on the claim in a block at `now`."""
        return self.stands and (self.undecided or now < self.window_ends)

    def is_settled(self, settled: Mapping[ClaimId, TraceRoot]) -> bool:
        """Returns True if `settled` holds the claim with the trace that it has now."""
        return settled.get(self.record.id) == self.record.trace_root


def candidates(ledger: Ledger, params: Mapping[JobId, JobParams]) -> Iterator[Candidate]:
    """Yields every claim of the jobs whose parameters are known."""
    for job in ledger.jobs.values():
        if job.id in params:
            for round_ in job.all_rounds():
                yield from _of_round(job, round_, params[job.id])


def _of_round(job: JobLedger, round_: RoundLedger, params: JobParams) -> Iterator[Candidate]:
    for record in (*round_.claims.values(), *round_.merges):
        yield _candidate(job, round_, record, params)


def _candidate(job: JobLedger, round_: RoundLedger, record: ClaimRecord, params: JobParams) -> Candidate:
    over = round_.phase in ENDED or job.rounds.get(round_.number) is not round_
    ends = Seconds(record.claimed_at + params.windows.challenge_seconds)
    stands = not (over or record.convicted or record.replaced)
    if record.is_merge or not params.role.carries or not stands:
        return Candidate(record, ends, stands)
    # INVARIANT: a claim that others may stand on can be challenged until it can be final, and no longer.
    final = job.over_at(params, round_.number)
    return Candidate(record, final or ends, stands, final == NEVER)


def next_claim(
    found: Iterable[Candidate], settled: Mapping[ClaimId, TraceRoot], delayed: Collection[ClaimId], now: Seconds,
    turns: Mapping[JobId, int] | None = None,
) -> Candidate | None:  # fmt: skip
    """Returns the claim to replay now, neither settled nor in back-off: of the jobs with the fewest unfinished turns,
    the claim whose window ends first."""
    waiting = [c for c in found if c.open_at(now) and not c.is_settled(settled) and c.record.id not in delayed]
    had = turns or {}
    return min(
        waiting, key=lambda c: (had.get(c.record.job, 0), c.window_ends, c.record.round, c.record.slot), default=None
    )


def missed(found: Iterable[Candidate], settled: Mapping[ClaimId, TraceRoot], now: Seconds) -> list[Candidate]:
    """Returns the claims whose challenge window ended before they were settled."""
    return [c for c in found if not c.open_at(now) and not c.is_settled(settled)]


def nonce_of(claim: ClaimId, me: Address, games: Iterable[GameRecord]) -> int | None:
    """Returns the nonce of the game to open on a wrong claim; None if this account has opened one before, whatever its
    result."""
    # INVARIANT: one claim, one game: a crash opens nothing twice, and a lost argument is not repeated at a new price.
    return None if any(g.claim == claim and g.challenger == me for g in games) else 0


def may_challenge(claim: ClaimRecord, ledger: Ledger, params: JobParams, now: Seconds) -> bool:
    """Returns True while a game may be opened on a claim, or could be if its reveal is mined again.

    A claim that the ledger does not hold was taken back by a reorganisation, and its owner's reveal may come again.
    """
    found = ledger.find(claim.id)
    if found is None:
        return now < claim.claimed_at + params.windows.challenge_seconds
    return _candidate(*found, params).open_at(now)


def list_due(claim: ClaimRecord, params: JobParams, audit: Audit | None) -> Seconds:
    """Returns the chain time until which an owner may publish its list of state roots, in a job that draws witnesses.

    `audit` is the round's, if one is known; the list follows the witnesses' commitments. JobRules leaves time for a
    game after it.
    """
    if audit is not None and audit.status == AuditStatus.DRAWN:
        return Seconds(audit.commit_ends + params.windows.audit_seconds)
    windows = params.role.reveal_seconds + params.role.attest_seconds + 2 * params.windows.audit_seconds
    return Seconds(claim.claimed_at + windows)


def awaits_list(due: Seconds, params: JobParams, now: Seconds, *, fetching: bool) -> bool:
    """Returns True while a game is held back until its claim's list of state roots arrives, at the latest at `due`.

    A list that is being fetched at that time has half a window more; the other half is left to open the game.
    """
    # INVARIANT: a lie is challenged within its window, whatever nobody answers for.
    return now < due + (params.windows.audit_seconds // 2 if fetching else 0)


def seats(me: Address, games: Iterable[GameRecord], taken: Collection[bytes]) -> list[GameRecord]:
    """Returns own running games that this process does not play yet: after a restart, all of them."""
    return [g for g in games if g.challenger == me and g.verdict is Verdict.NONE and g.id not in taken]


def over(me: Address, ledger: Ledger) -> set[JobId]:
    """Returns the jobs that are done and for which this account may not have to compute any more: no own game and no
    demand is open in them."""
    games = {g.claim for g in ledger.games.values() if g.challenger == me}
    needed = {ledger.places[claim][0] for claim in games if claim in ledger.places}
    needed |= {demand.job for demand in ledger.demands.values()}
    return {job.id for job in ledger.jobs.values() if job.done} - needed


def ended(me: Address, games: Iterable[GameRecord], told: Collection[bytes]) -> list[GameRecord]:
    """Returns own games that are over and whose end was not printed yet."""
    return [g for g in games if g.challenger == me and g.verdict is not Verdict.NONE and g.id not in told]


def name_of_end(verdict: Verdict) -> str:
    """Returns the name of the event that reports a game's end."""
    if verdict in (Verdict.FRAUD, Verdict.TIMEOUT):
        return "won"
    return "lost" if verdict is Verdict.REJECTED else "void"


def deposit_due(free: Wei, bond: Wei) -> Wei:
    """Returns the stake, in wei, to deposit before a game is opened."""
    return Wei(max(0, bond - free))


def may_withdraw(running: int, jobs: Iterable[JobLedger], draining: bool) -> bool:
    """Returns True if earned credits can be paid out: no own game runs, and all jobs are done or this process ends."""
    known = list(jobs)
    return running == 0 and (draining or (bool(known) and all(job.done for job in known)))
