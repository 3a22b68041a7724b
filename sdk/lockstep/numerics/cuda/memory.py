"""Plans the arena of ops' outputs: one region of device memory, reused after the last reader of each output."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from lockstep.numerics.cuda.launches import Launch, Launches, reads, writes
from lockstep.protocol.programs.program import Alias, Program

ALIGNMENT = 64
"""Alignment in words: 256 bytes, as the driver aligns allocations."""


class Arena(NamedTuple):
    """The ops that have launches, and the offsets of outputs in the region."""

    needed: tuple[bool, ...]
    """Per op; False if the op has no launch, because readers read its source or another op's launch computes it."""
    offsets: dict[int, int]
    """Offsets, in words, of the computed outputs that are not outputs of the Program."""
    words: int

    def launched(self, launches: Launches) -> list[Launch]:
        """Returns the launches of one step in order, without those that the plan left out."""
        return [launch for own, runs in zip(launches, self.needed, strict=True) if runs for launch in own]


def plan(program: Program, launches: Launches, shown: bool = False) -> Arena:
    """Plans the arena of a Program whose ops have the given launches.

    With `shown`, every op has an output in the arena, the Program's outputs included; each stays until its last reader
    has run.
    """
    kept = set() if shown else {alias.index for alias in program.outputs if alias.kind == Alias.OP_KIND}
    read, written = list(map(reads, launches)), list(map(writes, launches))
    wanted = set(kept)
    needed = [False] * len(program.ops)
    last_reader: dict[int, int] = {}
    for i in reversed(range(len(needed))):
        needed[i] = shown or not wanted.isdisjoint(written[i])
        for source in read[i] if needed[i] else ():
            wanted.add(source)
            last_reader.setdefault(source, i)
    free = _Free()
    offsets: dict[int, int] = {}
    dying: dict[int, list[int]] = {}
    sizes = [-(-prod(op.extents) // ALIGNMENT) * ALIGNMENT for op in program.ops]
    for i, runs in enumerate(needed):
        for op in sorted(written[i] - kept) if runs else ():
            offsets[op] = free.take(sizes[op])
            dying.setdefault(last_reader.get(op, i), []).append(op)
        for dead in dying.get(i, ()):
            free.give(offsets[dead], sizes[dead])
    return Arena(tuple(needed), offsets, free.words)


class _Free:
    """Free ranges of a growing region: first fit, neighbours are joined."""

    def __init__(self) -> None:
        self.words = 0
        self._ranges: list[tuple[int, int]] = []
        """(start, end), ascending."""

    def take(self, words: int) -> int:
        """Takes a range of `words` consecutive words; returns its first word."""
        for k, (start, end) in enumerate(self._ranges):
            if end - start >= words:
                self._ranges[k : k + 1] = [(start + words, end)] if end - start > words else []
                return start
        start = self._ranges.pop()[0] if self._ranges and self._ranges[-1][1] == self.words else self.words
        self.words = start + words
        return start

    def give(self, start: int, words: int) -> None:
        """Makes a taken range free."""
        joined: list[tuple[int, int]] = []
        for own in sorted([*self._ranges, (start, start + words)]):
            if joined and joined[-1][1] == own[0]:
                joined[-1] = joined[-1][0], own[1]
            else:
                joined.append(own)
        self._ranges = joined
