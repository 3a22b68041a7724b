"""The part of a quote that depends on the chain: gas at its fees, time at its pace, a price by computed work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.base.amounts import tokens
from lockstep.base.durations import readable_seconds
from lockstep.chain.gas import PERMIT_GAS, VERBS, Fees
from lockstep.execution import schedule
from lockstep.node.party import pace_of

if TYPE_CHECKING:
    from lockstep.client import Network, Quote
    from lockstep.execution.quoting import Figures
    from lockstep.protocol.types import Wei

REQUESTER_GAS = VERBS["create"] + PERMIT_GAS + VERBS["withdraw"]
"""A job's opening, and the refund at its end."""


@dataclass(frozen=True)
class QuotedTerms:
    """The terms that a requester is told beside the figures of the job itself."""

    price: Wei
    """The price of 10^15 operations."""
    operations: int
    """The operations of a slot in a round."""
    tokens: int
    """Tokens of its texts that the whole job draws."""
    fees: Fees
    expected: float
    """Seconds from the opening to the last payment, on machines like this one."""
    longest: int
    """With every window used up."""

    def to_dict(self) -> dict[str, Any]:
        """As JSON: amounts and operations are decimal strings."""
        return {
            "price": str(self.price),
            "work": {"tokens": self.tokens, "slot_operations": str(self.operations)},
            "gas": {
                "units": REQUESTER_GAS, "price": str(self.fees.price), "cost": str(self.fees.price * REQUESTER_GAS),
                "stated": self.fees.stated,
            },
            "time": {"expected": round(self.expected, 1), "longest": self.longest},
        }  # fmt: skip

    def lines(self) -> list[str]:
        """As people read it."""
        cost = tokens(self.fees.price * REQUESTER_GAS, 4, "ETH")
        times = [readable_seconds(seconds) for seconds in (self.expected, self.longest)]
        return [
            f"gas          {cost} for {REQUESTER_GAS:,} units at {self.fees.told()}",
            f"price        {tokens(self.price, 4)} for 10^15 operations; a slot computes {self.operations:.3g}",
            f"work         {self.tokens:,} tokens of text in all",
            f"time         {times[0]} on machines like this one, {times[1]} if every window is used up",
        ]


def terms_of(net: Network, quote: Quote, figures: Figures, fees: Fees) -> QuotedTerms:
    """Returns the terms of a job on the market's chain."""
    params, pace = quote.params, pace_of(net.w3, net.contracts.market)
    drawn = params.schedule.rounds * params.role.slots * params.role.inner_steps * figures.step.tokens
    return QuotedTerms(
        price=quote.price,
        operations=quote.operations,
        tokens=drawn,
        fees=fees,
        expected=schedule.prompt_job(params, figures.round_seconds, pace.block),
        longest=schedule.longest_job(params),
    )
