"""Logs are decoded by a total function: bytes of strangers end no reader, and no claim is passed over."""

from __future__ import annotations

from typing import Any

import pytest
from eth_abi.abi import encode
from hypothesis import example, given
from hypothesis import strategies as st
from structlog.testing import capture_logs
from web3.exceptions import Web3RPCError
from web3.providers.base import BaseProvider
from web3.types import RPCEndpoint

from lockstep.chain import artifacts, events, ranges
from lockstep.chain.addresses import Addresses
from lockstep.chain.events import NO_CID, Event, EventReader, decode_log, read_cid
from lockstep.chain.rpc import Failure, over
from lockstep.protocol.errors import ChainError, LockstepError, Unreachable
from lockstep.protocol.hashing import keccak
from lockstep.protocol.types import Address, Seconds
from lockstep.storage import cid_of
from lockstep.storage.cid import parse_cid

NOW = Seconds(1_000)
GOOD = cid_of(b"four legs good")
BAD_CIDS = [
    b"\xff",
    b"\xc3\x28",
    b"\0",
    b"../../etc/passwd",
    b"b" * 59,
    GOOD.upper().encode(),
    b"a" * 129,
    bytes(10**5),
]
CONTRACTS = ("JobMarket", "StakeVault", "DisputeGame", "Validator", "Availability", "Witnesses")
EVENTS = [(c, name) for c in CONTRACTS for name in sorted(artifacts.load(c).entries("event"))]
ADDRESSES = Addresses(
    chain_id=31337, block=5, **{
        name: Address(f"0x{i:040x}")
        for i, name in enumerate(
            ("token", "vault", "market", "game", "arbiter", "validator", "availability", "witnesses"), 1
        )
    },
)  # fmt: skip


def abi(contract: str, name: str) -> dict[str, Any]:
    return artifacts.load(contract).entries("event")[name]


def log_of(
    contract: str, name: str, topics: list[bytes], data: bytes, block: int = 7, index: int = 0
) -> dict[str, Any]:
    topic = keccak(artifacts.signature(abi(contract, name)).encode())
    return raw_log([topic, *topics], data, block, index)


def raw_log(topics: list[bytes], data: bytes, block: int = 7, index: int = 0) -> dict[str, Any]:
    return {
        "address": ADDRESSES.market, "topics": topics, "data": data, "blockNumber": block, "blockHash": bytes(32),
        "transactionHash": block.to_bytes(32, "big"), "logIndex": index,
    }  # fmt: skip


def revealed(trace_cid: bytes, payload_cid: bytes, **place: int) -> dict[str, Any]:
    """A reveal's log; a string is ABI-encoded as bytes are."""
    plain = [part for part in abi("JobMarket", "Revealed")["inputs"] if not part["indexed"]]
    values: dict[str, Any] = {
        "claim": b"c" * 32, "worker": "0x" + "22" * 20, "traceRoot": b"t" * 32, "out": b"o" * 32, "out2": b"p" * 32,
        "traceCid": trace_cid, "payloadCid": payload_cid,
    }  # fmt: skip
    kinds = [artifacts.abi_type(part).replace("string", "bytes") for part in plain]
    indexed = [part["name"] for part in abi("JobMarket", "Revealed")["inputs"] if part["indexed"]]
    words = {"job": b"j" * 32, "round": (3).to_bytes(32, "big"), "slot": (1).to_bytes(32, "big"), "claim": b"c" * 32}
    topics = [words[name] for name in indexed]
    return log_of("JobMarket", "Revealed", topics, encode(kinds, [values[part["name"]] for part in plain]), **place)


def decoded(entry: dict[str, Any], contract: str = "JobMarket") -> Event:
    event = decode_log(entry, contract, NOW)
    assert event is not None
    return event


# -- one log ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", BAD_CIDS)
def test_a_reveal_whose_cid_cannot_be_read_is_a_reveal_without_content(bad: bytes) -> None:
    event = decoded(revealed(GOOD.encode(), bad))
    assert (event.trace_cid, event.payload_cid) == (GOOD, NO_CID)
    assert event.unread == ("payload_cid",)
    assert (event.claim, event.out, event.slot) == (b"c" * 32, b"o" * 32, 1), "the claim is there"


def test_an_empty_cid_is_not_unreadable() -> None:
    event = decoded(revealed(b"", GOOD.encode()))
    assert (event.trace_cid, event.payload_cid, event.unread) == (NO_CID, GOOD, ())


