"""The published schemas: one for each command, amounts strings everywhere, lines that differ refused."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from lockstep.base.networks import PROGRAMS
from lockstep.chain import artifacts
from lockstep.chain.plain import plain
from lockstep.cli.schema import COMMON, bundled, names
from lockstep.market.demands import DEMAND_EVENTS
from lockstep.protocol.market.events import EVENTS
from lockstep.protocol.reverts import HINTS
from tests.support.published import STREAMS, amounts, commands, faults, numbers

from .conftest import Lockstep

OTHERS = {"envelope", "error"}
WATCHED = ("JobMarket", "Witnesses", "Availability", "Validator")
"""Contracts whose events may name a job."""
MONEY = (
    "amount", "bond", "burned", "coin", "cost", "credits", "debit", "deposit", "earned", "escrow", "fee", "fees",
    "locked", "paid", "price", "prize", "refunded", "returned", "reward", "slashed", "stake", "staked", "unbonding",
    "wallet", "withdrawn",
)  # fmt: skip
"""Words that name money."""


def files() -> dict[str, dict[str, Any]]:
    """Every file of the package."""
    folder = resources.files("lockstep").joinpath("schemas")
    return {f.name.removesuffix(".json"): json.loads(f.read_text()) for f in folder.iterdir()}


def objects(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of a schema that has properties, and where it stands."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield path, schema
        for name, inner in schema.items():
            yield from objects(inner, f"{path}/{name}")
    elif isinstance(schema, list):
        for i, inner in enumerate(schema):
            yield from objects(inner, f"{path}/{i}")


def kinds(schema: dict[str, Any]) -> set[str]:
    """The types that a property of a bundled schema may have; a reference is its target's name."""
    if "$ref" in schema:
        return {schema["$ref"].rpartition("/")[2]}
    if "anyOf" in schema:
        return set().union(*map(kinds, schema["anyOf"]))
    named = schema.get("type", [])
    return {named} if isinstance(named, str) else set(named)


def test_every_command_has_a_schema_and_every_schema_a_command() -> None:
    assert {".".join(words) for words in commands()} == set(names()) - OTHERS
    assert set(files()) == {*names(), COMMON}


@pytest.mark.sampled(64)
@pytest.mark.parametrize("name", sorted(files()))
def test_a_schema_is_one_of_2020_12_with_its_name_and_closed(name: str) -> None:
    schema = files()[name]
    assert (schema["$schema"], schema["$id"]) == ("https://json-schema.org/draft/2020-12/schema", f"{name}.json")
    assert schema["title"], "it says what it is of"
    Draft202012Validator.check_schema(schema)
    for where, part in objects(schema):
        assert part.get("additionalProperties") is False, f"{where} lets anything in"
        assert set(part["required"]) <= part["properties"].keys(), where


@pytest.mark.parametrize("name", names())
def test_a_bundled_schema_refers_to_itself_alone(name: str) -> None:
    text = json.dumps(bundled(name))
    assert ".json#" not in text
    shown = bundled(name)
    for target in {part.split('"')[0] for part in text.split('"$ref": "')[1:]}:
        assert target.removeprefix("#/$defs/") in shown["$defs"], target


@pytest.mark.parametrize("name", names())
def test_no_property_that_names_an_amount_is_a_number(name: str) -> None:
    for where, part in objects(bundled(name)):
        for key, value in part["properties"].items():
            if key in amounts():
                assert not kinds(value) & {"integer", "number"}, f"{where}: {key} is a number"


def test_the_keys_that_name_money_are_amounts() -> None:
    """Money by its word, in every schema: nothing of it is a number."""
    for name in names():
        for where, part in objects(bundled(name)):
            for key, value in part["properties"].items():
                if key.rpartition("_")[2] in MONEY:
                    assert not kinds(value) & {"integer", "number", "time"}, f"{name} {where}: {key}"


def test_an_event_of_the_chain_that_names_a_job_is_in_the_schema_of_train_watch() -> None:
    told = {part["properties"]["event"]["const"]: part["properties"] for part in bundled("train.watch")["oneOf"]}
    due: dict[str, set[str]] = {}
    for contract in WATCHED:
        for name, entry in artifacts.load(contract).entries("event").items():
            fields = {artifacts.snake(i["name"]) for i in entry["inputs"]}
            if "job" in fields:
                due[name] = fields | {"event", "block", "chain_time"}
    assert told.pop("loss"), "what the watcher computes, and no event of the chain"
    assert {name: set(fields) for name, fields in told.items()} == due


