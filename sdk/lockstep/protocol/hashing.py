"""The EVM's hash."""

from __future__ import annotations

from Crypto.Hash import keccak as _keccak

from lockstep.protocol.types import Digest


def keccak(data: bytes) -> Digest:
    """Keccak-256 as the EVM computes it: the padding of the competition, not of FIPS 202."""
    return Digest(_keccak.new(digest_bits=256, data=data).digest())
