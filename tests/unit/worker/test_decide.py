"""Decisions: what a worker does follows from what it sees, and never breaks a rule of the market."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.market.acts import Action, ActionKind
from lockstep.protocol.jobs import ZERO, ZERO_ADDRESS, Claim, ClaimStatus, JobState, JobStatus, Phase, Round
from lockstep.protocol.market.types import Audit, AuditStatus
from lockstep.protocol.types import MERGE_SLOT, Address, JobId, Seconds, StateRoot, Wei
from tests.support.params import amended, job_params
from worker.decide import (
    AGGREGATOR_SECONDS,
    PATIENCE,
    JobView,
    Roots,
    RoundView,
    WorkerFacts,
    acts,
    ahead,
    base_of,
    due,
    owes,
    rank,
    remember,
    slot_to_join,
)  # fmt: skip

ME, OTHER, THIRD = (Address("0x" + c * 40) for c in "abc")
ROOT = StateRoot(ZERO)
PARAMS = job_params(
    spec_digest=ZERO, step_program=ZERO, encode_program=ZERO, merge_program=ZERO, dataset_root=ZERO, dataset_rows=10,
    row_length=5, genesis_shared=ROOT, genesis_outer=ROOT, zero_carry=ROOT, zero_payload=ROOT, shared_depth=1,
    payload_depth=1, inner_steps=4, rounds=6, slots=3, min_slots=2, max_lead=4, max_fail=2, join_seconds=Seconds(20),
    train_seconds=Seconds(60), reveal_seconds=Seconds(30), attest_seconds=Seconds(30), turn_seconds=Seconds(30),
    challenge_seconds=Seconds(60), clock_seconds=Seconds(120), step_seconds=Seconds(10), slot_price=Wei(10),
    merge_price=Wei(5), slot_stake=Wei(100), merge_stake=Wei(50), bond=Wei(20), aggregator=OTHER,
)  # fmt: skip


def claim(worker: Address, status: ClaimStatus, slot: int) -> Claim:
    return Claim(worker=worker, status=status, slot=slot)


GENESIS = (PARAMS.genesis.shared, PARAMS.genesis.outer)
OTHER_BASE = (StateRoot(b"\1" * 32), StateRoot(b"\2" * 32))
FREE = [claim(ZERO_ADDRESS, ClaimStatus.NONE, s) for s in range(3)]

rounds = st.builds(
    lambda *drawn: drawn,
    st.sampled_from([p for p in Phase if p != Phase.NONE]),
    st.integers(0, 200),
    st.integers(0, 2000),
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from([ME, OTHER, ZERO_ADDRESS]),
    st.sampled_from([GENESIS, OTHER_BASE]),
    st.lists(
        st.tuples(st.sampled_from([ME, OTHER, THIRD]), st.sampled_from(list(ClaimStatus))), min_size=3, max_size=3
    ),
)


@st.composite
def views(draw: st.DrawFn) -> JobView:
    drawn = draw(st.lists(rounds, max_size=4))
    built = tuple(
        RoundView(
            n,
            Round(
                seed_block=seed_block,
                merged_at=Seconds(merged_at),
                open_games=games,
                base=base[0],
                outer=base[1],
                next_shared=OTHER_BASE[0],
                next_outer=OTHER_BASE[1],
            ),
            phase,
            tuple(claim(w if s else ZERO_ADDRESS, s, i) for i, (w, s) in enumerate(claims)),
            merger,
            turns,
        )
        for n, (phase, seed_block, merged_at, games, turns, merger, base, claims) in enumerate(drawn)
    )
    job = JobState(
        OTHER,
        draw(st.sampled_from(list(JobStatus))),
        len(built),
        draw(st.integers(0, len(built))),
        draw(st.integers(0, 3)),
    )
    return JobView(JobId(b"j" * 32), PARAMS, job, built, Seconds(draw(st.integers(0, 3000))), draw(st.integers(0, 300)))


selves = st.builds(
    WorkerFacts, st.just(ME), st.integers(0, 300).map(Wei), st.integers(0, 5), st.booleans(),
    st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 2))), st.booleans(),
    st.sampled_from([None, GENESIS, OTHER_BASE]),
)  # fmt: skip


@given(views(), selves)
def test_every_act_fits_the_phase_and_the_owner(view: JobView, me: WorkerFacts) -> None:
    phases = {
        ActionKind.JOIN: {Phase.JOINING},
        ActionKind.LEAVE: {Phase.JOINING},
        ActionKind.SEAL: {Phase.SEALING},
        ActionKind.TRAIN: {Phase.TRAINING},
        ActionKind.COMMIT: {Phase.TRAINING},
        ActionKind.REVEAL: {Phase.REVEALING},
        ActionKind.FREEZE: {Phase.FREEZING},
        ActionKind.MERGE: {Phase.MERGING, Phase.LEAD},
        ActionKind.FINALIZE: {Phase.LEAD, Phase.FAILED, Phase.MERGING},
        ActionKind.RELEASE: {Phase.VOID, Phase.FAILED},
    }
    for act in acts(view, me):
        if act.kind not in phases:
            continue
        r = view.round(act.round)
        assert r is not None
        assert r.phase in phases[act.kind], act
        held = r.claims[act.slot]
        if act.kind in (ActionKind.TRAIN, ActionKind.COMMIT, ActionKind.REVEAL, ActionKind.LEAVE):
            assert held.worker == ME, "only for its own slots"
        if act.kind == ActionKind.COMMIT:
            assert (act.round, act.slot) in me.trained, "nothing is committed before it is trained"
        if act.kind == ActionKind.MERGE:
            assert r.merger == ME
            assert me.free >= PARAMS.merge.stake


@given(views(), selves)
def test_joins_are_single_free_covered_and_never_while_draining(view: JobView, me: WorkerFacts) -> None:
    joins = [a for a in acts(view, me) if a.kind == ActionKind.JOIN]
    for act in joins:
        r = view.round(act.round)
        assert r is not None
        assert r.claims[act.slot].status == ClaimStatus.NONE, "only a free slot"
        assert not r.slots_of(ME), "one slot a round"
        assert me.free >= PARAMS.role.slot_stake, "the stake covers it"
        assert not me.draining, "a draining worker joins nothing"
        assert me.base == (r.state.base, r.state.outer), "what it cannot train it does not join"
        assert me.fit, "nor what it could not train in time"
    assert len({a.round for a in joins}) == len(joins)


@given(views(), selves)
def test_a_round_is_started_in_order_and_within_the_lead(view: JobView, me: WorkerFacts) -> None:
    for act in acts(view, me):
        if act.kind == ActionKind.START:
            assert act.round == view.job.started < PARAMS.schedule.rounds
            assert view.job.started - view.job.settled < PARAMS.schedule.max_lead
            assert view.job.status == JobStatus.ACTIVE
            assert me.base == base_of(view, act.round), "who starts a round holds its base"
            assert me.fit
        if act.kind == ActionKind.FINISH:
            assert view.job.started == view.job.settled, "nothing is in flight"


@given(views(), selves, st.integers(0, 5))
def test_patience_holds_back_only_what_others_may_do_and_never_for_ever(
    view: JobView, me: WorkerFacts, place: int
) -> None:
    possible = acts(view, me)
    since = remember(possible, {}, Seconds(100))
    now = due(possible, since, Seconds(100), place)
    assert set(now) >= {a for a in possible if a.kind not in PATIENCE}, "own duties never wait"
    longest = max(PATIENCE.values()) + AGGREGATOR_SECONDS + place
    assert due(possible, since, Seconds(100 + longest), place, True) == possible, "everything is done in the end"


@given(views(), selves)
def test_what_is_tried_ahead_is_only_a_join_of_the_next_round_or_the_reveal_of_an_own_claim(
    view: JobView, me: WorkerFacts
) -> None:
    for act in ahead(view, me, frozenset()):
        if act.kind == ActionKind.JOIN:
            assert act.round == view.job.started
            assert not me.draining
            assert me.fit
            assert me.base == base_of(view, act.round)
            continue
        assert act.kind == ActionKind.REVEAL
        r = view.round(act.round)
        assert r is not None
        assert (r.claims[act.slot].worker, r.claims[act.slot].status) == (ME, ClaimStatus.COMMITTED)


@given(views(), selves)
def test_a_machine_that_became_too_slow_finishes_what_it_joined(view: JobView, me: WorkerFacts) -> None:
    begun = {ActionKind.START, ActionKind.JOIN, ActionKind.FETCH}
    fit, unfit = (acts(view, replace(me, fit=fit)) for fit in (True, False))
    assert unfit == [act for act in fit if act.kind not in begun]


@given(views(), selves)
def test_a_worker_that_owes_a_reveal_is_never_idle_in_training_or_revealing(view: JobView, me: WorkerFacts) -> None:
    """What `owes` waits for while draining is something that `acts` brings about."""
    for r in view.rounds:
        for slot in r.slots_of(ME):
            status = r.claims[slot].status
            if r.phase == Phase.TRAINING and status == ClaimStatus.JOINED:
                assert owes(view, ME)
                assert {a.kind for a in acts(view, me) if (a.round, a.slot) == (r.number, slot)} & {
                    ActionKind.TRAIN,
                    ActionKind.COMMIT,
                }
            if r.phase == Phase.REVEALING and status == ClaimStatus.COMMITTED:
                assert owes(view, ME)
                assert Action(ActionKind.REVEAL, r.number, slot) in acts(view, me)


@pytest.mark.parametrize("base", [None, OTHER_BASE, GENESIS], ids=["none", "another", "its own"])
def test_no_round_is_started_or_joined_without_its_base(base: Roots | None) -> None:
    """Drawn views seldom wait for workers: here one does, and one is to be started."""
    me, holds = WorkerFacts(ME, Wei(1000), base=base), base == GENESIS
    joining = RoundView(0, Round(base=GENESIS[0], outer=GENESIS[1]), Phase.JOINING, tuple(FREE))
    of_round = {a.kind for a in acts(_view(joining), me) if a.round == 0}
    assert of_round & {ActionKind.JOIN, ActionKind.FETCH} == {ActionKind.JOIN if holds else ActionKind.FETCH}
    first = {a.kind for a in acts(_view(), me)}
    assert first & {ActionKind.START, ActionKind.FETCH} == {ActionKind.START if holds else ActionKind.FETCH}
    assert bool(ahead(_view(), me, frozenset())) == holds, "nor is a join sent ahead of the start"


@given(views(), selves)
def test_what_is_fetched_is_what_a_join_or_a_start_waits_for(view: JobView, me: WorkerFacts) -> None:
    for act in acts(view, me):
        if act.kind == ActionKind.FETCH:
            holder = replace(me, base=base_of(view, act.round))
            then = {a.kind for a in acts(view, holder) if a.round == act.round}
            assert then & {ActionKind.START, ActionKind.JOIN}, (
                "a base is fetched for a round that it could begin or join"
            )
            assert ActionKind.FETCH not in then, "once"


def test_a_round_starts_from_what_the_round_before_it_leaves() -> None:
    started = Round(base=GENESIS[0], outer=GENESIS[1], next_shared=OTHER_BASE[0], next_outer=OTHER_BASE[1])
    assert base_of(_view(), 0) == GENESIS
    for phase in (Phase.LEAD, Phase.FINAL, Phase.FAILED):
        assert base_of(_view(RoundView(0, started, phase, tuple(FREE))), 1) == OTHER_BASE
    rewound = (RoundView(0, started, Phase.LEAD, tuple(FREE)), RoundView(1, started, Phase.VOID, tuple(FREE)))
    assert base_of(_view(*rewound), 1) == OTHER_BASE, "a void round starts again from the merge that stands"


def test_remembering_forgets_what_is_no_longer_possible() -> None:
    first, second = Action(ActionKind.SEAL, 1), Action(ActionKind.FREEZE, 1)
    since = remember([first], {}, Seconds(10))
    assert remember([second], since, Seconds(12)) == {second: 12}
    assert remember([first, second], since, Seconds(12)) == {first: 10, second: 12}


def _view(*rs: RoundView) -> JobView:
    return JobView(JobId(b"j" * 32), PARAMS, JobState(OTHER, JobStatus.ACTIVE, len(rs)), rs, Seconds(0), 0)


def test_workers_in_different_places_try_different_slots_and_keep_them() -> None:
    empty = RoundView(0, Round(), Phase.JOINING, tuple(FREE))
    first = [slot_to_join(_view(empty), empty, WorkerFacts(ME, Wei(1000), place)) for place in range(3)]
    assert first == [0, 1, 2]
    held = (
        claim(OTHER, ClaimStatus.ACCEPTED, 0),
        claim(THIRD, ClaimStatus.ACCEPTED, 1),
        claim(ME, ClaimStatus.ACCEPTED, 2),
    )
    before, after = replace(empty, phase=Phase.LEAD, claims=held), replace(empty, number=1)
    view = _view(before, after)
    assert slot_to_join(view, after, WorkerFacts(ME, Wei(1000), 0)) == 2, "its own of the round before"
    newcomer = WorkerFacts(Address("0x" + "d" * 40), Wei(1000), 2)
    assert slot_to_join(view, after, newcomer) == 2, "with no slot unclaimed, its place decides"
    assert rank(view, WorkerFacts(ME, Wei(1000), 0)) == 2
    full = replace(after, claims=held)
    assert slot_to_join(view, full, WorkerFacts(ME, Wei(1000), 0)) is None


def test_a_slot_that_another_may_carry_on_in_is_left_to_it_for_half_of_the_window() -> None:
    held = (
        claim(OTHER, ClaimStatus.ACCEPTED, 0),
        claim(ME, ClaimStatus.ACCEPTED, 1),
        claim(THIRD, ClaimStatus.EXCLUDED, 2),
    )
    before = RoundView(0, Round(), Phase.LEAD, held)
    after = RoundView(1, Round(join_ends=Seconds(20)), Phase.JOINING, tuple(FREE))
    carrying = amended(PARAMS, carry_period=2)
    newcomer, owner = WorkerFacts(Address("0x" + "d" * 40), Wei(1000), 0), WorkerFacts(ME, Wei(1000), 0)

    def at(now: int, r: RoundView = after, merged: RoundView = before) -> JobView:
        return replace(_view(merged, r), params=carrying, now=Seconds(now))

    assert slot_to_join(at(9), after, newcomer) == 2, "what was left out has no carry to go on from"
    assert slot_to_join(at(9), after, owner) == 1, "its own"
    left = replace(after, claims=(FREE[0], claim(ME, ClaimStatus.JOINED, 1), claim(THIRD, ClaimStatus.JOINED, 2)))
    assert slot_to_join(at(9, left), left, newcomer) is None
    assert slot_to_join(at(10, left), left, newcomer) == 0, "its owner did not come"
    final = replace(before, phase=Phase.FINAL)
    assert slot_to_join(at(9, left, final), left, newcomer) == 0, "nothing stands on what is final"
    second = replace(left, number=2)
    assert slot_to_join(replace(at(9, second), rounds=(replace(before, number=1), second)), second, newcomer) == 0


# -- witnesses


def audited(phase: Phase, audit: Audit | None, now: int = 1_000, block: int = 50) -> list[ActionKind]:
    """What the owner of slot 1 may do about drawn witnesses; its list is not published, slot 0's is not its own."""
    owned = (FREE[0], claim(ME, ClaimStatus.REVEALED, 1), claim(OTHER, ClaimStatus.REVEALED, 2))
    params = amended(PARAMS, witnesses=1, audit_seconds=Seconds(60))
    r = RoundView(0, Round(spoke=7), phase, owned, audit=audit, unpublished=frozenset({1, 2}))
    view = JobView(JobId(bytes(32)), params, JobState(OTHER, JobStatus.ACTIVE, started=1), (r,), Seconds(now), block)
    found = [a for a in acts(view, WorkerFacts(ME, Wei(0))) if a.kind in (ActionKind.DRAW, ActionKind.PUBLISH)]
    assert all(a == Action(ActionKind.PUBLISH, 0, 1) for a in found if a.kind == ActionKind.PUBLISH), (
        "its own list alone"
    )
    return [a.kind for a in found]


