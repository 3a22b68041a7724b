"""Presets: what a job costs and how long its phases last, on a devnet and in earnest.

The differences are marked; everything else is the job's own (models, data, schedule).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, get_type_hints

from lockstep.economics import offer
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import NEVER, NOTHING
from lockstep.protocol.market.job_rules import MERGE_SLOTS, ChainTimes
from lockstep.protocol.market.prices import bond_floor, ceil_div, stake_floor, witness_floor
from lockstep.protocol.types import Seconds, Wei

DECIMALS = 18
TOKEN = 10**DECIMALS
"""One token in its smallest unit, where the market's token has that many decimals."""


@dataclass(frozen=True)
class Terms:
    """Windows, clocks and prices of a job, in one flat value: a preset is replaced field by field, and the checks below
    compare fields that JobParams keeps in different groups."""

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
        # INVARIANT: a lie costs at least ten times what it earns, and more than the gas of its games.
        if self.slot_stake < stake_floor(self.slot_price, self.gas_price):
            raise UsageError(
                "slot_stake is below ten slot prices, or below the gas of four disputes", hint="raise slot_stake"
            )
        if self.merge_stake < stake_floor(self.merge_price, self.gas_price):
            raise UsageError(
                "merge_stake is below ten merge prices, or below the gas of four disputes", hint="raise merge_stake"
            )
        # INVARIANT: a witness's stake is at least twenty fees, and two for each round in flight.
        if self.witnesses and self.witness_stake < witness_floor(self.witness_fee, self.max_lead):
            raise UsageError(
                "witness_stake is below twenty witness fees, or below two for each round of max_lead",
                hint="raise witness_stake",
            )
        # INVARIANT: who convicts itself to take a witness along loses more than twice what the witness does.
        if self.witnesses and 2 * self.witness_stake >= self.slot_stake:
            raise UsageError("witness_stake is not below half of slot_stake", hint="raise slot_stake")
        # INVARIANT: who was drawn has spoken before the claim can no longer be challenged.
        if (
            self.witnesses
            and self.challenge_seconds < self.reveal_seconds + self.attest_seconds + 3 * self.audit_seconds
        ):
            raise UsageError(
                "challenge_seconds is less than reveal_seconds + attest_seconds + 3 x audit_seconds",
                hint="raise challenge_seconds",
            )

    @property
    def carry_period(self) -> int:
        """The rounds after which a carry is zero again, where a strategy has one.

        No round is final before the windows of its period are over, and max_lead rounds may be in flight: half of
        them, so that the next period runs meanwhile.
        """
        return max(2, self.max_lead // 2)

    def audited(self, slots: int, inner_steps: int, carries: bool = False, min_slots: int | None = None) -> Terms:
        """With the witnesses, fee and stakes that a job of that size needs; as they are, if they draw none."""
        if self.witnesses == 0:
            return self
        period = self.carry_period if carries else 0
        offered = offer(
            slots, inner_steps + 1, self.slot_price, self.gas_price, self.max_lead, period=period, min_slots=min_slots
        )
        return replace(self, **asdict(offered))

    def in_decimals(self, decimals: int) -> Terms:
        """With the same prices, stakes, fees and bonds in a token of other decimals than 18; each is rounded up.

        A coarse token makes gas dearer, since its price has no fraction: stakes rise with it where they have to.
        """
        if decimals == DECIMALS:
            return self
        kinds = get_type_hints(Terms)
        held = {name: value for name, value in vars(self).items() if kinds[name] is Wei}
        found: dict[str, Any] = {name: Wei(ceil_div(value * 10**decimals, TOKEN)) for name, value in held.items()}
        # INVARIANT: whatever is bid, a job meets the market's floors (JobRules).
        if self.witnesses:
            floor = witness_floor(found["witness_fee"], self.max_lead)
            found["witness_stake"] = Wei(max(found["witness_stake"], floor))
        for work, lost in (("slot", 2 * found["witness_stake"] + 1 if self.witnesses else 0), ("merge", 0)):
            floor = stake_floor(found[f"{work}_price"], found["gas_price"])
            found[f"{work}_stake"] = Wei(max(found[f"{work}_stake"], floor, lost))
        return replace(self, **found)

    def at_gas_price(self, gas_price: Wei) -> Terms:
        """With another price of a unit of gas at the cap of fees, and the stakes that it needs."""
        return replace(
            self, gas_price=gas_price,
            slot_stake=Wei(max(self.slot_stake, stake_floor(self.slot_price, gas_price))),
            merge_stake=Wei(max(self.merge_stake, stake_floor(self.merge_price, gas_price))),
        )  # fmt: skip

    def priced(self, slot_price: Wei, slots: int, inner_steps: int, min_slots: int | None = None) -> Terms:
        """With another price of a slot, the merge's in proportion, and the stakes, fees and bonds that these need."""
        # INVARIANT: whatever is bid, a job meets the market's floors (JobRules).
        merge_price = Wei(ceil_div(self.merge_price * slot_price, self.slot_price))
        slot_stake = Wei(max(self.slot_stake, stake_floor(slot_price, self.gas_price)))
        merge_floor = stake_floor(merge_price, self.gas_price)
        bid = replace(
            self, slot_price=slot_price, merge_price=merge_price, slot_stake=slot_stake,
            merge_stake=Wei(max(self.merge_stake, merge_floor)),
            bond=Wei(max(self.bond, bond_floor(slot_price, inner_steps))),
        ).audited(slots, inner_steps, min_slots=min_slots)  # fmt: skip
        most = MERGE_SLOTS * bid.slot_stake
        return replace(bid, merge_stake=Wei(max(merge_floor, min(bid.merge_stake, most))))


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
    # mainnet: five witnesses a round
)
"""Short enough to watch."""

