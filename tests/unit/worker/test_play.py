"""Whole jobs on the market's twin, played by workers that follow `decide` and nothing else.

Whoever sleeps, is convicted or never wakes: the job comes to its end, and the money adds up.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.market.acts import Action, ActionKind
from lockstep.protocol import merkle
from lockstep.protocol.errors import ChainError, FundsError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ZERO_ADDRESS, Body, Claim, ClaimStatus, JobStatus, Phase, Receipt, Reveal
from lockstep.protocol.market import ids, views
from lockstep.protocol.market.calls import Block
from lockstep.protocol.types import MERGE_SLOT, Address, ClaimId, Digest, JobId, Seconds, StateRoot, TraceRoot, Wei
from tests.support.ledger import Market
from tests.support.market.twin import BlockHashes
from tests.support.params import amended
from tests.unit.worker.test_decide import PARAMS
from worker import decide
from worker.decide import JobView, Roots, RoundView, WorkerFacts

REQUESTER, AGGREGATOR, CHALLENGER = (Address(f"0x{i:040x}") for i in range(1, 4))
ROOT = keccak(b"any root")
TERMS = amended(
    PARAMS, spec_digest=ROOT, step_program=ROOT, encode_program=ROOT, merge_program=ROOT, dataset_root=ROOT,
    genesis_shared=StateRoot(ROOT), genesis_outer=StateRoot(ROOT), zero_carry=StateRoot(ROOT),
    zero_payload=StateRoot(ROOT), clock_seconds=Seconds(60), aggregator=ZERO_ADDRESS, max_fail=6,
    answer_seconds=Seconds(24),
)  # fmt: skip
OUT, OUT2 = StateRoot(keccak(b"out")), StateRoot(keccak(b"out2"))


def opened(steps: int) -> Reveal:
    """A claim of `steps` + 1 transitions; what it says does not matter here."""
    roots = [keccak(bytes([t])) for t in range(steps)] + [merkle.node(OUT, OUT2)]
    tree = merkle.levels([merkle.leaf(r) for r in roots])
    proof = tuple(merkle.proof(tree, len(roots) - 1))
    return Reveal(Body(TraceRoot(tree[-1][0]), OUT, OUT2), Digest(bytes(32)), proof, "trace", "payload")


def signer(digest: bytes, signature: bytes) -> Address:
    """Here a signature is its account."""
    return Address(signature.decode())


@dataclass
class Player:
    """A worker without threads, disks or chains."""

    address: Address
    place: int
    awake: float
    """The chance that it looks at a block."""
    since: dict[Action, Seconds] = field(default_factory=dict)
    base: Roots | None = None
    refused: int = 0


@dataclass
class Play:
    """A job and who plays it."""

    market: Market
    job: JobId
    players: list[Player]
    random: random.Random
    convict_merge: float
    convict_slot: float
    block: Block = field(default_factory=lambda: Block(10, Seconds(1000), BlockHashes()))
    acts: int = 0
    linger: float = 0.0
    """The chance that a game is opened on a claim which proves nothing."""

    def view(self, me: Address = ZERO_ADDRESS) -> JobView:
        """The job as `worker.reading.poll` gives it to `me`."""
        books, p = self.market.jobs[self.job], self.market.params[self.job]
        known = [r for (job, r) in self.market.rounds if job == self.job]
        locks = {r: self._locks(r, me) for r in known}
        numbers = [
            r for r in sorted(known) if locks[r] or (r >= books.settled - 1 and (r < books.started or self._void(r)))
        ]
        rs = tuple(replace(self._round(r), idle_locks=locks[r]) for r in numbers)
        return JobView(self.job, p, books, rs, self.block.time, self.block.number)

    def _locks(self, r: int, me: Address) -> frozenset[int]:
        """Slots of the round in which `me` has stake, and no game."""
        held = [(c.slot, claim) for claim, c in self.market.claims.items() if (c.round, c.worker) == (r, me)]
        return frozenset(
            slot
            for slot, claim in held
            if claim in self.market.books.locks and not self.market.claims[claim].open_games
        )

    def _void(self, r: int) -> bool:
        return self.market.rounds[self.job, r].phase == Phase.VOID

    def _round(self, r: int) -> RoundView:
        p, ro = self.market.params[self.job], self.market.rounds[self.job, r]
        phase = self.market.phase(self.block, self.job, r)
        merging = phase == Phase.MERGING
        unbacked = phase == Phase.LEAD and r + ro.backed < self.market.jobs[self.job].started
        merger = self.market.merger_of(self.block, self.job, r) if merging or unbacked else ZERO_ADDRESS
        over = merging and views.turn(p, ro, self.block.time) > ro.mask.bit_count()
        claims = [ids.claim_id(self.job, r, ro.attempt, s) for s in range(p.role.slots)]
        held = tuple(self.market.claims.get(i, Claim()) for i in claims)
        merged = self.market.claims.get(ro.merge_claim, Claim())
        return RoundView(r, ro, phase, held, merger, over, merged_by=merged.worker)

    def step(self) -> None:
        """One block: time moves, some players look and act, a challenger may win."""
        self.block = Block(self.block.number + 1, Seconds(self.block.time + self.random.randint(1, 3)), BlockHashes())
        for player in self.random.sample(self.players, len(self.players)):
            if self.random.random() < player.awake:
                self._look(player)
        self._challenge()

    def _look(self, player: Player) -> None:
        view = self.view(player.address)
        committable = frozenset((r.number, s) for r in view.rounds for s in r.slots_of(player.address))
        free = Wei(self.market.books.free[player.address])
        me = WorkerFacts(player.address, free, player.place, False, committable, base=player.base)
        possible = decide.acts(view, me)
        player.since = decide.remember(possible, player.since, self.block.time)
        due = decide.due(possible, player.since, self.block.time, decide.rank(view, me))
        for act in [*due, *decide.ahead(view, me, frozenset())]:
            if act.kind == ActionKind.FETCH:
                player.base = decide.base_of(view, act.round)
                continue
            try:
                self._do(player.address, act)
                self.acts += 1
            except (ChainError, FundsError):
                player.refused += 1

    def _do(self, sender: Address, act: Action) -> None:
        m, b, job, r = self.market, self.block, self.job, act.round
        steps = m.params[job].role.inner_steps
        if act.kind == ActionKind.START:
            m.start_round(b, job, r)
        elif act.kind == ActionKind.JOIN:
            m.join(b, sender, job, r, act.slot)
        elif act.kind == ActionKind.SEAL:
            m.seal(b, job, r)
        elif act.kind == ActionKind.COMMIT:
            claim = ids.claim_id(job, r, m.rounds[job, r].attempt, act.slot)
            m.commit(b, sender, job, r, act.slot, ids.commitment(claim, sender, opened(steps)))
        elif act.kind == ActionKind.REVEAL:
            m.reveal(b, sender, job, r, act.slot, opened(steps))
        elif act.kind == ActionKind.FREEZE:
            held = [ids.claim_id(job, r, m.rounds[job, r].attempt, s) for s in range(m.params[job].role.slots)]
            revealed = [c for c in held if c in m.claims and m.claims[c].status == ClaimStatus.REVEALED]
            m.freeze(b, job, r, [opened(steps).body for _ in revealed])
        elif act.kind == ActionKind.ATTEST:
            m.attest(b, job, r, [Receipt(act.slot, (1 << m.params[job].role.slots) - 1, sender.encode())])
        elif act.kind == ActionKind.MERGE:
            m.merge(b, sender, job, r, OUT, OUT2, act.rounds)
        elif act.kind == ActionKind.BACK:
            m.back(b, sender, job, r, act.rounds)
        elif act.kind == ActionKind.FINALIZE:
            m.finalize(b, job, r)
        elif act.kind == ActionKind.RELEASE:
            m.release(job, r)
        elif act.kind == ActionKind.FINISH:
            m.finish(job)
        else:
            raise AssertionError(f"nobody decides to {act.kind} here")

    def _challenge(self) -> None:
        for claim, c in list(self.market.claims.items()):
            chance = self.convict_merge if c.slot == MERGE_SLOT else self.convict_slot
            if self.random.random() < chance and self.market.window_open(self.block, claim):
                self.market.on_open(self.block, ClaimId(claim), self._body(claim))
                self.market.on_convicted(self.block, ClaimId(claim), 0, (CHALLENGER,), ())
            elif self.random.random() < self.linger and self.market.window_open(self.block, claim):
                self.market.on_open(self.block, ClaimId(claim), self._body(claim))
        for claim, c in list(self.market.claims.items()):
            # A game that proves nothing goes on for a while, whatever becomes of the round under it.
            if c.open_games and self.market.live(claim) and self.random.random() < 0.05:
                self.market.on_rejected(ClaimId(claim))

    def _body(self, claim: bytes) -> Body:
        if self.market.claims[ClaimId(claim)].is_merge:
            return Body(TraceRoot(merkle.leaf(merkle.node(OUT, OUT2))), OUT, OUT2)
        return opened(self.market.params[self.job].role.inner_steps).body


def play(seed: int, players: int, awake: float, aggregated: bool, merges: float, slots: float) -> Play:
    """A job of three rounds, begun."""
    market = Market(recover=signer)
    params = amended(TERMS, rounds=3, max_lead=2, aggregator=AGGREGATOR if aggregated else ZERO_ADDRESS)
    job = market.create(REQUESTER, params, 0, params.escrow)
    seats = [Player(Address(f"0x{i:040x}"), i - 16, awake) for i in range(16, 16 + players)]
    for player in seats:
        market.books.deposit(player.address, Wei(10_000))
    return Play(market, job, seats, random.Random(seed), merges, slots)


@pytest.mark.slow
@pytest.mark.uncounted
@settings(max_examples=60)
@given(
    st.integers(0, 1 << 32), st.integers(2, 4), st.sampled_from([0.3, 0.7, 1.0]), st.booleans(),
    st.sampled_from([0.0, 0.0, 0.02]), st.sampled_from([0.0, 0.0, 0.01]), st.sampled_from([0.0, 0.05]),
)  # fmt: skip
def test_every_job_ends_and_its_money_adds_up(
    seed: int, players: int, awake: float, aggregated: bool, merges: float, slots: float, linger: float
) -> None:
    """The aggregator, where there is one, never wakes: workers succeed it. Games outlive rounds and the job."""
    game = play(seed, players, awake, aggregated, merges, slots)
    game.linger = linger
    deposited = 10_000 * players
    for _ in range(3000):
        game.step()
        if game.market.jobs[game.job].status == JobStatus.DONE:
            break
    for _ in range(200):
        game.step()
    books, vault = game.market.jobs[game.job], game.market.books
    assert books.status == JobStatus.DONE, game.view()
    assert books.escrow == books.paid + books.refunded
    paid_in = books.escrow + game.market.params[game.job].deposit
    assert vault.tokens == deposited + paid_in, "nothing left the vault, nothing appeared"
    assert not vault.locks, "every stake that was not slashed is back"
    assert sum(vault.free.values()) + sum(vault.credits.values()) == vault.tokens


@pytest.mark.uncounted
@given(st.integers(0, 1 << 32))
@settings(max_examples=4)
def test_honest_awake_workers_are_paid_for_every_slot_of_every_round(seed: int) -> None:
    game = play(seed, 3, 1.0, False, 0.0, 0.0)
    for _ in range(600):
        game.step()
    books = game.market.jobs[game.job]
    assert books.status == JobStatus.DONE
    assert books.paid == books.escrow == game.market.params[game.job].escrow
    assert not game.market.books.locks, "every stake is back"
    statuses = {c.status for c in game.market.claims.values()}
    assert statuses == {ClaimStatus.FINAL}
