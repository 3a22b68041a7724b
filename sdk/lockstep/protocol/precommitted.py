"""Commitments one block before an act, so that no copy of it is paid. Twin of contracts/libraries/Precommitted.sol.

digest = keccak(abi.encode(sender, keccak(the act's transaction data)))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lockstep.protocol.reverts import revert
from lockstep.protocol.statement import keccak
from lockstep.protocol.types import Address, Digest

if TYPE_CHECKING:
    from lockstep.protocol.rounds import Block


def digest_of(sender: Address, data: bytes) -> Digest:
    """What `sender` commits to before it sends a transaction with these data."""
    return keccak(bytes(12) + bytes.fromhex(sender[2:]) + keccak(data))


@dataclass
class Precommitted:
    """The blocks of one contract's commitments."""

    committed_at: dict[Digest, int] = field(default_factory=dict)

    def commit(self, block: Block, digests: Sequence[Digest]) -> None:
        """Notes the block of each digest that is new."""
        for digest in digests:
            # INVARIANT: a commitment keeps its first block: nobody makes another's younger.
            self.committed_at.setdefault(digest, block.number)

    def require(self, block: Block, sender: Address, data: bytes) -> None:
        """Raises NotCommitted unless the sender committed to exactly this call."""
        digest = digest_of(sender, data)
        at = self.committed_at.get(digest)
        # INVARIANT: what is paid for was committed by its sender in an earlier block: a copy comes too late.
        if at is None or at >= block.number:
            raise revert("NotCommitted", digest)
