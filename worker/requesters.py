"""Counts the rounds of a requester in which this account's work was public and not paid.

A requester whose windows are too short to merge, or to fetch the payloads, would get everybody's work for only the gas.
The chain records each such round, so that a restarted worker knows them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.account import reason_of

if TYPE_CHECKING:
    from lockstep.market.ledger import Ledger
    from lockstep.protocol.types import Address

FORGIVEN = 10
"""Number of paid rounds that offset one unpaid round."""


@dataclass(frozen=True)
class RequesterHistory:
    """One account's paid and unpaid rounds with one requester."""

    paid: int = 0
    unpaid: int = 0

    @property
    def owed(self) -> int:
        """The unpaid rounds that no paid ones offset."""
        return max(0, self.unpaid - self.paid // FORGIVEN)


def history_with(ledger: Ledger, requester: Address, me: Address) -> RequesterHistory:
    """Returns an account's rounds with a requester, in all of its jobs; unpaid are those whose merge excluded its
    payload."""
    paid = frozenset(p.claim for p in ledger.pays)
    found = [
        reason_of(job, r, slot, earned=claim.id in paid)
        for job in ledger.jobs.values()
        if job.requester == requester
        for r in job.all_rounds()
        for slot, claim in r.claims.items()
        if claim.worker == me
    ]
    return RequesterHistory(found.count("paid"), found.count("excluded"))
