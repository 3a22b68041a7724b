"""What benchmarks/attacks.py computes of an attack is what the market's twin takes from whoever plays it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import economics as command
from benchmarks.attacks import DAY, INTEREST, YEAR, Attack, Market
from lockstep import economics
from lockstep.presets import CHAINS, DEVNET, MAINNET, Terms
from lockstep.protocol.dispute import game
from lockstep.protocol.errors import ChainError
from lockstep.protocol.jobs import ZERO_ADDRESS, JobParams, Phase
from lockstep.protocol.market import prices, views
from lockstep.protocol.market.draws import stake_key
from lockstep.protocol.market.job_rules import check_params
from lockstep.protocol.market.types import BURN
from lockstep.protocol.types import MERGE_SLOT, Seconds, Wei
from tests.rules.scenes import audit, bound, preimage, word
from tests.support.market.twin import ACCOUNTS, NAMES, PARAMS, STAKE, World, begun, job_of
from tests.support.market.wander import params_of
from tests.support.params import amended, value_of

FULL = amended(
    PARAMS, max_lead=2, carry_period=0, witnesses=0, witness_fee=0, witness_stake=0, audit_seconds=0, gas_price=0
)
WORKERS = ("worker-0", "worker-1", "worker-2")
LEAD = FULL.schedule.max_lead


def priced(params: JobParams) -> Market:
    """The benchmark's market of a job on the twin."""
    terms = Terms(**{of.name: value_of(params, of.name) for of in fields(Terms)})
    return Market(params.role.slots, params.role.min_slots, terms)


def pipeline() -> World:
    """As many rounds in flight as may be, each merge backed for exactly those above it."""
    world = begun().create(FULL)
    for r in range(LEAD):
        world.to_merged(r, LEAD - 1 - r).later()
    return world


def finish(world: World, rounds: int) -> None:
    world.later(FULL.windows.challenge_seconds)
    for r in range(rounds):
        world.do("poor", "market.finalize", world.job, r)


def paid_to(world: World, account: str) -> int:
    return world.state.credits[ACCOUNTS[account]]


def wealth(world: World, accounts: Iterable[str]) -> int:
    """In the vault; a requester's is also what its escrow has not paid."""
    job = world.state.jobs[world.job]
    left = job.escrow - job.paid - job.refunded if "requester" in accounts else 0
    return left + sum(world.state.free[ACCOUNTS[account]] + paid_to(world, account) for account in accounts)


@pytest.mark.parametrize("team", [("aggregator",), ("aggregator", "requester")], ids=["alone", "with the requester"])
def test_a_merger_that_convicts_itself_loses_what_is_computed_and_nobody_else_anything(team: tuple[str, ...]) -> None:
    honest, world = pipeline(), pipeline()
    finish(honest, LEAD)
    merge = world.claim(MERGE_SLOT)
    world.do("game", "market.onOpen", merge, world.held[merge].body)
    world.do("game", "market.onConvicted", merge, 0, [ACCOUNTS["aggregator"]], [])
    for r in range(1, LEAD):
        world.do("poor", "market.release", world.job, r)
    again = NAMES[views.merger_of(world.state, world.block, world.job, 0)]
    finish(world.merge(by=again), 1)

    attack = priced(FULL).self_conviction(requester="requester" in team)
    cost = wealth(honest, team) - wealth(world, team)
    assert cost == pytest.approx(attack.now.cost * FULL.role.slot_price, abs=2), "up to what rounding burns"
    lost = {worker: wealth(honest, [worker]) - wealth(world, [worker]) for worker in WORKERS}
    assert lost.pop(again) == -FULL.merge.price, "who merged again is paid for it"
    assert set(lost.values()) == {attack.now.damage} == {0}, "work is paid as if nothing had happened"
    assert attack.without is not None
    fallen = (LEAD - 1) * FULL.role.slots
    assert attack.without.damage == fallen, "without the rule nobody is paid for it"


