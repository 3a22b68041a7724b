"""The rules of money: floors, the price of gas, how a slash and a bond are split, from where a lie pays nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product
from math import inf
from pathlib import Path
from statistics import median_high

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep import economics
from lockstep.economics import AuditPlan
from lockstep.presets import MAINNET
from lockstep.protocol.market import prices
from lockstep.protocol.market.types import BURN, Keeper
from lockstep.protocol.types import Address, Seconds, Wei
from tests.support import price_vectors
from tests.support.ledger import Books

AMOUNTS = st.integers(0, (1 << 88) - 1)
FEES = st.integers(0, prices.MAX_FEE_CAP)
CHALLENGER, DEFENDER, REQUESTER = (Address("0x" + f"{digit}" * 40) for digit in (1, 2, 3))


def test_the_committed_vectors_are_what_the_twin_computes(vectors: Path) -> None:
    assert (vectors / "prices.jsonl").read_text().splitlines() == price_vectors.lines(), (
        "run `python -m tests.support.price_vectors`"
    )


# -- floors and gas


@given(AMOUNTS, st.integers(0, 1 << 60))
def test_a_stake_covers_ten_prices_and_four_games(price: int, gas_price: int) -> None:
    floor = prices.stake_floor(Wei(price), Wei(gas_price))
    assert floor >= 10 * price, "ten times what the work is paid"
    assert floor >= prices.gas_cost(4 * prices.GAME_GAS, Wei(gas_price), 1, 1), "four games at the cap"
    assert floor in (10 * price, 4 * prices.GAME_GAS * gas_price), "and no more"


@given(AMOUNTS, st.integers(0, 1 << 60), FEES.map(lambda fee: fee + 1), FEES, FEES)
def test_a_bond_rises_with_the_base_fee_up_to_the_cap(bond: int, gas_price: int, cap: int, low: int, high: int) -> None:
    low, high = sorted((low, high))
    cheap, dear, most = (prices.bond_of(Wei(bond), Wei(gas_price), cap, fee) for fee in (low, high, cap))
    assert bond <= cheap <= dear <= most, "monotonic in the base fee, never above the cap"
    assert most == bond + 3 * prices.DEFENDER_GAS * gas_price, "at the cap: three times the defender's gas"


@given(AMOUNTS, st.integers(0, 1 << 60), FEES.map(lambda fee: fee + 1), st.integers(1, 1025))
def test_a_rows_bond_pays_for_posting_each_leaf(bond: int, gas_price: int, cap: int, leaves: int) -> None:
    game = prices.bond_of(Wei(bond), Wei(gas_price), cap, cap)
    row = prices.row_bond_of(game, Wei(bond), leaves)
    assert row == prices.dearest_row_bond(Wei(bond), Wei(gas_price), leaves), "the highest"
    assert row == game + 3 * leaves * prices.LEAF_GAS * gas_price, "at the cap: three times each leaf's gas"
    assert (row - game) * 60 // 100 >= leaves * prices.LEAF_GAS * gas_price, "60 % of it is more than the gas"


@given(AMOUNTS, st.integers(1, 1 << 24))
def test_a_bond_is_at_least_the_price_of_a_step(price: int, steps: int) -> None:
    floor = prices.bond_floor(Wei(price), steps)
    assert steps * (floor - 1) < price <= steps * floor, "rounded up, by less than one unit"


@given(st.lists(FEES, max_size=20))
def test_the_ring_knows_the_last_nine_fees(fees: list[int]) -> None:
    ring = 0
    for fee in fees:
        ring = prices.push(ring, fee)
    assert ring < 1 << 252, "nine places"
    last = [-(-fee // prices.FEE_UNIT) * prices.FEE_UNIT for fee in fees[-9:]]
    assert prices.median(ring, -1) == (median_high(last) if last else -1)


# -- verdicts


@given(AMOUNTS, st.integers(0, 3), st.lists(AMOUNTS, max_size=8))
def test_a_slash_conserves_money_and_burns_half(stake: int, winners: int, refunds: list[int]) -> None:
    split = economics.split_slash(Wei(stake), winners, [Wei(refund) for refund in refunds])
    assert split.total == stake, "what is slashed is what arrives"
    assert 2 * split.burned >= stake, "at least half is burned"
    assert sum(split.winners) * 100 <= 30 * stake, "winners share at most 30 %"
    assert sum(split.refunds) * 100 <= 10 * stake, "refunds are at most 10 %"
    assert split.requester >= 0, "the requester pays for nothing"
    assert all(paid <= metered for paid, metered in zip(split.refunds, refunds, strict=True)), (
        "no more than was metered"
    )
    assert list(split.winners) == sorted(split.winners, reverse=True), "the convicting game's challenger has most"


@pytest.mark.parametrize(
    ("stake", "winners", "refunds", "burned", "to_winners", "to_refunds", "requester"),
    [
        (1_000, 1, (), 500, (300,), (), 200),
        (1_000, 2, (), 500, (200, 100), (), 200),
        (1_000, 3, (), 500, (150, 75, 75), (), 200),
        (1_000, 1, (60, 60), 500, (300,), (60, 40), 100),
        (1_000, 3, (10, 0, 200, 5), 500, (150, 75, 75), (10, 0, 90, 0), 100),
        (999, 3, (3,), 503, (149, 74, 74), (3,), 196),
        (7, 3, (), 5, (1, 0, 0), (), 1),
        (1, 1, (1,), 1, (0,), (0,), 0),
        (0, 1, (), 0, (0,), (), 0),
    ],
)
def test_the_split_of_a_slash(
    stake: int, winners: int, refunds: tuple[Wei, ...], burned: int, to_winners: tuple[int, ...],
    to_refunds: tuple[int, ...], requester: int,
) -> None:  # fmt: skip
    split = economics.split_slash(Wei(stake), winners, refunds)
    assert (split.burned, split.winners, split.refunds, split.requester) == (burned, to_winners, to_refunds, requester)


@given(AMOUNTS, st.integers(0, 3), st.lists(AMOUNTS, max_size=8))
def test_the_vault_splits_a_slash_alike(stake: int, count: int, amounts: list[int]) -> None:
    winners, challengers = ([Address(f"0x{first + i:040x}") for i in range(8)] for first in (1, 0x100))
    books = Books.of(Seconds(1))
    books.deposit(DEFENDER, Wei(stake))
    books.lock(DEFENDER, b"claim", Wei(stake))
    books.slash(b"claim", 0, winners[:count], list(zip(challengers, amounts, strict=False)), REQUESTER)
    split = economics.split_slash(Wei(stake), count, [Wei(amount) for amount in amounts])
    assert (books.credits[BURN], books.credits[REQUESTER]) == (split.burned, split.requester)
    assert [books.credits[account] for account in winners[:count]] == list(split.winners)
    assert [books.credits[account] for account in challengers[: len(amounts)]] == list(split.refunds)


@given(AMOUNTS)
def test_a_lost_bond_pays_the_defender_and_burns_the_rest(bond: int) -> None:
    to_defender, burned = economics.split_bond(Wei(bond))
    assert to_defender + burned == bond
    assert burned * 100 >= 40 * bond, "whoever challenges himself loses 40 %"


@given(AMOUNTS)
def test_the_vault_takes_a_bond_apart_alike(bond: int) -> None:
    books = Books.of(Seconds(1))
    books.deposit(CHALLENGER, Wei(bond))
    books.lock(CHALLENGER, b"game", Wei(bond), Keeper.GAME)
    books.take_bond(b"game", DEFENDER)
    assert (books.credits[DEFENDER], books.credits[BURN]) == economics.split_bond(Wei(bond))


# -- deterrence


def test_ten_stakes_need_a_sixth_and_volunteers_alone_sixty_five_stakes() -> None:
    assert economics.break_even_detection(10) == pytest.approx(1 / 6), "about 0.2"
    assert economics.break_even_multiple(0.03) == pytest.approx(64.67, abs=0.01), (
        "3 % of the claims, looked at by volunteers"
    )
    assert economics.break_even_multiple(0) == inf, "what nobody sees, no stake deters"


def test_replaying_at_random_pays_from_one_lie_in_twelve_at_forty_stakes() -> None:
    assert economics.volunteer_break_even(40) == pytest.approx(1 / 12)
    prize = economics.split_slash(Wei(40), 1).winners[0]
    assert economics.volunteer_break_even(40) * prize == pytest.approx(1), "the expected prize is the work of one claim"


@given(st.floats(0.001, 0.999), st.floats(0.1, 1))
def test_break_even_is_where_cheating_earns_what_honesty_does(detection: float, burned: float) -> None:
    multiple = economics.break_even_multiple(detection, burned)
    assert economics.break_even_detection(multiple, burned) == pytest.approx(detection), "one is the other's inverse"
    honest = economics.expected_profit(1, 1, multiple)
    cheating = economics.expected_profit(1, 1, multiple, saved=1, detection=detection, lost=burned)
    assert cheating == pytest.approx(honest, abs=1e-9), "neither pays more"
    assert economics.break_even_multiple(detection / 2, burned) > multiple, "less seen, more staked"


AUDITS = st.builds(
    AuditPlan, st.integers(1, 64), st.integers(0, 200), st.integers(1, 1000), st.floats(0.0001, 0.5), st.floats(0, 0.5),
    st.floats(0, 0.99),
)  # fmt: skip


@given(AUDITS, st.floats(0, 1))
def test_no_saving_of_work_pays_at_the_stake_that_an_audit_needs(audit: AuditPlan, at: float) -> None:
    first = 1 + round(at * (audit.transitions - 1))
    saved = (audit.transitions - first + 1) / audit.transitions
    detection = audit.detection(first)
    stake = audit.stake_multiple()
    gain = economics.expected_profit(1, 1, stake, saved=saved, detection=detection, lost=economics.BURNED)
    assert gain <= 1e-9, "skipping from any step on earns no more than honesty, which earns nothing here"
    assert audit.detection(audit.transitions) <= detection <= audit.detection(1) <= 1, "a later lie is seen less"


@given(AUDITS)
def test_more_witnesses_see_more_and_cost_more(audit: AuditPlan) -> None:
    more = AuditPlan(
        audit.slots, audit.witnesses + 1, audit.transitions, audit.volunteers, audit.unavailable, audit.cartel
    )
    assert more.detection() > audit.detection() - 1e-12
    assert more.cost_share() > audit.cost_share()
    assert more.stake_multiple() <= audit.stake_multiple() + 1e-9


@pytest.mark.parametrize(("period", "withheld", "due"), [(0, 1, 0), (2, 1, 1 / 2), (4, 1, 6 / 4), (3, 0.5, 1.25 / 3)])
def test_claims_behind_withheld_carries_are_computed_again_to_the_last_zero(
    period: int, withheld: float, due: float
) -> None:
    audit = replace(AuditPlan(8, 1, 10), period=period, withheld=withheld)
    assert audit.source_claims() == pytest.approx(due)
    plain = AuditPlan(8, 1, 10)
    extra = audit.cost_share() - plain.cost_share()
    assert extra == pytest.approx((1 / 8 + plain.unavailable + plain.volunteers) * due)


@pytest.mark.parametrize(("period", "share"), [(2, 0.0443), (4, 0.0494), (7, 0.0676)])
def test_carries_that_are_shown_to_nobody_cost_what_volunteers_do(period: int, share: float) -> None:
    audit = AuditPlan(64, MAINNET.witnesses, 501, period=period, withheld=1.0, shown=0.0)
    assert audit.cost_share() == pytest.approx(share, abs=5e-5)
    prefix = replace(audit, withheld=0.0).replay_share()
    assert audit.replay_share() == pytest.approx(prefix / period), "but for zero carries, no witness looks"


@pytest.mark.parametrize("withheld", [0.0, 0.01, 0.1, 0.5, 0.9, 1.0])
def test_however_many_carries_are_withheld_and_not_shown_the_default_job_stays_within_its_bound(
    withheld: float,
) -> None:
    audit = AuditPlan(64, MAINNET.witnesses, 501, period=MAINNET.carry_period, withheld=withheld, shown=0.0)
    assert audit.cost_share() < economics.MAX_COST_SHARE


def test_the_default_job_verifies_within_its_bound_with_carries_withheld() -> None:
    audit = AuditPlan(64, MAINNET.witnesses, 501, period=MAINNET.carry_period)
    assert (audit.period, audit.withheld) == (4, economics.UNAVAILABLE)
    assert audit.cost_share() == pytest.approx(0.0572, abs=5e-5)
    assert audit.cost_share() < economics.MAX_COST_SHARE
    most = audit.most_withheld()
    assert most == pytest.approx(0.048, abs=5e-4)
    for withheld, within in ((most - 1e-3, True), (most + 1e-3, False)):
        assert (replace(audit, withheld=withheld).cost_share() <= economics.MAX_COST_SHARE) == within


def test_an_offer_for_a_carry_stays_within_the_bound_where_one_without_is_at_it() -> None:
    plain, carried = (economics.most_witnesses(24, 501, period) for period in (0, 4))
    for slots in (24, 48, 64):
        witnesses = economics.most_witnesses(slots, 501, 4)
        assert AuditPlan(slots, witnesses, 501, period=4).cost_share() <= economics.MAX_COST_SHARE
    assert carried <= plain


@pytest.mark.parametrize(
    ("slots", "witnesses", "first"), [(3, 0, 1), (3, 1, 2), (3, 2, 4), (3, 3, 1), (2, 3, 3), (3, 4, 2)]
)
def test_detection_is_what_counting_every_draw_gives(slots: int, witnesses: int, first: int) -> None:
    audit = AuditPlan(slots, witnesses, transitions=4, volunteers=0.25, cartel=0.5)
    seen = 0
    draws = list(product(range(1, 5), (False, True), repeat=witnesses))
    for slot, draw in product(range(slots), draws):
        # The cheat stands at `slot` of the drawn order; duty i is dealt to claim i mod slots.
        duties = [(draw[2 * i], draw[2 * i + 1]) for i in range(witnesses) if i % slots == slot]
        seen += any(honest and stop >= first for stop, honest in duties)
    by_witnesses = seen / (slots * len(draws))
    assert audit.detection(first) == pytest.approx(by_witnesses + (1 - by_witnesses) * 0.25)


# -- a draw that somebody chooses


@pytest.mark.parametrize(
    ("slots", "witnesses", "bought", "listed", "lies", "draws"),
    [
        (4, 2, 1, 3, 1, 1),
        (4, 2, 1, 3, 2, 2),
        (3, 2, 1, 2, 2, 3),
        (3, 1, 2, 4, 2, 3),
        (3, 3, 1, 2, 3, 2),
        (5, 2, 0, 1, 2, 2),
    ],
)
def test_the_chosen_draw_is_what_counting_every_choice_gives(
    slots: int, witnesses: int, bought: int, listed: int, lies: int, draws: int
) -> None:  # fmt: skip
    audit = AuditPlan(slots, witnesses, transitions=4, volunteers=0.25, cartel=bought / listed)
    # A draw deals the duties to claims in some order, and each to some account of the list.
    seen = [
        sum(claim < lies and account >= bought for claim, account in zip(dealt, accounts, strict=True))
        for dealt in permutations(range(slots), witnesses)
        for accounts in product(range(listed), repeat=witnesses)
    ]
    chances = [seen.count(x) / len(seen) for x in range(lies + 1)]
    assert economics.seen_lies(audit, lies) == pytest.approx(chances)
    fewest = sum(min(picked) for picked in product(seen, repeat=draws)) / len(seen) ** draws
    by_witnesses = fewest / lies
    assert economics.chosen_detection(audit, lies, draws) == pytest.approx(by_witnesses + (1 - by_witnesses) * 0.25)


@given(st.integers(1, 80), st.data())
def test_one_beacon_is_no_choice_and_more_hide_more(slots: int, data: st.DataObject) -> None:
    witnesses, lies = data.draw(st.integers(0, slots)), data.draw(st.integers(1, slots))
    audit = AuditPlan(slots, witnesses, 501)
    assert sum(economics.seen_lies(audit, lies)) == pytest.approx(1)
    assert economics.chosen_detection(audit, lies, 1) == pytest.approx(audit.detection())
    found = [economics.chosen_detection(audit, lies, draws) for draws in (1, 2, 3, 10, 10**6)]
    assert found == sorted(found, reverse=True)
    assert found[-1] >= audit.volunteers - 1e-12, "volunteers see what no draw hides"


@pytest.mark.parametrize(("lies", "draws"), [(1, 1), (1, 2), (8, 2), (8, 16), (32, 4)])
def test_at_the_volunteers_that_a_choice_needs_the_stake_breaks_even(lies: int, draws: int) -> None:
    audit = AuditPlan(64, 5, 501)
    needed = economics.volunteers_for(audit, 40, lies, draws)
    assert economics.chosen_stake(replace(audit, volunteers=max(needed, 1e-12)), lies, draws) <= 40 * (1 + 1e-9)
    if needed:
        assert economics.chosen_stake(replace(audit, volunteers=0.99 * needed), lies, draws) > 40


def test_the_figures_of_the_threat_model(repository: Path) -> None:
    audit, text = AuditPlan(64, 5, 501), " ".join((repository / "docs/threat-model.md").read_text().split())
    assert round(economics.chosen_detection(audit, 1, 4), 4) == economics.VOLUNTEERS, "from four on they are alone"
    for share, blocks in ((0.01, 75), (0.001, 75)):
        assert f"{100 * economics.chosen_turn(share, blocks):.0f} %" in text, (
            "a block of its own in the time of reveals"
        )
    assert f"below a stake of {economics.chosen_stake(audit, 1, 10**6):.0f} prices" in text
    assert f"at {100 * economics.volunteers_for(audit, 40, 1, 10**6):.2f} % of claims replayed, 40 prices" in text


def test_a_turn_is_chosen_as_often_as_a_draw_has_one_of_ones_own() -> None:
    assert economics.chosen_turn(0.25, 2) == pytest.approx(7 / 16)
    assert economics.chosen_turn(1 / 64, 1) == pytest.approx(1 / 64)


def test_more_duties_than_claims_have_no_such_form() -> None:
    with pytest.raises(ValueError, match="5 duties"):
        economics.seen_lies(AuditPlan(4, 5, 10), 1)


@pytest.mark.parametrize(
    ("slots", "transitions", "witnesses", "cost", "detection", "stake"),
    [
        (3, 21, 1, 0.2388, 0.2261, 6.8),
        (12, 501, 1, 0.0592, 0.0603, 31.2),
        (16, 101, 1, 0.0568, 0.0465, 41.0),
        (32, 501, 2, 0.0486, 0.0465, 41.0),
        (64, 101, 4, 0.0568, 0.0465, 41.0),
        (64, 501, 5, 0.0565, 0.0568, 33.2),
    ],
)
def test_the_table_of_audits(
    slots: int, transitions: int, witnesses: int, cost: float, detection: float, stake: float
) -> None:
    assert economics.most_witnesses(slots, transitions) == witnesses
    audit = AuditPlan(slots, witnesses, transitions)
    assert audit.cost_share() == pytest.approx(cost, abs=5e-5)
    assert audit.detection() == pytest.approx(detection, abs=5e-5)
    assert audit.stake_multiple() == pytest.approx(stake, abs=0.05)


@pytest.mark.parametrize(("slots", "transitions"), [(1, 2), (3, 21), (16, 101), (64, 101), (64, 501)])
def test_an_offer_keeps_its_own_bounds(slots: int, transitions: int) -> None:
    price, gas_price = Wei(10**18), Wei(5 * 10**11)
    offer = economics.offer(slots, transitions, price, gas_price, 8)
    audit = AuditPlan(slots, offer.witnesses, transitions)
    assert offer.slot_stake >= prices.stake_floor(price, gas_price), "the contract's floor"
    assert offer.slot_stake >= economics.STAKE_MARGIN * audit.stake_multiple() * price, "no saving of work pays"
    assert offer.witness_stake >= prices.witness_floor(offer.witness_fee, 8), "the contract's floor of a witness"
    assert 2 * offer.witness_stake < offer.slot_stake, "a worker that takes its witness along loses more than it does"
    ahead = economics.offer(slots, transitions, price, gas_price, 16)
    assert ahead.witness_stake == prices.witness_floor(offer.witness_fee, 16) == 32 * ahead.witness_fee
    assert 2 * ahead.witness_stake < ahead.slot_stake, "the stakes follow"
    lone = economics.offer(slots, transitions, price, gas_price, 8, min_slots=1)
    assert 2 * lone.witnesses * lone.witness_stake < lone.slot_stake, "where one claim may have all witnesses, all"
    assert offer.witness_fee > audit.replay_share() * price, "a duty pays more than it costs"
    assert audit.cost_share() <= economics.MAX_COST_SHARE or offer.witnesses == 1, "within the bound, but one at least"


def test_the_default_offer() -> None:
    offer = economics.offer(64, 501, Wei(10**18), Wei(5 * 10**11), 8)
    assert (offer.witnesses, offer.slot_stake) == (5, 40 * 10**18)
    assert offer.witness_fee == 557 * 10**15 + economics.DUTY_GAS * 5 * 10**11


def test_a_duty_pays_more_than_it_costs() -> None:
    audit = AuditPlan(64, 5, 501)
    fee = audit.fee(Wei(10**18), Wei(10**15))
    assert fee >= audit.replay_share() * 10**18 + 10**15, "the expected replay and the gas"
    assert fee <= 0.6 * 10**18, "less than the work of a claim"
