"""Reads events from a block cursor: decodes each log once, in order, and rolls back after a reorganisation.

Much of a log's content is untrusted, so decoding is total: `decode_log` raises `ChainError` for a log that does not
decode, and `EventReader` counts it, logs it once and continues. The event of a claim always decodes: an invalid CID
becomes `NO_CID`, and the claim exists without content to fetch.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from lockstep.base.log import Logger
from lockstep.chain import artifacts
from lockstep.chain.addresses import Addresses
from lockstep.chain.crosscheck import CrossCheck
from lockstep.chain.logcache import Covered, LogCache, RawLog
from lockstep.chain.ranges import logs_of, span_of
from lockstep.protocol.errors import ChainError, Unreachable, UsageError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market.events import EVENTS, Logged
from lockstep.protocol.types import Address, Cid, Seconds

if TYPE_CHECKING:
    from web3 import Web3

log = Logger(__name__)

TRIES = 3
"""Tries in one poll to read a consistent pair of logs and block."""

FINAL_PACE_BLOCKS = 64
"""Number of new blocks between two requests for the final block."""

REMEMBERED_BLOCKS = 128
"""Depth of the deepest reorganisation that is recognised exactly; a deeper one rolls back to the deployment."""

NO_CID = Cid("")
"""The absence of a CID: the claimant published none, or invalid bytes."""

CID_CHARACTERS = 59
"""Length of a canonical CIDv1 over SHA-256 in base32: "b" and 36 bytes."""

CID_HEADS = tuple(bytes([1, codec, 0x12, 0x20]) for codec in (0x55, 0x70, 0x71))
"""First bytes of the CIDs that storage keeps: version 1, codec raw, dag-pb or dag-cbor, SHA-256, 32 bytes of digest."""

LOGGING = {
    "market": "JobMarket", "vault": "StakeVault", "game": "DisputeGame", "validator": "Validator",
    "availability": "Availability", "witnesses": "Witnesses",
}  # fmt: skip
"""The contracts whose events are read, by their field of `Addresses`."""

ADDRESSES = 1 << 16
"""Number of addresses whose checksums are remembered."""
REMEMBERED_LOGS = 4_096
"""Number of unreadable logs that a reader remembers in order to report each once."""


@dataclass(frozen=True)
class Event:
    """One decoded log. Its arguments are attributes too: event.worker."""

    contract: str
    """The contract's name: JobMarket, StakeVault, DisputeGame, ..."""
    name: str
    args: Mapping[str, Any]
    """Arguments by their Solidity names in snake_case: bytes, int, Cid; structs as mappings."""
    block: int
    block_hash: bytes
    time: Seconds
    """The block's timestamp."""
    transaction: bytes
    index: int
    """The log's index in its block."""
    unread: tuple[str, ...] = ()
    """Names of arguments that should be a CID but are invalid; their value is NO_CID."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.args[name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def typed(self) -> Logged | None:
        """The event as a typed value; None for an event that no party uses."""
        kind = EVENTS.get((self.contract, self.name))
        # "from" is a keyword of Python.
        fields = {"from_" if name == "from" else name: value for name, value in self.args.items()}
        return None if kind is None else kind(**fields)

    @property
    def key(self) -> tuple[int, int]:
        """(block, log index): the order of events, unique on one chain."""
        return self.block, self.index


@dataclass(frozen=True)
class Cursor:
    """A reader's position: the next block, and the hashes of the latest blocks read."""

    next_block: int
    recent: tuple[tuple[int, str], ...] = ()
    """(number, hash) of the blocks at which polls ended, ascending."""

    def dumps(self) -> str:
        """Serialises the cursor, to be stored in the same database transaction as the data derived from the events."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Cursor:
        """Parses the output of `dumps`. Raises `UsageError`."""
        try:
            value = json.loads(text)
            return cls(int(value["next_block"]), tuple((int(n), str(h)) for n, h in value["recent"]))
        except (ValueError, TypeError, KeyError, RecursionError) as failure:
            raise UsageError(f"not an event cursor: {failure}", "start again from the deployment's block") from failure


@dataclass(frozen=True)
class EventBatch:
    """The result of one poll."""

    events: tuple[Event, ...]
    cursor: Cursor
    """The cursor from which the next poll continues."""
    rolled_back_to: int | None = None
    """The caller must forget all events of later blocks before it applies these; None: nothing to forget."""
    unreadable: int = 0
    """Number of logs that were skipped or had an invalid CID."""
    behind: int = 0
    """Number of blocks between the batch's end and the chain's head."""


@dataclass(frozen=True)
class _Block:
    """The fields of a block that a reader needs."""

    number: int
    hash: str
    time: Seconds

    @classmethod
    def of(cls, block: Mapping[str, Any]) -> _Block:
        return cls(int(block["number"]), block["hash"].hex(), Seconds(block["timestamp"]))


class EventReader:
    """Reads the deployment's events. The caller keeps the state: it passes a cursor and gets the next one with the
    batch."""

    def __init__(
        self, w3: Web3, addresses: Addresses, confirmations: int = 0, cache: LogCache | None = None,
        check: CrossCheck | None = None, names: Collection[str] = (),
    ) -> None:  # fmt: skip
        """`cache` has a copy of final logs, which is read after a restart and extended as blocks become final.

        `check` is a provider that must agree on every block and log. `names`: the events that are decoded, all if none
        is named.
        """
        self._wanted = frozenset(names)
        self._w3 = w3
        self._check = check
        self._copy = None if cache is None else _Copy(cache, addresses.block)
        self._start = addresses.block
        self._confirmations = confirmations
        self._addresses: Any = [getattr(addresses, field) for field in LOGGING]
        self._names = dict(zip((a.lower() for a in self._addresses), LOGGING.values(), strict=True))
        self._reported: dict[tuple[bytes, int], None] = {}
        self.unreadable = 0
        """Number of logs so far that were skipped or had an invalid CID."""

    def start(self) -> Cursor:
        """Returns the cursor at the deployment's block."""
        return Cursor(self._start)

    def poll(self, cursor: Cursor) -> EventBatch:
        """Returns the events since `cursor`, of at most CHUNK_BLOCKS blocks; an empty batch if there are none.

        Raises `Unreachable` if the provider does not answer, refuses the logs of a single block, or contradicts itself;
        `TryLater` if the checking provider disagrees.
        """
        position = self._on_chain(cursor)
        rolled_back_to = None if position == cursor else position.next_block - 1
        if self._copy is not None:
            if position.next_block == self._start and (batch := self._from_copy(rolled_back_to)) is not None:
                return batch
            self._copy.roll_back(position.next_block)
        for _ in range(TRIES):
            head = self._head()
            if head.number < position.next_block:
                return EventBatch((), position, rolled_back_to)
            logs, end = self._read(position.next_block, head)
            # The chain may be reorganised between the two requests: the logs then belong to neither version.
            if end is not None and end.hash == self._hash(end.number):
                break
        else:
            raise Unreachable(
                "the provider's answers contradict one another: its logs are of blocks that it does not have",
                "the request is repeated; if this persists, use another RPC provider",
            )
        if self._check is not None:
            # INVARIANT: nothing leaves the reader that two providers tell differently.
            self._check.block(end.number, end.hash)
            self._check.logs({"address": self._addresses}, position.next_block, end.number, logs)
        counted = self.unreadable
        recent = (*position.recent, (end.number, end.hash))[-REMEMBERED_BLOCKS:]
        times = {end.number: end.time}
        events = tuple(self._decode(logs, times))
        if self._copy is not None:
            self._copy.take(position.next_block, [(e, times[e["blockNumber"]]) for e in logs], end, head, self._final)
        return EventBatch(
            events, Cursor(end.number + 1, recent), rolled_back_to, self.unreadable - counted, head.number - end.number
        )

    def _from_copy(self, rolled_back_to: int | None) -> EventBatch | None:
        """Returns the events of the cached logs, if the cache fits the chain."""
        assert self._copy is not None
        held = self._copy.read(self._hash)
        if held is None:
            return None
        logs, covered = held
        if self._check is not None:
            self._check.block(covered.next - 1, covered.hash)
        head, counted = self._head(), self.unreadable
        times = {each.block: Seconds(each.time) for each in logs}
        events = tuple(self._decode([each.entry for each in logs], times))
        cursor = Cursor(covered.next, ((covered.next - 1, covered.hash),))
        behind = head.number - covered.next + 1
        return EventBatch(events, cursor, rolled_back_to, self.unreadable - counted, behind)

    def _final(self, head: _Block) -> _Block | None:
        """Returns the last final block."""
        from web3.exceptions import Web3Exception

        try:
            return _Block.of(self._w3.eth.get_block("finalized"))
        except (Web3Exception, TypeError, KeyError):
            # The chain has no notion of finality.
            return self._block(head.number - REMEMBERED_BLOCKS) if head.number >= REMEMBERED_BLOCKS else None

    def _read(self, first: int, head: _Block) -> tuple[list[Any], _Block | None]:
        """Returns the logs from block `first` on, as many as the provider returns at once, with the last block; None if
        the provider does not have that block."""
        span = span_of(self._w3)
        while True:
            last = min(head.number, first + span.blocks - 1)
            # The block is read before the logs: a change in between is detected by its hash.
            end = head if last == head.number else self._block(last)
            if end is None:
                return [], None
            logs = logs_of(self._w3, {"address": self._addresses}, first, last)
            if logs is not None:
                return logs, end

    def _on_chain(self, cursor: Cursor) -> Cursor:
        """Returns the part of the cursor that is still on the chain."""
        recent = list(cursor.recent)
        while recent and self._hash(recent[-1][0]) != recent[-1][1]:
            recent.pop()
        if len(recent) == len(cursor.recent):
            return cursor
        return Cursor(recent[-1][0] + 1 if recent else self._start, tuple(recent))

    def _head(self) -> _Block:
        """Returns the last block with enough confirmations; its number is negative if there is none yet."""
        latest = _Block.of(self._w3.eth.get_block("latest"))
        number = latest.number - self._confirmations
        if self._check is not None:
            number = min(number, self._check.head())
        if number == latest.number:
            return latest
        block = self._block(number) if number >= 0 else None
        return block or _Block(-1, "", Seconds(0))

    def _block(self, number: int) -> _Block | None:
        from web3.exceptions import BlockNotFound

        try:
            return _Block.of(self._w3.eth.get_block(number))
        except BlockNotFound:
            return None

    def _hash(self, number: int) -> str | None:
        block = self._block(number)
        return None if block is None else block.hash

    def _time(self, number: int, entry: Mapping[str, Any]) -> Seconds:
        """Returns the time of a log's block, which many nodes include in the log."""
        stamp = entry.get("blockTimestamp")
        if stamp is not None:
            return Seconds(int(stamp, 16) if isinstance(stamp, str) else int(stamp))
        block = self._block(number)
        if block is None:
            raise Unreachable(f"the provider has logs of block {number} but not the block itself", "repeat the request")
        return block.time

    def _decode(self, logs: Iterable[Any], times: dict[int, Seconds]) -> Iterator[Event]:
        """Yields the events in order; `times` has the blocks whose time is known."""
        for entry in sorted(logs, key=lambda entry: (entry["blockNumber"], entry["logIndex"])):
            number = entry["blockNumber"]
            if number not in times:
                times[number] = self._time(number, entry)
            contract = self._names.get(entry["address"].lower())
            if contract is None or (self._wanted and _name_of(entry, contract) not in self._wanted):
                continue
            # INVARIANT: no log ends the reader; what cannot be read is counted, logged once, skipped.
            try:
                event = decode_log(entry, contract, times[number])
            except ChainError as failure:
                self._count(entry, contract, failure.message)
                continue
            if event is None:
                continue
            if event.unread:
                self._count(entry, contract, f"{event.name} has no CID in {', '.join(event.unread)}")
            yield event

    def _count(self, entry: Mapping[str, Any], contract: str, why: str) -> None:
        """Counts an unreadable log, and reports it unless it was reported before."""
        self.unreadable += 1
        key = (bytes(entry["transactionHash"]), int(entry["logIndex"]))
        if key in self._reported:
            return
        self._reported[key] = None
        while len(self._reported) > REMEMBERED_LOGS:
            del self._reported[next(iter(self._reported))]
        log.warning(
            "an event log cannot be decoded completely",
            contract=contract,
            why=why,
            block=entry["blockNumber"],
            transaction="0x" + key[0].hex(),
        )


