"""Presets: what a job costs and how long its phases last, on a devnet and in earnest.

The differences are marked; everything else is the job's own (models, data, schedule).
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import NEVER, NOTHING
from lockstep.protocol.types import Seconds, Wei

TOKEN = 10**18
"""One token in its smallest unit."""


@dataclass(frozen=True)
class Terms:
    """Windows, clocks and prices of a job; field names are JobParams'."""

    join_seconds: Seconds
    train_seconds: Seconds
    reveal_seconds: Seconds
    attest_seconds: Seconds
    merge_seconds: Seconds
    challenge_seconds: Seconds
    clock_seconds: Seconds
    step_seconds: Seconds
    max_lead: int
    max_fail: int
    slot_price: Wei
    merge_price: Wei
    slot_stake: Wei
    merge_stake: Wei
    bond: Wei
    answer_seconds: Seconds
    gas_price: Wei
    fee_cap: int
    witnesses: int = 0
    audit_seconds: Seconds = NEVER
    witness_fee: Wei = NOTHING
    witness_stake: Wei = NOTHING

    def __post_init__(self) -> None:
        # INVARIANT: a lie costs at least ten times what it earns (document 9, Money).
        if self.slot_stake < 10 * self.slot_price or self.merge_stake < 10 * self.merge_price:
            raise UsageError("a stake is less than ten times its price", hint="raise slot_stake or merge_stake")


DEVNET = Terms(
    join_seconds=Seconds(60),
    train_seconds=Seconds(300),
    reveal_seconds=Seconds(60),
    attest_seconds=Seconds(60),
    merge_seconds=Seconds(60),
    challenge_seconds=Seconds(600),  # mainnet: 3 days
    clock_seconds=Seconds(120),  # mainnet: 1 day
    step_seconds=Seconds(30),  # mainnet: 10 minutes
    max_lead=8,
    max_fail=2,
    slot_price=Wei(1 * TOKEN),
    merge_price=Wei(TOKEN // 2),
    slot_stake=Wei(20 * TOKEN),
    merge_stake=Wei(20 * TOKEN),
    bond=Wei(5 * TOKEN),
    answer_seconds=Seconds(60),
    gas_price=Wei(0),  # mainnet: a token buys 2 M gas at the cap
    fee_cap=100 * 10**9,
)
"""Short enough to watch."""

MAINNET = Terms(
    join_seconds=Seconds(600),
    train_seconds=Seconds(4 * 3600),
    reveal_seconds=Seconds(900),
    attest_seconds=Seconds(900),
    merge_seconds=Seconds(900),
    challenge_seconds=Seconds(3 * 86_400),
    clock_seconds=Seconds(86_400),
    step_seconds=Seconds(600),
    max_lead=8,
    max_fail=2,
    slot_price=Wei(1 * TOKEN),
    merge_price=Wei(TOKEN // 2),
    slot_stake=Wei(20 * TOKEN),
    merge_stake=Wei(20 * TOKEN),
    bond=Wei(5 * TOKEN),
    answer_seconds=Seconds(3600),
    gas_price=Wei(TOKEN // 2_000_000),
    fee_cap=100 * 10**9,
)
"""Long enough for a challenger who sleeps at night. Nothing here is audited."""

PRESETS = {"devnet": DEVNET, "mainnet": MAINNET}
