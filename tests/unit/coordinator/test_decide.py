"""What the coordinator decides is always allowed, and brings every job to its end."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import strategies as st

from coordinator.decide import (
    AggregatorJob,
    AggregatorRound,
    Decider,
    decide,
    receipts_due,
    stake_due,
    wanted_payloads,
)
from lockstep.market.acts import Action, ActionKind
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import ZERO_ADDRESS, ClaimStatus, JobState, JobStatus, Phase, Receipt, Round
from lockstep.protocol.market import ids, views
from lockstep.protocol.market.calls import MarketCall
from lockstep.protocol.market.receipts import Report
from lockstep.protocol.reverts import Reverted
from lockstep.protocol.types import MERGE_SLOT, Address, Seconds, Wei
from tests.support.constant import ConstantClaim, Lie
from tests.support.market.history import History
from tests.support.market.twin import ACCOUNTS, AT, CHAIN_ID, NAMES, signature
from tests.support.market.wander import params_of
from tests.support.params import amended

RICH = Wei(10**9)
SEEN = tuple(Report)
DEMANDS = 2
"""Payloads of a round that the coordinator demands, at most."""
UNREVEALED = (ClaimStatus.NONE, ClaimStatus.JOINED, ClaimStatus.COMMITTED)
FREE = {"witness_fee": 0, "witness_stake": 0, "audit_seconds": 0}
"""A job that draws nobody."""


def handed(slots: Iterable[int]) -> dict[int, int]:
    """These slots' owners have handed over receipts that name everybody."""
    return dict.fromkeys(slots, (1 << 8) - 1)


