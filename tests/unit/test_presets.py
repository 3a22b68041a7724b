"""Presets keep the bounds that they are derived from."""

from __future__ import annotations

import random
from dataclasses import asdict, replace

import pytest

from lockstep import economics
from lockstep.economics import AuditPlan
from lockstep.presets import CHAINS, DEVNET, MAINNET, PRESETS, TOKEN, Terms
from lockstep.protocol.errors import ChainError, UsageError
from lockstep.protocol.market import prices
from lockstep.protocol.market.job_rules import check_params
from lockstep.protocol.types import Seconds, Wei
from tests.support.market.wander import params_of
from tests.support.params import amended


@pytest.mark.parametrize("terms", PRESETS.values(), ids=PRESETS)
def test_a_preset_is_above_the_contracts_floors(terms: Terms) -> None:
    assert terms.slot_stake >= prices.stake_floor(terms.slot_price, terms.gas_price)
    assert terms.merge_stake >= prices.stake_floor(terms.merge_price, terms.gas_price)
    assert terms.bond >= prices.bond_floor(terms.slot_price, 1), "even where a slot is one step"
    assert terms.witness_stake >= prices.witness_floor(terms.witness_fee, terms.max_lead)
    assert 0 < terms.fee_cap <= prices.MAX_FEE_CAP


@pytest.mark.parametrize(("terms", "chain"), [(DEVNET, "devnet"), (MAINNET, "ethereum"), (MAINNET, "op-stack")])
def test_the_market_accepts_a_preset(terms: Terms, chain: str) -> None:
    shape = amended(params_of(random.Random(0)), slots=64, min_slots=16, inner_steps=500)
    unbonding = Seconds(terms.challenge_seconds + 2 * terms.clock_seconds)
    check_params(amended(shape, **asdict(terms)), unbonding, CHAINS[chain])
    with pytest.raises(ChainError, match="witnesses"):
        check_params(amended(shape, **{**asdict(terms), "witnesses": 65}), unbonding, CHAINS[chain])


@pytest.mark.parametrize("decimals", [0, 2, 6, 8, 18, 24])
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_keeps_its_worth_and_the_floors_in_any_token(name: str, decimals: int) -> None:
    terms, unit = PRESETS[name].in_decimals(decimals), 10**decimals
    test_a_preset_is_above_the_contracts_floors(terms)
    audited = terms.audited(64, 500)
    test_a_preset_is_above_the_contracts_floors(audited)
    check_params(
        amended(params_of(random.Random(0)), **{**asdict(audited), "slots": 64, "min_slots": 16, "inner_steps": 500}),
        Seconds(terms.challenge_seconds + 2 * terms.clock_seconds), CHAINS["devnet"],
    )  # fmt: skip
    assert (terms.slot_price, terms.join_seconds) == (unit, PRESETS[name].join_seconds)
    if decimals >= 8 or not terms.gas_price:
        assert audited.slot_stake * TOKEN == PRESETS[name].audited(64, 500).slot_stake * unit


def test_mainnet_is_for_64_slots_of_500_steps() -> None:
    audit = AuditPlan(64, MAINNET.witnesses, 501)
    assert MAINNET.audited(64, 500) == MAINNET, "derived, not written"
    assert audit.cost_share() <= economics.MAX_COST_SHARE
    assert MAINNET.slot_stake >= audit.stake_multiple() * MAINNET.slot_price, "no saving of work pays"
    assert (MAINNET.witnesses, MAINNET.slot_stake) == (5, 40 * TOKEN)


@pytest.mark.parametrize(("slots", "steps"), [(1, 1), (3, 20), (16, 100), (24, 500)])
def test_a_job_takes_the_witnesses_and_the_stake_of_its_size(slots: int, steps: int) -> None:
    terms = MAINNET.audited(slots, steps)
    audit = AuditPlan(slots, terms.witnesses, steps + 1)
    assert terms.slot_stake >= audit.stake_multiple() * terms.slot_price
    assert replace(terms, **{name: getattr(MAINNET, name) for name in CHANGED}) == MAINNET, "nothing else changes"
    assert DEVNET.audited(slots, steps) == DEVNET, "who draws no witnesses goes on drawing none"


CHANGED = ("witnesses", "witness_fee", "witness_stake", "slot_stake")


@pytest.mark.parametrize("name", ["slot_stake", "merge_stake", "witness_stake"])
def test_terms_below_a_floor_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=name):
        replace(MAINNET, **{name: Wei(4 * TOKEN)})


def test_terms_in_which_witnesses_risk_too_much_or_speak_too_late_are_refused() -> None:
    with pytest.raises(UsageError, match="below half of slot_stake"):
        replace(MAINNET, witness_stake=Wei(MAINNET.slot_stake // 2))
    spoken = MAINNET.reveal_seconds + MAINNET.attest_seconds + 3 * MAINNET.audit_seconds
    assert replace(MAINNET, challenge_seconds=Seconds(spoken)).challenge_seconds == spoken
    with pytest.raises(UsageError, match="challenge_seconds"):
        replace(MAINNET, challenge_seconds=Seconds(spoken - 1))


@pytest.mark.parametrize("terms", PRESETS.values(), ids=PRESETS)
def test_a_bid_meets_the_markets_floors_whatever_it_is(terms: Terms) -> None:
    """From a wei a slot to a thousand times the preset's price, for small jobs and large ones."""
    for bid in (1, 10**9, int(terms.slot_price) // 7, int(terms.slot_price), 1000 * int(terms.slot_price)):
        for slots, steps in ((2, 1), (3, 20), (64, 500)):
            priced = terms.priced(Wei(bid), slots, steps, min_slots=1)
            shape = amended(params_of(random.Random(0)), slots=slots, min_slots=1, inner_steps=steps, rounds=2)
            unbonding = Seconds(terms.challenge_seconds + 2 * terms.clock_seconds)
            check_params(amended(shape, **asdict(priced)), unbonding, CHAINS["devnet"])
            assert priced.slot_price == bid, "no more and no less than was bid"
    assert terms.priced(terms.slot_price, 64, 500) == terms.audited(64, 500), "the preset's own price changes nothing"
