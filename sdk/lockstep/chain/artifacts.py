"""The committed artifacts: ABI and bytecode by contract name (tools/build_contracts.py writes them)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

NAMES = ("Arbiter", "DisputeGame", "JobMarket", "StakeVault", "TestToken", "Validator")


@dataclass(frozen=True)
class Artifact:
    """One compiled contract."""

    name: str
    abi: list[dict[str, Any]]
    bytecode: str
    """Creation code, 0x-prefixed hexadecimal."""

    def entries(self, kind: str) -> dict[str, dict[str, Any]]:
        """The ABI's functions, events or errors by name; no contract here overloads a name."""
        return {entry["name"]: entry for entry in self.abi if entry["type"] == kind}


@cache
def load(name: str) -> Artifact:
    """The artifact of a contract named in NAMES."""
    value = json.loads(resources.files(__package__).joinpath("abi", f"{name}.json").read_text())
    return Artifact(value["contractName"], value["abi"], value["bytecode"])


def snake(name: str) -> str:
    """traceRoot -> trace_root: Solidity's names in Python's hand."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().removesuffix("_")


def abi_type(entry: dict[str, Any]) -> str:
    """The canonical type of an ABI input: tuples written out, as selectors and decoders want it."""
    kind: str = entry["type"]
    if not kind.startswith("tuple"):
        return kind
    return "(" + ",".join(abi_type(part) for part in entry["components"]) + ")" + kind.removeprefix("tuple")


def signature(entry: dict[str, Any]) -> str:
    """name(type,type,...)."""
    return f"{entry['name']}({','.join(abi_type(part) for part in entry['inputs'])})"
