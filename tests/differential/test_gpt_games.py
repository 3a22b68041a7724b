"""Every op kind of a GPT job's three Programs: one flip, convicted on chain, within the limits of gas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.dispute import MAX_TRANSACTION_GAS, MAX_TRANSACTIONS, Row, Shape, run
from lockstep.protocol.programs.program import STOCHASTIC, Kind, Program
from tests.support.arena import Arena

pytestmark = [pytest.mark.chain, pytest.mark.slow]

PRODUCTS = {"quant codes", "quant scales", "fold qdot"}
"""The forms that products of integers add to a step."""
SMALL_GAS = 1_600_000
"""The limit of the largest models is 1.9 M (`benchmarks.dispute`)."""
SHAPE = Shape(layers=2, width=128, context=32, rows=4)


def forms(program: Program) -> Iterator[int]:
    """One op of each form of a quantisation and of a product of codes; where a Program has none, its last."""
    seen: dict[tuple[object, ...], int] = {}
    for index, op in enumerate(program.ops):
        if op.kind == Kind.QUANT:
            ragged = op.k_extents[0] % (4 * op.p0) != 0
            seen.setdefault((op.kind, op.mode, op.p1 >= STOCHASTIC, ragged), index)
        elif op.is_qdot:
            seen.setdefault((op.kind, op.mode, op.p0, min(op.chunks, 3)), index)
    yield from seen.values() or [len(program.ops) - 1]


@pytest.fixture(scope="module", params=["float32", "int8"])
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Row]]:
    pytest.importorskip("torch")
    folder: Path = tmp_path_factory.mktemp("chain")
    arena = Arena.start(folder)
    yield list(run(replace(SHAPE, products=request.param), arena))
    arena.stop()


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Row]]:
    """Both ways about every form of integer products."""
    pytest.importorskip("torch")
    arena = Arena.start(tmp_path_factory.mktemp("chain"))
    yield list(run(replace(SHAPE, products="int8"), arena, forms, both=True))
    arena.stop()


def test_every_program_and_kind_is_played(rows: list[Row], request: pytest.FixtureRequest) -> None:
    played = {(row.program, row.kind) for row in rows}
    products = {"fold dot"} if request.node.callspec.params["rows"] == "float32" else PRODUCTS
    assert {name for name, _ in played} == {"step", "encode", "merge"}
    assert {kind for name, kind in played if name == "step"} >= {
        "map", "gather", "concat", "draw", "fold sum", "fold max", *products,
    }  # fmt: skip
    assert {kind for name, kind in played if name == "encode"} == {"map", "fold max"}
    assert {kind for name, kind in played if name == "merge"} == {"map", "fold sum"}
    assert any(row.chunk > 0 for row in rows), "a chunk that is not the first"
    assert any(row.terms > 65_536 for row in rows), "a fold of two levels"


def test_every_flip_is_convicted_where_it_is(rows: list[Row]) -> None:
    assert [row for row in rows if not (row.convicted and row.exactly)] == []


def test_every_game_keeps_the_limits(rows: list[Row]) -> None:
    check_limits(rows)


def check_limits(rows: list[Row]) -> None:
    for row in rows:
        assert row.transactions <= MAX_TRANSACTIONS, row
        assert row.gas_total <= SMALL_GAS, row
        assert row.gas_max <= MAX_TRANSACTION_GAS, row


def test_codes_scales_groups_and_partials_are_judged_both_ways(integers: list[Row]) -> None:
    played = [row for row in integers if row.kind in PRODUCTS]
    assert {row.kind for row in played} == PRODUCTS
    groups = {row.terms // 256 for row in played if row.kind == "fold qdot"}
    assert 1 in groups, "a group alone"
    assert max(groups) > 1, "groups that are partials"
    assert [row.convicted for row in played] == [True, False] * (len(played) // 2), "each way"
    assert [row for row in played if not row.exactly] == []
    check_limits(integers)
