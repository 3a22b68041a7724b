"""Writes tests/vectors/witnesses.json: draws, t*, commitments and chains that the twin and forge both read.

python -m tests.support.witness_vectors
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from lockstep.protocol.market import draws
from lockstep.protocol.types import Address, AuditId, ClaimId, Digest, StateRoot
from tests.support.market.twin import actor

PATH = Path(__file__).parents[1] / "vectors/witnesses.json"


def draw(dice: random.Random) -> dict[str, Any]:
    """Returns one draw: slots and accounts."""
    audit, block_hash = AuditId(dice.randbytes(32)), dice.randbytes(32)
    beacon = draws.beacon_of(block_hash, audit)
    slots = sorted(dice.sample(range(64), dice.randint(1, 9)))
    accounts = [actor(0x100 + k) for k in dice.sample(range(40), dice.randint(0, 8))]
    count = dice.randint(1, 12)
    owners = [dice.choice([*accounts, actor(0x99)]) for _ in range(count)]
    drawn: list[Address] = []
    for i, owner in enumerate(owners):
        drawn.append(draws.pick(accounts, beacon, i, owner, drawn))
    return {
        "audit": _hex(audit),
        "blockHash": _hex(block_hash),
        "beacon": _hex(beacon),
        "slots": slots,
        "count": count,
        "order": draws.slot_order(beacon, slots, count),
        "accounts": accounts,
        "owners": owners,
        "drawn": drawn,
    }


def word(dice: random.Random) -> dict[str, Any]:
    """Returns one verdict: t*, commitment, and its preimage's place in the chain."""
    preimage, beacon = Digest(dice.randbytes(32)), Digest(dice.randbytes(32))
    claim, state, salt = ClaimId(dice.randbytes(32)), StateRoot(dice.randbytes(32)), Digest(dice.randbytes(32))
    account, i, transitions = (
        actor(dice.randrange(1, 1 << 64)),
        dice.randrange(64),
        dice.choice((1, 2, 5, 31, 501, 1 << 24)),
    )
    links, leaf = dice.randint(0, 9), Digest(dice.randbytes(32))
    return {
        "preimage": _hex(preimage),
        "beacon": _hex(beacon),
        "i": i,
        "transitions": transitions,
        "t": draws.step_of(preimage, beacon, i, transitions),
        "u": draws.seen_of(draws.step_of(preimage, beacon, i, transitions), transitions),
        "leafWord": _hex(draws.leaf_word(preimage, beacon, i).to_bytes(32, "big")),
        "claim": _hex(claim),
        "account": account,
        "state": _hex(state),
        "leaf": _hex(leaf),
        "salt": _hex(salt),
        "commitment": _hex(draws.commitment(claim, account, state, leaf, preimage, salt)),
        "links": links,
        "head": _hex(draws.chained(preimage, links)),
    }


def vectors() -> dict[str, Any]:
    """Returns the contents of the file."""
    dice = random.Random(4)
    return {"draws": [draw(dice) for _ in range(24)], "words": [word(dice) for _ in range(24)]}


def _hex(value: bytes) -> str:
    return "0x" + value.hex()


if __name__ == "__main__":
    PATH.write_text(json.dumps(vectors(), indent=1) + "\n")
