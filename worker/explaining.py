"""`worker status` and `worker why`: join the chain's facts with the worker's own notes, and name the next event.

Operators of such workers complain most about earnings that stop without a message. Everything that keeps a worker from
earning has a row here: the process itself, every open job that it has not joined, every round of every job.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import tokens
from lockstep.base.durations import moment
from lockstep.base.machine import readable
from lockstep.base.naming import short
from lockstep.execution.durations import longest_hold
from lockstep.market.ledger import JobLedger, RoundLedger
from lockstep.market.waiting import UNDECIDED, JobSnapshot, RoundSnapshot, of_round
from lockstep.protocol.errors import Crashed, Unreachable, WrongBits
from lockstep.protocol.jobs import NEVER, Phase
from lockstep.protocol.market import views
from lockstep.protocol.types import ClaimId, JobId, Seconds
from lockstep.runtime.guard import lock
from lockstep.runtime.refusals import Refusals
from lockstep.runtime.staking import Holdings
from worker import notes
from worker.account import MEANINGS, Account, reasons_of
from worker.hints import hint_of
from worker.horizon import free_by, latest, merged_by
from worker.notes import Note

if TYPE_CHECKING:
    from lockstep.chain.contracts import Market

OPEN = ("training", "withheld", "pending", "unmerged")
"""Reason codes of rounds that are not over."""
LASTING = (WrongBits.code, Crashed.code)
"""Codes of jobs that are refused until the worker's owner or another build retries them."""
NOT_SEEN = Note("not_seen", "no worker of this home has looked at this job")
NO_GAS = Note("gas", "the account holds no coin for gas: no transaction can be sent")
LEAST_ROOM = 1 << 20
"""Bytes on the home's disk below which nothing can be written there."""
TROUBLES = ("disk_full", "chain_halted", "fee", "key", "doctor", "unreachable", "guard_refused", "crashed")
"""Codes of states, or their parts before the dot, in which a home's worker joins nothing."""
AT_REST = ("disk_full", "key", "doctor", "guard_refused")
"""The codes of `TROUBLES` that keep a worker from starting."""
LOOK_SECONDS = Seconds(30)
"""Seconds after which an account without coin is checked again (chain/outbox.py)."""


@dataclass(frozen=True)
class Next:
    """The next event of a round or a job, with its time."""

    what: str
    at: Seconds | None = None
    """The latest chain time of the event; None: one of the next blocks."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the event as JSON."""
        return {"what": self.what, "at": self.at}

    def __str__(self) -> str:
        return self.what if self.at is None else f"{self.what} by {moment(self.at)}"


@dataclass(frozen=True)
class LockedStake:
    """A stake that its account can lose."""

    what: str
    amount: int
    until: Seconds | None
    """The chain time by which the stake is free if nobody challenges; None: a game or another account's act decides."""


@dataclass(frozen=True)
class WorkerStatus:
    """A worker's status: the process, its money, its locked stakes and its games."""

    running: lock.Holder | None
    state: Note
    holdings: Holdings
    locked: tuple[LockedStake, ...]
    """Every lock of the account."""
    node_key: str
    claims: list[dict[str, Any]]
    games: list[dict[str, Any]]
    refused: dict[JobId, Note]
    """Open jobs in which wrong bits were computed."""
    unjoined: dict[JobId, Note]
    """Other open jobs that the home's worker does not join, as it noted itself."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the status as JSON; amounts are decimal strings."""
        held = self.holdings.to_dict()
        return {
            **held,
            "locked": str(sum(one.amount for one in self.locked)),
            "locked_until": self.until,
            "locks": [{"what": one.what, "amount": str(one.amount), "until": one.until} for one in self.locked],
            "running": None if self.running is None else {"pid": self.running.pid, "program": self.running.who},
            "state": _note(self.state),
            "node_key": self.node_key,
            "claims": self.claims,
            "games": self.games,
            "refused": [{"job": job.hex(), **_note(note)} for job, note in self.refused.items()],
            "unjoined": [{"job": job.hex(), **_note(note)} for job, note in self.unjoined.items()],
        }

    @property
    def until(self) -> Seconds | None:
        """The chain time by which all stakes are free if nobody challenges; None if none is locked or the time is not
        known."""
        return latest([one.until for one in self.locked])

    def lines(self) -> list[str]:
        """Returns the status as lines of text."""
        state = _sentence(self.state)
        if self.running is not None:
            state = f"process {self.running.pid}: {state}"
        elif self.state != notes.STOPPED:
            state = f"nothing runs in this home: {state}"
        amount = tokens(sum(one.amount for one in self.locked))
        locked = f"stake      {amount} locked behind {len(self.locked)} claims and games"
        if self.locked:
            free = "until the games end" if self.until is None else f"until {moment(self.until)} if nobody challenges"
            locked += f", at stake {free}"
        rows = [
            f"  round {c['round']:>3}  slot {c['slot']}  {c['reason']:<8}  {c['next']['text']}" for c in self.claims
        ]
        games = [f"  game {short(g['game'])}  {g['next']}" for g in self.games]
        held = self.holdings.lines()
        head = [f"worker     {state}", *held[:3], locked, *held[3:]]
        refused = [f"refused    job {short(j)}: {_sentence(n)}; {hint_of(n.code)}" for j, n in self.refused.items()]
        refused += [f"unjoined   job {short(j)}: {_sentence(n)}; {hint_of(n.code)}" for j, n in self.unjoined.items()]
        games = [f"games      {len(games)} open", *games]
        return [*head, f"claims     {len(rows)} not settled", *rows, *games, *refused]


