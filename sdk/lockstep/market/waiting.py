"""The event that a job waits for: who can bring it about, since when, until when, and what a reader can do. Pure.

    waiting_of(snapshot)               # a job as the contracts and the ledger have it at one block
    waiting_of(snapshot).sentence()    # "round 0 waits for workers: 1 of 3 slots is taken, since ..; .."

`train why`, `train status`, `train watch`, `worker why` and the coordinator's pages say the same. What only a worker
knows, as a failed self-check or a full disk, is in its own notes (`lockstep worker why`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.base.amounts import tokens
from lockstep.base.durations import moment, readable_seconds
from lockstep.base.naming import short
from lockstep.market import acts
from lockstep.protocol.jobs import (
    NEVER,
    ZERO_ADDRESS,
    ClaimStatus,
    JobParams,
    JobState,
    JobStatus,
    Phase,
    Round,
)
from lockstep.protocol.market import views
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, GameId, JobId, Seconds

HALTED_SECONDS = 90
"""The age of the latest block from which a chain counts as standing still; a block of Ethereum takes twelve."""
NAMED = 3
"""Slots that a sentence names."""
UNDECIDED = (Phase.JOINING, Phase.SEALING, Phase.TRAINING, Phase.REVEALING, Phase.ATTESTING, Phase.FREEZING,
             Phase.MERGING)  # fmt: skip
"""Phases of a round that is not over."""


@dataclass(frozen=True)
class GameSnapshot:
    """A running game, and whose move is due."""

    id: GameId
    claim: ClaimId
    slot: int
    mover: str
    """"challenger" or "defender"."""
    account: Address
    deadline: Seconds


@dataclass(frozen=True)
class RoundSnapshot:
    """One round at one block, as `acts.SeenRound`, with its slots and its games."""

    number: int
    state: Round
    phase: Phase
    """The phase at the block's time: the stored one, advanced by deadlines and by completeness."""
    merger: Address = ZERO_ADDRESS
    merge_turns_over: bool = False
    holders: Mapping[int, tuple[Address, ClaimStatus]] = field(default_factory=dict)
    """By slot: its owner, and the status of its claim."""
    games: tuple[GameSnapshot, ...] = ()
    demanded: tuple[int, Seconds] | None = None
    """The slot whose payload is demanded, and the last second of the answer; None: no demand is open."""

    def slots_of(self, *statuses: ClaimStatus) -> list[int]:
        """Returns the slots whose claims have one of these statuses."""
        return sorted(slot for slot, (_, status) in self.holders.items() if status in statuses)


@dataclass(frozen=True)
class JobSnapshot:
    """One job at one block, as `acts.SeenJob`."""

    id: JobId
    params: JobParams
    job: JobState
    rounds: tuple[RoundSnapshot, ...]
    """Rounds in order: every unsettled one, and the last started one."""
    now: Seconds
    """The block's time."""
    last: Seconds = NEVER
    """The chain time of the job's latest event; NEVER if it is not known."""
    head_age: float | None = None
    """Seconds by a machine's clock since the latest block; None: nobody measured them."""

    @property
    def label(self) -> str:
        """The job's id as commands take it."""
        return short(self.id)

    def round(self, number: int) -> RoundSnapshot | None:
        """Returns the round of this number, if it is among them."""
        return next((r for r in self.rounds if r.number == number), None)


@dataclass(frozen=True)
class Waiting:
    """The event that a job waits for."""

    code: str
    what: str
    who: str = ""
    """The accounts, or the people, that can end it; "" if time alone does."""
    ends: str = ""
    """The event that ends the wait; "" if nothing is waited for."""
    since: Seconds | None = None
    """Chain time at which it began; None: not known."""
    until: Seconds | None = None
    """Chain time at which a rule ends it; None: no rule does."""
    then: str = ""
    """The consequence at `until`."""
    do: str = "nothing has to be done"
    """The reader's next act."""
    now: Seconds = NEVER
    """Chain time at which this was true."""

    def to_dict(self) -> dict[str, Any]:
        """Returns it as JSON; times are chain time."""
        return {
            "code": self.code, "what": self.what, "who": self.who, "since": self.since, "until": self.until,
            "then": self.then, "do": self.do, "sentence": self.sentence(),
        }  # fmt: skip

    def sentence(self) -> str:
        """Returns what is waited for, since when, who can end it, and what the reader can do, as one sentence."""
        begun = ""
        if self.since:
            passed = self.now - self.since
            begun = f", since {moment(self.since)}" + (f" ({readable_seconds(passed)})" if passed > 0 else "")
        parts = [f"{self.what}{begun}"]
        if self.who:
            parts.append(f"{self.who} can end it")
        if self.until is not None:
            left = self.until - self.now
            when = f"in {readable_seconds(left)}, at {moment(self.until)}" if left > 0 else f"at {moment(self.until)}"
            parts.append(f"{when}, {self.then or self.ends}")
        return "; ".join([*parts, self.do])


