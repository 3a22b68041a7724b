"""The roles in which accounts act, and the events that name them (coordinator.folds)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy.orm import Session

from coordinator.folds import GAME, MARKET, VAULT, WITNESSES, on, on_all, row_of
from coordinator.models import EventRow, MentionRow, RoleRow
from lockstep.protocol.jobs import ZERO_ADDRESS

ANY: Final = ""
"""The role of every account that has one, or has registered a node."""
ROLES = {
    "requester": "pays for jobs",
    "worker": "trains slots",
    "aggregator": "merges rounds",
    "verifier": "replays claims and challenges false ones",
    "witness": "is drawn to replay claims",
}
"""By name: what an account in this role does."""
ACTS: dict[tuple[str, str], tuple[str, str]] = {
    (VAULT, "NodeRegistered"): (ANY, "account"),
    (MARKET, "JobCreated"): ("requester", "requester"),
    (MARKET, "Joined"): ("worker", "worker"),
    (MARKET, "Merged"): ("aggregator", "worker"),
    (GAME, "Opened"): ("verifier", "challenger"),
    (WITNESSES, "Enrolled"): ("witness", "account"),
    (WITNESSES, "DutyDrawn"): ("witness", "account"),
}
"""By event: the role, and the argument with the account."""
ACCOUNT = re.compile("0x[0-9a-fA-F]{40}")


@on(VAULT, "NodeRegistered")
@on(MARKET, "JobCreated", "Joined", "Merged")
@on(GAME, "Opened")
@on(WITNESSES, "Enrolled", "DutyDrawn")
def _acted(session: Session, event: EventRow) -> None:
    role, argument = ACTS[event.contract, event.name]
    for name in {role, ANY}:
        row = row_of(session, RoleRow, account=event.args[argument], role=name, acts=0, block=event.block)
        row.acts += 1


@on_all
def _mentioned(session: Session, event: EventRow) -> None:
    for account in set(accounts_in(event.args)) - {ZERO_ADDRESS}:
        session.add(MentionRow(account=account, block=event.block, log_index=event.log_index, name=event.name))


def accounts_in(value: Any) -> Iterator[str]:
    """The accounts in an event's arguments, however deep."""
    if isinstance(value, str) and ACCOUNT.fullmatch(value):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from accounts_in(inner)
