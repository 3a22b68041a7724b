"""A head that flaps has the index folded anew only where the chain dropped events of it."""

from __future__ import annotations

import pytest

from coordinator import indexer
from coordinator.db import Database
from lockstep.chain.events import Cursor, EventBatch
from tests.unit.coordinator.test_stream import add


def test_nothing_is_folded_anew_for_blocks_without_events(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    add(database, range(5))
    folded: list[int] = []
    monkeypatch.setattr(indexer, "rebuild", lambda session: folded.append(1) or 3)

    def back_to(block: int | None) -> int | None:
        with database.session() as session:
            return indexer._roll_back(session, EventBatch((), Cursor(0, ()), rolled_back_to=block))

    assert [back_to(block) for block in (None, 9, 4)] == [None] * 3, "events lie in blocks 0 to 4"
    assert folded == []
    assert back_to(3) == 3
    assert folded == [1]
    assert back_to(3) is None, "they are gone"
