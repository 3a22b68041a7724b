"""Converts between the chain's bytes and the twin's values: calls, results, log entries and reverts.

call_of(contract, sender, data) -> Call          data_of(call) -> data
returned(contract, function, value) -> data      log_of(event) -> (topics, data)      reverted(error) -> data
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import IntEnum
from functools import cache
from typing import Any

from eth_abi.abi import decode, encode
from eth_abi.exceptions import DecodingError
from eth_utils.address import to_checksum_address

from lockstep.chain import artifacts
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market.calls import Emitted, MarketCall
from lockstep.protocol.programs.defects import Subject
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.transition import STRUCTS
from lockstep.protocol.types import Address

PANIC = {"name": "Panic", "inputs": [{"type": "uint256", "name": "code"}]}


class NoFunction(Exception):
    """Data that no function of the contract accepts; Solidity reverts on it without revert data."""


def call_of(contract: str, sender: Address, data: bytes, gas: int = 0) -> MarketCall:
    """Decodes a transaction's data into a call. Raises `NoFunction`."""
    entry = artifacts.functions(contract).get(data[:4])
    if entry is None:
        raise NoFunction(f"{contract} has no function 0x{data[:4].hex()}")
    try:
        values = decode([artifacts.abi_type(part) for part in entry["inputs"]], data[4:])
        arguments = tuple(_value(part, value) for part, value in zip(entry["inputs"], values, strict=True))
    except (DecodingError, ValueError, OverflowError) as failure:
        raise NoFunction(f"{contract}.{entry['name']}: {failure}") from failure
    return MarketCall(contract, entry["name"], sender, arguments, data, gas)


def data_of(call: MarketCall) -> bytes:
    """Encodes a call as data, which `call_of` decodes."""
    entry = artifacts.function(call.contract, call.function)
    return artifacts.selector(entry) + _encoded(entry["inputs"], call.arguments)


def returned(contract: str, name: str, value: Any) -> bytes:
    """Encodes a function's result: nothing, one value, or a tuple of several."""
    outputs = artifacts.function(contract, name)["outputs"]
    if not outputs:
        return b""
    return _encoded(outputs, (value,) if len(outputs) == 1 else value)


def log_of(event: Emitted) -> tuple[list[bytes], bytes]:
    """Returns (topics, data) of an event, as the EVM logs it."""
    entry = artifacts.load(event.contract).entries("event")[event.name]
    parts = list(zip(entry["inputs"], event.values, strict=True))
    indexed = [_encoded([part], (value,)) for part, value in parts if part["indexed"]]
    rest = [(part, value) for part, value in parts if not part["indexed"]]
    topic = bytes(keccak(artifacts.signature(entry).encode()))
    return [topic, *indexed], _encoded([part for part, _ in rest], tuple(value for _, value in rest))


@cache
def _errors() -> dict[str, dict[str, Any]]:
    return {
        name: entry for contract in artifacts.NAMES for name, entry in artifacts.load(contract).entries("error").items()
    } | {"Panic": PANIC}


def reverted(error: Reverted) -> bytes:
    """Encodes the revert data of a call that breaks a rule."""
    entry = _errors()[error.rule]
    values = error.values
    if error.rule == "JobInvalid":
        values = (str(values[0]).encode().ljust(32, b"\0"),)
    return artifacts.selector(entry) + _encoded(entry["inputs"], values)


def plain(value: Any) -> Any:
    """Converts a value of the twin to the ABI's form."""
    if isinstance(value, str | bytes | bool):
        return value
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, int):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return tuple(plain(getattr(value, part.name)) for part in fields(value))
    if isinstance(value, list | tuple):
        return tuple(plain(part) for part in value)
    return value


def zero(part: dict[str, Any]) -> Any:
    """Returns Solidity's value of unwritten storage."""
    kind: str = part["type"]
    if kind.endswith("[]"):
        # A job's only role is stored separately, so it is present even for an unknown job.
        return (zero(part | {"type": kind[:-2]}),) if part["name"] == "roles" else ()
    if kind == "tuple":
        return tuple(zero(inner) for inner in part["components"])
    if kind.startswith("bytes"):
        return bytes(int(kind.removeprefix("bytes") or 0))
    return {"address": "0x" + 40 * "0", "bool": False, "string": ""}.get(kind, 0)


def _encoded(parts: list[dict[str, Any]], values: tuple[Any, ...]) -> bytes:
    """Encodes a list of arguments."""
    kinds = [artifacts.abi_type(part) for part in parts]
    return encode(kinds, [_argument(part, value) for part, value in zip(parts, values, strict=True)])


def _argument(part: dict[str, Any], value: Any) -> Any:
    if value is None:
        return zero(part)
    if part["type"] == "bytes" and isinstance(value, str):
        return value.encode(errors="surrogateescape")
    if part["type"] == "tuple":
        given = value if isinstance(value, tuple) else plain_fields(value)
        return tuple(_argument(p, v) for p, v in zip(part["components"], given, strict=True))
    if part["type"].endswith("[]"):
        inner = part | {"type": part["type"][:-2]}
        return [_argument(inner, one) for one in value]
    return plain(value)


def plain_fields(value: Any) -> tuple[Any, ...]:
    """Returns a struct's fields in the ABI's order."""
    return tuple(getattr(value, part.name) for part in fields(value))


def _value(part: dict[str, Any], value: Any) -> Any:
    """Converts an ABI argument to the twin's form."""
    if part["type"].endswith("[]"):
        return tuple(_value(part | {"type": part["type"][:-2]}, one) for one in value)
    if part["type"] == "tuple":
        name = part["internalType"].removeprefix("struct ").rpartition(".")[2].removesuffix("[]")
        return STRUCTS[name](*(_value(p, v) for p, v in zip(part["components"], value, strict=True)))
    if part["type"] == "address":
        return Address(to_checksum_address(value))
    if part["type"] == "bytes" and part["name"].endswith("Cid"):
        return value.decode(errors="surrogateescape")
    if part.get("internalType", "").endswith("Subject"):
        return Subject(value)
    return value
