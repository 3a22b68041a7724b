"""A build of the kernels with small limits, so that cases of a thousand words take the paths of a billion words.

A limit selects an op's path, never its bits: a case that differs on this build has found a wrong path.
"""

from __future__ import annotations

from tests.differ.builds import Change

LIMITS = [
    Change("threads.hpp", "kLeastWork = 1 << 14;", "kLeastWork = 1 << 3;"),
    Change("multiply.cpp", "kLeastTiles = 4;", "kLeastTiles = 1;"),
    Change(
        "multiply.cpp", "std::clamp<Index>(bytes, 256 << 10, 4 << 20)", "std::clamp<Index>(bytes, 8 << 10, 8 << 10)"
    ),
    Change("plan/strip_groups.cpp", "kBlockWords = 1 << 15;", "kBlockWords = 1 << 7;"),
    Change("plan/strip_groups.cpp", "kMostRows = 64, kLeastRows = 16;", "kMostRows = 8, kLeastRows = 2;"),
    Change("plan/strip_masks.cpp", "kMostMaskCells = 1 << 24;", "kMostMaskCells = 1 << 12;"),
    Change("plan/strip_matcher.hpp", "kMostMembers = 256;", "kMostMembers = 8;"),
    Change("plan/batches.cpp", "kLeastBatches = 8;", "kLeastBatches = 2;"),
    Change("plan/batches.cpp", "kMostSteps = 256;", "kMostSteps = 8;"),
    Change("plan/batches.cpp", "kLeastShare = 1 << 12;", "kLeastShare = 1 << 2;"),
    Change("plan/arena.cpp", "kFitted = 4096;", "kFitted = 4;"),
    Change("plan/loops.cpp", "kShortRow = 16;", "kShortRow = 2;"),
    Change("loops.hpp", "kStreamed = 1 << 22;", "kStreamed = 1 << 6;"),
    Change("loops.hpp", "kLoopBlock = 16384;", "kLoopBlock = 64;"),
    Change("plan/quants.cpp", "kLeastColumns = 8;", "kLeastColumns = 2;"),
    Change("plan/recompute.cpp", "kLong = 64;", "kLong = 4;"),
    Change("plan/recompute.cpp", "kLeastWords = 1 << 12;", "kLeastWords = 1 << 2;"),
    Change("plan/recompute.cpp", "kSmall = 8;", "kSmall = 2;"),
    Change("plan/sweep.cpp", "kMostAgain = 256;", "kMostAgain = 3;"),
    Change("plan/sweep.cpp", "kMostWork = 2;", "kMostWork = 1 << 6;"),
    Change("plan/sweep.cpp", "kMostRuns = 4;", "kMostRuns = 1;"),
    Change("plan/early_quants.cpp", "kLong = 16;", "kLong = 3;"),
    Change("plan/sums.cpp", "kMostTerms = 1 << 20;", "kMostTerms = 1 << 7;"),
    Change("plan/sums.cpp", "kLeastOutputs = 8;", "kLeastOutputs = 2;"),
]
"""Limits of this build: sizes from which, or up to which, a path is used."""