def waiting_of(at: JobSnapshot) -> Waiting:
    """Returns what a job waits for."""
    found = _of_job(at)
    if found.ends and at.head_age is not None and at.head_age > HALTED_SECONDS:
        found = Waiting(
            "chain_halted", f"the chain has brought no block for {readable_seconds(at.head_age)}",
            "whoever runs its nodes", "a block comes", at.now,
            do=f"ask another provider (--rpc), or see if this one's node runs; behind it, {found.what}",
        )  # fmt: skip
    return replace(found, now=at.now)


def of_round(at: JobSnapshot, r: RoundSnapshot) -> Waiting | None:
    """Returns what a round waits for; None once it is over."""
    if r.phase in UNDECIDED:
        return _UNDECIDED[r.phase](at, r)
    if r.phase == Phase.LEAD or (r.phase == Phase.FAILED and r.state.merged_at != NEVER):
        return _judged(at, r)
    return None


# -- a job


def _of_job(at: JobSnapshot) -> Waiting:
    status, job = at.job.status, at.job
    if status == JobStatus.DONE:
        pull = f"`lockstep train pull {at.label}` fetches the model"
        if job.failed > at.params.schedule.max_fail:
            return Waiting("done", f"the job has ended: {_failures(at)}", since=at.last or None, do=pull)
        return Waiting("done", "the job is done", since=at.last or None, do=pull)
    if status == JobStatus.VOID:
        return Waiting(
            "void", f"the job was proved invalid by {short(job.prover)}", "who worked on it", "stakes are released",
            at.last or None, do="`lockstep train withdraw` takes what the vault owes its requester",
        )  # fmt: skip
    undecided = next((r for r in at.rounds if r.phase in UNDECIDED), None)
    if undecided is not None:
        found = _UNDECIDED[undecided.phase](at, undecided)
        return replace(found, what=f"{found.what} ({_failures(at)})") if job.failed else found
    if acts.startable(at):
        return _unstarted(at)
    return _settling(at)


def _unstarted(at: JobSnapshot) -> Waiting:
    number, paid = at.job.started, tokens(at.params.role.slot_price, 4)
    taken = "no worker has taken the job" if number == 0 else f"no worker has started round {number}"
    failed = f" ({_failures(at)})" if at.job.failed else ""
    return Waiting(
        "unstarted", f"{taken}, which pays {paid} a slot{failed}", "any worker that takes it",
        f"round {number} starts", at.last or None, do=_look(at),
    )  # fmt: skip


def _settling(at: JobSnapshot) -> Waiting:
    """A job whose next round cannot start, or that has none."""
    job, params = at.job, at.params
    if views.finishable(params, job):
        return Waiting(
            "unfinished", "every round is settled, and the job is not closed", "anybody", "the job is closed",
            at.last or None, do="workers close it by themselves: if none does, none of them runs",
        )  # fmt: skip
    more = views.startable(params, job)
    if job.lingering and more:
        return Waiting(
            "games", f"{_games(job.lingering)} on claims that fell with a convicted merge", "the players",
            "the games end", at.last or None, do=_follow(at),
        )  # fmt: skip
    first = at.round(job.settled)
    blocked = views.unbacked(job, acts.leads(at)) if more and views.has_next(params, job) else []
    if blocked and (merged := at.round(blocked[0])) is not None:
        return _unbacked(at, merged)
    found = None if first is None else of_round(at, first)
    if found is None:
        return Waiting("unknown", "a round is being settled", "anybody", "it is settled", at.last or None)
    if more:
        ahead = f"round {job.started} waits until round {job.settled} is final"
        return replace(found, what=f"{ahead}, since no more than {params.schedule.max_lead} are in flight")
    if job.status == JobStatus.CANCELLED:
        return replace(found, what=f"the job is cancelled; {found.what}")
    if job.failed > params.schedule.max_fail:
        return replace(found, what=f"the job starts no further round, since {_failures(at)}; {found.what}")
    return found