def test_witnesses_are_drawn_while_receipts_are_given() -> None:
    opened = Audit(AuditStatus.DRAWING, beacon_block=50)
    assert audited(Phase.ATTESTING, None) == [ActionKind.DRAW]
    assert audited(Phase.ATTESTING, opened, block=49) == [], "the beacon is not mined"
    assert audited(Phase.ATTESTING, opened, block=50) == [ActionKind.DRAW]
    assert audited(Phase.ATTESTING, Audit(AuditStatus.DRAWN, commit_ends=Seconds(1_001))) == []


def test_a_list_is_shown_once_no_witness_can_copy_from_it() -> None:
    drawn = Audit(AuditStatus.DRAWN, commit_ends=Seconds(1_001))
    assert audited(Phase.LEAD, drawn, now=1_000) == []
    assert audited(Phase.LEAD, drawn, now=1_001) == [ActionKind.PUBLISH]
    assert audited(Phase.MERGING, None) == [ActionKind.PUBLISH], "nobody was drawn in time"
    assert audited(Phase.ATTESTING, Audit(AuditStatus.SKIPPED)) == [ActionKind.PUBLISH]
    assert audited(Phase.FINAL, drawn, now=2_000) == []


def test_a_merge_is_backed_for_the_rounds_that_may_start_on_it() -> None:
    merging = RoundView(0, Round(), Phase.MERGING, tuple(FREE), merger=ME)
    pay, stake = PARAMS.round_pay, PARAMS.merge.stake
    assert merges(merging, 1000) == [Action(ActionKind.MERGE, 0, rounds=3)], "max_lead - 1"
    assert merges(merging, stake + PARAMS.role.slot_stake + pay) == [Action(ActionKind.MERGE, 0, rounds=1)], (
        "a slot's stake is kept"
    )
    assert merges(merging, stake + pay) == [Action(ActionKind.MERGE, 0, rounds=1)], "the next round comes before that"
    assert merges(merging, stake + pay - 1) == [Action(ActionKind.MERGE, 0)]
    assert merges(merging, stake - 1) == []
    assert merges(replace(merging, number=5), 1000) == [Action(ActionKind.MERGE, 5)], "the last round"