@given(
    st.one_of(
        st.binary(max_size=130),
        st.binary(min_size=59, max_size=59),
        st.text("ab27", min_size=59, max_size=59).map(str.encode),
    )
)
@example(GOOD.encode())
@example(GOOD[:-1].encode() + b"b")
@example(b"bafybei" + GOOD[7:].encode())
def test_a_cid_is_read_exactly_where_storage_can_parse_it(raw: bytes) -> None:
    try:
        parse_cid(raw.decode())
        parses = True
    except (LockstepError, UnicodeDecodeError):
        parses = False
    assert (read_cid(raw) != NO_CID) == parses
    assert read_cid(raw) in (NO_CID, raw.decode("latin-1"))


@given(st.sampled_from(EVENTS), st.lists(st.binary(min_size=32, max_size=32), max_size=4), st.binary(max_size=700))
@example(("JobMarket", "Revealed"), [bytes(32)] * 3, b"\xff" * 320)
@example(("JobMarket", "Revealed"), [bytes(32)] * 3, (32).to_bytes(32, "big") * 5 + b"\xff" * 320)
@example(("JobMarket", "Merged"), [], b"")
@example(("DisputeGame", "Defended"), [bytes(32)], bytes(64) + (96).to_bytes(32, "big") + b"\xff" * 32)
@example(("DisputeGame", "Defended"), [bytes(32)], bytes(64) + (96).to_bytes(32, "big") + (10**9).to_bytes(32, "big"))
def test_decoding_raises_the_error_tree_alone(event: tuple[str, str], topics: list[bytes], data: bytes) -> None:
    contract, name = event
    try:
        found = decode_log(log_of(contract, name, topics, data), contract, NOW)
    except ChainError:
        return
    assert found is not None
    assert found.name == name


@given(st.lists(st.binary(min_size=32, max_size=32), max_size=5), st.binary(max_size=64))
@example([], b"")
def test_a_log_without_a_known_topic_is_none(topics: list[bytes], data: bytes) -> None:
    assert decode_log(raw_log(topics, data), "JobMarket", NOW) is None


def test_bytes_after_the_arguments_change_nothing() -> None:
    entry = revealed(GOOD.encode(), GOOD.encode())
    assert decoded({**entry, "data": entry["data"] + b"\xff" * 77}).args == decoded(entry).args


def test_a_string_that_names_no_content_is_text_whatever_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    note = {"type": "event", "name": "Note", "inputs": [{"name": "text", "type": "string", "indexed": False}]}
    topic = keccak(b"Note(string)")
    monkeypatch.setattr(events, "abi_events", lambda contract: {topic: note})
    event = decoded(raw_log([topic], encode(["bytes"], [b"a\xffb"])))
    assert (event.text, event.unread) == ("a\N{REPLACEMENT CHARACTER}b", ())


# -- a reader ---------------------------------------------------------------------------------------------------------


class Provider(BaseProvider):
    """Answers what a reader asks, over a list of logs; refuses more than `most` blocks at once."""

    def __init__(
        self, logs: list[dict[str, Any]], head: int, most: int = 10**9, refusal: Exception | None = None
    ) -> None:
        super().__init__()
        self.logs, self.head, self.most = logs, head, most
        self.refusal = refusal or Web3RPCError("query returned more than 10000 results")
        self.asked: list[tuple[int, int]] = []
        self.w3 = over(self)

    def make_request(self, method: RPCEndpoint, params: Any) -> Any:
        answer = self.block(params[0]) if method == "eth_getBlockByNumber" else self.found(**params[0])
        return {"jsonrpc": "2.0", "id": 1, "result": answer}

    def block(self, tag: str) -> dict[str, str]:
        number = int(tag, 16) if tag.startswith("0x") else self.head
        return {"number": hex(number), "hash": f"0x{number:064x}", "timestamp": hex(1_000 + number)}

    def found(self, address: list[str], fromBlock: str, toBlock: str) -> list[dict[str, Any]]:
        first, last = int(fromBlock, 16), int(toBlock, 16)
        self.asked.append((first, last))
        if last - first + 1 > self.most:
            raise self.refusal
        return [as_sent(entry) for entry in self.logs if first <= entry["blockNumber"] <= last]


def as_sent(value: Any) -> Any:
    """Returns a log in JSON-RPC's form."""
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, dict):
        return {name: as_sent(entry) for name, entry in value.items()}
    return hex(value) if isinstance(value, int) else [as_sent(v) for v in value] if isinstance(value, list) else value


