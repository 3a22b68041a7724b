"""An executor that computes wrong bits, without a change of kernels."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from lockstep.execution.jobs import ClaimRun, Entries, State


@dataclass(frozen=True)
class WrongRun(ClaimRun):
    """A run whose fast path has a wrong first word in each state, while its materialised steps are right."""

    @classmethod
    def like(cls, run: ClaimRun) -> Self:
        """Returns the same claim, computed wrongly."""
        return cls(**{f.name: getattr(run, f.name) for f in fields(ClaimRun)})

    def advance(self, t: int, state: State) -> State:
        """Returns the next state with the last bit of one word flipped."""
        return one_bit_off(super().advance(t, state))


def one_bit_off(state: State) -> State:
    """Returns a state with the lowest bit of its first word flipped."""
    entries: Entries = list(state)
    first = next(k for k, array in enumerate(entries) if array is not None)
    entries[first] = turned(entries[first])
    return entries


def turned(array: np.ndarray | None) -> np.ndarray:
    """Returns an array with the lowest bit of its first word flipped."""
    assert array is not None
    copy = np.array(array)
    copy.reshape(-1).view(np.uint32)[:1] ^= 1
    return copy