@dataclass(frozen=True)
class Why:
    """The reasons why an account does not earn: of the process, the account, each job and each round."""

    running: lock.Holder | None
    state: Note
    account: tuple[Note, ...]
    """Reasons in the account's funds."""
    jobs: dict[JobId, Note]
    """Open jobs that this account has no slot in, and those in which wrong bits were computed."""
    rounds: list[dict[str, Any]]

    def to_dict(self) -> dict[str, Any]:
        """Returns the reasons as JSON."""
        return {
            "running": self.running is not None,
            "state": _note(self.state),
            "account": [_note(note) for note in self.account],
            "jobs": [{"job": job.hex(), **_note(note)} for job, note in self.jobs.items()],
            "rounds": self.rounds,
        }

    def lines(self) -> list[str]:
        """Returns the reasons as lines of text."""
        jobs = [
            f"job {short(job)}  {'refused' if note.code in LASTING else 'not joined'}: {_sentence(note)}; "
            f"{hint_of(note.code)}"
            for job, note in self.jobs.items()
        ]
        rounds = [
            f"job {short(r['job'])}  round {r['round']:>3}  {r['reason']:<12}  {_round_line(r)}" for r in self.rounds
        ]
        if not rounds and not jobs:
            rounds = ["no job has been opened here yet"]
        account = [f"account  {_sentence(note)}; {hint_of(note.code)}" for note in self.account]
        return [f"worker  {_sentence(self.state)}; {hint_of(self.state.code)}", *account, *jobs, *rounds]


def status_of(account: Account) -> WorkerStatus:
    """Returns a worker's status, from the latest block and the home."""
    me, market, vault = account.address, account.contracts.market, account.contracts.vault
    running, state = process_of(account)
    locks = []
    for key, owner in account.ledger.locks.items():
        if owner == me and (lock_ := vault.lock_of(key)) is not None:
            locks.append(LockedStake(_lock_name(account, key), int(lock_.amount), _until(account, key)))
    games = [
        {
            "game": g.id.hex(), "claim": g.claim.hex(), "challenger": g.challenger,
            "next": f"a move of yours may be due: a worker has to run; `lockstep dispute show {short(g.id)}`",
        }
        for g in account.ledger.games_against(me)
    ]  # fmt: skip
    claims = [_with_next(account, row, market) for row in reasons_of(account) if row["reason"] in OPEN]
    node_key = account.ledger.nodes.get(me, b"").hex()
    held = Holdings.of(account.contracts, me)
    refused, said = _refused(account), notes.read(account.home).jobs
    unjoined = {
        job: note for job, note in said.items()
        if job not in refused and job in account.ledger.jobs and not account.ledger.jobs[job].done
    }  # fmt: skip
    return WorkerStatus(running, state, held, tuple(locks), node_key, claims, games, refused, unjoined)


def why_of(account: Account) -> Why:
    """Collects every reason from the chain and from the home's notes."""
    running, state = process_of(account)
    market, said = account.contracts.market, notes.read(account.home).jobs
    rows = [_with_next(account, row, market) for row in reasons_of(account)]
    in_it = {row["job"] for row in rows if row["reason"] in OPEN}
    jobs = {
        job.id: _dated(account, job, said.get(job.id) or _unjoined(account, job, running is not None))
        for job in account.ledger.jobs.values()
        if not job.done and job.id.hex() not in in_it
    }
    return Why(running, state, _money(account), {**jobs, **_refused(account)}, rows)


