"""The market's money: totals, flows by the hour, and what compute costs and earns."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator import views
from coordinator.context import ApiContext
from coordinator.models import AccountRow, ClaimRow, CursorRow, FlowRow
from coordinator.money import HOUR
from coordinator.queries import counted
from coordinator.schema import EconomyOut, PriceOut
from lockstep.protocol.types import MERGE_SLOT

DAY_HOURS = 24
PRICED_RUNS = 20
"""The latest runs whose prices are shown."""


def economy(context: ApiContext) -> EconomyOut:
    """All money that ever moved, what is staked now, and what compute costs and earns."""
    with context.database.reading() as session:
        found = counted(context, session, "economy", _moved)
    return EconomyOut(prices=_prices(context), **found)


def _moved(session: Session) -> dict[str, Any]:
    cursor = session.get(CursorRow, 1)
    now = cursor.time if cursor else 0
    since = now - DAY_HOURS * HOUR
    rows = session.scalars(select(FlowRow).order_by(FlowRow.hour, FlowRow.kind)).all()
    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        totals[row.kind] += int(row.amount)
    paid = [row for row in rows if row.kind == "paid"]
    # A market that is younger than a day has fewer hours.
    hours = max(1, min(DAY_HOURS, -(-(now - paid[0].hour) // HOUR))) if paid else 1
    each = sum(int(row.amount) for row in paid if row.hour > since) // hours
    recent = select(ClaimRow).where(ClaimRow.time > since, ClaimRow.slot != MERGE_SLOT).subquery()
    good = recent.c.state.in_(views.MADE)
    workers = session.scalar(select(func.count(recent.c.worker.distinct())).where(good)) or 0
    free = sum(int(amount) for amount in session.scalars(select(AccountRow.free)))
    locked = sum(int(amount) for amount in session.scalars(select(AccountRow.locked)))
    return {
        "totals": {kind: str(amount) for kind, amount in totals.items()}, "staked": str(free + locked),
        "locked": str(locked), "paid_hour": str(each), "workers": workers, "earned_hour": str(each // max(1, workers)),
        "slots": session.scalar(select(func.count()).select_from(recent)),
        "hours": [{"hour": row.hour, "kind": row.kind, "amount": row.amount} for row in rows],
    }  # fmt: skip


def _prices(context: ApiContext) -> list[PriceOut]:
    runs = views.runs(context, PRICED_RUNS, None).items
    return [PriceOut(job=run.id, price=run.operations_price) for run in runs if run.operations_price is not None]
