"""The rules of jobs, rounds, claims and money, each with its scene; money conserved in random histories."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.protocol import merkle
from lockstep.protocol.errors import ChainError, FundsError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import (
    ZERO,
    ZERO_ADDRESS,
    Body,
    ClaimStatus,
    JobParams,
    JobStatus,
    Phase,
    Receipt,
    Reveal,
)
from lockstep.protocol.market import ids, state_roots, views
from lockstep.protocol.market.calls import HASH_BLOCKS, Block
from lockstep.protocol.market.rounds import worth
from lockstep.protocol.market.types import BURN, Keeper
from lockstep.protocol.types import Address, ClaimId, Digest, JobId, Seconds, StateRoot, Wei
from tests.support import histories
from tests.support.histories import BlockHashes
from tests.support.ledger import Books, Market
from tests.support.params import amended, job_params

REQUESTER, AGGREGATOR, CHALLENGER, ANYONE = (f"0x{i:040x}" for i in range(1, 5))
HONEST, LIAR, LAZY = (f"0x{i:040x}" for i in range(17, 20))
WORKERS = (HONEST, LIAR, LAZY)
ROOT = keccak(b"root")

PARAMS = job_params(
    spec_digest=ROOT, step_program=ROOT, encode_program=ROOT, merge_program=ROOT, dataset_root=ROOT, dataset_rows=9,
    row_length=4, genesis_shared=keccak(b"shared"), genesis_outer=keccak(b"outer"), zero_carry=ROOT,
    zero_payload=keccak(b"zero payload"),
    shared_depth=3, payload_depth=2, inner_steps=3, rounds=3, slots=3, min_slots=2, max_lead=2, max_fail=1,
    join_seconds=Seconds(100), train_seconds=Seconds(100), reveal_seconds=Seconds(100), attest_seconds=Seconds(100),
    turn_seconds=Seconds(100), challenge_seconds=Seconds(100), clock_seconds=Seconds(100), step_seconds=Seconds(1),
    slot_price=Wei(10), merge_price=Wei(6), slot_stake=Wei(101), merge_stake=Wei(202), bond=Wei(51),
    aggregator=Address(AGGREGATOR), answer_seconds=Seconds(50),
)  # fmt: skip


BACKED = PARAMS.merge.stake + 2 * PARAMS.round_pay
"""What a merge locks that two rounds may start on."""


def sign(account: Address, digest: bytes) -> bytes:
    """Whatever stands for a signature here."""
    return keccak(account.encode() + digest)


def recover(digest: bytes, signature: bytes) -> Address:
    """Whose it is."""
    known = (REQUESTER, AGGREGATOR, CHALLENGER, ANYONE, *WORKERS)
    return next((Address(a) for a in known if sign(Address(a), digest) == signature), ZERO_ADDRESS)


class Scene:
    """One job on a twin, played by name; time and blocks move when they are told to."""

    def __init__(self, params: JobParams = PARAMS, escrow: int | None = None) -> None:
        self.market = Market(recover=recover)
        self.block = Block(100, Seconds(1_000), BlockHashes())
        for account in (AGGREGATOR, CHALLENGER, *WORKERS):
            self.market.books.deposit(account, Wei(10_000))
        self.escrow = params.escrow if escrow is None else escrow
        self.params = params
        self.job: JobId = self.market.create(REQUESTER, params, 0, Wei(self.escrow))
        self.carries: dict[ClaimId, bool] = {}
        """What a claim says of its carry, where it is not what an honest one says."""

    def later(self, seconds: int = 1, blocks: int = 1) -> None:
        self.block = Block(self.block.number + blocks, Seconds(self.block.time + seconds), BlockHashes())

    def phase(self, r: int = 0) -> Phase:
        return self.market.phase(self.block, self.job, r)

    def claim(self, slot: int, r: int = 0) -> ClaimId:
        return ids.claim_id(self.job, r, self.market.rounds[self.job, r].attempt, slot)

    def merge_claim(self, r: int = 0) -> ClaimId:
        return self.market.rounds[self.job, r].merge_claim

    def opened(self, claim: ClaimId) -> Reveal:
        out, out2 = keccak(claim + b"out"), keccak(claim + b"carry") if self.params.role.carries else merkle.EMPTY[2]
        leaves = [merkle.leaf(keccak(claim + bytes([t]))) for t in range(3)] + [merkle.leaf(merkle.node(out, out2))]
        levels = merkle.levels(leaves)
        proof = tuple(merkle.proof(levels, 3))
        return Reveal(Body(levels[-1][0], out, out2), keccak(claim), proof, "t", "p", self.carries.get(claim, False))

    def carry(self, slot: int, r: int) -> None:
        """Slot's claim of round r will say that it carries."""
        self.carries[self.claim(slot, r)] = True

    def join(self, r: int = 0, workers: Iterable[Address] = WORKERS) -> None:
        for slot, worker in enumerate(workers):
            self.market.join(self.block, worker, self.job, r, slot)

    def seal(self, r: int = 0) -> None:
        self.later(blocks=2)
        self.market.seal(self.block, self.job, r)

    def commit(self, r: int = 0, slots: Iterable[int] = range(3)) -> None:
        for s in slots:
            self.carries.setdefault(self.claim(s, r), self._carry_stands(s, r))
            commitment = ids.commitment(self.claim(s, r), WORKERS[s], self.opened(self.claim(s, r)))
            self.market.commit(self.block, WORKERS[s], self.job, r, s, commitment)

    def _carry_stands(self, slot: int, r: int) -> bool:
        period = self.params.role.carry_period
        if period == 0 or r % period == 0:
            return False
        earlier = self.market.claims[self.claim(slot, r - 1)]
        return views.carry_stands(self.market.rounds[self.job, r - 1], earlier, WORKERS[slot])

    def reveal(self, r: int = 0, slots: Iterable[int] = range(3)) -> None:
        for s in slots:
            self.market.reveal(self.block, WORKERS[s], self.job, r, s, self.opened(self.claim(s, r)))

    def to_revealed(self, r: int = 0) -> None:
        self.market.start_round(self.block, self.job, r)
        self.join(r)
        self.seal(r)
        self.commit(r)
        self.reveal(r)

    def to_frozen(self, r: int = 0, mask: int = 7) -> None:
        self.to_revealed(r)
        self.attest(r, mask)
        self.freeze(r)

    def revealed(self, r: int = 0) -> list[int]:
        held = self.market.claims
        return [s for s in range(3) if (c := self.claim(s, r)) in held and held[c].status == ClaimStatus.REVEALED]

    def receipt(self, who: int, mask: int = 7, r: int = 0, by: Address | None = None) -> Receipt:
        ro = self.market.rounds[self.job, r]
        account = by or self.market.claims[self.claim(who, r)].worker
        digest = ids.receipt_hash(1, self.market.address, self.job, r, ro.attempt, who, mask)
        return Receipt(who, mask, sign(account, digest))

    def attest(self, r: int = 0, mask: int = 7) -> None:
        """Every owner of a revealed slot names the slots of the mask."""
        self.market.attest(self.block, self.job, r, [self.receipt(s, mask, r) for s in self.revealed(r)])

    def freeze(self, r: int = 0) -> None:
        bodies = [self.opened(self.claim(s, r)).body for s in self.revealed(r)]
        self.market.freeze(self.block, self.job, r, bodies)

    def body(self, claim: ClaimId) -> Body:
        if not self.market.claims[claim].is_merge:
            return self.opened(claim).body
        ro = self.market.rounds[self.job, self.market.claims[claim].round]
        return Body(merkle.leaf(merkle.node(ro.next_shared, ro.next_outer)), ro.next_shared, ro.next_outer)

    def merge(self, r: int = 0, merger: Address = AGGREGATOR, name: bytes = b"next", rounds: int = 2) -> ClaimId:
        return self.market.merge(self.block, merger, self.job, r, keccak(name), keccak(name + b"outer"), rounds)

    def to_lead(self, r: int = 0) -> ClaimId:
        self.to_frozen(r)
        return self.merge(r)

    def to_final(self, r: int = 0) -> None:
        self.to_lead(r)
        self.later(100)
        self.market.finalize(self.block, self.job, r)

    def convict(self, claim: ClaimId) -> None:
        self.market.on_open(self.block, claim, self.body(claim))
        self.market.on_convicted(self.block, claim, 1, (CHALLENGER,), ())

    def refused(self, name: str, act: object, *args: object) -> None:
        before = (self.market.books.owed, json.dumps(sorted(self.market.books.free.items())))
        with pytest.raises((ChainError, FundsError)) as caught:
            act(*args)  # type: ignore[operator]
        assert caught.value.code.endswith("." + name), f"{caught.value.code} and not {name}"
        assert before == (self.market.books.owed, json.dumps(sorted(self.market.books.free.items()))), "nothing moved"

    def free(self, account: Address) -> int:
        return self.market.books.free[account]

    def credits(self, account: Address) -> int:
        return self.market.books.credits[account]


