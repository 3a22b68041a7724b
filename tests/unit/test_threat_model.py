"""docs/threat-model.md names files, sentences, tests and cheats that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.adversarial.table import TABLE

ROOT = Path(__file__).resolve().parents[2]
CHEATS = {cheat.name for cheat in TABLE}
PATH = re.compile(r"`([^`]+)`")
FINDINGS = [
    f"{kind}{n}" for kind, most in {"A": 17, "C": 4, "H": 5, "M": 5, "L": 4}.items() for n in range(1, most + 1)
]
"""Marks of the second review."""


def lines(columns: int) -> list[list[str]]:
    """The cells of every row of the tables with so many columns, heads left out."""
    text = (ROOT / "docs/threat-model.md").read_text()
    found = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [cells for cells in found if len(cells) == columns and cells[0] not in ("tries", "what happens", "mark")]


def rows() -> list[tuple[str, str, str]]:
    """(what is tried, what stops it, what shows it) of every table."""
    return [(tries, stops, shown) for tries, stops, shown in lines(3)]


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


def test_every_finding_is_held_by_a_row_or_what_is_left_of_it_is_told() -> None:
    told = lines(4)
    assert [mark for mark, *_ in told] == FINDINGS, "each once, in order"
    met = {
        mark
        for tries, *_ in rows()
        for marks in re.findall(r"\(([ACHML]\d+(?:, [ACHML]\d+)*)\)", tries)
        for mark in marks.split(", ")
    }
    left = (ROOT / "docs/threat-model.md").read_text().partition("## Not defended against")[2]
    for mark, what, state, rest in told:
        assert what, mark
        assert state in ("held", "held in part", "not defended"), mark
        assert (mark in met) == (state != "not defended"), f"{mark}: a row says what holds it"
        paragraphs = re.findall(r"\*([^*]+)\*", rest)
        assert bool(paragraphs) == (state != "held"), f"{mark}: what is left of it"
        for name in paragraphs:
            assert f"- **{name}" in re.sub(r"\s+", " ", left), name
