"""Least stakes and bonds, the price of gas, and the percentages by which the vault splits a slash and a bond.

Twin of contracts/libraries/Prices.sol: same names, same order, one file of vectors (tests/vectors/prices.jsonl).
Amounts are integers in the token's smallest unit.
"""

from __future__ import annotations

from lockstep.protocol.types import Wei

GAME_GAS = 2_600_000
"""Gas of both sides of a whole game, for the most expensive admissible step: 2^14 ops, 2^31 elements, 2^24 terms."""
DEFENDER_GAS = 1_100_000
"""Gas of the defender's moves in such a game."""
STAKE_PRICES = 10
"""A stake is at least this multiple of the price that it backs ..."""
STAKE_GAMES = 4
"""... and at least this multiple of the gas of a game at the fee cap."""
LEAF_GAS = 80_000
"""Gas of posting one leaf of a row, for the deepest dataset."""
ANSWER_GAS = 600_000
"""Gas that is paid for an answer to a demand for a payload or a carry; the largest answer costs 1.07 M."""
BOND_GAMES = 3
"""A bond holds this multiple of the defender's gas; a row's bond also this multiple of the gas of its leaves."""
WITNESS_FEES = 20
"""A witness's stake is at least this multiple of its fee ..."""
LEAD_FEES = 2
"""... and at least this multiple of the fee for each round that may be in flight."""

FEES = 9
"""Number of recent seals whose base fees are stored."""
FEE_BITS = 28
"""Bits of a stored fee: nine fill a word."""
_RING_MASK = (1 << (FEES * FEE_BITS)) - 1
FEE_UNIT = 8192
"""Unit, in wei per gas, to which a stored fee is rounded up."""
MAX_FEE_CAP = ((1 << (FEE_BITS - 1)) - 2) * FEE_UNIT
"""Largest fee that can be stored, about 1,099 gwei; no job's fee cap may exceed it."""

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
    """Returns the least part of a bond that does not depend on gas: the price of one inner step, rounded up."""
    return Wei(ceil_div(slot_price, inner_steps))


def witness_floor(witness_fee: Wei, max_lead: int) -> Wei:
    """Returns the least stake of a witness in a job with up to `max_lead` rounds in flight."""
    return Wei(max(WITNESS_FEES, LEAD_FEES * max_lead) * witness_fee)


def gas_cost(gas: int, gas_price: Wei, fee_cap: int, base_fee: int) -> Wei:
    """Returns the token units for `gas` at a base fee (wei per gas, at most fee_cap > 0 is charged), rounded up."""
    return Wei(ceil_div(gas * gas_price * min(base_fee, fee_cap), fee_cap))


def bond_of(bond: Wei, gas_price: Wei, fee_cap: int, base_fee: int) -> Wei:
    """Returns a challenger's bond: the job's own part plus three times the defender's gas at a base fee."""
    return Wei(bond + gas_cost(BOND_GAMES * DEFENDER_GAS, gas_price, fee_cap, base_fee))


def row_bond_of(game_bond: Wei, bond: Wei, leaves: int) -> Wei:
    """Returns the bond for a demanded row, given a game's bond now and the job's own part of it.

    The rest is the gas of BOND_GAMES defences; the gas of as many postings of each leaf is proportional to it, rounded
    up.
    """
    return Wei(game_bond + ceil_div((game_bond - bond) * leaves * LEAF_GAS, DEFENDER_GAS))


def dearest_row_bond(bond: Wei, gas_price: Wei, leaves: int) -> Wei:
    """Returns the highest bond for a dataset row, in wei: at the fee cap."""
    return Wei(bond + BOND_GAMES * (DEFENDER_GAS + leaves * LEAF_GAS) * gas_price)


def push(ring: int, base_fee: int) -> int:
    """Returns the ring buffer with one more base fee; the oldest of ten is dropped.

    The word has nine fields, the newest lowest, each in units rounded up, plus one: zero marks an empty field.
    """
    units = ceil_div(min(base_fee, MAX_FEE_CAP), FEE_UNIT)
    return ((ring << FEE_BITS) | (units + 1)) & _RING_MASK


def median(ring: int, none: int) -> int:
    """Returns the median of the stored base fees, the upper one of an even number; `none` if there are none."""
    seen = []
    while ring:
        seen.append(ring & ((1 << FEE_BITS) - 1))
        ring >>= FEE_BITS
    return (sorted(seen)[len(seen) // 2] - 1) * FEE_UNIT if seen else none


def ceil_div(a: int, b: int) -> int:
    """Returns a / b, rounded up."""
    return -(-a // b)
