"""The verifier market, rule by rule; whoever is honest keeps its stake and every duty ends, in random seasons."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.protocol.errors import ChainError, FundsError
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ZERO_ADDRESS, ClaimStatus, JobStatus, Phase
from lockstep.protocol.market import draws
from lockstep.protocol.market.types import BURN, AuditStatus, DutyStatus, Outcome, Standing
from lockstep.protocol.types import Address, AuditId, Digest, StateRoot
from tests.support.auditing import (
    ANYONE,
    CARTEL,
    CHALLENGER,
    COPYING,
    FUNDS,
    HONEST,
    HONEST_TOO,
    LAZY,
    LOOKERS,
    PARAMS,
    SILENT,
    STEPS,
    WORKERS,
    Season,
    Stage,
    chain_of,
)
from tests.support.params import amended

FEE, STAKE = PARAMS.role.witness_fee, PARAMS.prices.witness_stake
VECTORS = json.loads((Path(__file__).parents[3] / "vectors/witnesses.json").read_text())


def refused(name: str, act: object, *args: object) -> None:
    with pytest.raises((ChainError, FundsError)) as caught:
        act(*args)  # type: ignore[operator]
    assert caught.value.code.endswith("." + name), f"{caught.value.code} and not {name}"


def one_witness(who: Address, wrong: int | None = None) -> tuple[Stage, AuditId]:
    """A round of three claims, right or wrong from a step on; `who` alone is enrolled, and drawn for one of them."""
    stage = Stage(amended(PARAMS, witnesses=1))
    stage.enrol(who)
    stage.to_revealed(wrong={} if wrong is None else dict.fromkeys(range(3), wrong))
    return stage, stage.draw()


def lagging(who: Address, at_least: int, wrong: int) -> tuple[Stage, AuditId]:
    """As `one_witness`, in the first chain's luck that looks at least so far."""
    for luck in range(64):
        stage = Stage(amended(PARAMS, witnesses=1))
        stage.chains[ANYONE] = chain_of(bytes([luck]))
        stage.chains[who] = chain_of(b"luck" + bytes([luck]))
        stage.witnesses.enrol(stage.block, who, stage.job, stage.chains[who][0])
        stage.to_revealed(wrong=dict.fromkeys(range(3), wrong))
        audit = stage.draw()
        if stage.step(audit, 0) >= at_least:
            return stage, audit
    raise AssertionError("no chain looks that far")


# -- enrolling, leaving


def test_enrolling_locks_the_stake_and_retiring_frees_it() -> None:
    stage = Stage()
    stage.enrol(HONEST)
    assert stage.market.books.free[HONEST] == FUNDS - STAKE
    refused("AlreadyDone", stage.enrol, HONEST)
    refused("NotWitness", stage.witnesses.retire, stage.block, LAZY, stage.job)
    stage.witnesses.retire(stage.block, HONEST, stage.job)
    assert stage.market.books.free[HONEST] == FUNDS
    stage.enrol(HONEST)
    assert stage.witnesses.lists[stage.job] == (HONEST,)


def test_one_that_retires_with_a_duty_open_keeps_its_stake_locked_until_it_closes() -> None:
    stage, audit = one_witness(HONEST)
    stage.witnesses.retire(stage.block, HONEST, stage.job)
    assert stage.market.books.free[HONEST] == FUNDS - STAKE
    stage.commit(audit, 0, stage.seen(audit, 0))
    stage.reveal(audit, 0, stage.seen(audit, 0))
    stage.to_lead()
    stage.to_final()
    assert stage.settle(audit, 0) == Outcome.PAID
    assert stage.market.books.free[HONEST] == FUNDS
    assert stage.market.books.credits[HONEST] == FEE


def test_the_last_of_the_list_takes_the_place_of_one_that_leaves() -> None:
    stage = Stage()
    stage.enrol(HONEST, LAZY, COPYING)
    stage.witnesses.retire(stage.block, HONEST, stage.job)
    assert stage.witnesses.lists[stage.job] == (COPYING, LAZY)
    stage.check()


