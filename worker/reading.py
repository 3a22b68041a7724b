"""What the chain says, as a worker keeps it: a fold over the events, and one look at a job.

The ledger holds what only events tell (who holds which slot, where payloads and checkpoints are, which games are open)
and is rebuilt from the first block at every start; phases and books come from the contracts' views.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstep.merging import Payload, RoundRecord
from lockstep.protocol.claims import claim_id
from lockstep.protocol.jobs import ZERO_ADDRESS, Claim, ClaimStatus, JobParams, Phase
from lockstep.protocol.types import MERGE_SLOT, Address, Cid, ClaimId, Digest, GameId, JobId, Seconds, Seed
from worker.decide import JobView, RoundView

if TYPE_CHECKING:
    from lockstep.chain.contracts import Market
    from lockstep.chain.events import Event, EventReader

UNSEALED = Seed(bytes(32))


@dataclass(frozen=True)
class MergeRecord:
    """A standing merge."""

    claim: ClaimId
    worker: Address
    out: Digest
    out2: Digest
    checkpoint: Cid


@dataclass
class RoundLedger:
    """One round of one attempt."""

    number: int
    attempt: int
    base: Digest
    """Root of the shared tensors that it starts from."""
    outer: Digest
    seed: Seed = UNSEALED
    holders: dict[int, tuple[Address, ClaimStatus]] = field(default_factory=dict)
    """By slot."""
    payloads: dict[int, Payload] = field(default_factory=dict)
    """By slot, of revealed claims."""
    mask: int = 0
    merge: MergeRecord | None = None
    phase: Phase = Phase.JOINING
    """JOINING until something final is known: FINAL, FAILED, VOID."""

    def record(self, slots: int) -> RoundRecord:
        """As the rounds after it start from it."""
        accepted = tuple(self.payloads.get(s) if self.mask >> s & 1 else None for s in range(slots))
        if self.merge is None:
            return RoundRecord(self.number, self.seed, accepted, None, Digest(bytes(32)), Digest(bytes(32)))
        return RoundRecord(self.number, self.seed, accepted, self.merge.checkpoint, self.merge.out, self.merge.out2)


@dataclass
class JobLedger:
    """One job."""

    id: JobId
    requester: Address
    block: int
    rounds: dict[int, RoundLedger] = field(default_factory=dict)
    past: list[RoundLedger] = field(default_factory=list)
    """Rounds that were started again after a conviction."""
    attempt: int = 0
    done: bool = False

    def records(self, before: int, slots: int) -> list[RoundRecord]:
        """Every round before `before`, in order."""
        return [self.rounds[r].record(slots) for r in range(before)]

    def all_rounds(self) -> Iterator[RoundLedger]:
        """Of every attempt."""
        yield from self.past
        yield from self.rounds.values()


@dataclass(frozen=True)
class OpenGame:
    """A game that nobody has won yet."""

    id: GameId
    claim: ClaimId
    challenger: Address
    defender: Address
    t: int


@dataclass(frozen=True)
class Pay:
    """What a claim earned."""

    job: JobId
    round: int
    slot: int
    account: Address
    amount: int
    time: Seconds


@dataclass
class Ledger:
    """Everything that events tell; `apply` each in order."""

    jobs: dict[JobId, JobLedger] = field(default_factory=dict)
    nodes: dict[Address, bytes] = field(default_factory=dict)
    """Registered ed25519 keys, in the order of registration."""
    games: dict[GameId, OpenGame] = field(default_factory=dict)
    pays: list[Pay] = field(default_factory=list)
    slashed: dict[bytes, int] = field(default_factory=dict)
    """By ClaimId or GameId: what was taken."""

    def apply(self, event: Event) -> None:
        """Take one event; those that say nothing to a worker change nothing."""
        act = getattr(self, f"_{event.contract}_{event.name}", None)
        if act is not None:
            act(event)

    def place(self, me: Address, others: frozenset[Address]) -> int:
        """The turn of `me` among the registered nodes that are not `others`: which slot it tries first."""
        order = [a for a in self.nodes if a not in others]
        return order.index(me) if me in order else len(order)

    def holder(self, job: JobId, round_: int, slot: int) -> Address | None:
        """Who holds a slot of the current attempt (slot MERGE_SLOT: who merged)."""
        r = self.jobs[job].rounds.get(round_) if job in self.jobs else None
        if r is None:
            return None
        if slot == MERGE_SLOT:
            return r.merge.worker if r.merge else None
        return r.holders[slot][0] if slot in r.holders else None

    # -- vault

    def _StakeVault_NodeRegistered(self, e: Event) -> None:
        self.nodes.pop(e.account, None)
        self.nodes[e.account] = e.args["key"]

    def _StakeVault_Slashed(self, e: Event) -> None:
        self.slashed[e.args["key"]] = e.amount

    # -- market

    def _JobMarket_JobCreated(self, e: Event) -> None:
        self.jobs[e.job] = JobLedger(e.job, e.requester, e.block)

    def _JobMarket_JobDone(self, e: Event) -> None:
        self.jobs[e.job].done = True

    def _JobMarket_RoundStarted(self, e: Event) -> None:
        job = self.jobs[e.job]
        if e.round in job.rounds:
            job.past.append(job.rounds[e.round])
        job.rounds[e.round] = RoundLedger(e.round, e.attempt, e.base, e.outer)

    def _JobMarket_Joined(self, e: Event) -> None:
        self._round(e).holders[e.slot] = (e.worker, ClaimStatus.JOINED)

    def _JobMarket_Left(self, e: Event) -> None:
        self._round(e).holders.pop(e.slot)

    def _JobMarket_Sealed(self, e: Event) -> None:
        self._round(e).seed = Seed(e.seed)

    def _JobMarket_Committed(self, e: Event) -> None:
        self._advance(e, ClaimStatus.COMMITTED)

    def _JobMarket_Revealed(self, e: Event) -> None:
        self._advance(e, ClaimStatus.REVEALED)
        self._round(e).payloads[e.slot] = Payload(Cid(e.payload_cid), Digest(e.out))

    def _JobMarket_Frozen(self, e: Event) -> None:
        r = self._round(e)
        r.mask = e.mask
        self._close(
            r,
            {
                ClaimStatus.REVEALED: None,
                ClaimStatus.JOINED: ClaimStatus.ABSENT,
                ClaimStatus.COMMITTED: ClaimStatus.ABSENT,
            },
        )

    def _JobMarket_Merged(self, e: Event) -> None:
        self._round(e).merge = MergeRecord(
            ClaimId(e.claim), e.worker, Digest(e.out), Digest(e.out2), Cid(e.checkpoint_cid)
        )

    def _JobMarket_RoundFinal(self, e: Event) -> None:
        r = self._round(e)
        r.phase = Phase.FINAL
        self._close(r, {ClaimStatus.ACCEPTED: ClaimStatus.FINAL, ClaimStatus.EXCLUDED: ClaimStatus.FINAL})

    def _JobMarket_RoundFailed(self, e: Event) -> None:
        r = self._round(e)
        r.phase, r.merge = Phase.FAILED, None
        sealed = r.seed != UNSEALED
        silent = ClaimStatus.ABSENT if sealed else ClaimStatus.VOID
        self._close(r, {ClaimStatus.JOINED: silent, ClaimStatus.COMMITTED: silent})
        self._close(
            r, dict.fromkeys((ClaimStatus.REVEALED, ClaimStatus.ACCEPTED, ClaimStatus.EXCLUDED), ClaimStatus.VOID)
        )

    def _JobMarket_RoundVoid(self, e: Event) -> None:
        self._round(e).phase = Phase.VOID

    def _JobMarket_Convicted(self, e: Event) -> None:
        job, r = self.jobs[e.job], self._round(e)
        if e.slot == MERGE_SLOT:
            job.attempt += 1
            r.merge = None
        elif claim_id(e.job, e.round, r.attempt, e.slot) == e.claim:
            r.holders[e.slot] = (e.worker, ClaimStatus.CONVICTED)

    def _JobMarket_Paid(self, e: Event) -> None:
        self.pays.append(Pay(e.job, e.round, e.slot, e.account, e.amount, e.time))

    # -- games

    def _DisputeGame_Opened(self, e: Event) -> None:
        self.games[e.game] = OpenGame(GameId(e.game), ClaimId(e.claim), e.challenger, e.defender, e.t)

    def _DisputeGame_Resolved(self, e: Event) -> None:
        self.games.pop(e.game, None)

    # -- inside

    def _round(self, e: Event) -> RoundLedger:
        return self.jobs[e.job].rounds[e.round]

    def _advance(self, e: Event, status: ClaimStatus) -> None:
        holders = self._round(e).holders
        holders[e.slot] = (holders[e.slot][0], status)

    @staticmethod
    def _close(r: RoundLedger, become: dict[ClaimStatus, ClaimStatus | None]) -> None:
        for slot, (worker, status) in r.holders.items():
            if status in become:
                accepted = ClaimStatus.ACCEPTED if r.mask >> slot & 1 else ClaimStatus.EXCLUDED
                r.holders[slot] = (worker, become[status] or accepted)


class Watcher:
    """Reads events into a ledger; after a reorganisation it starts the ledger anew."""

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._cursor = reader.start()
        self.ledger = Ledger()

    def poll(self) -> list[Event]:
        """Bring the ledger up to the latest block; the events since the last poll."""
        fresh: list[Event] = []
        while True:
            batch = self._reader.poll(self._cursor)
            if batch.rolled_back_to is not None:
                self.ledger, self._cursor, fresh = Ledger(), self._reader.start(), []
                continue
            for event in batch.events:
                self.ledger.apply(event)
            fresh += batch.events
            if batch.cursor.next_block == self._cursor.next_block:
                self._cursor = batch.cursor
                return fresh
            self._cursor = batch.cursor


def look(market: Market, ledger: JobLedger, params: JobParams, now: Seconds, block: int) -> JobView:
    """A job at the latest block: its books, its rounds from the one before the first unsettled one on."""
    books = market.job(ledger.id)
    first = max(books.settled - 1, 0)
    void = [r for r, seen in ledger.rounds.items() if r >= books.started and seen.phase == Phase.VOID]
    numbers = [r for r in (*range(first, books.started), *sorted(void)) if r in ledger.rounds]
    rounds = [_look_at_round(market, ledger, params, r, now) for r in numbers]
    return JobView(ledger.id, params, books, tuple(rounds), now, block)


def _look_at_round(market: Market, ledger: JobLedger, params: JobParams, number: int, now: Seconds) -> RoundView:
    r = ledger.rounds[number]
    state = market.round(ledger.id, number)
    phase = market.phase(ledger.id, number) if state.phase == Phase.JOINING else state.phase
    merger, over = ZERO_ADDRESS, False
    if phase == Phase.MERGING:
        merger = market.merger_of(ledger.id, number)
        turn = state.turn + (now - state.merge_opens) // params.merge_seconds
        over = turn > state.mask.bit_count()
    claims = tuple(
        Claim(ledger.id, worker, number, r.attempt, slot, status)
        for slot in range(params.slots)
        for worker, status in [r.holders.get(slot, (ZERO_ADDRESS, ClaimStatus.NONE))]
    )
    return RoundView(number, state, phase, claims, merger, over)