@pytest.mark.parametrize("others", [True, False])
def test_a_requester_that_voids_its_own_job_loses_what_is_computed(others: bool) -> None:
    world = begun().create(FULL).to_merged(rounds=1).later().start(1).seal(1)
    if not others:
        world.commit(1)
    world.do("validator", "market.onInvalid", world.job, "requester")
    for r in range(LEAD):
        world.do("poor", "market.release", world.job, r)
    world.do("poor", "market.finish", world.job)
    attack = priced(FULL).void_own_job(others=others)
    assert world.state.credits[BURN] == pytest.approx(attack.now.cost * FULL.role.slot_price, abs=1)
    unpaid = FULL.role.slots * LEAD * FULL.role.slot_price - sum(paid_to(world, worker) for worker in WORKERS)
    assert unpaid == attack.now.damage * FULL.role.slot_price, "who had not committed"


def test_a_squatter_is_fined_what_is_computed() -> None:
    attack = priced(FULL).squatter()
    honest = tuple(range(round(attack.now.damage)))
    world = begun().create(FULL).start().seal().commit(slots=honest)
    world.until(world.round().commit_ends).reveal(slots=honest).until(world.round().reveal_ends).freeze(slots=honest)
    assert world.round().phase == Phase.FAILED
    assert world.state.credits[BURN] == attack.now.cost * FULL.role.slot_price, "a price for each silent seat"
    assert wealth(world, ["worker-2"]) == STAKE - FULL.role.slot_price
    world.finalize()
    assert wealth(world, ["worker-0"]) == STAKE + FULL.role.slot_price, "who worked is paid"
    assert world.state.jobs[world.job].paid == attack.now.damage * FULL.role.slot_price, "for what is not merged"


def test_a_majority_leaves_out_what_is_computed_and_gains_nothing() -> None:
    attack = priced(FULL).left_out()
    world = begun().create(FULL).to_revealed()
    world.attest(slots=(0, 1), mask=0b011).attest(slots=(2,)).freeze().merge()
    finish(world, 1)
    assert world.state.credits[BURN] == attack.now.damage * FULL.role.slot_price
    assert [wealth(world, [worker]) - STAKE for worker in WORKERS] == [FULL.role.slot_price, FULL.role.slot_price, 0]


def test_a_merge_that_backs_nothing_is_unpaid_and_halts_its_job_for_a_turn() -> None:
    world = begun().create(FULL).to_merged(rounds=0).later(FULL.merge.turn_seconds)
    again = NAMES[views.merger_of(world.state, world.block, world.job, 0)]
    world.merge(rounds=1, by=again).later().to_merged(1)
    finish(world, LEAD)
    attack = priced(FULL).unbacked()
    idle = FULL.role.slots * FULL.role.slot_stake + FULL.round_pay
    assert attack.now.damage == pytest.approx(idle / FULL.role.slot_price * INTEREST * FULL.merge.turn_seconds / YEAR)
    assert wealth(world, ["aggregator"]) == STAKE + FULL.merge.price, "of the second round alone"
    assert wealth(world, [again]) == STAKE + LEAD * FULL.role.slot_price + FULL.merge.price


def test_games_on_its_own_merge_keep_others_out_for_half_of_its_window_at_a_bond_each() -> None:
    world = begun().create(FULL).to_merged(rounds=0)
    merge, opened = world.claim(MERGE_SLOT), world.block.time
    half = opened + FULL.windows.challenge_seconds // 2
    world.do("game", "market.onOpen", merge, world.held[merge].body)

    def merger() -> str:
        return views.merger_of(world.state, world.block, world.job, 0)

    assert half <= opened + 2 * FULL.windows.clock_seconds, "one game lasts that long"
    for seconds in (FULL.merge.turn_seconds, half - opened - 1):
        world.until(opened + seconds)
        assert merger() == ZERO_ADDRESS, "it stands"
    world.do("game", "market.onRejected", merge)
    assert merger() != ZERO_ADDRESS, "in the last second of the half"
    world.until(half)
    assert merger() == ZERO_ADDRESS, "no further game is needed"
    finish(world, 1)
    assert wealth(world, ["aggregator"]) == STAKE + FULL.merge.price, "it is paid"
    waits = FULL.windows.challenge_seconds
    attack = priced(FULL).unbacked_under_games()
    saved = FULL.round_pay * INTEREST * waits / YEAR
    burned = economics.split_bond(FULL.prices.bond)[1]
    assert attack.now.cost == pytest.approx((burned - saved) / FULL.role.slot_price)
    idle = FULL.role.slots * FULL.role.slot_stake + FULL.round_pay
    assert attack.now.damage == pytest.approx(idle / FULL.role.slot_price * INTEREST * waits / YEAR)


