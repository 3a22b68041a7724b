"""Parses and formats amounts for people, in the market's token or in the chain's coin: "20.5 LST".

>>> tokens(Wei(20_500_000_000_000_000_000))
'20.5 LST'
>>> amount_of("20.5 LST") == amount_of("20.5")
True
>>> tokens(Wei(20_500_000), currency=Currency("USDC", 6))
'20.5 USDC'

JSON carries the smallest units ("wei") as a decimal string; only text for people is converted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal

from lockstep.base.naming import nearest
from lockstep.presets import DECIMALS
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import Wei

_AMOUNT = re.compile(r"(\d{1,40})(?:\.(\d+))?\s*((?!e\d)[^\s\d.,][^\s,]*)?", re.IGNORECASE | re.ASCII)
_TINY = Decimal("1e-9")
"""Amounts below it are rounded and written with an exponent."""
_FEE_UNITS = {"wei": 0, "gwei": 9, "eth": 18}
_FEE = re.compile(r"(\d{1,40})(?:\.(\d{1,18}))?\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_LARGEST = 2**128 - 1
"""Largest amount that the contracts store."""


@dataclass(frozen=True)
class Currency:
    """A token or coin, as described by its contract or chain."""

    symbol: str
    decimals: int
    """Number of decimals: the unit is 10^decimals smallest units."""

    @property
    def unit(self) -> int:
        """One token or coin, in smallest units."""
        return int(10**self.decimals)


COIN = Currency("ETH", 18)
"""The chain's own coin, which pays for gas."""
TEST_TOKEN = Currency("LST", DECIMALS)
"""The token of a market that was deployed without naming one."""
_of_market = TEST_TOKEN


def market_currency() -> Currency:
    """Returns the token of the market that this process connected to last; the test token before."""
    return _of_market


def set_market_currency(currency: Currency) -> None:
    """Sets the token in which `tokens` and `amount_of` count; a process serves one market."""
    global _of_market
    _of_market = currency


def tokens(amount: int | str, digits: int | None = None, currency: Currency | None = None) -> str:
    """Formats an amount in smallest units, exactly or to `digits` significant digits; in the market's token unless
    another currency is given."""
    currency = currency or market_currency()
    exact = Decimal(int(amount)).scaleb(-currency.decimals, Context(prec=60))
    if digits is not None:
        exact = Context(prec=digits).create_decimal(exact)
        if 0 < exact < _TINY:
            return f"{exact.normalize():g} {currency.symbol}"
    return f"{exact.normalize(Context(prec=60)):,f} {currency.symbol}"


def require_amount(text: str, name: str = "amount", *, least: int = 1) -> None:
    """Raises UsageError for a text that is not a valid amount of any token, before the market is known."""
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise _no_amount(text, name, "tokens")
    if (least and not int(found[1] + (found[2] or ""))) or int(found[1]) > _LARGEST:
        raise UsageError(f"{name} is {text!r}, which is out of range", hint="write more than 0, and less than 10^38")


def amount_of(
    amount: str | float | Decimal, name: str = "amount", *, least: int = 1, currency: Currency | None = None
) -> Wei:  # fmt: skip
    """Parses an amount: 20, "20.5 LST", or "5wei", of the market's token unless another is given; raises UsageError.

    A float is the shortest decimal that reads as it. `name` is the option in the error's message; `least` is the
    smallest valid amount.
    """
    currency = currency or market_currency()
    if isinstance(amount, float):
        amount = Decimal(float.__repr__(amount))
    text = f"{amount:f}" if isinstance(amount, Decimal) else str(amount)
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise _no_amount(text, name, currency.symbol)
    whole, fraction, unit = found[1], found[2] or "", (found[3] or "").casefold()
    if unit not in ("", "wei", currency.symbol.casefold()):
        raise _no_amount(text, name, currency.symbol)
    if unit == "wei" and fraction:
        raise UsageError(f"{name} is {text!r}, less than the smallest unit", hint="give a whole number of wei")
    fraction = fraction.rstrip("0")
    if len(fraction) > currency.decimals:
        raise UsageError(
            f"{name} is {text!r}, which has more than {currency.decimals} decimals",
            hint="the token has no smaller unit",
        )
    value = (
        int(whole) if unit == "wei" else int(whole) * currency.unit + int(fraction.ljust(currency.decimals, "0") or 0)
    )
    if not least <= value <= _LARGEST:
        low, high = tokens(least, currency=currency), tokens(_LARGEST, 6, currency)
        bound = f"at least {low}" if value < least else f"at most {high}"
        raise UsageError(f"{name} is {text!r}, which is out of range", hint=bound)
    return Wei(value)


def _no_amount(text: str, name: str, symbol: str) -> UsageError:
    return UsageError(
        f"{name} is {text!r}, which is not an amount of {symbol}",
        hint=f"write 20 or 20.5 or '20.5 {symbol}'; or the token's smallest unit, e.g. 5wei",
    )


def fee_of(text: str, name: str) -> Wei:
    """Parses a price per gas with its unit: "40 gwei", "0.05 gwei", "7 wei"; raises UsageError.

    A bare number is refused: gwei and wei differ by 10^9.
    """
    found = _FEE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{name} is {text!r}, which is not a fee", hint="write a number and its unit, as '40 gwei'")
    whole, fraction, unit = found[1], (found[2] or "").rstrip("0"), found[3].lower()
    if not unit:
        raise UsageError(f"{name} is {text!r}, without a unit", hint=f"did you mean '{text.strip()} gwei'?")
    if unit not in _FEE_UNITS:
        raise UsageError(f"{name} is {text!r}: no unit is called {unit!r}", hint=nearest(unit, _FEE_UNITS))
    decimals = _FEE_UNITS[unit]
    if len(fraction) > decimals:
        raise UsageError(f"{name} is {text!r}, which is not a whole number of wei", hint="give fewer decimals")
    value = int(whole) * 10**decimals + int(fraction.ljust(decimals, "0") or "0")
    if value > 10**18:
        raise UsageError(
            f"{name} is {text!r}, at least one whole coin for a unit of gas", hint="give gwei, as '40 gwei'"
        )
    return Wei(value)