@cache
def event_names() -> list[str]:
    """Returns the names of all events of the contracts that are read."""
    return sorted({abi["name"] for contract in LOGGING.values() for abi in abi_events(contract).values()})


@cache
def abi_events(contract: str) -> dict[bytes, dict[str, Any]]:
    """Returns a contract's event ABIs by topic."""
    entries = artifacts.load(contract).entries("event").values()
    return {keccak(artifacts.signature(entry).encode()): entry for entry in entries}


class _Copy:
    """Passes logs to the cache once their blocks are final, and holds them until then."""

    def __init__(self, cache: LogCache, start: int) -> None:
        self._cache = cache
        self._next = start
        """The first block that is not in the cache."""
        self._reached = start
        """The first block that was not read."""
        self._waiting: list[RawLog] = []
        self._final: _Block | None = None
        self._asked_at = -FINAL_PACE_BLOCKS

    def read(self, hash_of: Callable[[int], str | None]) -> tuple[list[RawLog], Covered] | None:
        """Returns the cache's logs and the blocks that they cover."""
        held = self._cache.read(hash_of)
        if held is not None:
            self._next = self._reached = held[1].next
            self._waiting.clear()
        return held

    def roll_back(self, reached: int) -> None:
        """Drops the logs from block `reached` on, which the chain has reorganised."""
        if reached >= self._reached:
            return
        self._waiting = [each for each in self._waiting if each.block < reached]
        self._reached, self._final = reached, None
        if reached < self._next:
            # A final block was reverted: the cache ends at a block that the chain does not have.
            self._cache.forget()
            self._next = reached

    def take(
        self, first: int, logs: Iterable[tuple[Any, Seconds]], end: _Block, head: _Block,
        final_of: Callable[[_Block], _Block | None],
    ) -> None:  # fmt: skip
        """Holds the logs that were read up to `end`, and passes the final ones to the cache."""
        if first != self._reached:
            return
        self._waiting += [RawLog.of(entry, time) for entry, time in logs]
        self._reached = end.number + 1
        # INVARIANT: a block that may still go is not written down.
        if head.number - self._asked_at >= FINAL_PACE_BLOCKS:
            self._asked_at, self._final = head.number, final_of(head)
        if self._final is None or self._final.number < self._next:
            return
        upto = end if end.number <= self._final.number else self._final
        ready = [each for each in self._waiting if each.block <= upto.number]
        self._cache.add(self._next, ready, upto.number, upto.hash)
        self._waiting = [each for each in self._waiting if each.block > upto.number]
        self._next = upto.number + 1