# -- drawing


def test_a_beacon_is_a_block_after_the_call_that_fixed_it() -> None:
    stage = Stage()
    stage.enrol(*LOOKERS)
    refused("WrongPhase", stage.witnesses.draw, stage.block, stage.job, 0)
    stage.to_revealed()
    stage.witnesses.draw(stage.block, stage.job, 0)
    a = stage.witnesses.audits[stage.audit()]
    assert (a.status, a.beacon_block) == (AuditStatus.DRAWING, stage.block.number + 1)
    refused("TooEarly", stage.witnesses.draw, stage.block, stage.job, 0)
    stage.later(blocks=2)
    stage.witnesses.draw(stage.block, stage.job, 0)
    assert stage.witnesses.audits[stage.audit()].status == AuditStatus.DRAWN
    refused("AlreadyDone", stage.witnesses.draw, stage.block, stage.job, 0)


def test_the_list_stands_still_until_the_draw() -> None:
    stage = Stage()
    stage.enrol(HONEST, LAZY)
    stage.to_revealed()
    stage.witnesses.draw(stage.block, stage.job, 0)
    refused("TooEarly", stage.enrol, COPYING)
    refused("TooEarly", stage.witnesses.retire, stage.block, LAZY, stage.job)
    stage.later(blocks=2)
    stage.enrol(COPYING)
    assert COPYING not in {d.account for d in stage.duties(stage.audit()).values()}, "who comes later is not drawn"
    assert len(stage.duties(stage.audit())) == 2, "the draw came first"


def test_a_round_that_nobody_asks_to_draw_in_time_has_no_audit() -> None:
    stage = Stage()
    stage.enrol(HONEST)
    stage.to_revealed()
    refused("WindowClosed", stage.witnesses.publish, stage.block, WORKERS[0], stage.job, 0, 0)
    stage.later(int(PARAMS.role.attest_seconds))
    refused("WrongPhase", stage.witnesses.draw, stage.block, stage.job, 0)
    stage.witnesses.publish(stage.block, WORKERS[0], stage.job, 0, 0)


def test_a_round_that_starts_again_is_audited_anew() -> None:
    stage = Stage()
    stage.enrol(HONEST)
    stage.to_revealed(0)
    merge = stage.to_lead(0)
    stage.to_revealed(1)
    stage.witnesses.draw(stage.block, stage.job, 1)
    before = stage.audit(1)
    stage.convict(merge, 1)
    stage.later(blocks=2)
    stage.enrol(LAZY)
    assert stage.witnesses.audits[before].status == AuditStatus.SKIPPED, "its round is void"
    merger, root = stage.market.merger_of(stage.block, stage.job, 0), StateRoot(keccak(b"right"))
    stage.market.merge(stage.block, merger, stage.job, 0, root, root, 1)
    stage.to_revealed(1)
    assert stage.draw(1) != before
    assert stage.witnesses.audits[stage.audit(1)].status == AuditStatus.DRAWN


def test_nobody_is_drawn_for_its_own_slot_nor_twice_while_others_remain() -> None:
    accounts = [*WORKERS, HONEST, LAZY]
    for luck in range(200):
        beacon = keccak(bytes([luck]))
        drawn: list[Address] = []
        for i, owner in enumerate(WORKERS):
            drawn.append(draws.pick(accounts, beacon, i, owner, drawn))
            assert drawn[-1] != owner
        assert len(set(drawn)) == 3
    assert draws.pick([HONEST], keccak(b""), 1, LAZY, [HONEST]) == HONEST, "twice where nobody else is"
    assert draws.pick([HONEST], keccak(b""), 0, HONEST, []) == ZERO_ADDRESS
    assert draws.pick([], keccak(b""), 0, HONEST, []) == ZERO_ADDRESS


def test_every_account_and_every_slot_is_drawn_alike() -> None:
    accounts = [*LOOKERS]
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


# -- verdicts


