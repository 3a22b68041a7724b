"""Judging payloads: each that a slot revealed is fetched and decoded, and what it is is written down."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from coordinator import reading
from coordinator.aggregator import Aggregator
from coordinator.db import Database
from coordinator.decide import AggregatorJob
from coordinator.models import PayloadRow
from lockstep.protocol.types import JobId

log = structlog.get_logger(__name__)


def judge(
    database: Database, aggregator: Aggregator, job: JobId, seen: AggregatorJob, wanted: Sequence[tuple[int, int]]
) -> None:
    """Judge the payloads of `wanted`, (round, slot)."""
    with database.reading() as session:
        claims = {
            (r.number, claim.slot): claim
            for r in seen.rounds
            for claim in reading.revealed(session, reading.hex32(job), r.number, r.state.attempt)
        }
    found = []
    for place in wanted:
        claim = claims[place]
        report, reason = aggregator.judge(reading.payload_of(claim))
        found.append(PayloadRow(claim=claim.id, report=report.value, reason=reason))
        log.info("payload checked", claim=claim.id, report=report.value, why=reason)
    with database.session() as session:
        for row in found:
            session.merge(row)
