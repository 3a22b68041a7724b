"""Commitments made one block before an act, so that copied transactions are not paid.

Twin of contracts/libraries/Precommitted.sol.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import word
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Address, Digest

if TYPE_CHECKING:
    from lockstep.protocol.market.state import Draft


def digest_of(sender: Address, data: bytes) -> Digest:
    """Returns the commitment of `sender` to a transaction with this data: keccak(abi.encode(sender, keccak))."""
    return keccak(word(sender) + keccak(data))


def commit(d: Draft, contract: str, digests: Sequence[Digest]) -> None:
    """Stores the block number of each new digest."""
    for digest in digests:
        # INVARIANT: a commitment keeps its first block: nobody makes another's younger.
        if d.committed_at[contract, digest] == 0:
            d.committed_at[contract, digest] = d.block.number


def require_committed(d: Draft, contract: str, sender: Address) -> None:
    """Reverts unless the sender committed to exactly this call in an earlier block."""
    digest = digest_of(sender, d.data)
    at = d.committed_at[contract, digest]
    # INVARIANT: what is paid for was committed by its sender in an earlier block: a copy comes too late.
    if at == 0 or at >= d.block.number:
        raise revert("NotCommitted", digest)