def test_an_honest_witness_of_an_honest_claim_is_paid_when_the_round_is_final() -> None:
    stage, audit = one_witness(HONEST)
    refused("WindowClosed", stage.witnesses.publish, stage.block, WORKERS[0], stage.job, 0, 0)
    word = stage.seen(audit, 0)
    refused("AlreadyDone", stage.reveal, audit, 0, word)
    stage.commit(audit, 0, word)
    stage.witnesses.publish(stage.block, WORKERS[0], stage.job, 0, 0)
    stage.reveal(audit, 0, word)
    refused("DutyOpen", stage.settle, audit, 0)
    stage.to_lead()
    refused("DutyOpen", stage.settle, audit, 0)
    stage.to_final()
    assert stage.settle(audit, 0) == Outcome.PAID
    refused("AlreadyDone", stage.settle, audit, 0)
    assert stage.wealth(HONEST) == FUNDS + FEE
    assert stage.market.jobs[stage.job].paid == 3 * PARAMS.role.slot_price + PARAMS.merge.price + FEE


def test_commits_end_early_once_every_duty_has_committed() -> None:
    stage = Stage()
    stage.enrol(HONEST, HONEST_TOO)
    stage.to_revealed()
    audit = stage.draw()
    stage.commit(audit, 0, stage.seen(audit, 0))
    refused("TooEarly", stage.reveal, audit, 0, stage.seen(audit, 0))
    stage.commit(audit, 1, stage.seen(audit, 1))
    a = stage.witnesses.audits[audit]
    assert (a.commit_ends, a.reveal_ends) == (stage.block.time, stage.block.time + 2 * PARAMS.windows.audit_seconds)
    stage.reveal(audit, 0, stage.seen(audit, 0))


def test_a_preimage_of_ones_own_choice_is_refused() -> None:
    stage, audit = one_witness(HONEST)
    chosen = replace(stage.seen(audit, 0), preimage=keccak(b"chosen for its t*"))
    stage.commit(audit, 0, chosen)
    refused("PreimageWrong", stage.reveal, audit, 0, chosen)


def test_preimages_may_be_spent_in_any_order() -> None:
    stage = Stage(amended(PARAMS, witnesses=3))
    stage.enrol(HONEST)
    stage.to_revealed()
    audit = stage.draw()
    assert [d.serial for d in stage.duties(audit).values()] == [1, 2, 3]
    for i in range(3):
        stage.commit(audit, i, stage.seen(audit, i))
    for i in (1, 0, 2):
        stage.reveal(audit, i, stage.seen(audit, i))
    assert stage.witnesses.witnesses[stage.job, HONEST].spent == 3


def test_a_lazy_witness_can_neither_agree_nor_gain_by_differing() -> None:
    stage, audit = one_witness(LAZY)
    garbage = stage.word(audit, 0, StateRoot(keccak(b"garbage")), agrees=True)
    stage.commit(audit, 0, garbage)
    refused("ProofInvalid", stage.reveal, audit, 0, garbage)
    stage.reveal(audit, 0, replace(garbage, agrees=False))
    stage.to_lead()
    stage.to_final()
    assert stage.settle(audit, 0) == Outcome.FINED, "it differed, and the claim stands"
    assert stage.wealth(LAZY) == FUNDS - FEE
    assert stage.market.books.credits[BURN] == FEE
    assert stage.witnesses.lists[stage.job] == (), "it is drawn no more"


def test_a_copied_commitment_cannot_be_opened() -> None:
    stage = Stage(amended(PARAMS, witnesses=4))
    stage.enrol(HONEST, COPYING)
    stage.to_revealed()
    audit = stage.draw()
    mine = next(i for i, d in stage.duties(audit).items() if d.account == COPYING)
    theirs = next(i for i, d in stage.duties(audit).items() if d.account == HONEST)
    for i, duty in stage.duties(audit).items():
        if duty.account == HONEST:
            stage.commit(audit, i, stage.seen(audit, i))
    copied = stage.witnesses.duties[audit, theirs].commitment
    for i, duty in stage.duties(audit).items():
        if duty.account == COPYING:
            stage.witnesses.commit(stage.block, COPYING, audit, i, copied)
    word = stage.seen(audit, theirs)
    stage.reveal(audit, theirs, word)
    refused("CommitmentMismatch", stage.reveal, audit, mine, word)
    stage.later(2 * int(PARAMS.windows.audit_seconds))
    assert stage.settle(audit, mine) == Outcome.FINED


