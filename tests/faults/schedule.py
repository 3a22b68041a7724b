"""What goes wrong in one run, drawn from a seed: how the world is, and what happens to whom at what time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random

WORKERS = 3
PARTIES = ("coordinator", "verifier", "storage", *(f"worker-{i}" for i in range(WORKERS)))
ON_CHAIN = tuple(name for name in PARTIES if name != "storage")
"""Who reads the chain."""
LOG_BLOCKS = 1_000
REORG_BLOCKS = 3
DOWN_SECONDS = 60.0
FULL_SECONDS = 15.0
DEAD_SECONDS = 3.0
SKEW_SECONDS = 30
SPAN_SECONDS = 60.0
"""Within which faults begin."""


class Kind(Enum):
    """What can happen."""

    KILL = "kill -9, started again"
    REORG = "the last blocks are others now"
    DOWN = "the RPC does not answer"
    FULL = "the disk is full"


@dataclass(frozen=True)
class Fault:
    """One thing that happens."""

    at: float
    """Seconds after the job is there."""
    kind: Kind
    whom: str = ""
    """The party; everybody's chain in a reorganisation."""


@dataclass(frozen=True)
class Schedule:
    """One run."""

    seed: int
    faults: tuple[Fault, ...]
    skewed: str
    """The party whose clock is wrong, if any."""
    skew: int
    """Seconds."""
    log_limit: bool
    """Whether the node gives logs of LOG_BLOCKS blocks at a time, on a chain that has more."""
    block_seconds: int
    games: int
    """False challenges, all at once."""
    liar: bool
    """Whether a worker lies."""


def draw(seed: int) -> Schedule:
    """The schedule of a seed: the same on every machine."""
    dice = Random(seed)
    faults = []
    for _ in range(dice.randint(2, 4)):
        kind = dice.choice(list(Kind))
        whom = {Kind.KILL: PARTIES, Kind.REORG: ("",)}.get(kind, ON_CHAIN)
        faults.append(Fault(round(dice.uniform(0, SPAN_SECONDS), 1), kind, dice.choice(whom)))
    skewed = dice.choice(("", *ON_CHAIN))
    return Schedule(
        seed=seed,
        faults=tuple(sorted(faults, key=lambda f: f.at)),
        skewed=skewed,
        skew=dice.choice((-SKEW_SECONDS, SKEW_SECONDS)) if skewed else 0,
        log_limit=dice.random() < 0.4,
        block_seconds=12 if dice.random() < 0.25 else 1,
        games=dice.choice((0, 1, 4, 16)),
        liar=dice.random() < 0.3,
    )