def read_all(provider: Provider) -> tuple[list[Event], EventReader]:
    reader = EventReader(provider.w3, ADDRESSES)
    cursor, found = reader.start(), []
    while (batch := reader.poll(cursor)).cursor != cursor:
        cursor = batch.cursor
        found += batch.events
    return found, reader


def test_what_cannot_be_read_is_counted_logged_once_and_skipped() -> None:
    truncated = {**revealed(b"", GOOD.encode(), block=8), "data": b"\1" * 40}
    logs = [
        revealed(b"", GOOD.encode(), block=7),
        truncated,
        revealed(b"", b"\xff", block=9),
        raw_log([], b"", block=9, index=1),
    ]
    provider = Provider(logs, head=10)
    reader = EventReader(provider.w3, ADDRESSES)
    with capture_logs() as said:
        batch = reader.poll(reader.start())
        again = reader.poll(reader.start())
    assert [event.block for event in batch.events] == [7, 9], "the log without arguments is skipped, the claim is not"
    assert (batch.unreadable, again.unreadable, reader.unreadable) == (2, 2, 4)
    assert [line["block"] for line in said] == [8, 9], "each once, though it was read twice"


def test_a_reader_decodes_the_events_that_are_named() -> None:
    strange = {**revealed(b"", GOOD.encode(), block=8), "data": b"\1" * 40}
    provider = Provider([revealed(b"", GOOD.encode(), block=7), strange], head=10)
    reader = EventReader(provider.w3, ADDRESSES, names=("JobCreated",))
    batch = reader.poll(reader.start())
    assert (batch.events, batch.unreadable, batch.cursor.next_block) == ((), 0, 11)
    reader = EventReader(provider.w3, ADDRESSES, names=("JobCreated", "Revealed"))
    assert [event.block for event in reader.poll(reader.start()).events] == [7]


def test_logs_of_other_contracts_are_passed_over() -> None:
    stranger = {**revealed(b"", b""), "address": "0x" + "99" * 20}
    assert read_all(Provider([stranger], head=10))[0] == []


def http_error(status: int) -> Unreachable:
    failure = Unreachable("the chain's RPC does not answer")
    failure.__cause__ = Failure(f"HTTP {status}", status=status)
    return failure


@pytest.mark.parametrize("refusal", [None, Web3RPCError("block range is too wide"), http_error(413)])
@pytest.mark.parametrize("most", [1, 3, 100])
def test_a_provider_that_refuses_is_asked_for_half_down_to_one_block(most: int, refusal: Exception | None) -> None:
    logs = [revealed(b"", GOOD.encode(), block=block) for block in range(5, 60)]
    provider = Provider(logs, head=59, most=most, refusal=refusal)
    found, _ = read_all(provider)
    assert [event.block for event in found] == list(range(5, 60))


def test_the_span_grows_again_after_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "CHUNK_BLOCKS", 16)
    provider = Provider([], head=200, most=1)
    reader = EventReader(provider.w3, ADDRESSES)
    cursor = reader.poll(reader.start()).cursor
    provider.most = 10**9
    provider.asked.clear()
    for _ in range(6):
        cursor = reader.poll(cursor).cursor
    assert [last - first + 1 for first, last in provider.asked] == [2, 4, 8, 16, 16, 16]


def test_one_block_refused_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="refuses the logs of block 5"):
        read_all(Provider([], head=40, most=0))


def test_a_timeout_is_told_at_once_and_the_next_request_is_for_half() -> None:
    slow = Unreachable("the chain's RPC does not answer")
    slow.__cause__ = Failure("ReadTimeout", timed_out=True)
    provider = Provider([], head=24, most=10, refusal=slow)
    reader = EventReader(provider.w3, ADDRESSES)
    with pytest.raises(Unreachable):
        reader.poll(reader.start())
    assert len(provider.asked) == 1, "a second timeout would hold the caller up"
    assert reader.poll(reader.start()).cursor.next_block > 5, "20 blocks were too many, half of them are not"


@pytest.mark.parametrize("cause", [Failure("ConnectionError"), None])
def test_a_provider_that_is_down_is_not_asked_for_less(cause: Exception | None) -> None:
    down = Unreachable("the chain's RPC does not answer")
    down.__cause__ = cause
    provider = Provider([], head=24, most=10, refusal=down)
    with pytest.raises(Unreachable):
        read_all(provider)
    assert provider.asked == [(5, 24)]
