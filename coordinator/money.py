"""The rows of the vault: each account's money, current locks, and flows by the hour (coordinator.folds)."""

from __future__ import annotations

from typing import Any, TypeVar

from sqlalchemy.orm import Session

from coordinator.folds import MARKET, VAULT, added, on
from coordinator.models import AccountRow, EventRow, FlowRow, IndexTable, LockRow

HOUR = 3600
AMOUNTS = ("free", "locked", "unbonding", "credits", "deposited", "slashed", "earned")
"""The amounts of an account."""
RowT = TypeVar("RowT", bound=IndexTable)

MOVES: dict[str, dict[str, int]] = {
    "Deposited": {"free": 1, "deposited": 1},
    "Locked": {"free": -1, "locked": 1},
    "Unlocked": {"free": 1, "locked": -1},
    "Slashed": {"locked": -1, "slashed": 1},
    "BondTaken": {"locked": -1, "slashed": 1},
    "UnbondRequested": {"free": -1, "unbonding": 1},
    "Unbonded": {"unbonding": -1},
    "Credited": {"credits": 1, "earned": 1},
    "Withdrawn": {"credits": -1},
}
"""By event of the vault: the sign with which its amount enters each balance of the account."""
FLOWS: dict[str, dict[str, str]] = {
    "Deposited": {"deposited": "amount"},
    "Slashed": {"slashed": "amount", "burned": "burned"},
    "BondTaken": {"slashed": "amount", "burned": "burned"},
    "Unbonded": {"unbonded": "amount"},
    "Withdrawn": {"withdrawn": "amount"},
    "Escrowed": {"escrowed": "amount"},
    "Paid": {"paid": "amount"},
    "JobDone": {"refunded": "refunded"},
    "JobCancelled": {"refunded": "refunded"},
}
"""By event: the kinds of flows that it reports, and the argument with the amount."""


@on(VAULT, *MOVES, "Escrowed")
@on(MARKET, "Paid", "JobDone", "JobCancelled")
def _moved(session: Session, event: EventRow) -> None:
    args = event.args
    if signs := MOVES.get(event.name):
        amount = int(args["amount"])
        row = _row(session, AccountRow, account=args["account"], **dict.fromkeys(AMOUNTS, "0"))
        if event.name == "UnbondRequested":
            # The event names the whole of what unbonds.
            amount -= int(row.unbonding)
        for name, sign in signs.items():
            setattr(row, name, added(getattr(row, name), sign * amount))
        if "locked" in signs:
            _lock(session, event, signs["locked"])
    hour = event.time - event.time % HOUR
    for kind, name in FLOWS.get(event.name, {}).items():
        if int(args[name]):
            flow = _row(session, FlowRow, hour=hour, kind=kind, amount="0")
            flow.amount = added(flow.amount, args[name])


def _lock(session: Session, event: EventRow, sign: int) -> None:
    args, when = event.args, {"block": event.block, "time": event.time}
    if sign < 0 and session.get(LockRow, args["key"]) is None:
        return
    held = _row(session, LockRow, key=args["key"], account=args["account"], amount="0", **when)
    held.amount = added(held.amount, sign * int(args["amount"]))
    if sign < 0 and int(held.amount) <= 0:
        session.delete(held)


def _row(session: Session, table: type[RowT], **new: Any) -> RowT:
    """Returns the row with these keys; a new one if there is none."""
    row = session.get(table, tuple(new[column.name] for column in table.__table__.primary_key))
    if row is None:
        row = table(**new)
        session.add(row)
    return row
