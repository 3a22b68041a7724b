"""The part of a quote that depends on the chain: gas at its fees, time at its block rate, price per work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import COIN, market_currency, tokens
from lockstep.base.durations import readable_seconds
from lockstep.chain.fees import PROFILES, cover, sums
from lockstep.chain.gas import PERMIT_GAS, VERBS, Fees
from lockstep.chain.known_chains import facts_of
from lockstep.execution import durations
from lockstep.presets import MAINNET, TOKEN
from lockstep.protocol.types import Wei
from lockstep.runtime.party import pace_of

if TYPE_CHECKING:
    from lockstep.chain.known_chains import ChainFacts
    from lockstep.client import Network, Quote
    from lockstep.execution.quoting import Figures
    from lockstep.protocol.jobs import Pricing

HOUR = 3600
REQUESTER_GAS = VERBS["create"] + PERMIT_GAS + VERBS["withdraw"]
"""Gas to open a job, and for the refund at its end."""


@dataclass(frozen=True)
class DataFee:
    """A rollup's data fee for a game, paid for the parent chain; the job's refunds do not count it as gas."""

    chain: str
    factor: float
    """A game's total fee divided by the fee of its gas, at the rollup's current base fee and an assumed one of the
    parent chain."""
    gas_price: Wei
    """The job's gas price: the token amount refunded per unit of gas, at its cap."""
    needed: Wei
    """The gas price that would cover the data fee too, if the coin costs what `presets.MAINNET` assumes."""

    @property
    def covered(self) -> bool:
        """True if a party that answers a game is refunded its total fee."""
        return self.gas_price >= self.needed

    def to_dict(self) -> dict[str, Any]:
        """As JSON: amounts are decimal strings."""
        return {
            "chain": self.chain, "factor": round(self.factor, 3), "gas_price": str(self.gas_price),
            "needed": str(self.needed), "covered": self.covered,
        }  # fmt: skip

    def line(self) -> str:
        """Returns the data fee as a line of text."""
        told = f"data fee     a game's total fee on {self.chain} is {self.factor:.3g} times that of its gas"
        if self.covered:
            return f"{told}; the job's gas price covers it"
        return (
            f"{told}. WARNING: refunds and bonds count only gas, and the job's gas price is {self.gas_price} wei of "
            f'the token: write gas_price = "{self.needed} wei" into its file, or whoever answers a game pays the rest'
        )


def data_fee_of(facts: ChainFacts | None, prices: Pricing, base_fee: int) -> DataFee | None:
    """Returns the data fee of a chain that has one; None for every other chain."""
    if facts is None or not facts.data_fee:
        return None
    profile = next(p for p in PROFILES.values() if p.stack == facts.stack)
    factor = cover(sums()["game_most"], replace(profile, base_fee=base_fee or profile.base_fee))
    # At one cap for both; rounded up to the next unit of the token.
    terms = MAINNET.gas_price * market_currency().unit / TOKEN
    needed = ceil(factor * terms * prices.fee_cap / MAINNET.fee_cap)
    return DataFee(facts.name, factor, prices.gas_price, Wei(needed))


@dataclass(frozen=True)
class QuotedTerms:
    """The terms of a job on its chain that a quote shows in addition to the job's own figures."""

    price: Wei
    """The price of 10^15 operations."""
    hourly: Wei
    """The job's cost per hour while it trains, on machines like this one."""
    operations: int
    """Operations of a slot per round."""
    tokens: int
    """Tokens of text that the whole job draws."""
    fees: Fees
    expected: float
    """Seconds from the opening to the last payment, on machines like this one."""
    longest: int
    """Seconds from the opening to the last payment if every window is used up."""
    data_fee: DataFee | None = None
    """None if the chain charges none."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON: amounts and operations are decimal strings."""
        return {
            "price": str(self.price),
            "work": {"tokens": self.tokens, "slot_operations": str(self.operations)},
            "gas": {
                "units": REQUESTER_GAS, "price": str(self.fees.price), "cost": str(self.fees.price * REQUESTER_GAS),
                "stated": self.fees.stated,
            },
            "data_fee": None if self.data_fee is None else self.data_fee.to_dict(),
            "time": {"expected": round(self.expected, 1), "longest": self.longest},
        }  # fmt: skip

    def lines(self) -> list[str]:
        """Returns the terms as lines of text."""
        cost = tokens(self.fees.price * REQUESTER_GAS, 4, COIN)
        times = [readable_seconds(seconds) for seconds in (self.expected, self.longest)]
        return [
            f"gas          {cost} for {REQUESTER_GAS:,} units at {self.fees.text()}",
            *([] if self.data_fee is None else [self.data_fee.line()]),
            f"price        {tokens(self.hourly, 4)} an hour while it trains, on machines like this one",
            f"             {tokens(self.price, 4)} for 10^15 operations; a slot's round has {self.operations:.3g}",
            f"work         {self.tokens:,} tokens of text in total",
            f"time         {times[0]} on machines like this one, {times[1]} if every window is used up",
        ]


def terms_of(net: Network, quote: Quote, figures: Figures, fees: Fees) -> QuotedTerms:
    """Returns the terms of a job on the market's chain."""
    params, pace = quote.params, pace_of(net.w3, net.contracts.market)
    drawn = params.schedule.rounds * params.role.slots * params.role.inner_steps * figures.step.tokens
    return QuotedTerms(
        price=quote.price,
        hourly=Wei(int(params.round_pay * HOUR / durations.prompt_round(params, figures.round_seconds, pace.block))),
        operations=quote.operations,
        tokens=drawn,
        fees=fees,
        expected=durations.prompt_job(params, figures.round_seconds, pace.block),
        longest=durations.longest_job(params),
        data_fee=data_fee_of(facts_of(net.contracts.addresses.chain_id), params.prices, fees.base),
    )
