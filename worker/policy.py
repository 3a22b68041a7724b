"""The limits that a worker's owner sets: how much may be staked, for whom, at what price, at which hours.

A policy only ever makes a worker join less. What it has joined it finishes and defends whatever the policy says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lockstep.base.amounts import amount_of, require_amount, tokens
from lockstep.base.naming import address_of
from lockstep.execution.rates import PRICED_OPERATIONS, price_of
from lockstep.protocol.errors import UsageError
from lockstep.protocol.jobs import NOTHING
from lockstep.protocol.types import Address, Wei

if TYPE_CHECKING:
    from lockstep.base.settings import Settings
    from lockstep.protocol.jobs import JobParams
    from worker.requesters import RequesterHistory

ALL = "all"
"""The value of `--max-stake` that allows the whole wallet."""
_HOURS = re.compile(r"(\d{1,2})-(\d{1,2})", re.ASCII)


@dataclass(frozen=True)
class Policy:
    """The limits of one worker; without any, every job is joined and the whole wallet staked."""

    max_stake: Wei | None = None
    """The most that the account may have put into the vault and not taken out, lost stake included; None: no limit."""
    jobs_from: frozenset[Address] = frozenset()
    """Requesters whose jobs are joined; empty: anybody's."""
    min_price: Wei = NOTHING
    """The least that a slot pays for `PRICED_OPERATIONS`."""
    hours: tuple[int, int] | None = None
    """[from, to) in this machine's local time, over midnight too, in which jobs are joined; None: always."""
    max_unpaid: int = 0
    """Unpaid rounds after which no job of a requester is joined; 0: no number is too many."""

    @staticmethod
    def require(settings: Settings) -> None:
        """Raises UsageError for what is wrong in the settings whatever the market's token is."""
        for name in ("max_stake", "min_price"):
            text = getattr(settings, name)
            if text and text.strip().lower() != ALL:
                require_amount(text, name, least=0)
        _requesters(settings.jobs_from)
        _hours(settings.hours)

    @staticmethod
    def of(settings: Settings) -> Policy:
        """Reads the policy from the settings, with amounts of the connected market's token; raises UsageError."""
        limit = settings.max_stake.strip()
        return Policy(
            max_stake=None if limit.lower() == ALL else amount_of(limit, "max_stake", least=0),
            jobs_from=_requesters(settings.jobs_from),
            min_price=amount_of(settings.min_price, "min_price", least=0) if settings.min_price else NOTHING,
            hours=_hours(settings.hours),
            max_unpaid=settings.max_unpaid,
        )

    def allowance(self, put_in: int) -> int | None:
        """Returns the wei that an account that has `put_in` may still deposit; None: any amount."""
        return None if self.max_stake is None else max(0, self.max_stake - put_in)

    def refuses_requester(self, requester: Address) -> str:
        """Returns the reason why no job of a requester is joined; empty if the requester is welcome."""
        if not self.jobs_from or requester in self.jobs_from:
            return ""
        return f"it is a job of {requester}, and --jobs-from names others"

    def refuses_price(self, params: JobParams, operations: int) -> str:
        """Returns the reason why a slot of that many operations pays too little; empty if it pays enough."""
        if params.role.slot_price * PRICED_OPERATIONS >= self.min_price * operations:
            return ""
        paid = tokens(price_of(params.role.slot_price, operations), 4)
        return f"a slot pays {paid} for {PRICED_OPERATIONS:.0e} operations, and --min-price is {tokens(self.min_price)}"

    def refuses_history(self, requester: Address, had: RequesterHistory) -> str:
        """Returns the reason why a requester with unpaid rounds gets no more work; empty if the limit allows more."""
        # INVARIANT: no requester has more of a worker's work for nothing than the worker's owner allows.
        if not self.max_unpaid or had.owed < self.max_unpaid:
            return ""
        return (
            f"{had.unpaid} rounds of {requester} took this account's work and did not pay it, {had.paid} paid it, "
            f"and --max-unpaid is {self.max_unpaid}"
        )

    def open_at(self, hour: int) -> bool:
        """Returns True if jobs are joined at this hour of the day."""
        if self.hours is None:
            return True
        first, end = self.hours
        return first <= hour < end if first < end else hour >= first or hour < end

    def closed_for(self, moment: datetime) -> int:
        """Returns the seconds from a moment of local time until jobs are joined; 0 if they are joined then."""
        hours = next(h for h in range(24) if self.open_at((moment.hour + h) % 24))
        return hours and hours * 3600 - moment.minute * 60 - moment.second

    def closed_now(self) -> int:
        """Returns the seconds from now until jobs are joined; 0 if they are joined now."""
        return self.closed_for(datetime.now().astimezone())

    def to_dict(self) -> dict[str, object]:
        """Returns the policy as JSON: amounts are decimal strings, null means no limit."""
        return {
            "max_stake": None if self.max_stake is None else str(self.max_stake),
            "jobs_from": sorted(self.jobs_from),
            "min_price": str(self.min_price),
            "hours": None if self.hours is None else "{}-{}".format(*self.hours),
            "max_unpaid": self.max_unpaid or None,
        }


def _requesters(text: str) -> frozenset[Address]:
    return frozenset(address_of(each.strip(), "jobs_from") for each in text.split(",") if each.strip())


def _hours(text: str) -> tuple[int, int] | None:
    if not text.strip():
        return None
    found = _HOURS.fullmatch(text.strip())
    first, end = (int(found[1]), int(found[2]) % 24) if found else (24, 24)
    if found is None or first > 23 or int(found[2]) > 24 or first == end:
        raise UsageError(
            f"hours is {text!r}", hint="give two hours of the day in local time, such as 22-6 for 22:00 to 6:00"
        )
    return first, end
