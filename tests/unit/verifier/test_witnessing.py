"""A witness's decisions: nothing drawn is left undone, nothing said before its time, no secret lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.chain.events import Event
from lockstep.ledger import AuditLedger, Ledger
from lockstep.protocol import claims
from lockstep.protocol.claims import claim_id
from lockstep.protocol.market import draws
from lockstep.protocol.market.types import Audit, AuditStatus, Duty, DutyStatus, Outcome
from lockstep.protocol.statement import keccak
from lockstep.protocol.types import Address, AuditId, Digest, JobId, Seconds, StateRoot
from verifier.memory import Memory, Verdict
from verifier.witnessing import LINKS, Due, agrees, decided, due, to_draw

JOB = JobId(b"\7" * 32)
AUDIT = claims.audit_id(JOB, 0, 0)
ME, WORKER = (Address("0x" + c * 40) for c in "ab")
COMMIT_ENDS, REVEAL_ENDS = Seconds(100), Seconds(200)


def audit(status: DutyStatus) -> tuple[AuditLedger, Duty]:
    duty = Duty(ME, 1, 1, status)
    state = Audit(AuditStatus.DRAWN, JOB, 0, 0, 7, keccak(b"beacon"), COMMIT_ENDS, REVEAL_ENDS, 1)
    return AuditLedger(AUDIT, state, [duty]), duty


@pytest.mark.parametrize(
    ("status", "now", "is_decided", "to_do"),
    [
        (DutyStatus.DRAWN, 99, False, Due.LOOK),
        (DutyStatus.DRAWN, 100, False, Due.SETTLE),
        (DutyStatus.COMMITTED, 99, False, Due.NOTHING),
        (DutyStatus.COMMITTED, 100, False, Due.SPEAK),
        (DutyStatus.COMMITTED, 199, False, Due.SPEAK),
        (DutyStatus.COMMITTED, 200, False, Due.SETTLE),
        (DutyStatus.AGREED, 150, False, Due.NOTHING),
        (DutyStatus.AGREED, 150, True, Due.SETTLE),
        (DutyStatus.DIFFERED, 900, False, Due.NOTHING),
        (DutyStatus.DIFFERED, 900, True, Due.SETTLE),
        (DutyStatus.CLOSED, 900, True, Due.NOTHING),
    ],
)
def test_a_duty_is_looked_into_spoken_of_and_settled_in_its_windows(
    status: DutyStatus, now: int, is_decided: bool, to_do: Due
) -> None:
    assert due(*audit(status), is_decided, Seconds(now)) is to_do


def test_agreeing_means_every_root_up_to_t_star() -> None:
    roots = tuple(StateRoot(keccak(bytes([t]))) for t in range(5))
    assert agrees(roots[:3], roots)
    assert not agrees((roots[0], StateRoot(keccak(b"other")), roots[2]), roots), "an interpolated root before t*"
    assert not agrees(roots, roots[:3]), "a list that is too short"


class Chain:
    """Events, folded as they come."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.count = 0
        self.say("JobCreated", requester=WORKER, spec_digest=bytes(32))
        self.say("RoundStarted", round=0, attempt=0, base=bytes(32), outer=bytes(32))

    def say(self, name: str, contract: str = "JobMarket", **arguments: Any) -> None:
        self.count += 1
        args = {"job": JOB, **arguments} if contract == "JobMarket" else arguments
        self.ledger.apply(Event(contract, name, args, self.count, bytes(32), Seconds(self.count), bytes(32), 0))

    def reveal(self, slot: int) -> bytes:
        claim = claim_id(JOB, 0, 0, slot)
        self.say("Joined", round=0, slot=slot, worker=WORKER)
        self.say(
            "Revealed", round=0, slot=slot, claim=claim, worker=WORKER, trace_root=bytes(32), out=bytes(32),
            out2=bytes(32), trace_cid="", payload_cid="payload",
        )  # fmt: skip
        return claim

    def drawn(self) -> AuditLedger:
        self.say("AuditOpened", "Witnesses", audit=AUDIT, job=JOB, round=0, attempt=0, beacon_block=50)
        self.say("DutyDrawn", "Witnesses", audit=AUDIT, i=0, account=ME, slot=1, serial=3)
        self.say(
            "AuditDrawn", "Witnesses", audit=AUDIT, beacon=keccak(b"beacon"), duties=1, commit_ends=100, reveal_ends=220
        )
        return self.ledger.audits[AUDIT]


