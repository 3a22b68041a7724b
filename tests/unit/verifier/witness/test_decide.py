"""A witness's decisions: nothing drawn is left undone, nothing said before its time, no secret lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.chain.devnet import Devnet, Local
from lockstep.market.ledger import AuditLedger, RoundLedger
from lockstep.protocol import merkle
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.market import court, draws, ids
from lockstep.protocol.market.types import Audit, AuditStatus, Duty, DutyStatus, Standing, Word
from lockstep.protocol.types import Address, AuditId, Digest, JobId, Seconds, StateRoot
from tests.support.world import World
from verifier.witness.decide import DutyAct, agrees, decided, left_out, next_act, to_draw
from verifier.witness.enrolling import LINKS

JOB = JobId(b"\7" * 32)
AUDIT = ids.audit_id(JOB, 0, 0)
ME = Address("0x" + "a" * 40)
CID = "bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku"
COMMIT_ENDS, REVEAL_ENDS = Seconds(100), Seconds(200)


def audit(status: DutyStatus) -> tuple[AuditLedger, Duty]:
    duty = Duty(ME, 1, 1, status)
    state = Audit(AuditStatus.DRAWN, JOB, 0, 0, 7, keccak(b"beacon"), COMMIT_ENDS, REVEAL_ENDS, 1)
    return AuditLedger(AUDIT, state, [duty]), duty


@pytest.mark.parametrize(
    ("status", "now", "is_decided", "to_do"),
    [
        (DutyStatus.DRAWN, 99, False, DutyAct.LOOK),
        (DutyStatus.DRAWN, 99, True, DutyAct.LOOK),
        (DutyStatus.DRAWN, 100, False, DutyAct.NOTHING),
        (DutyStatus.DRAWN, 100, True, DutyAct.SETTLE),
        (DutyStatus.COMMITTED, 99, False, DutyAct.NOTHING),
        (DutyStatus.COMMITTED, 100, False, DutyAct.SPEAK),
        (DutyStatus.COMMITTED, 199, False, DutyAct.SPEAK),
        (DutyStatus.COMMITTED, 200, False, DutyAct.NOTHING),
        (DutyStatus.COMMITTED, 200, True, DutyAct.SETTLE),
        (DutyStatus.AGREED, 150, False, DutyAct.NOTHING),
        (DutyStatus.AGREED, 150, True, DutyAct.SETTLE),
        (DutyStatus.DIFFERED, 900, False, DutyAct.NOTHING),
        (DutyStatus.DIFFERED, 900, True, DutyAct.SETTLE),
        (DutyStatus.CLOSED, 900, True, DutyAct.NOTHING),
    ],
)
def test_a_duty_is_looked_into_spoken_of_and_settled_in_its_windows(
    status: DutyStatus, now: int, is_decided: bool, to_do: DutyAct
) -> None:
    assert next_act(*audit(status), is_decided, Seconds(now)) is to_do


def test_agreeing_means_every_root_up_to_t_star() -> None:
    roots = tuple(StateRoot(keccak(bytes([t]))) for t in range(5))
    assert agrees(roots[:3], roots)
    assert not agrees((roots[0], StateRoot(keccak(b"other")), roots[2]), roots), "an interpolated root before t*"
    assert not agrees(roots, roots[:3]), "a list that is too short"


WITNESSED = {"witnesses": 1, "witness_fee": 11, "witness_stake": 223, "audit_seconds": 40}


SECRET = keccak(b"secret")


@dataclass
class Audited:
    """A world whose round 0 has revealed, and a witness that is enrolled."""

    world: World
    secret: Digest = SECRET
    r: int = 0

    @staticmethod
    def start(devnet: Local | None = None, **changes: Any) -> Audited:
        made = Audited(World.start(devnet, **WITNESSED, **changes))
        head = draws.chained(made.secret, LINKS)
        made.world.to(Phase.JOINING)
        made.world.send(made.calls.enrol(made.world.job, head), "witness")
        assert made.world.ledger().heads[made.world.job, made.world.address("witness")] == head
        return made

    @property
    def calls(self) -> Any:
        return self.world.contracts.witnesses

    @property
    def audit(self) -> AuditId:
        return ids.audit_id(self.world.job, self.r, 0)

    @property
    def found(self) -> AuditLedger:
        return self.world.ledger().audits[self.audit]

    def draw(self) -> AuditLedger:
        """Opens the audit and has its one witness drawn."""
        self.world.to(Phase.ATTESTING, self.r)
        for _ in range(2):
            self.world.send(self.calls.draw(self.world.job, self.r), "requester")
            self.world.devnet.mine(1)
        return self.found

    def second(self) -> AuditLedger:
        """The first round is merged; draws the witness of the second, whose claims carry."""
        self.world.to(Phase.LEAD)
        self.world.send(self.world.contracts.market.back(self.world.job, 0, 2), "aggregator")
        self.r = 1
        return self.draw()

    def word(self) -> Word:
        """What the witness says of its duty: it has replayed what the owner claims."""
        duty, claim = self.found.duties[0], self.world.claim_id(self.found.duties[0].slot, self.r)
        made = self.world.held[claim]
        preimage = draws.chained(self.secret, LINKS - duty.serial)
        leaf = made.leaf(draws.leaf_word(preimage, self.found.state.beacon, 0))
        proof = tuple(merkle.proof(made.levels, 0))
        return Word(preimage, made.trace[0], leaf, keccak(b"salt"), True, made.body, proof)

    def speak(self, how: str = "agrees") -> None:
        """Commits, waits, reveals."""
        if how == "silent":
            return
        word, claim = self.word(), self.world.claim_id(self.found.duties[0].slot, self.r)
        word = word if how == "agrees" else replace(word, state=StateRoot(keccak(b"none")), agrees=False, proof=())
        leaf, me = word.leaf.digest, self.world.address("witness")
        bound = draws.commitment(claim, me, word.state, leaf, word.preimage, word.salt)
        self.world.send(self.calls.commit(self.audit, 0, bound), "witness")
        self.world.pass_to(self.found.state.commit_ends)
        self.world.send(self.calls.reveal(self.audit, 0, word), "witness")


def test_the_ledger_follows_an_audit_from_its_beacon_to_its_end() -> None:
    made = Audited.start()
    world = made.world
    found = made.draw()
    (duty,) = found.duties
    assert (duty.account, duty.serial, duty.status) == (world.address("witness"), 1, DutyStatus.DRAWN)
    assert world.ledger().jobs[world.job].audits[made.audit] is found
    ends = found.state.commit_ends
    made.speak()
    assert made.found is found
    assert found.state.commit_ends < ends, "everybody has committed"
    assert (duty.status, duty.t) == (DutyStatus.AGREED, made.world.contracts.witnesses.duty(made.audit, 0).t)
    slot, claim = duty.slot, world.claim_id(duty.slot)
    world.send(made.calls.publish(world.job, 0, slot, CID), f"worker-{slot}")
    assert world.ledger().jobs[world.job].rounds[0].claims[slot].trace_cid == CID
    world.to(Phase.FINAL)
    world.send(made.calls.settle(made.audit, 0), "witness")
    assert made.found.duties[0].status == DutyStatus.CLOSED
    assert world.contracts.vault.credits(world.address("witness")) == 11
    assert world.ledger().jobs[world.job].rounds[0].claims[slot].id == claim


def test_a_round_is_drawn_once_its_claims_are_there_and_until_it_is_frozen() -> None:
    made = Audited.start()
    world = made.world

    def drawable(block: int) -> list[int]:
        ledger = world.ledger()
        return list(to_draw(ledger, ledger.jobs[world.job], block))

    assert drawable(world.head) == [], "nothing is revealed"
    world.to(Phase.ATTESTING)
    assert drawable(world.head) == [0]
    world.send(made.calls.draw(world.job, 0), "requester")
    beacon = made.found.state.beacon_block
    assert drawable(beacon - 1) == [], "the beacon is not mined"
    assert drawable(beacon) == [0], "the next block may draw"
    world.devnet.mine(1)
    world.send(made.calls.draw(world.job, 0), "requester")
    assert drawable(world.head) == [], "it is drawn"


def test_an_audit_whose_beacon_is_forgotten_is_drawn_no_more() -> None:
    made = Audited.start()
    world = made.world
    world.to(Phase.ATTESTING)
    world.send(made.calls.draw(world.job, 0), "requester")
    world.devnet.mine(260)
    world.send(made.calls.draw(world.job, 0), "requester")
    assert made.found.state.status == AuditStatus.SKIPPED
    ledger = world.ledger()
    assert list(to_draw(ledger, ledger.jobs[world.job], world.head)) == []


def test_a_spoken_duty_is_decided_with_its_round_or_by_a_conviction() -> None:
    made = Audited.start()
    world = made.world
    made.draw()
    made.speak()
    duty = made.found.duties[0]
    assert not decided(world.ledger(), made.found, duty)
    convicted = world.claim_id(duty.slot)
    signed_twice(world, duty.slot)
    assert world.contracts.market.claim(convicted).status == ClaimStatus.CONVICTED
    assert decided(world.ledger(), made.found, duty), "its word may be false: that is settled at once"
    duty.status = DutyStatus.DIFFERED
    assert not decided(world.ledger(), made.found, duty), "its fee waits for the round"
    world.to(Phase.FREEZING)
    bodies = [world.held[world.claim_id(slot)].body for slot in range(2) if slot != duty.slot]
    world.send(world.contracts.market.freeze(world.job, 0, bodies), "requester")
    world.to(Phase.FINAL)
    assert decided(world.ledger(), made.found, duty)


CARRYING = {"rounds": 3, "max_lead": 3, "carry_period": 2}


@pytest.fixture(params=["memory", pytest.param("anvil", marks=[pytest.mark.chain, pytest.mark.slow])])
def carrying(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Audited]:
    """A job whose claims carry, on both chains: the contracts decide as their twins do."""
    if request.param == "memory":
        yield Audited.start(**CARRYING)
        return
    with Devnet(tmp_path / "anvil", block_seconds=0) as devnet:
        yield Audited.start(devnet, **CARRYING)


@pytest.mark.sampled(1)
def test_silence_about_a_claim_that_carries_is_decided_by_the_merge(carrying: Audited) -> None:
    made, world, found = carrying, carrying.world, carrying.second()
    (duty,) = found.duties

    def round_() -> RoundLedger:
        return world.ledger().jobs[world.job].rounds[1]

    assert round_().claims[duty.slot].carries
    assert not decided(world.ledger(), found, duty)
    world.send(world.contracts.demands.carry_unavailable(world.job, 1, duty.slot, 0), "verifier")
    assert not left_out(round_(), duty.slot)
    world.to(Phase.FREEZING, 1)
    world.pass_to(world.now + world.params.windows.answer_seconds + 1)
    world.to(Phase.MERGING, 1)
    assert left_out(round_(), duty.slot)
    assert not left_out(round_(), 1 - duty.slot)
    assert decided(world.ledger(), found, duty)
    world.pass_to(found.state.commit_ends)
    world.send(made.calls.settle(found.id, 0), "verifier")
    stored = world.contracts.witnesses.read("witness", world.job, world.address("witness"))
    assert stored[0] == Standing.LISTED, "it was not fined: it would have been drawn no more"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("speaks", ["agrees", "differs", "silent"])
def test_whoever_looked_at_a_claim_that_falls_with_its_carry_is_paid(carrying: Audited, speaks: str) -> None:
    made, world, found = carrying, carrying.world, carrying.second()
    (duty,) = found.duties
    made.speak(speaks)
    world.to(Phase.LEAD, 1)
    signed_twice(world, duty.slot)
    world.pass_to(max(world.now + world.params.windows.challenge_seconds, found.state.reveal_ends))
    for r in range(2):
        world.send(world.contracts.market.finalize(world.job, r), "requester")
    assert world.contracts.market.claim(world.claim_id(duty.slot, 1)).status == ClaimStatus.VOID
    assert decided(world.ledger(), found, duty)
    world.send(made.calls.settle(found.id, 0), "verifier")
    paid = 0 if speaks == "silent" else WITNESSED["witness_fee"]
    assert world.contracts.vault.credits(world.address("witness")) == paid
    assert world.contracts.market.job(world.job).fees_due == 0


def signed_twice(world: World, slot: int) -> None:
    """A worker convicts itself."""
    market, ro = world.contracts.market, world.contracts.market.round(world.job, 0)
    work = court.Work(world.job, 0, 0, slot, ro.seed, ro.base)
    key, signed = world.accounts[f"worker-{slot}"], []
    for root in (keccak(b"one"), keccak(b"other")):
        said = (root, 2, root, root)
        parts = (work.job, work.round, work.attempt, work.slot, work.seed, work.base, *said)
        digest = ids.claim_digest(world.devnet.w3.eth.chain_id, market.address, parts)
        signature = key.unsafe_sign_hash(digest).signature  # type: ignore[arg-type]
        signed.append(court.Signed(*said, bytes(signature)))  # type: ignore[arg-type]
    world.send(world.contracts.game.call("equivocate", work, *signed), "verifier")
