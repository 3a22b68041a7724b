"""Loads the committed artifacts of the contracts: ABI and bytecode by name, as written by tools/build_contracts.py."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from lockstep.protocol.hashing import keccak

NAMES = (
    "Arbiter", "Availability", "DisputeGame", "JobMarket", "Jobs", "Rounds", "Settling", "StakeVault", "TestToken",
    "Validator", "Witnesses",
)  # fmt: skip


@dataclass(frozen=True)
class Artifact:
    """One compiled contract."""

    name: str
    abi: list[dict[str, Any]]
    bytecode: str
    """Creation code, 0x-prefixed hexadecimal, with placeholders for the libraries' addresses at `links`."""
    links: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Maps a library's name to the byte offsets of its address in the creation code."""
    runtime: str = "0x"
    """The code on chain, with zeros in place of immutables."""
    runtime_links: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Maps a library's name to the byte offsets of its address in the runtime code."""
    immutables: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Maps an immutable's name to the byte offsets of its 32-byte value in the runtime code."""

    def linked(self, libraries: Mapping[str, str]) -> str:
        """Returns the creation code, linked with the libraries' addresses (0x...)."""
        code = self.bytecode[2:]
        for name, offsets in self.links.items():
            for at in offsets:
                code = code[: 2 * at] + libraries[name][2:].lower() + code[2 * at + 40 :]
        return "0x" + code

    @property
    def runtime_bytes(self) -> int:
        """The size of the contract's code on chain, which EIP-170 bounds."""
        return len(self.runtime) // 2 - 1

    def entries(self, kind: str) -> dict[str, dict[str, Any]]:
        """Returns the ABI's functions, events or errors by name; no contract overloads a name."""
        return {entry["name"]: entry for entry in self.abi if entry["type"] == kind}


@cache
def load(name: str) -> Artifact:
    """Loads the artifact of a contract named in NAMES."""
    value = json.loads(resources.files(__package__).joinpath("abi", f"{name}.json").read_text())
    links = {
        library: tuple(place["start"] for place in places)
        for file in value.get("linkReferences", {}).values()
        for library, places in file.items()
    }
    inner = {key: tuple(offsets) for key, offsets in value.get("runtimeLinks", {}).items()}
    holes = {key: tuple(offsets) for key, offsets in value.get("immutables", {}).items()}
    return Artifact(value["contractName"], value["abi"], value["bytecode"], links, value["runtime"], inner, holes)


def verification() -> dict[str, Any]:
    """Returns a block explorer's input for the same bytes: `compiler`, `contracts` (name -> file:name), `input`."""
    found: dict[str, Any] = json.loads(
        gzip.decompress(resources.files(__package__).joinpath("abi", "verification.json.gz").read_bytes())
    )
    return found


def snake(name: str) -> str:
    """Converts a Solidity name to snake case: traceRoot -> trace_root."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower().removesuffix("_")


def abi_type(entry: dict[str, Any]) -> str:
    """Returns the canonical type of an ABI input, with tuples expanded, as selectors and decoders need it."""
    kind: str = entry["type"]
    if not kind.startswith("tuple"):
        return kind
    return "(" + ",".join(abi_type(part) for part in entry["components"]) + ")" + kind.removeprefix("tuple")


def signature(entry: dict[str, Any]) -> str:
    """Returns the signature of an ABI entry: name(type,type,...)."""
    return f"{entry['name']}({','.join(abi_type(part) for part in entry['inputs'])})"


def selector(entry: dict[str, Any]) -> bytes:
    """Returns the selector of a function or an error, the first four bytes of its call or revert data."""
    return keccak(signature(entry).encode())[:4]


@cache
def functions(contract: str) -> dict[bytes, dict[str, Any]]:
    """Returns the functions of a contract's ABI by selector."""
    return {selector(entry): entry for entry in load(contract).entries("function").values()}


@cache
def function(contract: str, name: str) -> dict[str, Any]:
    """Returns the ABI entry of a function."""
    return load(contract).entries("function")[name]
