"""Parses and formats token amounts for people: "20.5 LST".

>>> tokens(Wei(20_500_000_000_000_000_000))
'20.5 LST'
>>> amount_of("20.5 LST") == amount_of("20.5")
True

JSON carries wei as a decimal string; only text for people is converted.
"""

from __future__ import annotations

import re
from decimal import Context, Decimal

from lockstep.base.naming import nearest
from lockstep.presets import TOKEN
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import Wei

DECIMALS = 18
SYMBOL = "LST"
_AMOUNT = re.compile(r"(\d{1,40})(?:\.(\d+))?\s*(LST|wei)?", re.IGNORECASE | re.ASCII)
_TINY = Decimal("1e-9")
"""Smaller rounded amounts are written with an exponent."""
_FEE_UNITS = {"wei": 0, "gwei": 9, "eth": 18}
_FEE = re.compile(r"(\d{1,40})(?:\.(\d{1,18}))?\s*([a-z]*)", re.IGNORECASE | re.ASCII)
_LARGEST = 2**128 - 1
"""The largest amount that the contracts keep."""


def tokens(amount: int | str, digits: int | None = None, symbol: str = SYMBOL) -> str:
    """Formats an amount in wei as tokens, exactly or to `digits` significant digits; `symbol` is ETH for the coin."""
    exact = Decimal(int(amount)) / TOKEN
    if digits is not None:
        exact = Context(prec=digits).create_decimal(exact)
        if 0 < exact < _TINY:
            return f"{exact.normalize():g} {symbol}"
    return f"{exact.normalize():,f} {symbol}"


def amount_of(text: str, name: str = "amount", *, least: int = 1) -> Wei:
    """Parses an amount: "20", "20.5 LST", or "5wei"; raises UsageError.

    `name` is the option in the error's message; `least` is the smallest valid amount.
    """
    found = _AMOUNT.fullmatch(text.strip())
    if found is None:
        raise UsageError(
            f"{name} is {text!r}, which is not an amount",
            hint=f"write tokens, as 20 or 20.5 or '20.5 {SYMBOL}', or wei, as 5wei",
        )
    whole, fraction, unit = found[1], found[2] or "", (found[3] or SYMBOL).lower()
    if unit == "wei" and fraction:
        raise UsageError(f"{name} is {text!r}, less than the smallest unit", hint="give a whole number of wei")
    if len(fraction.rstrip("0")) > DECIMALS:
        raise UsageError(
            f"{name} is {text!r}, which has more than {DECIMALS} decimals", hint="the token has no smaller unit"
        )
    value = int(whole) if unit == "wei" else int(whole) * TOKEN + int(fraction.rstrip("0").ljust(DECIMALS, "0"))
    if not least <= value <= _LARGEST:
        bound = f"at least {tokens(least)}" if value < least else f"at most {tokens(_LARGEST, 6)}"
        raise UsageError(f"{name} is {text!r}, which is out of range", hint=bound)
    return Wei(value)


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
