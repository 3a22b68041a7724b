"""A quote says whether a job's gas price counts a rollup's fee for bytes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from lockstep.chain.fees import PROFILES, cover, sums
from lockstep.chain.known_chains import KNOWN, facts_of
from lockstep.cli.quoting import data_fee_of
from lockstep.cli.schema import bundled
from lockstep.presets import DEVNET, MAINNET
from lockstep.protocol.jobs import Pricing
from lockstep.protocol.types import Wei

PRICES = Pricing(MAINNET.bond, MAINNET.witness_stake, MAINNET.gas_price, MAINNET.fee_cap)
OP = PROFILES["optimism"]


def test_only_a_rollup_has_a_data_fee() -> None:
    assert {facts.stack for facts in KNOWN.values() if data_fee_of(facts, PRICES, 10**6) is not None} == {
        "op", "arbitrum",
    }  # fmt: skip
    assert data_fee_of(None, PRICES, 10**6) is None, "nothing is known of that chain"


@pytest.mark.parametrize("base_fee", [10**5, 10**6, 10**8, 10**10])
def test_a_gas_price_for_gas_alone_is_warned_of_and_one_for_the_bytes_is_not(base_fee: int) -> None:
    factor = cover(sums()["game_most"], replace(OP, base_fee=base_fee))
    told = data_fee_of(facts_of(10), PRICES, base_fee)
    assert told is not None
    assert told.factor == factor > 1
    assert told.needed == math.ceil(factor * MAINNET.gas_price)
    assert not told.covered
    assert f"WARNING: refunds and bonds count only gas, and the job's gas price is {MAINNET.gas_price}" in told.line()
    raised = data_fee_of(facts_of(10), replace(PRICES, gas_price=told.needed), base_fee)
    assert raised is not None
    assert raised.covered
    assert "WARNING" not in raised.line()
    half = replace(PRICES, gas_price=told.needed, fee_cap=2 * PRICES.fee_cap)
    again = data_fee_of(facts_of(10), half, base_fee)
    assert again is not None
    assert not again.covered, "the same tokens at twice the cap are half of it"


def test_terms_without_a_price_of_gas_cover_nothing() -> None:
    told = data_fee_of(facts_of(8453), replace(PRICES, gas_price=DEVNET.gas_price), 0)
    assert told is not None
    assert (told.chain, told.covered, told.gas_price) == ("Base", False, Wei(0))
    assert told.factor == cover(sums()["game_most"], OP), "a block that names no base fee: the profile's"


def test_it_is_what_the_schema_says() -> None:
    schema = bundled("train.quote")
    field = {**schema["properties"]["data_fee"], "$defs": schema["$defs"]}
    told = data_fee_of(facts_of(10), PRICES, 10**6)
    assert told is not None
    Draft202012Validator(field).validate(told.to_dict())
    Draft202012Validator(field).validate(None)
    assert "data_fee" in schema["required"]
