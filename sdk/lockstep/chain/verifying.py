"""Verifies a deployment: its code equals this package's, and the contracts refer to one another correctly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.chain import artifacts
from lockstep.chain.addresses import Addresses
from lockstep.chain.artifacts import Artifact
from lockstep.chain.deployment import LIBRARIES, encoded_arguments, wiring
from lockstep.protocol.errors import Mismatch
from lockstep.protocol.market.job_rules import ChainTimes
from lockstep.protocol.types import Address, Seconds

if TYPE_CHECKING:
    from web3 import Web3

NAMES = {
    "token": "TestToken", "vault": "StakeVault", "market": "JobMarket", "game": "DisputeGame", "arbiter": "Arbiter",
    "validator": "Validator", "availability": "Availability", "witnesses": "Witnesses",
}  # fmt: skip
HINT = "do not use this deployment: take the addresses from who deployed it, or deploy your own"
_WORD, _ADDRESS = 32, 20


@dataclass(frozen=True)
class Verified:
    """Result of verifying one contract of a deployment."""

    name: str
    artifact: str
    address: Address
    size: int
    """Bytes of its code on the chain."""
    fault: str = ""
    """Description of the difference from this package's code; "" if there is none."""


@dataclass(frozen=True)
class CodeReport:
    """Result of verifying a whole deployment."""

    contracts: tuple[Verified, ...]
    arguments: Mapping[str, tuple[Address, bytes]]
    """Maps an artifact to (address, encoded constructor arguments) of this package's contracts, as block explorers
    request them.
    """
    unbond_seconds: int = 0
    inclusion_seconds: int = 0
    censor_seconds: int = 0
    foreign_token: bool = False
    """True if the token is not this package's test token; its code is then not checked."""

    def require(self) -> None:
        """Raises `Mismatch` for the first contract that differs."""
        for each in self.contracts:
            if each.fault:
                raise Mismatch(f"{each.artifact} at {each.address}: {each.fault}", HINT)


def verify(w3: Web3, addresses: Addresses) -> CodeReport:
    """Compares the code at every address with this package's; returns a report of the differences."""
    codes = {name: _code(w3, getattr(addresses, name)) for name in NAMES}
    market, vault = artifacts.load("JobMarket"), artifacts.load("StakeVault")
    libraries = _libraries(market, codes["market"])
    at: dict[str, Address] = {name: getattr(addresses, name) for name in NAMES}
    at |= {name: libraries[artifact] for artifact, name in LIBRARIES.items()}
    codes |= {name: _code(w3, at[name]) for name in LIBRARIES.values()}
    times = ChainTimes(
        Seconds(_value(market, codes["market"], "inclusionSeconds")),
        Seconds(_value(market, codes["market"], "censorSeconds")),
    )
    unbond = Seconds(_value(vault, codes["vault"], "unbondSeconds"))
    wired = wiring(at, unbond, times)
    token = artifacts.load("TestToken")
    foreign = masked(token, codes["token"]) != masked(token, bytes.fromhex(token.runtime[2:]))
    found, arguments = [], {}
    for name, (artifact, values) in wired.items():
        code = codes[name]
        fault = ""
        if name == "token" and foreign:
            fault = "" if code else "there is no code"
            found.append(Verified(name, "another token", at[name], len(code), fault))
            continue
        fault = difference(artifact, code, at[name], values, libraries)
        found.append(Verified(name, artifact, at[name], len(code), fault))
        if not fault:
            arguments[artifact] = (at[name], encoded_arguments(artifact, values))
    return CodeReport(tuple(found), arguments, unbond, times.inclusion, times.censor, foreign)


