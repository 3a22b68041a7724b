"""What an account bids for a unit of gas, and what it bids in the place of what is stuck; no chain."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.chain.wire import TIP_WEI, Wire

GWEI = 10**9


def wire_of(max_fee: int, max_tip: int, base: int) -> Wire:
    eth = SimpleNamespace(chain_id=1, get_block=lambda _: {"baseFeePerGas": base})
    account: Any = None
    w3: Any = SimpleNamespace(eth=eth)
    return Wire(w3, account, max_fee, max_tip)


@pytest.mark.parametrize(
    ("max_fee", "max_tip", "base", "raises"),
    [
        (500 * GWEI, 500 * GWEI, GWEI, 23),
        (500 * GWEI, GWEI, GWEI, 3),
        (500 * GWEI, GWEI // 10, GWEI, 3),
        (500 * GWEI, 7, GWEI, 2),
        (500 * GWEI, 2, GWEI, 1),
        (500 * GWEI, 1, GWEI, 0),
        (500 * GWEI, 0, GWEI, 0),
        (3 * GWEI, GWEI, GWEI, 0),
        (10, 10, 7, 0),
    ],
)
def test_a_replacement_is_a_tenth_dearer_in_both_fees_or_is_not_sent(
    max_fee: int, max_tip: int, base: int, raises: int
) -> None:
    wire = wire_of(max_fee, max_tip, base)
    bid, count = wire.fees(), 0
    assert bid[0] <= min(TIP_WEI, max_tip)
    while (dearer := wire.dearer(*bid, market=0)) is not None:
        for old, new, most in zip(bid, dearer, (max_tip, max_fee), strict=True):
            assert new > old, "not the same bid again"
            assert 10 * new >= 11 * old, "what nodes ask"
            assert new <= most, "within the bound"
        bid, count = dearer, count + 1
    assert count == raises


def test_a_replacement_bids_what_a_new_transaction_would() -> None:
    assert wire_of(500 * GWEI, 500 * GWEI, GWEI).dearer(GWEI, 2 * GWEI, market=90 * GWEI) == (
        5 * GWEI // 4 + 1,
        90 * GWEI,
    )


@pytest.mark.parametrize(("max_tip", "most"), [(0, 9 * GWEI), (1, 9 * GWEI), (GWEI, 3 * GWEI), (500 * GWEI, 3 * GWEI)])
def test_a_bid_that_nothing_can_follow_leaves_room_for_more_full_blocks(max_tip: int, most: int) -> None:
    wire = wire_of(500 * GWEI, max_tip, GWEI)
    assert wire.fees()[1] == most
    assert wire_of(2 * GWEI, max_tip, GWEI).fees()[1] == 2 * GWEI, "within the bound all the same"


def test_the_last_replacement_leaves_it_too() -> None:
    wire = wire_of(500 * GWEI, GWEI, GWEI)
    bids = [wire.fees()]
    while (dearer := wire.dearer(*bids[-1], market=3 * GWEI)) is not None:
        bids.append(dearer)
    assert (len(bids), bids[-1][1]) == (4, 12 * GWEI)