def test_an_amount_of_an_event_is_a_string_and_a_round_is_a_number() -> None:
    job = bytes(32)
    paid = plain("JobMarket", "Paid", {"job": job, "round": 1, "slot": 2, "account": "0x" + "11" * 20, "amount": 3})
    assert paid == {"job": "00" * 32, "round": 1, "slot": 2, "account": "0x" + "11" * 20, "amount": "3"}
    assert plain("JobMarket", "RoundFinal", {"job": job, "round": 0}, "0x")["job"] == "0x" + "00" * 32


def test_whatever_an_event_of_the_protocol_types_as_wei_is_an_amount_in_train_watch() -> None:
    told = {part["properties"]["event"]["const"]: part["properties"] for part in bundled("train.watch")["oneOf"]}
    wei = 0
    for (contract, name), kind in EVENTS.items():
        for field, type_ in kind.__annotations__.items():
            if type_ == "Wei" and contract in WATCHED and name in told:
                wei += 1
                assert told[name][field]["$ref"].endswith("/amount"), (name, field)
    assert wei > 5


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_event_that_a_program_prints_by_name_is_in_its_schema(repository: Path, program: str) -> None:
    """Names in the source: the first argument of `event` and of a printer's `print_event`, and the table TOLD."""
    known = {part["properties"]["event"]["const"] for part in bundled(f"{program}.up")["oneOf"]}
    printed = set[str]() if program == "worker" else set(DEMAND_EVENTS.values())
    for file in (repository / program).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and node.args:
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if called in ("event", "print_event"):
                    printed |= {c.value for c in ast.walk(node.args[0]) if _is_name(c)}
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "TOLD":
                assert isinstance(node.value, ast.Dict)
                printed |= {v.value for v in node.value.values if isinstance(v, ast.Constant)}
    assert len(printed) > 5
    assert printed - known - {"commit"} == set(), "printed, and in no schema"


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_a_line_that_differs_is_found() -> None:
    ended = {"schema": "lockstep/1", "ok": True, "data": {"withdrawn": "5"}}
    assert list(faults(ended, "train.withdraw")) == []
    for wrong in ({"withdrawn": 5}, {"withdrawn": "5.0"}, {"withdrawn": "5", "more": 1}, {}):
        assert list(faults({**ended, "data": wrong}, "train.withdraw")), wrong
    assert list(faults({**ended, "more": 1}, None)), "the envelope is closed"
    assert list(faults({"schema": "lockstep/1", "ok": False, "error": {"code": "usage"}}, None))
    assert list(faults({"event": "unheard of", "time": 1}, "worker.up"))
    assert list(faults({"event": "ready"}, "train.run")), "it prints no events"
    assert list(numbers({"rows": [{"escrow": 1}]}))
    assert list(numbers({"anything": 2**53 + 1}))
    assert {"amount", "escrow", "wallet", "bond"} <= amounts()


def test_the_command_lists_and_prints_schemas(lockstep: Lockstep) -> None:
    assert lockstep("schema").out.split() == names()
    assert lockstep("schema", "--json").data == {"schemas": names()}
    for asked in (("worker", "status"), ("worker.status",)):
        assert json.loads(lockstep("schema", *asked).out) == bundled("worker.status")
        assert lockstep("schema", *asked, "--json").data == bundled("worker.status")
    missing = lockstep("schema", "wroker", "status", "--json")
    assert (missing.code, missing.error["hint"]) == (7, "did you mean 'worker.status'?")
    assert set(STREAMS) <= set(names())


def test_every_rule_that_contracts_refuse_by_has_a_code_of_the_schema() -> None:
    codes = Draft202012Validator(files()["error"]["properties"]["code"])
    assert [rule for rule in HINTS if not codes.is_valid(f"chain.{rule}")] == []
    assert not codes.is_valid("Chain.EqualBits")
    assert not codes.is_valid("chain. EqualBits")
