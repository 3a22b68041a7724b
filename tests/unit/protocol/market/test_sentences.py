"""Every rule stands twice, under the same sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TWINS = {
    ("StakeVault.sol",): ("vault.py",),
    ("Witnesses.sol",): ("witnesses.py",),
    ("Availability.sol",): ("availability.py",),
    ("libraries/Precommitted.sol",): ("precommitted.py",),
    ("JobMarket.sol", "libraries/Jobs.sol", "libraries/Rounds.sol", "libraries/Settling.sol"): (
        "requester.py",
        "rounds.py",
        "settling.py",
        "verdicts.py",
        "views.py",
    ),
}
ELSEWHERE = {
    # Asked by the market of another contract's table, so that it stands among the views.
    "nothing is decided while a demand may still be answered; what is open after that was not answered.",
}


def sentences(path: Path) -> set[str]:
    """The text after each INVARIANT, wrapped lines joined."""
    lines = [re.sub(r"^\s*(?:///|//|#)\s?(?:@dev )?", "", line) for line in path.read_text().splitlines()]
    marked = [bool(re.match(r"\s*(///|//|#)", line)) for line in path.read_text().splitlines()]
    found = set()
    for at, line in enumerate(lines):
        if marked[at] and line.startswith("INVARIANT: "):
            text = line.removeprefix("INVARIANT: ")
            while not text.endswith(".") and marked[at + 1]:
                at += 1
                text = f"{text} {lines[at]}"
            # What follows the sentence in a comment of several is an explanation.
            found.add(re.split(r"(?<=\.) (?=[A-Z])", text)[0])
    return {" ".join(text.rstrip(".").split()) for text in found}


@pytest.mark.parametrize("contracts", TWINS, ids=lambda c: c[0])
def test_a_contract_and_its_twin_state_the_same_invariants(repository: Path, contracts: tuple[str, ...]) -> None:
    modules = repository / "sdk/lockstep/protocol/market"
    theirs = set().union(*(sentences(repository / "contracts" / name) for name in contracts))
    ours = set().union(*(sentences(modules / name) for name in TWINS[contracts]))
    elsewhere = {text.rstrip(".") for text in ELSEWHERE}
    assert theirs, "a contract states some"
    assert theirs - elsewhere == ours - elsewhere
