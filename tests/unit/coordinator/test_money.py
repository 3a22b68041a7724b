"""One definition of paid, escrowed and moves: the index's sums are those that the contracts keep, in random markets."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import select

from coordinator.db import Database
from coordinator.models import AccountFlowRow, ClaimRow, FlowRow, GameRow, JobRow, RoleRow
from coordinator.money import COMES, money_of
from coordinator.roles import ANY
from coordinator.views import reason_of
from lockstep.protocol.market.types import BURN
from lockstep.protocol.types import MERGE_SLOT
from tests.rules.scenes import preimage
from tests.support.market.history import History
from tests.support.market.twin import ACCOUNTS, PARAMS, begun
from tests.unit.coordinator.test_rolling_back import events, take


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_money_is_what_the_contracts_keep(database: Database, seed: int) -> None:
    history = History.of(seed).play(150)
    state = history.state
    told = events(history)
    assert take(database, told, told[-1].block) == 0
    with database.reading() as session:
        flows: Counter[str] = Counter()
        for flow in session.scalars(select(FlowRow)):
            flows[flow.kind] += int(flow.amount)
        jobs = {row.id: row for row in session.scalars(select(JobRow))}
        for job, stored in state.jobs.items():
            told_of = jobs["0x" + job.hex()]
            kept = (int(told_of.escrow), int(told_of.paid), int(told_of.refunded))
            assert kept == (stored.escrow, stored.paid, stored.refunded), stored.status
        assert flows["escrowed"] == sum(job.escrow for job in state.jobs.values())
        assert flows["paid"] == sum(job.paid for job in state.jobs.values())
        assert flows["refunded"] == sum(job.refunded for job in state.jobs.values())
        owners = {row.account for row in session.scalars(select(AccountFlowRow))}
        credited = 0
        for account in owners:
            money = money_of(session, account)
            assert all(amount >= 0 for amount in money.values()), (account, money)
            if account != BURN:
                credited += sum(money[kind] for kind in COMES)
            of_claims = session.scalars(select(ClaimRow.paid).where(ClaimRow.worker == account))
            assert sum(map(int, of_claims)) == money["slots"] + money["merges"], "each payment is of a claim"
        known = {row.account for row in session.scalars(select(RoleRow).where(RoleRow.role == ANY))}
        roles = {row.role for row in session.scalars(select(RoleRow))}
        for game in session.scalars(select(GameRow)):
            assert game.moves >= 1
    assert {"requester", "worker"} <= roles
    assert {job.requester for job in state.jobs.values()} <= known
    withdrawn = sum(int(row.args["amount"]) for row in told if row.name == "Withdrawn" and row.args["account"] != BURN)
    left = sum(amount for account, amount in state.credits.items() if account != BURN)
    assert credited == withdrawn + left, "all that came to accounts is named by its kind"


def test_a_claim_of_an_invalid_job_shows_what_the_deposit_paid_for_it(database: Database) -> None:
    w = begun().create(PARAMS)
    w.to_merged()
    w.do("validator", "market.onInvalid", w.job, ACCOUNTS["verifier"])
    w.do("anyone", "market.release", w.job, 0)
    assert take(database, events(w), w.block.number) == 0
    with database.reading() as session:
        claims = session.scalars(select(ClaimRow)).all()
    assert {(claim.state, claim.paid) for claim in claims if claim.slot != MERGE_SLOT} == {
        ("void", str(PARAMS.role.slot_price))
    }
    assert {reason_of(claim.state, claim.paid) for claim in claims} == {"void_paid"}


def test_fees_of_witnesses_whose_round_falls_with_a_merge_are_escrow_again(database: Database) -> None:
    w = begun().create(PARAMS)
    w.do("witness", "witnesses.enrol", w.job, preimage(0))
    w.to_merged(rounds=2).later().to_revealed(1).do("poor", "witnesses.draw", w.job, 1)
    w.later(2, 2).do("poor", "witnesses.draw", w.job, 1)
    merge = w.claim(MERGE_SLOT)
    w.do("game", "market.onOpen", merge, w.held[merge].body)
    w.do("game", "market.onConvicted", merge, 1, [ACCOUNTS["verifier"]], [])
    stored = w.state.jobs[w.job]
    assert stored.escrow == PARAMS.escrow + PARAMS.role.witness_fee
    assert take(database, events(w), w.block.number) == 0
    with database.reading() as session:
        told_of = session.scalars(select(JobRow)).one()
        flows = {row.kind: int(row.amount) for row in session.scalars(select(FlowRow))}
    assert int(told_of.escrow) == flows["escrowed"] == stored.escrow