def _abi_of(entry: Mapping[str, Any], contract: str) -> dict[str, Any] | None:
    """Returns the ABI of a log's event; None if the contract has no such event."""
    return abi_events(contract).get(bytes(entry["topics"][0])) if entry["topics"] else None


def _name_of(entry: Mapping[str, Any], contract: str) -> str | None:
    abi = _abi_of(entry, contract)
    return None if abi is None else str(abi["name"])


def decode_log(entry: Mapping[str, Any], contract: str, time: Seconds) -> Event | None:
    """Decodes a log of `contract`; returns None if its ABI has no such event.

    Raises `ChainError` if the log does not fit the ABI. An argument whose name ends in Cid becomes a `Cid`, or NO_CID
    if its bytes are not canonical; in other strings, invalid UTF-8 becomes replacement characters.
    """
    topics = [bytes(topic) for topic in entry["topics"]]
    abi = _abi_of(entry, contract)
    if abi is None:
        return None
    # eth_abi raises errors of its own, ValueError, OverflowError and more: none may escape
    try:
        values = abi_values(abi, topics[1:], bytes(entry["data"]))
        args = {artifacts.snake(part["name"]): _value(part, values[part["name"]]) for part in abi["inputs"]}
    except Exception as failure:
        raise ChainError(
            f"a log with the topic of {contract}.{abi['name']} does not decode: {type(failure).__name__}: {failure}",
            "check that the addresses file is of this chain",
            code="chain.log",
        ) from failure
    return Event(
        contract=contract,
        name=abi["name"],
        args=args,
        block=entry["blockNumber"],
        block_hash=bytes(entry["blockHash"]),
        time=time,
        transaction=bytes(entry["transactionHash"]),
        index=entry["logIndex"],
        unread=tuple(
            artifacts.snake(part["name"])
            for part in abi["inputs"]
            if _is_cid(part) and values[part["name"]] and args[artifacts.snake(part["name"])] == NO_CID
        ),
    )


