"""The rows of the vault: each account's money, current locks, and flows by the hour (coordinator.folds).

One definition of what a job has paid serves every page, and it is the contract's own (`JobState.paid`): what left its
escrow for slots, merges and witnesses, and the burned price of payloads that a merge left out. So its escrow, to
which the fees of witnesses whose rounds have fallen are added, is what was paid, what was refunded, and what it still
holds.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from coordinator.folds import MARKET, VAULT, WITNESSES, added, on, row_of
from coordinator.models import (
    AccountFlowRow,
    AccountRow,
    AuditRow,
    ClaimRow,
    EventRow,
    FlowRow,
    JobRow,
    LockRow,
    RoundRow,
    unhex,
)
from lockstep.protocol.market.ids import audit_id
from lockstep.protocol.market.types import BURN, Outcome
from lockstep.protocol.types import MERGE_SLOT, JobId

HOUR = 3600
ACCOUNT_AMOUNTS = ("free", "locked", "unbonding", "credits", "deposited", "slashed", "earned")
"""The columns of an account (`AccountRow`)."""
KINDS = {
    "escrowed": "escrowed for jobs",
    "paid": "paid out of escrow",
    "refunded": "refunded to requesters",
    "from_stakes": "paid out of stakes",
    "slashed": "slashed",
    "burned": "burned",
    "lent": "job deposits",
    "returned": "job deposits returned",
    "deposited": "stake deposited",
    "unbonded": "stake taken out",
    "withdrawn": "credits withdrawn",
}
"""The kinds of flows, with their names on the economy's page."""
COMES = {
    "slots": "pay for slots",
    "merges": "pay for merges",
    "witnessed": "fees of a witness",
    "won": "shares of stakes and bonds",
    "returned": "escrow and deposits back",
}
"""The kinds of money that an account is credited with. `won` is what no other event names."""
GOES = {"escrowed": "escrow and deposits of its jobs", "slashed": "stakes slashed", "bonds": "bonds lost"}
"""The kinds of money that an account pays into jobs, or loses."""
GAINED = ("slots", "merges", "witnessed", "won")
"""The kinds that are earned: a requester's own money that comes back is not."""

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
    "JobCreated": {"escrowed": "escrow", "lent": "deposit"},
    "JobDone": {"returned": "returned"},
}
"""By event: the kinds of flows that it reports, and the argument with the amount."""
ACCOUNTS: dict[str, tuple[str, str]] = {
    "Credited": ("credited", "account"),
    "Escrowed": ("escrowed", "from"),
    "Slashed": ("slashed", "account"),
    "BondTaken": ("bonds", "account"),
}
"""By event of the vault: the kind of the money of an account, and the argument with the account."""


@on(VAULT, *MOVES)
@on(MARKET, "JobCreated", "JobDone")
def _moved(session: Session, event: EventRow) -> None:
    args = event.args
    if signs := MOVES.get(event.name):
        amount = int(args["amount"])
        row = row_of(session, AccountRow, account=args["account"], **dict.fromkeys(ACCOUNT_AMOUNTS, "0"))
        if event.name == "UnbondRequested":
            # The event names the whole of what unbonds.
            amount -= int(row.unbonding)
        for name, sign in signs.items():
            setattr(row, name, added(getattr(row, name), sign * amount))
        if "locked" in signs:
            _lock(session, event, signs["locked"])
    for kind, name in FLOWS.get(event.name, {}).items():
        _flows(session, event, kind, args[name])


@on(VAULT, *ACCOUNTS)
def _of_account(session: Session, event: EventRow) -> None:
    kind, name = ACCOUNTS[event.name]
    _comes(session, event.args[name], kind, event.args["amount"])


# -- a job's escrow


@on(MARKET, "Paid")
def _paid(session: Session, event: EventRow) -> None:
    args = event.args
    # The contract returns the claim's stake first.
    released = _before(session, event, VAULT, "Unlocked")
    claim = None if released is None else session.get(ClaimRow, released.args["key"])
    if claim is not None:
        claim.paid = added(claim.paid, args["amount"])
    _comes(session, args["account"], "merges" if args["slot"] == MERGE_SLOT else "slots", args["amount"])
    number = session.get(RoundRow, (args["job"], args["round"]))
    if number is not None and number.state == "void":
        # Work that fell with a convicted claim is paid out of its stake, that of a void job out of its deposit.
        _flows(session, event, "from_stakes", args["amount"])
    else:
        _spent(session, event, args["job"], args["amount"])


@on(VAULT, "Credited")
def _burned(session: Session, event: EventRow) -> None:
    """The price of payloads that a merge left out is burned out of the escrow when the round becomes final."""
    if event.args["account"] != BURN:
        return
    _flows(session, event, "burned", event.args["amount"])
    last = _before(session, event, MARKET, "RoundFinal", "RoundVoid", "RoundStarted", "JobDone")
    if last is not None and last.name == "RoundFinal":
        _spent(session, event, last.args["job"], event.args["amount"])


