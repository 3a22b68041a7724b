"""Decodes untrusted bytes to values: checks size first, then depth, then form.

`from_cbor`, `from_json` and `from_toml` bound a text before it is parsed. Readers then define the form of each field,
so that a decoder is a declaration:

    _CONST = table({"dtype": whole(0, 255), "shape": several(whole(0, U32), 255), "data": octets()})

    with refusing(ProgramInvalid, "a Program file", hint="fetch it again by its CID"):
        fields = _FILE(from_cbor(data, MAX_PROGRAM_BYTES), "file")

All functions raise only Malformed; `refusing` converts it to the error that a decoder declares.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

from lockstep.base.files import open_regular
from lockstep.protocol.errors import LockstepError, Malformed

T = TypeVar("T")
Reader = Callable[[Any, str], T]
"""Checks a decoded value at a position in the text and returns its final form, or raises Malformed."""

MAX_DEPTH = 32
"""Most levels of nesting; the deepest text that Lockstep writes has seven."""
MAX_ITEMS = 1 << 20
"""Most values in one text, keys included, which also bounds the memory of small values."""
MAX_FILE_BYTES = 1 << 24
"""Most bytes of a settings, key or export file."""
MAX_BRACKETS = 128
"""Most opening brackets in a TOML text, which bounds its depth; brackets in strings count too."""
U32 = (1 << 32) - 1
U64 = (1 << 64) - 1

_BYTES, _TEXT, _LIST, _MAP, _TAG = range(2, 7)
_JSON_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}")


@contextmanager
def refusing(error: type[LockstepError], what: str, hint: str = "") -> Iterator[None]:
    """Raises `error` if the block raises Malformed; `what` names what could not be parsed."""
    try:
        yield
    except Malformed as malformed:
        raise error(f"{what} does not parse: {malformed.message}", hint) from malformed


# -- texts -------------------------------------------------------------------------------------------------------------


def from_cbor(data: bytes, most_bytes: int, *, most_items: int = MAX_ITEMS) -> Any:
    """Parses a DAG-CBOR text, after one pass over its heads."""
    _require_size(len(data), most_bytes)
    _scan_cbor(data, most_items)
    import dag_cbor  # its import takes a tenth of the time in which `lockstep --help` answers

    try:
        # given bytes, it tries a stream first: that error keeps all callers' frames, and their tensors, in a cycle
        return dag_cbor.decode(BytesIO(data))
    except MemoryError:
        # a lack of memory says nothing about the text
        raise
    except Exception as error:  # dag_cbor and multiformats raise several unrelated types, assertions among them
        raise Malformed(f"no DAG-CBOR: {_line(error)}") from error


def from_json(data: bytes | str, most_bytes: int, *, most_items: int = MAX_ITEMS) -> Any:
    """Parses a JSON text whose keys are unique within each map and whose numbers are finite."""
    text = _decoded(data, most_bytes)
    _scan_json(text, most_items)
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite)
    except ValueError as error:
        raise Malformed(f"no JSON: {_line(error)}") from error


def from_toml(data: bytes | str, most_bytes: int = MAX_FILE_BYTES) -> dict[str, Any]:
    """Parses a TOML text whose numbers are finite."""
    text = _decoded(data, most_bytes)
    if text.startswith("\ufeff"):
        raise Malformed("it begins with a byte order mark: save it as UTF-8 without one")
    # INVARIANT: nothing nests deeper than its brackets: tomllib recurses for them alone.
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise Malformed(f"more than {MAX_BRACKETS} opening brackets")
    try:
        value = tomllib.loads(text, parse_float=_finite)
    except ValueError as error:
        raise Malformed(f"no TOML: {_line(error)}") from error
    _require_shallow(value)
    return value


def file_bytes(path: Path, most_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Reads a regular file's contents. Raises OSError, and Malformed if it has more than `most_bytes`."""
    with open_regular(path) as file:
        data = file.read(most_bytes + 1)
    _require_size(len(data), most_bytes)
    return data


