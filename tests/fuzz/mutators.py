"""Mutations that keep a text's syntax: a value of a DAG-CBOR or JSON text is replaced, wrapped, dropped or copied."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from typing import Any

Mutator = Callable[[bytes, int, int], bytes]
"""(data, most bytes, seed) -> data: Atheris's custom mutator."""

LEAVES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 255, 256, 65535, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63,
    (1 << 64) - 1, 1.5, "", "x", "0x", "0x" + "00" * 20, "0x" + "11" * 32, "00" * 32, [], {}, [[]], [0, 0], {"a": 1},
)  # fmt: skip
DEEP = 40
"""Levels that `wrap` adds: more than any decoder takes."""


def cbor(data: bytes, most: int, seed: int) -> bytes:
    """A DAG-CBOR text with another value in it."""
    import dag_cbor

    dice = random.Random(seed)
    try:
        value = dag_cbor.decode(data)
        return dag_cbor.encode(_changed(value, dice, (b"", b"\0" * 4, bytes(32), dice.randbytes(7))))[:most]
    except Exception:
        return flipped(data, most, seed)


def sized_cbor(data: bytes, most: int, seed: int) -> bytes:
    """The same, of the same length if some bytes of it can be padded or cut to that; its first byte stands."""
    import dag_cbor

    dice = random.Random(seed)
    head, body = data[:1], data[1:]
    try:
        value = _changed(dag_cbor.decode(body), dice, (b"", b"\0" * 4, bytes(32)))
    except Exception:
        return flipped(data, most, seed)
    for _ in range(4):
        try:
            changed = dag_cbor.encode(value)
        except Exception:
            return flipped(data, most, seed)
        if len(changed) == len(body) or dice.random() < 0.1:
            break
        value = _stretched(value, len(body) - len(changed), dice)
    return (head + changed)[:most]


def jsons(data: bytes, most: int, seed: int) -> bytes:
    """A JSON text with another value in it."""
    dice = random.Random(seed)
    try:
        value = _changed(json.loads(data), dice, ("\ud800", "q" * 5000, 1e300, 1 << 70))
        return json.dumps(value).encode()[:most]
    except (ValueError, RecursionError):
        return flipped(data, most, seed)


def lines(data: bytes, most: int, seed: int) -> bytes:
    """A text of lines with one replaced by a token, dropped, doubled or cut."""
    dice = random.Random(seed)
    rows = data.split(b"\n")
    at = dice.randrange(len(rows))
    key, _, _value = rows[at].partition(b"=")
    tokens = (b"1", b"-1", b"0", b"true", b"1.5", b"nan", b'"x"', b"[]", b"{}", b"[[1]]", b"1e400", b"99999999")
    match dice.randrange(6):
        case 0:
            rows[at] = key + b"=" + dice.choice(tokens)
        case 1:
            del rows[at]
        case 2:
            rows.insert(at, rows[dice.randrange(len(rows))])
        case 3:
            rows[at] = rows[at][: dice.randrange(len(rows[at]) + 1)]
        case 4:
            rows.insert(
                at, dice.choice((b"[model]", b"[batch]", b"[strategy]", b"[adapters]", b"x.y = 1", b"inner = 1"))
            )
        case _:
            levels = dice.choice((0, 1, 200))
            rows[at] = key + b".a" * dice.choice((1, DEEP)) + b" = " + b"[" * levels + b"1" + b"]" * levels
    return b"\n".join(rows)[:most]


def headed(structural: Mutator) -> Mutator:
    """The mutation of what follows the first byte."""
    return lambda data, most, seed: data[:1] + structural(data[1:], most - 1, seed)


def base64_jsons(data: bytes, most: int, seed: int) -> bytes:
    """A JSON text in base 64, with another value in it."""
    try:
        text = base64.urlsafe_b64decode(data + b"=" * (-len(data) % 4))
    except ValueError:
        return flipped(data, most, seed)
    return base64.urlsafe_b64encode(jsons(text, 3 * most // 4, seed)).rstrip(b"=")


def flipped(data: bytes, most: int, seed: int) -> bytes:
    """libFuzzer's own mutations."""
    import atheris

    mutated: bytes = atheris.Mutate(data, most)
    return mutated


def often(structural: Mutator) -> Mutator:
    """The structural mutation in two of three cases, else libFuzzer's own."""

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        return flipped(data, most, seed) if seed % 3 == 0 else structural(data, most, seed)

    return mutate


def _places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, x in inner for place in _places(x, (*at, key)))]


def _changed(value: Any, dice: random.Random, more: tuple[Any, ...]) -> Any:
    place = dice.choice(_places(value))
    box = [value]
    holder: Any = box
    path = (0, *place)
    for key in path[:-1]:
        holder = holder[key]
    key, old = path[-1], holder[path[-1]]
    match dice.randrange(8):
        case 0 | 1:
            holder[key] = dice.choice((*LEAVES, *more))
        case 2 if holder is not box:
            del holder[key]
        case 3 if isinstance(holder, list) and holder is not box:
            holder.insert(key, old)
        case 3 if isinstance(holder, dict):
            holder[dice.choice(("a", "Crypto", "carry", "root", "offset", "names", "x" * 50))] = old
        case 4:
            for _ in range(dice.choice((1, 2, DEEP))):
                old = [old] if dice.random() < 0.5 else {"a": old}
            holder[key] = old
        case 5 if isinstance(old, bytes | str) and old:
            cut = dice.randrange(len(old))
            holder[key] = dice.choice((old[:cut], old + old[:1], old[:cut] + old[cut + 1 :]))
        case 6 if type(old) is int:
            holder[key] = old + dice.choice((-1, 1, 1 << 8, 1 << 32))
        case 6 if isinstance(old, bytes):
            flip = dice.randrange(len(old) + 1)
            holder[key] = old[:flip] + dice.randbytes(1) + old[flip + 1 :]
        case _:
            holder[key] = dice.choice((*LEAVES, *more))
    return box[0]


def _stretched(value: Any, by: int, dice: random.Random) -> Any:
    found = []
    for place in _places(value):
        holder, old = None, value
        for key in place:
            holder, old = old, old[key]
        if isinstance(old, bytes) and holder is not None and len(old) + by >= 0:
            found.append((holder, place[-1], old))
    if found:
        holder, key, old = dice.choice(found)
        holder[key] = old + bytes(by) if by > 0 else old[: len(old) + by]
    return value
