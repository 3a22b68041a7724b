"""Inputs of a traced function besides the state: dataset rows, random words, and the step's context (round, slot, t).

Each is a torch operation, so that a trace records it. Outside `trace` there is no job to read from, and a call raises.
"""

from __future__ import annotations

from typing import Any

import torch

from lockstep.protocol.errors import LoweringError, UsageError

_ONLY_TRACED = "call it inside a function given to lockstep.tracing.trace; in eager code pass the rows yourself"


@torch.library.custom_op("lockstep::draw", mutates_args=())
def _draw(first: int, rows: int, length: int) -> torch.Tensor:
    raise UsageError("lockstep.tracing.draw was called where there is no dataset", hint=_ONLY_TRACED)


@_draw.register_fake
def _(first: int, rows: int, length: int) -> torch.Tensor:
    return torch.empty((rows, length), dtype=torch.int64)


@torch.library.custom_op("lockstep::random_words", mutates_args=())
def _random_words(count: int, stream: int) -> torch.Tensor:
    raise UsageError("lockstep.tracing.random_words was called where there is no seed", hint=_ONLY_TRACED)


@_random_words.register_fake
def _(count: int, stream: int) -> torch.Tensor:
    return torch.empty((count,), dtype=torch.int32)


@torch.library.custom_op("lockstep::context", mutates_args=())
def _context(word: int) -> torch.Tensor:
    raise UsageError("lockstep.tracing.context was called where there is no job", hint=_ONLY_TRACED)


@_context.register_fake
def _(word: int) -> torch.Tensor:
    return torch.empty((), dtype=torch.int32)


class NamedFields(dict[str, torch.Tensor]):
    """The named fields of a step's dataset rows."""

    def __getitem__(self, name: Any) -> torch.Tensor:
        if not isinstance(name, str) or name not in self:
            message = (
                f"a field {name!r} that a row does not have"
                if isinstance(name, str)
                else "rows of fields as one tensor"
            )
            raise LoweringError(message, hint=f"take a field by its name: a row has {', '.join(self)[:300]}")
        return super().__getitem__(name)


def draw(first: int, rows: int, length: int) -> torch.Tensor:
    """Returns i64 [rows, length]: rows number first .. first + rows - 1 of this step's sample of the dataset.

    Row j is dataset[keccak(seed ‖ round ‖ slot ‖ t ‖ j) mod N]; `length` must be the dataset's row length.
    """
    return _draw(first, rows, length)


def random_words(count: int, stream: int) -> torch.Tensor:
    """Returns i32 [count]: Philox 4x32-10 words of this step; different streams are independent."""
    return _random_words(count, stream)


def context(word: str) -> torch.Tensor:
    """Returns a word of the step's context as an i32 scalar: "round", "slot" or "t" (from 1)."""
    return _context(("round", "slot", "t").index(word))