def _require_size(size: int, most: int) -> None:
    # INVARIANT: no parser sees more bytes than its reader agreed to.
    if size > most:
        raise Malformed(f"{size} bytes, at most {most} are read")


def _decoded(data: bytes | str, most_bytes: int) -> str:
    _require_size(len(data), most_bytes)
    try:
        return data if isinstance(data, str) else data.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"no UTF-8: {error.reason} at byte {error.start}") from error


def _scan_cbor(data: bytes, most_items: int) -> None:
    """Raises Malformed unless the heads make one value of bounded depth and count, and every length fits."""
    due, at, items = [1], 0, 0
    while due:
        if not due[-1]:
            due.pop()
            continue
        due[-1] -= 1
        items += 1
        major, argument, at = _head(data, at)
        if major in (_BYTES, _TEXT):
            at += argument
        elif major in (_LIST, _MAP, _TAG):
            due.append(1 if major == _TAG else argument * (2 if major == _MAP else 1))
        # INVARIANT: nothing nests, and nothing is counted, beyond what the parser may meet.
        if len(due) > MAX_DEPTH or items + due[-1] > most_items:
            raise Malformed(f"more than {MAX_DEPTH} levels or {most_items} values")
        # INVARIANT: a length ends inside the text.
        if at > len(data):
            raise Malformed(f"{len(data)} bytes where {at} are due")
    if at != len(data):
        raise Malformed(f"{len(data)} bytes where {at} are due")


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """Returns (major type, argument, end of the head) of the item at `at`; RFC 8949, section 3."""
    if at >= len(data):
        raise Malformed(f"a value is due after {at} bytes")
    major, short = data[at] >> 5, data[at] & 31
    if short < 24:
        return major, short, at + 1
    if short > 27:
        raise Malformed(f"a head of length {short}")
    end = at + 1 + (1 << short - 24)
    return major, int.from_bytes(data[at + 1 : end], "big"), end


def _scan_json(text: str, most_items: int) -> None:
    depth, items = 0, 1
    for match in _JSON_TOKENS.finditer(text):
        token = match[0]
        if token in ("[", "{", ","):
            items += 1
            depth += token != ","
        elif token in ("]", "}"):
            depth -= 1
        # INVARIANT: nothing nests, and nothing is counted, beyond what the parser may meet.
        if depth > MAX_DEPTH or items > most_items:
            raise Malformed(f"more than {MAX_DEPTH} levels or {most_items} values")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    # INVARIANT: a text has one meaning, whichever of two equal keys a reader takes.
    if len(fields) != len(pairs):
        raise Malformed("one map has the same key twice")
    return fields


def _finite(number: str) -> float:
    value = float(number)
    if not isfinite(value):
        raise Malformed(f"{number[:40]} is not a finite number")
    return value


def _require_shallow(value: object) -> None:
    """Raises Malformed for a value that is nested too deeply, as dotted keys allow without brackets."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [x for v in level for x in (v.values() if isinstance(v, dict) else v if isinstance(v, list) else ())]
    if level:
        raise Malformed(f"more than {MAX_DEPTH} levels")


def _line(error: Exception) -> str:
    """Returns the first line of a parser's error."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


# -- readers -----------------------------------------------------------------------------------------------------------


def anything(value: Any, where: str) -> Any:
    """Accepts any value."""
    return value


def flag(value: Any, where: str) -> bool:
    """Reads true or false."""
    if not isinstance(value, bool):
        raise _wrong(where, "true or false", value)
    return value


def whole(low: int, high: int) -> Reader[int]:
    """Returns a reader for an integer from `low` to `high`."""

    def read(value: Any, where: str) -> int:
        if type(value) is not int:
            raise _wrong(where, "a whole number", value)
        if not low <= value <= high:
            raise Malformed(f"{where} is out of range: {low} to {high}")
        return value

    return read


