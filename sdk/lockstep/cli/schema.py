"""`lockstep schema`: the output of every command with --json, as JSON Schema 2020-12.

`lockstep/schemas` has one file per command: the schema of its `data`, or of one line if it prints a stream of events.
`envelope`, `error` and `common` are shared by the others. The contracts' events are in none of the files: their
schemas are derived from the ABI and the table of events (`protocol/market/events.py`).
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Annotated, Any

import typer

from lockstep.base.naming import nearest
from lockstep.cli.options import Json
from lockstep.cli.output import emit
from lockstep.protocol.errors import NotFoundError

COMMON = "common"
OF_A_JOB = "train.watch"
"""The command that prints every event of the contracts about a job."""
_SHARED = f"{COMMON}.json#/$defs/"
_HERE = "#/$defs/"


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]", help='A command, e.g. "worker status"; or envelope, or error.'),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the JSON schema of a command's --json output; without a command, list the commands that have one."""
    if not command:
        emit({"schemas": names()}, as_json, text="\n".join(names()))
    else:
        emit(bundled(".".join(command)), as_json)


def names() -> list[str]:
    """Returns the names of all schemas."""
    found = (f.name.removesuffix(".json") for f in resources.files("lockstep").joinpath("schemas").iterdir())
    return sorted(name for name in found if name != COMMON)


def bundled(name: str) -> dict[str, Any]:
    """Returns a self-contained schema; raises NotFoundError."""
    if name not in names():
        raise NotFoundError(f"schema {name!r} is unknown", hint=nearest(name, names()))
    shared = _read(COMMON)["$defs"] | {"error": _read("error")}
    found: dict[str, Any] = _inward(_read(name))
    wanted, kept = _named(found), {}
    while wanted:
        part = wanted.pop()
        kept[part] = _inward(shared[part])
        wanted |= _named(kept[part]) - kept.keys()
    return found | ({"$defs": dict(sorted(kept.items()))} if kept else {})


def _read(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(resources.files("lockstep").joinpath("schemas", f"{name}.json").read_text())
    if name == OF_A_JOB:
        value["oneOf"] += _of_a_job()
    return value


def _of_a_job() -> list[dict[str, Any]]:
    """Returns the schema of a line for each event that names a job."""
    from lockstep.chain.plain import schema_of
    from lockstep.protocol.market.events import EVENTS

    around = {"block": {"type": "integer", "minimum": 0}, "chain_time": {"$ref": f"{_SHARED}time"}}
    lines = []
    for (_, name), kind in EVENTS.items():
        if "job" not in kind.__annotations__:
            continue
        told = {"event": {"const": name}, **around, **schema_of(kind, _SHARED)}
        line = {"type": "object", "properties": told, "required": [*told], "additionalProperties": False}
        lines.append(line)
    return lines


def _inward(value: Any) -> Any:
    """Returns a schema with every reference to another file replaced by one to its own $defs."""
    if isinstance(value, list):
        return [_inward(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {k: _target(v) if k == "$ref" and isinstance(v, str) else _inward(v) for k, v in value.items()}


def _target(reference: str) -> str:
    return _HERE + reference.removeprefix(_SHARED).removeprefix(_HERE).removesuffix(".json")


def _named(value: Any) -> set[str]:
    """Returns the names of the $defs to which a part refers."""
    if isinstance(value, list):
        return set().union(*map(_named, value))
    if not isinstance(value, dict):
        return set()
    own = value.get("$ref")
    mine = {own.removeprefix(_HERE)} if isinstance(own, str) else set()
    return mine.union(*map(_named, value.values()))
