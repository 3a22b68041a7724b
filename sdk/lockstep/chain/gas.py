"""Gas of each transaction as measured, and its cost at the chain's fees or at stated ones.

>>> Fees(base=2 * 10**9, tip=10**9).cost(WORKER_ROUND)
798303000000000

A rollup charges for data on its parent chain in addition.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from importlib import resources
from typing import TYPE_CHECKING

from lockstep.chain.fees import GWEI
from lockstep.chain.wire import TIP_WEI
from lockstep.protocol.errors import UsageError
from lockstep.protocol.types import Wei

if TYPE_CHECKING:
    from collections.abc import Iterable

    from web3 import Web3

VERBS: dict[str, int] = json.loads(resources.files(__package__).joinpath("gas.json").read_text())
"""Gas of each call that a quote includes, from tests/vectors/gas.json, written by `make gas-snapshot`."""
PERMIT_GAS = 55_000
"""Gas that a permit adds to `create`: signature check, one nonce and one allowance."""

WORKER_ROUND = ("join", "commit", "reveal")
"""Transactions of a slot's owner in a round whose receipts and open calls an aggregator sends."""
WORKER_ONCE = ("registerNode", "depositWithPermit")
WORKER_END = ("requestUnbond", "withdrawUnbonded", "withdraw")


@dataclass(frozen=True)
class Fees:
    """The price of a unit of gas, in wei of the chain's coin."""

    base: int
    tip: int = 0
    stated: bool = False
    """True if the user stated the price; False if it comes from a block."""

    @property
    def price(self) -> Wei:
        """The price of a unit of gas."""
        return Wei(self.base + self.tip)

    def cost(self, verbs: Iterable[str], more: int = 0) -> Wei:
        """Returns the cost of these transactions and of `more` units of gas."""
        return Wei((gas_of(verbs) + more) * self.price)

    def text(self) -> str:
        """Returns the price as text."""
        gwei = f"{self.price / GWEI:.4g} gwei"
        return f"{gwei} a unit of gas, " + ("as stated" if self.stated else "the base fee now and the tip")


def gas_of(verbs: Iterable[str]) -> int:
    """Returns the total gas of these transactions."""
    return sum(VERBS[verb] for verb in verbs)


def fees_now(w3: Web3) -> Fees:
    """Returns the fees of the latest block, with the tip that the outbox adds."""
    return Fees(int(w3.eth.get_block("latest").get("baseFeePerGas", 0)), TIP_WEI)


def fees_stated(gwei: str) -> Fees:
    """Parses the option --gas-price; raises UsageError."""
    try:
        value = Decimal(gwei.strip())
    except InvalidOperation:
        value = Decimal(-1)
    if not value.is_finite() or not 0 <= value <= 10**6:
        raise UsageError(f"--gas-price is {gwei!r}", hint="give gwei per unit of gas, such as 20 or 0.05")
    return Fees(int(value * GWEI), 0, stated=True)