WATCHED = amended(PARAMS, max_lead=2, carry_period=0, gas_price=0, audit_seconds=73)


def watched(*, falls: bool) -> World:
    """A witness agrees with a claim in every round in flight; the first one's worker convicts itself, or does not."""
    world = begun().create(WATCHED).then("witness", "witnesses.enrol", job_of(WATCHED), preimage(0))
    for r in range(LEAD):
        world.to_revealed(r).then("poor", "witnesses.draw", world.job, r).later(2, 2)
        said = word(world.then("poor", "witnesses.draw", world.job, r), r=r)
        world.do("witness", "witnesses.commit", audit(world, r), 0, bound(world, said, r=r))
        world.do("witness", "witnesses.reveal", audit(world, r), 0, said)
        world.attest(r).freeze(r).merge(r, LEAD - 1 - r).later()
    slot = world.state.duties[audit(world), 0].slot
    if falls:
        world.do("game", "market.onOpen", world.claim(slot), world.made(slot).body)
        world.do("game", "market.onConvicted", world.claim(slot), 1, [ACCOUNTS["mallory"]], [])
        world.do("poor", "witnesses.settle", audit(world), 0)
    finish(world, LEAD)
    for r in range(int(falls), LEAD):
        world.do("poor", "witnesses.settle", audit(world, r), 0)
    return world


