"""Random behaviour of all accounts: calls of all contracts, mostly plausible ones, some arbitrary.

A Wanderer reads a State and a block, as programs do, and returns the next calls, which may be refused. Claims are those
of tests/support/constant.py, true and false; games are played by honest, lying and random players.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from eth_account.signers.local import LocalAccount

from lockstep.chain import artifacts, games
from lockstep.protocol import merkle
from lockstep.protocol.dispute import game, honest, moves
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ZERO_ADDRESS, Body, ClaimStatus, JobParams, JobStatus, Phase, Receipt, Reveal
from lockstep.protocol.market import availability, court, draws, ids, views
from lockstep.protocol.market.calls import MAX_UINT, Block, Emitted, MarketCall
from lockstep.protocol.market.precommitted import digest_of
from lockstep.protocol.market.receipts import WITNESS
from lockstep.protocol.market.state import State
from lockstep.protocol.market.types import DutyStatus, Row, Standing, Status, Word
from lockstep.protocol.programs import defects
from lockstep.protocol.programs.program import Program
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.transition import STRUCTS, VERBS, execute
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, Digest, GameId, JobId, Seconds, StateRoot
from tests.support import constant
from tests.support.constant import ConstantClaim, Lie
from tests.support.memory import abi
from tests.support.params import amended, job_params

FUNDS = 10**6
"""Tokens of each account that the vault may transfer."""
METERED = frozenset({"open", "pick", "adjacent", "pickElement", "pickPartial", "stage"})
"""Moves of the challenger whose gas a game stores."""
TRIED = 6
"""Calls tried in order to find an accepted one."""
LINKS = 40
"""Length of a witness's hash chain."""


def params_of(dice: random.Random, aggregator: Address = ZERO_ADDRESS) -> JobParams:
    """Returns parameters of a small job of the constant Programs, with windows of a minute or two."""
    slots = dice.choice((1, 2, 3, 3))
    witnesses, max_lead = dice.choice((0, 1, 2)), dice.choice((1, 2, 3, 4))
    return job_params(
        profile=1, opset=1, spec_digest=keccak(b"spec"),
        step_program=constant.step_program().root, encode_program=constant.encode_program().root,
        merge_program=constant.merge_program().root, genesis_shared=constant.root_of(1),
        genesis_outer=constant.root_of(2), shared_depth=0, payload_depth=0,
        zero_carry=constant.root_of(constant.CARRY), zero_payload=keccak(b"zero payload"),
        carry_period=dice.choice((0, *range(2, max_lead))),
        dataset_root=constant.dataset_root(), dataset_rows=1, row_length=1, inner_steps=1,
        rounds=dice.choice((1, 2, 3)), slots=slots, min_slots=dice.randint(1, slots), max_lead=max_lead,
        max_fail=dice.choice((0, 1, 3)), join_seconds=60, train_seconds=60, reveal_seconds=40, attest_seconds=40,
        turn_seconds=60, challenge_seconds=dice.choice((120, 300)), clock_seconds=120, step_seconds=10,
        slot_price=101, merge_price=57, slot_stake=1_013, merge_stake=1_019, bond=153, witnesses=witnesses,
        audit_seconds=40 if witnesses else 0, witness_fee=11 if witnesses else 0, witness_stake=223 if witnesses else 0,
        answer_seconds=40, gas_price=0, fee_cap=dice.choice((10**9, 10**11)), aggregator=aggregator,
    )  # fmt: skip


