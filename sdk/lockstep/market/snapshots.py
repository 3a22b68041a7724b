"""Reads a snapshot of a job (market/waiting.py) from the contracts and the ledger, all at one block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.chain import games
from lockstep.market.waiting import GameSnapshot, JobSnapshot, RoundSnapshot
from lockstep.protocol.dispute.moves import DEFENDERS, Verdict
from lockstep.protocol.jobs import ZERO_ADDRESS, Phase
from lockstep.protocol.market import views
from lockstep.protocol.types import JobId, Seconds

if TYPE_CHECKING:
    from lockstep.chain.contracts import Contracts
    from lockstep.market.ledger import JobLedger, Ledger
    from lockstep.protocol.jobs import JobParams


def snapshot_of(contracts: Contracts, ledger: Ledger, job: JobId, head_age: float | None = None) -> JobSnapshot:
    """Returns a snapshot of a job at the latest block. `head_age`: seconds since that block by the caller's clock."""
    head = contracts.market.w3.eth.get_block("latest")
    block, now = int(head["number"]), Seconds(head["timestamp"])
    known, params, state = ledger.jobs[job], contracts.market.params(job), contracts.market.job(job, block)
    numbers = range(max(min(state.settled, state.started - 1), 0), state.started)
    rounds = tuple(_round(contracts, ledger, known, params, number, (block, now)) for number in numbers)
    return JobSnapshot(job, params, state, rounds, now, known.last, head_age)


def _round(
    contracts: Contracts, ledger: Ledger, job: JobLedger, params: JobParams, number: int, at: tuple[int, Seconds]
) -> RoundSnapshot:  # fmt: skip
    (block, now), market = at, contracts.market
    stored, phase = market.round(job.id, number, block), market.phase(job.id, number, block)
    merging = phase == Phase.MERGING
    seen = job.rounds.get(number)
    slots = {} if seen is None else {claim.id: slot for slot, claim in seen.claims.items()}
    asked = [(slots[d.claim], d.deadline) for d in ledger.demands.values() if d.claim in slots and d.row == 0]
    return RoundSnapshot(
        number, stored, phase, market.merger_of(job.id, number, block) if merging else ZERO_ADDRESS,
        merging and views.turns_over(params, stored, now), {} if seen is None else dict(seen.holders),
        _games(contracts, ledger, job, number) if stored.open_games else (), min(asked, default=None, key=_deadline),
    )  # fmt: skip


def _deadline(asked: tuple[int, Seconds]) -> Seconds:
    return asked[1]


def _games(contracts: Contracts, ledger: Ledger, job: JobLedger, number: int) -> tuple[GameSnapshot, ...]:
    """Returns the running games on claims of a round."""
    found = []
    for record in ledger.games.values():
        if ledger.places.get(record.claim) != (job.id, number) or (place := ledger.find(record.claim)) is None:
            continue
        stored = games.read(contracts.game, record.id, contracts.addresses.block)
        if stored.verdict != Verdict.NONE:
            continue
        defends = stored.phase in DEFENDERS
        found.append(
            GameSnapshot(
                record.id, record.claim, place[2].slot, "defender" if defends else "challenger",
                stored.defender if defends else record.challenger, stored.deadline,
            )
        )  # fmt: skip
    return tuple(found)