_GAS_PRICE = Wei(TOKEN // 2_000_000)
_LEAD = 8
_OFFER = offer(64, 501, Wei(TOKEN), _GAS_PRICE, _LEAD)
"""For 64 slots of 500 steps."""

MAINNET = Terms(
    join_seconds=Seconds(600),
    train_seconds=Seconds(4 * 3600),
    reveal_seconds=Seconds(900),
    attest_seconds=Seconds(900),
    merge_seconds=Seconds(900),
    challenge_seconds=Seconds(3 * 86_400),
    clock_seconds=Seconds(86_400),
    step_seconds=Seconds(600),
    max_lead=_LEAD,
    max_fail=2,
    slot_price=Wei(1 * TOKEN),
    merge_price=Wei(TOKEN // 2),
    slot_stake=_OFFER.slot_stake,
    merge_stake=Wei(20 * TOKEN),
    bond=Wei(TOKEN),
    answer_seconds=Seconds(3600),
    gas_price=_GAS_PRICE,
    fee_cap=100 * 10**9,
    witnesses=_OFFER.witnesses,
    audit_seconds=Seconds(4 * 3600),  # a replay takes no longer than training did
    witness_fee=_OFFER.witness_fee,
    witness_stake=_OFFER.witness_stake,
)
"""Long enough for a challenger who sleeps at night. Nothing here is audited."""

LOCAL = replace(
    DEVNET,
    join_seconds=Seconds(15),
    train_seconds=Seconds(120),
    reveal_seconds=Seconds(20),
    attest_seconds=Seconds(20),
    merge_seconds=Seconds(20),
    challenge_seconds=Seconds(60),
    clock_seconds=Seconds(90),
    step_seconds=Seconds(15),
    answer_seconds=Seconds(30),
)
"""For a market on one machine (`lockstep local up`): a job is settled a minute after its last round."""

PRESETS = {"local": LOCAL, "devnet": DEVNET, "mainnet": MAINNET}

CHAINS = {
    "devnet": ChainTimes(),
    "ethereum": ChainTimes(Seconds(36)),  # three blocks of 12 s
    "op-stack": ChainTimes(Seconds(6), Seconds(12 * 3600)),  # the sequencer's window before a deposit is forced in
    "arbitrum": ChainTimes(Seconds(3), Seconds(24 * 3600)),  # delayed inbox: forced in after a day
}
"""The promises of a deployment about its chain (JobMarket's inclusionSeconds and censorSeconds)."""