def test_a_merge_that_nobody_backs_is_made_again_in_ones_turn_by_who_can_back_it() -> None:
    lead = RoundView(0, Round(open_games=1), Phase.LEAD, tuple(FREE), merger=ME, merged_by=OTHER)
    pay, stake = PARAMS.round_pay, PARAMS.merge.stake
    assert merges(lead, 1000) == [Action(ActionKind.MERGE, 0, rounds=3)]
    assert merges(lead, stake + pay) == [Action(ActionKind.MERGE, 0, rounds=1)]
    assert merges(lead, stake + pay - 1) == [], "less than what is missing opens nothing"
    assert merges(replace(lead, merger=OTHER), 1000) == []
    assert merges(replace(lead, merger=ZERO_ADDRESS), 1000) == []
    refusing = WorkerFacts(ME, Wei(1000), refuses=True)
    assert all(a.kind != ActionKind.MERGE for a in acts(_view(lead), refusing)), (
        "who computes wrong bits claims nothing"
    )


def merges(r: RoundView, free: int) -> list[Action]:
    return [a for a in acts(_view(r), WorkerFacts(ME, Wei(free))) if a.kind == ActionKind.MERGE]


def test_no_round_starts_on_a_merge_that_does_not_answer_for_it() -> None:
    def does(view: JobView, free: int = 1000) -> set[ActionKind]:
        return {a.kind for a in acts(view, WorkerFacts(ME, Wei(free), base=OTHER_BASE))} - {ActionKind.FINALIZE}

    state = Round(next_shared=OTHER_BASE[0], next_outer=OTHER_BASE[1], open_games=1)
    lead = RoundView(0, state, Phase.LEAD, tuple(FREE), merged_by=ME)
    assert does(_view(lead)) == {ActionKind.BACK}
    assert does(_view(lead), PARAMS.round_pay - 1) == set(), "no stake, no start"
    assert does(_view(replace(lead, merged_by=OTHER))) == set(), "another's to back"
    assert does(_view(replace(lead, state=replace(state, backed=1)))) == {ActionKind.START}
    games = JobState(OTHER, JobStatus.ACTIVE, 1, lingering=1)
    assert does(replace(_view(replace(lead, state=replace(state, backed=1))), job=games)) == set()


