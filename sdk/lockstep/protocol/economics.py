"""What honesty costs and what a lie must risk: stakes, bonds, the slash's split, detection and its break-even.

The floors and the price of gas exist twice: twin of contracts/libraries/Prices.sol, same names, same order, one file of
vectors (tests/vectors/prices.jsonl). Amounts are integers in the token's smallest unit; probabilities and shares are
floats and decide nothing on chain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from lockstep.protocol.types import Wei

GAME_GAS = 2_600_000
"""Gas of a whole game, both sides, of the dearest step that is admitted: 2^14 ops, 2^31 elements, 2^24 terms."""
DEFENDER_GAS = 1_100_000
"""Gas of the defender's moves in such a game."""
STAKE_PRICES = 10
"""A stake is at least this many times the price of what it backs ..."""
STAKE_GAMES = 4
"""... and this many times the gas of a game at the cap."""
LEAF_GAS = 80_000
"""Gas of posting one leaf of a row, in the deepest dataset."""
BOND_GAMES = 3
"""A bond holds this many times the gas of the defender, a row's also of its leaves."""
WITNESS_FEES = 20
"""A witness's stake is at least this many fees."""

FEES = 9
"""Base fees of the last seals that are remembered."""
_FEE_BITS = 28
_RING_MASK = (1 << (FEES * _FEE_BITS)) - 1
FEE_UNIT = 8192
"""Wei per gas that a remembered fee is rounded up to."""
MAX_FEE_CAP = ((1 << (_FEE_BITS - 1)) - 2) * FEE_UNIT
"""The highest fee that can be remembered, about 1,099 gwei: no job's cap lies above it."""

BOND_PERCENT_DEFENDER = 60
"""Of a lost bond; the rest is burned."""
PROVER_PERCENT = 30
"""Of a void job's deposit, to who had it voided (JobMarket.finish); the rest is burned."""
SLASH_PERCENT_WINNERS = 30
SLASH_PERCENT_REQUESTER = 20
"""Of a slash, gas refunds included; the rest, at least half, is burned."""
SLASH_PERCENT_REFUNDS = 10
WINNER_WEIGHTS = (2, 1, 1)
"""The convicting game's challenger, then the two earliest other live games'."""

BURNED = 1 - (SLASH_PERCENT_WINNERS + SLASH_PERCENT_REQUESTER) / 100
"""The share of its stake that a convicted cheat loses even where it is its own challenger and its own requester."""
VOLUNTEERS = 0.005
"""Assumed: the share of claims that somebody replays in full, unpaid."""
UNAVAILABLE = 0.01
"""Assumed: the share of claims with data that cannot be had in time."""
CARTEL = 1 / 3
"""Assumed: the share of the drawn witnesses that a cheat owns; receipts, too, hold below a third."""
MERGE_STEPS = 1.0
"""Assumed: the work of a merge of 64 payloads in steps; measured 0.7 for 0.8 M parameters and 512 tokens a step."""
FEE_MARGIN = 1.1
"""A duty pays this many times the expected replay."""
STAKE_MARGIN = 1.2
"""A job's stake is to be this many times the one from which no saving of work pays."""
DUTY_GAS = 320_000
"""Of a witness: commit 80k, reveal 105k, settle 120k, and a margin."""
MAX_COST_SHARE = 0.06
"""What verification may cost, of training."""


# -- floors and gas (twin of Prices.sol)


def stake_floor(price: Wei, gas_price: Wei) -> Wei:
    """The least stake behind work that is paid `price`."""
    return Wei(max(STAKE_PRICES * price, STAKE_GAMES * GAME_GAS * gas_price))


def bond_floor(slot_price: Wei, inner_steps: int) -> Wei:
    """The least of a bond that does not depend on gas: the price of one inner step, rounded up."""
    return Wei(_ceil_div(slot_price, inner_steps))


def witness_floor(witness_fee: Wei) -> Wei:
    """The least stake of a witness."""
    return Wei(WITNESS_FEES * witness_fee)


def gas_cost(gas: int, gas_price: Wei, fee_cap: int, base_fee: int) -> Wei:
    """Token units for `gas` at a base fee (wei per gas), rounded up; above the cap, as at the cap. fee_cap > 0."""
    return Wei(_ceil_div(gas * gas_price * min(base_fee, fee_cap), fee_cap))


def bond_of(bond: Wei, gas_price: Wei, fee_cap: int, base_fee: int) -> Wei:
    """What a challenger locks: the job's own bond and three times the defender's gas at a base fee."""
    return Wei(bond + gas_cost(BOND_GAMES * DEFENDER_GAS, gas_price, fee_cap, base_fee))


def row_bond_of(game_bond: Wei, bond: Wei, leaves: int) -> Wei:
    """What an asker of a row locks, given a game's bond now and the part of it that is the job's own.

    The rest is the gas of BOND_GAMES defences; that of as many postings of each leaf is in proportion, rounded up.
    """
    return Wei(game_bond + _ceil_div((game_bond - bond) * leaves * LEAF_GAS, DEFENDER_GAS))


def dearest_row_bond(bond: Wei, gas_price: Wei, leaves: int) -> Wei:
    """The same at the cap, where it is highest."""
    return Wei(bond + BOND_GAMES * (DEFENDER_GAS + leaves * LEAF_GAS) * gas_price)


