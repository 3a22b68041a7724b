"""The cost of honesty and the risk of lying: detection, its break-even, and a job's offer to its witnesses.

This is a model: nothing here decides anything on chain. The deciding rules are in `lockstep.protocol.market`: floors
and gas in `prices`, payments in `settling`, verdicts in `vault`; the splits here repeat them for the simulations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, comb, inf

from lockstep.protocol.market.job_rules import SLOT_WITNESSES
from lockstep.protocol.market.prices import (
    BOND_PERCENT_DEFENDER,
    SLASH_PERCENT_REFUNDS,
    SLASH_PERCENT_REQUESTER,
    SLASH_PERCENT_WINNERS,
    ceil_div,
    stake_floor,
    witness_floor,
)
from lockstep.protocol.types import Wei

BURNED = 1 - (SLASH_PERCENT_WINNERS + SLASH_PERCENT_REQUESTER) / 100
"""The share of its stake that a convicted cheat loses even where it is its own challenger and its own requester."""
VOLUNTEERS = 0.005
"""Assumed: the share of claims that somebody replays in full, unpaid."""
UNAVAILABLE = 0.01
"""Assumed: the share of claims with data that is not available in time."""
CARTEL = 1 / 3
"""Assumed: the share of the drawn witnesses that a cheat owns; receipts, too, are safe below a third."""
MERGE_STEPS = 1.0
"""Assumed: the work of a merge of 64 payloads in steps; measured 0.7 for 0.8 M parameters and 512 tokens a step."""
FEE_MARGIN = 1.1
"""A duty pays this many times the expected replay."""
STAKE_MARGIN = 1.2
"""A job's stake should be this multiple of the lowest one at which no saving of work pays."""
DUTY_GAS = 370_000
"""Gas of a witness: commit 83k, reveal 155k with a leaf of half a gigabyte, settle 120k, and a margin."""
MAX_COST_SHARE = 0.06
"""Upper bound of the cost of verification, as a share of the cost of training."""
WINNER_WEIGHTS = (2, 1, 1)
"""The convicting game's challenger, then the two earliest other live games'."""


# -- verdicts, as the vault splits them (lockstep.protocol.market.vault)


@dataclass(frozen=True)
class Slash:
    """The parts of a convicted claim's stake, by receiver; they sum to the stake."""

    burned: Wei
    winners: tuple[Wei, ...]
    refunds: tuple[Wei, ...]
    requester: Wei

    @property
    def total(self) -> Wei:
        return Wei(self.burned + sum(self.winners) + sum(self.refunds) + self.requester)