def test_a_slot_is_given_back_in_the_first_half_of_the_window_alone() -> None:
    joined = (claim(ME, ClaimStatus.JOINED, 0), *FREE[1:])
    view = _view(RoundView(0, Round(join_ends=Seconds(20)), Phase.JOINING, joined))
    leaving = WorkerFacts(ME, Wei(1000), draining=True)
    assert acts(replace(view, now=Seconds(9)), leaving) == [Action(ActionKind.LEAVE, 0, 0)]
    assert acts(replace(view, now=Seconds(10)), leaving) == [], "it trains what it joined"


def test_a_round_that_nobody_merged_is_failed_once_no_game_lingers() -> None:
    unmerged = RoundView(0, Round(phase=Phase.MERGING), Phase.MERGING, tuple(FREE), merge_turns_over=True)
    lingering = replace(_view(unmerged), job=JobState(OTHER, JobStatus.ACTIVE, 1, lingering=1))
    me = WorkerFacts(ME, Wei(1000))
    assert [a.kind for a in acts(_view(unmerged), me)] == [ActionKind.FINALIZE]
    assert acts(lingering, me) == [], "the contract refuses it"


def test_void_stakes_are_released_by_their_owner_once_their_games_are_over() -> None:
    held = frozenset({0, MERGE_SLOT})

    def released(view: JobView) -> list[int]:
        return [a.round for a in acts(view, WorkerFacts(ME, Wei(0), fit=False)) if a.kind == ActionKind.RELEASE]

    void = RoundView(2, Round(phase=Phase.VOID), Phase.VOID, tuple(FREE), idle_locks=held)
    rewound = replace(_view(void), job=JobState(OTHER, JobStatus.ACTIVE, 1))
    assert released(rewound) == [2]
    assert released(replace(rewound, job=JobState(OTHER, JobStatus.DONE, 1, 1))) == [2], "the job's end changes nothing"
    assert released(replace(rewound, rounds=(replace(void, idle_locks=frozenset()),))) == []
    playing = replace(void, state=Round(phase=Phase.VOID, open_games=1))
    assert released(replace(rewound, rounds=(playing,))) == [], "a game about another's claim of the round"
    failed = RoundView(0, Round(phase=Phase.FAILED), Phase.FAILED, tuple(FREE), idle_locks=held)
    assert released(_view(failed)) == [], "a failed round gives back when it is final"