@pytest.mark.parametrize("commits", [False, True])
def test_a_silent_witness_pays_the_fee_and_is_drawn_no_more(commits: bool) -> None:
    stage, audit = one_witness(SILENT)
    if commits:
        stage.commit(audit, 0, stage.seen(audit, 0))
    refused("DutyOpen", stage.settle, audit, 0)
    stage.later((2 if commits else 1) * int(PARAMS.windows.audit_seconds))
    refused("WindowClosed", stage.reveal if commits else stage.commit, audit, 0, stage.seen(audit, 0))
    assert stage.settle(audit, 0) == Outcome.FINED
    assert stage.wealth(SILENT) == FUNDS - FEE
    assert stage.market.books.free[SILENT] == FUNDS - FEE, "the rest of the stake is free"
    assert stage.witnesses.lists[stage.job] == ()


def test_a_witness_that_attested_a_wrong_step_loses_its_stake() -> None:
    stage, audit = lagging(CARTEL, 2, wrong=2)
    stage.commit(audit, 0, stage.said(audit, 0))
    stage.reveal(audit, 0, stage.said(audit, 0))
    refused("DutyOpen", stage.settle, audit, 0)
    stage.convict(stage.trace_of(audit, 0).claim, 2)
    assert stage.settle(audit, 0) == Outcome.SLASHED
    assert stage.wealth(CARTEL) == FUNDS - STAKE
    assert stage.market.books.credits[BURN] >= STAKE
    stage.check()
    refused("NotWitness", stage.witnesses.retire, stage.block, CARTEL, stage.job)


def test_a_witness_is_not_answerable_for_steps_behind_its_own() -> None:
    stage, audit = one_witness(HONEST, wrong=STEPS)
    if stage.step(audit, 0) == STEPS:
        pytest.fail("choose another chain: this one looks to the end")
    stage.commit(audit, 0, stage.seen(audit, 0))
    stage.reveal(audit, 0, stage.seen(audit, 0))
    claim = stage.trace_of(audit, 0).claim
    stage.convict(claim, STEPS)
    stage.to_lead()
    stage.to_final()
    assert stage.settle(audit, 0) == Outcome.PAID, "what it said is true"


def _other(stage: Stage, claim: bytes) -> int:
    return next(s for s in range(3) if stage.claim(s) != claim)


def test_a_silent_defender_costs_no_witness_its_stake() -> None:
    stage, audit = one_witness(HONEST)
    stage.commit(audit, 0, stage.seen(audit, 0))
    stage.reveal(audit, 0, stage.seen(audit, 0))
    stage.convict(stage.trace_of(audit, 0).claim, 0)
    stage.to_lead()
    stage.to_final()
    assert stage.settle(audit, 0) == Outcome.VOID
    assert stage.wealth(HONEST) == FUNDS


def test_a_witness_that_differs_is_paid_if_the_claim_is_convicted() -> None:
    stage, audit = lagging(HONEST, 2, wrong=2)
    word = stage.seen(audit, 0)
    assert not word.agrees
    stage.commit(audit, 0, word)
    stage.convict(stage.trace_of(audit, 0).claim, 0)
    stage.reveal(audit, 0, word)
    refused("DutyOpen", stage.settle, audit, 0)
    stage.to_lead()
    stage.to_final()
    assert stage.settle(audit, 0) == Outcome.PAID
    assert stage.wealth(HONEST) == FUNDS + FEE


