"""Every percentage and limit has one home in each language, and the same value in both."""

from __future__ import annotations

import ast
import json
import re
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
HOME = ROOT / "contracts/libraries/Constants.sol"
PROTOCOL = ROOT / "sdk/lockstep/protocol"
SECTION = re.compile(r"^// -- (\S+)\.py$|^\w+ constant (\w+) =", re.MULTILINE)
SOLIDITY = sorted(path for path in (ROOT / "contracts").rglob("*.sol") if path != HOME)

NAMESAKES = {"MAX_DEPTH": {"merkle"}}
"""Modules of the protocol where a name means something else: the depth up to which EMPTY's roots are made ready."""


@cache
def twins() -> dict[str, str]:
    """Each constant's name, and the Python module that its section names."""
    found, module = {}, ""
    for section, name in SECTION.findall(HOME.read_text()):
        module = section or module
        if name:
            found[name] = module
    return found


@cache
def solidity() -> dict[str, int]:
    """The constants' values, from the syntax tree that the compiler makes of their file."""
    path = HOME.relative_to(ROOT).as_posix()
    request = {
        "language": "Solidity",
        "sources": {path: {"content": HOME.read_text()}},
        "settings": {"outputSelection": {"*": {"": ["ast"]}}},
    }
    run = subprocess.run(
        [ROOT / "tools/solc", "--standard-json"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    known: dict[str, int] = {}
    for node in json.loads(run.stdout)["sources"][path]["ast"]["nodes"]:
        if node["nodeType"] == "VariableDeclaration":
            known[node["name"]] = value_of(node["value"], known)
    return known


def value_of(node: dict[str, Any], known: dict[str, int]) -> int:
    """The value of an expression of literals, earlier constants and `type(uintN).max`."""
    match node["nodeType"]:
        case "Literal":
            return int(node["value"].replace("_", ""), 0) * {None: 1, "days": 86_400}[node.get("subdenomination")]
        case "Identifier":
            return known[node["name"]]
        case "TupleExpression":
            return value_of(node["components"][0], known)
        case "BinaryOperation":
            a, b = (value_of(node[side], known) for side in ("leftExpression", "rightExpression"))
            return {"<<": lambda: a << b, "-": lambda: a - b, "*": lambda: a * b}[node["operator"]]()
        case "MemberAccess" if node["memberName"] == "max":
            bits = re.fullmatch(r"type\(uint(\d+)\)", node["expression"]["typeDescriptions"]["typeString"])
            assert bits, "a maximum of an unsigned type"
            return (1 << int(bits[1])) - 1
    raise AssertionError(f"no constant expression: {node['nodeType']}")


def assigned(path: Path) -> set[str]:
    """The names that a Python module gives a value to."""
    targets: list[ast.expr] = []
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign):
            targets.append(node.target)
    return {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}


@pytest.mark.parametrize("name", twins())
def test_a_constant_is_equal_in_both_languages(name: str) -> None:
    module = import_module("lockstep." + twins()[name].replace("/", "."))
    assert getattr(module, name) == solidity()[name], f"{name} of {twins()[name]}.py"


def test_the_sections_name_every_constant() -> None:
    assert twins().keys() == solidity().keys(), "each constant stands under the Python module of its twin"


def test_a_constant_has_one_home_in_python() -> None:
    homes: dict[str, set[str]] = {name: set() for name in twins()}
    for path in PROTOCOL.rglob("*.py"):
        module = path.relative_to(PROTOCOL).with_suffix("").as_posix()
        for name in assigned(path) & twins().keys():
            homes[name].add(module)
    for name, module in twins().items():
        own = {module.removeprefix("protocol/")}
        assert homes[name] - NAMESAKES.get(name, set()) == own, f"{name} is given its value once"


@pytest.mark.parametrize("path", SOLIDITY, ids=lambda path: path.name)
def test_a_constant_has_one_home_in_solidity(path: Path) -> None:
    named = set(re.findall(r"\bconstant (\w+)\s*=", path.read_text()))
    assert not named & twins().keys(), "declared in Constants.sol"


def test_no_percentage_is_a_bare_number() -> None:
    for path in [*SOLIDITY, *PROTOCOL.rglob("*.py")]:
        bare = re.findall(r"(?:\* *\d+ *//? *100\b|\b\d+ *\* *\w+ *//? *100\b)", path.read_text())
        assert not bare, f"{path.relative_to(ROOT)} has {bare}"
