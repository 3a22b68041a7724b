"""docs/threat-model.md names files, sentences, tests and cheats that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.adversarial.table import TABLE

ROOT = Path(__file__).resolve().parents[2]
CHEATS = {cheat.name for cheat in TABLE}
PATH = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, str, str]]:
    """(what is tried, what stops it, what shows it) of every table."""
    found = []
    for line in (ROOT / "docs/threat-model.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("|") and len(cells) == 3 and not line.startswith(("| tries", "| what happens", "|---")):
            found.append((cells[0], cells[1], cells[2]))
    return found


def invariants(file: Path) -> str:
    """A file's text with comments that go on over several lines joined."""
    return re.sub(r"\s*\n\s*(#|//|\*)\s*", " ", file.read_text())


def test_every_party_has_its_table() -> None:
    text = (ROOT / "docs/threat-model.md").read_text().lower()
    for party in (
        "requester", "worker", "aggregator", "coordinator", "verifier", "challenger", "block proposer", "outsider",
        "storage",
    ):  # fmt: skip
        assert re.search(rf"^## .*{party}", text, re.MULTILINE), f"no section for {party}"
    assert len(rows()) > 50


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0][:60])
def test_every_row_names_a_line_and_a_test_that_exist(row: tuple[str, str, str]) -> None:
    _, stops, shown = row
    named = PATH.findall(stops)
    assert len(named) == 1, "one file stops it"
    guard, sentence = ROOT / named[0], stops.partition(": ")[2]
    assert guard.exists(), named[0]
    if f"INVARIANT: {sentence}" not in invariants(guard):
        elsewhere = [
            str(f.relative_to(ROOT))
            for folder in ("contracts", "sdk", "worker", "coordinator", "verifier")
            for f in (ROOT / folder).rglob("*.*")
            if f.suffix in (".py", ".sol") and f"INVARIANT: {sentence}" in invariants(f)
        ]
        raise AssertionError(f"{named[0]} does not say {sentence!r}; it stands in {elsewhere}")
    tests = PATH.findall(shown)
    assert tests, "a test shows it"
    for test in tests:
        file, _, name = test.partition("::")
        if "/" not in file:
            assert test in CHEATS, test
            continue
        assert re.search(rf"(def|function) {name}\b", (ROOT / file).read_text()), test
