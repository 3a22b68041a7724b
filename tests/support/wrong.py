"""An executor that computes wrong bits, planted without touching a kernel."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from lockstep.execution.jobs import ClaimRun, Entries, State


@dataclass(frozen=True)
class WrongRun(ClaimRun):
    """A run whose fast form gets the first word of each state wrong, and shows the right one."""

    @classmethod
    def like(cls, run: ClaimRun) -> Self:
        """Returns the same claim, computed wrongly."""
        return cls(**{f.name: getattr(run, f.name) for f in fields(ClaimRun)})

    def advance(self, t: int, state: State) -> State:
        """The next state with one word changed in its last bit."""
        return one_bit_off(super().advance(t, state))


def one_bit_off(state: State) -> State:
    """A state with the lowest bit of its first word turned."""
    entries: Entries = list(state)
    first = next(k for k, array in enumerate(entries) if array is not None)
    entries[first] = turned(entries[first])
    return entries


def turned(array: np.ndarray | None) -> np.ndarray:
    """An array with the lowest bit of its first word turned."""
    assert array is not None
    copy = np.array(array)
    copy.reshape(-1).view(np.uint32)[:1] ^= 1
    return copy