def push(ring: int, base_fee: int) -> int:
    """The ring with one more base fee; the oldest of ten is forgotten.

    A word of nine places, the newest lowest, each in units rounded up, plus one: zero is a place that nothing filled.
    """
    units = _ceil_div(min(base_fee, MAX_FEE_CAP), FEE_UNIT)
    return ((ring << _FEE_BITS) | (units + 1)) & _RING_MASK


def median(ring: int, none: int) -> int:
    """The median of the base fees remembered, the upper one of an even number; `none` if there are none."""
    seen = []
    while ring:
        seen.append(ring & ((1 << _FEE_BITS) - 1))
        ring >>= _FEE_BITS
    return (sorted(seen)[len(seen) // 2] - 1) * FEE_UNIT if seen else none


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


# -- verdicts


@dataclass(frozen=True)
class Slash:
    """Where a convicted claim's stake goes; the parts sum to the stake."""

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
    what division leaves is burned: at least half is, always.
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
    """(to the defender, burned) of a lost challenge: 60 % rounded down, the rest."""
    to_defender = bond * BOND_PERCENT_DEFENDER // 100
    return Wei(to_defender), Wei(bond - to_defender)


# -- deterrence


def break_even_detection(multiple: float, burned: float = BURNED) -> float:
    """The detection d at which cheating on everything earns what honesty does: (1 - d) p = d x burned x S, S in prices.

    The worst case on each side: the work costs all of its price p, and the cheat gets back whatever of the slash is not
    burned, as its own challenger and requester. 10 prices: 1/6.
    """
    return 1 / (1 + burned * multiple)


def break_even_multiple(detection: float, burned: float = BURNED) -> float:
    """Its inverse: the stake, in prices, from which cheating on everything loses. At 3 %: 64.7; at 0: infinity."""
    return (1 - detection) / (burned * detection) if detection else inf


def expected_profit(
    price: float, cost: float, stake: float, saved: float = 0.0, detection: float = 0.0, lost: float = 1.0
) -> float:
    """Of one claim: a share `saved` of its cost is not spent; a conviction takes the pay and `lost` of the stake."""
    return (1 - detection) * price - (1 - saved) * cost - detection * lost * stake


def volunteer_break_even(multiple: float) -> float:
    """The share of lying claims from which replays pay for themselves: 30 % of a stake for the work of one claim."""
    return 100 / (SLASH_PERCENT_WINNERS * multiple)


# -- witnesses: what is seen, what looking costs


@dataclass(frozen=True)
class Audit:
    """How a round's claims are looked at: drawn witnesses replay prefixes, volunteers whole claims."""

    slots: int
    """Revealed claims of a round."""
    witnesses: int
    """Duties of a round, dealt to the claims in a drawn order."""
    transitions: int
    """T. A duty replays S_0 to S_t*: t* is uniform in 1..T, and private until all have committed."""
    volunteers: float = VOLUNTEERS
    unavailable: float = UNAVAILABLE
    """Of the claims: somebody replays each in full, and so does a witness drawn for it."""
    cartel: float = CARTEL
    """Of the witnesses: they agree to whatever the cheat claims."""
    merge_steps: float = MERGE_STEPS
    """Everybody who trains computes the merge again."""

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
        """The stake, in prices, from which no cheat that saves work pays.

        Skipping everything is the worst: skipping from t on saves a share f of the work, and as detection(f) is concave
        and detection(0) >= 0, the gain over the risk, f / detection(f), is greatest at f = 1.
        """
        return break_even_multiple(self.detection())

    def replay_share(self) -> float:
        """Expected work of one duty, in claims: (T + 1) / 2 of T transitions, or all of them where data is missing."""
        prefix = (self.transitions + 1) / (2 * self.transitions)
        return (1 - self.unavailable) * prefix + self.unavailable

    def cost_share(self) -> float:
        """Expected work of verification over the training's: duties, full replays, volunteers, merges done again."""
        drawn = self.witnesses / self.slots * self.replay_share()
        return drawn + self.unavailable + self.volunteers + self.merge_steps / self.transitions

    def fee(self, price: Wei, gas: Wei) -> Wei:
        """What a duty pays: its expected replay with a margin, in thousandths of the price rounded up, and its gas."""
        return Wei(_ceil_div(ceil(1000 * FEE_MARGIN * self.replay_share()) * price, 1000) + gas)


def most_witnesses(slots: int, transitions: int) -> int:
    """The most duties a round whose expected cost stays within MAX_COST_SHARE; at least one."""
    within = (q for q in range(slots, 0, -1) if Audit(slots, q, transitions).cost_share() <= MAX_COST_SHARE)
    return next(within, 1)


@dataclass(frozen=True)
class Offer:
    """What a job sets so that no saving of work pays; names are JobParams'."""

    witnesses: int
    witness_fee: Wei
    witness_stake: Wei
    slot_stake: Wei


def offer(slots: int, transitions: int, slot_price: Wei, gas_price: Wei) -> Offer:
    """For a job of that many slots and transitions a claim; gas_price in tokens for one gas at the cap.

    A slot's stake is in whole prices, and more than twice a witness's (JobRules): that is what counts for few slots.
    """
    audit = Audit(slots, most_witnesses(slots, transitions), transitions)
    fee = audit.fee(slot_price, Wei(DUTY_GAS * gas_price))
    witness_stake = witness_floor(fee)
    multiple = max(ceil(STAKE_MARGIN * audit.stake_multiple()), 2 * witness_stake // slot_price + 1)
    return Offer(
        audit.witnesses, fee, witness_stake, Wei(max(stake_floor(slot_price, gas_price), multiple * slot_price))
    )
