"""Computes the state roots that the contract computes itself (docs/protocol.md, section 3).

Twin of libraries/States.sol.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.protocol import merkle
from lockstep.protocol.types import StateRoot, TensorRoot

_ONE = b"\x00\x00\x80\x3f"
_F32, _I32 = 0, 1


def slot_zero(base: StateRoot, carry: StateRoot, steps_done: int, shared_depth: int) -> StateRoot:
    """Returns a slot's S_0: the base as live and as anchor section, its carry, and a clock with the steps done before
    this round.
    """
    clock = merkle.lift(merkle.scalar_root(_I32, steps_done), 0, shared_depth)
    return StateRoot(merkle.node(merkle.node(base, base), merkle.node(carry, clock)))


def merge_in(
    base: StateRoot,
    outer: StateRoot,
    payloads: Sequence[bytes],
    mask_root: TensorRoot,
    shared_depth: int,
    payload_depth: int,
) -> StateRoot:
    """Returns a merge's S_0: base and outer state, every payload of the mask, and the mask itself.

    `payloads` has 2^q roots of depth `payload_depth`, as `padded_payloads` returns.
    """
    depth = payload_depth + merkle.ceil_log2(len(payloads))
    states = merkle.lift(merkle.node(base, outer), shared_depth + 1, depth + 1)
    return StateRoot(merkle.node(states, merkle.node(merkle.tree(payloads), merkle.lift(mask_root, 0, depth))))


def padded_payloads(payloads: Sequence[bytes], payload_depth: int) -> list[bytes]:
    """Returns one root per slot, padded with Z_p to the next power of two."""
    width = 1 << merkle.ceil_log2(len(payloads))
    return [*payloads, *[merkle.EMPTY[payload_depth]] * (width - len(payloads))]


def mask_tensor(mask: int, slots: int) -> TensorRoot:
    """Returns the tensor root of the mask: f32 of dims (slots), 1.0 where the bit is set.

    At most 256 slots fit one leaf.
    """
    words = b"".join(_ONE if mask >> s & 1 else bytes(4) for s in range(slots))
    return merkle.tensor_root(_F32, (slots,), words)