def test_the_ledger_follows_an_audit_from_its_beacon_to_its_end() -> None:
    chain = Chain()
    claim = chain.reveal(1)
    chain.say("Enrolled", "Witnesses", job=JOB, account=ME, head=keccak(b"head"))
    assert chain.ledger.heads[JOB, ME] == keccak(b"head")
    found = chain.drawn()
    (duty,) = found.duties
    assert (duty.account, duty.slot, duty.serial, duty.status) == (ME, 1, 3, DutyStatus.DRAWN)
    assert chain.ledger.jobs[JOB].audits[AUDIT] is found
    chain.say("VerdictCommitted", "Witnesses", audit=AUDIT, i=0, commitment=keccak(b"c"))
    chain.say("CommitsEnded", "Witnesses", audit=AUDIT, commit_ends=60, reveal_ends=180)
    assert (duty.status, found.state.commit_ends, found.state.reveal_ends) == (DutyStatus.COMMITTED, 60, 180)
    chain.say("TracePublished", "Witnesses", job=JOB, round=0, slot=1, claim=claim, trace_cid="list")
    assert chain.ledger.jobs[JOB].rounds[0].claims[1].trace_cid == "list"
    chain.say("VerdictRevealed", "Witnesses", audit=AUDIT, i=0, t=4, state=bytes(32), agrees=True)
    assert (duty.status, duty.t) == (DutyStatus.AGREED, 4)
    chain.say("DutyClosed", "Witnesses", audit=AUDIT, i=0, account=ME, outcome=Outcome.PAID, amount=5)
    assert duty.status == DutyStatus.CLOSED


def test_a_round_is_drawn_once_its_claims_are_there_and_until_it_is_frozen() -> None:
    chain = Chain()
    job = chain.ledger.jobs[JOB]
    assert list(to_draw(chain.ledger, job, 10)) == [], "nothing is revealed"
    chain.reveal(0)
    assert list(to_draw(chain.ledger, job, 10)) == [0]
    chain.say("AuditOpened", "Witnesses", audit=AUDIT, job=JOB, round=0, attempt=0, beacon_block=50)
    assert list(to_draw(chain.ledger, job, 49)) == [], "the beacon is not mined"
    assert list(to_draw(chain.ledger, job, 50)) == [0], "the next block may draw"
    chain.say("AuditSkipped", "Witnesses", audit=AUDIT)
    assert list(to_draw(chain.ledger, job, 51)) == []


def test_a_spoken_duty_is_decided_with_its_round_or_by_a_conviction() -> None:
    chain = Chain()
    claim = chain.reveal(1)
    found = chain.drawn()
    found.duties[0].status = DutyStatus.AGREED
    assert not decided(chain.ledger, found, found.duties[0])
    chain.say("Convicted", round=0, slot=1, claim=claim, worker=WORKER)
    assert decided(chain.ledger, found, found.duties[0]), "its word may be false: that is settled at once"
    found.duties[0].status = DutyStatus.DIFFERED
    assert not decided(chain.ledger, found, found.duties[0]), "its fee waits for the round"
    chain.say("RoundVoid", round=0, attempt=0)
    assert decided(chain.ledger, found, found.duties[0])


def test_a_witness_s_secrets_survive_the_process(tmp_path: Path) -> None:
    secret = b"\5" * 32
    top = draws.chained(Digest(secret), LINKS)
    roots = tuple(StateRoot(keccak(bytes([t]))) for t in range(3))
    first = Verdict(AUDIT, 2, keccak(b"beacon"), keccak(b"salt"), roots)
    with Memory(tmp_path) as memory:
        memory.keep_chain(top, secret)
        assert memory.keep_verdict(first) == first
        again = Verdict(AUDIT, 2, keccak(b"beacon"), keccak(b"another salt"), roots)
        assert memory.keep_verdict(again) == first, "a commitment to the first may be on its way"
    with Memory(tmp_path) as memory:
        assert memory.secret_of(top) == secret
        assert memory.secret_of(Digest(bytes(32))) is None
        assert memory.verdict(AUDIT, 2, keccak(b"beacon")) == first
        assert memory.verdict(AUDIT, 2, keccak(b"after a reorganisation")) is None
        assert memory.verdict(AuditId(bytes(32)), 2, keccak(b"beacon")) is None
