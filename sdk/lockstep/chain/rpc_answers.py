"""Validates the answers of an untrusted RPC endpoint: bounds their size, and keeps only the fields that are read.

`framed` returns the fields of JSON-RPC, `result` those of a method; all other fields are dropped, so that web3 formats
nothing else. An answer of another form raises Malformed, which counts as a failure of its endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from lockstep.base.decoding import (
    U64,
    Reader,
    account,
    either,
    flag,
    from_json,
    hexes,
    nothing,
    several,
    whole,
)
from lockstep.protocol.errors import Malformed

MAX_ANSWER_BYTES = 1 << 25
"""Largest answer after decompression, in bytes: about 50,000 logs."""
MAX_LOGS = 1 << 17
MAX_TEXT = 1 << 10
"""Most characters of an error's message that are kept."""
LAST_SECOND = (1 << 40) - 1
"""Largest accepted timestamp, in seconds: 34,000 years."""

Answer = Mapping[str, Any]

_HEX_NUMBER = re.compile(r"0x[0-9a-fA-F]{1,64}")
_RETURNED = re.compile(r"(?:Reverted )?(0x(?:[0-9a-fA-F]{2})*)")


def framed(data: bytes) -> Answer:
    """Parses an answer into the fields `jsonrpc`, `id` and either `result` or `error`. Raises Malformed."""
    parsed = from_json(data, MAX_ANSWER_BYTES)
    if not isinstance(parsed, dict):
        raise Malformed("no JSON-RPC")
    head = {"jsonrpc": "2.0", "id": parsed["id"] if type(parsed.get("id")) is int else 0}
    if parsed.get("error") is not None:
        return head | {"error": _error(parsed["error"])}
    if "result" not in parsed:
        raise Malformed("no JSON-RPC")
    return head | {"result": parsed["result"]}


def result(method: str, value: Any) -> Any:
    """Validates the result of a method, and returns the fields of it that are read. Raises Malformed."""
    reader = RESULTS.get(method)
    return value if reader is None else reader(value, method)


_AWAITED: ContextVar[Callable[[bytes], object] | None] = ContextVar("awaited", default=None)
_REVERTS: ContextVar[bool] = ContextVar("reverts", default=True)


@contextmanager
def awaiting(values: Callable[[bytes], object], *, reverts: bool = True) -> Iterator[None]:
    """Within the block, `values` validates the result of each `eth_call`.

    The endpoint has failed if this raises Malformed, or if an error is the node's and not the called code's. `reverts`
    states that the code may revert; otherwise a revert is a failure too.
    """
    tokens = _AWAITED.set(values), _REVERTS.set(reverts)
    try:
        yield
    finally:
        _AWAITED.reset(tokens[0])
        _REVERTS.reset(tokens[1])


def awaited() -> bool:
    """Returns True within a block of `awaiting`."""
    return _AWAITED.get() is not None


def may_revert() -> bool:
    """Returns False if the called code cannot revert."""
    return _REVERTS.get()


def called(answer: str) -> None:
    """Validates the values that a call returned, within a block of `awaiting`. Raises Malformed."""
    values = _AWAITED.get()
    if values is not None:
        values(bytes.fromhex(answer[2:]))


def _error(told: Any) -> dict[str, Any]:
    """Returns an error's code, message and revert data as a map, the only form that web3 does not parse further."""
    error = told if isinstance(told, dict) else {"message": told}
    code, message, data = error.get("code"), error.get("message"), error.get("data")
    if isinstance(data, dict):  # Ganache's form of an error
        data = data.get("data", data.get("result"))
    found = _RETURNED.fullmatch(data) if isinstance(data, str) else None
    kept = {"code": code if type(code) is int else 0, "message": _line(message) or "it does not say why"}
    if found is None:
        return kept
    returned = found[1]
    return kept | {"data": {"data": returned} if len(returned) > 2 else returned}


