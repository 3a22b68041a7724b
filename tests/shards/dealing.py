"""Assigns test files to shards, longest first, so that shards end together."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from pathlib import Path

SHARDS_PER_JOB = 2
"""More end closer together; each costs the seconds in which a process collects its tests."""
UNKNOWN = 0.5
"""Seconds of a file that took less than one, which is not written down, or was never timed."""


def deal(files: Sequence[Path], seconds: Mapping[str, float], jobs: int) -> list[list[Path]]:
    """The longest file first, each to the shard that has least (Graham 1969, "Bounds on multiprocessing timing
    anomalies"). Shards come in the order to start them in, longest first; the files of one in that of their names."""
    shards: list[tuple[float, int, list[Path]]] = [(0.0, i, []) for i in range(min(len(files), jobs * SHARDS_PER_JOB))]
    for file in sorted(files, key=lambda f: (-seconds.get(f.as_posix(), UNKNOWN), f)):
        total, i, dealt = heapq.heappop(shards)
        heapq.heappush(shards, (total + seconds.get(file.as_posix(), UNKNOWN), i, [*dealt, file]))
    return [sorted(dealt) for _, _, dealt in sorted(shards, key=lambda s: (-s[0], s[1]))]
