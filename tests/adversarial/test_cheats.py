"""Every row of the table ends as it says; the demo and the documents know the same cheats as the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockstep.chain import games as games_of
from lockstep.demo.cheats.challenges import FALSE_CHALLENGE
from lockstep.demo.cheats.lies import OF_MERGES, OF_SLOTS
from lockstep.demo.cli import CHEAT_HELP
from lockstep.demo.run import CHEATS
from tests.adversarial.cheat import Cheat, ended, run
from tests.adversarial.claims import demo, drawn
from tests.adversarial.court import NOWHERE, Court, published
from tests.adversarial.players import attack
from tests.adversarial.table import TABLE

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("lie in a running statistic: a channel's mean by one ulp", "lie in an unrolled recurrence: an LSTM's cell")
"""Rows that the normal suite runs alone. A step, a payload, a list, a challenge and a merge lie in one round of it."""


def row(id_: str) -> Cheat:
    """The row of that name."""
    (found,) = (cheat for cheat in TABLE if cheat.id == id_)
    return found


@pytest.mark.parametrize(
    "cheat", [pytest.param(c, id=c.id, marks=() if c.id in MODELS else pytest.mark.slow) for c in TABLE]
)
def test_a_cheat_ends_where_and_as_its_row_says(court: Court, cheat: Cheat) -> None:
    run(court, cheat)


def test_where_everybody_lies_everybody_is_convicted_where_its_row_says(court: Court) -> None:
    """Two slots lie, one of them without its list of roots, the third is right and attacked, and the merge is a lie."""
    court.reset(aggregator=court.address("aggregator"), min_slots=1)
    rows = [row("one-ulp flip: seed 1"), row("scaled, noised or sign-flipped payload: with noise")]
    liars = {slot: told.story.liar(court.run(slot), court) for slot, told in enumerate(rows)}  # type: ignore[attr-defined]
    claims = court.claim(liars, change={1: published(NOWHERE), 2: published(NOWHERE)})
    assert set(court.audits()) == set(claims[:2]), "a right claim is right without a list, too"
    games = court.audit_and_play()
    attacked, challenger = attack(court, claims[2], "mallory")
    court.play(attacked, court.defender(attacked), challenger)
    rows += [row("false challenge: an invented word"), row("lying aggregator: one ulp")]
    merge = demo("lying-aggregator", 1)
    court.merge(lambda honest: merge(honest, court))
    games += [attacked, *court.audit_and_play()]
    for game, told in zip(games, rows, strict=True):
        ended(court, told, game, drawn(court.held[games_of.read(court.contracts.game, game).claim].run))
    court.settle()
    params = court.params
    stakes = dict.fromkeys(("worker-0", "worker-1"), params.role.slot_stake)
    gained = court.balance({**stakes, "aggregator": params.merge.stake, "mallory": params.prices.bond})
    assert gained["worker-2"] >= params.role.slot_price + params.merge.price, "it merged in the liar's stead"


def test_every_lie_of_the_demo_is_in_the_table_and_in_the_documents() -> None:
    told = {cheat.demo for cheat in TABLE} - {""}
    assert told == set(CHEATS) - {"none"} == {*OF_SLOTS, *OF_MERGES, FALSE_CHALLENGE}
    section = (ROOT / "docs/programs.md").read_text().partition("\n## Lies\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)) == set(CHEATS)
    assert all(re.search(rf"\b{name}\b", CHEAT_HELP) for name in CHEATS)


def test_every_cheat_of_the_table_is_in_the_threat_model_and_no_other() -> None:
    cheats = [cheat.id for cheat in TABLE]
    assert len(set(cheats)) == len(cheats), "no two rows are alike"
    text = (ROOT / "docs/threat-model.md").read_text()
    tables = [line.rstrip("|").rpartition(" | ")[2] for line in text.splitlines() if line.startswith("| ")]
    named = {name for cell in tables for name in re.findall(r"`([^`]+)`", cell) if "/" not in name}
    assert named == {cheat.name for cheat in TABLE}