def _line(message: Any) -> str:
    """Returns a message without control characters, shortened to MAX_TEXT."""
    told = message if isinstance(message, str) else "" if message is None else repr(message)
    return "".join(c if c.isprintable() else " " for c in told[:MAX_TEXT]).strip()


# -- what each method answers ------------------------------------------------------------------------------------------


def _number(most: int) -> Reader[Any]:
    """Returns a reader for a number from 0 to `most`, in hex or decimal."""
    inside = whole(0, most)

    def read(value: Any, where: str) -> Any:
        told = int(value, 16) if isinstance(value, str) and _HEX_NUMBER.fullmatch(value) else value
        inside(told, where)
        return value

    return read


def _as_is(reader: Reader[Any]) -> Reader[Any]:
    """Returns a reader that checks a value with `reader` and returns it unparsed."""

    def read(value: Any, where: str) -> Any:
        reader(value, where)
        return value

    return read


def _fields(required: Mapping[str, Reader[Any]], optional: Mapping[str, Reader[Any]] | None = None) -> Reader[Any]:
    """Returns a reader for a map with these fields, which drops all others, and the `optional` ones that are null."""
    beside = optional or {}

    def read(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise Malformed(f"{where} is {type(value).__name__} where a map is due")
        if lacking := sorted(set(required) - set(value)):
            raise Malformed(f"{where} lacks {', '.join(lacking)}")
        due = {**required, **{name: reader for name, reader in beside.items() if value.get(name) is not None}}
        return {name: reader(value[name], f"{where}.{name}") for name, reader in due.items()}

    return read


_count, _wei, _seconds = _number(U64), _number((1 << 256) - 1), _number(LAST_SECOND)
_bytes, _word, _who = _as_is(hexes(None)), _as_is(hexes(32)), _as_is(account)

_log = _fields(
    {
        "address": _who, "topics": several(_word, 4), "data": _bytes, "blockNumber": _count, "blockHash": _word,
        "transactionHash": _word, "logIndex": _count,
    },
    {"transactionIndex": _count, "blockTimestamp": _seconds, "removed": _as_is(flag)},
)  # fmt: skip
_transaction = _fields(
    {"hash": _word, "from": _who, "to": either(nothing, _who), "nonce": _count, "input": _bytes},
    {
        "blockNumber": _count, "blockHash": _word, "gas": _count, "value": _wei,
        "gasPrice": _wei, "maxFeePerGas": _wei,
        "maxPriorityFeePerGas": _wei, "transactionIndex": _count, "type": _count,
    },
)  # fmt: skip
_receipt = _fields(
    {
        "transactionHash": _word, "blockNumber": _count, "blockHash": _word, "from": _who, "status": _number(1),
        "gasUsed": _count, "logs": several(_log, MAX_LOGS),
    },
    {"to": _who, "contractAddress": _who, "effectiveGasPrice": _wei},
)  # fmt: skip
_block = _fields(
    {"number": _count, "hash": _word, "parentHash": _word, "timestamp": _seconds},
    {
        "baseFeePerGas": _wei, "gasLimit": _count, "gasUsed": _count,
        "transactions": several(either(_word, _transaction), MAX_LOGS),
    },
)  # fmt: skip

RESULTS: dict[str, Reader[Any]] = {
    "eth_blockNumber": _count,
    "eth_call": _bytes,
    "eth_chainId": _count,
    "eth_estimateGas": _count,
    "eth_gasPrice": _wei,
    "eth_getBalance": _wei,
    "eth_getBlockByHash": either(nothing, _block),
    "eth_getBlockByNumber": either(nothing, _block),
    "eth_getCode": _bytes,
    "eth_getLogs": several(_log, MAX_LOGS),
    "eth_getTransactionByHash": either(nothing, _transaction),
    "eth_getTransactionCount": _count,
    "eth_getTransactionReceipt": either(nothing, _receipt),
    "eth_sendRawTransaction": _word,
}
"""Readers by method for its result; methods without one belong to a local node, which the user started."""