@dataclass
class Wanderer:
    """The random generator, and knowledge besides the chain: who claimed what, and witnesses' secrets."""

    dice: random.Random
    keys: Mapping[Address, LocalAccount]
    held: dict[ClaimId, ConstantClaim] = field(default_factory=dict)
    logs: dict[GameId, list[moves.GameEvent]] = field(default_factory=dict)
    bottoms: dict[Address, Digest] = field(default_factory=dict)
    meant: list[MarketCall] = field(default_factory=list)
    """Committed calls to send in a later block."""
    jobs: int = 0

    @property
    def accounts(self) -> tuple[Address, ...]:
        """Returns all accounts."""
        return tuple(self.keys)

    def _signature(self, account: Address, digest: Digest) -> bytes:
        return bytes(self.keys[account].unsafe_sign_hash(digest).signature)  # type: ignore[arg-type]

    def learn(self, events: Sequence[Emitted]) -> None:
        """Records events."""
        for event in events:
            if event.contract == "DisputeGame" and event.name != "Convicted":
                topics, data = abi.log_of(event)
                entry: Any = {"topics": topics, "data": data}
                self.logs.setdefault(GameId(Digest(topics[1])), []).append(games.decode(entry))

    # -- what is sent next

    def calls(self, s: State, b: Block) -> list[MarketCall]:
        """Returns the calls of the next block: one to five, at most one of them a move whose gas a game stores."""
        chosen: list[MarketCall] = []
        for _ in range(self.dice.choice((1, 1, 2, 3, 5))):
            call = self._one(s, b)
            if call is None:
                continue
            metered = call.contract == "DisputeGame" and call.function in METERED
            if metered and any(c.contract == "DisputeGame" for c in chosen):
                continue
            chosen.append(call)
            if metered:
                break
        return chosen

    def _one(self, s: State, b: Block) -> MarketCall | None:
        kind = self.dice.random()
        for share, source in (
            (0.36, self._rounds), (0.34, self._games), (0.08, self._witnesses), (0.08, self._demands),
            (0.05, self._money), (0.02, self._jobs), (0.07, self._anything),
        ):  # fmt: skip
            kind -= share
            if kind < 0:
                return self._chosen(s, b, list(source(s, b)))
        return None

    def _chosen(self, s: State, b: Block, choices: list[MarketCall]) -> MarketCall | None:
        """Returns one of the choices, in most cases one that would be accepted now; None if there are none."""
        if not choices:
            return None
        some = self.dice.sample(choices, min(TRIED, len(choices)))
        if self.dice.random() < 0.15:
            return some[0]
        soon = Block(b.number + 1, Seconds(b.time + 1), b.hashes, b.base_fee)
        return next((call for call in some if self._accepted(s, soon, call)), some[0])

    @staticmethod
    def _accepted(s: State, b: Block, call: MarketCall) -> bool:
        try:
            execute(s, b, replace(call, data=abi.data_of(call)))
        except Reverted:
            return False
        return True

    def anyone(self) -> Address:
        """Returns a random account."""
        return self.dice.choice(self.accounts)

    def first_calls(self, s: State) -> list[list[MarketCall]]:
        """Returns the blocks of calls that begin a history: tokens, stakes, a job."""
        blocks: list[list[MarketCall]] = [[], [], [], []]
        for account in self.accounts:
            blocks[0].append(MarketCall("TestToken", "mint", account, (account, 2 * FUNDS)))
            blocks[1].append(
                MarketCall("TestToken", "approve", account, (s.at.vault, self.dice.choice((FUNDS, MAX_UINT))))
            )
            stake = self.dice.choice((2_000, 20_000, 20_000, 100_000))
            blocks[2].append(MarketCall("StakeVault", "deposit", account, (stake,)))
        blocks[3] = list(self._jobs(s, Block(0, 0)))  # type: ignore[arg-type]
        return blocks

    # -- jobs and rounds

    def _jobs(self, s: State, b: Block) -> Iterator[MarketCall]:
        self.jobs += 1
        p = params_of(self.dice, self.anyone())
        if self.jobs > 1 and self.dice.random() < 0.5:
            strange = self.dice.choice(
                ({"rounds": 0}, {"slots": 65}, {"min_slots": 9}, {"clock_seconds": 1}, {"bond": 0}, {"fee_cap": 0},
                 {"slot_price": MAX_UINT >> 128}, {"shared_depth": 40}, {"carry_period": 5})
            )  # fmt: skip
            p = amended(p, **strange)
        yield MarketCall(
            "JobMarket", "create", self.accounts[0], (p, self.jobs, p.escrow + self.dice.choice((0, 0, 7)))
        )

    def _job(self, s: State) -> JobId:
        known = list(s.jobs)
        if self.dice.random() < 0.9:
            known = [job for job in known if s.jobs[job].status != JobStatus.DONE] or known
        return self.dice.choice(known) if known else JobId(Digest(bytes(32)))

    def _rounds(self, s: State, b: Block) -> Iterator[MarketCall]:
        job = self._job(s)
        p, j, d = s.params[job], s.jobs[job], self.dice
        if p is None or j.status == JobStatus.DONE:
            yield from self._jobs(s, b)
        if p is None:
            return

        def call(function: str, *arguments: Any, sender: Address | None = None) -> MarketCall:
            return MarketCall("JobMarket", function, sender or self.anyone(), (job, *arguments))

        if j.status == JobStatus.ACTIVE and j.started < p.schedule.rounds:
            yield call("startRound", j.started)
        if j.settled == j.started or d.random() < 0.05:
            yield call("finish")
        if d.random() < 0.01:
            yield call("cancel", sender=j.requester if d.random() < 0.8 else None)
        for r in range(p.schedule.rounds):
            yield from self._round(s, b, job, p, r, call)

    def _round(
        self, s: State, b: Block, job: JobId, p: JobParams, r: int, call: Callable[..., MarketCall]
    ) -> Iterator[MarketCall]:
        ro, d = s.rounds[job, r], self.dice
        named = [self._claim(s, job, r, slot) for slot in range(p.role.slots)]
        owned = [(slot, s.claims[id_]) for slot, id_ in enumerate(named) if id_ in s.claims]
        match views.phase(s, b, job, r):
            case Phase.JOINING:
                for slot in range(p.role.slots):
                    before = s.claims[self._claim(s, job, r - 1, slot)].worker if r else ZERO_ADDRESS
                    same = before in self.keys and d.random() < 0.6
                    yield call("join", r, slot, sender=before if same else None)
                for slot, c in owned:
                    if d.random() < 0.05:
                        yield call("leave", r, slot, sender=c.worker)
            case Phase.SEALING:
                yield call("seal", r)
            case Phase.TRAINING:
                for slot, c in owned:
                    if c.worker in self.keys and (c.status == ClaimStatus.JOINED or d.random() < 0.05):
                        claim = self._claim(s, job, r, slot)
                        self.held.setdefault(claim, self._made(s, job, r, slot))
                        opened = self._opened(claim, p, r)
                        commitment = ids.commitment(claim, c.worker, opened)
                        yield call("commit", r, slot, commitment, sender=c.worker)
            case Phase.REVEALING:
                for slot, c in owned:
                    claim = self._claim(s, job, r, slot)
                    if claim in self.held and (c.status == ClaimStatus.COMMITTED or d.random() < 0.05):
                        yield call("reveal", r, slot, self._opened(claim, p, r), sender=c.worker)
            case Phase.ATTESTING:
                if p.role.witnesses and not ro.drawn:
                    yield MarketCall("Witnesses", "draw", self.anyone(), (job, r))
                speakers = [slot for slot, c in owned if c.status != ClaimStatus.CONVICTED or d.random() < 0.05]
                speakers += [WITNESS + i for i in range(ro.witnesses)]
                silent = [who for who in speakers if not ro.spoke >> who & 1 or d.random() < 0.05]
                if silent:
                    some = d.sample(silent, d.randint(1, len(silent)))
                    yield call("attest", r, [self._receipt(s, job, p, r, who) for who in some])
            case Phase.FREEZING:
                yield call("freeze", r, self.bodies(s, job, r)[: None if d.random() < 0.95 else -1])
            case Phase.MERGING:
                merger = views.merger_of(s, b, job, r)
                if merger in self.keys:
                    lie = d.choice((Lie.NONE, Lie.NONE, Lie.VALUE, Lie.PADDING))
                    body = ConstantClaim.of_merge(ro.merge_in, lie).body
                    merged = ids.claim_id(job, r, s.jobs[job].attempt, MERGE_SLOT)
                    self.held[merged] = ConstantClaim.of_merge(ro.merge_in, lie)
                    rounds = d.choice((0, 1, p.schedule.max_lead - 1))
                    yield call("merge", r, body.out, body.out2, "checkpoint", rounds, sender=merger)
                yield call("finalize", r)
            case Phase.LEAD:
                merger = s.claims[ro.merge_claim].worker
                if d.random() < 0.3:
                    yield call("back", r, d.choice((1, 1, 2)), sender=merger)
                again = views.merger_of(s, b, job, r)
                if again in self.keys and ro.merge_claim in self.held:
                    made = self.held[ro.merge_claim]
                    self.held[ids.claim_id(job, r, s.jobs[job].attempt + 1, MERGE_SLOT)] = made
                    outputs = (made.body.out, made.body.out2 if d.random() < 0.9 else made.body.out)
                    rounds = d.choice((0, 1, 1, p.schedule.max_lead - 1))
                    yield call("merge", r, *outputs, "checkpoint", rounds, sender=again)
                yield call("finalize", r)
            case Phase.FAILED:
                yield call("finalize", r)
            case Phase.VOID:
                yield call("release", r)
            case _:
                if d.random() < 0.02:
                    yield call(d.choice(("finalize", "release", "seal")), r)

    def bodies(self, s: State, job: JobId, r: int) -> list[Body]:
        """Returns the bodies of a round's revealed claims."""
        p = s.params[job]
        named = [self._claim(s, job, r, slot) for slot in range(p.role.slots if p else 0)]
        return [
            self.held[id_].body for id_ in named if id_ in self.held and s.claims[id_].status == ClaimStatus.REVEALED
        ]

    def _made(self, s: State, job: JobId, r: int, slot: int) -> ConstantClaim:
        """Returns a slot's claim, true in one case of two."""
        p, lie = s.params[job], self.dice.choice((*[Lie.NONE] * 5, *list(Lie)[1:]))
        assert p is not None, "the job exists"
        return ConstantClaim.of_slot(s.rounds[job, r].base, p.role.zero_carry, r * p.role.inner_steps, lie)

    def _claim(self, s: State, job: JobId, r: int, slot: int) -> ClaimId:
        ro = s.rounds[job, r]
        return ro.merge_claim if slot == MERGE_SLOT else ids.claim_id(job, r, ro.attempt, slot)

    def _opened(self, claim: ClaimId, p: JobParams, r: int) -> Reveal:
        made, period = self.held[claim], p.role.carry_period
        proof = tuple(merkle.proof(made.levels, 1))
        trace = self.dice.choice(("trace", "", "tr\udcff\udcfece"))
        # The same claim always gets the same result; the carry is looked up.
        carries = claim[0] < (160 if period and r % period else 4)
        return Reveal(made.body, Digest(keccak(claim + b"nonce")), proof, trace, "payload", carries)

    def _receipt(self, s: State, job: JobId, p: JobParams, r: int, who: int) -> Receipt:
        """Returns a receipt, mostly for all slots, mostly signed by its speaker."""
        d, full = self.dice, (1 << p.role.slots) - 1
        mask = d.choice((full, full, full, d.randrange(full + 1)))
        if who < WITNESS:
            account = s.claims[self._claim(s, job, r, who)].worker
        else:
            account = views.witness_of(s, job, r, who - WITNESS)
        if account not in self.keys or d.random() < 0.03:
            account = self.anyone()
        digest = ids.receipt_hash(s.at.chain_id, s.at.market, job, r, s.rounds[job, r].attempt, who, mask)
        return Receipt(who, mask, self._signature(account, digest))

    # -- games

    def _games(self, s: State, b: Block) -> Iterator[MarketCall]:
        d = self.dice
        open_ = [id_ for id_, g in s.games.items() if g.phase != moves.GamePhase.CLOSED]
        for id_ in open_:
            g = s.games[id_]
            if b.time > g.deadline or not views.live(s, g.claim) or d.random() < 0.03:
                yield MarketCall("DisputeGame", "resolve", self.anyone(), (id_, g.standing))
            if g.claim in self.held and (move := self._move(s, b, id_)) is not None:
                mover = g.defender if g.defender_moves else g.challenger
                yield self._moved(move, id_, mover if d.random() < 0.97 else self.anyone())
        # A started game is mostly played on.
        if d.random() < min(0.95, 0.4 * len(open_)):
            return
        live = [c for c in self.held if views.live(s, c) and s.claims[c].digest != Digest(bytes(32))]
        for claim in d.sample(live, min(2, len(live))):
            opening = self._opening(s, claim)
            if opening is not None:
                yield self._moved(opening, GameId(Digest(bytes(32))), self.anyone())
            if d.random() < 0.05 and s.claims[claim].worker in self.keys:
                yield self._equivocation(s, claim)

    def _moved(self, move: moves.Move, id_: GameId, sender: Address) -> MarketCall:
        given = tuple(getattr(move, part.name) for part in fields(move))
        if isinstance(move, moves.Stage | moves.ProveOp):
            given = (given[0], court.OperandProof(*given[1:]))
        return MarketCall("DisputeGame", move.call, sender, given if isinstance(move, moves.Open) else (id_, *given))

    def _facts(self, s: State, claim: ClaimId, t: int) -> tuple[Any, tuple[bytes, ...]]:
        """Returns the known facts of a transition, and the words that they need."""
        c = s.claims[claim]
        carried: tuple[bytes, ...] = ()
        if c.carries:
            before = s.rounds[c.job, c.round - 1]
            earlier = ids.claim_id(c.job, c.round - 1, before.attempt, c.slot)
            if earlier in self.held:
                carried = tuple(self.held[earlier].body.words)
        return views.facts_of(s, claim, t, carried), carried

    def _opening(self, s: State, claim: ClaimId) -> moves.Open | None:
        """Returns the opening of a game on a wrong transition, or on a random one."""
        d, made = self.dice, self.held[claim]
        t = made.wrong_from if made.wrong_from and d.random() < 0.7 else d.randint(0, made.transitions)
        try:
            facts, carried = self._facts(s, claim, max(t, 1))
        except Reverted:
            return None
        nonce = d.choice((0, 0, 1, 2))
        if t == 0:
            return moves.Open(claim, made.body, nonce, 0, StateRoot(merkle.EMPTY[0]), (), moves.NO_TRANSITION)
        program = made.step(t).program
        prev = facts.state_zero if t == 1 else made.trace[t - 2]
        proof = carried if t == 1 else tuple(merkle.proof(made.levels, t - 2))
        transition = moves.Transition(prev, proof, program.header, program.ops_root, program.consts_root)  # type: ignore[arg-type]
        return moves.Open(
            claim, made.body, nonce, t, made.trace[t - 1], tuple(merkle.proof(made.levels, t - 1)), transition
        )

    def _move(self, s: State, b: Block, id_: GameId) -> moves.Move | None:
        """Returns a move by the player's own claim or the truth; sometimes by the other side's."""
        g, d = s.games[id_], self.dice
        made = self.held[g.claim]
        log = self.logs.get(id_, [])
        try:
            if g.defender_moves:
                return honest.answer(g, log, made if d.random() < 0.95 else made.truth)
            own = made.truth if d.random() < 0.95 else made
            return self._wild(g, log) if d.random() < 0.15 else honest.point(g, log, own)
        except (AssertionError, IndexError, KeyError, ValueError, Reverted):
            # A random player's game has reached a state in which honest play is undefined.
            return moves.ProvePadding(g.standing) if d.random() < 0.5 else None

    def _wild(self, g: game.Game, events: Sequence[moves.GameEvent]) -> moves.Move | None:
        """Points at a random permitted node, with true proofs for it."""
        seen, d = honest.GameLog(events), self.dice
        if g.phase in (moves.GamePhase.TRACE_PICK, moves.GamePhase.GRAPH_PICK, moves.GamePhase.TENSOR_PICK):
            i = d.randrange(len(seen.children))
            return moves.Pick(g.standing, i, seen.children[i], tuple(merkle.proof(merkle.levels(seen.children), i)))
        if g.phase == moves.GamePhase.ELEMENT and d.random() < 0.3:
            return moves.PickElement(g.standing, d.choice((0, 0, 1)))
        return moves.ProvePadding(g.standing)

    def _equivocation(self, s: State, claim: ClaimId) -> MarketCall:
        """Signs for a claim's work twice with different results, twice with equal results, or by another account."""
        c, d = s.claims[claim], self.dice
        ro = s.rounds[c.job, c.round]
        work = court.Work(c.job, c.round, c.attempt, c.slot, ro.seed, ro.base)
        signer = c.worker if c.worker in self.keys and d.random() < 0.6 else self.anyone()
        signed = []
        for root in (b"one", d.choice((b"other", b"one"))):
            said = (keccak(root), 2, StateRoot(Digest(bytes(32))), StateRoot(Digest(bytes(32))))
            parts = (work.job, work.round, work.attempt, work.slot, work.seed, work.base, *said)
            digest = ids.claim_digest(s.at.chain_id, s.at.market, parts)
            signed.append(court.Signed(*said, self._signature(signer, digest)))
        return MarketCall("DisputeGame", "equivocate", self.anyone(), (work, *signed))

    # -- witnesses

    def _witnesses(self, s: State, b: Block) -> Iterator[MarketCall]:
        job, d = self._job(s), self.dice

        def call(function: str, *arguments: Any, sender: Address | None = None) -> MarketCall:
            return MarketCall("Witnesses", function, sender or self.anyone(), arguments)

        who = self.anyone()
        listed = s.enrolled[job, who].standing == Standing.LISTED
        if not listed:
            bottom = self.bottoms.setdefault(who, Digest(keccak(who.encode())))
            yield call("enrol", job, draws.chained(bottom, LINKS), sender=who)
        if listed and d.random() < 0.1:
            yield call("retire", job, sender=who)
        for (audit, i), duty in s.duties.items():
            a = s.audits[audit]
            claim = ids.claim_id(a.job, a.round, a.attempt, duty.slot)
            if duty.status == DutyStatus.CLOSED or claim not in self.held or duty.account not in self.bottoms:
                continue
            opened = self._word(audit, i, duty, a.beacon, claim)
            leaf = opened.leaf.digest
            bound = draws.commitment(claim, duty.account, opened.state, leaf, opened.preimage, opened.salt)
            if duty.status == DutyStatus.DRAWN:
                yield call("commit", audit, i, bound, sender=duty.account)
            if duty.status == DutyStatus.COMMITTED:
                yield call("reveal", audit, i, opened, sender=duty.account)
            yield call("settle", audit, i)
            if d.random() < 0.2:
                yield call("publish", a.job, a.round, duty.slot, "list", sender=s.claims[claim].worker)

    def _word(self, audit: Any, i: int, duty: Any, beacon: Digest, claim: ClaimId) -> Word:
        """Returns a witness's verdict, random by its duty: the truth, or the worker's word."""
        made, luck = self.held[claim], keccak(audit + bytes([i]))[0]
        preimage = draws.chained(self.bottoms[duty.account], max(0, LINKS - duty.serial))
        told = made if luck % 3 == 0 else made.truth
        leaf = told.leaf(draws.leaf_word(preimage, beacon, i))
        if luck % 7 == 0:
            leaf = replace(leaf, digest=Digest(keccak(audit + b"none")))
        state = told.trace[0]
        return Word(
            preimage, state, leaf, Digest(keccak(audit + b"salt")), state == made.trace[0], made.body,
            tuple(merkle.proof(made.levels, 0)),
        )  # fmt: skip

    # -- demands and evidence

    def _demands(self, s: State, b: Block) -> Iterator[MarketCall]:
        job, d = self._job(s), self.dice
        p = s.params[job]
        if p is None:
            return
        while self.meant and d.random() < 0.7:
            yield self.meant.pop(0)
        r = max(0, s.jobs[job].started - d.choice((1, 1, 2)))
        who = self.anyone()
        yield MarketCall(
            "Availability", "unavailable", who, (job, r, d.randrange(p.role.slots + 1), d.getrandbits(256))
        )
        if d.random() < 0.5:
            wanted = d.getrandbits(256)
            yield MarketCall("Availability", "carryUnavailable", who, (job, r, d.randrange(p.role.slots), wanted))
        if d.random() < 0.3:
            yield MarketCall("Availability", "demandRow", who, (job, d.choice((0, 0, 0, 1))))
        for id_, demand in s.demands.items():
            if demand.status != Status.OPEN:
                continue
            late = MarketCall("Availability", "settle", who, (id_,))
            if demand.beacon == 0:
                late = MarketCall("Availability", "voidForRow", who, (job, demand.row))
                leaf = constant.held(constant.ROW)
                rows = (Row(bytes(leaf.data), ()),)
                answer = (job, demand.row, leaf.levels[-1][0], demand.next, rows)
                yield from self._committed("Availability", MarketCall("Availability", "answerRow", who, answer))
            elif (claim := ClaimId(demand.subject)) in self.held:
                yield MarketCall("Availability", "answer", who, (id_, *self._shown(s, b, id_, claim)))
            if b.time > demand.deadline or d.random() < 0.1:
                yield late
        if d.random() < 0.2:
            evidence = defects.Evidence(defects.Subject(d.randrange(len(defects.Subject))), d.randrange(3), 0)
            code = self._code(constant.step_program())
            evidence = defects.Evidence(evidence.subject, evidence.program, d.randrange(3), 0, code, code, ())
            yield from self._committed("Validator", MarketCall("Validator", "proveInvalid", who, (job, evidence)))

    def _committed(self, contract: str, call: MarketCall) -> Iterator[MarketCall]:
        """Yields the call's commitment; the call follows later, or at once and in vain."""
        if self.dice.random() < 0.1:
            yield call
            return
        self.meant.append(call)
        yield MarketCall(contract, "commit", call.sender, ([digest_of(call.sender, abi.data_of(call))],))

    @staticmethod
    def _code(program: Program) -> defects.Code:
        return defects.Code(program.header, program.ops_root, program.consts_root)

    def _shown(self, s: State, b: Block, id_: Digest, claim: ClaimId) -> tuple[Any, ...]:
        """Returns the leaves that a payload's demand names."""
        program, made = constant.encode_program(), self.held[claim]
        demand = s.demands[id_]
        try:
            seed = availability.seed_of(s, b, id_)
        except Reverted:
            seed = Digest(bytes(32))
        value = made.step(made.transitions).value
        contents = {0: constant.held(value), 1: constant.held(constant.CARRY)}
        carry = demand.row == availability.CARRY
        shown = availability.payload_answer(
            demand.wanted, seed, program, lambda entry: memoryview(contents[entry].data), carry
        )
        return made.body, self._code(program), shown

    # -- money

    def _money(self, s: State, b: Block) -> Iterator[MarketCall]:
        d, who, other = self.dice, self.anyone(), self.anyone()
        amount = d.choice((0, 1, 500, 3_000, 10**7, MAX_UINT))
        yield MarketCall("StakeVault", "deposit", who, (amount,))
        yield MarketCall("StakeVault", "withdraw", who, ())
        yield MarketCall("StakeVault", "requestUnbond", who, (amount,))
        yield MarketCall("StakeVault", "withdrawUnbonded", who, ())
        yield MarketCall("StakeVault", "burn", who, ())
        yield MarketCall("StakeVault", "setDelegate", who, (d.choice((other, ZERO_ADDRESS)),))
        yield MarketCall("StakeVault", "registerNode", who, (keccak(who.encode()),))
        yield from self._owners(s, who, other, amount)
        yield MarketCall("TestToken", "transfer", who, (d.choice((other, ZERO_ADDRESS)), amount))
        yield MarketCall("TestToken", "approve", who, (d.choice((s.at.vault, other, ZERO_ADDRESS)), amount or FUNDS))
        yield MarketCall("TestToken", "transferFrom", who, (other, d.choice((who, ZERO_ADDRESS)), amount))
        yield MarketCall("TestToken", "mint", who, (who, d.choice((1, FUNDS))))

    def _owners(self, s: State, who: Address, other: Address, amount: int) -> Iterator[MarketCall]:
        """Yields calls that name an owner, act as owner, hand it on, and attempts of others."""
        d, owned = self.dice, [pair for pair in s.owner_of.items() if pair[1] in self.keys]
        account, owner = d.choice(owned) if owned and d.random() < 0.8 else (who, other)
        offered = s.proposed_owner_of[account]
        if len(owned) < 3 or d.random() < 0.1:
            yield MarketCall("StakeVault", "setOwner", who, (d.choice((other, other, ZERO_ADDRESS, s.at.vault)),))
        yield MarketCall("StakeVault", "proposeOwner", owner, (account, d.choice((other, who, ZERO_ADDRESS))))
        yield MarketCall("StakeVault", "acceptOwner", other if offered == ZERO_ADDRESS else offered, (account,))
        yield MarketCall("StakeVault", "requestUnbondFor", owner, (account, amount))
        yield MarketCall("StakeVault", "withdrawUnbondedFor", owner, (account,))
        yield MarketCall("StakeVault", "withdrawFor", owner, (account,))
        yield MarketCall("StakeVault", "setDelegateFor", owner, (account, d.choice((other, ZERO_ADDRESS))))

    # -- anything

    def _anything(self, s: State, b: Block) -> Iterator[MarketCall]:
        contract, function = self.dice.choice(list(VERBS))
        inputs = artifacts.function(contract, function)["inputs"]
        yield MarketCall(contract, function, self.anyone(), tuple(self._any(s, part) for part in inputs))

    def _any(self, s: State, part: dict[str, Any]) -> Any:
        """Returns a value of an ABI type, one known to the chain where possible."""
        d, kind = self.dice, part["type"]
        if kind.endswith("[]"):
            return [self._any(s, part | {"type": kind[:-2]}) for _ in range(d.randrange(3))]
        if kind == "tuple":
            name = part["internalType"].removeprefix("struct ").rpartition(".")[2].removesuffix("[]")
            if name == "JobParams":
                return d.choice([p for p in s.params.values() if p] or [params_of(d, self.anyone())])
            return STRUCTS[name](*(self._any(s, p) for p in part["components"]))
        if kind == "address":
            return d.choice((*self.accounts, ZERO_ADDRESS, s.at.vault, s.at.market))
        if kind == "bool":
            return d.random() < 0.5
        if kind == "bytes":
            data = d.randbytes(d.choice((0, 4, 32, 65, 200)))
            return data.decode(errors="surrogateescape") if part["name"].endswith("Cid") else data
        if kind == "bytes32":
            known = [*s.jobs, *s.claims, *s.games, *s.audits, *s.demands]
            return d.choice(known) if known and d.random() < 0.8 else Digest(keccak(d.randbytes(4)))
        if part.get("internalType", "").endswith("Subject"):
            return defects.Subject(d.randrange(len(defects.Subject)))
        bits = int(kind.removeprefix("uint"))
        return d.choice((0, 0, 1, 2, 3, 64, (1 << bits) - 1, d.getrandbits(bits))) % (1 << bits)
