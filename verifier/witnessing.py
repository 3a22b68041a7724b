"""The role of a witness: enrol, look where it is drawn as far as its own secret says, commit, reveal, collect.

    drawn -> replay S_1 .. S_t* -> commit -> (the owner publishes its list) -> compare -> reveal -> settle

Secrets and what was seen are on disk before anything that relies on them is sent; everything else the chain says again,
so this may be killed at any line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import islice
from secrets import token_bytes
from typing import Any

import structlog

from lockstep.chain.contracts import Call
from lockstep.execution import capacity, footprint, merging
from lockstep.execution.jobs import load
from lockstep.node.ledger import AuditLedger, ClaimRecord, JobLedger, Ledger, RoundLedger
from lockstep.node.party import Head, Party
from lockstep.node.replay import PublicData, published_trace
from lockstep.node.replay import Replay as Replay
from lockstep.protocol import merkle
from lockstep.protocol.errors import (
    ChainError,
    FundsError,
    LockstepError,
    ProgramInvalid,
    RowMissing,
    TryLater,
    Unfit,
    Unreachable,
)
from lockstep.protocol.jobs import Body, JobParams, Phase
from lockstep.protocol.market import draws, ids
from lockstep.protocol.market.receipts import FINAL_REPORTS, WITNESS, Report, last_chance, mask_of
from lockstep.protocol.market.types import AuditStatus, Duty, DutyStatus, Standing, Word
from lockstep.protocol.types import AuditId, ClaimId, Digest, JobId, Seconds, StateRoot, TraceRoot, Wei
from verifier.bench import Bench, Cancelled
from verifier.memory import Memory, Verdict

LINKS = 4096
"""Preimages in a hash chain: as many duties."""

RETRY_SECONDS = Seconds(3)
"""Of chain time: how long a duty rests whose data could not be had, or whose transaction is not due."""

LOAD_SECONDS = Seconds(15)
"""The same for a job that could not be loaded."""

NEVER = Seconds(1 << 62)

COURTESY_SECONDS = Seconds(30)
"""Of chain time: how long duties of others are left to others."""

ENDED = (Phase.FINAL, Phase.FAILED, Phase.VOID)

log = structlog.get_logger(__name__)


class Due(Enum):
    """What a duty of one's own waits for."""

    LOOK = auto()
    """Replay to t* and commit, while commitments are taken."""
    SPEAK = auto()
    """Compare with the published list and reveal."""
    SETTLE = auto()
    NOTHING = auto()


def due(audit: AuditLedger, duty: Duty, decided: bool, now: Seconds) -> Due:
    """What is to be done about a duty at `now`; `decided`: its round is over, for good or ill."""
    a = audit.state
    if duty.status == DutyStatus.DRAWN:
        return Due.LOOK if now < a.commit_ends else Due.SETTLE
    if duty.status == DutyStatus.COMMITTED:
        if now >= a.reveal_ends:
            return Due.SETTLE
        return Due.SPEAK if now >= a.commit_ends else Due.NOTHING
    if duty.status in (DutyStatus.AGREED, DutyStatus.DIFFERED):
        return Due.SETTLE if decided else Due.NOTHING
    return Due.NOTHING


def agrees(seen: tuple[StateRoot, ...], published: tuple[StateRoot, ...]) -> bool:
    """Whether every root of the list up to t* is one's own."""
    return published[: len(seen)] == seen


def to_draw(ledger: Ledger, job: JobLedger, block: int) -> Iterator[int]:
    """Rounds of a job whose audit may have to be opened or drawn: the market's phase decides."""
    for r, round_ in job.rounds.items():
        if not round_.claims or round_.merge_in is not None or round_.phase in ENDED:
            continue
        known = ledger.audits.get(ids.audit_id(job.id, r, round_.attempt))
        # A transaction sent now is executed in the next block at the earliest.
        if known is None or (known.state.status == AuditStatus.DRAWING and block >= known.state.beacon_block):
            yield r


def round_of(ledger: Ledger, audit: AuditLedger) -> tuple[JobLedger, RoundLedger]:
    """The audit's round, of the audit's attempt."""
    job = ledger.jobs[audit.state.job]
    found = (r for r in job.all_rounds() if (r.number, r.attempt) == (audit.state.round, audit.state.attempt))
    return job, next(found)