class Coordinated(History):
    """A market at random in which the aggregator of the first job does what `decide` says."""

    decided: int = 0
    batches: int = 0
    """Of receipts."""
    demands: int = 0

    @property
    def me(self) -> Address:
        return self.params.merge.aggregator

    def poll(self) -> tuple[AggregatorJob, Decider]:
        """What chain and storage would tell the coordinator now."""
        s, j, p = self.state, self.state.jobs[self.job], self.params
        beyond = [r for r in range(j.started, p.schedule.rounds) if s.rounds[self.job, r].phase == Phase.VOID]
        numbers = [*range(max(0, j.settled - 1), j.started), *beyond]
        balance = min(s.balances[self.me], s.allowances[self.me, s.at.vault])
        decider = Decider(
            self.me, self.block.time, self.block.number, Wei(s.free[self.me]), Wei(balance), Wei(s.credits[self.me]),
            DEMANDS,
        )  # fmt: skip
        seen = tuple(self._view(r) for r in numbers)
        return AggregatorJob(p, j, s.barred[self.job, self.me], seen, views.bond(s, p)), decider

    def obey(self) -> None:
        """Decides, and does all of it in the next block."""
        self.later(2)
        seen, decider = self.poll()
        acts = decide(seen, decider)
        for act in acts:
            if act.kind == ActionKind.MERGE and self._is_false(act.round):
                continue
            said = self.sends(self._call(act))
            waits = act.kind == ActionKind.FREEZE and self._asked(act.round)
            assert waits or not isinstance(said, Reverted), f"{act} in {seen.rounds}"
        self.decided += len(acts)

    def _asked(self, r: int) -> bool:
        """A demand for a payload of the round may still be answered: the contract says when to come again."""
        subjects = {self.claim(k, r) for k in self._slots()}
        return any(d.subject in subjects and d.deadline >= self.block.time for d in self.state.demands.values())

    def _is_false(self, r: int) -> bool:
        """The round is merged already, with outputs that nobody who computes them gets."""
        ro, body = self.round(r), ConstantClaim.of_merge(self.round(r).merge_in, Lie.NONE).body
        return ro.phase == Phase.LEAD and (body.out, body.out2) != (ro.next_shared, ro.next_outer)

    def _slots(self) -> range:
        return range(self.params.role.slots)

    def _view(self, r: int) -> AggregatorRound:
        s, stored = self.state, self.round(r)
        phase = views.phase(s, self.block, self.job, r)
        merging = phase == Phase.MERGING
        unbacked = phase == Phase.LEAD and r + stored.backed < s.jobs[self.job].started
        lock = s.locks[stored.merge_claim]
        return AggregatorRound(
            r,
            phase,
            stored,
            tuple((k, SEEN[keccak(self.claim(k, r))[0] % 3]) for k in self._slots() if self._revealed(r, k)),
            self._given(r),
            views.merger_of(s, self.block, self.job, r) if merging or unbacked else ZERO_ADDRESS,
            merging and views.turn(self.params, stored, self.block.time) > stored.accepted,
            lock.amount > 0 and lock.account == self.me,
            frozenset(k for k in self._slots() if s.claims[self.claim(k, r)].status == ClaimStatus.CONVICTED),
            frozenset(k for k in self._slots() if self._has_demanded(r, k)),
        )

    def _has_demanded(self, r: int, k: int) -> bool:
        return any(d.subject == self.claim(k, r) and d.asker == self.me for d in self.state.demands.values())

    def _given(self, r: int) -> dict[int, int]:
        """In every other round all owners hand their receipts over at once, in the others half of them do, or none.
        They name every slot but the first."""
        said = {k: keccak(b"given" + self.claim(k, r))[0] % 2 for k in self._slots()}
        given = (k for k, will in said.items() if self._revealed(r, k) and (will or r % 2 == 0))
        return dict.fromkeys(given, self._named)

    @property
    def _named(self) -> int:
        return (1 << self.params.role.slots) - 2

    def _signed(self, r: int, who: int) -> Receipt:
        """By its owner."""
        mask, claim = self._named, self.state.claims[self.claim(who, r)]
        digest = ids.receipt_hash(CHAIN_ID, AT["JobMarket"], self.job, r, self.round(r).attempt, who, mask)
        return Receipt(who, mask, signature(NAMES[claim.worker], digest))

    def _revealed(self, r: int, k: int) -> bool:
        return self.state.claims[self.claim(k, r)].status not in UNREVEALED

    def _call(self, act: Action) -> MarketCall:
        def call(*arguments: object, contract: str = "market") -> MarketCall:
            return self.call(self.me, f"{contract}.{act.kind.value}", *arguments)

        r = act.round
        match act.kind:
            case ActionKind.DEPOSIT:
                return call(act.amount, contract="vault")
            case ActionKind.WITHDRAW:
                return call(contract="vault")
            case ActionKind.FINISH:
                return call(self.job)
            case ActionKind.MERGE:
                made = ConstantClaim.of_merge(self.round(r).merge_in, Lie.NONE)
                attempt = views.merge_attempt(self.state.jobs[self.job], self.round(r).phase)
                self.wanderer.held[ids.claim_id(self.job, r, attempt, MERGE_SLOT)] = made
                return call(self.job, r, made.body.out, made.body.out2, "checkpoint", act.rounds)
            case ActionKind.BACK:
                return call(self.job, r, act.rounds)
            case ActionKind.DEMAND:
                self.demands += 1
                return call(self.job, r, act.slot, 0, contract="demands")
            case ActionKind.ATTEST:
                self.batches += 1
                slots = receipts_due(self._view(r), self.params, self.block.time)
                return call(self.job, r, [self._signed(r, k) for k in sorted(slots)])
            case ActionKind.FREEZE:
                return call(self.job, r, self.wanderer.bodies(self.state, self.job, r))
        return call(self.job, r)

    def works(self) -> None:
        """Workers join, commit and reveal whenever they may; nobody else turns a crank."""
        if self.state.jobs[self.job].started == 0:
            self.sends(self.call("worker-0", "market.startRound", self.job, 0))
        for call in list(self.wanderer._rounds(self.state, self.block)):
            if call.function in ("join", "commit", "reveal"):
                self.sends(call)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(12))
def test_every_decision_is_allowed(seed: int) -> None:
    world = Coordinated.of(seed)
    # A job may come to its end before its coordinator has anything to do: others follow.
    for _ in range(4):
        world.play(150, lambda: world.obey() if world.dice.random() < 0.5 else None)
        if world.decided:
            break
    assert world.decided > 0


