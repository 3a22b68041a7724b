"""The interface of strategies: values that give the functions of a round on tensors.

    rules = strategy.rules(rounds, layout)
    state = rules.init(parameters, counter)                                a slot's own state
    state, live = rules.step(state, counter, live, gradient)               H times
    payload, carry = rules.encode(state, anchor, live, round)              once a round
    base, outer = rules.merge(base, outer, payloads, mask, round)          once a round, over all slots

As optax's GradientTransformation(init, update): state in, state out, no flags. `training.job` traces them into a job's
Programs and knows no strategy by name; most strategies are a few pieces put together by `loop`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from lockstep.training.parameters import Layout

Shards = Sequence[Tensor]
"""Flat f32 tensors that together hold one value for each parameter."""


class Transformation(NamedTuple):
    """An optimizer over the steps of a job."""

    init: Callable[[Shards, Tensor], list[Tensor]]
    """(parameters, counter i32 ()) -> the optimizer's state before the first step, of zeros; shapes alone are read."""
    update: Callable[[Shards, Tensor, Shards, Shards], tuple[list[Tensor], list[Tensor]]]
    """(state, counter, parameters, gradient) -> (state, parameters); the counter is the step's number in the job."""
    sent: Callable[[Shards, Shards], list[Tensor]] | None = None
    """(state, parameters) -> what a round sends in the parameters' place; None: the parameters."""


class Optimizer(Protocol):
    """A rule by which a gradient moves parameters, within a round or once a merge; frozen, and hashed into the job."""

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """Returns the optimizer of `steps` steps, whose state is reset to zero every `restart` steps; None: the state
        persists, and contains its age if the optimizer needs it."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the optimizer's registered name and its fields."""


@runtime_checkable
class Paced(Protocol):
    """A learning rate that some jobs are too short for."""

    def unreached(self, steps: int, restart: int | None) -> str:
        """Says the largest rate where the highest is never reached in `steps` steps; "" if it is."""


class Rules(NamedTuple):
    """A strategy over the rounds of a job, for one layout of parameters."""

    init: Callable[[Shards, Tensor], list[Tensor]]
    """(parameters, counter i32 ()) -> a slot's own state before the first step, of zeros; shapes alone are read."""
    step: Callable[[Shards, Tensor, Shards, Shards], tuple[list[Tensor], list[Tensor]]]
    """(own state, counter, live, gradient) -> (own state, live); the counter is the step's number in the job."""
    encode: Callable[[Shards, Shards, Shards, Tensor], tuple[list[Tensor], list[Tensor]]]
    """(own state, the round's base, live, round i32 ()) -> (payload, the own state that goes on).

    The payload is a flat f32 tensor for each shard, exactly what the wire format carries.
    """
    outer: Callable[[Shards, Tensor], list[Tensor]]
    """(parameters, counter i32 ()) -> the state that merges hand on, of zeros; shapes alone are read."""
    merge: Callable[[Shards, Shards, Sequence[Shards], Tensor, Tensor], tuple[list[Tensor], list[Tensor]]]
    """(base, outer state, payloads by slot, mask f32 [slots], round i32 ()) -> (base, outer state)."""
    sizes: tuple[int, ...]
    """Elements of a payload's tensors, one for each shard."""
    moves: bool = True
    """False: what `step` returns in the place of the parameters is made of their gradient."""


class Strategy(Protocol):
    """A rule by which the slots of a round become its merge; frozen, and hashed into the job."""

    @property
    def inner_steps(self) -> int:
        """H: the steps of a round."""

    @property
    def wire(self) -> str:
        """The wire format that `encode` rounds to: a name that `storage.payload.format_of` knows.

        A quote counts its bytes. A payload travels in it if decoding gives the same bits, else as f32.
        """

    @property
    def carry(self) -> bool:
        """True: a slot's own state goes on in its owner's next round, and travels with the payload."""

    def rules(self, rounds: int, layout: Layout) -> Rules:
        """Returns the functions for a job of `rounds` rounds; the shapes of their states do not depend on `rounds`."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the object `strategy` of a job's spec: the registered name, the fields, and `wire`."""
