"""Rounds and payloads as the chain names them."""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.protocol.types import Cid, Digest, Seed


@dataclass(frozen=True)
class Payload:
    """A slot's payload as named on chain."""

    cid: Cid
    out: Digest
    out2: Digest
    """Root of the carry; without a carry the root of an all-EMPTY layout."""


@dataclass(frozen=True)
class RoundRecord:
    """A merged or failed round as recorded on chain: sufficient to recompute its checkpoint."""

    number: int
    seed: Seed
    payloads: tuple[Payload | None, ...]
    """Payloads by slot; None if not accepted."""
    checkpoint: Cid | None
    """CID of the result; None for a failed round, which keeps its base."""
    out: Digest
    out2: Digest
    """Roots of the checkpoint's shared (`out`) and outer (`out2`) tensors."""