@pytest.fixture
def scene() -> Scene:
    return Scene()


# -- the way of an honest job


def test_an_honest_job_pays_everybody_and_refunds_the_rest() -> None:
    scene = Scene(escrow=PARAMS.escrow + 17)
    for r in range(3):
        scene.to_final(r)
    scene.market.finish(scene.job)
    job = scene.market.jobs[scene.job]
    assert job.status == JobStatus.DONE
    assert (job.paid, job.refunded) == (PARAMS.escrow, 17)
    assert [scene.credits(worker) for worker in WORKERS] == [30, 30, 30]
    assert scene.credits(AGGREGATOR) == 18
    assert scene.credits(REQUESTER) == 17 + PARAMS.deposit
    assert all(scene.free(account) == 10_000 for account in (AGGREGATOR, *WORKERS)), "every stake is free again"


def test_phases_advance_early_when_everybody_has_acted(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    assert scene.phase() == Phase.JOINING
    scene.join()
    assert scene.phase() == Phase.SEALING
    scene.seal()
    assert scene.phase() == Phase.TRAINING
    scene.commit()
    assert scene.phase() == Phase.REVEALING
    scene.reveal()
    assert scene.phase() == Phase.ATTESTING
    scene.attest(0, 7)
    assert scene.phase() == Phase.FREEZING
    scene.freeze(0)
    assert scene.phase() == Phase.MERGING
    scene.merge()
    assert scene.phase() == Phase.LEAD


def test_phases_advance_late_when_nobody_acts(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join(workers=WORKERS[:2])
    scene.later(100)
    assert scene.phase() == Phase.SEALING
    scene.market.seal(scene.block, scene.job, 0)
    assert scene.phase() == Phase.SEALING, "the roster is closed; the seed's block is yet to come"
    scene.seal()
    scene.commit(slots=[0, 1])
    scene.reveal(slots=[0])
    scene.later(99)
    assert scene.phase() == Phase.REVEALING
    scene.later(1)
    assert scene.phase() == Phase.ATTESTING
    scene.later(100)
    assert scene.phase() == Phase.FREEZING, "who is silent lets pass what was revealed"


# -- joining and sealing


def test_one_stake_backs_one_claim(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.market.join(scene.block, HONEST, scene.job, 0, 0)
    scene.market.join(scene.block, HONEST, scene.job, 0, 1)
    assert scene.free(HONEST) == 10_000 - 2 * 101
    scene.refused("SlotTaken", scene.market.join, scene.block, LIAR, scene.job, 0, 0)
    scene.refused("NoSuchSlot", scene.market.join, scene.block, LIAR, scene.job, 0, 3)
    scene.refused("StakeTooLow", scene.market.join, scene.block, ANYONE, scene.job, 0, 2)


def test_too_small_a_roster_fails_the_round_without_fines(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join(workers=WORKERS[:1])
    scene.refused("WrongPhase", scene.market.seal, scene.block, scene.job, 0)
    scene.later(100)
    scene.market.seal(scene.block, scene.job, 0)
    assert scene.phase() == Phase.FAILED
    assert scene.free(HONEST) == 10_000
    assert scene.market.jobs[scene.job].settled == 1


def test_a_round_that_nobody_sealed_in_time_fails_and_is_not_drawn_again(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join()
    scene.later(blocks=1 + HASH_BLOCKS)
    late = scene.block
    scene.later(blocks=1)
    scene.market.seal(scene.block, scene.job, 0)
    assert scene.phase() == Phase.FAILED
    assert all(scene.free(worker) == 10_000 for worker in WORKERS), "nobody is at fault"
    again = Scene()
    again.market.start_round(again.block, again.job, 0)
    again.join()
    again.market.seal(late, again.job, 0)
    assert again.phase() == Phase.TRAINING, "the last block of the window still seals"


# -- committing and revealing


def test_a_commitment_is_made_once_by_its_worker(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join()
    scene.seal()
    scene.refused("NotSlotOwner", scene.market.commit, scene.block, LIAR, scene.job, 0, 0, ZERO)
    scene.commit(slots=[0])
    scene.refused("AlreadyDone", scene.market.commit, scene.block, HONEST, scene.job, 0, 0, ZERO)
    scene.refused("WrongPhase", scene.market.reveal, scene.block, HONEST, scene.job, 0, 0, scene.opened(scene.claim(0)))


@pytest.mark.parametrize("changed", ["trace_root", "out", "out2", "nonce"])
def test_what_is_revealed_is_what_was_committed(scene: Scene, changed: str) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join()
    scene.seal()
    scene.commit()
    told = scene.opened(scene.claim(0))
    body = told.body if changed == "nonce" else replace(told.body, **{changed: keccak(b"other")})
    other = replace(told, body=body, nonce=keccak(b"other") if changed == "nonce" else told.nonce)
    scene.refused("CommitmentMismatch", scene.market.reveal, scene.block, HONEST, scene.job, 0, 0, other)


def test_a_copied_commitment_cannot_be_revealed(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join()
    scene.seal()
    honest = scene.opened(scene.claim(0))
    scene.commit(slots=[0, 2])
    scene.market.commit(scene.block, LIAR, scene.job, 0, 1, ids.commitment(scene.claim(0), HONEST, honest))
    scene.market.reveal(scene.block, HONEST, scene.job, 0, 0, honest)
    scene.refused("CommitmentMismatch", scene.market.reveal, scene.block, LIAR, scene.job, 0, 1, honest)


def test_outputs_that_are_not_the_last_state_are_refused(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join()
    scene.seal()
    honest = scene.opened(scene.claim(0))
    scaled = replace(honest, body=replace(honest.body, out=keccak(b"scaled payload")))
    commitment = ids.commitment(scene.claim(0), HONEST, scaled)
    scene.market.commit(scene.block, HONEST, scene.job, 0, 0, commitment)
    scene.commit(slots=[1, 2])
    scene.refused("ProofInvalid", scene.market.reveal, scene.block, HONEST, scene.job, 0, 0, scaled)
    short = replace(scaled, proof_t=honest.proof_t[:-1])
    scene.refused("ProofInvalid", scene.market.reveal, scene.block, HONEST, scene.job, 0, 0, short)


def test_no_reveal_burns_the_price_of_the_slot_and_no_more(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join()
    scene.seal()
    scene.commit(slots=[0, 1])
    scene.later(100)
    scene.reveal(slots=[0, 1])
    scene.attest(0, 7)
    scene.freeze(0)
    assert scene.market.status(scene.claim(2)) == ClaimStatus.ABSENT
    assert scene.free(LAZY) == 10_000 - 10
    assert scene.credits(BURN) == 10


# -- accepting and merging


def test_merge_in_holds_every_accepted_payload_and_the_mask(scene: Scene) -> None:
    scene.to_frozen(mask=0b101)
    ro = scene.market.rounds[scene.job, 0]
    payloads = [
        keccak(scene.claim(0) + b"out"),
        PARAMS.role.zero_payload,
        keccak(scene.claim(2) + b"out"),
        merkle.EMPTY[2],
    ]
    left = merkle.lift(merkle.node(PARAMS.genesis.shared, PARAMS.genesis.outer), 4, 5)
    mask = merkle.tensor_root(0, (3,), bytes.fromhex("0000803f 00000000 0000803f"))
    right = merkle.node(merkle.tree(payloads), merkle.lift(mask, 0, 4))
    assert ro.mask == 0b101
    assert ro.merge_in == merkle.node(left, right)
    assert scene.market.status(scene.claim(1)) == ClaimStatus.EXCLUDED
    scene.merge()
    scene.later(100)
    scene.market.finalize(scene.block, scene.job, 0)
    assert (scene.credits(HONEST), scene.credits(LIAR)) == (10, 0), "an excluded slot is not paid"
    assert scene.free(LIAR) == 10_000, "nor fined"


def test_state_zero_of_a_slot_is_the_base_twice_and_the_clock_at_the_rounds_start(scene: Scene) -> None:
    scene.to_lead(0)
    scene.to_revealed(1)
    base = keccak(b"next")
    clock = merkle.lift(merkle.scalar_root(1, 1 * 3), 0, 3)
    expected = merkle.node(merkle.node(base, base), merkle.node(PARAMS.role.zero_carry, clock))
    facts = scene.market.facts_of(scene.claim(0, 1), 1)
    assert facts.state_zero == expected
    assert state_roots.slot_zero(base, PARAMS.role.zero_carry, 3, 3) == expected


# -- what a slot carries


CARRYING = amended(PARAMS, carry_period=3, max_lead=4, rounds=6, payload_depth=3)


@pytest.fixture
def carrying() -> Scene:
    """A job whose slots carry."""
    return Scene(CARRYING)


def starts_from(scene: Scene, slot: int, r: int, carry: bytes, words: Sequence[bytes] = ()) -> bool:
    base = scene.market.rounds[scene.job, r].base
    return scene.market.facts_of(scene.claim(slot, r), 1, words).state_zero == state_roots.slot_zero(
        base, StateRoot(carry), 3 * r, 3
    )


def to_committed(scene: Scene, r: int, workers: Sequence[Address] = WORKERS) -> None:
    """Every slot has committed to what `Scene.carries` says."""
    scene.market.start_round(scene.block, scene.job, r)
    scene.join(r, workers)
    scene.seal(r)
    for slot, worker in enumerate(workers):
        commitment = ids.commitment(scene.claim(slot, r), worker, scene.opened(scene.claim(slot, r)))
        scene.market.commit(scene.block, worker, scene.job, r, slot, commitment)


def test_a_slot_starts_from_what_its_owner_put_out_in_the_round_before(carrying: Scene) -> None:
    carrying.to_lead(0)
    carrying.to_revealed(1)
    assert starts_from(carrying, 1, 0, ROOT), "the first round from zero"
    for slot in range(3):
        earlier = carrying.opened(carrying.claim(slot, 0)).body
        assert starts_from(carrying, slot, 1, earlier.out2, earlier.words)


def test_a_carry_is_zero_in_every_round_that_the_period_divides(carrying: Scene) -> None:
    for r in range(2):
        carrying.to_final(r)
    carrying.to_lead(2)
    carrying.carry(1, 3)
    to_committed(carrying, 3)
    claim = carrying.opened(carrying.claim(1, 3))
    carrying.refused("NoCarry", carrying.market.reveal, carrying.block, LIAR, carrying.job, 3, 1, claim)
    carrying.reveal(3, [0])
    assert starts_from(carrying, 0, 3, ROOT, carrying.opened(carrying.claim(0, 2)).body.words)


def test_a_claim_may_start_from_zero_though_its_carry_stands(carrying: Scene) -> None:
    carrying.to_lead(0)
    to_committed(carrying, 1)
    carrying.reveal(1)
    assert starts_from(carrying, 1, 1, ROOT, carrying.opened(carrying.claim(1, 0)).body.words)


def test_the_commitment_names_the_carry(carrying: Scene) -> None:
    carrying.to_lead(0)
    carrying.carry(1, 1)
    to_committed(carrying, 1)
    for slot, owner in ((0, HONEST), (1, LIAR)):
        said = carrying.opened(carrying.claim(slot, 1))
        other = replace(said, carries=not said.carries)
        carrying.refused(
            "CommitmentMismatch", carrying.market.reveal, carrying.block, owner, carrying.job, 1, slot, other
        )


def test_a_carry_is_shown_by_the_words_that_were_claimed(carrying: Scene) -> None:
    carrying.to_lead(0)
    carrying.to_revealed(1)
    words = carrying.opened(carrying.claim(1, 0)).body.words
    others = carrying.opened(carrying.claim(2, 0)).body.words
    for wrong in ((), words[:2], (*words, ROOT), others, (words[0], words[1], ROOT)):
        carrying.refused("CommitmentMismatch", carrying.market.facts_of, carrying.claim(1, 1), 1, wrong)


def test_without_a_carry_every_round_starts_from_zero_whatever_is_shown(scene: Scene) -> None:
    scene.to_lead(0)
    scene.to_revealed(1)
    assert starts_from(scene, 1, 1, PARAMS.role.zero_carry, scene.opened(scene.claim(1, 0)).body.words)


def test_a_job_without_a_carry_takes_no_claim_that_carries(scene: Scene) -> None:
    scene.to_lead(0)
    scene.carry(0, 1)
    to_committed(scene, 1)
    said = scene.opened(scene.claim(0, 1))
    scene.refused("NoCarry", scene.market.reveal, scene.block, HONEST, scene.job, 1, 0, said)


def no_carry(scene: Scene, slot: int, workers: Sequence[Address] = WORKERS) -> bool:
    """A claim of round 1 that carries is refused."""
    scene.carry(slot, 1)
    to_committed(scene, 1, workers)
    said = scene.opened(scene.claim(slot, 1))
    scene.refused("NoCarry", scene.market.reveal, scene.block, workers[slot], scene.job, 1, slot, said)
    return True


def test_a_slot_that_was_not_accepted_starts_from_zero(carrying: Scene) -> None:
    carrying.to_frozen(0, mask=0b101)
    carrying.merge(0)
    assert no_carry(carrying, 1)


def test_another_owner_starts_from_zero(carrying: Scene) -> None:
    carrying.to_lead(0)
    assert no_carry(carrying, 0, (LIAR, HONEST, LAZY))


def test_an_absent_slot_has_no_carry(carrying: Scene) -> None:
    carrying.market.start_round(carrying.block, carrying.job, 0)
    carrying.join(0)
    carrying.seal(0)
    carrying.commit(0)
    carrying.reveal(0, [0, 1])
    carrying.later(100)
    carrying.attest(0, 3)
    carrying.freeze(0)
    carrying.merge(0)
    assert no_carry(carrying, 2)


def test_what_was_convicted_is_not_carried(carrying: Scene) -> None:
    carrying.to_lead(0)
    carrying.convict(carrying.claim(1, 0))
    assert no_carry(carrying, 1)


def test_what_is_convicted_before_the_reveal_is_not_carried(carrying: Scene) -> None:
    carrying.to_lead(0)
    carrying.carry(1, 1)
    to_committed(carrying, 1)
    carrying.convict(carrying.claim(1, 0))
    said = carrying.opened(carrying.claim(1, 1))
    carrying.refused("NoCarry", carrying.market.reveal, carrying.block, LIAR, carrying.job, 1, 1, said)


def test_after_a_failed_round_slots_start_from_zero(carrying: Scene) -> None:
    carrying.to_frozen(0)
    carrying.later(100 * 4)
    carrying.market.finalize(carrying.block, carrying.job, 0)
    assert carrying.market.rounds[carrying.job, 0].phase == Phase.FAILED
    assert carrying.market.rounds[carrying.job, 0].mask == 7, "accepted, but nobody merged"
    assert no_carry(carrying, 1)


def test_a_claim_with_a_game_open_in_a_failed_round_has_no_carry(carrying: Scene) -> None:
    carrying.to_frozen(0)
    claim = carrying.claim(1, 0)
    carrying.market.on_open(carrying.block, claim, carrying.body(claim))
    carrying.later(100 * 4)
    carrying.market.finalize(carrying.block, carrying.job, 0)
    assert carrying.market.claims[claim].status == ClaimStatus.ACCEPTED, "its stake waits for the game"
    assert no_carry(carrying, 1)


def test_a_later_conviction_does_not_change_what_is_carried(carrying: Scene) -> None:
    carrying.to_lead(0)
    carrying.to_revealed(1)
    earlier = carrying.opened(carrying.claim(1, 0)).body
    carrying.convict(carrying.claim(1, 0))
    assert starts_from(carrying, 1, 1, earlier.out2, earlier.words), "its payload stays in the model, too"


# -- finality of what others stand on


def test_no_round_is_final_before_the_windows_of_its_carry_period_are_over(carrying: Scene) -> None:
    carrying.to_lead(0)
    carrying.later(60)
    carrying.to_revealed(1)
    carrying.later(60)
    carrying.refused("WrongPhase", carrying.market.finalize, carrying.block, carrying.job, 0)
    carrying.attest(1)
    carrying.freeze(1)
    carrying.merge(1)
    carrying.later(99)
    carrying.refused("TooEarly", carrying.market.finalize, carrying.block, carrying.job, 0)
    assert carrying.market.window_open(carrying.block, carrying.claim(1, 0)), "long after its reveal"
    assert not carrying.market.window_open(carrying.block, carrying.merge_claim(0)), "nothing carries a merge"
    carrying.later(1)
    for r in range(2):
        carrying.market.finalize(carrying.block, carrying.job, r)
    assert not carrying.market.window_open(carrying.block, carrying.claim(1, 0))


def test_a_failed_round_holds_up_no_other_and_the_next_period_neither(carrying: Scene) -> None:
    carrying.to_lead(0)
    carrying.to_lead(1)
    carrying.market.start_round(carrying.block, carrying.job, 2)
    carrying.later(100)
    carrying.market.seal(carrying.block, carrying.job, 2)
    assert carrying.phase(2) == Phase.FAILED
    for r in range(2):
        carrying.market.finalize(carrying.block, carrying.job, r)
    carrying.to_lead(3)
    carrying.later(100)
    carrying.market.start_round(carrying.block, carrying.job, 4)
    carrying.refused("WrongPhase", carrying.market.finalize, carrying.block, carrying.job, 3)


def test_nothing_starts_from_the_carry_of_a_round_that_is_final(carrying: Scene) -> None:
    carrying.to_final(0)
    assert no_carry(carrying, 1)


def test_what_stands_on_a_convicted_carry_is_unpaid_to_the_end_of_its_period(carrying: Scene) -> None:
    for r in range(3):
        carrying.to_lead(r)
    before = carrying.free(LIAR)
    carrying.convict(carrying.claim(1, 0))
    carrying.later(100)
    for r in range(3):
        carrying.market.finalize(carrying.block, carrying.job, r)
    said = [carrying.market.claims[carrying.claim(1, r)].status for r in range(3)]
    assert said == [ClaimStatus.CONVICTED, ClaimStatus.VOID, ClaimStatus.VOID]
    assert carrying.credits(LIAR) == 0
    assert carrying.free(LIAR) == before + 2 * carrying.params.role.slot_stake, "nothing more is taken"
    assert carrying.credits(HONEST) == 3 * carrying.params.role.slot_price, "nobody else's work is void"
    carrying.to_lead(3)
    carrying.later(100)
    carrying.market.finalize(carrying.block, carrying.job, 3)
    assert carrying.credits(LIAR) == carrying.params.role.slot_price, "from zero it is paid again"


def test_who_starts_from_zero_is_paid_though_the_claim_before_was_convicted(carrying: Scene) -> None:
    carrying.to_lead(0)
    carrying.market.start_round(carrying.block, carrying.job, 1)
    carrying.join(1)
    carrying.seal(1)
    carrying.carries[carrying.claim(1, 1)] = False
    carrying.commit(1)
    carrying.reveal(1)
    carrying.convict(carrying.claim(1, 0))
    carrying.attest(1)
    carrying.freeze(1)
    carrying.merge(1)
    carrying.later(100)
    for r in range(2):
        carrying.market.finalize(carrying.block, carrying.job, r)
    assert carrying.credits(LIAR) == carrying.params.role.slot_price


def test_a_rewind_starts_from_what_stands(carrying: Scene) -> None:
    wrong = carrying.to_lead(0)
    carrying.to_revealed(1)
    voided = carrying.claim(1, 1)
    earlier = carrying.opened(carrying.claim(1, 0)).body
    carrying.convict(wrong)
    carrying.refused("ClaimClosed", carrying.market.facts_of, voided, 1, earlier.words)
    carrying.merge(0, carrying.market.merger_of(carrying.block, carrying.job, 0), b"right")
    carrying.to_revealed(1)
    assert carrying.claim(1, 1) != voided
    assert starts_from(carrying, 1, 1, earlier.out2, earlier.words), "slots of the merged round stand"


def test_too_few_accepted_claims_fail_the_round(scene: Scene) -> None:
    scene.to_revealed()
    scene.attest(0, 1)
    scene.freeze(0)
    assert scene.phase() == Phase.FAILED
    assert all(scene.free(worker) == 10_000 for worker in WORKERS)
    scene.market.start_round(scene.block, scene.job, 1)
    assert scene.market.rounds[scene.job, 1].base == PARAMS.genesis.shared, "the checkpoint carries over"


def test_owners_of_revealed_slots_speak_once_and_sign(scene: Scene) -> None:
    scene.to_revealed()
    attest = scene.market.attest
    scene.refused("NotSlotOwner", attest, scene.block, scene.job, 0, [scene.receipt(3, by=HONEST)])
    scene.refused("NotSlotOwner", attest, scene.block, scene.job, 0, [scene.receipt(64, by=HONEST)])
    scene.refused("SignatureInvalid", attest, scene.block, scene.job, 0, [scene.receipt(0, by=LIAR)])
    signed = scene.receipt(0)
    scene.refused("SignatureInvalid", attest, scene.block, scene.job, 0, [replace(signed, mask=5)])
    attest(scene.block, scene.job, 0, [signed])
    scene.refused("AlreadyDone", attest, scene.block, scene.job, 0, [scene.receipt(0, 3)])
    assert scene.phase() == Phase.ATTESTING
    scene.market.books.delegate(LIAR, CHALLENGER)
    attest(scene.block, scene.job, 0, [scene.receipt(2), scene.receipt(1, by=CHALLENGER)])
    assert scene.phase() == Phase.FREEZING, "everybody has spoken"


@pytest.mark.parametrize(
    ("masks", "accepted"),
    [
        ({}, 0b111),
        ({0: 0b110, 1: 0b101, 2: 0b011}, 0b111),
        ({0: 0b010}, 0b011),  # one voice decides of the others, never of its own slot
        ({0: 0b010, 1: 0b001, 2: 0b011}, 0b011),
        ({0: 0b111, 1: 0b110, 2: 0b110}, 0b110),  # nobody else names slot 0
        ({0: 0b111, 1: 0b111, 2: 0b000}, 0b100),
    ],
)
def test_two_thirds_of_the_others_receipts_accept(scene: Scene, masks: dict[int, int], accepted: int) -> None:
    scene.to_revealed()
    scene.market.attest(scene.block, scene.job, 0, [scene.receipt(who, mask) for who, mask in masks.items()])
    scene.later(100)
    scene.freeze()
    if accepted.bit_count() < 2:
        assert scene.phase() == Phase.FAILED
    else:
        assert scene.market.rounds[scene.job, 0].mask == accepted


# -- a job of one slot


ALONE = amended(PARAMS, slots=1, min_slots=1, shared_depth=2)


def alone_revealed(params: JobParams = ALONE) -> Scene:
    """The only slot of a job, revealed."""
    scene = Scene(params)
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join(workers=[HONEST])
    scene.seal()
    scene.commit(slots=[0])
    scene.reveal(slots=[0])
    return scene


def test_the_only_slot_is_accepted_when_nobody_else_may_speak() -> None:
    scene = alone_revealed()
    scene.later(100)
    scene.freeze()
    scene.merge()
    scene.later(100)
    scene.market.finalize(scene.block, scene.job, 0)
    assert (scene.credits(HONEST), scene.credits(AGGREGATOR)) == (10, 6)
    assert scene.free(HONEST) == 10_000


def test_the_owner_of_the_only_slot_does_not_end_the_time_for_demands() -> None:
    scene = alone_revealed()
    scene.attest(0, 1)
    assert scene.phase() == Phase.ATTESTING, "its payload can still be demanded"
    scene.refused("WrongPhase", scene.freeze)
    scene.later(100)
    scene.freeze()
    assert scene.market.rounds[scene.job, 0].mask == 1


def test_the_owner_of_the_only_slot_merges_after_the_aggregator() -> None:
    scene = alone_revealed()
    scene.later(100)
    scene.freeze()
    scene.later(100)
    scene.merge(merger=HONEST)
    assert scene.phase() == Phase.LEAD


def test_a_conviction_of_the_only_slot_before_the_freeze_fails_the_round() -> None:
    scene = alone_revealed()
    scene.convict(scene.claim(0))
    scene.later(100)
    scene.freeze()
    assert scene.phase() == Phase.FAILED


def test_what_is_merged_is_what_was_revealed(scene: Scene) -> None:
    scene.to_revealed()
    scene.attest()
    bodies = [scene.body(scene.claim(s)) for s in range(3)]
    freeze = scene.market.freeze
    scene.refused("CommitmentMismatch", freeze, scene.block, scene.job, 0, bodies[:2])
    scene.refused("CommitmentMismatch", freeze, scene.block, scene.job, 0, [bodies[1], bodies[0], bodies[2]])
    other = replace(bodies[0], out=keccak(b"mine"))
    scene.refused("CommitmentMismatch", freeze, scene.block, scene.job, 0, [other, *bodies[1:]])
    freeze(scene.block, scene.job, 0, bodies)
    assert scene.phase() == Phase.MERGING


# -- the job proven invalid


def test_a_void_job_pays_its_workers_from_the_deposit_and_its_prover_from_the_rest(scene: Scene) -> None:
    scene.to_lead(0)
    scene.to_revealed(1)
    scene.market.on_open(scene.block, scene.claim(0, 1), scene.body(scene.claim(0, 1)))
    scene.market.on_invalid(scene.job, ANYONE)
    assert (scene.phase(0), scene.phase(1)) == (Phase.VOID, Phase.VOID)
    assert not scene.market.live(scene.claim(0, 1)), "its games close with the bonds returned"
    scene.refused("WrongJobStatus", scene.market.start_round, scene.block, scene.job, 2)
    scene.refused("WrongJobStatus", scene.market.on_invalid, scene.job, ANYONE)
    scene.refused("WrongJobStatus", scene.market.finalize, scene.block, scene.job, 0)
    scene.refused("JobUnfinished", scene.market.finish, scene.job)
    scene.refused("WrongPhase", scene.market.release, scene.job, 1)
    scene.market.release(scene.job, 0)
    scene.market.release(scene.job, 1)
    scene.market.finish(scene.job)
    paid = 2 * 3 * 10 + 6
    left = PARAMS.deposit - paid
    assert [scene.credits(worker) for worker in WORKERS] == [20, 20, 20]
    assert all(scene.free(worker) == 10_000 for worker in (*WORKERS, AGGREGATOR)), "every stake is back"
    assert scene.credits(ANYONE) == left * 30 // 100
    assert scene.credits(BURN) == left - left * 30 // 100
    assert scene.credits(REQUESTER) == PARAMS.escrow, "the escrow comes back, the deposit does not"
    assert scene.market.books.owed == scene.market.books.tokens


def test_a_failed_round_of_a_void_job_lets_go_of_stakes_that_a_game_held(scene: Scene) -> None:
    scene.to_revealed()
    scene.market.on_open(scene.block, scene.claim(0), scene.body(scene.claim(0)))
    scene.attest(0, 1)
    scene.freeze(0)
    assert scene.phase() == Phase.FAILED
    assert scene.free(HONEST) == 10_000 - 101, "kept for the game"
    scene.market.on_invalid(scene.job, ANYONE)
    scene.market.release(scene.job, 0)
    assert scene.free(HONEST) == 10_000
    scene.market.finish(scene.job)
    assert scene.market.jobs[scene.job].status == JobStatus.DONE


# -- witnesses' fees


def test_fees_of_drawn_witnesses_are_reserved_paid_or_given_up() -> None:
    params = amended(PARAMS, witnesses=2, witness_fee=Wei(3), witness_stake=Wei(60), audit_seconds=Seconds(10),
        slot_stake=Wei(121),
        challenge_seconds=Seconds(230),
    )  # fmt: skip
    scene = Scene(params)
    scene.to_revealed()
    scene.attest()
    assert scene.phase() == Phase.ATTESTING, "the witnesses are not drawn yet"
    scene.refused("AlreadyDone", scene.market.on_drawn, scene.block, scene.job, 0, 3)
    scene.market.on_drawn(scene.block, scene.job, 0, 2)
    scene.refused("AlreadyDone", scene.market.on_drawn, scene.block, scene.job, 0, 1)
    assert scene.market.jobs[scene.job].fees_due == 6
    scene.market.on_witnessed(scene.job, ANYONE)
    job = scene.market.jobs[scene.job]
    assert (scene.credits(ANYONE), job.fees_due, job.paid) == (3, 3, 3)
    scene.market.on_witnessed(scene.job, ZERO_ADDRESS)
    scene.refused("EscrowTooLow", scene.market.on_witnessed, scene.job, ANYONE)
    scene.later(100)
    scene.freeze()
    assert scene.phase() == Phase.MERGING, "witnesses that are silent hold nobody up"


def test_a_payload_that_was_demanded_and_not_shown_is_not_accepted(scene: Scene) -> None:
    scene.to_revealed()
    scene.market.miss(scene.claim(1))
    scene.refused("NoSuchSlot", scene.market.on_demanded, scene.block, scene.job, 0, 5)
    scene.market.on_demanded(scene.block, scene.job, 0, 1)
    scene.attest()
    scene.freeze()
    assert scene.market.rounds[scene.job, 0].mask == 0b101
    assert scene.market.status(scene.claim(1)) == ClaimStatus.EXCLUDED


def test_without_an_aggregator_slot_owners_merge_at_once_in_seed_order() -> None:
    scene = Scene(amended(PARAMS, aggregator=ZERO_ADDRESS))
    scene.to_frozen()
    ro = scene.market.rounds[scene.job, 0]
    first = int.from_bytes(ro.seed, "big") % 3
    assert scene.market.merger_of(scene.block, scene.job, 0) == WORKERS[first]


def test_merge_turns_go_from_the_aggregator_to_each_accepted_slot_and_then_the_round_fails(scene: Scene) -> None:
    scene.to_frozen()
    order = views.seed_order(PARAMS, scene.market.rounds[scene.job, 0])
    assert sorted(order) == [0, 1, 2]
    for merger in (AGGREGATOR, *(WORKERS[s] for s in order)):
        assert scene.market.merger_of(scene.block, scene.job, 0) == merger
        for other in {AGGREGATOR, *WORKERS} - {merger}:
            scene.refused("NotYourTurn", scene.market.merge, scene.block, other, scene.job, 0, ROOT, ROOT)
        scene.refused("WrongPhase", scene.market.finalize, scene.block, scene.job, 0)
        scene.later(100)
    assert scene.market.merger_of(scene.block, scene.job, 0) == ZERO_ADDRESS
    scene.market.finalize(scene.block, scene.job, 0)
    assert scene.phase() == Phase.FAILED
    assert all(scene.free(worker) == 10_000 for worker in WORKERS)


# -- verdicts


def test_a_convicted_slot_is_slashed_excluded_and_unpaid(scene: Scene) -> None:
    scene.to_revealed()
    scene.convict(scene.claim(1))
    scene.attest(0, 7)
    scene.freeze(0)
    assert scene.market.rounds[scene.job, 0].mask == 0b101
    scene.merge()
    scene.later(100)
    scene.market.finalize(scene.block, scene.job, 0)
    assert scene.free(LIAR) == 10_000 - 101
    assert scene.credits(LIAR) == 0
    # 101 = 30 to the challenger, 20 to the requester, both rounded down, and 51 burned.
    assert (scene.credits(CHALLENGER), scene.credits(REQUESTER), scene.credits(BURN)) == (30, 20, 51)


def test_a_slot_convicted_after_the_freeze_is_merged_but_unpaid(scene: Scene) -> None:
    scene.to_lead()
    scene.convict(scene.claim(1))
    assert scene.phase() == Phase.LEAD, "a slot is not rewound"
    scene.later(100)
    scene.market.finalize(scene.block, scene.job, 0)
    assert (scene.credits(HONEST), scene.credits(LIAR), scene.credits(LAZY)) == (10, 0, 10)
    assert scene.market.jobs[scene.job].paid == 2 * 10 + 6


def test_final_waits_for_the_window_every_game_and_the_base(scene: Scene) -> None:
    scene.to_lead(0)
    scene.to_lead(1)
    scene.market.on_open(scene.block, scene.claim(0, 0), scene.body(scene.claim(0, 0)))
    scene.refused("TooEarly", scene.market.finalize, scene.block, scene.job, 0)
    scene.later(100)
    scene.refused("GamesOpen", scene.market.finalize, scene.block, scene.job, 0)
    scene.refused("WrongPhase", scene.market.finalize, scene.block, scene.job, 1)
    scene.market.on_rejected(scene.claim(0, 0))
    scene.market.finalize(scene.block, scene.job, 0)
    scene.market.finalize(scene.block, scene.job, 1)


def test_a_window_closes_and_what_is_final_is_not_judged(scene: Scene) -> None:
    scene.to_lead()
    claim, merge = scene.claim(0), scene.merge_claim()
    assert scene.market.window_open(scene.block, claim)
    scene.later(99)
    assert scene.market.window_open(scene.block, merge)
    scene.later(1)
    scene.refused("WindowClosed", scene.market.on_open, scene.block, claim, scene.body(claim))
    scene.market.finalize(scene.block, scene.job, 0)
    scene.refused("ClaimClosed", scene.market.on_convicted, scene.block, claim, 1, (CHALLENGER,), ())
    scene.refused("ClaimClosed", scene.market.on_convicted, scene.block, merge, 1, (CHALLENGER,), ())


def test_a_convicted_merge_voids_later_rounds_and_the_round_merges_again_from_the_same_input(scene: Scene) -> None:
    bad = scene.to_lead(0)
    scene.to_lead(1)
    voided, voided_merge = scene.claim(0, 1), scene.merge_claim(1)
    scene.market.on_open(scene.block, voided, scene.body(voided))
    merge_in = scene.market.rounds[scene.job, 0].merge_in

    scene.convict(bad)

    assert (scene.phase(0), scene.phase(1)) == (Phase.MERGING, Phase.VOID)
    assert scene.market.rounds[scene.job, 0].merge_in == merge_in
    assert scene.market.status(bad) == ClaimStatus.CONVICTED
    assert scene.market.status(voided_merge) == scene.market.status(scene.claim(1, 1)) == ClaimStatus.VOID
    assert scene.market.live(voided), "the game about it goes on"
    assert scene.market.live(scene.claim(0, 0)), "claims of the round itself stand"
    scene.refused("WindowClosed", scene.market.on_open, scene.block, voided, scene.body(voided))
    scene.refused("GamesOpen", scene.market.release, scene.job, 1)
    scene.market.on_rejected(voided)
    assert scene.market.status(voided) == ClaimStatus.VOID
    assert not scene.market.live(voided)
    scene.market.release(scene.job, 1)
    assert scene.free(AGGREGATOR) == 10_000 - BACKED, "one merge lost, the voided one returned"
    assert scene.free(HONEST) == 10_000 - 101, "the stake of round 0 is still locked, that of round 1 is back"

    order = views.seed_order(PARAMS, scene.market.rounds[scene.job, 0])
    scene.refused("NotYourTurn", scene.market.merge, scene.block, AGGREGATOR, scene.job, 0, ROOT, ROOT)
    good = scene.merge(0, WORKERS[order[0]], b"right")
    assert good != bad, "a claim of another attempt"
    scene.market.start_round(scene.block, scene.job, 1)
    assert scene.market.rounds[scene.job, 1].attempt == 1
    assert scene.market.rounds[scene.job, 1].base == keccak(b"right")
    assert scene.claim(0, 1) != voided
    assert scene.market.status(voided) == ClaimStatus.VOID, "for good"


def test_work_voided_by_a_convicted_merge_is_paid_from_the_slash_before_anybody_shares_it(scene: Scene) -> None:
    bad = scene.to_lead(0)
    scene.to_lead(1)
    scene.convict(bad)
    shared = PARAMS.merge.stake + 2 * PARAMS.round_pay - PARAMS.round_pay
    assert scene.credits(CHALLENGER) == shared * 30 // 100, "of what work is not owed"
    assert scene.credits(REQUESTER) == shared * 20 // 100
    before = scene.credits(BURN)
    scene.market.release(scene.job, 1)
    assert [scene.credits(w) for w in WORKERS] == [PARAMS.role.slot_price] * 3
    assert scene.credits(AGGREGATOR) == PARAMS.merge.price, "of the voided round, whose merge was right"
    assert scene.credits(BURN) == before, "everything owed was paid"
    assert scene.market.books.owed == scene.market.books.tokens


def test_a_liar_in_voided_work_is_convicted_and_its_pay_burned(scene: Scene) -> None:
    bad = scene.to_lead(0)
    scene.to_revealed(1)
    lie = scene.claim(1, 1)
    scene.market.on_open(scene.block, lie, scene.body(lie))
    scene.convict(bad)
    scene.market.on_convicted(scene.block, lie, 0, (CHALLENGER,), ())
    assert scene.market.status(lie) == ClaimStatus.CONVICTED, "voiding its base saves no liar"
    burned, paid = scene.credits(BURN), scene.credits(LIAR)
    scene.market.release(scene.job, 1)
    assert scene.credits(LIAR) == paid
    assert scene.credits(BURN) == burned + PARAMS.role.slot_price
    assert scene.free(LIAR) == 10_000 - 2 * 101, "round 0's lock, and what it lost"


def test_a_seat_in_a_voided_round_is_not_paid(scene: Scene) -> None:
    bad = scene.to_lead(0)
    scene.market.start_round(scene.block, scene.job, 1)
    scene.join(1)
    scene.seal(1)
    scene.commit(1, [0])
    scene.convict(bad)
    scene.market.release(scene.job, 1)
    assert [scene.credits(w) for w in WORKERS] == [PARAMS.role.slot_price, 0, 0]
    assert [scene.free(w) for w in WORKERS] == [10_000 - 101] * 3


def test_no_round_starts_on_a_merge_that_does_not_answer_for_it(scene: Scene) -> None:
    scene.to_frozen(0)
    scene.merge(0, rounds=0)
    scene.refused("NotBacked", scene.market.start_round, scene.block, scene.job, 1)
    scene.refused("NotYourTurn", scene.market.back, scene.block, HONEST, scene.job, 0, 1)
    scene.market.back(scene.block, AGGREGATOR, scene.job, 0, 1)
    assert scene.free(AGGREGATOR) == 10_000 - PARAMS.merge.stake - PARAMS.round_pay
    scene.market.start_round(scene.block, scene.job, 1)


def test_nothing_more_needs_a_merge_that_is_final(scene: Scene) -> None:
    scene.to_frozen(0)
    scene.merge(0, rounds=0)
    scene.later(100)
    scene.market.finalize(scene.block, scene.job, 0)
    scene.refused("WrongPhase", scene.market.back, scene.block, AGGREGATOR, scene.job, 0, 1)
    scene.market.start_round(scene.block, scene.job, 1)


def test_rounds_start_again_once_no_game_about_voided_work_is_open(scene: Scene) -> None:
    bad = scene.to_lead(0)
    scene.to_revealed(1)
    claim = scene.claim(0, 1)
    scene.market.on_open(scene.block, claim, scene.body(claim))
    scene.convict(bad)
    order = views.seed_order(PARAMS, scene.market.rounds[scene.job, 0])
    scene.merge(0, WORKERS[order[0]])
    scene.refused("GamesOpen", scene.market.start_round, scene.block, scene.job, 1)
    scene.market.on_rejected(claim)
    scene.market.start_round(scene.block, scene.job, 1)


def test_a_void_job_stays_void_once_it_is_done(scene: Scene) -> None:
    scene.to_revealed(0)
    claim = scene.claim(0)
    scene.market.on_open(scene.block, claim, scene.body(claim))
    scene.market.on_invalid(scene.job, CHALLENGER)
    scene.market.release(scene.job, 0)
    scene.market.finish(scene.job)
    assert not scene.market.live(claim)
    assert scene.market.status(claim) == ClaimStatus.VOID
    assert scene.phase(0) == Phase.VOID


def test_a_void_job_pays_no_seat_and_its_requester_loses_a_rounds_pay(scene: Scene) -> None:
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join(0)
    scene.market.on_invalid(scene.job, CHALLENGER)
    scene.market.release(scene.job, 0)
    scene.market.finish(scene.job)
    assert [scene.credits(w) for w in WORKERS] == [0, 0, 0]
    assert scene.credits(REQUESTER) == scene.escrow
    assert scene.credits(CHALLENGER) == PARAMS.deposit * 30 // 100
    assert scene.credits(BURN) == PARAMS.deposit - PARAMS.deposit * 30 // 100


def test_everybody_working_for_itself_still_loses_a_rounds_pay(scene: Scene) -> None:
    """The deposit pays every round in flight: what is beyond them is never the requester's."""
    for r in range(2):
        scene.to_lead(r)
    scene.market.on_invalid(scene.job, REQUESTER)
    for r in range(2):
        scene.market.release(scene.job, r)
    scene.market.finish(scene.job)
    left = PARAMS.round_pay
    assert scene.credits(BURN) == left - left * 30 // 100


def test_a_receipt_of_one_slot_is_none_of_another(scene: Scene) -> None:
    """One account, two slots: who speaks is signed."""
    scene.to_revealed(0)
    said = scene.receipt(0)
    scene.refused("SignatureInvalid", scene.market.attest, scene.block, scene.job, 0, [replace(said, who=1)])


def test_a_convicted_merger_merges_no_more_in_this_job(scene: Scene) -> None:
    scene.convict(scene.to_lead(0))
    order = views.seed_order(PARAMS, scene.market.rounds[scene.job, 0])
    scene.merge(0, WORKERS[order[0]])
    scene.to_revealed(1)
    scene.attest(1)
    scene.freeze(1)
    merger = scene.market.merger_of(scene.block, scene.job, 1)
    assert merger in WORKERS
    assert merger != AGGREGATOR


def test_a_convicted_slot_owner_has_no_merge_turn(scene: Scene) -> None:
    scene.to_frozen()
    order = views.seed_order(PARAMS, scene.market.rounds[scene.job, 0])
    scene.convict(scene.claim(order[0]))
    scene.later(100)
    assert scene.market.merger_of(scene.block, scene.job, 0) == ZERO_ADDRESS
    scene.later(100)
    assert scene.market.merger_of(scene.block, scene.job, 0) == WORKERS[order[1]]


def test_restarting_a_void_round_returns_stakes_that_nobody_released(scene: Scene) -> None:
    bad = scene.to_lead(0)
    scene.to_lead(1)
    scene.convict(bad)
    order = views.seed_order(PARAMS, scene.market.rounds[scene.job, 0])
    scene.merge(0, WORKERS[order[0]])
    scene.market.start_round(scene.block, scene.job, 1)
    assert scene.free(AGGREGATOR) == 10_000 - BACKED
    others = [w for w in WORKERS if w != WORKERS[order[0]]]
    assert {scene.free(w) for w in others} == {10_000 - 101}
    scene.refused("WrongPhase", scene.market.release, scene.job, 1)


def test_a_failed_round_keeps_the_stake_of_a_challenged_claim_until_its_game_is_over() -> None:
    scene = Scene()
    scene.market.start_round(scene.block, scene.job, 0)
    scene.join()
    scene.seal()
    scene.commit()
    scene.reveal(slots=[0, 1])
    scene.market.on_open(scene.block, scene.claim(0), scene.body(scene.claim(0)))
    scene.market.on_open(scene.block, scene.claim(1), scene.body(scene.claim(1)))
    scene.later(100)
    scene.attest(0, 1)
    scene.freeze(0)
    assert scene.phase() == Phase.FAILED
    assert scene.free(HONEST) == scene.free(LIAR) == 10_000 - 101, "both are in games"
    scene.refused("WindowClosed", scene.market.on_open, scene.block, scene.claim(0), scene.body(scene.claim(0)))
    scene.market.on_rejected(scene.claim(0))
    scene.market.on_convicted(scene.block, scene.claim(1), 1, (CHALLENGER,), ())
    assert scene.free(HONEST) == 10_000
    assert scene.free(LIAR) == 10_000 - 101, "failing the round saves no liar"


def test_two_games_on_one_claim_end_with_the_first_conviction(scene: Scene) -> None:
    scene.to_lead()
    claim = scene.claim(1)
    assert [scene.market.on_open(scene.block, claim, scene.body(claim)).games for _ in range(2)] == [0, 1]
    scene.market.on_convicted(scene.block, claim, 1, (CHALLENGER,), ())
    scene.refused("ClaimClosed", scene.market.on_convicted, scene.block, claim, 1, (CHALLENGER,), ())
    scene.refused("ClaimClosed", scene.market.on_rejected, claim)
    scene.later(100)
    scene.market.finalize(scene.block, scene.job, 0)


# -- the job's end


def test_more_failed_rounds_than_allowed_end_the_job_with_a_full_refund(scene: Scene) -> None:
    for r in range(2):
        scene.refused("JobUnfinished", scene.market.finish, scene.job)
        scene.market.start_round(scene.block, scene.job, r)
        scene.later(100)
        scene.market.seal(scene.block, scene.job, r)
    scene.refused("RoundNotStartable", scene.market.start_round, scene.block, scene.job, 2)
    scene.market.finish(scene.job)
    assert scene.credits(REQUESTER) == PARAMS.escrow + PARAMS.deposit


def test_cancelling_keeps_what_rounds_in_flight_may_pay(scene: Scene) -> None:
    scene.to_final(0)
    scene.to_lead(1)
    scene.refused("Unauthorized", scene.market.cancel, ANYONE, scene.job)
    scene.market.cancel(REQUESTER, scene.job)
    assert scene.credits(REQUESTER) == PARAMS.round_pay, "round 2 will never be"
    scene.refused("WrongJobStatus", scene.market.start_round, scene.block, scene.job, 2)
    scene.refused("JobUnfinished", scene.market.finish, scene.job)
    scene.later(100)
    scene.market.finalize(scene.block, scene.job, 1)
    scene.market.finish(scene.job)
    job = scene.market.jobs[scene.job]
    assert (job.paid, job.refunded) == (2 * PARAMS.round_pay, PARAMS.round_pay)
    scene.refused("WrongJobStatus", scene.market.finish, scene.job)


def test_an_escrow_below_the_whole_job_is_refused() -> None:
    with pytest.raises(FundsError, match="EscrowInsufficient"):
        Scene(escrow=PARAMS.escrow - 1)


# -- the vault


def test_locked_stake_cannot_leave_and_unbonding_waits() -> None:
    books = Books.of(Seconds(50))
    books.deposit(HONEST, Wei(100))
    books.lock(HONEST, b"claim", Wei(60))
    with pytest.raises(FundsError, match="StakeTooLow"):
        books.request_unbond(HONEST, Wei(41), Seconds(0))
    books.request_unbond(HONEST, Wei(40), Seconds(0))
    with pytest.raises(ChainError, match=r"Unbonding\(50\)"):
        books.withdraw_unbonded(HONEST, Seconds(49))
    assert books.withdraw_unbonded(HONEST, Seconds(50)) == 40
    with pytest.raises(ChainError, match="NothingDue"):
        books.withdraw_unbonded(HONEST, Seconds(50))
    assert books.owed == books.tokens == 60


@pytest.mark.parametrize("stake", [1, 2, 3, 7, 99, 10**18 + 1])
def test_a_slash_is_divided_exactly(stake: int) -> None:
    books = Books.of(Seconds(1))
    books.deposit(LIAR, Wei(stake))
    books.lock(LIAR, b"claim", Wei(stake))
    books.slash(b"claim", Wei(0), (CHALLENGER,), (), REQUESTER)
    assert books.credits[BURN] + books.credits[CHALLENGER] + books.credits[REQUESTER] == stake
    assert books.credits[BURN] >= stake - stake // 2, "at least half is burned"
    assert books.owed == books.tokens


# -- random histories


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(500, 512))
def test_money_is_conserved_in_random_histories(seed: int) -> None:
    player = histories.history(seed, 80)
    market, job = player.market, player.market.jobs[player.job]
    assert market.books.owed == market.books.tokens, "the vault holds exactly what it owes"
    owed = sum(worth(player.params, ro) for ro in market.rounds.values() if ro.due)
    held = market.books.total_escrow - job.deposit - owed
    assert held == job.escrow - job.paid - job.refunded, "escrow = held + paid + refunded, but for what slashes owe"
    held = {lock_key for lock_key, lock in market.books.locks.items() if lock.keeper == Keeper.MARKET}
    staked = {claim for claim, c in market.claims.items() if ClaimStatus.JOINED <= c.status <= ClaimStatus.EXCLUDED}
    assert held == staked, "every claim that can be slashed has its lock, and no other"
    if job.status == JobStatus.DONE:
        assert job.escrow == job.paid + job.refunded + job.fees_due


@pytest.mark.uncounted
def test_the_committed_histories_are_what_the_twin_plays(vectors: Path) -> None:
    lines = (vectors / "rounds.jsonl").read_text().splitlines()
    assert len(lines) == 12
    for seed, text in enumerate(lines):
        assert json.loads(text) == histories.line(histories.history(seed)), f"history {seed}: write the vectors anew"


def test_typed_hash_is_eip_712(scene: Scene) -> None:
    from eth_account import Account

    scene.to_revealed()
    claim, body = scene.market.claims[scene.claim(0)], scene.body(scene.claim(0))
    market, seed, base = scene.market.address, scene.market.rounds[scene.job, 0].seed, PARAMS.genesis.shared
    account = Account.from_key(keccak(b"key"))
    signed = account.sign_typed_data(full_message=ids.typed_data(1, market, claim, body, seed, base))
    digest: Digest = ids.typed_hash(1, market, claim, body, seed, base)
    assert bytes(signed.message_hash) == digest
    assert Account._recover_hash(digest, signature=signed.signature) == account.address
