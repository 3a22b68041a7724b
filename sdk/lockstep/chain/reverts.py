"""Decodes revert data into the error of the broken rule, with its hint."""

from __future__ import annotations

from functools import cache
from typing import Any

from lockstep.chain import artifacts
from lockstep.protocol.errors import ChainError, FundsError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.reverts import revert

SHOWN_BYTES = 256
"""Most bytes of an unknown error in a message."""

_STRING = keccak(b"Error(string)")[:4]
_PANIC = keccak(b"Panic(uint256)")[:4]


@cache
def _errors() -> dict[bytes, dict[str, Any]]:
    """Returns every custom error of every contract, by selector."""
    found: dict[bytes, dict[str, Any]] = {}
    for name in artifacts.NAMES:
        for entry in artifacts.load(name).entries("error").values():
            found[keccak(artifacts.signature(entry).encode())[:4]] = entry
    return found


def decode(data: bytes) -> ChainError | FundsError:
    """Decodes a call's revert data into an error. Unknown data become a plain `ChainError`."""
    from eth_abi.exceptions import DecodingError

    try:
        return _decoded(data)
    except (DecodingError, ValueError, OverflowError):
        return _unknown(data)


def _unknown(data: bytes) -> ChainError:
    shown = f"0x{data[:SHOWN_BYTES].hex()}" if data else "nothing"
    return ChainError(f"reverted, returning {shown}", "the call ran out of gas, or the address is another contract")


def _decoded(data: bytes) -> ChainError | FundsError:
    from eth_abi.abi import decode as abi_decode

    selector, arguments = data[:4], data[4:]
    if selector == _STRING:
        return ChainError(f"reverted: {abi_decode(['string'], arguments)[0]}", "read the contract's message")
    if selector == _PANIC:
        code = abi_decode(["uint256"], arguments)[0]
        return ChainError(f"the contract panicked (0x{code:02x})", "this is a bug in a contract: report it")
    entry = _errors().get(bytes(selector))
    if entry is None:
        return _unknown(data)
    types = [artifacts.abi_type(part) for part in entry["inputs"]]
    values = [_shown(kind, value) for kind, value in zip(types, abi_decode(types, arguments), strict=True)]
    if entry["name"] == "JobInvalid":
        return revert("JobInvalid", values[0].rstrip(b"\0").decode())
    return revert(entry["name"], *values)


def _shown(kind: str, value: Any) -> Any:
    if kind == "address":
        from eth_utils.address import to_checksum_address

        return to_checksum_address(value)
    return value
