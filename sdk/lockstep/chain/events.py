"""Events: logs from a block cursor, decoded, once each, in order; a reorganised chain is noticed and rolled back."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from lockstep.chain import artifacts
from lockstep.chain.addresses import Addresses
from lockstep.protocol.errors import UsageError
from lockstep.protocol.statement import keccak
from lockstep.protocol.types import Address, Seconds

if TYPE_CHECKING:
    from web3 import Web3

CHUNK_BLOCKS = 2_000
"""Blocks asked for in one request: nodes refuse or truncate more."""

REMEMBERED_BLOCKS = 128
"""How deep a reorganisation is recognised exactly; a deeper one rolls back to the deployment."""


@dataclass(frozen=True)
class Event:
    """One decoded log. Arguments are attributes too: event.worker."""

    contract: str
    """The contract's name: JobMarket, StakeVault, DisputeGame, ..."""
    name: str
    args: Mapping[str, Any]
    """By the Solidity names in snake_case; bytes, int, str; structs as mappings."""
    block: int
    block_hash: bytes
    time: Seconds
    """The block's timestamp."""
    transaction: bytes
    index: int
    """Of the log in its block."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.args[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def key(self) -> tuple[int, int]:
        """(block, log index): the order of events, unique on one chain."""
        return self.block, self.index


@dataclass(frozen=True)
class Cursor:
    """What was read so far: the next block, and the hashes of the latest blocks read."""

    next_block: int
    recent: tuple[tuple[int, str], ...] = ()
    """(number, hash) ascending; only those at which a poll ended."""

    def dumps(self) -> str:
        """Text to keep beside what was derived from the events, in the same database transaction."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Cursor:
        """Reads what `dumps` wrote. Raises `UsageError`."""
        try:
            value = json.loads(text)
            return cls(int(value["next_block"]), tuple((int(n), str(h)) for n, h in value["recent"]))
        except (ValueError, TypeError, KeyError) as failure:
            raise UsageError(f"not an event cursor: {failure}", "start again from the deployment's block") from failure


@dataclass(frozen=True)
class Batch:
    """What one poll brought."""

    events: tuple[Event, ...]
    cursor: Cursor
    """Continue from here."""
    rolled_back_to: int | None = None
    """Forget everything from blocks above this one before taking the events; None: nothing to forget."""


class EventReader:
    """Reads the deployment's events. State lies with the caller: a cursor in, a batch with the next cursor out."""

    def __init__(self, w3: Web3, addresses: Addresses, confirmations: int = 0) -> None:
        self._w3 = w3
        self._start = addresses.block
        self._confirmations = confirmations
        self._names = {
            addresses.market.lower(): "JobMarket",
            addresses.vault.lower(): "StakeVault",
            addresses.game.lower(): "DisputeGame",
            addresses.validator.lower(): "Validator",
            addresses.availability.lower(): "Availability",
            addresses.witnesses.lower(): "Witnesses",
        }
        self._addresses: Any = [addresses.market, addresses.vault, addresses.game, addresses.validator,
                                addresses.availability, addresses.witnesses]  # fmt: skip

    def start(self) -> Cursor:
        """From the deployment's block."""
        return Cursor(self._start)

    def poll(self, cursor: Cursor) -> Batch:
        """Everything since `cursor`, at most CHUNK_BLOCKS blocks; an empty batch if nothing is new."""
        standing = self._standing(cursor)
        rolled_back_to = None if standing == cursor else standing.next_block - 1
        head = self._w3.eth.block_number - self._confirmations
        last = min(head, standing.next_block + CHUNK_BLOCKS - 1)
        if last < standing.next_block:
            return Batch((), standing, rolled_back_to)
        while True:
            before = self._hash(last)
            logs = self._w3.eth.get_logs(
                {"address": self._addresses, "fromBlock": standing.next_block, "toBlock": last}
            )
            # The chain may be reorganised between the two requests: then the logs are of neither chain.
            if before is not None and before == self._hash(last):
                break
        recent = (*standing.recent, (last, before))[-REMEMBERED_BLOCKS:]
        return Batch(tuple(self._decode(logs)), Cursor(last + 1, recent), rolled_back_to)

    def _standing(self, cursor: Cursor) -> Cursor:
        """The part of the cursor that is still on the chain."""
        recent = list(cursor.recent)
        while recent and self._hash(recent[-1][0]) != recent[-1][1]:
            recent.pop()
        if len(recent) == len(cursor.recent):
            return cursor
        return Cursor(recent[-1][0] + 1 if recent else self._start, tuple(recent))

    def _hash(self, number: int) -> str | None:
        from web3.exceptions import BlockNotFound

        try:
            return self._w3.eth.get_block(number)["hash"].hex()
        except BlockNotFound:
            return None

    def _decode(self, logs: Iterable[Any]) -> Iterator[Event]:
        times: dict[int, Seconds] = {}
        for log in sorted(logs, key=lambda entry: (entry["blockNumber"], entry["logIndex"])):
            number = log["blockNumber"]
            if number not in times:
                times[number] = Seconds(self._w3.eth.get_block(number)["timestamp"])
            event = decode_log(log, self._names[log["address"].lower()], times[number])
            if event is not None:
                yield event


@cache
def _events(contract: str) -> dict[bytes, dict[str, Any]]:
    """A contract's event ABIs by topic."""
    entries = artifacts.load(contract).entries("event").values()
    return {keccak(artifacts.signature(entry).encode()): entry for entry in entries}


def decode_log(log: Mapping[str, Any], contract: str, time: Seconds) -> Event | None:
    """The event that a log of `contract` carries; None if its ABI has no such event."""
    from eth_abi.abi import decode

    entry = _events(contract).get(bytes(log["topics"][0]))
    if entry is None:
        return None
    indexed = [part for part in entry["inputs"] if part["indexed"]]
    plain = [part for part in entry["inputs"] if not part["indexed"]]
    decoded = decode([artifacts.abi_type(part) for part in plain], bytes(log["data"]))
    values = {part["name"]: value for part, value in zip(plain, decoded, strict=True)}
    for part, topic in zip(indexed, log["topics"][1:], strict=True):
        values[part["name"]] = decode([part["type"]], bytes(topic))[0]
    return Event(
        contract=contract,
        name=entry["name"],
        args={artifacts.snake(part["name"]): _value(part, values[part["name"]]) for part in entry["inputs"]},
        block=log["blockNumber"],
        block_hash=bytes(log["blockHash"]),
        time=time,
        transaction=bytes(log["transactionHash"]),
        index=log["logIndex"],
    )


def _value(part: Mapping[str, Any], value: Any) -> Any:
    """Addresses checksummed, structs as mappings by snake_case names."""
    if part["type"] == "address":
        from web3 import Web3

        return Address(Web3.to_checksum_address(value))
    if part["type"] == "tuple":
        return {artifacts.snake(p["name"]): _value(p, v) for p, v in zip(part["components"], value, strict=True)}
    return value
