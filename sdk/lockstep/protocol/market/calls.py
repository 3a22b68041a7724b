"""Blocks, calls and events: what goes into a transition and what comes out of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.protocol.types import Address, Seconds

HASH_BLOCKS = 256
"""The EVM's blockhash knows this many blocks."""
MAX_UINT = (1 << 256) - 1


@dataclass(frozen=True)
class Block:
    """The block that an act is in."""

    number: int
    time: Seconds
    hashes: Mapping[int, bytes] = field(default_factory=dict)
    """The hashes of earlier blocks; none older than HASH_BLOCKS is asked for."""
    base_fee: int = 0
    """Wei per gas."""

    def hash_of(self, number: int) -> bytes:
        """Returns `blockhash`: zero for a block that the EVM does not know."""
        return self.hashes[number] if 0 < self.number - number <= HASH_BLOCKS else bytes(32)


@dataclass(frozen=True)
class MarketCall:
    """One function call of one contract."""

    contract: str
    """Its name: JobMarket, StakeVault, DisputeGame, Witnesses, Availability, Validator or TestToken."""
    function: str
    """Its name in the ABI."""
    sender: Address
    arguments: tuple[Any, ...] = ()
    """The arguments, in the ABI's order; a struct is the dataclass of its name, an array a sequence."""
    data: bytes = b""
    """The transaction's data, selector included: what precommitted acts are bound to, and what a move's bytes cost."""
    gas: int = 0
    """Gas between the begin and the end of a challenger's move, as the chain meters it; the intrinsic gas apart."""


@dataclass(frozen=True)
class Emitted:
    """One log entry that a call emitted."""

    contract: str
    """The emitter's name."""
    name: str
    values: tuple[Any, ...]
    """The values, in the ABI's order."""
