"""Converts the table to tests/vectors/rules.json, and that to a recording for forge.

vectors()            the file's text, after the twin has been held to what the table expects
recording(document)  acts of tests/support/recordings.py: scene after scene, each begun from the one before it
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.chain import artifacts
from lockstep.protocol.market.calls import Block, MarketCall
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.transition import VIEWS
from tests.rules.scenes import SCENES
from tests.rules.table import TABLE, Row
from tests.support import questions, recordings
from tests.support.market.history import METERED, SHOWN, STORED, deployment, logged, mined, when
from tests.support.market.twin import (
    ACCOUNTS,
    AT,
    CONTRACTS,
    NAMES,
    START,
    Said,
    World,
    begun,
    shown,
)
from tests.support.memory import abi

PATH = Path(__file__).parents[1] / "vectors/rules.json"


@cache
def worlds() -> Mapping[str, World]:
    """Builds every scene."""
    made: dict[str, World] = {}
    for name, (before, build) in SCENES.items():
        world = made[before].fork() if before else begun()
        if name != "begun":
            world.later()
        build(world)
        made[name] = world
    return made


# -- rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """Result of a row in the twin."""

    row: Row
    world: World
    call: MarketCall
    said: Said | None = None
    refusal: Reverted | None = None
    guard: str = ""
    """Location of the refusal in the twin: file:line."""
    problems: tuple[str, ...] = field(default=())

    @property
    def events(self) -> list[str]:
        """Returns the events as text."""
        return [_text(event.name, event.values) for event in self.said.events] if self.said else []


def outcome(scene: str, row: Row) -> Outcome:
    """Plays a row in the twin."""
    world = worlds()[scene].fork().later()
    given = tuple(part(world) if callable(part) else part for part in row.arguments)
    sender = row.sender(world) if callable(row.sender) else row.sender
    call = world.call(sender, row.function, *given)
    try:
        _, said = world.ask(call)
    except Reverted as refusal:
        at = next(
            f for f in reversed(traceback.extract_tb(refusal.__traceback__)) if not f.filename.endswith("reverts.py")
        )
        found = Outcome(row, world, call, refusal=refusal, guard=f"{Path(at.filename).stem}:{at.lineno}")
        text = _text(refusal.rule, refusal.values)
        wrong = [] if row.is_refusal and _is(text, row.expects) else [text]
        return Outcome(**(vars(found) | {"problems": tuple(wrong)}))
    found = Outcome(row, world, call, said)
    wrong = [] if not row.is_refusal and _are(found.events, row.expects) else [" ".join(found.events) or "nothing"]
    return Outcome(**(vars(found) | {"problems": tuple(wrong)}))


def _text(name: str, values: Iterable[Any]) -> str:
    """Formats an error or event."""
    return f"{name}({', '.join(map(shown, values))})"


def _is(said: str, expected: str) -> bool:
    return said == expected if "(" in expected else said.partition("(")[0] == expected


def _are(said: list[str], expected: str) -> bool:
    """Returns True if the events match the expectation, each by name or in full."""
    wanted = re.findall(r"\w+(?:\([^)]*\))?", expected)
    return len(said) == len(wanted) and all(map(_is, said, wanted))


@cache
def outcomes() -> tuple[tuple[str, Outcome], ...]:
    """Returns every row of the table with its scene and result."""
    return tuple((scene, outcome(scene, row)) for scene, rows in TABLE.items() for row in rows)


# -- the file ----------------------------------------------------------------------------------------------------------


def vectors() -> str:
    """Returns the contents of the file. Fails if the twin's result differs from the table."""
    wrong = [
        f"{scene}: {NAMES[o.call.sender]} {o.row.function}: expected {o.row.expects!r}, got {got}"
        for scene, o in outcomes() for got in o.problems
    ]  # fmt: skip
    assert not wrong, "\n".join(wrong)
    scenes = [
        {"scene": name, "after": before, "calls": [
            _call(sent.block, sent.call) | _said(sent.call, sent.said) for sent in worlds()[name].sent
        ]} for name, (before, _) in SCENES.items()
    ]  # fmt: skip
    lines = [
        json.dumps({"accounts": ACCOUNTS})[:-1],
        ' "scenes": [',
        ",\n".join(map(json.dumps, scenes)),
        ' ],\n "rows": [',
    ]
    return f"{lines[0]},\n{lines[1]}\n{lines[2]}\n{lines[3]}\n" + ",\n".join(map(json.dumps, rows())) + "\n]}\n"


def rows() -> Iterator[dict[str, Any]]:
    """Yields the table's rows in the file's form."""
    for scene, o in outcomes():
        yield (
            {"scene": scene, "caller": NAMES[o.call.sender], "says": _says(o.call)} | _call(o.world.block, o.call)
            | (_said(o.call, o.said) if o.said else _refused(o.refusal))
        )  # fmt: skip
    for scene, (before, _) in SCENES.items():
        yield from _stored(scene, before)
    yield from _of_nothing()
    yield from _of_the_arbiter()


def _stored(scene: str, before: str) -> Iterator[dict[str, Any]]:
    """Yields what a scene has changed, as views return it."""
    world = worlds()[scene].fork().later()
    earlier = worlds()[before].state if before else World().state
    for name, (short, function) in STORED.items():
        old, new = (getattr(state, name) for state in (earlier, world.state))
        for key, value in new.items():
            if old[key] != value and not (name == METERED and value.spent):
                yield _asked(scene, world, f"{short}.{function}", *(key if isinstance(key, tuple) else (key,)))
    for key in world.state.rounds:
        for function in SHOWN["rounds"]:
            yield _asked(scene, world, f"market.{function}", *key)


