"""The draws of witnesses; whoever is honest keeps its stake and every duty ends, in random seasons.

The rules one by one: tests/rules/table.py.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ZERO_ADDRESS, JobStatus
from lockstep.protocol.market import draws, ids
from lockstep.protocol.market.types import DutyStatus, Outcome
from lockstep.protocol.types import Address, AuditId, StateRoot
from tests.rules.vectors import worlds
from tests.support.auditing import (
    ANYONE,
    CARTEL,
    COPYING,
    FUNDS,
    HONEST,
    HONEST_TOO,
    LAZY,
    LISTED,
    LOOKERS,
    SILENT,
    STEPS,
    WORKERS,
    Season,
)

VECTORS = json.loads((Path(__file__).parents[3] / "vectors/witnesses.json").read_text())


def test_nobody_is_drawn_for_its_own_slot_nor_twice() -> None:
    accounts = [*WORKERS, HONEST, LAZY]
    for luck in range(200):
        beacon = keccak(bytes([luck]))
        drawn: list[Address] = []
        for i, owner in enumerate(WORKERS):
            drawn.append(draws.pick(accounts, beacon, i, owner, drawn))
            assert drawn[-1] != owner
        assert len(set(drawn)) == 3
    assert draws.pick([HONEST], keccak(b""), 0, LAZY, []) == HONEST
    assert draws.pick([HONEST], keccak(b""), 1, LAZY, [HONEST]) == ZERO_ADDRESS, "one stake, one word"
    assert draws.pick([HONEST], keccak(b""), 0, HONEST, []) == ZERO_ADDRESS
    assert draws.pick([], keccak(b""), 0, HONEST, []) == ZERO_ADDRESS


def test_every_account_and_every_slot_is_drawn_alike() -> None:
    accounts = [*LOOKERS[:6]]
    picked = Counter(draws.pick(accounts, keccak(b"%d" % k), 0, ANYONE, []) for k in range(6_000))
    assert all(880 < picked[one] < 1_120 for one in accounts), picked
    first = Counter(draws.slot_order(keccak(b"%d" % k), [0, 2, 5, 6], 2)[0] for k in range(4_000))
    assert all(880 < first[s] < 1_120 for s in (0, 2, 5, 6)), first


def test_a_slot_is_looked_at_twice_only_after_every_slot_was_once() -> None:
    for luck in range(100):
        order = draws.slot_order(keccak(bytes([luck])), [1, 3, 4], 5)
        assert sorted(order[:3]) == [1, 3, 4]
        assert order[3:] == order[:2]
    assert draws.slot_order(keccak(b""), [], 4) == []


def test_t_star_reaches_every_step() -> None:
    seen = Counter(draws.step_of(keccak(b"%d" % k), keccak(b"beacon"), 0, STEPS) for k in range(5_000))
    assert sorted(seen) == list(range(1, STEPS + 1))
    assert min(seen.values()) > 850


@pytest.mark.parametrize("paid", [2, 1, 0])
def test_a_draw_has_no_more_duties_than_the_job_can_pay(paid: int) -> None:
    world = worlds()["two enrolled for two"].fork()
    job, p = world.state.jobs[world.job], world.params
    # The books of no history say so little: rounds that run again have their fees back.
    rounds = p.schedule.rounds * (p.role.slots * p.role.slot_price + p.merge.price)
    poor = replace(job, escrow=rounds + paid * p.role.witness_fee + p.role.witness_fee - 1)
    world.state = replace(world.state, jobs=world.state.jobs.with_({world.job: poor}))
    world.do("poor", "witnesses.draw", world.job, 0)
    audit = ids.audit_id(world.job, 0, 0)
    assert world.state.audits[audit].duties == paid
    drawn = [world.state.duties[audit, i].status for i in range(2)]
    assert drawn == [DutyStatus.DRAWN] * paid + [DutyStatus.NONE] * (2 - paid)
    assert world.round().witnesses == paid
    assert world.state.jobs[world.job].fees_due == paid * p.role.witness_fee


# -- vectors, shared with tests/forge/Draws.t.sol


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


def test_draws_are_those_of_the_vectors() -> None:
    for v in VECTORS["draws"]:
        beacon = _bytes(v["beacon"])
        assert beacon == draws.beacon_of(_bytes(v["blockHash"]), AuditId(_bytes(v["audit"])))
        assert draws.slot_order(beacon, v["slots"], v["count"]) == v["order"]
        drawn: list[Address] = []
        for i, owner in enumerate(v["owners"]):
            drawn.append(draws.pick(v["accounts"], beacon, i, owner, drawn))
        assert drawn == v["drawn"]


def test_words_are_those_of_the_vectors() -> None:
    for v in VECTORS["words"]:
        preimage = _bytes(v["preimage"])
        assert draws.step_of(preimage, _bytes(v["beacon"]), v["i"], v["transitions"]) == v["t"]
        assert draws.seen_of(v["t"], v["transitions"]) == v["u"]
        assert draws.leaf_word(preimage, _bytes(v["beacon"]), v["i"]) == int(v["leafWord"], 16)
        state, leaf, salt = StateRoot(_bytes(v["state"])), _bytes(v["leaf"]), _bytes(v["salt"])
        bound = draws.commitment(_bytes(v["claim"]), v["account"], state, leaf, preimage, salt)
        assert bound == _bytes(v["commitment"])
        assert draws.chained(preimage, v["links"]) == _bytes(v["head"])


# -- random seasons


def seasons(seeds: range) -> Counter[tuple[str, Outcome]]:
    """Plays them, checks each, and counts how duties ended."""
    outcomes: Counter[tuple[str, Outcome]] = Counter()
    names = dict(zip(LOOKERS, ("honest", "honest", "lazy", "copying", "cartel", "silent", "listed"), strict=True))
    for seed in seeds:
        season = Season(random.Random(seed))
        season.play()
        _check_season(season, f"seed {seed}")
        outcomes.update((names.get(account, "worker"), outcome) for account, outcome, *_ in season.outcomes)
    return outcomes


def _check_season(season: Season, name: str) -> None:
    stage = season.stage
    job = stage.market.jobs[stage.job]
    assert job.status == JobStatus.DONE, name
    assert job.escrow == job.paid + job.refunded, f"{name}: escrow is paid or refunded"
    assert all(d.status == DutyStatus.CLOSED for d in stage.witnesses.duties.values()), name
    won = Counter(account for account, outcome, *_ in season.outcomes if outcome == Outcome.PAID)
    for account, outcome, audit, i in season.outcomes:
        if account == LISTED:
            assert outcome in (Outcome.FINED, Outcome.VOID), f"{name}: a list of roots was enough"
        if account in (HONEST, HONEST_TOO):
            assert outcome in (Outcome.PAID, Outcome.VOID), f"{name}: an honest witness was {outcome.name}"
        if outcome == Outcome.SLASHED:
            wrong = stage.trace_of(audit, i).wrong_from
            assert (wrong or STEPS + 1) <= stage.witnesses.duties[audit, i].t, f"{name}: a true word was slashed"
    for honest in (HONEST, HONEST_TOO):
        assert stage.wealth(honest) == FUNDS + won[honest] * stage.params.role.witness_fee, name
    for liar in (LAZY, COPYING, CARTEL, SILENT, LISTED):
        assert stage.wealth(liar) <= FUNDS + won[liar] * stage.params.role.witness_fee, name


@pytest.mark.slow
@pytest.mark.uncounted
def test_in_random_seasons_honest_witnesses_lose_nothing_and_every_duty_ends() -> None:
    outcomes = seasons(range(56, 64))
    due = {
        ("honest", Outcome.PAID), ("lazy", Outcome.FINED), ("listed", Outcome.FINED), ("cartel", Outcome.SLASHED),
    }  # fmt: skip
    assert due <= set(outcomes), outcomes


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
def test_in_hundreds_of_random_seasons_honest_witnesses_lose_nothing(batch: int) -> None:
    outcomes = seasons(range(1_000 * batch, 1_000 * batch + 100))
    assert set(Outcome) == {outcome for _, outcome in outcomes}, "every end is reached"