@pytest.mark.parametrize("seed", range(6))
def test_with_willing_workers_every_job_ends_paid(seed: int) -> None:
    world = willing(seed)
    job = world.state.jobs[world.job]
    assert job.status == JobStatus.DONE
    assert job.escrow == job.paid + job.refunded
    world.obey()
    assert world.state.credits[world.me] == 0, "what was earned is withdrawn"
    assert world.batches > 0, "receipts were sent"


def test_what_is_not_there_and_left_out_is_demanded_on_the_way() -> None:
    assert willing(0).demands > 0


def willing(seed: int) -> Coordinated:
    """A job that its workers and its coordinator bring to its end."""
    dice = random.Random(seed)
    world = Coordinated(dice=dice)
    for calls in world.wanderer.first_calls(world.state)[:3]:
        world.mine(calls)
    world.create(amended(params_of(dice, ACCOUNTS["aggregator"]), min_slots=1, carry_period=0, witnesses=0, **FREE))
    for _ in range(300):
        world.obey()
        world.works()
        world.later(dice.choice((1, 5, 20)))
        if world.state.jobs[world.job].status == JobStatus.DONE:
            break
    return world


# -- rules, one by one -----------------------------------------------------------------------------------------------

AGGREGATOR, WORKER = ACCOUNTS["aggregator"], ACCOUNTS["worker-0"]
PARAMS = amended(params_of(random.Random(1), AGGREGATOR), rounds=4, max_lead=2, merge_stake=Wei(100), carry_period=0)
DECIDER = Decider(AGGREGATOR, Seconds(1_000), 50, Wei(1_000), RICH, Wei(0))
REPORTS = st.lists(st.sampled_from(SEEN), min_size=1, max_size=8)


def attesting(reports: list[Report], ends: int = 2_000, revealed: int | None = None) -> AggregatorRound:
    stored = Round(revealed=len(reports) if revealed is None else revealed, attest_ends=Seconds(ends))
    return AggregatorRound(0, Phase.ATTESTING, stored, tuple(enumerate(reports)))


def job(*views: AggregatorRound, started: int = 1, settled: int = 0, **changes: object) -> AggregatorJob:
    books = JobState(AGGREGATOR, JobStatus.ACTIVE, started=started, settled=settled)
    seen = AggregatorJob(PARAMS, books, False, views)
    return replace(seen, **changes)  # type: ignore[arg-type]


def test_only_undecided_payloads_of_open_rounds_are_fetched() -> None:
    view = attesting([Report.DECODED, Report.MISSING, Report.UNKNOWN, Report.REFUSED])
    assert wanted_payloads(job(view), DECIDER) == ((0, 1), (0, 2))
    assert wanted_payloads(job(replace(view, phase=Phase.FREEZING)), DECIDER) == ()
    assert wanted_payloads(job(view, barred=True), DECIDER) == (), "a barred aggregator attests nothing"


@pytest.mark.parametrize(
    ("given", "spoke", "now", "due"),
    [
        ({0, 1, 2}, 0b000, 1_000, {0, 1, 2}),
        ({0, 1}, 0b000, 1_000, set()),
        ({0, 1}, 0b000, 1_004, set()),
        ({0, 1}, 0b000, 1_005, {0, 1}),
        ({0, 1}, 0b100, 1_000, {0, 1}),
        ({0, 1, 2}, 0b001, 1_000, {1, 2}),
        ({1}, 0b011, 1_005, set()),
        ({0, 1, 2}, 0b111, 1_000, set()),
        (set(), 0b000, 1_015, set()),
        ({0, 1, 2, 3}, 0b000, 1_000, {0, 1, 2}),
    ],
    ids=[
        "with the last one at once", "one is missing", "a little longer", "a quarter is over", "one sent its own",
        "what was spoken is not sent again", "nothing new", "all have spoken", "nothing is here", "nobody unrevealed",
    ],
)  # fmt: skip
def test_receipts_leave_together_or_when_a_quarter_of_the_window_is_over(
    given: set[int], spoke: int, now: int, due: set[int]
) -> None:
    params = amended(PARAMS, attest_seconds=Seconds(20))
    view = attesting([Report.DECODED, Report.REFUSED, Report.UNKNOWN], ends=1_020)
    view = replace(view, receipts=handed(given), state=replace(view.state, spoke=spoke))
    assert receipts_due(view, params, Seconds(now)) == due
    actions = decide(job(view, params=params), replace(DECIDER, now=Seconds(now)))
    assert (Action(ActionKind.ATTEST, 0) in actions) == bool(due)
    assert Action(ActionKind.ATTEST, 0) not in decide(job(replace(view, phase=Phase.FREEZING), params=params), DECIDER)


