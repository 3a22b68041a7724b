"""Bytes from outside: bounded before they are parsed, typed after, refused with one error."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.base.decoding import (
    MAX_BRACKETS,
    MAX_DEPTH,
    MAX_ITEMS,
    account,
    either,
    file_bytes,
    from_cbor,
    from_json,
    from_toml,
    hexes,
    nothing,
    octets,
    refusing,
    several,
    table,
    text,
    whole,
)
from lockstep.protocol.errors import Malformed, PayloadInvalid


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x81" * 200_000 + b"\x80",
        b"\x9b" + b"\xff" * 8,
        b"\x9a\x00\x20\x00\x00" + b"\x80" * (1 << 21),
        b"\x5b" + b"\xff" * 8,
        b"\x80\x80",
        b"\xd8\x2a\x40",
        b"\xd8\x2a\x41\x00",
        b"\x1c",
        b"\xf9\x00\x00",
        b"\x61\xff",
        b"\xa2\x61b\x01\x61a\x01",
    ],
    ids=lambda data: f"{data[:6].hex()}-{len(data)}",
)
def test_cbor_that_is_none_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        from_cbor(data, 1 << 22)


def test_cbor_within_its_bounds_is_read() -> None:
    assert from_cbor(b"\x81" * (MAX_DEPTH - 2) + b"\x01", 100) != []
    assert from_cbor(b"\x83\x01\x02\x03", 4, most_items=4) == [1, 2, 3]
    for most_bytes, most_items in ((3, 4), (4, 3)):
        with pytest.raises(Malformed, match=r"at most|more than"):
            from_cbor(b"\x83\x01\x02\x03", most_bytes, most_items=most_items)


@pytest.mark.parametrize(
    "data",
    [
        "[" * 100_000,
        '"' + '\\"' * 500_000,
        "[" + "0," * MAX_ITEMS + "0]",
        '{"a": 1, "a": 2}',
        "[1e999]",
        "[NaN]",
        "[-Infinity]",
        "9" * 5000,
        b"\xff",
        "",
    ],
    ids=lambda data: str(data[:12]),
)
def test_json_that_is_none_or_means_two_things_is_malformed(data: bytes | str) -> None:
    with pytest.raises(Malformed):
        from_json(data, 1 << 22)


def test_brackets_in_a_json_text_nest_nothing() -> None:
    assert from_json('"' + "[" * 1000 + '\\""', 2000) == "[" * 1000 + '"'


@pytest.mark.parametrize(
    "data",
    ["a = " + "[" * 500, "a" + ".a" * 5000 + " = 1", "a = nan", "a = 1e400", "a = " + "9" * 5000, b"a = '\xff'", "a"],
    ids=lambda data: str(data[:12]),
)
def test_toml_that_is_none_is_malformed(data: bytes | str) -> None:
    with pytest.raises(Malformed):
        from_toml(data)


def test_toml_nests_as_deep_as_a_person_writes() -> None:
    deep = "a = " + "[" * 20 + "]" * 20
    assert from_toml(deep)["a"], "well within the bounds"
    assert deep.count("[") < MAX_BRACKETS


def test_a_file_is_read_up_to_its_bound(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert file_bytes(path, 4) == b"1234"
    with pytest.raises(Malformed, match="at most 3"):
        file_bytes(path, 3)


@pytest.mark.parametrize(
    ("reader", "good", "bad"),
    [
        (whole(1, 3), [1, 3], [0, 4, True, 1.0, "1", None, [], {}]),
        (octets(2), [b"ab"], [b"a", b"abc", "ab", None, 5, [1, 2]]),
        (text(3), ["", "abc"], ["abcd", "\ud800", b"a", 5, None, {}]),
        (hexes(1), ["0xab", "0xAB"], ["ab", "0xa", "0xabc", "0x a", " 0xab", "0xab\n", 5, None, b"ab", ["0xab"]]),
        (hexes(1, bare=True), ["ab", "0xab"], ["a", "xx", 5, None]),
        (account, ["0x" + "aB" * 20], ["ab" * 20, "0x" + "ab" * 21, "0x" + "zz" * 20, 5, None, {}]),
        (several(whole(0, 9), 2), [[], [1, 2]], [[1, 2, 3], [10], (1,), None, {"a": 1}, "12"]),
        (
            table({"a": whole(0, 9)}, {"b": text()}),
            [{"a": 1}, {"a": 1, "b": ""}],
            [{}, {"a": 1, "c": 1}, [], None, "a"],
        ),
        (either(nothing, octets(1)), [None, b"a"], [b"", 0, False, "a"]),
    ],
    ids=["whole", "octets", "text", "hexes", "bare", "account", "several", "table", "either"],
)
def test_a_reader_takes_what_it_says_and_nothing_else(reader, good, bad) -> None:  # type: ignore[no-untyped-def]
    for value in good:
        reader(value, "it")
    for value in bad:
        with pytest.raises(Malformed):
            reader(value, "it")


def test_a_refusal_is_the_decoders_own_and_says_where() -> None:
    with (
        pytest.raises(PayloadInvalid, match=r"a payload does not parse: it\.a\[1\] is out of range") as caught,
        refusing(PayloadInvalid, "a payload", "it counts as absent"),
    ):
        table({"a": several(whole(0, 9), 2)})({"a": [1, 10]}, "it")
    assert caught.value.hint == "it counts as absent"
