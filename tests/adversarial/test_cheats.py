"""Rows of the table together, for the normal suite; the demo and the documents know the same cheats as the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lockstep.demo.cheats.challenges import FALSE_CHALLENGE
from lockstep.demo.cheats.lies import OF_MERGES, OF_SLOTS
from lockstep.demo.cli import CHEAT_HELP
from lockstep.demo.run import CHEATS
from tests.adversarial import models
from tests.adversarial.cheat import Cheat, ended
from tests.adversarial.claims import NOISE, at_once, demo, drawn, of, payload
from tests.adversarial.court import NOWHERE, Court, published
from tests.adversarial.players import attack
from tests.adversarial.table import TABLE

ROOT = Path(__file__).resolve().parents[2]


def rows(*ids: str) -> list[Cheat]:
    """The rows of these names."""
    by_id = {cheat.id: cheat for cheat in TABLE}
    assert len(by_id) == len(TABLE), "no two rows are alike"
    return [by_id[id_] for id_ in ids]


def test_where_everybody_lies_everybody_is_convicted_where_its_row_says(court: Court) -> None:
    """Two slots lie, one of them without its list of roots, the third is right and attacked, and the merge is a lie."""
    told = rows(
        "one-ulp flip: seed 1", "scaled, noised or sign-flipped payload: with noise",
        "false challenge: an invented word", "lying aggregator: one ulp",
    )  # fmt: skip
    court.reset(aggregator=court.address("aggregator"), min_slots=1)
    hidden = dict.fromkeys((1, 2), published(NOWHERE))
    games = at_once(demo("one-ulp", 1), of(payload(*NOISE)), change=hidden)(court)
    attacked, challenger = attack(court, court.contracts.market.claim_id_of(court.job_id, 0, 2), "mallory")
    court.play(attacked, court.defender(attacked), challenger)
    court.merge(lambda honest: demo("lying-aggregator", 1)(honest, court))
    for game, cheat in zip([*games, attacked, *court.audit_and_play()], told, strict=True):
        ended(court, cheat, game, drawn(court.run_behind(game)))
    court.settle()
    params = court.params
    stakes = dict.fromkeys(("worker-0", "worker-1"), params.role.slot_stake)
    gained = court.balance({**stakes, "aggregator": params.merge.stake, "mallory": params.prices.bond})
    assert gained["worker-2"] >= params.role.slot_price + params.merge.price, "it merged in the liar's stead"


@pytest.mark.slow
def test_lies_about_a_model_of_ones_own_are_convicted_where_their_rows_say(court: Court) -> None:
    """Its batch norm's statistics are a little off in one slot, its recurrence in another; the third's are the mean."""
    told = rows(
        "lie in a running statistic: a channel's mean by one ulp", "lie in an unrolled recurrence: an LSTM's cell"
    )
    models.hired(models.normed_and_recurrent)(court)
    lies = models.moved(0, models.ULP), models.flipped(models.cell)
    games = models.averaged(at_once(*map(of, lies)), slots=(2,))(court)
    for game, cheat in zip(games, told, strict=True):
        ended(court, cheat, game)
    court.balance(dict.fromkeys(("worker-0", "worker-1"), court.params.role.slot_stake))


def test_every_lie_of_the_demo_is_in_the_table_and_in_the_documents() -> None:
    told = {cheat.demo for cheat in TABLE} - {""}
    assert told == set(CHEATS) - {"none"} == {*OF_SLOTS, *OF_MERGES, FALSE_CHALLENGE}
    section = (ROOT / "docs/processes.md").read_text().partition("\n## Lies\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)) == set(CHEATS)
    assert [name for name in CHEATS if not re.search(rf"\b{name}\b", CHEAT_HELP)] == []


def test_every_cheat_of_the_table_is_in_the_threat_model_and_no_other() -> None:
    cheats = [cheat.id for cheat in TABLE]
    assert len(set(cheats)) == len(cheats), "no two rows are alike"
    text = (ROOT / "docs/threat-model.md").read_text()
    tables = [line.rstrip("|").rpartition(" | ")[2] for line in text.splitlines() if line.startswith("| ")]
    named = {name for cell in tables for name in re.findall(r"`([^`]+)`", cell) if "/" not in name}
    assert named == {cheat.name for cheat in TABLE}
