"""A head that flaps has what its dropped events changed undone, and nothing folded anew."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from coordinator import indexer, undoing
from coordinator.db import Database
from coordinator.folds import PROJECTED, apply, rebuild
from coordinator.models import EventRow, IndexTable, UndoRow
from lockstep.chain.events import Cursor, EventBatch, decode_log
from lockstep.chain.plain import plain
from lockstep.protocol.types import JobId
from tests.support.market.history import Act, History
from tests.support.market.twin import Sent, World
from tests.support.memory import abi
from tests.unit.coordinator.test_stream import add


def back_to(database: Database, block: int | None, unprojected: int = 0) -> int:
    with database.session() as session:
        return indexer._roll_back(session, EventBatch((), Cursor(0, ()), rolled_back_to=block), unprojected)


def rows(session: Session) -> dict[str, list[dict[str, Any]]]:
    """Every row that is folded."""
    tables = [IndexTable.metadata.tables[kind.__tablename__] for kind in PROJECTED]
    return {
        table.name: [dict(row) for row in session.execute(select(table).order_by(*table.primary_key)).mappings()]
        for table in tables
    }


def events(world: World) -> list[EventRow]:
    """All that a market said, as the indexer stores it."""
    found: list[EventRow] = []
    acts: Sequence[Act | Sent] = world.acts if isinstance(world, History) else world.sent
    for number, act in enumerate(acts):
        transaction = number.to_bytes(32, "big")
        if isinstance(act.said, Exception):
            continue
        for said in act.said.events:
            topics, data = abi.log_of(said)
            at = sum(row.block == act.block.number for row in found[-500:])
            entry = {"topics": topics, "data": data, "blockNumber": act.block.number, "blockHash": bytes(32),
                     "transactionHash": transaction, "logIndex": at}  # fmt: skip
            event = decode_log(entry, said.contract, act.block.time)
            assert event is not None
            args = plain(event.contract, event.name, event.args, "0x")
            if event.name == "JobCreated":
                args["params"] = indexer.params_json(world.state.params[JobId(event.args["job"])])
            found.append(
                EventRow(
                    block=event.block, log_index=at, block_hash="0x" + "00" * 32, tx="0x" + transaction.hex(),
                    time=event.time, contract=event.contract, name=event.name, job=args.get("job"),
                    game=args.get("game"), args=args,
                )
            )  # fmt: skip
    return found


def copied(row: EventRow) -> EventRow:
    return EventRow(**{column.name: getattr(row, column.name) for column in EventRow.__table__.columns})


def take(database: Database, new: list[EventRow], head: int) -> int:
    """Takes events in as the indexer does; returns how many were skipped."""
    skipped = 0
    with database.session() as session:
        for row in new:
            session.add(mine := copied(row))
            session.flush()
            skipped += not apply(session, mine, head)
        undoing.forget(session, head)
    return skipped


def fresh(database: Database) -> tuple[int, dict[str, list[dict[str, Any]]]]:
    """(skipped, rows) of an index that is built of the stored events from nothing."""
    with database.reading() as session:
        return rebuild(session), rows(session)


@pytest.fixture
def none_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """No index is folded anew."""

    def refuse(session: Session) -> int:
        raise AssertionError("the index is folded anew")

    monkeypatch.setattr(indexer, "rebuild", refuse)


def test_nothing_is_folded_anew_for_blocks_without_events(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    add(database, range(5))
    folded: list[int] = []

    def anew(session: Session) -> int:
        folded.append(1)
        return 3

    monkeypatch.setattr(indexer, "rebuild", anew)
    assert [back_to(database, block, 7) for block in (None, 9, 4)] == [7] * 3, "events lie in blocks 0 to 4"
    assert folded == []
    assert back_to(database, 3, 7) == 3, "nothing is kept that could undo them"
    assert folded == [1]
    assert back_to(database, 3, 3) == 3, "they are gone"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(20))
def test_what_is_dropped_is_undone_and_nothing_is_folded_anew(database: Database, seed: int, none_anew: None) -> None:
    dice = random.Random(seed)
    told = events(History.of(seed).play(60))
    assert len({row.name for row in told}) > 10, "a market in which something happens"
    blocks = sorted({row.block for row in told})
    at = skipped = dropped = 0
    while at < len(blocks):
        upto = min(len(blocks), at + dice.randint(1, 25))
        # Another branch of the chain lacks some of the events: others then fit no row.
        branch = [row for row in told if row.block in blocks[at:upto] and dice.random() < 0.97]
        skipped += take(database, branch, blocks[upto - 1])
        at = upto
        if dice.random() < 0.6 or not dropped:
            at = max(0, at - dice.randint(1, 12))
            to = blocks[at] - 1
            with database.reading() as session:
                dropped += session.scalar(select(func.count()).select_from(EventRow).where(EventRow.block > to)) or 0
            skipped = back_to(database, to, skipped)
        with database.reading() as session:
            now = rows(session)
        assert (skipped, now) == fresh(database), f"after block {blocks[at - 1]}"
    assert dropped


def test_undoing_reads_and_writes_no_event_that_stays(database: Database, none_anew: None) -> None:
    told = events(History.of(1).play(40))
    take(database, told, told[-1].block)
    last = [row for row in told if row.block == told[-1].block]
    with database.reading() as session:
        kept = session.scalars(select(UndoRow).where(UndoRow.block == told[-1].block)).all()
    assert len(kept) == len(last), "one for each event"
    assert len(kept) < len(told)
    with database.session() as session:
        # What stays could not be read at all: nothing looks at it.
        session.execute(delete(EventRow).where(EventRow.block < told[-1].block))
    assert back_to(database, told[-1].block - 1) == 0
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(UndoRow)) == len(told) - len(last)


def test_a_chain_that_drops_more_than_is_kept_has_all_folded_anew(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undoing, "KEPT_BLOCKS", 5)
    told = events(History.of(2).play(40))
    blocks = sorted({row.block for row in told})
    for block in blocks:
        take(database, [row for row in told if row.block == block], block)
    back_to(database, blocks[-12])
    with database.reading() as session:
        now = rows(session)
        assert session.scalars(select(UndoRow.block)).all(), "the latest of what stays can be undone again"
    assert now == fresh(database)[1]