def difference(
    artifact: str, code: bytes, address: Address, arguments: tuple[Any, ...], libraries: dict[str, Address]
) -> str:
    """Describes how the code at an address differs from the package's own with these arguments; "" if it does not."""
    compiled = artifacts.load(artifact)
    if not code:
        return "there is no code"
    expected = bytearray(bytes.fromhex(_zeroed(compiled)))
    for library, offsets in compiled.runtime_links.items():
        for at in offsets:
            expected[at : at + _ADDRESS] = bytes.fromhex(libraries[library][2:])
    if _is_library(compiled):
        # A library contains its own address, so that direct calls fail.
        expected[1 : 1 + _ADDRESS] = bytes.fromhex(address[2:])
    if len(code) != len(expected):
        return f"its code has {len(code)} bytes, not {len(expected)}"
    if masked(compiled, code) != masked(compiled, bytes(expected)):
        pairs = zip(masked(compiled, code), masked(compiled, bytes(expected)), strict=True)
        first = next(i for i, (a, b) in enumerate(pairs) if a != b)
        return f"its code differs from byte {first} on"
    for name, value in _immutables(compiled, arguments).items():
        for at in compiled.immutables[name]:
            held = int.from_bytes(code[at : at + _WORD], "big")
            if held != value:
                return f"its {name} is {_shown(held, value)}, not {_shown(value, value)}"
    return ""


def masked(compiled: Artifact, code: bytes | bytearray) -> bytes:
    """Returns the code with zeros in the place of immutables."""
    text = bytearray(code)
    for offsets in compiled.immutables.values():
        for at in offsets:
            if at + _WORD <= len(text):
                text[at : at + _WORD] = bytes(_WORD)
    return bytes(text)


def inputs(report: CodeReport) -> dict[str, str]:
    """Maps file names to texts for block explorers: one standard-JSON input for all, and the arguments of each
    contract.
    """
    known = artifacts.verification()
    listed = {
        artifact: {
            "address": address,
            "contract": known["contracts"][artifact],
            "compiler": known["compiler"],
            "constructor_arguments": encoded.hex(),
        }
        for artifact, (address, encoded) in report.arguments.items()
    }
    return {
        "standard-input.json": json.dumps(known["input"], indent=1, sort_keys=True) + "\n",
        "contracts.json": json.dumps(listed, indent=1, sort_keys=True) + "\n",
    }


def _code(w3: Web3, address: Address) -> bytes:
    return bytes(w3.eth.get_code(address))  # type: ignore[arg-type]


def _immutables(compiled: Artifact, arguments: tuple[Any, ...]) -> dict[str, int]:
    """Maps the immutables that the constructor's arguments set to their values: `x_` sets `x`."""
    entry: dict[str, Any] = next((e for e in compiled.abi if e["type"] == "constructor"), {"inputs": []})
    given = {part["name"].removesuffix("_"): value for part, value in zip(entry["inputs"], arguments, strict=True)}
    return {
        name: int(value, 16) if isinstance(value, str) else int(value)
        for name, value in given.items()
        if name in compiled.immutables
    }


def _libraries(market: Artifact, code: bytes) -> dict[str, Address]:
    """Returns the libraries that a market's code calls; the zero address if the code is too short."""
    from eth_utils.address import to_checksum_address

    return {
        library: Address(to_checksum_address(code[offsets[0] : offsets[0] + _ADDRESS].rjust(_ADDRESS, b"\0")))
        for library, offsets in market.runtime_links.items()
    }


def _value(compiled: Artifact, code: bytes, name: str) -> int:
    at = compiled.immutables[name][0]
    return int.from_bytes(code[at : at + _WORD], "big")


def _zeroed(compiled: Artifact) -> str:
    """Returns the runtime code in hexadecimal, with zeros for the libraries' placeholders."""
    text = compiled.runtime[2:]
    for offsets in compiled.runtime_links.values():
        for at in offsets:
            text = text[: 2 * at] + "00" * _ADDRESS + text[2 * at + 2 * _ADDRESS :]
    return text


def _is_library(compiled: Artifact) -> bool:
    return compiled.runtime.startswith("0x73" + "00" * _ADDRESS)


def _shown(value: int, like: int) -> str:
    return f"0x{value:040x}" if like >> 64 else str(value)
