"""The loop that most strategies share: a slot's result is encoded, aggregated, and applied by an outer optimizer.

    x = what is sent + residual             a difference, a gradient, or the parameters themselves
    payload, residual = encode(x)           the residual is what the payload leaves out
    mean = aggregate(decode(payload) of the accepted slots, in slot order)
    mean = decode(encode(mean + residual))  if the strategy sets `down`, with the merge's own residual
    base, outer state = outer(base, mean)   or base = mean

A strategy is a frozen dataclass derived from Loop, whose `parts` returns its parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from lockstep.protocol.errors import UsageError
from lockstep.training.aggregates.base import Aggregate
from lockstep.training.codecs.base import Codec, residual
from lockstep.training.described import Described
from lockstep.training.parameters import Layout, unallocated
from lockstep.training.strategies.base import Optimizer, Paced, Rules, Shards, Transformation

DIFFERENCE, PARAMETERS, GRADIENT = "difference", "parameters", "gradient"


class Parts(NamedTuple):
    """The parts of a strategy."""

    inner: Optimizer | None
    """The optimizer within a round; if a gradient is sent, the optimizer that transforms it, or None."""
    codec: Codec
    aggregate: Aggregate
    outer: Optimizer | None
    """Applies the mean; None: the mean of parameters is the next base."""
    sent: str = DIFFERENCE
    """DIFFERENCE: base - live; GRADIENT: that of the round's one step, after `inner`; PARAMETERS: live."""
    keeps: bool = False
    """True: the inner optimizer's state is carried into the owner's next round."""
    decay: float | None = None
    """The decay of the residual, which is added in the owner's next round; None: there is no residual."""
    down: Codec | None = None
    """Encodes the mean, whose residual is added in the next merge. None: the mean is applied directly."""
    whole: bool = False
    """True: the codec also encodes a shard's padding; else the payload ends with the last parameter."""


class Loop(Described):
    """A strategy made of parts; a subclass is a frozen dataclass."""

    inner_steps: int

    def parts(self) -> Parts:
        """Returns the loop's parts, made of the strategy's fields."""
        raise NotImplementedError

    @property
    def wire(self) -> str:
        """The name of the codec's wire format."""
        return self.parts().codec.format.name

    @property
    def carry(self) -> bool:
        """True if the inner optimizer's state or a residual persists from round to round."""
        parts = self.parts()
        return parts.keeps or parts.decay is not None

    def __post_init__(self) -> None:
        parts = self.parts()
        if self.inner_steps < 1:
            raise UsageError(f"inner_steps is {self.inner_steps}", "use at least 1")
        if parts.sent == GRADIENT and self.inner_steps != 1:
            raise UsageError(
                f"inner_steps is {self.inner_steps}, but this strategy sends gradients",
                "a round has one step; increase [batch] accumulation instead",
            )
        if parts.decay is not None and not 0 < parts.decay <= 1:
            raise UsageError(f"the residual's decay is {parts.decay}", "it must lie in (0, 1]")
        parts.aggregate.check(parts.codec)

    def warnings(self, rounds: int) -> list[str]:
        """Returns warnings about learning rates that a job of that many rounds never reaches."""
        parts, steps = self.parts(), rounds * self.inner_steps
        found = []

        def look(place: str, rated: Any, n: int, restart: int | None) -> None:
            if isinstance(rated, Paced) and (text := rated.unreached(n, restart)):
                found.append(place + text)

        look("", self, rounds, None)
        look("inner.", parts.inner, steps, None if parts.keeps else self.inner_steps)
        look("outer.", parts.outer, rounds, None)
        return found

    def rules(self, rounds: int, layout: Layout) -> Rules:
        """Returns the loop's functions for these parts."""
        parts = self.parts()
        inner = None
        if parts.inner is not None:
            inner = parts.inner.over(rounds * self.inner_steps, None if parts.keeps else self.inner_steps, layout)
        outer = None if parts.outer is None else parts.outer.over(rounds, None, layout)
        turn = _Turn(parts, layout, inner, outer)
        sizes = tuple(parts.codec.size(n) for n in turn.own)
        return Rules(turn.init, turn.step, turn.encode, turn.outer_state, turn.merge, sizes, parts.sent != GRADIENT)

    def to_dict(self) -> dict[str, Any]:
        """Returns the object `strategy` of a job's spec."""
        return {**super().to_dict(), "wire": self.wire}