def test_a_failed_round_is_made_final_when_its_window_is_over_and_stands_for_a_void_jobs_release() -> None:
    state = Round(phase=Phase.FAILED, merged_at=Seconds(100))
    failed = RoundView(0, state, Phase.FAILED, tuple(FREE), idle_locks=frozenset({1}))
    over = 100 + PARAMS.windows.challenge_seconds
    view = replace(_view(failed), now=Seconds(over))
    me = WorkerFacts(ME, Wei(0), fit=False)
    assert Action(ActionKind.FINALIZE, 0) in acts(view, me)
    assert Action(ActionKind.FINALIZE, 0) not in acts(replace(view, now=Seconds(over - 1)), me), "its claims are judged"
    playing = replace(failed, state=replace(state, open_games=1))
    assert Action(ActionKind.FINALIZE, 0) not in acts(replace(view, rounds=(playing,)), me)
    assert Action(ActionKind.FINALIZE, 0) not in acts(replace(view, job=JobState(OTHER, JobStatus.VOID, 1)), me)
    settled = replace(failed, state=Round(phase=Phase.FAILED))
    past = replace(view, job=JobState(OTHER, JobStatus.ACTIVE, 1, 1), rounds=(settled,))
    assert Action(ActionKind.FINALIZE, 0) not in acts(past, me), "nothing was revealed in it"