LACKING = [Report.DECODED, Report.MISSING, Report.REFUSED, Report.DECODED]


@pytest.mark.parametrize(
    ("said", "now", "due"),
    [
        ({}, 1_000, []),
        ({0: 0b1001, 1: 0b1111, 2: 0b1111, 3: 0b1001}, 1_000, [1, 2]),
        ({0: 0b1011, 1: 0b1111, 2: 0b1111, 3: 0b1001}, 1_000, [2]),
        ({0: 0b0110, 3: 0b0110}, 1_005, []),
        ({0: 0b1001}, 1_004, []),
        ({0: 0b1001}, 1_005, [1, 2]),
    ],
    ids=["nobody spoke", "all leave out two", "half name one", "what is here is not demanded", "kept", "sent"],
)
def test_what_is_not_there_and_receipts_leave_out_is_demanded_before_they_are_sent(
    said: dict[int, int], now: int, due: list[int]
) -> None:
    params = amended(PARAMS, attest_seconds=Seconds(20))
    view, asker = replace(attesting(LACKING, ends=1_020), receipts=said), replace(DECIDER, now=Seconds(now), demands=4)
    seen = job(view, params=params, bond=Wei(10))

    def demanded(seen: AggregatorJob = seen, asker: Decider = asker) -> list[int]:
        return [a.slot for a in decide(seen, asker) if a.kind == ActionKind.DEMAND]

    assert demanded() == due
    actions = [a.kind for a in decide(seen, asker) if a.kind in (ActionKind.DEMAND, ActionKind.ATTEST)]
    assert actions == [ActionKind.DEMAND] * len(due) + [ActionKind.ATTEST] * bool(
        receipts_due(view, params, Seconds(now))
    )
    assert demanded(asker=replace(asker, demands=0)) == [], "if it is told to"
    assert demanded(asker=replace(asker, demands=1)) == due[:1], "so many of a round"
    assert demanded(asker=replace(asker, free=Wei(19))) == due[:1], "as its stake reaches"
    first = replace(view, demanded=frozenset(due[:1]))
    assert demanded(replace(seen, rounds=(first,)), replace(asker, demands=1)) == []
    assert demanded(replace(seen, rounds=(first,))) == due[1:], "once"
    assert demanded(replace(seen, rounds=(replace(view, convicted=frozenset({1})),))) == [s for s in due if s != 1]
    for phase in (Phase.REVEALING, Phase.FREEZING):
        assert demanded(replace(seen, rounds=(replace(view, phase=phase),))) == []


def test_an_index_that_has_not_seen_every_reveal_waits_for_it() -> None:
    params = amended(PARAMS, attest_seconds=Seconds(20))
    view = replace(attesting([Report.DECODED] * 2, ends=1_020, revealed=3), receipts=handed({0, 1}))
    assert receipts_due(view, params, Seconds(1_000)) == set()
    assert receipts_due(view, params, Seconds(1_005)) == {0, 1}


def test_nobody_waits_for_the_receipt_of_a_convicted_owner() -> None:
    params = amended(PARAMS, attest_seconds=Seconds(20))
    view = replace(attesting([Report.DECODED] * 3, ends=1_020), receipts=handed({0, 2}), convicted=frozenset({1}))
    assert receipts_due(view, params, Seconds(1_000)) == {0, 2}
    view = replace(view, receipts=handed({0, 1, 2}))
    assert receipts_due(view, params, Seconds(1_000)) == {0, 2}, "the contract takes none of a convicted owner"