def octets(length: int | None = None) -> Reader[bytes]:
    """Reads bytes, exactly `length` of them if given."""

    def read(value: Any, where: str) -> bytes:
        if not isinstance(value, bytes):
            raise _wrong(where, "bytes", value)
        if length is not None and len(value) != length:
            raise Malformed(f"{where} has {len(value)} bytes where {length} are due")
        return value

    return read


def text(most: int = 1 << 12) -> Reader[str]:
    """Reads text of at most `most` characters that UTF-8 can hold."""

    def read(value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise _wrong(where, "text", value)
        if len(value) > most:
            raise Malformed(f"{where} has {len(value)} characters, at most {most} are read")
        # JSON can encode a single half of a surrogate pair.
        if any("\ud800" <= c <= "\udfff" for c in value):
            raise Malformed(f"{where} is not text")
        return value

    return read


def one_of(*words: str) -> Reader[str]:
    """Returns a reader for one of these words."""

    def read(value: Any, where: str) -> str:
        if not isinstance(value, str) or value not in words:
            raise Malformed(f"{where} is not one of {', '.join(words)}")
        return value

    return read


def hexes(length: int | None, *, bare: bool = False) -> Reader[bytes]:
    """Returns a reader for `length` bytes (None: any number) in hex after 0x, which is optional with `bare`."""
    count = "*" if length is None else f"{{{length}}}"
    form = re.compile(f"{'(?:0x)?' if bare else '0x'}((?:[0-9a-fA-F]{{2}}){count})")
    due = "hex" if length is None else f"{length} bytes of hex"

    def read(value: Any, where: str) -> bytes:
        match = form.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise _wrong(where, due, value)
        return bytes.fromhex(match[1])

    return read


def account(value: Any, where: str) -> str:
    """Reads an address of the chain: 0x and 40 hex digits."""
    if not isinstance(value, str) or _ADDRESS.fullmatch(value) is None:
        raise _wrong(where, "an address", value)
    return value


def several(reader: Reader[T], most: int) -> Reader[list[T]]:
    """Reads a list of at most `most` values, each by `reader`."""

    def read(value: Any, where: str) -> list[T]:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        if len(value) > most:
            raise Malformed(f"{where} has {len(value)} entries, at most {most} are read")
        return [reader(x, f"{where}[{i}]") for i, x in enumerate(value)]

    return read


def mapping(reader: Reader[T]) -> Reader[dict[str, T]]:
    """Reads a map with any keys, each value by `reader`."""

    def read(value: Any, where: str) -> dict[str, T]:
        if not isinstance(value, dict):
            raise _wrong(where, "a map", value)
        return {name: reader(x, f"{where}.{name[:40]}") for name, x in value.items()}

    return read


def table(
    required: Mapping[str, Reader[Any]], optional: Mapping[str, Reader[Any]] | None = None
) -> Reader[dict[str, Any]]:
    """Returns a reader for a map with exactly these keys; `optional` ones may be absent."""
    readers = {**required, **(optional or {})}

    def read(value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong(where, "a map", value)
        lacking, unknown = sorted(set(required) - set(value)), sorted(set(value) - set(readers))
        if lacking or unknown:
            raise Malformed(f"{where} lacks {lacking} and has {[name[:40] for name in unknown[:8]]}")
        return {name: readers[name](x, f"{where}.{name}") for name, x in value.items()}

    return read


def either(first: Reader[Any], second: Reader[Any]) -> Reader[Any]:
    """Returns a reader that accepts what `first` accepts, or otherwise what `second` does."""

    def read(value: Any, where: str) -> Any:
        try:
            return first(value, where)
        except Malformed:
            return second(value, where)

    return read


def nothing(value: Any, where: str) -> None:
    """Reads null."""
    if value is not None:
        raise _wrong(where, "nothing", value)


def _wrong(where: str, due: str, value: object) -> Malformed:
    return Malformed(f"{where} is {type(value).__name__} where {due} {'are' if due.endswith('s') else 'is'} due")