def test_a_failed_round_pays_no_witness_and_fines_none() -> None:
    stage = Stage(amended(PARAMS, witnesses=1, min_slots=3))
    stage.enrol(HONEST)
    stage.to_revealed()
    audit = stage.draw()
    stage.commit(audit, 0, stage.seen(audit, 0))
    stage.reveal(audit, 0, stage.seen(audit, 0))
    stage.convict(stage.claim(_other(stage, stage.trace_of(audit, 0).claim)), 0)
    stage.later(int(PARAMS.role.attest_seconds))
    stage.freeze()
    assert stage.settle(audit, 0) == Outcome.VOID
    assert stage.wealth(HONEST) == FUNDS


def test_a_slashed_witness_earns_nothing_with_its_other_duties() -> None:
    stage = Stage(amended(PARAMS, witnesses=3))
    stage.enrol(CARTEL)
    stage.to_revealed(wrong={0: 1})
    audit = stage.draw()
    for i in range(3):
        stage.commit(audit, i, stage.said(audit, i))
    for i in range(3):
        stage.reveal(audit, i, stage.said(audit, i))
    stage.convict(stage.claim(0), 1)
    liar = next(i for i, d in stage.duties(audit).items() if d.slot == 0)
    assert stage.settle(audit, liar) == Outcome.SLASHED
    assert stage.witnesses.witnesses[stage.job, CARTEL].standing == Standing.SLASHED
    refused("AlreadyDone", stage.enrol, CARTEL)
    stage.to_lead()
    stage.to_final()
    for i in set(range(3)) - {liar}:
        assert stage.settle(audit, i) == Outcome.VOID
    assert stage.wealth(CARTEL) == FUNDS - STAKE
    assert (stage.job, CARTEL) not in stage.witnesses.witnesses, "it may come again, with a new stake"


def test_a_fine_never_takes_more_than_the_stake_that_is_left() -> None:
    stage = Stage(amended(PARAMS, witnesses=24))
    stage.enrol(SILENT)
    stage.to_revealed()
    audit = stage.draw()
    stage.later(int(PARAMS.windows.audit_seconds))
    assert [stage.settle(audit, i) for i in range(24)] == [Outcome.FINED] * 24
    assert stage.wealth(SILENT) == FUNDS - 1_003
    stage.check()


# -- claims that carry

CARRYING = amended(PARAMS, witnesses=1, carry_period=2, max_lead=3, payload_depth=3)
ANSWER, CLOCK = int(CARRYING.windows.answer_seconds), int(CARRYING.windows.clock_seconds)


def carrying(who: Address, **changed: int) -> tuple[Stage, AuditId]:
    """A second round of claims that start from the carries of the first; `who` is drawn for one of them."""
    stage = Stage(amended(CARRYING, **changed))
    stage.enrol(who)
    stage.to_revealed(0)
    stage.to_lead(0)
    stage.to_revealed(1, carries=True)
    return stage, stage.draw(1)


def demanded(stage: Stage, audit: AuditId) -> Digest:
    """The carry that the witness's claim starts from is demanded."""
    slot = stage.witnesses.duties[audit, 0].slot
    return stage.demands.carry_unavailable(stage.block, CHALLENGER, stage.job, 1, slot, 0)


def test_a_silent_witness_of_a_claim_that_carries_pays_the_fee_once_that_is_merged() -> None:
    stage, audit = carrying(SILENT)
    stage.later(int(PARAMS.windows.audit_seconds))
    refused("DutyOpen", stage.settle, audit, 0)
    stage.freeze(1)
    assert stage.settle(audit, 0) == Outcome.FINED
    assert stage.wealth(SILENT) == FUNDS - FEE


