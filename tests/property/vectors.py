"""Random histories of games as calldata, with what the twin says becomes of each call; a chain can replay them.

    python -m tests.property.vectors tests/vectors/games.jsonl --bytes 500000 --largest 60000

One JSON line a history. tests/forge/GamesReplay.t.sol runs the lines against the contracts and compares, call by call,
acceptance, the error's name and a digest of the game and of everybody's money.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from eth_abi.abi import encode

from lockstep.chain import artifacts
from lockstep.protocol.hashing import keccak
from lockstep.protocol.market.types import BURN
from lockstep.protocol.types import Address
from tests.property import games
from tests.property.table import DEPOSIT, REQUESTER, Act, Table
from tests.support import letters
from tests.support.letters import CLOCK, SEED, STAKE, STEP_SECONDS, WORKER

SEATS = tuple(Address(f"0x{0x2200 + i:040x}") for i in range(4))
ACCOUNTS = (WORKER, REQUESTER, BURN, *SEATS)


@cache
def _entry(name: str) -> tuple[bytes, list[str]]:
    """Selector and argument types of one of the game's functions."""
    entry = artifacts.load("DisputeGame").entries("function")[name]
    return keccak(artifacts.signature(entry).encode())[:4], [artifacts.abi_type(part) for part in entry["inputs"]]


@cache
def _selector(rule: str) -> str:
    """Of an error of the game or of the Arbiter; zero for none."""
    for name in ("DisputeGame", "Arbiter") if rule else ():
        if (entry := artifacts.load(name).entries("error").get(rule)) is not None:
            return "0x" + keccak(artifacts.signature(entry).encode())[:4].hex()
    assert not rule, f"no contract reverts with {rule}"
    return "0x00000000"


def calldata(act: Act) -> str:
    """What is sent."""
    selector, types = _entry(act.move.call)
    return "0x" + (selector + encode(types, act.move.arguments(act.game))).hex()


def digest(table: Table, act: Act) -> bytes:
    """Of the game that was called and of everybody's money."""
    record, books = table.records[act.game], table.books
    (stored,) = artifacts.load("DisputeGame").entries("function")["game"]["outputs"]
    made = keccak(encode([artifacts.abi_type(stored)], [replace(record.state, spent=0).stored]))
    for account in ACCOUNTS:
        held = books.free.get(account, 0), books.credits.get(account, 0)
        made = keccak(encode(["bytes32", "uint256", "uint256"], [made, *held]))
    amounts = [books.locks[key].amount if key in books.locks else 0 for key in (table.claim.id, act.game)]
    return keccak(encode(["bytes32", "uint256", "uint256"], [made, *amounts]))


@dataclass
class Recorder:
    """Writes down every call of one history."""

    table: Table
    acts: list[Act] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)

    def note(self, act: Act) -> None:
        """A call, just made."""
        self.acts.append(act)
        self.digests.append(bytes(32) if act.rule else digest(self.table, act))


def record(number: int) -> Recorder:
    """The history of that number, played and written down."""
    made: list[Recorder] = []

    def watch(table: Table) -> Callable[[Act], None]:
        made.append(Recorder(table))
        return made[0].note

    games.play(number, watch)
    return made[0]


def line(recorder: Recorder) -> dict[str, Any]:
    """One history as JSON: the claim, then parallel lists, one entry a call."""
    claim, acts = recorder.table.claim, recorder.acts
    return {
        "claim": "0x" + claim.id.hex(), "defender": claim.defender, "delegate": claim.delegate or "0x" + 40 * "0",
        "transitions": claim.transitions,
        "stateZero": "0x" + claim.state_zero.hex(), "program": "0x" + claim.program.hex(),
        "lastProgram": "0x" + claim.last_program.hex(), "seed": "0x" + SEED.hex(), "round": claim.round,
        "slot": claim.slot, "clock": CLOCK, "step": STEP_SECONDS, "bond": letters.BOND, "stake": STAKE,
        "deposit": DEPOSIT, "seats": sum(1 for seat in SEATS if seat in recorder.table.books.free),
        "time": [act.time for act in acts],
        "sender": [act.sender for act in acts],
        "game": ["0x" + act.game.hex() for act in acts],
        "data": [calldata(act) for act in acts],
        "error": [_selector(act.rule) for act in acts],
        "digest": ["0x" + made.hex() for made in recorder.digests],
    }  # fmt: skip


def text_of(recorder: Recorder) -> str:
    """The history's line."""
    return json.dumps(line(recorder), separators=(",", ":")) + "\n"


def write(path: Path, least: int, first: int = 0) -> list[Recorder]:
    """Histories from number `first` on until they hold `least` games."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held: list[Recorder] = []
    with path.open("w") as out:
        while sum(len(recorder.table.records) for recorder in held) < least:
            held.append(record(first + len(held)))
            out.write(text_of(held[-1]))
    return held


def main() -> None:
    """Writes the histories that are committed: the first that are short enough, as many as fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("path", type=Path)
    parser.add_argument("--bytes", type=int, default=500_000)
    parser.add_argument("--largest", type=int, default=60_000, help="bytes of one history at most")
    arguments = parser.parse_args()
    kept, size = [], 0
    for number in count():
        text = text_of(record(number))
        if len(text) > arguments.largest:
            continue
        size += len(text)
        if size > arguments.bytes:
            break
        kept.append(text)
    arguments.path.write_text("".join(kept))
    print(f"{len(kept)} histories, {size} bytes")


if __name__ == "__main__":
    main()
