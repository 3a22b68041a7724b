"""Sections of a job's states, in entries (docs/protocol.md section 3). A section that is not full ends in EMPTY
entries.

of a slot         live | anchor | carry | clock              each of 2^b entries
after encode      payload | carried                          each of 2^p
checkpoint        shared | outer                             each of 2^b
of a merge        checkpoint, half of it | payloads | mask   each payload of 2^p
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from lockstep.protocol.merkle import ceil_log2

Entry = TypeVar("Entry")


class Sections:
    """Slices of a job's states by section, entries of clock and mask, and functions that assemble states."""

    def __init__(self, shared_depth: int, payload_depth: int, slots: int) -> None:
        self.shared_depth, self.payload_depth, self.slots = shared_depth, payload_depth, slots
        part, payload = 1 << shared_depth, 1 << payload_depth
        self._half = payload << ceil_log2(slots)
        self.live, self.anchor, self.carry = (slice(k * part, (k + 1) * part) for k in range(3))
        self.clock = 3 * part
        self.payload, self.carried = slice(0, payload), slice(payload, 2 * payload)
        self.shared, self.outer = slice(0, part), slice(part, 2 * part)
        self.received = slice(2 * self._half, 2 * self._half + slots * payload)
        """Slice of all slots' payloads."""
        self.mask = 3 * self._half

    @property
    def payloads(self) -> list[slice]:
        """Returns the slice of each slot's payload in a merge."""
        width, room = self.payload.stop, self.received
        return [slice(at, at + width) for at in range(room.start, room.stop, width)]

    def slot_state(
        self, live: Sequence[Entry], anchor: Sequence[Entry], carry: Sequence[Entry], clock: Entry
    ) -> list[Entry | None]:
        """Assembles a slot's state."""
        return _joined(self.live.stop, live, anchor, carry, [clock])

    def encoded(self, payload: Sequence[Entry], carried: Sequence[Entry] = ()) -> list[Entry | None]:
        """Assembles the state after `encode`."""
        return _joined(self.payload.stop, payload, carried)

    def checkpoint(self, shared: Sequence[Entry], outer: Sequence[Entry]) -> list[Entry | None]:
        """Assembles the state after a merge."""
        return _joined(self.shared.stop, shared, outer)

    def merge_state(
        self, shared: Sequence[Entry], outer: Sequence[Entry], payloads: Sequence[Sequence[Entry]], mask: Entry
    ) -> list[Entry | None]:
        """Assembles a merge's input state from the payload of each slot."""
        received = _joined(self.payload.stop, *payloads)
        return [*_joined(2 * self._half, self.checkpoint(shared, outer)), *_joined(self._half, received, [mask])]


def _joined(width: int, *parts: Sequence[Entry]) -> list[Entry | None]:
    return [entry for part in parts for entry in [*part, *[None] * (width - len(part))]]
