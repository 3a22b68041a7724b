"""Writes vectors of the money rules that Python and Solidity both read: edge cases and random values, in columns of
equal length.

python -m tests.support.price_vectors        writes tests/vectors/prices.jsonl anew
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lockstep.protocol.market import prices

VECTORS = Path(__file__).parents[1] / "vectors/prices.jsonl"

WORD88, WORD128, WORD256 = (1 << 88) - 1, (1 << 128) - 1, (1 << 256) - 1
AMOUNTS = [0, 1, 2, 999, 10**18, 3 * 10**18 + 1, WORD88, WORD128]
GAS_PRICES = [0, 1, 10**6 + 1, 10**12, WORD128]
CAPS = [1, 7, 10**9, 50 * 10**9 + 1, prices.MAX_FEE_CAP]
BASE_FEES = [0, 1, 6, 7, 8191, 8192, 8193, 10**9, 50 * 10**9, prices.MAX_FEE_CAP - 1, prices.MAX_FEE_CAP, 10**15]

Case = tuple[int, ...]


def _histories(dice: random.Random) -> list[list[int]]:
    """Returns base fees in order of their seals."""
    edges = [[], [0], [5, 1], [1, 5], [3, 2, 1], [0] * 9, list(range(9)), BASE_FEES]
    drawn = [[dice.choice((dice.randrange(10**6), dice.randrange(10**11))) for _ in range(dice.randrange(1, 14))]
             for _ in range(24)]  # fmt: skip
    return edges + [[fee * 1000 for fee in fees] for fees in drawn]


def _filled(fees: list[int]) -> int:
    ring = 0
    for fee in fees:
        ring = prices.push(ring, fee)
    return ring


def _cases(dice: random.Random) -> dict[str, tuple[Callable[..., int], list[Case]]]:
    """Returns for each rule the twin's function and its test arguments."""
    floors = [(price, gas) for price in AMOUNTS for gas in GAS_PRICES]
    steps = [(price, steps) for price in AMOUNTS for steps in (1, 3, 40, 1 << 24)]
    costs = [
        (gas, price, cap, fee)
        for gas in (0, 21_000, prices.GAME_GAS)
        for price in GAS_PRICES
        for cap in CAPS
        for fee in dice.sample(BASE_FEES, 5)
    ]
    bonds = [(dice.choice(AMOUNTS), price, cap, fee) for _, price, cap, fee in costs[::2]]
    rows = [(prices.bond_of(*bond), bond[0], leaves) for bond in bonds[::7] for leaves in (1, 2, 193, 1025)]
    dearest = [(bond, price, n) for (bond, price, _, _), (_, _, n) in zip(bonds, rows, strict=False)]
    rings = [_filled(fees) for fees in _histories(dice)]
    pushes = [(dice.choice(rings), fee) for fee in BASE_FEES] + [(ring, dice.randrange(10**11)) for ring in rings]
    return {
        "stakeFloor": (prices.stake_floor, floors),
        "bondFloor": (prices.bond_floor, steps),
        "witnessFloor": (prices.witness_floor, [(fee, lead) for fee in AMOUNTS for lead in (1, 8, 10, 11, 16)]),
        "gasCost": (prices.gas_cost, costs),
        "bondOf": (prices.bond_of, bonds),
        "rowBondOf": (prices.row_bond_of, rows),
        "dearestRowBond": (prices.dearest_row_bond, dearest),
        "push": (prices.push, pushes),
        "median": (prices.median, [(ring, none) for ring in rings for none in (0, WORD256)]),
    }


def lines() -> list[str]:
    """Returns the lines of tests/vectors/prices.jsonl: one per rule, arguments flat in one column, results in
    another.
    """
    constants = ("GAME_GAS", "DEFENDER_GAS", "STAKE_PRICES", "STAKE_GAMES", "LEAF_GAS", "BOND_GAMES", "WITNESS_FEES",
                 "LEAD_FEES", "FEES", "FEE_UNIT", "MAX_FEE_CAP")  # fmt: skip
    rows: list[dict[str, Any]] = [
        {"rule": "constants", "arguments": [], "answers": [hex(getattr(prices, name)) for name in constants]}
    ]
    for name, (rule, cases) in _cases(random.Random(0)).items():
        arguments = [hex(value) for case in cases for value in case]
        rows.append({"rule": name, "arguments": arguments, "answers": [hex(rule(*case)) for case in cases]})
    return [json.dumps(row, separators=(",", ":")) for row in rows]


if __name__ == "__main__":
    VECTORS.write_text("\n".join(lines()) + "\n")