@pytest.mark.parametrize("commits", [False, True])
def test_nobody_owes_a_word_on_a_claim_that_was_left_out_for_its_carry(commits: bool) -> None:
    stage, audit = carrying(SILENT)
    demand = demanded(stage, audit)
    if commits:
        stage.commit(audit, 0, stage.seen(audit, 0))
    refused("TooEarly", stage.demands.settle, stage.block, demand)
    stage.later((2 if commits else 1) * int(PARAMS.windows.audit_seconds))
    refused("DutyOpen", stage.settle, audit, 0)
    stage.freeze(1)
    assert stage.market.status(stage.trace_of(audit, 0).claim) == ClaimStatus.EXCLUDED
    assert stage.settle(audit, 0) == Outcome.VOID
    assert stage.wealth(SILENT) == FUNDS
    assert stage.witnesses.lists[stage.job] == (SILENT,), "it is drawn again"
    assert stage.market.jobs[stage.job].fees_due == 0
    stage.check()


def test_who_agrees_with_a_claim_whose_carry_others_are_not_shown_neither_gains_nor_loses() -> None:
    stage, audit = carrying(HONEST)
    demand = demanded(stage, audit)
    stage.commit(audit, 0, stage.seen(audit, 0))
    stage.reveal(audit, 0, stage.seen(audit, 0))
    stage.later(ANSWER + 1)
    stage.to_lead(1)
    stage.later(CLOCK)
    stage.demands.settle(stage.block, demand)
    stage.later(int(PARAMS.windows.challenge_seconds))
    for r in range(2):
        stage.market.finalize(stage.block, stage.job, r)
    assert stage.settle(audit, 0) == Outcome.VOID, "convicted without a proof of where it is wrong"
    assert stage.wealth(HONEST) == FUNDS


def test_who_starts_from_a_carry_and_shows_it_to_nobody_is_convicted() -> None:
    stage, audit = carrying(SILENT)
    claim, worker = stage.trace_of(audit, 0).claim, WORKERS[stage.witnesses.duties[audit, 0].slot]
    demand = demanded(stage, audit)
    stage.later(ANSWER + 1)
    stage.to_lead(1)
    stage.later(int(PARAMS.windows.challenge_seconds))
    stage.market.finalize(stage.block, stage.job, 0)
    refused("GamesOpen", stage.market.finalize, stage.block, stage.job, 1)
    stage.demands.settle(stage.block, demand)
    assert stage.market.status(claim) == ClaimStatus.CONVICTED
    assert stage.market.claims[claim].convicted_at == 0
    stake = CARRYING.role.slot_stake
    assert stage.wealth(worker) == FUNDS + CARRYING.role.slot_price - stake, "paid for the first round alone"
    assert stage.wealth(CHALLENGER) == FUNDS + 30 * stake // 100, "a challenger's prize, and its bond"
    stage.market.finalize(stage.block, stage.job, 1)
    refused("DemandClosed", stage.demands.settle, stage.block, demand)
    stage.check()


def test_a_carry_that_nobody_shows_convicts_though_its_round_failed() -> None:
    stage, audit = carrying(SILENT, min_slots=3)
    claim = stage.trace_of(audit, 0).claim
    demand = demanded(stage, audit)
    stage.later(ANSWER + 1)
    stage.freeze(1)
    assert stage.market.rounds[stage.job, 1].phase == Phase.FAILED
    stage.later(CLOCK)
    stage.demands.settle(stage.block, demand)
    assert stage.market.status(claim) == ClaimStatus.CONVICTED
    assert stage.settle(audit, 0) == Outcome.VOID
    stage.check()


def test_a_demand_for_the_carry_of_a_claim_that_was_convicted_meanwhile_is_no_game() -> None:
    stage, audit = carrying(SILENT)
    claim = stage.trace_of(audit, 0).claim
    demand = demanded(stage, audit)
    stage.convict(claim, 1)
    stage.later(ANSWER + CLOCK + 1)
    stage.demands.settle(stage.block, demand)
    assert stage.market.claims[claim].convicted_at == 1
    assert stage.market.books.free[CHALLENGER] == FUNDS, "its bond came back"
    assert stage.market.rounds[stage.job, 1].open_games == 0
    stage.check()