def test_a_void_job_is_released_round_after_round_by_whoever_has_stake_in_a_later_one() -> None:
    books = JobState(OTHER, JobStatus.VOID, started=3, settled=1)
    rs = [RoundView(n, Round(phase=Phase.LEAD), Phase.VOID, tuple(FREE)) for n in (1, 2)]
    failed = RoundView(0, Round(phase=Phase.FAILED), Phase.FAILED, tuple(FREE), idle_locks=frozenset({1}))
    view = replace(_view(), job=books, rounds=(rs[0], replace(rs[1], idle_locks=frozenset({0}))))
    assert acts(view, WorkerFacts(ME, Wei(0))) == [Action(ActionKind.RELEASE, 1)]
    assert acts(replace(view, rounds=tuple(rs)), WorkerFacts(ME, Wei(0))) == []
    assert acts(replace(view, rounds=(failed,)), WorkerFacts(ME, Wei(0))) == [Action(ActionKind.RELEASE, 0)]


def test_a_commitment_waits_until_the_seed_is_deep() -> None:
    """A reorganisation of as many blocks cannot bring it under another seed; in the last quarter it goes out anyway."""
    state = Round(commit_ends=Seconds(160))
    slots = (claim(ME, ClaimStatus.JOINED, 0), *FREE[1:])
    r = RoundView(0, state, Phase.TRAINING, slots, sealed=100)
    job = JobState(OTHER, JobStatus.ACTIVE, 1, 0, 0)
    me = WorkerFacts(ME, Wei(1000), trained=frozenset({(0, 0)}), base=GENESIS)

    def commits(relied: int | None, now: int) -> bool:
        view = JobView(JobId(b"j" * 32), PARAMS, job, (r,), Seconds(now), 110)
        return Action(ActionKind.COMMIT, 0, 0) in acts(view, replace(me, relied=relied))

    assert [commits(relied, 110) for relied in (-1, 99, 100, 110, None)] == [False, False, True, True, True]
    assert [commits(99, now) for now in (144, 145)] == [False, True], "silence would cost the slot's price"