def _unbacked(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    return Waiting(
        "unbacked", f"round {at.job.started} waits for stake behind the merge of round {r.number}",
        "its merger, which backs it, or an owner of its slots, which merges it again", "the merge is backed",
        at.last or None, Seconds(r.state.merged_at + at.params.windows.challenge_seconds),
        "it is final, and the next round starts without", "nothing has to be done; a merger with more stake avoids it",
    )  # fmt: skip


# -- a round


def _joining(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    role, least = at.params.role, _least(at.params)
    short_of = r.state.joined < least
    return Waiting(
        "joining", f"round {r.number} waits for workers: {_taken(at, r)}", "any worker that joins", "the roster closes",
        Seconds(r.state.join_ends - at.params.windows.join_seconds), r.state.join_ends,
        f"it fails if fewer than {least} of {role.slots} are taken" if short_of else "it goes on with these",
        _look(at) if short_of else "nothing has to be done",
    )  # fmt: skip


def _sealing(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    if r.state.seed_block == 0 and r.state.joined < _least(at.params):
        return Waiting(
            "too_few", f"too few workers joined round {r.number}: {_taken(at, r)}, {_least(at.params)} are needed",
            "anybody", "the round fails and the next one opens", r.state.join_ends, do=_look(at),
        )  # fmt: skip
    return Waiting(
        "seed", f"round {r.number} waits for its seed, the hash of one of the next blocks",
        "anybody (one of its workers does)", "the seed is drawn", at.last or None,
        do="wait for two blocks; if they come and no seed does, none of its workers runs",
    )  # fmt: skip


def _training(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    late = r.slots_of(ClaimStatus.JOINED)
    return Waiting(
        "training", f"round {r.number} trains: {len(late)} of {r.state.joined} slots have not committed",
        _owners(r, late), "the slots are trained and committed",
        Seconds(r.state.commit_ends - at.params.role.train_seconds), r.state.commit_ends,
        "the round goes on without them, and each loses a slot's price", _ask(late),
    )  # fmt: skip


def _revealing(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    late = r.slots_of(ClaimStatus.COMMITTED)
    return Waiting(
        "revealing", f"round {r.number} waits for {len(late)} of {r.state.committed} claims to be revealed",
        _owners(r, late), "claims are revealed", r.state.commit_ends, r.state.reveal_ends,
        "the round goes on without them, and each loses a slot's price", _ask(late),
    )  # fmt: skip


def _attesting(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    if r.demanded is not None and at.now <= r.demanded[1]:
        return _demanded(r, *r.demanded)
    late = [s for s in r.slots_of(ClaimStatus.REVEALED) if not r.state.spoke >> s & 1]
    if not late:
        return Waiting(
            "attesting", f"round {r.number} has the receipts of every owner, and waits until its witnesses and demands "
            "have had their time", "", "the accepted payloads are fixed", r.state.reveal_ends, r.state.attest_ends,
        )  # fmt: skip
    return Waiting(
        "attesting", f"round {r.number} waits for receipts: {len(late)} of {r.state.revealed} owners have not said "
        "whose payloads they could fetch", _owners(r, late), "receipts are given", r.state.reveal_ends,
        r.state.attest_ends, "a payload that half of the others did not name is left out",
        "see that the storage of their workers can be reached; `lockstep worker why` says there what they miss",
    )  # fmt: skip


def _demanded(r: RoundSnapshot, slot: int, deadline: Seconds) -> Waiting:
    return Waiting(
        "payload", f"round {r.number} waits for the payload of slot {slot}, which was demanded on chain",
        _owners(r, [slot]), "the payload is posted", None, deadline,
        "the slot counts as missing, goes unpaid and loses its price",
        "nothing has to be done; whoever holds the payload can post it, and is paid for it",
    )  # fmt: skip


def _freezing(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    if r.demanded is not None and at.now <= r.demanded[1]:
        return _demanded(r, *r.demanded)
    ended = r.state.attest_ends if r.state.revealed else r.state.reveal_ends
    return Waiting(
        "freezing", f"round {r.number} waits for somebody to fix the accepted payloads",
        "anybody (the aggregator or a worker does)", "somebody freezes the round",
        ended if NEVER < ended <= at.now else at.last or None,
        do="nothing has to be done; if it lasts, no worker and no coordinator of this job runs",
    )  # fmt: skip


def _merging(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    aggregator, merge, ro = at.params.merge.aggregator, at.params.merge, r.state
    turn, order = views.turn(at.params, ro, at.now), views.seed_order(at.params, ro)
    since = ro.merge_opens
    # A merge that was convicted, or a barred aggregator, leaves the first turn to an owner.
    late = ", which the aggregator did not do in its turn" if turn and ro.turn == 0 else ""
    what = f"round {r.number} waits to be merged{late}"
    if turn > ro.accepted:
        return Waiting(
            "unmerged", f"nobody merged round {r.number}, and every turn is over", "anybody", "the round fails", since,
            do="nothing has to be done: any worker ends the round, and its claims are judged and paid",
        )  # fmt: skip
    until = Seconds(ro.merge_opens + (turn + 1 - ro.turn) * merge.turn_seconds)
    owner = None if turn == len(order) else r.holders.get(order[turn])
    then = "the round fails" if turn == len(order) else f"it is the turn of the owner of slot {order[turn]}"
    then += "" if owner is None else f", {short(owner[0])}"
    if turn == 0:
        return Waiting(
            "aggregator", what, f"the aggregator {short(aggregator)}",
            "the aggregator merges the round, or else the slots' owners", since, until, then,
            "nothing has to be done; its operator sees that `lockstep coordinator up` runs",
        )  # fmt: skip
    mine = order[turn - 1]
    entitled = f"the owner of slot {mine}, {short(r.merger)}," if r.merger != ZERO_ADDRESS else "nobody in this turn"
    return Waiting(
        "merge", what, entitled,
        ("since the aggregator did not, " if late else "") + "a slot's owner merges the round", since, until, then,
        _ask([mine]),
    )  # fmt: skip


def _judged(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    """A round whose claims stand until their windows are over."""
    if r.state.open_games:
        return _disputed(at, r)
    rounds = {x.number: x.state for x in at.rounds}
    _, over = views.over_at(at.params, at.job.started, r.number, lambda k: rounds.get(k) or Round())
    if over == NEVER:
        return Waiting(
            "period", f"round {r.number} waits for the later rounds that may carry its workers' state on",
            "their workers", "they are merged", r.state.merged_at,
        )  # fmt: skip
    if at.now >= over:
        return Waiting(
            "unsettled", f"round {r.number} can be settled, and nobody has", "anybody", "it is final and paid", over,
            do="nothing has to be done; if it lasts, no worker and no coordinator of this job runs",
        )  # fmt: skip
    return Waiting(
        "window", f"claims of round {r.number} can be challenged, and are paid after it", "",
        "it is final and paid", r.state.merged_at, over, "it is final, if nobody challenges",
        "nothing has to be done; `lockstep verifier up` replays them",
    )  # fmt: skip


def _disputed(at: JobSnapshot, r: RoundSnapshot) -> Waiting:
    if not r.games:
        return Waiting(
            "games", f"round {r.number} waits for {_games(r.state.open_games)} on its claims", "the players",
            "the games end", at.last or None, do=_follow(at),
        )  # fmt: skip
    first = min(r.games, key=lambda g: g.deadline)
    place = "the merge" if first.slot == MERGE_SLOT else f"slot {first.slot}"
    what = f"round {r.number} waits for {_games(len(r.games))} on its claims: in {short(first.id)}, about {place}, "
    if at.now > first.deadline:
        return Waiting(
            "games", f"{what}the {first.mover}'s clock has run out", "anybody", "the game is resolved",
            first.deadline, do=f"`lockstep dispute resolve {short(first.id)}` ends it",
        )  # fmt: skip
    return Waiting(
        "games", f"{what}the {first.mover} moves", f"{short(first.account)}", "the game goes on", at.last or None,
        first.deadline, f"the {first.mover} loses, and anybody may end the game", _follow(at),
    )  # fmt: skip


_UNDECIDED = {
    Phase.JOINING: _joining, Phase.SEALING: _sealing, Phase.TRAINING: _training, Phase.REVEALING: _revealing,
    Phase.ATTESTING: _attesting, Phase.FREEZING: _freezing, Phase.MERGING: _merging,
}  # fmt: skip


# -- words


def _least(params: JobParams) -> int:
    """Returns the slots that must be taken for a seed to be drawn (`rounds.seal`)."""
    return min(params.role.slots, 2 * params.role.min_slots - 1)


def _taken(at: JobSnapshot, r: RoundSnapshot) -> str:
    return f"{r.state.joined} of {at.params.role.slots} slots {'is' if r.state.joined == 1 else 'are'} taken"


def _failures(at: JobSnapshot) -> str:
    failed, most = at.job.failed, at.params.schedule.max_fail
    return f"{failed} round{'' if failed == 1 else 's'} failed, more than {most} end{'s' * (most == 1)} it"


def _games(count: int) -> str:
    return f"{count} dispute{'' if count == 1 else 's'}"


def _owners(r: RoundSnapshot, slots: Sequence[int]) -> str:
    """Returns the owners of slots by their addresses, the first of many."""
    named = ", ".join(f"{short(r.holders[s][0])} of slot {s}" for s in slots[:NAMED] if s in r.holders)
    rest = f" and {len(slots) - NAMED} more" if len(slots) > NAMED else ""
    return f"{named}{rest}" or "their owners"


def _ask(slots: Sequence[int]) -> str:
    where, whom = ("that worker's machine", "it") if len(slots) == 1 else ("their machines", "them")
    return f"nothing has to be done; `lockstep worker why` on {where} says what keeps {whom}"


def _look(at: JobSnapshot) -> str:
    return (
        f"`lockstep worker quote {at.label}` on a worker's machine says why it does not join: a price below its "
        "--min-price, windows too short, too little memory or stake"
    )


def _follow(at: JobSnapshot) -> str:
    return f"`lockstep dispute watch --job {at.label}` follows it"