@pytest.mark.parametrize("requester", [True, False], ids=["with the requester", "alone"])
def test_a_worker_that_takes_its_witness_along_does_what_is_computed(requester: bool) -> None:
    honest, fell = watched(falls=False), watched(falls=True)
    liar = f"worker-{honest.state.duties[audit(honest), 0].slot}"
    team = (liar, "mallory", "requester")[: 3 if requester else 2]

    def worth(world: World, accounts: Iterable[str]) -> int:
        locked = world.state.locks[stake_key(world.job, ACCOUNTS["witness"])].amount if "witness" in accounts else 0
        return wealth(world, accounts) + locked

    attack = priced(WATCHED).takes_witnesses(requester=requester)
    price = WATCHED.role.slot_price
    assert worth(honest, team) - worth(fell, team) == pytest.approx(attack.now.cost * price, abs=2), "up to rounding"
    assert worth(honest, ["witness"]) - worth(fell, ["witness"]) == pytest.approx(attack.now.damage * price)
    assert {worker for worker in WORKERS if worth(honest, [worker]) != worth(fell, [worker])} == {liar}


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 16), st.integers(1, 10**18), st.booleans())
def test_no_job_lets_a_worker_take_more_than_three_times_what_it_loses(
    witnesses: int, min_slots: int, max_lead: int, fee: int, requester: bool
) -> None:
    stake = prices.witness_floor(Wei(fee), max_lead)
    together = -(-witnesses // min_slots) * stake
    terms = replace(
        MAINNET, witnesses=witnesses, max_lead=max_lead, witness_fee=Wei(fee), witness_stake=stake, gas_price=Wei(0),
        slot_price=Wei(1), merge_price=Wei(0), slot_stake=Wei(max(10, 2 * together + 1)),
    )  # fmt: skip
    market = Market(64, min_slots, terms)
    assert 0 < market.takes_witnesses(requester=requester).now.factor < 3.5
    assert market.takes_witnesses(requester=requester).now.factor < 3 or fee < 100, "but for what rounding burns"


def test_what_is_left_to_griefing_is_named() -> None:
    dear = {name for name, attack in named().items() if attack.now.factor > 5}
    assert dear == {"a day of games with oneself, two clocks long", "35 of 64 slots leave out the others"}


def test_a_day_more_takes_as_many_games_as_steps_fit_into_it() -> None:
    terms = MAINNET
    at = game.DisputedClaim.__new__(game.DisputedClaim)
    games = DAY // terms.step_seconds
    for open_games, extra in ((0, 0), (games, DAY), (100 * games, game.MAX_EXTRA)):
        for name, value in (("clock", terms.clock_seconds), ("step", terms.step_seconds), ("open_games", open_games)):
            object.__setattr__(at, name, value)
        assert game.budget(at, defender=True) == terms.clock_seconds + extra


def test_a_job_of_ones_own_asks_for_a_bond_of_next_to_nothing() -> None:
    params = amended(FULL, slot_price=Wei(1), merge_price=Wei(0), slot_stake=Wei(10), merge_stake=Wei(1), bond=Wei(1))
    check_params(params, Seconds(1_000), CHAINS["devnet"])
    assert (
        prices.bond_of(params.prices.bond, params.prices.gas_price, params.prices.fee_cap, params.prices.fee_cap) == 1
    ), "gas alone is a cost"


def test_a_full_pipeline_locks_what_mergers_need() -> None:
    market = priced(amended(FULL, rounds=9))
    # Each merge is covered for the rounds that have started on it, and for no more.
    covered = sum(range(LEAD)) * FULL.round_pay
    lead = LEAD * FULL.merge.stake + covered
    slots = LEAD * FULL.role.slots * FULL.role.slot_stake
    assert market.locked * FULL.role.slot_price == lead + slots
    shares = [capital.interest for capital in market.capital()]
    assert shares[0] < shares[2] < shares[1] == shares[3], "rising backing costs half of what backing at once does"


def named() -> dict[str, Attack]:
    return {attack.name: attack for attack in Market().attacks()}


def test_what_the_rules_meet_costs_more_than_it_harms() -> None:
    attacks = named()
    for attack in (Market().self_conviction(requester=True), Market().self_conviction(requester=False)):
        assert attack.without is not None
        assert attack.without.factor > 20, f"{attack.name}: paid by others"
        assert attack.now.factor == 0, f"{attack.name}: paid by whoever does it"
    lone = attacks["a worker takes its witnesses along, with the requester"].without
    assert lone is not None
    assert lone.cost < 0 < lone.damage, "a requester gained by the fall of its only witness"
    harmless = ("a requester voids", "a squatter", "a further day")
    for name, attack in attacks.items():
        if name.startswith(harmless):
            assert attack.now.factor < 1, name
            assert attack.without is None or attack.now.cost > attack.without.cost, name


# -- the document


@pytest.mark.parametrize(
    ("block", "lines"),
    [
        ("capital", command.capital_lines),
        ("attacks", command.attack_lines),
        ("verbs", command.verb_lines),
        ("chains", command.chain_lines),
    ],
)
def test_the_document_shows_what_is_computed(repository: Path, block: str, lines: Callable[[], list[str]]) -> None:
    text = (repository / "docs/economics.md").read_text()
    shown = text.split(f"<!-- {block} -->\n")[1].split("\n<!-- end -->")[0]
    assert shown.splitlines() == lines(), "run `python benchmarks/economics.py --write`"


def test_the_table_of_chains_is_that_of_the_presets() -> None:
    rows = [row.strip("| ").split(" | ") for row in command.chain_lines()[2:]]
    expected = [
        [name, command.span(chain.inclusion), command.span(chain.censor), command.span(chain.clock_floor)]
        for name, chain in CHAINS.items()
    ]
    assert [[row[0], *row[2:5]] for row in rows] == expected


@pytest.mark.parametrize("name", CHAINS)
def test_the_windows_of_a_chain_are_accepted_there(name: str) -> None:
    windows, chain = command.WINDOWS[name], CHAINS[name]
    sized = amended(params_of(random.Random(0)), slots=64, min_slots=16, inner_steps=500)
    terms = DEVNET if windows.challenge < MAINNET.challenge_seconds else MAINNET
    preset = {**asdict(terms), "step_seconds": Seconds(min(terms.step_seconds, windows.clock // 4))}
    params = amended(
        sized, **preset | {
            "clock_seconds": windows.clock, "challenge_seconds": windows.challenge, "answer_seconds": windows.answer,
        },
    )  # fmt: skip
    check_params(params, windows.unbonding, chain)
    with pytest.raises(ChainError, match="clock"):
        check_params(amended(params, clock_seconds=Seconds(chain.clock_floor - 1)), windows.unbonding, chain)
    assert windows.answer > chain.censor, "an answer that is held back is in time"
    assert windows.challenge > chain.censor + windows.clock or chain.censor == 0, "as is a challenge"


def test_a_time_in_words() -> None:
    assert [command.span(n) for n in (0, 59, 43_296, 86_448)] == ["-", "59 s", "12 h 1 min 36 s", "1 d 48 s"]
