"""An event's arguments as JSON has them: bytes as hex, wide integers as decimal strings.

>>> plain("JobMarket", "JobCancelled", {"job": bytes(32), "refunded": 5})["refunded"]
'5'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.chain import artifacts

NUMBER_BITS = 64
"""The widest integer that JSON has as a number: a round, a slot, a time. What is wider is an amount or a mask."""


def plain(contract: str, event: str, args: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The arguments by their names in snake_case; `prefix` stands before hex."""
    return _struct(artifacts.load(contract).entries("event")[event]["inputs"], args, prefix)


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
