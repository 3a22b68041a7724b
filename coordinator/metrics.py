"""Prometheus metrics: requests counted as they come, everything else read from the index at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from coordinator.context import ApiContext
from coordinator.models import ClaimRow, CursorRow, GameRow, JobRow, RoundRow
from coordinator.queries import counted

_requests = CollectorRegistry()
REQUESTS = Counter(
    "lockstep_coordinator_requests_total", "HTTP requests.", ("method", "route", "status"), registry=_requests
)
SECONDS = Histogram(
    "lockstep_coordinator_request_seconds", "Time to answer a request.", ("method", "route"), registry=_requests
)


def observe_request(method: str, route: str, status: int, seconds: float) -> None:
    """Count one answered request; `route` is the pattern, never the path, so that labels stay few."""
    REQUESTS.labels(method, route, str(status)).inc()
    SECONDS.labels(method, route).observe(seconds)


def render(context: ApiContext) -> tuple[bytes, str]:
    """The exposition text and its media type."""
    index = CollectorRegistry()
    index.register(_Index(context))
    if context.account is not None:
        index.register(context.account)
    return generate_latest(_requests) + generate_latest(index), CONTENT_TYPE_LATEST


class _Index(Collector):
    """Gauges over the index's rows."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context

    def collect(self) -> Iterator[Metric]:
        with self._context.database.reading() as session:
            cursor = session.get(CursorRow, 1)
            for name, what, value in (
                ("indexed_block", "Last block whose events are in the index.", cursor.block if cursor else 0),
                ("head_block", "The chain's head when it was last asked.", cursor.head if cursor else 0),
                (
                    "unreadable_logs",
                    "Logs that were skipped, or of which a CID could not be read.",
                    cursor.unreadable if cursor else 0,
                ),
                ("unprojected_events", "Events that fit no row.", cursor.unprojected if cursor else 0),
                (
                    "held_by_fee",
                    "1 while own transactions wait: the base fee is above max_fee.",
                    int(bool(cursor.held)) if cursor else 0,
                ),
            ):
                yield GaugeMetricFamily(f"lockstep_coordinator_{name}", what, value=value)
            for name, counts in counted(self._context, session, "metrics", _by_state).items():
                family = GaugeMetricFamily(
                    f"lockstep_coordinator_{name}", f"{name.capitalize()} by state.", labels=["state"]
                )
                for state, count in counts.items():
                    family.add_metric([state], count)
                yield family


def _by_state(session: Session) -> dict[str, dict[str, int]]:
    columns: tuple[tuple[str, Any], ...] = (
        ("jobs", JobRow.state),
        ("rounds", RoundRow.state),
        ("claims", ClaimRow.state),
        ("games", func.coalesce(GameRow.verdict, "open")),
    )
    return {
        name: {str(state): int(n) for state, n in session.execute(select(column, func.count()).group_by(column))}
        for name, column in columns
    }
