"""Keccak-256, the hash of the EVM."""

from __future__ import annotations

from Crypto.Hash import keccak as _keccak

from lockstep.protocol.types import Digest


def keccak(data: bytes) -> Digest:
    """Returns Keccak-256 as the EVM computes it, with the padding of the competition instead of FIPS 202's."""
    return Digest(_keccak.new(digest_bits=256, data=data).digest())