def decided(ledger: Ledger, audit: AuditLedger, duty: Duty) -> bool:
    """Whether a duty that has spoken can be closed: its round is over or begun anew, or its word is shown false."""
    job, round_ = round_of(ledger, audit)
    over = job.done or round_.phase in ENDED or job.rounds[round_.number] is not round_
    return over or (duty.status == DutyStatus.AGREED and round_.claims[duty.slot].convicted)


@dataclass(frozen=True)
class Look:
    """What the bench works on: a duty to look into, or (i = None) the payloads of its round."""

    audit: AuditId
    i: int | None


@dataclass(frozen=True)
class Trial:
    """What the bench works on: how fast this machine runs a job."""

    job: JobId


class Witnessing:
    """One witness, in every job that draws some."""

    def __init__(
        self, party: Party, memory: Memory, suspect: Callable[[ClaimRecord], None], stake: Callable[[Wei, str], None],
        ask_row: Callable[[JobId, RowMissing], None], tell: Callable[..., None],
    ) -> None:  # fmt: skip
        """`suspect` has a claim replayed to its end and challenged; `stake` deposits what is missing of an amount;
        `ask_row` demands a row of a dataset that cannot be had."""
        self._party = party
        self._memory = memory
        self._suspect = suspect
        self._stake = stake
        self._ask_row = ask_row
        self._tell = tell
        self._bench: Bench[Look | Trial, Any] = Bench()
        self._fit: set[JobId] = set()
        """Jobs whose duties this machine can do in time."""
        self._public: dict[JobId, PublicData] = {}
        self._params: Mapping[JobId, JobParams] = {}
        self._replayed: dict[ClaimId, Replay] = {}
        """Claims whose list was withheld, replayed to their end."""
        self._reports: dict[AuditId, dict[int, Report]] = {}
        self._rest: dict[object, Seconds] = {}
        self._told: set[object] = set()
        self._now = Seconds(0)

    def step(self, head: Head, ledger: Ledger, params: Mapping[JobId, JobParams], draining: bool) -> None:
        """One look at the chain."""
        self._now, self._params = head.time, params
        self._take(ledger)
        # What is owed comes first: a job that is tried takes the bench.
        for audit in list(ledger.audits.values()):
            if audit.state.status == AuditStatus.DRAWN and audit.state.job in params:
                self._audit(ledger, audit)
        for job in ledger.jobs.values():
            if job.id in params and params[job.id].role.witnesses:
                self._attend(ledger, job, head, draining or job.done)

    def audited(self, record: ClaimRecord, found: Replay) -> None:
        """A suspect claim was replayed to its end."""
        self._replayed[record.id] = replace(found, final=None)

    def at_rest(self, ledger: Ledger) -> bool:
        """Tells if no duty of ours can be failed by leaving now."""
        waits = (Due.LOOK, Due.SPEAK)
        return not any(
            due(audit, duty, False, self._now) in waits or duty.status == DutyStatus.COMMITTED
            for audit in ledger.audits.values()
            for duty in audit.duties
            if duty.account == self._party.address and self._now < audit.state.reveal_ends
        )

    def staked(self, ledger: Ledger) -> bool:
        """Tells if a stake of ours in a job that is done is still locked."""
        done = (job.id for job in ledger.jobs.values() if job.done)
        return any(draws.stake_key(job, self._party.address) in ledger.locks for job in done)

    def close(self) -> None:
        """Stop what is being computed."""
        self._bench.close()

    # -- the list

    def _attend(self, ledger: Ledger, job: JobLedger, head: Head, draining: bool) -> None:
        """Be on the job's list, off it while this process ends; have its rounds drawn."""
        contract, me = self._party.contracts.witnesses, self._party.address
        if draining:
            # INVARIANT: a witness's stake comes back though its job has ended, once its duties are closed.
            locked = draws.stake_key(job.id, me) in ledger.locks
            if locked and contract.witness(job.id, me).standing == Standing.LISTED:
                self._submit(contract.retire(job.id), f"witness/retire/{job.id.hex()}/{ledger.heads[job.id, me].hex()}")
            return
        # INVARIANT: one enrolment a job: who was taken off the list has failed a duty, and a person should look why.
        if (job.id, me) not in ledger.heads and self._ready(("enrol", job.id)):
            if job.id in self._fit:
                self._enrol(job.id)
            elif self._bench.subject is None and self.at_rest(ledger):
                self._bench.begin(Trial(job.id), lambda go_on: self._try(job.id))
        for r in to_draw(ledger, job, head.number):
            if self._party.contracts.market.phase(job.id, r) == Phase.ATTESTING:
                attempt = job.rounds[r].attempt
                opened = ids.audit_id(job.id, r, attempt) in ledger.audits
                key = f"witness/draw/{job.id.hex()}/{r}/{attempt}/{head.number if opened else 'open'}"
                self._submit(contract.draw(job.id, r), key)

    def _try(self, job: JobId) -> None:
        """Raises Unfit if this machine is. On the bench."""
        # INVARIANT: a witness enrols only where its machine can look as far as a duty may ask.
        public = self._public_of(job, footprint.fitting(footprint.verifier))
        capacity.keep_up(public.job, capacity.require_witness, self._party.chain_pace(), footprint.verifier)

    def _tried(self, job: JobId, tried: Future[None]) -> None:
        try:
            tried.result()
        except Cancelled:
            return
        except (Unfit, ProgramInvalid) as error:
            # A slow machine may have been busy; a Program stays what it is.
            self._rest["enrol", job] = (
                Seconds(self._now + capacity.AGAIN_SECONDS) if isinstance(error, Unfit) else NEVER
            )
            if ("refused", job) not in self._told:
                self._told.add(("refused", job))
                self._tell("refused", job=job.hex(), code=error.code, message=error.message)
        except LockstepError as error:
            log.warning("a job cannot be witnessed yet", job=job.hex(), why=error.message, hint=error.hint)
            self._rest["enrol", job] = Seconds(self._now + LOAD_SECONDS)
        except Exception:
            # A defect that a stranger's job found ends the witnessing of that job alone.
            log.exception("a job is not witnessed", job=job.hex())
            self._rest["enrol", job] = NEVER
        else:
            self._fit.add(job)

    def _enrol(self, job: JobId) -> None:
        self._rest["enrol", job] = Seconds(self._now + RETRY_SECONDS)
        secret = token_bytes(32)
        top = draws.chained(Digest(secret), LINKS)
        try:
            self._stake(self._params[job].prices.witness_stake, f"witness/{job.hex()}")
            # INVARIANT: the chain's bottom is on disk before anybody sees its top.
            self._memory.keep_chain(top, secret)
            self._party.outbox.send(self._party.contracts.witnesses.enrol(job, top), f"witness/enrol/{top.hex()}")
        except (ChainError, FundsError, TryLater) as error:
            log.warning("not enrolled", job=job.hex(), why=error.message, hint=error.hint)
            return
        self._tell("enrolled", job=job.hex())

    # -- audits

    def _audit(self, ledger: Ledger, audit: AuditLedger) -> None:
        mine = [i for i, duty in enumerate(audit.duties) if duty.account == self._party.address]
        if mine:
            self._attest(ledger, audit, mine)
        for i, duty in enumerate(audit.duties):
            if duty.status == DutyStatus.CLOSED:
                continue
            to_do = due(audit, duty, decided(ledger, audit, duty), self._now)
            if to_do is Due.SETTLE:
                self._settle(audit, i, i in mine)
            elif i in mine:
                self._do(ledger, audit, i, to_do)

    def _do(self, ledger: Ledger, audit: AuditLedger, i: int, to_do: Due) -> None:
        duty = audit.duties[i]
        if duty.status == DutyStatus.DIFFERED:
            self._suspect(round_of(ledger, audit)[1].claims[duty.slot])
        if to_do is Due.LOOK:
            self._look(ledger, audit, i)
        elif to_do is Due.SPEAK and self._ready((audit.id, i)):
            try:
                self._speak(ledger, audit, i)
            except (Unreachable, TryLater) as error:
                log.info("a verdict waits", why=error.message)
                self._rest[audit.id, i] = Seconds(self._now + RETRY_SECONDS)

    def _settle(self, audit: AuditLedger, i: int, is_mine: bool) -> None:
        duty, ends = audit.duties[i], audit.state.reveal_ends
        if not is_mine and self._now < ends + COURTESY_SECONDS:
            return
        if self._ready(("settle", audit.id, i)):
            self._rest["settle", audit.id, i] = Seconds(self._now + RETRY_SECONDS)
            key = f"witness/settle/{audit.id.hex()}/{i}/{duty.status.name}/{audit.state.beacon.hex()}"
            self._submit(self._party.contracts.witnesses.settle(audit.id, i), key)

    # -- looking

    def _look(self, ledger: Ledger, audit: AuditLedger, i: int) -> None:
        """Commit to what was seen, or begin to look."""
        seen = self._memory.verdict(audit.id, i, audit.state.beacon)
        if seen is not None:
            self._commit(ledger, audit, i, seen)
        elif self._bench.subject is None and self._ready((audit.id, i)):
            t = self._step_of(ledger, audit, i)
            job, round_ = round_of(ledger, audit)
            record = round_.claims[audit.duties[i].slot]
            self._bench.begin(Look(audit.id, i), lambda go_on: self._replay(ledger, job, round_, record, t, go_on))

    def _replay(
        self, ledger: Ledger, job: JobLedger, round_: RoundLedger, record: ClaimRecord, t: int,
        go_on: Callable[[], None],
    ) -> tuple[StateRoot, ...]:  # fmt: skip
        """S_1 .. S_t. On the bench."""
        run = self._public_of(job.id).run_of(job, round_, record)
        roots = []
        for _, _, root in islice(run.states(), t):
            go_on()
            roots.append(root)
        return tuple(roots)

    def _take(self, ledger: Ledger) -> None:
        """What the bench has done."""
        work = self._bench.take()
        if work is None:
            return
        look = work.subject
        if isinstance(look, Trial):
            self._tried(look.job, work.future)
            return
        try:
            found = work.future.result()
        except Cancelled:
            return
        except LockstepError as error:
            if isinstance(error, RowMissing) and look.audit in ledger.audits:
                # Who is drawn and cannot look is fined: the demand protects.
                self._ask_row(ledger.audits[look.audit].state.job, error)
            log.warning("a duty cannot be looked into yet", why=error.message, hint=error.hint)
            self._rest[look.audit, look.i] = Seconds(self._now + RETRY_SECONDS)
            return
        except Exception:
            log.exception("a duty cannot be looked into", audit=look.audit.hex(), duty=look.i)
            self._rest[look.audit, look.i] = Seconds(self._now + LOAD_SECONDS)
            return
        if look.i is None:
            self._reports[look.audit] = found
            self._rest[look.audit, None] = Seconds(self._now + 1)
        elif look.audit in ledger.audits:
            # INVARIANT: what was seen, and its salt, are on disk before the commitment to them is sent.
            beacon = ledger.audits[look.audit].state.beacon
            self._memory.keep_verdict(Verdict(look.audit, look.i, beacon, Digest(token_bytes(32)), found))
            self._tell("looked", audit=look.audit.hex(), duty=look.i, t=len(found), seconds=round(work.seconds, 3))

    def _commit(self, ledger: Ledger, audit: AuditLedger, i: int, seen: Verdict) -> None:
        preimage = self._preimage(ledger, audit, i)
        bound = draws.commitment(
            self._claim_of(audit, i), self._party.address, seen.roots[-1], preimage, seen.salt
        )  # fmt: skip
        call = self._party.contracts.witnesses.commit(audit.id, i, bound)
        self._submit(call, f"witness/commit/{audit.id.hex()}/{i}/{bound.hex()}")

    # -- speaking

    def _speak(self, ledger: Ledger, audit: AuditLedger, i: int) -> None:
        """Reveal, once the list is there or the claim has been replayed to its end without one."""
        _, round_ = round_of(ledger, audit)
        record = round_.claims[audit.duties[i].slot]
        seen = self._memory.verdict(audit.id, i, audit.state.beacon)
        if seen is None:
            log.error("a committed verdict is not in this home", audit=audit.id.hex())
            return
        params = self._params[audit.state.job]
        listed = published_trace(self._party.store, record, params.role.transitions) if record.trace_cid else None
        if listed is None:
            listed = self._without_list(audit, record, params)
            if listed is None and record.id not in self._replayed:
                return
        same = listed is not None and agrees(seen.roots, listed)
        self._reveal(ledger, audit, i, record, seen, listed if same else None)
        if not same:
            self._suspect(record)

    def _without_list(self, audit: AuditLedger, record: ClaimRecord, params: JobParams) -> tuple[StateRoot, ...] | None:
        """The claim's list as our own full replay has it; None while that is not there, or if the claim is wrong."""
        if record.id in self._replayed:
            found = self._replayed[record.id]
            return tuple(found.held.trace) if found.matches else None
        if self._now >= audit.state.commit_ends + params.windows.audit_seconds // 2:
            self._suspect(record)
        return None

    def _reveal(
        self, ledger: Ledger, audit: AuditLedger, i: int, record: ClaimRecord, seen: Verdict,
        listed: tuple[StateRoot, ...] | None,
    ) -> None:  # fmt: skip
        """Agree, with the place of S_t* in the claim's list, or differ."""
        t = len(seen.roots)
        proof: tuple[Digest, ...] = ()
        if listed is not None:
            proof = tuple(merkle.proof(merkle.levels([merkle.leaf(root) for root in listed]), t - 1))
        body = Body(TraceRoot(record.trace_root), StateRoot(record.out), StateRoot(record.out2))
        word = Word(self._preimage(ledger, audit, i), seen.roots[-1], seen.salt, listed is not None, body, proof)
        key = f"witness/reveal/{audit.id.hex()}/{i}/{seen.salt.hex()}/{word.agrees}"
        self._submit(self._party.contracts.witnesses.reveal(audit.id, i, word), key)
        if key not in self._told:
            self._told.add(key)
            self._tell(
                "witnessed", claim=record.id.hex(), round=record.round, slot=record.slot, t=t,
                verdict="agrees" if word.agrees else "differs",
            )  # fmt: skip

    # -- receipts

    def _attest(self, ledger: Ledger, audit: AuditLedger, mine: list[int]) -> None:
        """Say which payloads of the round are there, as its witness, while receipts are taken."""
        job, round_ = round_of(ledger, audit)
        a, market, key = audit.state, self._party.contracts.market, f"witness/attest/{audit.id.hex()}"
        closed = round_.merge_in is not None or round_.phase in ENDED or job.rounds.get(a.round) is not round_
        if closed or key in self._told or not self._ready((audit.id, None)):
            return
        stored = market.round(a.job, a.round)
        if market.phase(a.job, a.round) != Phase.ATTESTING:
            return
        reports = self._reports.get(audit.id)
        last = last_chance(stored.attest_ends, self._params[a.job].role.attest_seconds, self._now)
        missing = reports is None or any(report not in FINAL_REPORTS for report in reports.values())
        if missing and (reports is None or not last):
            if self._bench.subject is None:
                payloads, known = round_.payloads, reports or {}
                self._bench.begin(Look(audit.id, None), lambda go_on: self._judge(a.job, payloads, known))
            return
        assert reports is not None
        silent = [WITNESS + i for i in mine if not stored.spoke >> (WITNESS + i) & 1]
        given = self._party.contracts.sign_receipts(
            self._party.account, a.job, a.round, a.attempt, mask_of(reports), silent
        )
        if given and self._submit(market.attest(a.job, a.round, given), key):
            self._told.add(key)

    def _judge(
        self, job: JobId, payloads: Mapping[int, merging.Payload], known: Mapping[int, Report]
    ) -> dict[int, Report]:
        """What each revealed payload is. On the bench."""
        judged = merging.judge_payloads(self._public_of(job).job, self._party.store, payloads, known)
        return {**known, **{slot: report for slot, report, _ in judged}}

    # -- inside

    def _public_of(self, job: JobId, fits: footprint.Fits | None = None) -> PublicData:
        if job not in self._public:
            store, settings = self._party.store, self._party.settings
            loaded = load(job, self._params[job], store, settings.threads, settings.path, fits=fits)
            self._public[job] = PublicData(loaded, store)
        return self._public[job]

    def _claim_of(self, audit: AuditLedger, i: int) -> ClaimId:
        a = audit.state
        return ids.claim_id(a.job, a.round, a.attempt, audit.duties[i].slot)

    def _preimage(self, ledger: Ledger, audit: AuditLedger, i: int) -> Digest:
        """Of our chain, at the duty's serial."""
        secret = self._memory.secret_of(ledger.heads[audit.state.job, self._party.address])
        if secret is None:
            raise LockstepError(
                "the hash chain that this account enrolled with is not in this home",
                hint="use the home that enrolled it, or retire",
            )
        return draws.chained(Digest(secret), LINKS - audit.duties[i].serial)

    def _step_of(self, ledger: Ledger, audit: AuditLedger, i: int) -> int:
        """t*."""
        a = audit.state
        return draws.step_of(self._preimage(ledger, audit, i), a.beacon, i, self._params[a.job].role.transitions)

    def _ready(self, what: object) -> bool:
        return self._rest.get(what, self._now) <= self._now

    def _submit(self, call: Call, key: str) -> bool:
        """Send once; the chain's events say what came of it. Whether it was or had been sent."""
        outbox = self._party.outbox
        try:
            known = outbox.receipt(key)
            if known is not None and not known.succeeded:
                outbox.forget(key)
            outbox.submit(call, key)
        except (ChainError, FundsError, TryLater) as error:
            log.info("not sent", call=call.label, why=error.message)
            return False
        return True
