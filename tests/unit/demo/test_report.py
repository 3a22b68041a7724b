"""What the demo says of its money, from a log written by hand."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.chain.events import Event
from lockstep.demo import report
from lockstep.protocol.market.types import Outcome
from lockstep.protocol.types import Address, Seconds, Wei

REQUESTER, WORKER, LIAR, CHALLENGER = (Address(f"0x{n:040x}") for n in range(1, 5))
FEE = Wei(7)
CLAIM, GAME, LOCK = bytes([1]) * 32, bytes([2]) * 32, bytes([3]) * 32


def log(*events: tuple[str, str, dict[str, Any]]) -> list[Event]:
    return [
        Event(contract, name, args, 1, bytes(32), Seconds(1), bytes(32), index)
        for index, (contract, name, args) in enumerate(events)
    ]


SLASHED = {
    "key": CLAIM, "account": LIAR, "amount": 30, "burned": 11, "to_challenger": 6, "to_requester": 4, "owed": 9,
}  # fmt: skip
WHOLE = log(
    ("JobMarket", "JobCreated", {"escrow": 100, "deposit": 30}),
    ("StakeVault", "Deposited", {"account": LIAR, "amount": 30}),
    ("StakeVault", "Deposited", {"account": LIAR, "amount": 12}),
    ("StakeVault", "Locked", {"account": LIAR, "key": CLAIM, "amount": 30}),
    ("StakeVault", "Locked", {"account": WORKER, "key": LOCK, "amount": 20}),
    ("DisputeGame", "Opened", {"game": GAME, "claim": CLAIM, "challenger": CHALLENGER, "defender": WORKER}),
    ("JobMarket", "Convicted", {"claim": CLAIM, "challenger": CHALLENGER}),
    ("StakeVault", "Slashed", SLASHED),
    ("StakeVault", "BondTaken", {"key": GAME, "account": LIAR, "amount": 5, "burned": 2, "to_defender": 3}),
    ("JobMarket", "Paid", {"account": WORKER, "amount": 40}),
    ("JobMarket", "Paid", {"account": WORKER, "amount": 20}),
    ("JobMarket", "Paid", {"account": WORKER, "amount": 9}),
    ("Witnesses", "DutyClosed", {"account": CHALLENGER, "outcome": Outcome.PAID, "amount": FEE}),
    ("JobMarket", "JobDone", {"paid": 67, "refunded": 19, "returned": 30}),
    ("Witnesses", "DutyClosed", {"account": WORKER, "outcome": Outcome.PAID, "amount": FEE}),
    ("Witnesses", "DutyClosed", {"account": LIAR, "outcome": Outcome.FINED, "amount": 3}),
)


def test_money_is_summed_over_the_log_as_decimal_strings() -> None:
    assert report.money(WHOLE, FEE) == {
        "escrow_in": "100", "paid_out": "83", "witness_fees": "14", "refunded": "26",
        "deposit_in": "30", "deposit_returned": "30",
        "slashed": "30", "burned": "11", "to_challenger": "6", "to_requester": "4", "to_work": "9",
        "bonds_lost": "5", "bonds_burned": "2", "bonds_to_defender": "3",
    }  # fmt: skip
    assert set(report.money([]).values()) == {"0"}


@pytest.mark.parametrize("name", sorted({*report.money(WHOLE, FEE)} - {"witness_fees"}))
def test_a_wei_that_is_missing_anywhere_is_noticed(name: str) -> None:
    totals = report.money(WHOLE, FEE)
    assert report.adds_up(totals)
    assert not report.adds_up({**totals, name: str(int(totals[name]) - 1)})
    assert not report.adds_up({**totals, name: str(int(totals[name]) + 1)})


def test_each_party_has_what_the_log_gave_it() -> None:
    assert report.deposited(WHOLE, LIAR) == 42
    assert report.deposited(WHOLE, WORKER) == 0
    assert report.earned(WHOLE, WORKER) == 69 + FEE
    assert report.earned(WHOLE, LIAR) == 0
    assert [report.fees(WHOLE, who) for who in (WORKER, LIAR, CHALLENGER)] == [FEE, 0, FEE]
    received = {who: report.received_from_slash(WHOLE, who, REQUESTER) for who in (REQUESTER, WORKER, LIAR, CHALLENGER)}
    assert received == {REQUESTER: 4, WORKER: 3, LIAR: 0, CHALLENGER: 6}
    totals = report.money(WHOLE, FEE)
    assert sum(received.values()) == sum(int(totals[k]) for k in ("to_challenger", "to_requester", "bonds_to_defender"))
