"""benchmarks/griefing.py leaves out no verb, and docs/economics.md names what others lose much by."""

from __future__ import annotations

from math import inf
from pathlib import Path

from benchmarks.attacks import Market
from benchmarks.griefing import WORST, Use, uses
from lockstep.protocol.transition import VERBS

ABOVE = {
    "a game with oneself, two clocks long, a day": "DisputeGame",
    "a majority's receipts that leave out the others": "JobMarket",
    "one's own receipt ahead of a batch that holds it": "JobMarket",
    "a carry that is shown on chain alone": "JobMarket",
    "a list of state roots that is not published": "Witnesses",
    "the same, where trainSeconds are thirty days": "JobMarket",
    "a merge of long rounds, backed for half of its window": "JobMarket",
    "moves of who convicts, padded": "DisputeGame",
}
"""Uses whose factor is above 5, each with the contract of its first verb."""


def found() -> list[Use]:
    return list(uses(Market()))


def test_no_verb_is_left_out() -> None:
    named = {verb for use in found() for verb in use.verbs}
    assert named == set(VERBS)


def test_what_is_above_five_is_named_here_and_in_the_document(repository: Path) -> None:
    above = {use.what: use.verbs[0][0] for use in found() if use.factor > WORST}
    assert above == ABOVE
    text = (repository / "docs/economics.md").read_text()
    reasons = text.partition("Above 5 are these uses")[2].partition("\n## ")[0]
    for name in ABOVE:
        assert f"*{name}*" in " ".join(reasons.split()), name


def test_a_use_costs_others_nothing_or_says_how_much() -> None:
    for use in found():
        assert use.harm is None or use.harm.cost > 0 or use.factor == inf, use.what
