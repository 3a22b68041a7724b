"""The moving average of a job's weights, which merges keep in the outer state. Needs no torch.

    average = decay * average + (1 - decay) * weights         after each merge; the initial weights before the first

A spec locates it by `average: {decay, outer, tensors}` of its strategy. Buffers that a step writes have no average.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.protocol.errors import PayloadInvalid, UsageError
from lockstep.storage.payload import Checkpoint

AVERAGE = "average"
"""Its key in the strategy of a spec."""


@dataclass(frozen=True)
class AverageSpec:
    """The decay of an average, and its location."""

    decay: float
    outer: int
    """Tensors before it in the outer state."""
    tensors: int
    """Its tensors, one for each shard of the parameters."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the field that a spec's strategy has in addition."""
        return {AVERAGE: asdict(self)}

    @staticmethod
    def of(strategy: Mapping[str, Any]) -> AverageSpec:
        """The inverse of `to_dict`; UsageError if the job keeps no average, PayloadInvalid if its spec is malformed."""
        if AVERAGE not in strategy:
            raise UsageError(
                "the job keeps no average of its weights", "write ema = 0.99 in a job's description, then train it"
            )
        given = strategy[AVERAGE]
        places = [given.get(key) for key in ("outer", "tensors")] if isinstance(given, Mapping) else [None]
        if not all(type(n) is int and n >= 0 for n in places):
            raise PayloadInvalid(f"the spec's average is {given!r}", "the spec was not written by this library")
        return AverageSpec(float(given.get("decay", 0)), *places)

    def weights(self, checkpoint: Checkpoint) -> tuple[NDArray[np.float32], ...]:
        """Returns a checkpoint's shared tensors with the average in place of the parameters."""
        found = checkpoint.outer[self.outer : self.outer + self.tensors]
        replaced = checkpoint.shared[: self.tensors]
        # INVARIANT: an average has the shape of what it is the average of.
        if len(found) != self.tensors or [x.shape for x in found] != [x.shape for x in replaced]:
            raise PayloadInvalid("the checkpoint lacks its spec's average", "its spec is from another job")
        return (*found, *checkpoint.shared[self.tensors :])


def checked_decay(decay: float) -> float:
    """Returns the decay of an average, 0 for none; UsageError for another number."""
    if not 0 <= decay < 1:
        raise UsageError(f"ema is {decay}", "use 0 for no average, or less than 1: 0.9 averages about ten merges")
    return decay
