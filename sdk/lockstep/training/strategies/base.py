"""The interface of strategies: values that give four functions on tensors (init, update, encode, merge).

As optax's GradientTransformation(init, update): state in, state out. `training.job` traces them into a job's Programs
and knows no strategy by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

Shards = Sequence[Tensor]
"""Flat f32 tensors that together hold one value for each parameter."""


class Inner(NamedTuple):
    """An optimizer over the steps of a job."""

    init: Callable[[Shards, Tensor], list[Tensor]]
    """(parameters, counter i32 ()) -> the optimizer's state before the first step; shapes alone are read."""
    update: Callable[[Shards, Tensor, Shards, Shards], tuple[list[Tensor], list[Tensor]]]
    """(state, counter, parameters, gradient) -> (state, parameters); the counter is the step's number in the job."""


class Optimizer(Protocol):
    """Moves the parameters within a round; frozen, and hashed into the job."""

    def inner(self, steps: int, restart: int | None) -> Inner:
        """Returns the optimizer of a job of `steps` steps a slot, whose state restarts at zero every `restart` steps;
        None: the state goes on, and holds its age if the optimizer needs it."""

    def to_dict(self) -> dict[str, Any]:
        """`inner` of a strategy's description: the optimizer's registered name and its fields."""


class Rules(NamedTuple):
    """A strategy over the steps of a job."""

    inner: Inner
    """The optimizer that a worker runs between two merges."""
    encode: Callable[[Tensor, Tensor], Tensor]
    """(the round's base, a slot's parameters) -> its payload, shard by shard f32 [P], as the wire format carries it."""
    merge: Callable[[Tensor, Tensor, Sequence[Tensor], Tensor], tuple[Tensor, Tensor]]
    """(base, outer state, payloads by slot, mask f32 [slots]) -> (base, outer state), shard by shard f32 [P]."""


class Strategy(Protocol):
    """A rule by which the slots of a round become its merge; frozen, and hashed into the job."""

    @property
    def inner(self) -> Optimizer:
        """The optimizer within a round."""

    @property
    def inner_steps(self) -> int:
        """H: the steps of a round."""

    @property
    def payload(self) -> str:
        """The wire format that `encode` rounds to, of `storage.payload.FORMATS`.

        A quote counts its bytes. A payload travels in it if decoding gives the same bits, else as f32.
        """

    @property
    def carry(self) -> bool:
        """True: a slot's inner state goes on in its owner's next round, and travels with the payload."""

    def rules(self, rounds: int) -> Rules:
        """Returns the functions for a job of `rounds` rounds; the shapes of their states do not depend on `rounds`."""

    def to_dict(self) -> dict[str, Any]:
        """`strategy` of a job's spec: its registered name and its fields."""
