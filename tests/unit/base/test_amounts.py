"""Amounts are read as they are written, to the wei."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.base.amounts import DECIMALS, amount_of, tokens
from lockstep.presets import TOKEN
from lockstep.protocol.errors import UsageError


@given(st.integers(1, 2**128 - 1))
def test_what_is_written_is_read(amount: int) -> None:
    assert amount_of(tokens(amount).replace(",", "")) == amount
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
    assert TOKEN == 10**DECIMALS
