"""Shrinks a history that breaks a rule, describes it in words, and saves it.

A script is what the coalition sent, block by block. Beats are emptied, calls dropped and blocks cut off, as long as the
same rule breaks; honest parties respond anew each time (Zeller, Hildebrandt 2002: delta debugging).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lockstep.protocol.market.calls import MarketCall
from lockstep.protocol.types import Address
from tests.search.engine import Beat, Played, play
from tests.search.fixes import reverted
from tests.search.scene import setting_of
from tests.support.memory import abi

CORPUS = Path(__file__).parent / "corpus"
TRIES = 400
"""Most histories that a shrink plays."""


def shrink(played: Played, fix: str | None) -> Played:
    """Returns the smallest script found that breaks the same rule with the same fix reverted."""
    assert played.violation is not None
    best, tries = played, TRIES

    def attempt(script: list[Beat]) -> bool:
        nonlocal best, tries
        if tries <= 0:
            return False
        tries -= 1
        with reverted(fix) as machine:
            again = play(best.setting, script, machine)
        assert played.violation is not None
        if again.violation is None or again.violation.kind != played.violation.kind:
            return False
        best = again
        return True

    for script in _shorter(lambda: best.script):
        attempt(script)
    return best


def _shorter(current: Any) -> Iterator[list[Beat]]:
    """Yields scripts to try, from the best so far: fewer blocks, then emptier ones, then single calls less."""
    size = len(current())
    while size > 1:
        size = size // 2
        if len(current()) > size:
            yield current()[: len(current()) - size]
    width = max(1, len(current()) // 2)
    while width:
        at = 0
        while at < len(current()):
            script = current()
            emptied = [Beat(b.seconds) if at <= i < at + width else b for i, b in enumerate(script)]
            if emptied != script:
                yield emptied
            at += width
        width //= 2
    for i in range(len(current())):
        for k in reversed(range(len(current()[i].before) + len(current()[i].after))):
            script = [Beat(b.seconds, list(b.before), list(b.after)) for b in current()]
            calls = script[i].before if k < len(script[i].before) else script[i].after
            del calls[k if k < len(script[i].before) else k - len(script[i].before)]
            yield script


def told(played: Played) -> str:
    """Returns every accepted call, one per line, and the broken rule."""
    assert played.scene is not None
    lines = [f"seed {played.setting.seed}, {played.setting.mood}, honest: {', '.join(sorted(played.setting.honest))}"]
    begun = None
    for block, call, error in played.scene.trail:
        begun = block.time if begun is None else begun
        if not error:
            lines.append(f"{block.time - begun:6d} s  {call.sender[-4:]}  {call.contract}.{call.function}")
    return "\n".join([*lines, str(played.violation)])


# -- the corpus


def save(played: Played, fix: str, folder: Path = CORPUS) -> Path:
    """Saves a find: the setting's seed, the reverted fix, the script."""
    assert played.violation is not None
    folder.mkdir(exist_ok=True)
    beats = [
        [beat.seconds, [_written(call) for call in beat.before], [_written(call) for call in beat.after]]
        for beat in played.script
    ]
    value = {
        "fix": fix, "seed": played.setting.seed, "carries": played.setting.params.role.carries,
        "broken": str(played.violation), "script": beats,
    }  # fmt: skip
    path = folder / f"{fix}-{played.setting.seed}.json"
    path.write_text(json.dumps(value, separators=(",", ":")) + "\n")
    return path


def replay(path: Path, *, with_fix: bool) -> Played:
    """Replays a saved find, with its fix or without."""
    value = json.loads(path.read_text())
    script = [
        Beat(seconds, [_read(call) for call in before], [_read(call) for call in after])
        for seconds, before, after in value["script"]
    ]
    with reverted(value["fix"]):
        setting = setting_of(value["seed"], carries=value["carries"])
    with reverted(None if with_fix else value["fix"]) as machine:
        return play(setting, script, machine)


def _written(call: MarketCall) -> list[str]:
    return [call.contract, call.sender, abi.data_of(call).hex()]


def _read(call: list[str]) -> MarketCall:
    contract, sender, data = call
    return abi.call_of(contract, Address(sender), bytes.fromhex(data))
