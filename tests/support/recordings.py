"""Records a chain's history in a form that forge can replay (tests/forge/ChainReplay.t.sol).

`record` reads a node's blocks from first to last and adds a recording to a folder; tests on a chain do so at their end
if LOCKSTEP_RECORD names a folder. It uses only the standard library and eth_abi, so that it also runs in brownie's
environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eth_abi import encode

ARTIFACTS = Path(__file__).resolve().parents[2] / "sdk/lockstep/chain/abi"
BLOCK, CREATE, CALL, ASK, KEEP, BACK = range(6)
ACT = "(uint8,uint64,uint64,uint256,bytes32,address,uint64,address,uint256,string,bytes,bool,bool,bytes,bytes32)"
LIBRARY = re.compile(r"_[\w$]{38}_")
"""Placeholder for the address of a linked library."""
NOWHERE = "0x" + "00" * 20


def folder_of(environment: str = "LOCKSTEP_RECORD") -> Path | None:
    """Returns the folder for recordings; None if none are wanted."""
    return Path(os.environ[environment]) if os.environ.get(environment) else None


@dataclass(frozen=True)
class Question:
    """A call whose changes are discarded: the block after which it was made, caller and callee, data."""

    block: int
    sender: str
    to: str
    data: bytes


def record(url: str, name: str, codes: Mapping[str, str], asked: Iterable[Question] = ()) -> None:
    """Adds the history of the node at `url` to the folder of LOCKSTEP_RECORD, if that is set.

    `codes`: the creation bytecode of each contract as it was compiled there, by name.
    """
    if (folder := folder_of()) is not None:
        write(folder, name, acts(Node(url), codes, asked))


def write(folder: Path, name: str, lines: Iterator[bytes] | Sequence[bytes]) -> None:
    """Writes one recording; equal recordings share a file."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"0x{line.hex()}\n" for line in lines)
    if not text:
        return
    path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    path.write_text(text)


def write_list(folder: Path) -> None:
    """Writes the list of recordings for ChainReplay, the shortest first, so that differences show early."""
    names = sorted((path.stat().st_size, path.name) for path in folder.iterdir() if path.name != "list")
    (folder / "list").write_text("".join(f"{name}\n" for _, name in names))


@dataclass(frozen=True)
class Node:
    """A connection to a chain's JSON-RPC."""

    url: str

    def ask(self, method: str, *params: object) -> Any:
        """Returns the result of a request. Raises RuntimeError with the node's error."""
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
        request = urllib.request.Request(self.url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]


When = tuple[int, int, int, bytes]
"""A block's number, time, base fee and parent's hash."""


def acts(node: Node, codes: Mapping[str, str], asked: Iterable[Question]) -> Iterator[bytes]:
    """Yields every block, transaction and question of the node's chain, in order."""
    questions = defaultdict(list)
    for question in asked:
        questions[question.block].append(question)
    for number in range(1, 1 + int(node.ask("eth_blockNumber"), 16)):
        block = node.ask("eth_getBlockByNumber", hex(number), True)
        when = (number, int(block["timestamp"], 16), int(block["baseFeePerGas"], 16), _bytes(block["parentHash"]))
        yield act(BLOCK, *when)
        for transaction in block["transactions"]:
            yield _transaction(node, when, transaction, codes)
        yield from (answered(node, when, question) for question in questions[number])


def answered(node: Node, when: When, question: Question) -> bytes:
    """Returns a question with the node's answer."""
    request = {"from": question.sender, "to": question.to, "data": "0x" + question.data.hex()}
    try:
        success, output = True, node.ask("eth_call", request, hex(question.block))
    except RuntimeError as refusal:
        (error,) = refusal.args
        success, output = False, error.get("data", "0x")
    return act(
        ASK, *when, sender=question.sender, to=question.to, data=question.data, success=success, output=_bytes(output)
    )


