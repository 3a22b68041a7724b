"""A decoder under fuzz: seeds by the project's own encoders, what may come out, what must hold of it.

A target's `run` decodes one input. LockstepError may come out of it, and nothing else: a failed `assert` says that a
decoder gave what it does not promise. Nothing of the project is imported before a target is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tests.fuzz.loading import Change
from tests.fuzz.mutators import Mutator

Run = Callable[[bytes], object]


@dataclass(frozen=True)
class Target:
    """One decoder."""

    functions: dict[str, tuple[str, ...]]
    """By module: those whose branches are counted; () for all of it."""
    open: Callable[[], tuple[Iterable[bytes], Run]]
    """Imports what is needed; gives the seeds and what decodes one input."""
    planted: Change
    """A defect that a fuzzer must find."""
    mutator: Mutator | None = None
    most_bytes: int = 4096


@contextmanager
def refusals() -> Iterator[None]:
    """What a decoder may raise."""
    from lockstep.protocol.errors import LockstepError

    with suppress(LockstepError):
        yield


def depth_of(value: object) -> int:
    """Levels of a value, counted without recursion."""
    level, depth = [value], 0
    while level:
        level = [x for v in level for x in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())]
        depth += 1
    return depth
