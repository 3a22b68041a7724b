"""Sending: once per key, never what the pending state refuses, again after a revert."""

from dataclasses import dataclass, field

import pytest

from lockstep.chain.contracts import Call
from lockstep.chain.outbox import Receipt
from lockstep.protocol.errors import FundsError
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address
from worker.decide import Act, Do
from worker.sending import Sender

CALL = Call(Address("0x" + "11" * 20), b"", 21_000, "JobMarket.join")
ACT = Act(Do.JOIN, 1, 2)


@dataclass
class Box:
    """An outbox whose chain does what the test says."""

    refusal: Exception | None = None
    submitted: list[str] = field(default_factory=list)
    receipts: dict[str, bool] = field(default_factory=dict)

    def submit(self, call: Call, key: str) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(key)

    def receipt(self, key: str) -> Receipt | None:
        known = self.receipts.get(key)
        return None if known is None else Receipt(key, "", "0x", 1, 1, 1, known)

    def forget(self, key: str) -> None:
        del self.receipts[key]


def test_a_key_is_sent_once_until_it_is_settled() -> None:
    box = Box()
    sender = Sender(box)  # type: ignore[arg-type]
    assert sender.submit("k", CALL, ACT)
    assert sender.submit("k", CALL, ACT), "under way"
    assert box.submitted == ["k"]
    assert sender.acts() == {ACT}
    assert not sender.idle
    sender.settle()
    assert not sender.idle, "not mined yet"
    box.receipts["k"] = True
    sender.settle()
    assert sender.idle
    assert not sender.submit("k", CALL, ACT), "done is done"
    assert box.submitted == ["k"]


def test_what_reverted_is_sent_again() -> None:
    box = Box()
    sender = Sender(box)  # type: ignore[arg-type]
    sender.submit("k", CALL)
    box.receipts["k"] = False
    sender.settle()
    assert box.receipts == {}, "forgotten, so that the key is free"
    assert sender.submit("k", CALL)
    assert box.submitted == ["k", "k"]


@pytest.mark.parametrize("rule", ["SlotTaken", "WrongPhase", "StakeTooLow", "TooEarly"])
def test_a_rule_that_would_be_broken_is_no_failure(rule: str) -> None:
    box = Box(revert(rule))
    sender = Sender(box)  # type: ignore[arg-type]
    assert not sender.submit("k", CALL)
    assert sender.idle


def test_gas_that_cannot_be_paid_ends_the_worker() -> None:
    sender = Sender(Box(FundsError("the account cannot pay for gas")))  # type: ignore[arg-type]
    with pytest.raises(FundsError):
        sender.submit("k", CALL)
