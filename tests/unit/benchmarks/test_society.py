"""The simulated society keeps the protocol's books: money is conserved, honesty is safe, lies earn what is computed."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import pytest

from benchmarks import economics as command
from benchmarks.society import Kind, Play, Rules, Society
from lockstep import economics
from lockstep.economics import AuditPlan, Slash
from lockstep.presets import CHAINS
from lockstep.protocol.market.job_rules import GAME_MOVES
from lockstep.protocol.types import Seconds, Wei

PRICE = 10**9
AUDIT = AuditPlan(slots=16, witnesses=4, transitions=101, cartel=0.0)
RULES = Rules(
    AUDIT, PRICE, 20 * PRICE, PRICE, 7 * PRICE // 10, gas_price=500, fee_cap=10**11, merge_price=PRICE // 2,
    merge_stake=10 * PRICE, backed=3,
)  # fmt: skip
SOCIETY = Society(jobs=60, rounds=80, trust=5_000)


@pytest.fixture(scope="module")
def played() -> Play:
    """All kinds together; every round asserts that the vault holds what was deposited."""
    return Play(RULES, SOCIETY).play()


def test_nobody_honest_loses_by_what_others_do(played: Play) -> None:
    assert played.tally.honest_falls == 0, "no round took anything from an honest account"
    assert played.tally.unpaid_winners == 0, "who convicts is paid more than the gas"
    assert min(played.tally.cover) >= 1, "a false challenge pays for its defence"
    assert int(played.tally.convicted[Kind.HONEST]) == 0, "what is right convicts nobody"
    assert played.ledger.profit[played.honest].mean() > 0, "honest work pays"


def test_every_other_way_earns_less_than_honesty(played: Play) -> None:
    means = {kind: played.ledger.profit[played.kind == kind].mean() for kind in Kind}
    honest = means.pop(Kind.HONEST)
    assert all(mean < honest for mean in means.values()), means
    losing = (Kind.LAZY, Kind.SYBIL, Kind.CHALLENGER, Kind.SILENT, Kind.VANDAL)
    assert all(means[kind] < 0 for kind in losing), "the bold ones lose money"


def test_lies_are_seen_as_often_as_computed() -> None:
    shares = {Kind.LAZY: 0.2, Kind.SYBIL: 0.2, Kind.CARTEL: 0.2}
    tally = Play(RULES, replace(SOCIETY, shares=shares)).play().tally
    half = AUDIT.transitions + 1 - round(AUDIT.transitions / 2)
    expected = {
        Kind.LAZY: AUDIT.detection(half),
        Kind.SYBIL: AUDIT.detection(),
        Kind.CARTEL: replace(AUDIT, cartel=1 / 3).detection(),
    }
    for kind, detection in expected.items():
        lies = int(tally.lies[kind])
        deviation = sqrt(detection * (1 - detection) / lies)
        assert tally.convicted[kind] / lies == pytest.approx(detection, abs=4 * deviation), kind.name


def test_a_liar_earns_what_is_computed() -> None:
    rules = replace(RULES, gas_price=0, witness_fee=0, merge_price=0)
    play = Play(rules, replace(SOCIETY, shares={Kind.LAZY: 0.2, Kind.SYBIL: 0.2})).play()
    for kind, saved, lost in ((Kind.LAZY, round(101 / 2) / 101, 1.0), (Kind.SYBIL, 1.0, 0.7)):
        claims, seen = int(play.tally.claims[kind]), int(play.tally.convicted[kind])
        earned = play.ledger.profit[play.kind == kind].sum() / claims
        expected = economics.expected_profit(
            PRICE, rules.cost * PRICE, rules.stake, saved, detection=seen / claims, lost=lost
        )
        assert earned == pytest.approx(expected, abs=2), f"{kind.name}: up to what rounding burns"


def test_looking_costs_what_is_computed(played: Play) -> None:
    tally = played.tally
    withheld = int(tally.claims[Kind.WITHHOLDER]) / int(tally.claims.sum())
    audit = replace(AUDIT, unavailable=withheld)
    looked = (tally.by_witnesses + tally.by_volunteers + tally.for_missing_data) / tally.claimed
    # Silent slots reveal nothing, and the witnesses look at the others.
    revealed = int(tally.claims.sum()) / (len(played.kind) * SOCIETY.rounds)
    computed = audit.cost_share() - audit.merge_steps / audit.transitions
    assert looked == pytest.approx(computed / revealed, rel=0.02)


def test_rounds_that_fall_with_a_merge_are_paid_by_who_made_them_fall() -> None:
    rules = replace(RULES, gas_price=0)
    calm = Play(rules, replace(SOCIETY, shares={})).play()
    play = Play(rules, replace(SOCIETY, shares={Kind.VANDAL: 0.02})).play()
    tally = play.tally
    assert tally.rewinds > 10
    assert tally.rewinds * rules.backed <= tally.voided, "all that stand on a merge fall with it"
    shared = economics.split_slash(Wei(rules.merge_stake), 1)
    lost = tally.voided * rules.round_pay + tally.rewinds * (rules.merge_stake - shared.winners[0])
    assert tally.vandalism == lost, "every seat, merge and witness of each round, and the stake but for its own prize"
    earned, before = (p.ledger.profit[p.honest].mean() for p in (play, calm))
    assert earned == pytest.approx(before, rel=0.01), "the honest earn what they do without vandals"
    assert play.ledger.requesters > 0.9 * tally.voided * rules.round_pay, "requesters keep what those rounds would cost"
    vandals = play.kind == Kind.VANDAL
    worked = before * vandals.sum()
    assert play.ledger.profit[vandals].sum() == pytest.approx(worked - lost, rel=0.05), "who is no witness earns less"


@pytest.mark.parametrize(("multiple", "cheating"), [(1, 1.0), (20, 0.0)])
def test_the_rational_cheat_where_it_pays_and_nowhere_else(multiple: int, cheating: float) -> None:
    rules = replace(RULES, stake=multiple * PRICE)
    tally = Play(rules, replace(SOCIETY, rounds=200, shares={Kind.RATIONAL: 0.5})).play().tally
    assert tally.cheating[0] == 1, "before they know the risk, all of them do"
    assert tally.cheating[-1] == cheating


def test_a_slash_that_makes_money_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    honest_split = economics.split_slash

    def generous(stake: Wei, winners: int, refunds: list[Wei]) -> Slash:
        split = honest_split(stake, winners, refunds)
        return replace(split, winners=tuple(Wei(prize + 1) for prize in split.winners), burned=split.burned)

    monkeypatch.setattr(economics, "split_slash", generous)
    with pytest.raises(ArithmeticError, match="units for"):
        Play(RULES, replace(SOCIETY, rounds=20)).play()


def test_an_honest_account_that_is_slashed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Play, "_behave", lambda self: np.ones(len(self.kind), np.int64))
    assert Play(RULES, replace(SOCIETY, rounds=5)).play().tally.honest_falls > 0


def test_one_seed_gives_one_history() -> None:
    short = replace(SOCIETY, rounds=10)
    first, second, other = (Play(RULES, replace(short, seed=seed)).play().ledger for seed in (1, 1, 2))
    assert (first.held == second.held).all()
    assert (first.held != other.held).any()


def test_the_document_shows_what_the_rules_give(repository: Path) -> None:
    text = (repository / "docs/economics.md").read_text()
    block = text.split("<!-- audits -->\n")[1].split("\n<!-- end -->")[0]
    assert block.splitlines() == command.audit_lines(), "run `python benchmarks/economics.py --write`"
    assert (repository / "docs/economics/costs.svg").read_text() == command.costs_chart().svg(), "the picture, too"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("lies", "draws"), [(1, 1), (1, 2), (8, 1), (8, 2), (8, 4)])
def test_the_contracts_draw_is_chosen_as_the_closed_form_says(lies: int, draws: int) -> None:
    trials = 2_000
    drawn = command.chosen(command.AUDIT, lies, draws, seed=1, trials=trials)
    blind = replace(command.AUDIT, volunteers=0.0)
    expected = lies * economics.chosen_detection(blind, lies, draws)
    # Of the fewest of at most `witnesses` the mean square is at most `witnesses` times the mean.
    deviation = sqrt(command.AUDIT.witnesses * expected / trials)
    assert abs(drawn - expected) < 4 * deviation
    assert deviation < 0.1


@pytest.mark.slow
def test_the_page_has_the_table_of_choices(repository: Path) -> None:
    text = (repository / "docs/economics.md").read_text()
    block = text.partition("<!-- choice -->\n")[2].partition("\n<!-- end -->")[0]
    assert block.splitlines() == command.choice_lines(0), "run `python benchmarks/economics.py --write`"


def test_the_page_has_the_table_of_moves_held_back(repository: Path) -> None:
    text = (repository / "docs/economics.md").read_text()
    block = text.partition("<!-- held -->\n")[2].partition("\n<!-- end -->")[0]
    assert block.splitlines() == command.held_lines(), "run `python benchmarks/economics.py --write`"


def test_a_clock_at_the_floor_survives_one_move_held_back_and_none_below() -> None:
    for chain in (each for each in CHAINS.values() if each.censor):
        assert command.survived(chain, chain.clock_floor) == 1
        assert command.survived(chain, Seconds(chain.clock_floor - 1)) == 0
        every = Seconds(GAME_MOVES * (chain.inclusion + chain.censor))
        assert (command.survived(chain, every), command.survived(chain, Seconds(2 * every))) == (GAME_MOVES, GAME_MOVES)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shown", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("withheld", [0.05, 1.0])
def test_what_withheld_carries_cost_is_what_is_drawn_claim_by_claim(withheld: float, shown: float) -> None:
    audit = AuditPlan(64, 5, 501, period=4, withheld=withheld, shown=shown)
    assert command.audited(audit, 3) == pytest.approx(audit.cost_share(), rel=0.02)


@pytest.mark.slow
def test_the_table_of_withheld_carries_is_the_models(repository: Path) -> None:
    text = (repository / "docs/economics.md").read_text()
    block = text.split("<!-- carries -->\n")[1].split("\n<!-- end -->")[0]
    assert block.splitlines() == command.carry_lines(0), "run `python benchmarks/economics.py --write`"