class _Turn:
    """The functions of a loop for one layout."""

    def __init__(
        self, parts: Parts, layout: Layout, inner: Transformation | None, outer: Transformation | None
    ) -> None:
        self.parts, self.layout, self.inner, self.outer = parts, layout, inner, outer
        self.own = layout.sizes if parts.whole else layout.own
        counter = torch.empty((), dtype=torch.int32, device="meta")
        self.moments = 0 if inner is None else len(inner.init(unallocated(layout), counter))

    def init(self, parameters: Shards, counter: Tensor) -> list[Tensor]:
        """Returns the inner optimizer's first state, followed by a residual for each shard."""
        moments = [] if self.inner is None else self.inner.init(parameters, counter)
        if self.parts.decay is None:
            return moments
        return [*moments, *(p[:n] for p, n in zip(parameters, self.own, strict=True))]

    def step(self, state: Shards, counter: Tensor, live: Shards, gradient: Shards) -> tuple[list[Tensor], list[Tensor]]:
        """Makes the inner optimizer's step; if a gradient is sent, it replaces the parameters, for `encode` to read."""
        if self.inner is None:
            return list(state), list(gradient)
        moments, moved = self.inner.update(state[: self.moments], counter, live, gradient)
        return [*moments, *state[self.moments :]], moved

    def encode(
        self,
        state: Shards,
        anchor: Shards,
        live: Shards,
        round: Tensor,  # noqa: A002
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns the payload and the state for the next round, with zeros in place of an inner state that restarts."""
        payload, left = [], []
        if self.inner is not None and self.inner.sent is not None and self.parts.sent != GRADIENT:
            live = self.inner.sent(state[: self.moments], live)
        for k, n in enumerate(self.own):
            x = anchor[k] - live[k] if self.parts.sent == DIFFERENCE else live[k]
            x = _cut(x, n)
            if self.parts.decay is not None:
                x = x + state[self.moments + k]
            coded = self.parts.codec.encode(x, round)
            if self.parts.decay is not None:
                left.append(residual(x, self.parts.codec.decode(coded, n, round), self.parts.decay))
            payload.append(coded)
        moments = state[: self.moments]
        kept = list(moments) if self.parts.keeps else [torch.zeros(m.shape, dtype=m.dtype) for m in moments]
        return payload, [*kept, *left]

    def outer_state(self, parameters: Shards, counter: Tensor) -> list[Tensor]:
        """Returns the outer optimizer's state, followed by the merge's residual for each shard if the strategy keeps
        one."""
        state = [] if self.outer is None else self.outer.init(parameters, counter)
        return state if self.parts.down is None else [*state, *parameters]

    def merge(
        self,
        base: Shards,
        state: Shards,
        payloads: Sequence[Shards],
        mask: Tensor,
        round: Tensor,  # noqa: A002
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Decodes the payloads, aggregates them and applies the result to the base."""
        decoded = [self._decoded(payload, round) for payload in payloads]
        mean = self.parts.aggregate.combine(decoded, mask)
        if self.outer is None:
            # A round without payloads fails: this keeps the function total.
            return [torch.where(mask.sum() > 0, m, b) for m, b in zip(mean, base, strict=True)], []
        if self.parts.sent == PARAMETERS:
            mean = [torch.where(mask.sum() > 0, b - m, 0.0) for m, b in zip(mean, base, strict=True)]
        left: list[Tensor] = []
        if self.parts.down is not None:
            state, kept = state[: -len(base)], state[-len(base) :]
            mean, left = self._encoded_again([m + e for m, e in zip(mean, kept, strict=True)], round)
        after, moved = self.outer.update(state, round, base, mean)
        return moved, [*after, *left]

    def _encoded_again(self, x: Shards, round: Tensor) -> tuple[list[Tensor], list[Tensor]]:  # noqa: A002
        """Returns (what the merge's own codec keeps, what it drops), shard by shard."""
        found, left = [], []
        for value, n, size in zip(x, self.own, self.layout.sizes, strict=True):
            assert self.parts.down is not None, "asked before"
            own = _cut(value, n)
            back = self.parts.down.decode(self.parts.down.encode(own, round), n, round)
            found.append(_filled(back, size))
            left.append(_filled(residual(own, back), size))
        return found, left

    def _decoded(self, payload: Shards, round: Tensor) -> list[Tensor]:  # noqa: A002
        found = []
        for coded, n, size in zip(payload, self.own, self.layout.sizes, strict=True):
            found.append(_filled(self.parts.codec.decode(coded, n, round), size))
        return found


def _cut(x: Tensor, n: int) -> Tensor:
    return x[:n] if x.numel() > n else x


def _filled(x: Tensor, size: int) -> Tensor:
    """Fills a shard's padding with zeros."""
    return F.pad(x, (0, size - x.numel())) if size > x.numel() else x
