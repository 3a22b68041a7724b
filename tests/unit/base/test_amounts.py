"""Amounts are read as they are written, to the wei."""

from __future__ import annotations

import math
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.base.amounts import COIN, TEST_TOKEN, Currency, amount_of, require_amount, set_market_currency, tokens
from lockstep.presets import TOKEN
from lockstep.protocol.errors import UsageError

USDC = Currency("USDC", 6)


@given(st.integers(1, 2**128 - 1), st.sampled_from([TEST_TOKEN, USDC, Currency("Ä₮0", 0), Currency("wide", 30)]))
def test_what_is_written_is_read(amount: int, currency: Currency) -> None:
    assert amount_of(tokens(amount, currency=currency).replace(",", ""), currency=currency) == amount
    assert amount_of(f"{amount}wei") == amount


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("20", 20 * TOKEN), ("20.5", 41 * TOKEN // 2), (" 20.5 LST ", 41 * TOKEN // 2), ("0.000000000000000001", 1),
        ("1 lst", TOKEN), ("7 wei", 7), ("1.500000000000000000000", 3 * TOKEN // 2),
    ],
)  # fmt: skip
def test_forms(text: str, amount: int) -> None:
    assert amount_of(text) == amount


@pytest.mark.parametrize(
    "text",
    ["", "much", "-5", "0", "1,000", "1e18", "1.5wei", "0.0000000000000000001", "٣", "1" * 60, "nan", "5 ETH", "1 2"],
)
def test_what_is_no_amount_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        amount_of(text)
    assert repr(text) in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("text", ["", "much", "-5", "1,000", "1e18", "nan", "1 2", "0", "0.00", "9" * 40])
def test_what_is_no_amount_of_any_token_is_refused_before_the_market_is_known(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not an amount|out of range"):
        require_amount(text)
    require_amount("20.5 USDC")
    require_amount("0", least=0)


@pytest.mark.parametrize(
    ("number", "amount"),
    [
        (1e-7, TOKEN // 10**7), (0.1, TOKEN // 10), (1.5, 3 * TOKEN // 2), (1e16, 10**16 * TOKEN), (20, 20 * TOKEN),
        (Decimal("1E-18"), 1), (Decimal("2.50"), 5 * TOKEN // 2), (np.float64(1e-7), TOKEN // 10**7),
        (np.int64(20), 20 * TOKEN),
    ],
)  # fmt: skip
def test_a_number_is_the_decimal_that_is_written_for_it(number: float | Decimal, amount: int) -> None:
    assert amount_of(number) == amount


@pytest.mark.parametrize("number", [math.nan, math.inf, -1e-7, 0.0, 1e-19, 1e30, True, Decimal("NaN"), Decimal(-1)])
def test_a_number_that_is_no_amount_is_refused_with_a_hint(number: float | Decimal) -> None:
    with pytest.raises(UsageError, match="budget is") as refused:
        amount_of(number, "budget")
    assert refused.value.hint


def test_amounts_are_of_the_market_s_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.base.amounts._of_market", TEST_TOKEN)
    set_market_currency(USDC)
    assert [amount_of(text) for text in ("20", "20.5 usdc", "7 wei")] == [20_000_000, 20_500_000, 7]
    assert [tokens(20_500_000), tokens(1, 4), tokens(10**18, 4, COIN)] == ["20.5 USDC", "0.000001 USDC", "1 ETH"]
    for text, why in (("20 LST", "not an amount of USDC"), ("0.0000001", "more than 6 decimals")):
        with pytest.raises(UsageError, match=why):
            amount_of(text)


def test_nothing_may_be_asked_for_where_that_makes_sense() -> None:
    assert amount_of("0", least=0) == 0


@pytest.mark.parametrize(
    ("amount", "digits", "text"),
    [(0, None, "0 LST"), (TOKEN, None, "1 LST"), (10**4 * TOKEN, None, "10,000 LST"), (1, None, f"0.{'0' * 17}1 LST"),
     (TOKEN * 2 // 3, 6, "0.666667 LST"), ("5", 3, "5e-18 LST")],
)  # fmt: skip
def test_text(amount: int | str, digits: int | None, text: str) -> None:
    assert tokens(amount, digits) == text


def test_a_token_has_its_decimals() -> None:
    assert TEST_TOKEN.unit == TOKEN


def test_a_bare_number_is_of_the_token_whatever_that_is_called() -> None:
    named = Currency("wei", 6)
    assert (amount_of("20", currency=named), amount_of("20 wei", currency=named)) == (20_000_000, 20)