def split_slash(stake: Wei, winners: int, refunds: Sequence[Wei] = ()) -> Slash:
    """30 % to one to three winners by 2 : 1 : 1, 20 % to the requester less <= 10 % that refund gas, the rest burned.

    `refunds`: metered gas of live games in tokens, paid in order until the 10 % are spent. Every part is rounded down,
    and remainders are burned: always at least half of the stake.
    """
    weights = WINNER_WEIGHTS[:winners]
    prize = stake * SLASH_PERCENT_WINNERS // 100
    paid = tuple(Wei(prize * weight // sum(weights)) for weight in weights)
    left = stake * SLASH_PERCENT_REFUNDS // 100
    refunded = []
    for refund in refunds:
        refunded.append(Wei(min(refund, left)))
        left -= refunded[-1]
    requester = stake * SLASH_PERCENT_REQUESTER // 100 - sum(refunded)
    burned = stake - sum(paid) - sum(refunded) - requester
    return Slash(Wei(burned), paid, tuple(refunded), Wei(requester))


def split_bond(bond: Wei) -> tuple[Wei, Wei]:
    """Returns (to the defender, burned) for a lost challenge: 60 % rounded down, and the rest."""
    to_defender = bond * BOND_PERCENT_DEFENDER // 100
    return Wei(to_defender), Wei(bond - to_defender)


# -- deterrence


def break_even_detection(multiple: float, burned: float = BURNED) -> float:
    """Returns the probability of detection d at which cheating on everything earns as much as honesty.

    It solves (1 - d) p = d x burned x S for a stake S of `multiple` prices p. This is the worst case on each side: the
    work costs its whole price, so honesty earns nothing, and the cheat, as its own challenger and requester, gets back
    all of the slash that is not burned. For 10 prices: 1/6.
    """
    return 1 / (1 + burned * multiple)


def break_even_multiple(detection: float, burned: float = BURNED) -> float:
    """The inverse: the stake, in prices, above which cheating on everything loses. At 3 %: 64.7; at 0: infinity."""
    return (1 - detection) / (burned * detection) if detection else inf


def expected_profit(
    price: float, cost: float, stake: float, saved: float = 0.0, detection: float = 0.0, lost: float = 1.0
) -> float:
    """The gain from one claim that saves a share `saved` of the cost; a conviction takes the pay and a share `lost` of
    the stake."""
    return (1 - detection) * price - (1 - saved) * cost - detection * lost * stake


def volunteer_break_even(multiple: float) -> float:
    """The share of lying claims above which replays pay for themselves: 30 % of a stake for the work of one claim."""
    return 100 / (SLASH_PERCENT_WINNERS * multiple)


# -- witnesses: what is seen, what looking costs


@dataclass(frozen=True)
class AuditPlan:
    """The auditing of a round's claims: drawn witnesses replay prefixes, volunteers whole claims."""

    slots: int
    """Revealed claims of a round."""
    witnesses: int
    """Duties of a round, dealt to the claims in a drawn order."""
    transitions: int
    """T. A duty replays S_0 to S_t*: t* is uniform in 1..T, and private until all have committed."""
    volunteers: float = VOLUNTEERS
    unavailable: float = UNAVAILABLE
    """The share of claims whose trace is missing: each is replayed in full, by somebody and by its drawn witness."""
    cartel: float = CARTEL
    """The share of witnesses that agree to anything that the cheat claims."""
    merge_steps: float = MERGE_STEPS
    """Work of a merge, in steps; everybody who trains recomputes it."""
    period: int = 0
    """carryPeriod: rounds until a carry is zero again; 0: nothing is carried."""
    withheld: float = UNAVAILABLE
    """The share of carries that nobody stores."""
    shown: float = 1.0
    """The share of these whose owner shows them to whoever demands them: eight leaves and no more. Of the others nobody
    owes a word."""

    def detection(self, first_wrong: int = 1) -> float:
        """The probability that somebody honest replays a claim's first wrong transition.

        A volunteer always does; an honest duty if t* >= first_wrong. `witnesses` mod `slots` claims have one duty more.
        """
        reached = (self.transitions - first_wrong + 1) / self.transitions
        blind = 1 - (1 - self.cartel) * reached
        each, more = divmod(self.witnesses, self.slots)
        unseen = (more * blind ** (each + 1) + (self.slots - more) * blind**each) / self.slots
        return 1 - (1 - self.volunteers) * unseen

    def stake_multiple(self) -> float:
        """The stake, in prices, above which no cheat that saves work pays.

        Skipping everything pays most: skipping from t on saves a share f of the work, and as detection(f) is concave
        and detection(0) >= 0, the ratio of gain to risk, f / detection(f), is greatest at f = 1.
        """
        return break_even_multiple(self.detection())

    def source_claims(self) -> float:
        """Expected number of earlier claims to recompute before a claim can be replayed, averaged over a carry period.

        Claim k of a period (k = 0 .. period - 1) depends on k earlier ones. The i-th nearest is recomputed if its carry
        and all nearer ones are withheld, with probability w^i, and period - i claims have an i-th: the mean is the sum
        over i of (period - i) w^i, divided by the period.
        """
        return sum((self.period - i) * self.withheld**i for i in range(1, self.period)) / max(self.period, 1)

    def replay_share(self) -> float:
        """Expected work of one duty, in claims: (T + 1) / 2 of T transitions, or all of them if data is missing, plus
        the earlier claims to recompute for its carry; nothing if its carry is shown to nobody."""
        prefix = (self.transitions + 1) / (2 * self.transitions)
        carried = 1 - 1 / self.period if self.period else 0.0
        seen = 1 - (1 - self.shown) * self.withheld * carried
        looked = (1 - self.unavailable) * prefix + self.unavailable
        return seen * looked + self.shown * self.source_claims()

    def cost_share(self) -> float:
        """Expected work of verification relative to training: duties, full replays, volunteers, repeated merges."""
        drawn = self.witnesses / self.slots * self.replay_share()
        full = (self.unavailable + self.volunteers) * (1 + self.source_claims())
        return drawn + full + self.merge_steps / self.transitions

    def most_withheld(self) -> float:
        """The share of carries that may be withheld until verification costs more than MAX_COST_SHARE, to 10^-6."""
        low, high = 0.0, 1.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            within = replace(self, withheld=middle).cost_share() <= MAX_COST_SHARE
            low, high = (middle, high) if within else (low, middle)
        return low

    def fee(self, price: Wei, gas: Wei) -> Wei:
        """Returns a duty's pay: its expected replay with a margin, in thousandths of the price rounded up, and
        its gas."""
        return Wei(ceil_div(ceil(1000 * FEE_MARGIN * self.replay_share()) * price, 1000) + gas)


# -- a draw that is chosen


def seen_lies(audit: AuditPlan, lies: int) -> list[float]:
    """P(X = x) for x = 0 .. `lies`: the number of one party's lies in a round that an honest witness replays in full.

    Duties fall on different claims, J of them on lies: hypergeometric; each has an honest witness with 1 - c: binomial.
    Raises ValueError for more duties than claims, or more lies.
    """
    n, q, honest = audit.slots, audit.witnesses, 1 - audit.cartel
    if not (q <= n and 0 <= lies <= n):
        raise ValueError(f"{q} duties, {lies} lies and {n} claims")
    found = [0.0] * (lies + 1)
    for j in range(min(lies, q) + 1):
        drawn = comb(lies, j) * comb(n - lies, q - j) / comb(n, q)
        for x in range(j + 1):
            found[x] += drawn * comb(j, x) * honest**x * (1 - honest) ** (j - x)
    return found


def chosen_detection(audit: AuditPlan, lies: int, draws: int) -> float:
    """Detection of a lie whose party picks, of `draws` beacons, the one that shows the fewest of its `lies` lies.

    E[min of k] = sum over x >= 1 of P(X >= x)^k, per lie; volunteers see a lie as before. One draw: `detection()`.
    """
    chances = seen_lies(audit, lies)
    fewest = sum(sum(chances[x:]) ** draws for x in range(1, lies + 1))
    return 1 - (1 - audit.volunteers) * (1 - fewest / lies)


def chosen_stake(audit: AuditPlan, lies: int, draws: int) -> float:
    """The stake, in prices, above which no saving of work pays a party that picks among that many beacons."""
    return break_even_multiple(chosen_detection(audit, lies, draws))


def volunteers_for(audit: AuditPlan, multiple: float, lies: int, draws: int) -> float:
    """Returns the share of claims that volunteers must replay for a stake of `multiple` prices to deter a lie."""
    drawn = chosen_detection(replace(audit, volunteers=0.0), lies, draws)
    return max(0.0, 1 - (1 - break_even_detection(multiple)) / (1 - drawn))


def chosen_turn(share: float, draws: int) -> float:
    """The probability of the first merge turn for the owner of this share of a round's slots, by picking its seed."""
    return 1 - (1 - share) ** draws


def most_witnesses(slots: int, transitions: int, period: int = 0) -> int:
    """The most duties per round whose expected cost stays within MAX_COST_SHARE, at the assumed shares of withheld data
    and carries; at least one."""
    plans = (AuditPlan(slots, q, transitions, period=period) for q in range(slots, 0, -1))
    return next((plan.witnesses for plan in plans if plan.cost_share() <= MAX_COST_SHARE), 1)


@dataclass(frozen=True)
class Offer:
    """A job's settings under which no saving of work pays; the names are those of JobParams."""

    witnesses: int
    witness_fee: Wei
    witness_stake: Wei
    slot_stake: Wei


def offer(
    slots: int, transitions: int, slot_price: Wei, gas_price: Wei, max_lead: int, *, period: int = 0,
    min_slots: int | None = None,
) -> Offer:  # fmt: skip
    """Returns the offer for a job of that many slots, and transitions per claim.

    `gas_price`: tokens per unit of gas at the cap. `period`: the job's carryPeriod. `min_slots`: None for `slots`.
    A slot's stake is in whole prices, and more than twice those of the witnesses that one claim may have (JobRules),
    which is the larger bound if there are few slots.
    """
    audit = AuditPlan(slots, most_witnesses(slots, transitions, period), transitions, period=period)
    fee = audit.fee(slot_price, Wei(DUTY_GAS * gas_price))
    witness_stake = witness_floor(fee, max_lead)
    together = ceil_div(audit.witnesses, max(1, slots if min_slots is None else min_slots)) * witness_stake
    multiple = max(ceil(STAKE_MARGIN * audit.stake_multiple()), SLOT_WITNESSES * together // slot_price + 1)
    return Offer(
        audit.witnesses, fee, witness_stake, Wei(max(stake_floor(slot_price, gas_price), multiple * slot_price))
    )
