"""Fuzz targets: events, signed claims, requests and their bodies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.fuzz.target import Run, refusals


def event() -> tuple[Iterable[bytes], Run]:
    """Contract, event, topics (at most 3 of 32 bytes), data."""
    from eth_abi.abi import encode

    from lockstep.chain import artifacts
    from lockstep.chain.events import _value, decode_log
    from lockstep.protocol.hashing import keccak
    from lockstep.protocol.types import Seconds
    from lockstep.storage.cid import cid_of_block

    contracts = ("JobMarket", "StakeVault", "DisputeGame", "Validator", "Availability", "Witnesses")
    events = [(c, e) for c in contracts for _, e in sorted(artifacts.load(c).entries("event").items())]

    def run(data: bytes) -> None:
        if len(data) < 2:
            return
        contract, event = events[data[0] % len(events)]
        count = data[1] % 5
        # Four topics at most, of which the first is the event's; beyond that another one, or none at all.
        first = [keccak(artifacts.signature(event).encode())] if data[1] < 128 else [bytes(32)][: data[1] % 2]
        topics = [data[2 + 32 * k : 34 + 32 * k].ljust(32, b"\0") for k in range(min(count, 3))]
        log = {
            "topics": [*first, *topics] if first else [], "data": data[2 + 32 * count :], "blockNumber": 1,
            "blockHash": bytes(32), "transactionHash": bytes(32), "logIndex": 0, "address": "0x" + "11" * 20,
        }  # fmt: skip
        with refusals():
            found = decode_log(log, contract, Seconds(0))
            if found is not None:
                assert found.key == (1, 0), "an event has its place"
        # No event has a text yet that is no CID.
        assert isinstance(_value({"type": "string", "name": "note"}, data), str), "a text is one, whatever its bytes"

    def value(part: dict[str, Any]) -> Any:
        kind = part["type"]
        if kind.endswith("[]"):
            return [value({**part, "type": kind[:-2]})]
        if kind == "tuple":
            return tuple(value(p) for p in part["components"])
        if kind in ("string", "bytes"):
            return cid_of_block(b"x").encode() if kind == "bytes" else cid_of_block(b"x")
        if kind.startswith("bytes"):
            return bytes(int(kind[5:]))
        return "0x" + "11" * 20 if kind == "address" else False if kind == "bool" else 1

    seeds = []
    for k, (_, event) in enumerate(events):
        indexed = [p for p in event["inputs"] if p["indexed"]]
        plain = [p for p in event["inputs"] if not p["indexed"]]
        body = encode([artifacts.abi_type(p) for p in plain], [value(p) for p in plain])
        topics = b"".join(encode([p["type"]], [value(p)]) for p in indexed)
        seeds.append(bytes((k, len(indexed))) + topics + body)
    # A text of the right length that is no base 32, and one whose last two bits are not zero.
    cid = cid_of_block(b"x").encode()
    seeds += [s.replace(cid, b"b" + bytes([c]) * 58) for s in seeds if cid in s for c in b"1z"]
    return [*seeds, b"\0\x80", b"\0\x81"], run


def signed_claim() -> tuple[Iterable[bytes], Run]:
    import json

    from lockstep.base.decoding import from_json
    from lockstep.market.signed import SignedClaim
    from lockstep.protocol.types import Address

    market = Address("0x" + "22" * 20)
    word = "0x" + "11" * 32
    claim = {
        "job": word, "round": 1, "attempt": 0, "slot": 2, "seed": word, "base": word, "traceRoot": word,
        "transitions": 6, "out": word, "out2": word,
    }  # fmt: skip
    good = {"claim": claim, "worker": "0x" + "33" * 20, "signature": "0x" + "44" * 64 + "1b"}
    first = SignedClaim.parse(good)

    def run(data: bytes) -> None:
        with refusals():
            said = SignedClaim.parse(from_json(data, 8192))
            assert len(said.id) == len(said.digest(31337, market)) == 32, "it has an id and a digest"
            assert said.work() != first.work() or said.contradicts(first) in (True, False), "it compares"
            assert len(said.signed()) == 5, "it can be shown to the contract"
            assert said.claim.worker[:2] == "0x", "its worker is an address"
            if data[-1:] == b" ":
                said.signer(31337, market)

    announced = {**good, "trace_cid": "bafkrei", "payload_cid": "bafkrei"}
    odd = {**announced, "trace_cid": 5}
    return [json.dumps(x).encode() for x in (good, announced, odd)] + [json.dumps(good).encode() + b" "], run


def request() -> tuple[Iterable[bytes], Run]:
    """Method, target, then the headers, one a line."""
    from hashlib import sha256

    from lockstep.protocol.types import Address, Seconds
    from lockstep.runtime.identity import NodeKey, verify_request
    from lockstep.runtime.requests import HEADERS, RequestSignature, request_digest

    key = NodeKey(bytes(32))
    account = Address("0x" + "ab" * 20)
    headers = key.sign_request(account, "POST", "/api/v1/claims", b"body", now=Seconds(1000), nonce=bytes(16))
    good = "\n".join(headers[name] for name in HEADERS)

    def run(data: bytes) -> None:
        lines = data.decode("latin-1").split("\n")
        found = dict(zip(HEADERS, lines[2:], strict=False))
        with refusals():
            signature = RequestSignature.parse({k.lower(): v for k, v in found.items()})
            assert RequestSignature.parse(signature.headers()) == signature, "a request comes back"
            assert (
                len(request_digest("GET", "/", signature.account, signature.nonce, signature.expires, signature.body))
                == 32
            ), "what is signed has a digest"
            signature.check_body(sha256(b"body").digest())
            signature.check_time(Seconds(1000))
            verify_request(signature, key.public, lines[0], lines[1])

    seeds = [f"POST\n/api/v1/claims\n{good}", f"GET\n/x\n{good}"]
    seeds += [seeds[0].replace("1120", time) for time in ("1", "9999", "9" * 30)]
    return [s.encode("latin-1") for s in seeds], run


def body() -> tuple[Iterable[bytes], Run]:
    """The first byte chooses the body's kind."""
    import json

    from coordinator.api import _parsed
    from coordinator.auth import SignedRequest
    from coordinator.schema import ClaimIn, ReceiptIn
    from lockstep.market.signed import SignedClaim
    from lockstep.protocol.types import Address

    word = "0x" + "11" * 32
    claim = {
        "job": word, "round": 1, "attempt": 0, "slot": 2, "seed": word, "base": word, "traceRoot": word,
        "transitions": 6, "out": word, "out2": word,
    }  # fmt: skip
    announced = {
        "claim": claim, "worker": "0x" + "33" * 20, "signature": "0x" + "44" * 65, "trace_cid": "bafkreiaa",
        "payload_cid": "bafkreiaa",
    }  # fmt: skip
    receipt = {"job": word, "round": 1, "attempt": 0, "who": 1, "mask": "3", "signature": "0x" + "44" * 65}

    def run(data: bytes) -> None:
        request = SignedRequest(Address("0x" + "33" * 20), bytes(32), data[1:])
        with refusals():
            if data[:1] == b"r":
                given = _parsed(ReceiptIn, request)
                assert bytes.fromhex(given.signature[2:]), "a receipt has a signature"
                assert int(given.mask) >= 0, "and a mask"
            else:
                announced = _parsed(ClaimIn, request)
                assert SignedClaim.parse(announced.model_dump()).signature, "an announcement is a signed claim"

    return [b"c" + json.dumps(announced).encode(), b"r" + json.dumps(receipt).encode(), b"r"], run


def cursor() -> tuple[Iterable[bytes], Run]:
    from coordinator import queries

    def run(data: bytes) -> None:
        with refusals():
            number, key = queries._decode(data.decode("latin-1"))
            assert abs(number) < 1 << 63, "a database takes the number"
            assert queries._decode(queries._encode([number, key])) == (number, key), "a cursor comes back"

    return [queries._encode([5, "0x" + "ab" * 32]).encode(), b"WzFd", b"W10", b"WzEsIngiXQ"], run
