"""Every op kind of a GPT job's three Programs: one flip, convicted on chain, within the limits of gas."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.dispute import MAX_GAS, MAX_TRANSACTION_GAS, MAX_TRANSACTIONS, Row, Shape, run
from tests.support.arena import Arena

pytestmark = [pytest.mark.chain, pytest.mark.slow]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Row]]:
    pytest.importorskip("torch")
    folder: Path = tmp_path_factory.mktemp("chain")
    arena = Arena.start(folder)
    yield list(run(Shape(layers=2, width=128, context=32, rows=4), arena))
    arena.stop()


def test_every_program_and_kind_is_played(rows: list[Row]) -> None:
    played = {(row.program, row.kind) for row in rows}
    assert {name for name, _ in played} == {"step", "encode", "merge"}
    assert {kind for name, kind in played if name == "step"} >= {
        "map", "gather", "concat", "draw", "fold dot", "fold sum", "fold max",
    }  # fmt: skip
    assert {kind for name, kind in played if name == "encode"} == {"map", "fold max"}
    assert {kind for name, kind in played if name == "merge"} == {"map", "fold sum"}
    assert any(row.chunk > 0 for row in rows), "a chunk that is not the first"
    assert any(row.terms > 65_536 for row in rows), "a fold of two levels"


def test_every_flip_is_convicted_where_it_is(rows: list[Row]) -> None:
    assert [row for row in rows if not (row.convicted and row.exactly)] == []


def test_every_game_keeps_the_limits(rows: list[Row]) -> None:
    for row in rows:
        assert row.transactions <= MAX_TRANSACTIONS, row
        assert row.gas_total <= MAX_GAS, row
        assert row.gas_max <= MAX_TRANSACTION_GAS, row
