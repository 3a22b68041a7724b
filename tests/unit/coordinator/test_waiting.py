"""A run's waiting by the index is what `train why` says by the chain, at every point of a job."""

from __future__ import annotations

from sqlalchemy import select

from coordinator.db import Database
from coordinator.indexer import Indexer, params_json
from coordinator.models import CursorRow, JobRow
from coordinator.reading import hex32
from coordinator.waiting import params_of, snapshot, waiting
from lockstep.market.snapshots import snapshot_of
from lockstep.market.waiting import HALTED_SECONDS, Waiting, waiting_of
from lockstep.protocol.jobs import Phase
from tests.support.world import World

from .conftest import job_row

PHASES = (Phase.SEALING, Phase.TRAINING, Phase.REVEALING, Phase.ATTESTING, Phase.FREEZING, Phase.MERGING)


def told(world: World, database: Database) -> Waiting:
    """By the index, which is brought up to the head."""
    Indexer(database, world.devnet.w3, world.contracts.addresses).catch_up()
    with database.reading() as session:
        return waiting_of(snapshot(session, session.get_one(JobRow, hex32(world.job)), world.now))


def compared(world: World, database: Database) -> str:
    """The reason, by both."""
    by_chain = waiting_of(snapshot_of(world.contracts, world.ledger(), world.job))
    assert told(world, database) == by_chain
    return by_chain.code


def test_the_index_and_the_chain_say_the_same_from_the_opening_to_the_merge(database: Database) -> None:
    world = World.start(slots=3, min_slots=2, rounds=2)
    market = world.contracts.market
    codes = [compared(world, database)]
    world.send(market.start_round(world.job, 0), "requester")
    world.send(market.join(world.job, 0, 0), "worker-0")
    codes.append(compared(world, database))
    world.send(market.leave(world.job, 0, 0), "worker-0")
    for phase in PHASES:
        world.to(phase)
        codes.append(compared(world, database))
    turn, opened = world.params.merge.turn_seconds, market.round(world.job, 0).merge_opens
    for n in (1, 4):
        world.pass_to(opened + n * turn)
        codes.append(compared(world, database))
    assert codes == [
        "unstarted", "joining", "seed", "training", "revealing", "attesting", "freezing", "aggregator", "merge",
        "unmerged",
    ]  # fmt: skip


def test_the_index_and_the_chain_say_the_same_of_merges_ahead_and_of_a_round_that_nobody_reveals(
    database: Database,
) -> None:
    world = World.start(slots=3, min_slots=2, rounds=4, max_lead=3, max_fail=2)
    market = world.contracts.market
    world.to(Phase.LEAD)
    codes = [compared(world, database)]
    world.send(market.back(world.job, 0, 2), "aggregator")
    codes.append(compared(world, database))
    world.to(Phase.TRAINING, 1)
    world.pass_to(market.round(world.job, 1).commit_ends)
    codes.append(compared(world, database))
    world.send(market.freeze(world.job, 1, []), "requester")
    codes.append(compared(world, database))
    world.to(Phase.FINAL)
    codes.append(compared(world, database))
    world.to(Phase.LEAD, 2)
    codes.append(compared(world, database))
    assert codes == ["unbacked", "unstarted", "freezing", "unstarted", "unstarted", "unbacked"]


def test_the_index_and_the_chain_say_the_same_of_failed_and_cancelled_rounds(database: Database) -> None:
    world = World.start(slots=3, min_slots=2, rounds=3, max_fail=1)
    market = world.contracts.market
    for number in (0, 1):
        world.send(market.start_round(world.job, number), "requester")
        world.pass_to(market.round(world.job, number).join_ends)
        assert compared(world, database) == "too_few"
        world.send(market.seal(world.job, number), "requester")
        assert compared(world, database) == ("unstarted", "unfinished")[number]
    world.send(market.finish(world.job), "requester")
    assert compared(world, database) == "done"


def test_an_index_without_a_job_s_terms_says_nothing(database: Database) -> None:
    with database.session() as session:
        session.add(job_row())
    with database.reading() as session:
        assert waiting(session, session.get_one(JobRow, job_row().id)) is None


def test_a_chain_that_has_brought_no_block_is_what_an_open_job_waits_for(database: Database) -> None:
    world = World.start(slots=3, min_slots=2, rounds=2)
    Indexer(database, world.devnet.w3, world.contracts.addresses).catch_up()
    codes = []
    for age in (HALTED_SECONDS, HALTED_SECONDS + 1):
        with database.session() as session:
            cursor = session.scalars(select(CursorRow)).one()
            cursor.checked = cursor.time + age
        with database.reading() as session:
            found = waiting(session, session.get_one(JobRow, hex32(world.job)))
            assert found is not None
            codes.append(found.code)
    assert codes == ["unstarted", "chain_halted"]


def test_terms_come_back_from_their_json() -> None:
    params = World.start(carry_period=2, max_lead=4).params
    assert params_of(params_json(params)) == params
