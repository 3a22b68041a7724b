"""Receipts (availability attestations): counts them as contracts/libraries/Receipts.sol does, and computes honest
ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

WITNESS = 64
"""First speaker number of witnesses: WITNESS + i is the round's i-th drawn witness; s below it is the owner of
slot s.
"""
QUORUM, QUORUM_OF = 1, 2
"""A payload counts as available if this fraction of the other speakers name it."""
DEMAND_INCLUSIONS = 4
"""Attesting lasts at least this multiple of a transaction's inclusion time ..."""
DEMAND_PARTS = 4
"""... and at least this fraction (one of so many parts) of its window, even if all have spoken."""
LANES = 32
"""Slots whose counts fit a word: one byte per slot, because there are fewer than 256 speakers."""


def add(named: tuple[int, int], mask: int, who: int) -> tuple[int, int]:
    """Returns the counts after one more receipt, by speaker `who` for the slots of `mask`."""
    counts = list(named)
    for s in range(2 * LANES):
        # INVARIANT: nobody's word counts for its own slot.
        if s != who and mask >> s & 1:
            counts[s // LANES] += 1 << 8 * (s % LANES)
    return counts[0], counts[1]


def accepts(named: tuple[int, int], spoke: int, receipts: int, s: int) -> bool:
    """Returns True if half of the other speakers name slot s, or if no other has spoken."""
    others = receipts - (spoke >> s & 1)
    count = named[s // LANES] >> 8 * (s % LANES) & 0xFF
    return QUORUM_OF * count >= QUORUM * others


def demands_end(reveal_ends: int, attest_ends: int, inclusion: int) -> int:
    """Returns the chain time before which attesting does not end early, even if every speaker has spoken."""
    return reveal_ends + max((attest_ends - reveal_ends) // DEMAND_PARTS, DEMAND_INCLUSIONS * inclusion)


class Report(Enum):
    """The result of fetching and decoding a revealed payload."""

    DECODED = "decoded"
    """Fetched, well-formed, and its subtree root is the claim's `out`."""
    REFUSED = "refused"
    """Fetched, but not what was claimed; this is final."""
    MISSING = "missing"
    """The store answered that it does not have the payload; it may arrive later."""
    UNREACHABLE = "unreachable"
    """The store did not answer, so nothing is known about the payload."""
    UNKNOWN = "unknown"
    """Not requested yet."""


FINAL_REPORTS = (Report.DECODED, Report.REFUSED)


def last_chance(attest_ends: int, attest_seconds: int, now: int) -> bool:
    """Returns True if a speaker must attest now, even if payloads may still arrive: a quarter of the window, or two
    seconds, is left.
    """
    return now >= attest_ends - max(2, attest_seconds // 4)


def batch_due(attest_ends: int, attest_seconds: int, now: int) -> bool:
    """Returns True if a collector submits its receipts now, even if some are missing: a quarter of the window has
    passed.
    """
    return now >= attest_ends - attest_seconds + attest_seconds // 4


def own_way(attest_ends: int, attest_seconds: int, now: int) -> bool:
    """Returns True if a speaker submits its receipt itself, even if the coordinator has it: half of the window, or two
    seconds, is left.
    """
    return now >= attest_ends - max(2, attest_seconds // 2)


def mask_of(reports: Mapping[int, Report]) -> int:
    """Returns the mask of an honest receipt: the slots whose payload was fetched and decoded, and no other."""
    return sum(1 << slot for slot, report in reports.items() if report is Report.DECODED)