def why_without_chain(home: Path, error: Unreachable) -> Why:
    """Collects the reasons from only the home's notes, when the chain does not respond."""
    running, said = lock.holder(home), notes.read(home)
    again = Seconds(int(time.time()) + LOOK_SECONDS)
    state = Note(error.code, f"{error.message}: nothing of the chain can be told", again)
    refused = {job: notes.of_refusal(found) for job, found in Refusals(home).all().items()}
    return Why(running, state, (), {**said.jobs, **refused}, [])


def process_of(account: Account) -> tuple[lock.Holder | None, Note]:
    """Returns the process that runs in the home, if any, and the last state that it, or the one before it, noted."""
    running, said = lock.holder(account.home), notes.read(account.home).state
    room = shutil.disk_usage(account.home).free
    if room < LEAST_ROOM:
        # What a worker notes of it cannot be written.
        told = f"nothing can be written to {account.home}: {readable(room)} are left on its disk"
        return running, Note("disk_full", told, Seconds(_now(account) + LOOK_SECONDS))
    if running is None and said.code in (notes.WORKING.code, "listening", "draining", "hours"):
        # It was killed before it could say anything.
        said = Note("killed", "the last worker of this home was killed: start it again; it continues where it was")
    w3 = account.contracts.market.w3
    coin = w3.eth.get_balance(w3.to_checksum_address(account.address))
    return running, replace(NO_GAS, next=Seconds(_now(account) + LOOK_SECONDS)) if coin == 0 else said


def trouble_of(account: Account) -> Note | None:
    """Returns the state of the home's worker if it joins nothing in it, whatever the job is.

    A note of a worker that does not run tells what keeps it from starting, and nothing of today's chain or store.
    """
    running, state = process_of(account)
    kind = state.code.partition(".")[0]
    return state if kind in (TROUBLES if running is not None else AT_REST) else None


def next_of(job: JobLedger, r: RoundLedger, market: Market, now: Seconds) -> Next | None:
    """Returns the event that a round waits for; None once the round is over."""
    if r.attempt != job.attempt and r.phase == Phase.VOID:
        return None
    stored, phase, params = market.round(job.id, r.number), market.phase(job.id, r.number), market.params(job.id)
    if phase in UNDECIDED:
        at = RoundSnapshot(r.number, stored, phase, holders=r.holders)
        found = of_round(JobSnapshot(job.id, params, market.job(job.id), (at,), now), at)
        if found is None:
            return None
        # Of the turns that are left, the last one is the latest time of a merge.
        return Next(found.ends, merged_by(params, stored, phase, now) if found.code == "merge" else found.until)
    judged = phase == Phase.LEAD or (phase == Phase.FAILED and stored.merged_at != NEVER)
    if stored.open_games and judged:
        return Next(f"{stored.open_games} games on claims of this round end; then it can be final")
    if judged:
        waits = "the windows of its carry period are over" if params.role.carries else "the rounds before it are final"
        paid = f"paid if nobody convicts and {waits}"
        if r.number in unbacked_of(job.id, market):
            paid = f"the next round starts once stake backs this one's merge; {paid}"
        return Next(paid, Seconds(stored.merged_at + longest_hold(params)))
    return None


def unbacked_of(job: JobId, market: Market) -> list[int]:
    """Returns the merged rounds of a job whose merges' backing alone keeps the next round from starting."""
    state = market.job(job)
    if not views.has_next(market.params(job), state):
        return []
    flying = range(state.settled, state.started)
    merged = [number for number in flying if market.phase(job, number) == Phase.LEAD]
    return views.unbacked(state, [(number, market.round(job, number)) for number in merged])


def _refused(account: Account) -> dict[JobId, Note]:
    """Returns a note for every open job that this home refuses for good."""
    jobs, refused = account.ledger.jobs, Refusals(account.home).all()
    return {job: notes.of_refusal(r) for job, r in refused.items() if job in jobs and not jobs[job].done}