def _asked(scene: str, world: World, function: str, *key: Any) -> dict[str, Any]:
    """Returns the answer of a view."""
    call = world.call("poor", function, *key)
    _, said = world.ask(call)
    return {"scene": scene, "caller": "poor", "says": _says(call)} | _call(world.block, call) | _said(call, said)


APART = {("Validator", "check"), ("Availability", "seedOf")}
"""Views that are left out: one takes evidence, the other needs the first block's hash."""


def _of_nothing() -> Iterator[dict[str, Any]]:
    """Yields every view with unknown ids."""
    world, shorts = worlds()["begun"].fork().later(), {contract: short for short, contract in CONTRACTS.items()}
    nothing = {"address": "0x" + "77" * 20, "bool": False, "uint8": 0, "bytes32": bytes(31) + b"\3"}
    for contract, function in sorted(set(VIEWS) - APART):
        kinds = [part["type"] for part in artifacts.function(contract, function)["inputs"]]
        given = [[] if kind.endswith("[]") else nothing.get(kind, 3) for kind in kinds]
        call = world.call("poor", f"{shorts[contract]}.{function}", *given)
        told = {"scene": "begun", "caller": "poor", "says": _says(call)} | _call(world.block, call)
        try:
            _, said = world.ask(call)
            yield told | _said(call, said)
        except Reverted as refusal:
            yield told | _refused(refusal)


def _of_the_arbiter() -> Iterator[dict[str, Any]]:
    """Yields each error of the Arbiter once; tests/differential/test_arbiter.py compares its answers."""
    found: dict[str, dict[str, Any]] = {}
    names = {artifacts.selector(entry): name for name, entry in artifacts.load("Arbiter").entries("error").items()}
    block = worlds()["begun"].fork().later().block
    for function, arguments, output in questions.refused():
        entry = artifacts.function("Arbiter", function)
        data = artifacts.selector(entry) + abi._encoded(entry["inputs"], arguments)
        error = names[output[:4]]
        found.setdefault(error, {
            "scene": "begun", "caller": "poor", "says": f"Arbiter.{function}(..)", "number": block.number,
            "time": block.time, "contract": "Arbiter", "sender": ACCOUNTS["poor"], "data": "0x" + data.hex(),
            "error": error, "output": "0x" + output.hex(),
        })  # fmt: skip
    return iter(found.values())


def _says(call: MarketCall) -> str:
    return f"{call.contract}.{call.function}({', '.join(map(shown, call.arguments))})"


def _call(block: Block, call: MarketCall) -> dict[str, Any]:
    return {
        "number": block.number, "time": block.time, "contract": call.contract, "sender": call.sender,
        "data": "0x" + call.data.hex(),
    }  # fmt: skip


def _said(call: MarketCall, said: Said) -> dict[str, Any]:
    output = abi.returned(call.contract, call.function, said.returned)
    events = [_text(event.name, event.values) for event in said.events]
    return {"events": events, "output": "0x" + output.hex(), "logs": "0x" + logged(said.events).hex()}


def _refused(refusal: Reverted | None) -> dict[str, Any]:
    assert refusal is not None
    return {"error": refusal.rule, "output": "0x" + abi.reverted(refusal).hex()}


# -- forge -------------------------------------------------------------------------------------------------------------


def recording(document: Any) -> Iterator[bytes]:
    """Returns the recording of all scenes and rows; each scene's state is stored for those that extend it."""
    asked: dict[str, list[Any]] = {}
    for row in document["rows"]:
        asked.setdefault(row["scene"], []).append(row)
    yield from deployment()
    kept: list[tuple[str, Block]] = []
    """Stored scenes, each with its last block."""
    for scene in _in_depth(document["scenes"]):
        while kept and kept[-1][0] != scene["after"]:
            kept.pop()
        now = kept[-1][1] if kept else START
        if kept:
            yield recordings.back(len(kept) - 1)
        for call in scene["calls"]:
            block = _block(call)
            yield from mined(now, block)
            now = block
            yield recordings.act(
                recordings.CALL, *when(block), sender=call["sender"], to=AT[call["contract"]], name=scene["scene"],
                data=_bytes(call["data"]), success=True, output=_bytes(call["output"]), logs=_bytes(call["logs"]),
            )  # fmt: skip
        yield recordings.keep(len(kept))
        kept.append((scene["scene"], now))
        for row in asked.get(scene["scene"], ()):
            block = _block(row)
            yield from mined(now, block)
            yield recordings.act(
                recordings.ASK, *when(block), sender=row["sender"], to=AT[row["contract"]],
                name=f"{scene['scene']}: {row['caller']} {row['says']}", data=_bytes(row["data"]),
                success="error" not in row, output=_bytes(row["output"]), logs=_bytes(row.get("logs", "")),
            )  # fmt: skip


def _in_depth(scenes: list[Any]) -> Iterator[Any]:
    """Yields each scene directly before those that extend it."""

    def below(name: str) -> Iterator[Any]:
        for scene in scenes:
            if scene["after"] == name:
                yield scene
                yield from below(scene["scene"])

    return below("")


def _block(call: Any) -> Block:
    return Block(call["number"], call["time"], START.hashes, START.base_fee)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x")) or bytes(0)
