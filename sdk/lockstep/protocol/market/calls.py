"""Blocks, calls and events: inputs and outputs of a state transition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.protocol.types import Address, Seconds

HASH_BLOCKS = 256
"""Number of recent blocks whose hash the EVM's blockhash returns."""
MAX_UINT = (1 << 256) - 1


@dataclass(frozen=True)
class Block:
    """The block in which a call executes."""

    number: int
    time: Seconds
    hashes: Mapping[int, bytes] = field(default_factory=dict)
    """Hashes of earlier blocks; none older than HASH_BLOCKS is needed."""
    base_fee: int = 0
    """Wei per gas."""

    def hash_of(self, number: int) -> bytes:
        """Returns `blockhash`: zero for a block that the EVM has forgotten."""
        return self.hashes[number] if 0 < self.number - number <= HASH_BLOCKS else bytes(32)


@dataclass(frozen=True)
class MarketCall:
    """One function call of one contract."""

    contract: str
    """The contract's name: JobMarket, StakeVault, DisputeGame, Witnesses, Availability, Validator or TestToken."""
    function: str
    """The function's name in the ABI."""
    sender: Address
    arguments: tuple[Any, ...] = ()
    """The arguments, in the ABI's order; a struct is the dataclass of its name, an array a sequence."""
    data: bytes = b""
    """The transaction's data, selector included: precommitted calls are bound to it, and its bytes cost gas."""
    gas: int = 0
    """Gas of a challenger's move as the chain meters it, without intrinsic gas."""


@dataclass(frozen=True)
class Emitted:
    """One log entry that a call emitted."""

    contract: str
    """The emitting contract's name."""
    name: str
    values: tuple[Any, ...]
    """The values, in the ABI's order."""