def _before(session: Session, event: EventRow, contract: str, *names: str) -> EventRow | None:
    """Returns the last earlier event of these names in the event's transaction."""
    earlier = select(EventRow).where(
        EventRow.tx == event.tx, EventRow.block == event.block, EventRow.log_index < event.log_index,
        EventRow.contract == contract, EventRow.name.in_(names),
    )  # fmt: skip
    return session.scalars(earlier.order_by(EventRow.log_index.desc()).limit(1)).first()


@on(WITNESSES, "AuditOpened")
def _audit(session: Session, event: EventRow) -> None:
    session.merge(AuditRow(id=event.args["audit"], job=event.args["job"], duties=0))


@on(WITNESSES, "AuditDrawn")
def _drawn(session: Session, event: EventRow) -> None:
    session.get_one(AuditRow, event.args["audit"]).duties = event.args["duties"]


@on(MARKET, "RoundVoid")
def _fell(session: Session, event: EventRow) -> None:
    """The fees of the witnesses of a round that falls with a convicted merge come to the escrow, out of its stake."""
    args, job = event.args, session.get_one(JobRow, event.args["job"])
    audit = session.get(AuditRow, "0x" + audit_id(JobId(unhex(job.id)), args["round"], args["attempt"]).hex())
    # No stake pays for the rounds of a job that is void as a whole.
    if audit is None or job.state == "void":
        return
    fees = audit.duties * int(job.params["roles"][0]["witness_fee"])
    job.escrow = added(job.escrow, fees)
    _flows(session, event, "escrowed", fees)


@on(WITNESSES, "DutyClosed")
def _witnessed(session: Session, event: EventRow) -> None:
    args, audit = event.args, session.get_one(AuditRow, event.args["audit"])
    job = session.get_one(JobRow, audit.job)
    if args["outcome"] == Outcome.PAID:
        _comes(session, args["account"], "witnessed", args["amount"])
        _spent(session, event, job.id, args["amount"])
    elif job.state == "done":
        fee = int(job.params["roles"][0]["witness_fee"])
        _refunded(session, event, job, fee)
        job.refunded = added(job.refunded, fee)


@on(MARKET, "JobCancelled", "JobDone")
def _ended(session: Session, event: EventRow) -> None:
    """Both events name all that was refunded so far."""
    job = session.get_one(JobRow, event.args["job"])
    cancelled = select(EventRow).where(
        EventRow.job == job.id, EventRow.contract == MARKET, EventRow.name == "JobCancelled"
    )
    before = sum(int(e.args["refunded"]) for e in session.scalars(cancelled)) if event.name == "JobDone" else 0
    _refunded(session, event, job, int(event.args["refunded"]) - before)
    _comes(session, job.requester, "returned", event.args.get("returned", 0))


def _spent(session: Session, event: EventRow, job: str, amount: str) -> None:
    row = session.get_one(JobRow, job)
    row.paid = added(row.paid, amount)
    _flows(session, event, "paid", amount)


def _refunded(session: Session, event: EventRow, job: JobRow, amount: int) -> None:
    _flows(session, event, "refunded", amount)
    _comes(session, job.requester, "returned", amount)


# -- rows


def _flows(session: Session, event: EventRow, kind: str, amount: int | str) -> None:
    if int(amount):
        flow = row_of(session, FlowRow, hour=event.time - event.time % HOUR, kind=kind, amount="0")
        flow.amount = added(flow.amount, amount)


def _comes(session: Session, account: str, kind: str, amount: int | str) -> None:
    if int(amount):
        flow = row_of(session, AccountFlowRow, account=account, kind=kind, amount="0")
        flow.amount = added(flow.amount, amount)


def money_of(session: Session, account: str) -> dict[str, int]:
    """Returns the money of an account by the kinds of COMES and GOES."""
    rows = session.scalars(select(AccountFlowRow).where(AccountFlowRow.account == account))
    found = {row.kind: int(row.amount) for row in rows}
    named = sum(found.get(kind, 0) for kind in COMES)
    return {**{kind: found.get(kind, 0) for kind in (*COMES, *GOES)}, "won": found.get("credited", 0) - named}


def _lock(session: Session, event: EventRow, sign: int) -> None:
    args, when = event.args, {"block": event.block, "time": event.time}
    if sign < 0 and session.get(LockRow, args["key"]) is None:
        return
    held = row_of(session, LockRow, key=args["key"], account=args["account"], amount="0", **when)
    held.amount = added(held.amount, sign * int(args["amount"]))
    if sign < 0 and int(held.amount) <= 0:
        session.delete(held)
