"""The interface of strategies: values that give the functions of a round on tensors.

    rules = strategy.rules(rounds, layout)
    state = rules.init(parameters, counter)                                a slot's own state
    state, live = rules.step(state, counter, live, gradient)               H times
    payload, carry = rules.encode(state, anchor, live, round)              once per round
    base, outer = rules.merge(base, outer, payloads, mask, round)          once per round, over all slots

The functions are pure, like optax's GradientTransformation(init, update). `training.job` traces them into a job's
Programs and knows no strategy by name; most strategies are a few parts combined by `loop`.
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
    """(parameters, counter i32 ()) -> the optimizer's state before the first step, all zeros; only shapes are read."""
    update: Callable[[Shards, Tensor, Shards, Shards], tuple[list[Tensor], list[Tensor]]]
    """(state, counter, parameters, gradient) -> (state, parameters); the counter is the step's number in the job."""
    sent: Callable[[Shards, Shards], list[Tensor]] | None = None
    """(state, parameters) -> the tensors that a round sends; None: it sends the parameters."""


class Optimizer(Protocol):
    """A rule by which a gradient updates parameters, in a round or once per merge; frozen, and hashed into the job."""

    def over(self, steps: int, restart: int | None, layout: Layout) -> Transformation:
        """Returns the optimizer of `steps` steps, whose state is reset to zero every `restart` steps; None: the state
        persists, and contains its age if the optimizer needs it."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the optimizer's registered name and its fields."""


@runtime_checkable
class Paced(Protocol):
    """An optimizer whose learning-rate warm-up may outlast a job or a round."""

    def unreached(self, steps: int, restart: int | None) -> str:
        """Returns a warning that names the largest learning rate reached, if the highest is never reached in `steps`
        steps; "" otherwise."""


class Rules(NamedTuple):
    """A strategy over the rounds of a job, for one layout of parameters."""

    init: Callable[[Shards, Tensor], list[Tensor]]
    """(parameters, counter i32 ()) -> a slot's own state before the first step, all zeros; only shapes are read."""
    step: Callable[[Shards, Tensor, Shards, Shards], tuple[list[Tensor], list[Tensor]]]
    """(own state, counter, live, gradient) -> (own state, live); the counter is the step's number in the job."""
    encode: Callable[[Shards, Shards, Shards, Tensor], tuple[list[Tensor], list[Tensor]]]
    """(own state, the round's base, live, round i32 ()) -> (payload, the own state that is carried on).

    The payload is a flat f32 tensor for each shard, exactly what the wire format carries.
    """
    outer: Callable[[Shards, Tensor], list[Tensor]]
    """(parameters, counter i32 ()) -> the first outer state, which merges pass on, all zeros; only shapes are read."""
    merge: Callable[[Shards, Shards, Sequence[Shards], Tensor, Tensor], tuple[list[Tensor], list[Tensor]]]
    """(base, outer state, payloads by slot, mask f32 [slots], round i32 ()) -> (base, outer state)."""
    sizes: tuple[int, ...]
    """Elements of a payload's tensors, one for each shard."""
    moves: bool = True
    """False: `step` returns values computed from the gradient in place of the parameters."""


class Strategy(Protocol):
    """A rule that trains the slots of a round and merges them; frozen, and hashed into the job."""

    @property
    def inner_steps(self) -> int:
        """H: the steps of a round."""

    @property
    def wire(self) -> str:
        """The wire format that `encode` rounds to: a name that `storage.payload.format_of` knows.

        A quote counts its bytes. A payload is sent in this format if decoding restores its bits, else as f32.
        """

    @property
    def carry(self) -> bool:
        """True: a slot's own state is carried into its owner's next round, and is sent with the payload."""

    def rules(self, rounds: int, layout: Layout) -> Rules:
        """Returns the functions for a job of `rounds` rounds; the shapes of their states do not depend on `rounds`."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the object `strategy` of a job's spec: the registered name, the fields, and `wire`."""