@pytest.mark.parametrize("agrees", [False, True])
def test_who_looked_at_a_claim_that_falls_with_its_carry_is_paid(agrees: bool) -> None:
    stage, audit = carrying(HONEST)
    slot = stage.witnesses.duties[audit, 0].slot
    seen = stage.seen(audit, 0)
    word = seen if agrees else stage.word(audit, 0, StateRoot(keccak(b"its carry cannot be computed")), agrees=False)
    stage.commit(audit, 0, word)
    stage.reveal(audit, 0, word)
    stage.to_lead(1)
    stage.convict(stage.claim(slot, 0), 1)
    stage.later(int(PARAMS.windows.challenge_seconds))
    for r in range(2):
        stage.market.finalize(stage.block, stage.job, r)
    assert stage.market.status(stage.claim(slot, 1)) == ClaimStatus.VOID
    assert stage.settle(audit, 0) == Outcome.PAID
    assert stage.wealth(HONEST) == FUNDS + FEE
    stage.check()


# -- vectors, shared with tests/forge/Draws.t.sol


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("0x"))


@pytest.mark.parametrize("case", range(len(VECTORS["draws"])))
def test_draws_are_those_of_the_vectors(case: int) -> None:
    v = VECTORS["draws"][case]
    beacon = _bytes(v["beacon"])
    assert beacon == draws.beacon_of(_bytes(v["blockHash"]), AuditId(_bytes(v["audit"])))
    order = draws.slot_order(beacon, v["slots"], v["count"])
    assert order == v["order"]
    drawn: list[Address] = []
    for i, owner in enumerate(v["owners"]):
        drawn.append(draws.pick(v["accounts"], beacon, i, owner, drawn))
    assert drawn == v["drawn"]


@pytest.mark.parametrize("case", range(len(VECTORS["words"])))
def test_words_are_those_of_the_vectors(case: int) -> None:
    v = VECTORS["words"][case]
    preimage = _bytes(v["preimage"])
    assert draws.step_of(preimage, _bytes(v["beacon"]), v["i"], v["transitions"]) == v["t"]
    bound = draws.commitment(
        _bytes(v["claim"]), v["account"], StateRoot(_bytes(v["state"])), preimage, _bytes(v["salt"])
    )
    assert bound == _bytes(v["commitment"])
    assert draws.chained(preimage, v["links"]) == _bytes(v["head"])


# -- random seasons


def seasons(seeds: range) -> Counter[tuple[str, Outcome]]:
    """Plays them, checks each, and counts how duties ended."""
    outcomes: Counter[tuple[str, Outcome]] = Counter()
    names = dict(zip(LOOKERS, ("honest", "honest", "lazy", "copying", "cartel", "silent"), strict=True))
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
        if account in (HONEST, HONEST_TOO):
            assert outcome in (Outcome.PAID, Outcome.VOID), f"{name}: an honest witness was {outcome.name}"
        if outcome == Outcome.SLASHED:
            wrong = stage.trace_of(audit, i).wrong_from
            assert (wrong or STEPS + 1) <= stage.witnesses.duties[audit, i].t, f"{name}: a true word was slashed"
    for honest in (HONEST, HONEST_TOO):
        assert stage.wealth(honest) == FUNDS + won[honest] * stage.params.role.witness_fee, name
    for liar in (LAZY, COPYING, CARTEL, SILENT):
        assert stage.wealth(liar) <= FUNDS + won[liar] * stage.params.role.witness_fee, name


@pytest.mark.uncounted
def test_in_random_seasons_honest_witnesses_lose_nothing_and_every_duty_ends() -> None:
    outcomes = seasons(range(32, 40))
    due = {("honest", Outcome.PAID), ("lazy", Outcome.FINED), ("cartel", Outcome.SLASHED)}
    assert due <= set(outcomes), outcomes


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
def test_in_hundreds_of_random_seasons_honest_witnesses_lose_nothing(batch: int) -> None:
    outcomes = seasons(range(1_000 * batch, 1_000 * batch + 100))
    assert set(Outcome) == {outcome for _, outcome in outcomes}, "every end is reached"
