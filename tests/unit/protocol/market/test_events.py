"""The typed events are the ABI's: every event of every contract that a party reads, field by field, in order."""

from __future__ import annotations

from dataclasses import fields

import pytest

from lockstep.chain import artifacts
from lockstep.protocol.market.events import EVENTS, Logged

CONTRACTS = ("JobMarket", "StakeVault", "Witnesses", "Availability", "Validator")
WIDTHS = {"Address": "address", "bool": "bool", "bytes": "bytes", "Cid": "bytes", "GameState": "tuple"}
NUMBERS = {"int", "Wei", "Seconds"}


def test_every_event_that_is_no_move_has_a_class() -> None:
    emitted = {(name, event) for name in CONTRACTS for event in artifacts.load(name).entries("event")}
    assert set(EVENTS) == emitted | {("DisputeGame", "Opened"), ("DisputeGame", "Resolved")}


@pytest.mark.parametrize("kind", EVENTS.values(), ids=lambda kind: kind.__name__)
def test_fields_are_the_abis_in_order_and_kind(kind: type[Logged]) -> None:
    inputs = artifacts.load(kind.contract).entries("event")[kind.event]["inputs"]
    own = fields(kind)  # type: ignore[arg-type]
    assert [f.name.rstrip("_") for f in own] == [artifacts.snake(part["name"]) for part in inputs]
    for f, part in zip(own, inputs, strict=True):
        if part["type"].startswith("uint"):
            assert f.type in NUMBERS, f.name
        else:
            assert WIDTHS.get(str(f.type), "bytes32") == part["type"], f.name
