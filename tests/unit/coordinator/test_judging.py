"""Payloads that were asked for are judged, and what they are is in the index for the next decision."""

from __future__ import annotations

from typing import Any

from coordinator import reading
from coordinator.decide import AggregatorJob, AggregatorRound
from coordinator.merging import Aggregators
from coordinator.models import ClaimRow, PayloadRow
from lockstep.execution.rounds import Payload
from lockstep.protocol.jobs import JobState, JobStatus, Phase, Round
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.types import JobId
from tests.support.coordinating import ME
from tests.unit.coordinator.conftest import JOB, Api, claim_row
from tests.unit.coordinator.test_decide import PARAMS


class Judge:
    """In the place of an aggregator."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def judge(self, ref: Payload) -> tuple[Report, str]:
        self.asked.append(ref.cid)
        return (Report.DECODED, "") if ref.cid == "payload0" else (Report.MISSING, "nobody has it")


def test_what_was_asked_for_is_judged_and_judged_again_if_it_was_missing(api: Api, parts: Any) -> None:
    with api.context.database.session() as session:
        session.delete(session.get_one(ClaimRow, claim_row().id))
        session.flush()
        for slot in range(3):
            row = claim_row(slot)
            row.payload_cid, row.state = f"payload{slot}", "revealed"
            session.add(row)
    view = AggregatorRound(0, Phase.ATTESTING, Round())
    seen = AggregatorJob(PARAMS, JobState(ME, JobStatus.ACTIVE, started=1), False, (view,))
    judge: Any = Judge()
    parts.database, job = api.context.database, JobId(reading.unhex(JOB))
    aggregators = Aggregators(parts)
    aggregators._made[job] = judge
    for wanted in ([(0, 0), (0, 2)], [(0, 2)]):
        aggregators.judge(job, PARAMS, seen, wanted)
    assert judge.asked == ["payload0", "payload2", "payload2"], "nothing that was not asked for"
    with api.context.database.reading() as session:
        found = {slot: session.get(PayloadRow, claim_row(slot).id) for slot in range(3)}
    told = {slot: None if row is None else (row.report, row.reason) for slot, row in found.items()}
    assert told == {0: (Report.DECODED.value, ""), 1: None, 2: (Report.MISSING.value, "nobody has it")}
