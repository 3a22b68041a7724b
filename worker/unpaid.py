"""The rounds of a requester in which this account's work was public and not paid.

Windows in which nobody can merge, or fetch what to merge, give a requester the work of everybody for gas. The chain
remembers each such round, so that a worker that starts again knows them, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.account import reason_of

if TYPE_CHECKING:
    from lockstep.market.ledger import Ledger
    from lockstep.protocol.types import Address

FORGIVEN = 10
"""The number of paid rounds that forgive one that was not."""


@dataclass(frozen=True)
class Dealings:
    """One account's rounds with one requester."""

    paid: int = 0
    unpaid: int = 0

    @property
    def owed(self) -> int:
        """Returns the unpaid rounds that the paid ones do not forgive."""
        return max(0, self.unpaid - self.paid // FORGIVEN)


def dealings(ledger: Ledger, requester: Address, me: Address) -> Dealings:
    """Returns an account's rounds with a requester, in all of its jobs; unpaid is public work that was left out."""
    paid = frozenset((p.job, p.round, p.slot) for p in ledger.pays if p.account == me)
    found = [
        reason_of(job, r, slot, paid)
        for job in ledger.jobs.values()
        if job.requester == requester
        for r in job.all_rounds()
        for slot, claim in r.claims.items()
        if claim.worker == me
    ]
    return Dealings(found.count("paid"), found.count("excluded"))
