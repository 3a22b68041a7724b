"""Floors of stakes and bonds, the price of gas, and the percentages by which the vault splits a slash and a bond.

Twin of contracts/libraries/Prices.sol: same names, same order, one file of vectors (tests/vectors/prices.jsonl).
Amounts are integers in the token's smallest unit.
"""

from __future__ import annotations

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
ANSWER_GAS = 600_000
"""Gas that the answer to a demand for a payload or a carry is paid: the largest takes 1.07 M."""
BOND_GAMES = 3
"""A bond holds this many times the gas of the defender, a row's also of its leaves."""
WITNESS_FEES = 20
"""A witness's stake is at least this many fees ..."""
LEAD_FEES = 2
"""... and this many for each round that may be in flight."""

FEES = 9
"""Base fees of the last seals that are remembered."""
FEE_BITS = 28
"""Bits of one of them: nine fill a word."""
_RING_MASK = (1 << (FEES * FEE_BITS)) - 1
FEE_UNIT = 8192
"""Wei per gas that a remembered fee is rounded up to."""
MAX_FEE_CAP = ((1 << (FEE_BITS - 1)) - 2) * FEE_UNIT
"""The highest fee that can be remembered, about 1,099 gwei: no job's cap lies above it."""

BOND_PERCENT_DEFENDER = 60
"""The defender's percentage of a lost bond; the rest is burned."""
PROVER_PERCENT = 30
"""The percentage of a void job's deposit that its prover gets (JobMarket.finish); the rest is burned."""
SLASH_PERCENT_WINNERS = 30
SLASH_PERCENT_REQUESTER = 20
"""The requester's percentage of a slash, gas refunds included; the rest, at least half, is burned."""
SLASH_PERCENT_REFUNDS = 10


# -- floors and gas


def stake_floor(price: Wei, gas_price: Wei) -> Wei:
    """Returns the least stake, in wei, behind work that is paid `price`."""
    return Wei(max(STAKE_PRICES * price, STAKE_GAMES * GAME_GAS * gas_price))


def bond_floor(slot_price: Wei, inner_steps: int) -> Wei:
    """The least of a bond that does not depend on gas: the price of one inner step, rounded up."""
    return Wei(ceil_div(slot_price, inner_steps))


def witness_floor(witness_fee: Wei, max_lead: int) -> Wei:
    """The least stake of a witness of a job of which `max_lead` rounds may be in flight."""
    return Wei(max(WITNESS_FEES, LEAD_FEES * max_lead) * witness_fee)


def gas_cost(gas: int, gas_price: Wei, fee_cap: int, base_fee: int) -> Wei:
    """Token units for `gas` at a base fee (wei per gas), rounded up; above the cap, as at the cap. fee_cap > 0."""
    return Wei(ceil_div(gas * gas_price * min(base_fee, fee_cap), fee_cap))


def bond_of(bond: Wei, gas_price: Wei, fee_cap: int, base_fee: int) -> Wei:
    """Returns the bond of a challenger: the job's own and three times the defender's gas at a base fee."""
    return Wei(bond + gas_cost(BOND_GAMES * DEFENDER_GAS, gas_price, fee_cap, base_fee))


def row_bond_of(game_bond: Wei, bond: Wei, leaves: int) -> Wei:
    """Returns the bond of a row's asker, given a game's bond now and the part of it that is the job's own.

    The rest is the gas of BOND_GAMES defences; that of as many postings of each leaf is in proportion, rounded up.
    """
    return Wei(game_bond + ceil_div((game_bond - bond) * leaves * LEAF_GAS, DEFENDER_GAS))


def dearest_row_bond(bond: Wei, gas_price: Wei, leaves: int) -> Wei:
    """Returns the highest bond for a dataset row, in wei: the one at the gas price's cap."""
    return Wei(bond + BOND_GAMES * (DEFENDER_GAS + leaves * LEAF_GAS) * gas_price)


def push(ring: int, base_fee: int) -> int:
    """The ring with one more base fee; the oldest of ten is forgotten.

    A word of nine places, the newest lowest, each in units rounded up, plus one: zero is a place that nothing filled.
    """
    units = ceil_div(min(base_fee, MAX_FEE_CAP), FEE_UNIT)
    return ((ring << FEE_BITS) | (units + 1)) & _RING_MASK


def median(ring: int, none: int) -> int:
    """The median of the base fees remembered, the upper one of an even number; `none` if there are none."""
    seen = []
    while ring:
        seen.append(ring & ((1 << FEE_BITS) - 1))
        ring >>= FEE_BITS
    return (sorted(seen)[len(seen) // 2] - 1) * FEE_UNIT if seen else none


def ceil_div(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