def test_a_barred_aggregator_still_sends_receipts() -> None:
    view = replace(attesting([Report.DECODED], ends=1_020), receipts=handed({0}))
    assert Action(ActionKind.ATTEST, 0) in decide(job(view, barred=True), DECIDER)


def test_stake_covers_every_round_that_may_be_ahead() -> None:
    lead = AggregatorRound(0, Phase.LEAD, Round(merged_at=Seconds(990)), mine=True)
    backed, pay = replace(lead, state=Round(merged_at=Seconds(990), backed=1)), PARAMS.round_pay
    poor = replace(DECIDER, free=Wei(30))
    assert stake_due(job(), poor) == 2 * (100 + pay) - 30, "two merges, each backed for the round above it"
    assert stake_due(job(lead), poor) == 100 + 2 * pay - 30, "what is locked for a merge made is not asked for again"
    assert stake_due(job(backed), poor) == 100 + pay - 30
    assert stake_due(job(), replace(poor, balance=Wei(7))) == 7, "no more than there is"
    assert stake_due(job(started=4, settled=3), poor) == 100 - 30, "no more rounds than are left"
    assert stake_due(job(barred=True), poor) == 0


def test_a_merge_waits_for_its_stake() -> None:
    merging = AggregatorRound(0, Phase.MERGING, Round(), merger=AGGREGATOR)
    pay = PARAMS.round_pay
    assert Action(ActionKind.MERGE, 0, rounds=1) in decide(job(merging), DECIDER)
    assert Action(ActionKind.MERGE, 0, rounds=0) in decide(job(merging), replace(DECIDER, free=Wei(100 + pay - 1))), (
        "backed for what it can"
    )
    poor = decide(job(merging), replace(DECIDER, free=Wei(99)))
    assert not merges(poor)
    assert Action(ActionKind.DEPOSIT, amount=Wei(101 + 2 * pay)) in poor
    assert not merges(decide(job(replace(merging, merger=WORKER)), DECIDER))
    assert Action(ActionKind.FINALIZE, 0) in decide(job(replace(merging, merge_turns_over=True)), DECIDER)


def merges(acts: tuple[Action, ...]) -> list[Action]:
    return [a for a in acts if a.kind == ActionKind.MERGE]


def test_a_merge_that_keeps_the_next_round_from_starting_is_backed_once_there_is_stake() -> None:
    lead = AggregatorRound(0, Phase.LEAD, Round(merged_at=Seconds(990)), mine=True)
    assert Action(ActionKind.BACK, 0, rounds=1) in decide(job(lead), DECIDER)
    assert Action(ActionKind.START, 1) not in decide(job(lead), DECIDER), "not before it is backed"
    assert Action(ActionKind.BACK, 0, rounds=1) not in decide(
        job(lead), replace(DECIDER, free=Wei(PARAMS.round_pay - 1))
    )
    assert Action(ActionKind.BACK, 0, rounds=1) not in decide(job(replace(lead, mine=False)), DECIDER)
    backed = replace(lead, state=Round(merged_at=Seconds(990), backed=1))
    assert Action(ActionKind.START, 1) in decide(job(backed), DECIDER)
    lingering = JobState(AGGREGATOR, JobStatus.ACTIVE, started=1, lingering=1)
    assert Action(ActionKind.START, 1) not in decide(job(backed, job=lingering), DECIDER), "games about void work go on"


