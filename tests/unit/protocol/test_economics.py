"""The rules of money: floors, the price of gas, how a slash and a bond are split."""

from __future__ import annotations

from pathlib import Path
from statistics import median_high

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.protocol import economics
from lockstep.protocol.types import Wei
from tests import prices

AMOUNTS = st.integers(0, (1 << 88) - 1)
FEES = st.integers(0, economics.MAX_FEE_CAP)


def test_the_committed_vectors_are_what_the_twin_computes(vectors: Path) -> None:
    assert (vectors / "prices.jsonl").read_text().splitlines() == prices.lines(), "run `python -m tests.prices`"


# -- floors and gas


@given(AMOUNTS, st.integers(0, 1 << 60))
def test_a_stake_covers_ten_prices_and_four_games(price: int, gas_price: int) -> None:
    floor = economics.stake_floor(Wei(price), Wei(gas_price))
    assert floor >= 10 * price, "ten times what the work is paid"
    assert floor >= economics.gas_cost(4 * economics.GAME_GAS, Wei(gas_price), 1, 1), "four games at the cap"
    assert floor in (10 * price, 4 * economics.GAME_GAS * gas_price), "and no more"


@given(AMOUNTS, st.integers(0, 1 << 60), FEES.map(lambda fee: fee + 1), FEES, FEES)
def test_a_bond_rises_with_the_base_fee_up_to_the_cap(bond: int, gas_price: int, cap: int, low: int, high: int) -> None:
    low, high = sorted((low, high))
    cheap, dear, most = (economics.bond_of(Wei(bond), Wei(gas_price), cap, fee) for fee in (low, high, cap))
    assert bond <= cheap <= dear <= most, "monotonic in the base fee, never above the cap"
    assert most == bond + 3 * economics.DEFENDER_GAS * gas_price, "at the cap: three times the defender's gas"


@given(AMOUNTS, st.integers(1, 1 << 24))
def test_a_bond_is_at_least_the_price_of_a_step(price: int, steps: int) -> None:
    floor = economics.bond_floor(Wei(price), steps)
    assert steps * (floor - 1) < price <= steps * floor, "rounded up, by less than one unit"


@given(st.lists(FEES, max_size=20))
def test_the_ring_knows_the_last_nine_fees(fees: list[int]) -> None:
    ring = 0
    for fee in fees:
        ring = economics.push(ring, fee)
    assert ring < 1 << 252, "nine places"
    last = [-(-fee // economics.FEE_UNIT) * economics.FEE_UNIT for fee in fees[-9:]]
    assert economics.median(ring, -1) == (median_high(last) if last else -1)


# -- verdicts


@given(AMOUNTS, st.integers(1, 3), st.lists(AMOUNTS, max_size=8))
def test_a_slash_conserves_money_and_burns_half(stake: int, winners: int, refunds: list[int]) -> None:
    split = economics.split_slash(Wei(stake), winners, [Wei(refund) for refund in refunds])
    assert split.total == stake, "what is slashed is what arrives"
    assert 2 * split.burned >= stake, "at least half is burned"
    assert sum(split.winners) * 100 <= 30 * stake, "winners share at most 30 %"
    assert sum(split.refunds) * 100 <= 10 * stake, "refunds are at most 10 %"
    assert split.requester >= 0, "the requester pays for nothing"
    assert all(paid <= metered for paid, metered in zip(split.refunds, refunds, strict=True)), (
        "no more than was metered"
    )
    assert list(split.winners) == sorted(split.winners, reverse=True), "the convicting game's challenger has most"


@pytest.mark.parametrize(
    ("stake", "winners", "refunds", "burned", "to_winners", "to_refunds", "requester"),
    [
        (1_000, 1, (), 500, (300,), (), 200),
        (1_000, 2, (), 500, (200, 100), (), 200),
        (1_000, 3, (), 500, (150, 75, 75), (), 200),
        (1_000, 1, (60, 60), 500, (300,), (60, 40), 100),
        (1_000, 3, (10, 0, 200, 5), 500, (150, 75, 75), (10, 0, 90, 0), 100),
        (999, 3, (3,), 503, (149, 74, 74), (3,), 196),
        (7, 3, (), 5, (1, 0, 0), (), 1),
        (1, 1, (1,), 1, (0,), (0,), 0),
        (0, 1, (), 0, (0,), (), 0),
    ],
)
def test_the_split_of_a_slash(
    stake: int, winners: int, refunds: tuple[Wei, ...], burned: int, to_winners: tuple[int, ...],
    to_refunds: tuple[int, ...], requester: int,
) -> None:  # fmt: skip
    split = economics.split_slash(Wei(stake), winners, refunds)
    assert (split.burned, split.winners, split.refunds, split.requester) == (burned, to_winners, to_refunds, requester)


@given(AMOUNTS)
def test_a_lost_bond_pays_the_defender_and_burns_the_rest(bond: int) -> None:
    to_defender, burned = economics.split_bond(Wei(bond))
    assert to_defender + burned == bond
    assert burned * 100 >= 40 * bond, "whoever challenges himself loses 40 %"
