"""Named types for signatures."""

from __future__ import annotations

from typing import NewType

Digest = NewType("Digest", bytes)
"""32 bytes of SHA-256 (or keccak where a name below says so)."""

JobId = NewType("JobId", bytes)
"""keccak of (chain id, market, requester, nonce, specHash)."""

ClaimId = NewType("ClaimId", bytes)
"""keccak of (JobId, round, attempt, slot)."""

AuditId = NewType("AuditId", bytes)
"""keccak of (JobId, round, attempt): one round's audit by drawn witnesses."""

GameId = NewType("GameId", bytes)
"""The first 96 bits of keccak of (ClaimId, challenger, nonce), then the challenger."""

StateRoot = NewType("StateRoot", bytes)
"""S_t: Merkle root over the state tensors' roots."""

TensorRoot = NewType("TensorRoot", bytes)
ProgramRoot = NewType("ProgramRoot", bytes)
TraceRoot = NewType("TraceRoot", bytes)
Seed = NewType("Seed", bytes)
"""32 bytes of keccak: the round's randomness, fixed after the slots froze."""

Cid = NewType("Cid", str)
"""A CIDv1 in base32."""

Address = NewType("Address", str)
"""A checksummed 20-byte account."""

Step = NewType("Step", int)
"""A step t of a claim: 1..T."""

Seconds = NewType("Seconds", int)
"""Seconds of chain time (the latest block's timestamp); never of a machine's clock."""

Wei = NewType("Wei", int)
"""The smallest unit of the job's ERC-20."""

MERGE_SLOT = 0xFFFFFFFF
"""The slot number of a merge claim."""