def read_cid(raw: bytes) -> Cid:
    """Returns the CID in a log's bytes; NO_CID unless they are the canonical text of a CID that storage keeps."""
    # INVARIANT: a CID that leaves this module is one that every store understands, or empty.
    if len(raw) != CID_CHARACTERS or raw[:1] != b"b" or raw != raw.lower():
        return NO_CID
    digits = raw[1:].upper()
    try:
        binary = base64.b32decode(digits + b"=" * (-len(digits) % 8))
    except (binascii.Error, ValueError):
        return NO_CID
    # Base 32 has two surplus bits, which must be zero in canonical text.
    if not binary.startswith(CID_HEADS) or base64.b32encode(binary).rstrip(b"=") != digits:
        return NO_CID
    return Cid(raw.decode("ascii"))


def abi_values(abi: Mapping[str, Any], topics: list[bytes], data: bytes) -> dict[str, Any]:
    """Returns the arguments by their Solidity names, strings as bytes."""
    from eth_abi.abi import decode

    indexed = [part for part in abi["inputs"] if part["indexed"]]
    plain = [part for part in abi["inputs"] if not part["indexed"]]
    # Strings are ABI-encoded like bytes, but eth_abi's decoder for strings is not total.
    kinds = [artifacts.abi_type(part).replace("string", "bytes") for part in plain]
    values = {part["name"]: value for part, value in zip(plain, decode(kinds, data), strict=True)}
    for part, topic in zip(indexed, topics, strict=True):
        plainly = part["type"] == "bytes32" and len(topic) == 32
        values[part["name"]] = topic if plainly else decode([part["type"]], topic)[0]
    return values


@lru_cache(ADDRESSES)
def _address(text: str) -> Address:
    """Returns the address in checksum form; cached, since its hash takes longer than decoding the rest of a log."""
    from eth_utils.address import to_checksum_address

    return Address(to_checksum_address(text))


def _is_cid(part: Mapping[str, Any]) -> bool:
    return part["type"] in ("string", "bytes") and part["name"].endswith("Cid")


def _value(part: Mapping[str, Any], value: Any) -> Any:
    """Converts an argument: addresses are checksummed, CIDs become text, structs become mappings with snake_case
    names."""
    if part["type"] == "address":
        return _address(value)
    if part["type"] == "tuple":
        return {artifacts.snake(p["name"]): _value(p, v) for p, v in zip(part["components"], value, strict=True)}
    if _is_cid(part):
        return read_cid(value)
    if part["type"] == "string":
        return value.decode("utf-8", "replace")
    return value
