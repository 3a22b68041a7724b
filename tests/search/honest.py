"""Honest parties: each decides by the programs' own pure functions, and each act is a transaction.

worker.decide, coordinator.decide, verifier.decide and verifier.witness.decide decide; protocol.dispute.honest plays the
games. Computing takes time as on a machine: each disputed step is computed once, for stepSeconds, one at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from coordinator import decide as coordinating
from lockstep.market.acts import Action, ActionKind
from lockstep.market.ledger import ClaimRecord
from lockstep.market.turns import COURTESY_SECONDS
from lockstep.protocol import merkle
from lockstep.protocol.dispute import game, honest, moves
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import NO_STATE, ZERO_ADDRESS, Body, Claim, ClaimStatus, JobStatus, Phase, Receipt, Reveal
from lockstep.protocol.market import availability, draws, ids, views
from lockstep.protocol.market.calls import Block, MarketCall
from lockstep.protocol.market.job_rules import PART
from lockstep.protocol.market.precommitted import digest_of
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.market.state import State
from lockstep.protocol.market.types import Demand, Duty, DutyStatus, Standing, Status, Word
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    AuditId,
    Cid,
    ClaimId,
    Digest,
    GameId,
    Seconds,
    StateRoot,
    Wei,
)
from tests.search.carrying import CarryClaim
from tests.search.known import NamedWanderer, reveal_of
from tests.search.scene import AGGREGATOR, VERIFIER, WITNESS, WORKERS, Scene, row_of, sign
from tests.support.constant import ConstantClaim
from tests.support.market.wander import LINKS
from verifier import decide as verifying
from verifier.witness.decide import DutyAct, next_act
from worker import decide as working


@dataclass
class Machine:
    """The computing of an honest party: one game's step at a time."""

    forgets: bool = False
    """Drops its claims when their round failed (fix H2 of docs/threat-model.md reverted)."""
    in_line: bool = False
    """Plays games in order of opening (a fix of H3 reverted) instead of by earliest deadline."""
    done: dict[GameId, int] = field(default_factory=dict)
    """Seconds of work so far, by game."""
    last: int = 0
    wakes: int = 0
    """Time at which the next step is computed; 0: none."""

    def ready(self, waiting: Mapping[GameId, game.Game], step: int, now: Seconds) -> list[GameId]:
        """Returns the games whose step is computed, after the time since the last poll was spent."""
        spare, self.last = max(0, now - (self.last or now)), now
        order = list(waiting) if self.in_line else sorted(waiting, key=lambda id_: waiting[id_].deadline)
        for id_ in order:
            spent = min(spare, step - self.done.get(id_, 0))
            self.done[id_] = self.done.get(id_, 0) + spent
            spare -= spent
        left = [step - self.done[id_] for id_ in order if self.done[id_] < step]
        self.wakes = now + left[0] if left else 0
        return [id_ for id_ in waiting if self.done[id_] >= step]


