"""Converts an event's arguments to JSON, with a schema: bytes as hex, wide integers as decimal strings.

>>> plain("JobMarket", "JobCancelled", {"job": bytes(32), "refunded": 5})["refunded"]
'5'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.chain import artifacts
from lockstep.protocol.market.events import Logged

NUMBER_BITS = 64
"""Widest integer that becomes a JSON number: a round, a slot, a time. Wider ones are amounts or masks."""
CID_OR_NOTHING = "^(b[a-z2-7]{58})?$"
NO_CID_TOLD = "A CID; empty: none that can be read."


def plain(contract: str, event: str, args: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns the arguments by their names in snake_case, in JSON's types; `prefix` precedes hex digits."""
    return _struct(artifacts.load(contract).entries("event")[event]["inputs"], args, prefix)


def schema_of(kind: type[Logged], shared: str) -> dict[str, dict[str, Any]]:
    """Returns a JSON Schema for each argument of an event, as `plain` writes it without a prefix.

    `shared` is the path of the shared definitions `amount`, `address`, `hash`.
    """
    found: dict[str, dict[str, Any]] = {}
    for part in artifacts.load(kind.contract).entries("event")[kind.event]["inputs"]:
        name, width = artifacts.snake(part["name"]), part["type"]
        if kind.__annotations__.get(name) == "Wei":
            found[name] = {"$ref": f"{shared}amount"}
        elif width in ("address", "bytes32"):
            found[name] = {"$ref": f"{shared}{'address' if width == 'address' else 'hash'}"}
        elif width in ("string", "bytes"):
            found[name] = {"type": "string", "pattern": CID_OR_NOTHING, "description": NO_CID_TOLD}
        elif int(width.removeprefix("uint")) > NUMBER_BITS:
            found[name] = {"type": "string", "pattern": "^[0-9]+$"}
        else:
            found[name] = {"type": "integer", "minimum": 0}
    return found


def _struct(components: list[dict[str, Any]], values: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {artifacts.snake(c["name"]): _value(c, values[artifacts.snake(c["name"])], prefix) for c in components}


def _value(component: dict[str, Any], value: Any, prefix: str) -> Any:
    kind: str = component["type"]
    if kind.endswith("[]"):
        return [_value({**component, "type": kind[:-2]}, item, prefix) for item in value]
    if isinstance(value, str):
        return value
    if kind == "tuple":
        return _struct(component["components"], value, prefix)
    if kind.startswith("bytes"):
        return prefix + bytes(value).hex()
    if kind.startswith("uint") and int(kind[4:]) > NUMBER_BITS:
        return str(value)
    return value
