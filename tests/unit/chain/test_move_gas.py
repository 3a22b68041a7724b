"""The gas that a move is sent with covers the largest header that the validator allows, by EIP-7623's floor."""

from __future__ import annotations

import pytest
from web3 import Web3

from lockstep.chain import artifacts, games
from lockstep.protocol.programs.rules import MAX_STATE_DEPTH

WORD = b"\xff" * 32
HEADER = b"\xff" * (15 + (6 + 3 << MAX_STATE_DEPTH))
CONTEXT = b"\xff" * 212 + HEADER
DESCRIPTOR = b"\xff" * (24 + 4 * 8 + 8 * (7 + 4 * 8) + 8 * 32)
"""A map of 8 axes, 8 operands and 32 instructions."""
TREE = [WORD] * 24
"""A proof in the deepest tree."""
SHOWN = [WORD] * 64
STATE = (WORD, 2**256 - 1, WORD, WORD, 2**256 - 1, 2**256 - 1)
STEP = (WORD, TREE, HEADER, WORD, WORD)

LARGEST = {
    "open": (WORD, (WORD, WORD, WORD), 1, 1, WORD, TREE, STEP),
    "adjacent": (WORD, STATE, STEP),
    "defend": (WORD, STATE, CONTEXT, WORD, WORD, TREE, SHOWN),
    "revealTensor": (WORD, STATE, CONTEXT, DESCRIPTOR, TREE, WORD, SHOWN),
    "proveAlias": (WORD, STATE, CONTEXT, HEADER, WORD, TREE),
}


def floor(data: bytes) -> int:
    """EIP-7623: 21,000 and 10 gas a token; a zero byte is one token, any other four."""
    zeros = data.count(0)
    return 21_000 + 10 * (zeros + 4 * (len(data) - zeros))


@pytest.mark.parametrize("move", LARGEST)
def test_a_move_with_the_largest_header_can_be_paid(move: str) -> None:
    contract = Web3().eth.contract(abi=artifacts.load("DisputeGame").abi)
    data = bytes.fromhex(contract.encode_abi(move, args=list(LARGEST[move]))[2:])
    assert floor(data) < games.GAS.get(move, games.GAS_DEFAULT), f"{len(data)} bytes"