@dataclass
class Party:
    """One honest account, with its memory between polls."""

    me: Address
    scene: Scene
    known: NamedWanderer
    """Published data: claims, and the games' logs."""
    machine: Machine = field(default_factory=Machine)
    since: dict[Action, Seconds] = field(default_factory=dict)
    rows: dict[Digest, list[tuple[int, MarketCall]]] = field(default_factory=dict)
    rests: dict[tuple[AuditId, int], int] = field(default_factory=dict)
    """Duties that cannot be settled before the given time."""
    suspects: set[ClaimId] = field(default_factory=set)
    """Claims found by a duty or a replay, which are replayed themselves."""
    computing: set[ClaimId] = field(default_factory=set)
    """Claims whose missing carry is recomputed, because its owner showed it or it cannot be demanded."""
    wakes: int = 0
    """Next time at which a claim must be examined; 0: none."""

    def calls(self, s: State, b: Block) -> list[MarketCall]:
        """Returns the calls after a poll of a block."""
        if self.scene.setting.restarts(self.me, b.number):
            for memory in (self.since, self.rests, self.suspects, self.computing):
                memory.clear()
        found = [*self._plays(s, b), *self._answers(s, b)]
        if self.me in WORKERS:
            found += self._works(s, b)
        if self.me == AGGREGATOR:
            found += self._coordinates(s, b)
        if self.me == VERIFIER:
            found += self._verifies(s, b)
        if self.me == WITNESS:
            found += self._witnesses(s, b)
            found += self._challenges(s, b, self.suspects)
        return found

    # -- games

    def _plays(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields moves in its own games, on either side."""
        mine: dict[GameId, game.Game] = {}
        for id_, g in s.games.items():
            if g.phase == moves.GamePhase.CLOSED or self.me not in (g.defender, g.challenger):
                continue
            failed = s.rounds[self.scene.job, s.claims[g.claim].round].phase == Phase.FAILED
            if self.machine.forgets and g.defender == self.me and failed:
                continue
            if b.time > g.deadline or not views.live(s, g.claim):
                yield MarketCall("DisputeGame", "resolve", self.me, (id_, g.standing))
            elif (g.defender if g.defender_moves else g.challenger) == self.me:
                mine[id_] = g
        windows = self.scene.setting.params.windows
        # Its pace is what the shortest clock requires; a job may allow more.
        step = min(windows.step_seconds, windows.clock_seconds // 4)
        own = {id_: g for id_, g in mine.items() if g.defender == self.me}
        ready = {*self.machine.ready(own, step, b.time), *(id_ for id_ in mine if id_ not in own)}
        for id_, g in mine.items():
            if id_ in ready and (move := self._move(id_, g)) is not None:
                yield self.known._moved(move, id_, self.me)

    def _move(self, id_: GameId, g: game.Game) -> moves.Move | None:
        held, log = self.known.held[g.claim], self.known.logs.get(id_, [])
        return honest.answer(g, log, held) if g.defender_moves else honest.point(g, log, held.truth)

    # -- demands

    def _answers(self, s: State, b: Block) -> Iterator[MarketCall]:
        for id_, demand in s.demands.items():
            if demand.status != Status.OPEN or b.time > demand.deadline:
                mine = demand.asker == self.me or self._holds_up(s, b, demand)
                if demand.status == Status.OPEN and mine and demand.beacon:
                    yield MarketCall("Availability", "settle", self.me, (id_,))
                continue
            if demand.beacon == 0:
                if self.scene.setting.row_known:
                    yield from self._row(s, b, id_, demand)
            elif s.claims[ClaimId(demand.subject)].worker == self.me and b.number >= demand.beacon:
                # The beacon's hash is known with its block, so the answer is for the next one.
                following = replace(b, number=b.number + 1)
                answer = (id_, *self.known._shown(s, following, id_, ClaimId(demand.subject)))
                yield MarketCall("Availability", "answer", self.me, answer)

    def _holds_up(self, s: State, b: Block, demand: Demand) -> bool:
        """Returns True for another account's demand for a carry that its demander does not end (as node.demands)."""
        claim = ClaimId(demand.subject)
        if demand.row != availability.CARRY or not demand.beacon or b.time <= demand.deadline + COURTESY_SECONDS:
            return False
        c = s.claims[claim]
        over = s.rounds[c.job, c.round].phase == Phase.FINAL
        return not over and c.status != ClaimStatus.CONVICTED

    def awaits(self, s: State, b: Block) -> bool:
        """Returns True if an empty block would let it act: a demand's beacon."""
        return any(
            demand.status == Status.OPEN
            and b.number < demand.beacon
            and s.claims[ClaimId(demand.subject)].worker == self.me
            for demand in s.demands.values()
        )

    def _row(self, s: State, b: Block, id_: Digest, demand: Any) -> Iterator[MarketCall]:
        """Yields the commitment to all parts, then each part once the previous one is mined."""
        p = self.scene.setting.params
        if id_ not in self.rows:
            tree, rows = availability.row_answer(p, row_of(p.role.row_length)[0], demand.row)
            parts = [(begin, rows[begin : begin + PART]) for begin in range(0, len(rows), PART)]
            self.rows[id_] = [
                (
                    begin + len(part),
                    _with_data(
                        MarketCall(
                            "Availability", "answerRow", self.me, (self.scene.job, demand.row, tree, begin, part)
                        )
                    ),
                )
                for begin, part in parts
            ]
        left = [call for end, call in self.rows[id_] if end > demand.next]
        digests = [digest_of(self.me, call.data) for call in left]
        at = [s.committed_at["Availability", digest] for digest in digests]
        if not all(at):
            yield MarketCall("Availability", "commit", self.me, (digests,))
        elif left:
            yield left[0]

    # -- a worker

    def _works(self, s: State, b: Block) -> Iterator[MarketCall]:
        view = self._look(s, b)
        p = view.params
        if working.stake_wanted(p) > STAKE_THAT_A_WORKER_HAS:
            return
        waiting = [r.number for r in view.rounds if r.phase == Phase.JOINING]
        base = working.base_of(view, waiting[0] if waiting else view.job.started)
        trained = frozenset(
            (r.number, slot) for r in view.rounds if r.phase == Phase.TRAINING for slot in r.slots_of(self.me)
        )
        me = working.WorkerFacts(
            self.me, Wei(s.free[self.me]), WORKERS.index(self.me), trained=trained, base=base,
            draining=self.scene.setting.drains(self.me, b.number),
        )  # fmt: skip
        possible = working.acts(view, me)
        self.since = working.remember(possible, self.since, b.time)
        aggregated = p.merge.aggregator != ZERO_ADDRESS
        for act in working.due(possible, self.since, b.time, working.rank(view, me), aggregated):
            yield from self._done(s, act)

    def _done(self, s: State, act: Action) -> Iterator[MarketCall]:
        """Yields the transaction of an act; none for an act without one."""
        job, r, slot = self.scene.job, act.round, act.slot
        ro = s.rounds[job, r]
        claim = ids.claim_id(job, r, ro.attempt, slot)

        def call(*arguments: Any, contract: str = "JobMarket") -> MarketCall:
            return MarketCall(contract, act.kind.value, self.me, (job, *arguments))

        match act.kind:
            case ActionKind.START | ActionKind.SEAL | ActionKind.FINALIZE | ActionKind.RELEASE:
                yield call(r)
            case ActionKind.JOIN | ActionKind.LEAVE:
                yield call(r, slot)
            case ActionKind.COMMIT:
                self.known.held.setdefault(claim, self.known.honest_claim(s, job, r, slot))
                yield call(r, slot, ids.commitment(claim, self.me, self._opened(claim)))
            case ActionKind.REVEAL:
                yield call(r, slot, self._opened(claim))
            case ActionKind.ATTEST:
                mask = sum(
                    1 << k
                    for k in range(self.scene.setting.params.role.slots)
                    if s.claims[ids.claim_id(job, r, ro.attempt, k)].status == ClaimStatus.REVEALED
                )
                digest = ids.receipt_hash(s.at.chain_id, s.at.market, job, r, ro.attempt, slot, mask)
                yield call(r, [Receipt(slot, mask, sign(self.me, digest))])
            case ActionKind.DRAW:
                yield call(r, contract="Witnesses")
            case ActionKind.FREEZE:
                yield call(r, self._bodies(s, r))
            case ActionKind.MERGE:
                yield from self._merge(s, r, act.rounds)
            case ActionKind.BACK:
                yield call(r, act.rounds)
            case ActionKind.FINISH:
                yield call()
            case ActionKind.DEPOSIT:
                yield MarketCall("StakeVault", "deposit", self.me, (act.amount,))

    def _opened(self, claim: ClaimId) -> Reveal:
        made = self.known.held[claim]
        if isinstance(made, CarryClaim):
            return reveal_of(claim, made)
        return Reveal(made.body, Digest(keccak(claim + b"n")), tuple(merkle.proof(made.levels, 1)), "trace", "payload")

    def _bodies(self, s: State, r: int) -> list[Any]:
        job, ro = self.scene.job, s.rounds[self.scene.job, r]
        named = [ids.claim_id(job, r, ro.attempt, k) for k in range(self.scene.setting.params.role.slots)]
        return [self.known.held[id_].body for id_ in named if s.claims[id_].status == ClaimStatus.REVEALED]

    def _merge(self, s: State, r: int, rounds: int) -> Iterator[MarketCall]:
        job, ro = self.scene.job, s.rounds[self.scene.job, r]
        made = ConstantClaim.of_merge(ro.merge_in)
        # It does not merge false outputs again.
        if ro.phase == Phase.LEAD and (made.body.out, made.body.out2) != (ro.next_shared, ro.next_outer):
            return
        self.known.held[ids.claim_id(job, r, views.merge_attempt(s.jobs[job], ro.phase), MERGE_SLOT)] = made
        yield MarketCall("JobMarket", "merge", self.me, (job, r, made.body.out, made.body.out2, "checkpoint", rounds))

    def _look(self, s: State, b: Block) -> working.JobView:
        """Returns the job's view as worker.reading reads it through web3."""
        job, p = self.scene.job, self.scene.setting.params
        books = s.jobs[job]
        mine = {id_: c for id_, c in s.claims.items() if (c.job, c.worker) == (job, self.me)}
        own = {id_: c for id_, c in mine.items() if s.locks[id_].amount}
        # In a void job games are not counted out; the games themselves show whether they are over.
        running = {g.claim for g in s.games.values() if g.phase != moves.GamePhase.CLOSED and g.defender == self.me}
        asked = {ClaimId(demand.subject) for demand in s.demands.values() if demand.status == Status.OPEN}
        running |= {id_ for id_, c in own.items() if id_ in asked and c.open_games}
        idle = {id_: c for id_, c in own.items() if id_ not in running}
        void = {r for of, r in s.rounds if of == job and r >= books.started and s.rounds[job, r].phase == Phase.VOID}
        numbers = {*range(max(books.settled - 1, 0), books.started), *void, *(c.round for c in own.values())}
        rounds = [self._round(s, b, r, idle) for r in sorted(numbers)]
        if books.status == JobStatus.VOID:
            rounds = [replace(r, phase=Phase.VOID) if r.phase < Phase.FINAL else r for r in rounds]
        return working.JobView(job, p, books, tuple(rounds), b.time, b.number)

    def _round(self, s: State, b: Block, r: int, idle: Mapping[ClaimId, Claim]) -> working.RoundView:
        job, p = self.scene.job, self.scene.setting.params
        state = s.rounds[job, r]
        phase = views.phase(s, b, job, r) if state.phase == Phase.JOINING else state.phase
        merger, over = ZERO_ADDRESS, False
        if phase == Phase.MERGING:
            merger = views.merger_of(s, b, job, r)
            over = views.turns_over(p, state, b.time)
        elif phase == Phase.LEAD and r + state.backed < s.jobs[job].started:
            merger = views.merger_of(s, b, job, r)
        named = [ids.claim_id(job, r, state.attempt, slot) for slot in range(p.role.slots)]
        held = tuple(replace(s.claims[id_], slot=slot) for slot, id_ in enumerate(named))
        merged_by = s.claims[state.merge_claim].worker if phase == Phase.LEAD else ZERO_ADDRESS
        audit = s.audits.get(ids.audit_id(job, r, state.attempt))
        slots = {id_: slot for slot, id_ in enumerate(named)}
        locks = frozenset(slots.get(id_, MERGE_SLOT) for id_, c in idle.items() if c.round == r)
        return working.RoundView(r, state, phase, held, merger, over, audit, frozenset(), merged_by, locks)

    # -- the coordinator

    def _coordinates(self, s: State, b: Block) -> Iterator[MarketCall]:
        job, p = self.scene.job, self.scene.setting.params
        looked = self._look(s, b)
        seen = coordinating.AggregatorJob(
            p, s.jobs[job], s.barred[job, self.me],
            tuple(
                coordinating.AggregatorRound(
                    r.number, r.phase, r.state,
                    tuple((k, Report.DECODED) for k, c in enumerate(r.claims) if c.status == ClaimStatus.REVEALED),
                    merger=r.merger, merge_turns_over=r.merge_turns_over,
                    mine=s.claims[r.state.merge_claim].worker == self.me,
                )
                for r in looked.rounds
            ),
        )  # fmt: skip
        wallet = (Wei(s.free[self.me]), Wei(s.balances[self.me]), Wei(s.credits[self.me]))
        for act in coordinating.decide(seen, coordinating.Decider(self.me, b.time, b.number, *wallet)):
            # Owners send receipts themselves here, and earnings are not withdrawn.
            if act.kind not in (ActionKind.ATTEST, ActionKind.DEMAND, ActionKind.WITHDRAW):
                yield from self._done(s, act)

    # -- a verifier

    def _verifies(self, s: State, b: Block) -> Iterator[MarketCall]:
        """Yields acts on claims that the verifier checks unasked, each some time after it was made, and on those these
        lead to.
        """
        setting, due, later = self.scene.setting, set(self.suspects), []
        for id_, c in s.claims.items():
            if c.claimed_at and id_ in self.known.held and (c.is_merge or setting.looks_at(id_)):
                # Checking a merge delays no one for longer than its window.
                begins = c.claimed_at + (0 if c.is_merge else setting.delay)
                if b.time >= begins:
                    due.add(id_)
                else:
                    later.append(begins)
        self.wakes = min(later, default=0)
        yield from self._challenges(s, b, due)

    def _challenges(self, s: State, b: Block, due: Collection[ClaimId]) -> Iterator[MarketCall]:
        """Yields challenges of every wrong claim among those it checks, earliest window first.

        A claim that cannot be replayed leads to the wrong claim from which it starts.
        """
        p, known = self.scene.setting.params, self.known
        held = {id_: s.claims[id_] for id_ in due if s.claims[id_].claimed_at and id_ in known.held}
        delayed = set()
        for id_ in list(held):
            if (wrong := known.wrong_behind(id_)) is not None:
                delayed.add(id_)
                self.suspects.add(wrong)
        for id_ in self.suspects - set(held):
            held[id_] = s.claims[id_]
        found = [
            verifying.Candidate(
                _record(id_, c, known.held[id_].body),
                Seconds(c.claimed_at + p.windows.challenge_seconds),
                views.live(s, id_),
                p.role.carries and not c.is_merge,
            )
            for id_, c in held.items()
        ]
        right = {id_ for id_ in held if not known.held[id_].wrong_from}
        own = [(id_, g.claim) for id_, g in s.games.items() if g.challenger == self.me]
        mine = {claim for id_, claim in own if id_ == game.game_id(claim, self.me, 0)}
        settled = {id_: made.body.trace_root for id_, made in known.held.items() if id_ in right | mine}
        chosen = verifying.next_claim(found, settled, delayed, b.time)
        if chosen is None or not views.window_open(s, b, chosen.record.id):
            return
        bond = views.bond_of(s, self.scene.job)
        if (lacking := verifying.deposit_due(Wei(s.free[self.me]), bond)) > 0:
            yield MarketCall("StakeVault", "deposit", self.me, (lacking,))
        claim = chosen.record.id
        made = known.held[claim]
        opening = self._opening(s, claim, made)
        if opening is not None:
            yield known._moved(opening, GameId(Digest(bytes(32))), self.me)

    def _opening(self, s: State, claim: ClaimId, made: ConstantClaim) -> moves.Open | None:
        c = s.claims[claim]
        facts = views.facts_of(s, claim, 1, made.carried), views.facts_of(s, claim, c.transitions)
        known = game.DisputedClaim(
            claim, c.worker, c.transitions, made.body, facts[0].state_zero, facts[0].program, facts[1].program,
            facts[0].seed, facts[0].round, facts[0].slot, facts[0].dataset_root, facts[0].dataset_rows,
            facts[0].row_length, Seconds(0), Seconds(0), views.bond_of(s, c.job), carried=made.carried,
        )  # fmt: skip
        return honest.opening(known, made.truth, made.trace, 0)

    # -- a witness

    def _witnesses(self, s: State, b: Block) -> Iterator[MarketCall]:
        job, p = self.scene.job, self.scene.setting.params
        bottom = self.known.bottoms.setdefault(self.me, Digest(keccak(self.me.encode())))
        enrolled = s.enrolled[job, self.me]
        if p.role.witnesses and s.jobs[job].status == JobStatus.ACTIVE and enrolled.standing == Standing.NONE:
            yield MarketCall("Witnesses", "enrol", self.me, (job, draws.chained(bottom, LINKS)))
        if s.jobs[job].status == JobStatus.DONE and enrolled.standing == Standing.LISTED:
            yield MarketCall("Witnesses", "retire", self.me, (job,))
        for (audit, i), duty in s.duties.items():
            if duty.account != self.me:
                continue
            a = s.audits[audit]
            claim = ids.claim_id(a.job, a.round, a.attempt, duty.slot)
            decided = self._decided(s, audit, duty, claim)
            said = next_act(SimpleNamespace(state=a), duty, decided, b.time)  # type: ignore[arg-type]
            if duty.status == DutyStatus.DIFFERED:
                self.suspects.add(claim)
            if said == DutyAct.LOOK and claim not in self.computing and self.known.lacks_carry(claim):
                yield from self._demands_carry(s, b, claim, duty.slot)
            elif said in (DutyAct.LOOK, DutyAct.SPEAK):
                yield self._word(audit, i, duty, a.beacon, claim, reveals=said == DutyAct.SPEAK)
            elif said == DutyAct.SETTLE and b.time >= self.rests.get((audit, i), 0):
                # A call that the contract refuses during a game is tried again later.
                self.rests[audit, i] = b.time + REST_BLOCKS * max(1, int(self.scene.setting.chain.inclusion))
                yield MarketCall("Witnesses", "settle", self.me, (audit, i))

    def _demands_carry(self, s: State, b: Block, claim: ClaimId, slot: int) -> Iterator[MarketCall]:
        """Yields a demand for the carry from which a claim starts; if it was shown or cannot be demanded, it is
        recomputed.
        """
        own = [x for x in s.demands.values() if (x.subject, x.asker, x.row) == (claim, self.me, availability.CARRY)]
        r = s.claims[claim].round
        if own and own[0].status != Status.ANSWERED:
            return
        if own or views.phase(s, b, self.scene.job, r) != Phase.ATTESTING:
            self.computing.add(claim)
            return
        bond = views.bond_of(s, self.scene.job)
        if (lacking := verifying.deposit_due(Wei(s.free[self.me]), bond)) > 0:
            yield MarketCall("StakeVault", "deposit", self.me, (lacking,))
        wanted = availability.pack_wanted((), b"carry" + claim + self.me.encode())
        yield MarketCall("Availability", "carryUnavailable", self.me, (self.scene.job, r, slot, wanted))

    def _decided(self, s: State, audit: AuditId, duty: Duty, claim: ClaimId) -> bool:
        a = s.audits[audit]
        ro = s.rounds[a.job, a.round]
        over = s.jobs[a.job].status == JobStatus.DONE or ro.phase in (Phase.FINAL, Phase.VOID)
        if duty.status in (DutyStatus.DRAWN, DutyStatus.COMMITTED):
            # The merge of a claim that carries shows whether it was left out; then no verdict is required.
            return over or not s.claims[claim].carries or ro.merge_in != NO_STATE
        return over or ro.attempt != a.attempt or s.claims[claim].status == ClaimStatus.CONVICTED

    def _word(self, audit: AuditId, i: int, duty: Duty, beacon: Digest, claim: ClaimId, *, reveals: bool) -> MarketCall:
        made = self.known.held[claim]
        preimage = draws.chained(self.known.bottoms[self.me], LINKS - duty.serial)
        t = draws.step_of(preimage, beacon, i, made.transitions)
        salt = Digest(keccak(audit + b"salt"))
        wrong, seen = self.known.wrong_behind(claim), made.truth.trace
        if wrong is not None:
            # Both are voided together.
            self.suspects.add(wrong)
            seen = (StateRoot(salt),) * made.transitions
        agrees = seen[:t] == made.trace[:t]
        u, leaf = draws.seen_of(t, made.transitions), made.truth.leaf(draws.leaf_word(preimage, beacon, i))
        if not agrees:
            self.suspects.add(claim)
        if not reveals:
            bound = draws.commitment(claim, self.me, seen[u - 1], leaf.digest, preimage, salt)
            return MarketCall("Witnesses", "commit", self.me, (audit, i, bound))
        proof = tuple(merkle.proof(made.levels, u - 1))
        word = Word(preimage, seen[u - 1], leaf, salt, agrees, made.body, proof)
        return MarketCall("Witnesses", "reveal", self.me, (audit, i, word))


STAKE_THAT_A_WORKER_HAS = 10**8
"""It refuses jobs that may require more stake (worker/service.py)."""
REST_BLOCKS = 20


def _record(id_: ClaimId, c: Claim, body: Body) -> ClaimRecord:
    """Returns a claim as a verifier knows it; none of its data are stored."""
    return ClaimRecord(
        id_, c.job, c.round, c.attempt, c.slot, c.worker, body.trace_root, Digest(body.out), Digest(body.out2), None,
        Cid(""), c.claimed_at, carries=c.carries,
    )  # fmt: skip


def _with_data(call: MarketCall) -> MarketCall:
    from tests.support.memory import abi

    return replace(call, data=abi.data_of(call))