def _with_next(account: Account, row: dict[str, Any], market: Market) -> dict[str, Any]:
    """Returns the row with its next event, and with a hint for the owner."""
    job = account.ledger.jobs[JobId(bytes.fromhex(row["job"]))]
    if row["reason"] == "training" and Refusals(account.home).of(job.id) is not None:
        row = {**row, "reason": "withheld", "means": MEANINGS["withheld"]}
    expected: Next | None = None
    if not job.done and row["reason"] in OPEN:
        r = next((x for x in job.all_rounds() if (x.number, x.attempt) == (row["round"], row["attempt"])), None)
        expected = None if r is None else next_of(job, r, market, _now(account))
        if r is not None and row["reason"] == "pending" and market.phase(job.id, r.number) == Phase.MERGING:
            row = {**row, "reason": "unmerged", "means": MEANINGS["unmerged"]}
    elif not job.done and row["reason"] != "paid" and row["round"] == max(job.rounds, default=-1):
        expected = Next("the next round can be joined", _opens_at(account, job))
    told = None if expected is None else {**expected.to_dict(), "text": str(expected)}
    return {**row, "hint": hint_of(row["reason"]), "next": told}


def _opens_at(account: Account, job: JobLedger) -> Seconds:
    """Returns the chain time by which the job's next round can be started; now if it can be at once."""
    last, market, now = max(job.rounds, default=None), account.contracts.market, _now(account)
    if last is None:
        return now
    return merged_by(market.params(job.id), market.round(job.id, last), market.phase(job.id, last), now)


def _dated(account: Account, job: JobLedger, note: Note) -> Note:
    """Dates a note without a time of its own to the opening of the job's next round."""
    return note if note.next is not None else replace(note, next=_opens_at(account, job))


def _money(account: Account) -> tuple[Note, ...]:
    """Returns a note for stake that unbonds, if the account has any."""
    held = Holdings.of(account.contracts, account.address)
    if not held.unbonding:
        return ()
    return (Note("unbonding", f"{tokens(held.unbonding)} of stake unbond and back no job", held.available_at),)


def _until(account: Account, key: bytes) -> Seconds | None:
    """Returns the chain time by which a lock of the account is free, if nobody challenges; None if that is unknown."""
    place = account.ledger.places.get(ClaimId(key))
    if place is None:
        return None
    market, (job, number) = account.contracts.market, place
    return free_by(market.params(job), market.round(job, number), market.phase(job, number), _now(account))


def _now(account: Account) -> Seconds:
    return Seconds(account.contracts.vault.w3.eth.get_block("latest")["timestamp"])


def _unjoined(account: Account, job: JobLedger, running: bool) -> Note:
    """Returns the reason why a job that the notes do not name is not joined, as far as the chain tells."""
    if not running:
        return NOT_SEEN
    last = max(job.rounds.values(), key=lambda r: r.number, default=None)
    phase = Phase.NONE if last is None else account.contracts.market.phase(job.id, last.number)
    if last is not None and Phase.JOINING <= phase < Phase.LEAD:
        slots = account.contracts.market.params(job.id).role.slots
        if len(last.holders) >= slots:
            return Note(
                "full", f"all {slots} slots of round {last.number} are taken; the next round opens all slots again"
            )
        if phase == Phase.JOINING:
            stored = account.contracts.market.round(job.id, last.number)
            return Note("joining", f"round {last.number} can be joined: a slot is taken soon", stored.join_ends)
        return Note("no_round", f"round {last.number} has begun without this account; the next one opens after it")
    if unbacked := unbacked_of(job.id, account.contracts.market):
        return Note(
            "unbacked", f"the next round waits for stake behind the merge of round {unbacked[0]}: its merger backs it, "
            "or one of its slots' owners merges it again",
        )  # fmt: skip
    return Note("no_round", "no round of this job can be joined now; the next one opens when somebody starts it")


def _lock_name(account: Account, key: bytes) -> str:
    place = account.ledger.places.get(ClaimId(key))
    return "bond or witness stake" if place is None else f"claim of job {short(place[0])}, round {place[1]}"


def _round_line(row: dict[str, Any]) -> str:
    """Returns one line about a round: the event that it waits for, or why it did not pay and what the owner can do."""
    following = "" if row["next"] is None else str(row["next"]["text"])
    if row["reason"] in OPEN and row["reason"] != "withheld":
        return following or str(row["means"])
    hint = "" if row["reason"] in ("paid", "not_joined") else str(row["hint"])
    return "; ".join(part for part in (row["means"], following, hint) if part)


def _note(note: Note) -> dict[str, Any]:
    return {"code": note.code, "message": note.message, "hint": hint_of(note.code), "next": note.next}


def _sentence(note: Note) -> str:
    if note.next is None:
        return note.message
    what = {"draining": "free if nobody challenges", "unbonding": "to be withdrawn from"}.get(
        note.code, "next looked at"
    )
    return f"{note.message}; {what} {moment(note.next)}"