def _transaction(node: Node, when: When, transaction: Any, codes: Mapping[str, str]) -> bytes:
    receipt = node.ask("eth_getTransactionReceipt", transaction["hash"])
    success = receipt["status"] == "0x1"
    sent = {"sender": transaction["from"], "nonce": int(transaction["nonce"], 16), "success": success}
    data = transaction["input"][2:]
    if transaction.get("to") is None:
        name, arguments = _created(data, codes)
        at = receipt.get("contractAddress")
        return act(CREATE, *when, **sent, to=at, name=name, data=arguments, vague=True)
    trace = node.ask("debug_traceTransaction", transaction["hash"], {"tracer": "callTracer"})
    return act(
        CALL, *when, **sent, to=transaction["to"], value=int(transaction["value"], 16), data=bytes.fromhex(data),
        output=_bytes(trace.get("output", "0x")), logs=digest(receipt["logs"]),
    )  # fmt: skip


def call(to: str, data: bytes, output: bytes | None, *, success: bool = True) -> bytes:
    """Returns a call without effects, with its result or revert data; None: reverts for any reason."""
    return act(
        CALL, 1, 1, 0, bytes(32), to=to, data=data, success=success and output is not None, vague=output is None,
        output=output or b"", logs=digest([]),
    )  # fmt: skip


def creation(name: str, arguments: bytes, at: str, sender: str, nonce: int) -> bytes:
    """Returns a contract's creation."""
    return act(
        CREATE,
        1,
        1,
        0,
        bytes(32),
        sender=sender,
        nonce=nonce,
        to=at,
        name=name,
        data=arguments,
        success=True,
        vague=True,
    )


def keep(place: int) -> bytes:
    """Returns a snapshot of the whole state."""
    return act(KEEP, place, 1, 0, bytes(32))


def back(place: int) -> bytes:
    """Returns the restoration of a snapshot."""
    return act(BACK, place, 1, 0, bytes(32))


def digest(logs: Sequence[Any]) -> bytes:
    """Returns keccak of the events in the form of forge's getRecordedLogs."""
    from eth_utils import keccak

    rows = [([_bytes(t) for t in log["topics"]], _bytes(log["data"]), log["address"]) for log in logs]
    return bytes(keccak(encode(["(bytes32[],bytes,address)[]"], [rows])))


def act(
    kind: int, number: int, time: int, base_fee: int, parent: bytes, *, sender: str = NOWHERE, nonce: int = 0,
    to: str = NOWHERE, value: int = 0, name: str = "", data: bytes = b"", success: bool = True, vague: bool = False,
    output: bytes = b"", logs: bytes = bytes(32),
) -> bytes:  # fmt: skip
    """Returns one line of a recording: `Act` of ChainReplay."""
    row = (kind, number, time, base_fee, parent, sender, nonce, to, value, name, data, success, vague, output, logs)
    return bytes(encode([ACT], [row]))


def creation_codes() -> dict[str, str]:
    """Maps each committed artifact's name to its creation bytecode."""
    found = {}
    for path in sorted(ARTIFACTS.glob("*.json")):
        artifact = json.loads(path.read_text())
        found[artifact["contractName"]] = artifact["bytecode"][2:]
    return found


def _created(data: str, codes: Mapping[str, str]) -> tuple[str, bytes]:
    """Returns the contract that a creation makes, and its constructor's arguments."""
    for name, code in codes.items():
        if all(data[at : at + len(part)] == part for at, part in _parts(code)):
            return f"{name}.sol:{name}", bytes.fromhex(data[len(code) :])
    raise LookupError("a contract was created that has no artifact; is every contract of the project known here?")


def _parts(code: str) -> Iterator[tuple[int, str]]:
    """Yields the bytecode between libraries' addresses as (offset, text)."""
    at = 0
    for part in re.split(LIBRARY, code):
        yield at, part
        at += len(part) + 40


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


if __name__ == "__main__":
    write_list(Path(sys.argv[1]))
