"""Kinds of cases: each generates a Program and a state from a seed, reproducibly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lockstep.numerics.validate import validate
from lockstep.protocol.errors import ProgramInvalid
from tests.differ import anything, changed, huge, layers, nearly, traced, unruled
from tests.differ.case import Case
from tests.unit.numerics import test_fusion_random


@dataclass(frozen=True)
class Kind:
    """A generator of cases."""

    make: Callable[[int, str], Case | None]
    """Maps (seed, name) to a case; None if the seed gives none."""
    share: int
    """Weight of the kind among the cases of a run."""


UNRULED = ("strips", "unruled")
"""Kinds that run although a game about some of their cases would break a rule."""


def _strips(seed: int, name: str) -> Case | None:
    program, state = test_fusion_random.graph(seed)
    return Case(name, program, tuple(state), None)


KINDS: dict[str, Kind] = {
    "layers": Kind(layers.make, 8),
    "anything": Kind(anything.make, 4),
    "changed": Kind(changed.make, 5),
    "nearly": Kind(nearly.make, 16),
    "unruled": Kind(unruled.make, 6),
    "alike": Kind(nearly.make_alike, 1),
    "windows": Kind(nearly.make_windows, 2),
    "strips": Kind(_strips, 2),
    "nets": Kind(traced.make, 1),
    "huge": Kind(huge.make, 1),
}


def names(kinds: list[str], first: int, count: int) -> list[str]:
    """Returns the names of cases `first` to `first + count` of a run, with kinds in turn by weight."""
    turn = [name for share in range(max(KINDS[k].share for k in kinds)) for name in kinds if KINDS[name].share > share]
    found = []
    for i in range(first, first + count):
        kind = turn[i % len(turn)]
        found.append(f"{kind}:{i // len(turn) * turn.count(kind) + turn[: i % len(turn)].count(kind)}")
    return found


def made(name: str) -> Case | None:
    """Returns the case of a name; None if its seed gives none, or a Program that breaks a rule."""
    kind, _, seed = name.partition(":")
    case = KINDS[kind].make(int(seed), name)
    if case is None or kind in UNRULED:
        return case
    try:
        validate(case.program)
    except ProgramInvalid:
        if kind in ("layers", "nets"):
            raise
        return None
    return case
