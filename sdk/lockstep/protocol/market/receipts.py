"""Receipts, which name the payloads that can be had: counted as contracts/libraries/Receipts.sol does, and given
honestly."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

WITNESS = 64
"""Speaker WITNESS + i is the round's i-th drawn witness; below it, speaker s is the owner of slot s."""
QUORUM, QUORUM_OF = 1, 2
"""A payload counts as had if this many of this many others name it."""
DEMAND_INCLUSIONS = 4
"""Attesting lasts at least this many times that of a transaction's inclusion ..."""
DEMAND_PARTS = 4
"""... and one of this many parts of its window, whoever has spoken."""
LANES = 32
"""A slot's count takes a byte, 32 slots a word; there are fewer than 256 speakers."""


def add(named: tuple[int, int], mask: int, who: int) -> tuple[int, int]:
    """Returns the counts after one more receipt: by speaker `who`, for the slots of `mask`."""
    counts = list(named)
    for s in range(2 * LANES):
        # INVARIANT: nobody's word counts for its own slot.
        if s != who and mask >> s & 1:
            counts[s // LANES] += 1 << 8 * (s % LANES)
    return counts[0], counts[1]


def accepts(named: tuple[int, int], spoke: int, receipts: int, s: int) -> bool:
    """Returns True if half of the others name slot s, or if nobody else has spoken."""
    others = receipts - (spoke >> s & 1)
    count = named[s // LANES] >> 8 * (s % LANES) & 0xFF
    return QUORUM_OF * count >= QUORUM * others


def demands_end(reveal_ends: int, attest_ends: int, inclusion: int) -> int:
    """Returns the earliest time at which attesting to a round may end, even if everybody has spoken before."""
    return reveal_ends + max((attest_ends - reveal_ends) // DEMAND_PARTS, DEMAND_INCLUSIONS * inclusion)


class Report(Enum):
    """The result of fetching and decoding a revealed payload."""

    DECODED = "decoded"
    """Here, well-formed, and its subtree root is the claim's `out`."""
    REFUSED = "refused"
    """Here, and not what was claimed: for good."""
    MISSING = "missing"
    """The store answered that it does not hold it; it may yet come."""
    UNREACHABLE = "unreachable"
    """Nobody answered: this says nothing about the payload."""
    UNKNOWN = "unknown"
    """Not asked yet."""


FINAL_REPORTS = (Report.DECODED, Report.REFUSED)


def last_chance(attest_ends: int, attest_seconds: int, now: int) -> bool:
    """Returns True if a speaker must attest now, even if payloads may still arrive: a quarter of the window is left, or
    two seconds."""
    return now >= attest_ends - max(2, attest_seconds // 4)


def batch_due(attest_ends: int, attest_seconds: int, now: int) -> bool:
    """Returns True if a collector hands in its receipts, complete or not: a quarter of the window is over."""
    return now >= attest_ends - attest_seconds + attest_seconds // 4


def own_way(attest_ends: int, attest_seconds: int, now: int) -> bool:
    """Returns True if a speaker sends its receipt itself, even if the coordinator has it: half of the window is left,
    or two seconds."""
    return now >= attest_ends - max(2, attest_seconds // 2)


def mask_of(reports: Mapping[int, Report]) -> int:
    """Returns the mask of an honest receipt: the slots whose payload was fetched and decoded, and no other."""
    return sum(1 << slot for slot, report in reports.items() if report is Report.DECODED)
