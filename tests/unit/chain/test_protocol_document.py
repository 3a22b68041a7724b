"""docs/protocol.md names every function and event of the contracts, with the ABI's argument names, and no other."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from lockstep.chain import artifacts
from lockstep.protocol.jobs import (
    Genesis,
    JobParams,
    Merging,
    Pricing,
    Role,
    RoundSchedule,
    SpecRef,
    Windows,
)

CONTRACTS = ("StakeVault", "JobMarket", "DisputeGame", "Arbiter", "Validator", "Availability", "Witnesses")
CALL = re.compile(r"(\w+)\(([\w, ]*)\)")


def _listed(document: str, contract: str, *, events: bool) -> dict[str, list[str]]:
    """{name: arguments} of the blocks' lines under "<contract>, <who>"."""
    found: dict[str, list[str]] = {}
    for block in re.findall(r"^```\w*\n(.*?)^```$", document, re.DOTALL | re.MULTILINE):
        heading = ""
        for line in block.splitlines():
            if not line.startswith("  "):
                heading = line
            elif heading.startswith(contract + ",") and heading.endswith(", events") == events:
                for name, arguments in CALL.findall(line):
                    found[name] = [a.strip() for a in arguments.split(",") if a.strip()]
    return found


@pytest.fixture
def document(repository: Path) -> str:
    return (repository / "docs/protocol.md").read_text()


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("kind", ["function", "event"])
def test_the_document_lists_what_the_contract_has(document: str, contract: str, kind: str) -> None:
    entries = artifacts.load(contract).entries(kind)
    due = {name: [part["name"] for part in entry["inputs"]] for name, entry in entries.items()}
    assert _listed(document, contract, events=kind == "event") == due


@pytest.mark.parametrize(
    "group",
    [JobParams, SpecRef, Genesis, RoundSchedule, Windows, Merging, Pricing, Role],
    ids=lambda group: group.__name__,
)
def test_the_document_has_the_parameters_in_order(document: str, group: type) -> None:
    struct = re.search(rf"struct {group.__name__} \{{(.*?)\}}", document, re.DOTALL)
    assert struct is not None
    names = re.findall(r"[\w\[\]]+ (\w+);", struct[1])
    assert [artifacts.snake(name) for name in names] == [of.name for of in fields(group)]


def test_the_document_has_every_phase_of_a_game(document: str) -> None:
    solidity = {e["name"] for e in artifacts.load("DisputeGame").entries("function").values()}
    moves = set(re.findall(r"\| `(\w+)\(", document))
    assert moves <= solidity
    assert solidity - moves == {
        "market",
        "vault",
        "arbiter",
        "game",
        "defending",
        "gameIdOf",
        "equivocate",
    }
