"""Decisions of a verifier: nothing that can be challenged is forgotten, nothing is challenged twice."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lockstep.market.ledger import ClaimRecord, DemandRecord, GameRecord, JobLedger, Ledger, RoundLedger
from lockstep.protocol.dispute.moves import Verdict
from lockstep.protocol.jobs import Phase
from lockstep.protocol.market.types import Audit, AuditStatus
from lockstep.protocol.types import (
    MERGE_SLOT,
    Address,
    Cid,
    ClaimId,
    Digest,
    GameId,
    JobId,
    Seconds,
    TraceRoot,
    Wei,
)
from tests.support.auditing import PARAMS
from verifier import decide
from verifier.decide import Candidate

ME, OTHER = (Address("0x" + c * 40) for c in "ab")
JOB = JobId(b"\7" * 32)
ROOT = Digest(bytes(32))
ANOTHER = TraceRoot(Digest(b"\1" * 32))


def record(
    number: int, *, slot: int = 0, round_: int = 0, claimed_at: int = 100, convicted: bool = False
) -> ClaimRecord:
    claim = ClaimId(number.to_bytes(32, "big"))
    return ClaimRecord(
        claim, JOB, round_, 0, slot, OTHER, TraceRoot(ROOT), ROOT, ROOT, None, Cid(""), Seconds(claimed_at), convicted
    )


candidates = st.lists(
    st.builds(
        lambda number, ends, stands: Candidate(record(number), Seconds(ends), stands),
        st.integers(0, 12),
        st.integers(0, 200),
        st.booleans(),
    ),
    max_size=8,
    unique_by=lambda c: c.record.id,
)
claims = st.sets(st.integers(0, 12).map(lambda n: ClaimId(n.to_bytes(32, "big"))))
settlements = st.dictionaries(
    st.integers(0, 12).map(lambda n: ClaimId(n.to_bytes(32, "big"))), st.sampled_from([TraceRoot(ROOT), ANOTHER])
)
"""Claims as they were replayed: with the trace that `record` gives them, or with another."""
times = st.integers(0, 200).map(Seconds)
games = st.lists(
    st.builds(
        lambda number, claim, mine, verdict: GameRecord(
            GameId(number.to_bytes(32, "big")), ClaimId(claim.to_bytes(32, "big")), ME if mine else OTHER, OTHER, 0, 1,
            verdict,
        ),
        st.integers(0, 30),
        st.integers(0, 12),
        st.booleans(),
        st.sampled_from(Verdict),
    ),
    max_size=8,
    unique_by=lambda g: g.id,
)  # fmt: skip


@given(candidates, settlements, claims, times)
def test_next_claim_is_one_that_may_be_challenged_and_whose_window_ends_first(
    found: list[Candidate], settled: dict[ClaimId, TraceRoot], delayed: set[ClaimId], now: Seconds
) -> None:
    chosen = decide.next_claim(found, settled, delayed, now)
    able = [c for c in found if c.stands and now < c.window_ends and settled.get(c.record.id) != ROOT]
    ready = [c for c in able if c.record.id not in delayed]
    if chosen is None:
        assert not ready
    else:
        assert chosen in ready
        assert all(chosen.window_ends <= c.window_ends for c in ready)


@given(candidates, settlements, times)
def test_every_claim_is_settled_or_waits_or_is_told_as_missed(
    found: list[Candidate], settled: dict[ClaimId, TraceRoot], now: Seconds
) -> None:
    missed = decide.missed(found, settled, now)
    waiting = [c for c in found if c.open_at(now) and settled.get(c.record.id) != ROOT]
    known = [c for c in found if settled.get(c.record.id) == ROOT]
    assert sorted(c.record.id for c in (*missed, *waiting, *known)) == sorted(c.record.id for c in found)
    assert (decide.next_claim(found, settled, (), now) is None) == (not waiting)


@given(games, st.integers(0, 12))
def test_no_second_game_is_opened_on_a_claim(played: list[GameRecord], number: int) -> None:
    claim = ClaimId(number.to_bytes(32, "big"))
    nonce = decide.nonce_of(claim, ME, played)
    assert (nonce is None) == any(g.claim == claim and g.challenger == ME for g in played)
    if nonce is not None:
        opened = GameRecord(GameId(b"\xff" * 32), claim, ME, OTHER, nonce, 1)
        assert decide.nonce_of(claim, ME, [*played, opened]) is None


@given(games, st.sets(st.integers(0, 30).map(lambda n: GameId(n.to_bytes(32, "big")))))
def test_own_games_are_sat_at_while_they_run_and_told_of_once_when_they_end(
    played: list[GameRecord], known: set[GameId]
) -> None:
    sat, told = decide.seats(ME, played, known), decide.ended(ME, played, known)
    assert all(g.challenger == ME and g.id not in known for g in (*sat, *told))
    assert {g.id for g in sat}.isdisjoint(g.id for g in told)
    assert len(sat) + len(told) == len([g for g in played if g.challenger == ME and g.id not in known])


@given(st.integers(0, 10**20), st.integers(0, 10**20))
def test_deposit_covers_exactly_one_bond(free: int, bond: int) -> None:
    assert free + decide.deposit_due(Wei(free), Wei(bond)) == max(free, bond)


def test_ends_are_named_after_who_won() -> None:
    names = {verdict: decide.name_of_end(verdict) for verdict in Verdict if verdict is not Verdict.NONE}
    assert names == {
        Verdict.FRAUD: "won", Verdict.TIMEOUT: "won", Verdict.REJECTED: "lost", Verdict.VOID: "void",
    }  # fmt: skip


def test_credits_are_withdrawn_when_all_jobs_are_done_or_the_process_ends_and_no_game_runs() -> None:
    running, done = JobLedger(JOB, OTHER, 0), JobLedger(JOB, OTHER, 0, done=True)
    assert decide.may_withdraw(0, [done], draining=False)
    assert decide.may_withdraw(0, [done, running], draining=True)
    assert not decide.may_withdraw(0, [done, running], draining=False)
    assert not decide.may_withdraw(0, [], draining=False)
    assert not decide.may_withdraw(1, [done], draining=True)


MINUTE = replace(PARAMS, windows=replace(PARAMS.windows, challenge_seconds=Seconds(60)))


def ledger_of(round_: RoundLedger, later: RoundLedger | None = None) -> Ledger:
    job = JobLedger(JOB, OTHER, 0, {round_.number: round_})
    if later is not None:
        if later.number == round_.number:
            job.past.append(round_)
        job.rounds[later.number] = later
    return Ledger({JOB: job})


def test_claims_of_ended_rounds_of_past_attempts_and_convicted_ones_do_not_stand() -> None:
    plain = RoundLedger(0, 0, ROOT, ROOT, claims={0: record(1), 1: record(2, slot=1, convicted=True)})
    plain.merges = [record(3, slot=MERGE_SLOT, convicted=True), record(4, slot=MERGE_SLOT)]
    terms = {JOB: MINUTE}
    standing = [c.record.id[-1] for c in decide.candidates(ledger_of(plain), terms) if c.stands]
    assert standing == [1, 4]
    for phase in decide.ENDED:
        over = list(decide.candidates(ledger_of(replace(plain, phase=phase)), terms))
        assert not any(c.stands for c in over), phase
    again = RoundLedger(0, 1, ROOT, ROOT, claims={0: record(5)})
    both = list(decide.candidates(ledger_of(plain, again), terms))
    assert [c.record.id[-1] for c in both if c.stands] == [5]
    assert len(both) == 5


def test_a_merge_that_was_made_again_does_not_stand() -> None:
    first = replace(record(3, slot=MERGE_SLOT), replaced=True)
    merged = RoundLedger(0, 0, ROOT, ROOT, merges=[first, record(4, slot=MERGE_SLOT)])
    assert [c.record.id[-1] for c in decide.candidates(ledger_of(merged), {JOB: MINUTE}) if c.stands] == [4]
    assert not decide.may_challenge(first, ledger_of(merged), MINUTE, Seconds(101))


def test_windows_end_a_challenge_period_after_the_claim() -> None:
    (only,) = decide.candidates(ledger_of(RoundLedger(0, 0, ROOT, ROOT, claims={0: record(1)})), {JOB: MINUTE})
    assert only.open_at(Seconds(159))
    assert not only.open_at(Seconds(160))


def test_a_claim_that_others_may_stand_on_is_open_until_it_can_be_final() -> None:
    carrying = replace(MINUTE, roles=(replace(MINUTE.role, carry_period=2),))
    plain = RoundLedger(0, 0, ROOT, ROOT, claims={0: record(1)}, merges=[record(2, slot=MERGE_SLOT)])
    slot, merge = decide.candidates(ledger_of(plain), {JOB: carrying})
    assert slot.open_at(Seconds(10_000))
    assert not merge.open_at(Seconds(160)), "nothing carries a merge"
    assert decide.may_challenge(record(1), ledger_of(plain), carrying, Seconds(10_000))
    over, _ = decide.candidates(ledger_of(replace(plain, phase=Phase.FINAL)), {JOB: carrying})
    assert not over.open_at(Seconds(100))
    merged = replace(plain, phase=Phase.LEAD, decided_at=Seconds(120))
    slot, _ = decide.candidates(ledger_of(merged), {JOB: carrying})
    assert slot.open_at(Seconds(179))
    assert not slot.open_at(Seconds(180)), "a minute after the merge"
    following = RoundLedger(1, 0, ROOT, ROOT)
    slot, _ = decide.candidates(ledger_of(merged, following), {JOB: carrying})
    assert slot.open_at(Seconds(10_000)), "the next round may stand on it"
    failed = replace(following, decided_at=Seconds(150), phase=Phase.FAILED)
    slot, _ = decide.candidates(ledger_of(merged, failed), {JOB: carrying})
    assert slot.open_at(Seconds(209))
    assert not slot.open_at(Seconds(210)), "a minute after the failure of what was revealed"
    empty = replace(following, phase=Phase.FAILED)
    slot, _ = decide.candidates(ledger_of(merged, empty), {JOB: carrying})
    assert not slot.open_at(Seconds(180)), "nothing stands on it"


def test_a_wrong_claim_is_kept_while_its_reveal_may_come_again_or_its_window_lasts() -> None:
    wrong, window = record(1), MINUTE
    taken_back = ledger_of(RoundLedger(0, 0, ROOT, ROOT))
    again = ledger_of(RoundLedger(0, 0, ROOT, ROOT, claims={0: record(1, claimed_at=130)}))
    convicted = ledger_of(RoundLedger(0, 0, ROOT, ROOT, claims={0: record(1, convicted=True)}))
    over = ledger_of(RoundLedger(0, 0, ROOT, ROOT, claims={0: record(1)}, phase=Phase.FINAL))
    failed = ledger_of(RoundLedger(0, 0, ROOT, ROOT, claims={0: record(1)}, phase=Phase.FAILED))
    cases = ((taken_back, 159, 160), (again, 189, 190), (failed, 159, 160))
    for ledger, last, late in cases:
        assert decide.may_challenge(wrong, ledger, window, Seconds(last))
        assert not decide.may_challenge(wrong, ledger, window, Seconds(late))
    for ledger in (convicted, over):
        assert not decide.may_challenge(wrong, ledger, window, Seconds(101))


def test_jobs_whose_windows_are_unknown_wait() -> None:
    known = ledger_of(RoundLedger(0, 0, ROOT, ROOT, claims={0: record(1)}, phase=Phase.JOINING))
    assert not list(decide.candidates(known, {}))


def test_a_list_is_waited_for_while_its_owner_may_publish_it_and_no_game_is_too_late_for_that() -> None:
    claimed = record(1, claimed_at=100)
    latest = decide.list_due(claimed, PARAMS, None)
    assert latest == 100 + PARAMS.role.reveal_seconds + PARAMS.role.attest_seconds + 2 * PARAMS.windows.audit_seconds
    assert latest < claimed.claimed_at + PARAMS.windows.challenge_seconds, "JobRules leaves a game's time"
    drawn = replace(Audit(), status=AuditStatus.DRAWN, commit_ends=Seconds(150))
    assert decide.list_due(claimed, PARAMS, drawn) == 150 + PARAMS.windows.audit_seconds
    assert decide.list_due(claimed, PARAMS, replace(drawn, status=AuditStatus.SKIPPED)) == latest
    assert decide.awaits_list(latest, PARAMS, Seconds(latest - 1), fetching=False)
    assert not decide.awaits_list(latest, PARAMS, latest, fetching=False)
    more = PARAMS.windows.audit_seconds // 2
    assert decide.awaits_list(latest, PARAMS, Seconds(latest + more - 1), fetching=True)
    assert not decide.awaits_list(latest, PARAMS, Seconds(latest + more), fetching=True)


def test_a_job_is_over_once_it_is_done_and_nothing_is_open_that_has_to_be_computed_for() -> None:
    ledger = ledger_of(RoundLedger(0, 0, ROOT, ROOT, claims={0: record(1)}))
    claim = record(1).id
    ledger.places[claim] = JOB, 0
    assert decide.over(ME, ledger) == set()
    ledger.jobs[JOB].done = True
    assert decide.over(ME, ledger) == {JOB}
    game = GameRecord(GameId(bytes(32)), claim, OTHER, OTHER, 0, 1, Verdict.NONE)
    ledger.games[game.id] = game
    assert decide.over(ME, ledger) == {JOB}, "others' game"
    ledger.games[game.id] = replace(game, challenger=ME)
    assert decide.over(ME, ledger) == set()
    ledger.games.clear()
    ledger.demands[Digest(bytes(32))] = DemandRecord(Digest(bytes(32)), JOB, None, 3, OTHER, Seconds(9))
    assert decide.over(ME, ledger) == set(), "who holds a row may have to show it"
