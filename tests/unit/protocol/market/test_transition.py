"""The state transition knows every function of every contract, and a State is a value."""

from __future__ import annotations

import pytest

from lockstep.chain import artifacts
from lockstep.protocol.jobs import ZERO_ADDRESS
from lockstep.protocol.market.calls import Block, MarketCall
from lockstep.protocol.market.state import FOLD_AT, Deployment, State, Table
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.transition import STRUCTS, VERBS, VIEWS, apply, view
from lockstep.protocol.types import Address, Seconds
from tests.support.market.twin import actor

CONTRACTS = ("Availability", "DisputeGame", "JobMarket", "StakeVault", "TestToken", "Validator", "Witnesses")
AT = Deployment(31_337, *(actor(i) for i in range(1, 8)), Seconds(100))
BLOCK = Block(1, Seconds(1_000))
HONEST, STRANGER = actor(0x11), actor(0x12)


def call(contract: str, function: str, sender: Address, *arguments: object) -> MarketCall:
    return MarketCall(contract, function, sender, arguments)


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_function_of_the_abi_is_known_and_no_other(contract: str) -> None:
    entries = artifacts.load(contract).entries("function")
    reads = {name for name, entry in entries.items() if entry["stateMutability"] in ("view", "pure")}
    assert {f for c, f in VIEWS if c == contract} == reads, "views"
    assert {f for c, f in VERBS if c == contract} == set(entries) - reads, "verbs"


def test_every_struct_that_a_call_carries_has_its_class() -> None:
    for contract in CONTRACTS:
        for entry in artifacts.load(contract).entries("function").values():
            for part in entry["inputs"]:
                if part["type"].startswith("tuple") and entry["name"] not in ("check", "slash", "onConvicted"):
                    name = part["internalType"].removesuffix("[]").rpartition(".")[2].removeprefix("struct ")
                    assert name in STRUCTS, f"{contract}.{entry['name']}: {name}"


def test_a_call_leaves_the_state_before_it_as_it_was() -> None:
    empty = State.empty(AT)
    minted, events = apply(empty, BLOCK, call("TestToken", "mint", STRANGER, HONEST, 7))
    assert view(empty, BLOCK, "TestToken", "balanceOf", HONEST) == 0, "before"
    assert view(minted, BLOCK, "TestToken", "balanceOf", HONEST) == 7, "after"
    assert [e.values for e in events] == [(ZERO_ADDRESS, HONEST, 7)], "one Transfer"
    assert apply(empty, BLOCK, call("TestToken", "mint", STRANGER, HONEST, 7))[0] == minted, "equal calls, equal states"


def test_a_refused_call_changes_nothing_and_says_why() -> None:
    minted, _ = apply(State.empty(AT), BLOCK, call("TestToken", "mint", STRANGER, HONEST, 7))
    with pytest.raises(Reverted) as refused:
        # The stake is written first, then the tokens are not allowed to move.
        apply(minted, BLOCK, call("StakeVault", "deposit", HONEST, 7))
    assert (refused.value.rule, refused.value.values) == ("ERC20InsufficientAllowance", (AT.vault, 0, 7))
    assert minted.free[HONEST] == 0


def test_nobody_moves_nothing_from_the_zero_address() -> None:
    with pytest.raises(Reverted) as refused:
        apply(State.empty(AT), BLOCK, call("TestToken", "transferFrom", STRANGER, ZERO_ADDRESS, STRANGER, 0))
    assert (refused.value.rule, refused.value.values) == ("ERC20InvalidApprover", (ZERO_ADDRESS,)), "as OpenZeppelin's"


def test_arithmetic_overflows_where_soliditys_does() -> None:
    most = (1 << 256) - 1
    minted, _ = apply(State.empty(AT), BLOCK, call("TestToken", "mint", STRANGER, HONEST, most))
    with pytest.raises(Reverted, match="Panic"):
        apply(minted, BLOCK, call("TestToken", "mint", STRANGER, STRANGER, 1))


def test_a_table_folds_and_forgets_its_zeros() -> None:
    table: Table[int, int] = Table(0)
    for i in range(10 * FOLD_AT):
        table = table.with_({i: i})
    table = table.with_(dict.fromkeys(range(5 * FOLD_AT), 0))
    assert len(table) == 5 * FOLD_AT
    assert dict(table.items()) == {i: i for i in range(5 * FOLD_AT, 10 * FOLD_AT)}
    assert 3 not in table, "a zero is nothing"