def test_a_merge_that_nobody_backs_is_made_again_in_ones_turn_if_there_is_stake() -> None:
    lead, pay = AggregatorRound(0, Phase.LEAD, Round(merged_at=Seconds(990)), merger=AGGREGATOR), PARAMS.round_pay
    assert Action(ActionKind.MERGE, 0, rounds=1) in decide(job(lead), DECIDER)
    assert not merges(decide(job(replace(lead, merger=WORKER)), DECIDER))
    assert not merges(decide(job(replace(lead, merger=ZERO_ADDRESS)), DECIDER))
    poor = replace(DECIDER, free=Wei(100 + pay - 1))
    assert not merges(decide(job(lead), poor)), "less than what is missing opens nothing"
    assert Action(ActionKind.MERGE, 0, rounds=1) in decide(job(lead), replace(poor, free=Wei(100 + pay)))
    over = Seconds(1_000 - PARAMS.windows.challenge_seconds)
    late = decide(job(replace(lead, state=Round(Phase.LEAD, merged_at=over))), DECIDER)
    assert Action(ActionKind.FINALIZE, 0) in late, "what can be final is"
    assert not merges(late)


def test_a_void_rounds_stake_comes_back_after_its_games_though_the_job_is_done() -> None:
    void = AggregatorRound(1, Phase.VOID, Round(), mine=True)
    done = JobState(AGGREGATOR, JobStatus.DONE, started=1, settled=1)
    assert decide(job(void, job=done), DECIDER) == (Action(ActionKind.RELEASE, 1),)
    assert decide(job(replace(void, state=Round(open_games=1)), job=done), DECIDER) == ()


def test_the_next_round_starts_where_workers_are() -> None:
    for phase, starts in ((Phase.LEAD, True), (Phase.FINAL, True), (Phase.FAILED, False), (Phase.MERGING, False)):
        view = AggregatorRound(0, phase, Round(merged_at=Seconds(990), backed=1))
        assert (Action(ActionKind.START, 1) in decide(job(view), DECIDER)) == starts, phase
    just = AggregatorRound(0, Phase.LEAD, Round(merged_at=Seconds(999)))
    assert Action(ActionKind.START, 1) not in decide(job(just), DECIDER), "workers, who need it first, have a moment"
    assert decide(job(started=0), DECIDER) == (), "the first round is a worker's to start"


def test_sealing_is_left_to_the_workers_for_a_moment() -> None:
    for stored, due in (
        (Round(seed_block=48), True),
        (Round(seed_block=49), False),
        (Round(join_ends=Seconds(997)), True),
        (Round(join_ends=Seconds(998)), False),
    ):
        assert (Action(ActionKind.SEAL, 0) in decide(job(AggregatorRound(0, Phase.SEALING, stored)), DECIDER)) == due, (
            stored
        )


def test_games_and_windows_hold_payment_back() -> None:
    params = PARAMS
    over = Seconds(1_000 - params.windows.challenge_seconds)
    for phase in (Phase.LEAD, Phase.FAILED):
        final = AggregatorRound(0, phase, Round(phase, merged_at=over))
        assert Action(ActionKind.FINALIZE, 0) in decide(job(final), DECIDER)
        late = replace(final, state=Round(phase, merged_at=Seconds(over + 1)))
        assert Action(ActionKind.FINALIZE, 0) not in decide(job(late), DECIDER)
        disputed = replace(final, state=Round(phase, merged_at=over, open_games=1))
        assert Action(ActionKind.FINALIZE, 0) not in decide(job(disputed), DECIDER)
    voided = JobState(AGGREGATOR, JobStatus.VOID, started=1)
    assert decide(job(final, job=voided), DECIDER) == (Action(ActionKind.RELEASE, 0),), (
        "of a void job it is released, in its turn"
    )


def test_a_void_rounds_stake_comes_back_once_nothing_restarts_it() -> None:
    void = AggregatorRound(1, Phase.VOID, Round(), mine=True)
    cancelled = JobState(AGGREGATOR, JobStatus.CANCELLED, started=1)
    assert Action(ActionKind.RELEASE, 1) in decide(job(void, job=cancelled), DECIDER)
    assert Action(ActionKind.RELEASE, 1) not in decide(job(void), DECIDER), "startRound gives it back"
    assert Action(ActionKind.RELEASE, 1) not in decide(job(replace(void, mine=False), job=cancelled), DECIDER)


def test_others_jobs_are_left_alone() -> None:
    view = AggregatorRound(0, Phase.FREEZING, Round())
    assert decide(job(view), replace(DECIDER, me=WORKER)) == ()
