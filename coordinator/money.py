"""The vault's rows: each account's money, what is locked now, what moved in each hour (coordinator.folds)."""

from __future__ import annotations

from sqlalchemy.orm import Session

from coordinator.folds import MARKET, VAULT, added, on
from coordinator.models import AccountRow, EventRow, FlowRow, LockRow

HOUR = 3600
AMOUNTS = ("free", "locked", "unbonding", "credits", "deposited", "slashed", "earned")
"""The amounts of an account."""


@on(VAULT, "Deposited")
def _deposited(session: Session, event: EventRow) -> None:
    amount = event.args["amount"]
    _move(session, event.args["account"], free=amount, deposited=amount)
    _flow(session, event, "deposited", amount)


@on(VAULT, "Locked")
def _locked(session: Session, event: EventRow) -> None:
    args, amount = event.args, event.args["amount"]
    _move(session, args["account"], free=-int(amount), locked=amount)
    held = session.get(LockRow, args["key"])
    if held is None:
        held = LockRow(key=args["key"], account=args["account"], amount="0", block=event.block, time=event.time)
        session.add(held)
    held.amount = added(held.amount, amount)


@on(VAULT, "Unlocked")
def _unlocked(session: Session, event: EventRow) -> None:
    args, amount = event.args, event.args["amount"]
    _move(session, args["account"], free=amount, locked=-int(amount))
    _release(session, args["key"], amount)


@on(VAULT, "Slashed", "BondTaken")
def _taken(session: Session, event: EventRow) -> None:
    args, amount = event.args, event.args["amount"]
    _move(session, args["account"], locked=-int(amount), slashed=amount)
    _release(session, args["key"], amount)
    _flow(session, event, "slashed", amount)
    _flow(session, event, "burned", args["burned"])


@on(VAULT, "UnbondRequested")
def _unbond_requested(session: Session, event: EventRow) -> None:
    # The event names the whole of what unbonds.
    row = _account(session, event.args["account"])
    more = int(event.args["amount"]) - int(row.unbonding)
    _move(session, event.args["account"], free=-more, unbonding=more)


@on(VAULT, "Unbonded")
def _unbonded(session: Session, event: EventRow) -> None:
    _move(session, event.args["account"], unbonding=-int(event.args["amount"]))
    _flow(session, event, "unbonded", event.args["amount"])


@on(VAULT, "Credited")
def _credited(session: Session, event: EventRow) -> None:
    _move(session, event.args["account"], credits=event.args["amount"], earned=event.args["amount"])


@on(VAULT, "Withdrawn")
def _withdrawn(session: Session, event: EventRow) -> None:
    _move(session, event.args["account"], credits=-int(event.args["amount"]))
    _flow(session, event, "withdrawn", event.args["amount"])


@on(VAULT, "Escrowed")
def _escrowed(session: Session, event: EventRow) -> None:
    _flow(session, event, "escrowed", event.args["amount"])


@on(MARKET, "Paid")
def _paid_out(session: Session, event: EventRow) -> None:
    _flow(session, event, "paid", event.args["amount"])


@on(MARKET, "JobDone", "JobCancelled")
def _refunded(session: Session, event: EventRow) -> None:
    _flow(session, event, "refunded", event.args["refunded"])


def _account(session: Session, account: str) -> AccountRow:
    row = session.get(AccountRow, account)
    if row is None:
        row = AccountRow(account=account, **dict.fromkeys(AMOUNTS, "0"))
        session.add(row)
    return row


def _move(session: Session, account: str, **by: int | str) -> None:
    row = _account(session, account)
    for name, amount in by.items():
        setattr(row, name, added(getattr(row, name), amount))


def _release(session: Session, key: str, amount: int | str) -> None:
    held = session.get(LockRow, key)
    if held is None:
        return
    held.amount = str(int(held.amount) - int(amount))
    if int(held.amount) <= 0:
        session.delete(held)


def _flow(session: Session, event: EventRow, kind: str, amount: int | str) -> None:
    if not int(amount):
        return
    hour = event.time - event.time % HOUR
    row = session.get(FlowRow, (hour, kind))
    if row is None:
        row = FlowRow(hour=hour, kind=kind, amount="0")
        session.add(row)
    row.amount = added(row.amount, amount)
