"""Fuzz targets: CBOR, JSON and TOML texts, and the readers of their values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.fuzz.target import Run, depth_of, refusals


def cbor() -> tuple[Iterable[bytes], Run]:
    import dag_cbor
    from multiformats import CID

    from lockstep.base.decoding import MAX_DEPTH, from_cbor
    from lockstep.storage.cid import cid_of_block, cid_to_bytes

    link = CID.decode(cid_to_bytes(cid_of_block(b"x")))
    values: list[Any] = [
        {"a": [1, -1, None, True, 1.5, "text", b"bytes", link]}, [[[]]], 1 << 63, 1000, 70000, 1 << 40, "\u00e9" * 300,
        bytes(2100),
    ]  # fmt: skip

    def run(data: bytes) -> None:
        with refusals():
            value = from_cbor(data, 2048, most_items=500)
            assert len(data) <= 2048, "size is bounded"
            assert depth_of(value) <= MAX_DEPTH + 1, "depth is bounded"
            assert dag_cbor.encode(value) == data, "DAG-CBOR is canonical"

    return [dag_cbor.encode(v) for v in values], run


def json() -> tuple[Iterable[bytes], Run]:
    from lockstep.base.decoding import MAX_DEPTH, from_json

    seeds = [
        b'{"a": [1, -1.5e3, null, true, "te\\"xt\\u00e9"], "b": {"c": []}}',
        b'"\\\\"',
        b"[[],[]]",
        b'{"a": 1, "a": 2}',
    ]
    seeds += [b"[1e999]", '"é"'.encode(), '"é"'.encode("latin-1"), b"[" + b" " * 2100 + b"]"]

    def run(data: bytes) -> None:
        with refusals():
            value = from_json(data, 2048, most_items=100)
            assert depth_of(value) <= MAX_DEPTH + 1, "depth is bounded"
            text = data.decode()
            assert from_json(text, 2048) == value, "text and its bytes mean the same"

    return seeds, run


def toml() -> tuple[Iterable[bytes], Run]:
    from lockstep.base.decoding import MAX_DEPTH, from_toml

    seeds = [
        b'rpc = "http://127.0.0.1:8545"\nthreads = 2\nx = 1.5\nlist = [[1], {a = 1}]\n[a.b]\nc = """\ntext"""\n',
        b"a.b.c = 1979-05-27T07:32:00Z\n# comment\n[[rows]]\n[[rows]]\nn = 0x1f\n",
        b"#" * 2100,
    ]

    def run(data: bytes) -> None:
        with refusals():
            value = from_toml(data, 2048)
            assert depth_of(value) <= MAX_DEPTH + 1, "depth is bounded"

    return seeds, run


def readers() -> tuple[Iterable[bytes], Run]:
    import json

    from lockstep.base import decoding as d

    word = "0x" + "11" * 32
    good = {
        "flag": True, "whole": 3, "text": "text", "one": "b", "hex": word, "bare": "ab" * 20, "any": "", "account":
        "0x" + "ab" * 20, "list": [1, 2], "map": {"k": 1}, "either": None, "free": {"x": [1.5]}, "bytes": "cd",
    }  # fmt: skip
    read = d.table(
        {
            "flag": d.flag, "whole": d.whole(0, 9), "text": d.text(8), "one": d.one_of("a", "b"), "hex": d.hexes(32),
            "bare": d.hexes(20, bare=True), "any": d.hexes(None, bare=True), "account": d.account,
            "list": d.several(d.whole(0, 9), 3), "map": d.mapping(d.whole(0, 9)),
            "either": d.either(d.nothing, d.octets(1)), "free": d.anything,
        },
        {"bytes": d.octets()},
    )  # fmt: skip

    def run(data: bytes) -> None:
        with refusals():
            value = d.from_json(data, 4096)
            # JSON has no bytes: hex stands for them here.
            if isinstance(value, dict) and isinstance(value.get("bytes"), str):
                value["bytes"] = value["bytes"].encode("utf-8", "replace")
            if isinstance(value, dict) and isinstance(value.get("either"), str):
                value["either"] = value["either"].encode("utf-8", "replace")
            f = read(value, "the map")
            assert f["flag"] in (True, False), "a flag"
            assert type(f["whole"]) is int, "a number"
            assert 0 <= f["whole"] <= 9, "in its range"
            assert len(f["text"].encode()) <= 32, "text that UTF-8 holds"
            assert f["one"] in ("a", "b"), "one of its words"
            assert (len(f["hex"]), len(f["bare"]), len(f["account"])) == (32, 20, 42), "words have their length"
            assert all(type(x) is int for x in [*f["list"], *f["map"].values()]), "entries are read too"
            assert f["either"] is None or len(f["either"]) == 1, "one of both"

    return [json.dumps(good).encode(), json.dumps({**good, "either": "x", "bare": "0x" + "ab" * 20}).encode()], run
