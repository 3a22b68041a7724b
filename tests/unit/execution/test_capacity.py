"""A machine joins what it can keep up with, and says of the rest which window is too short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.base.machine import Memory, readable
from lockstep.execution import capacity, footprint
from lockstep.execution.capacity import (
    ChainPace,
    LiveClaim,
    Pace,
    Require,
    keep_up,
    least,
    live_claim,
    measure,
    operations,
    require_all,
    require_claimant,
    require_fetched,
    require_nothing,
    require_prompt,
    require_witness,
)
from lockstep.execution.jobs import Job
from lockstep.protocol.errors import Unfit
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.types import Seconds
from lockstep.storage.directory import DirectoryStore
from lockstep.storage.payload import fitting, wire_length
from tests.support import toyjob
from tests.support.auditing import PARAMS
from tests.support.params import amended, value_of

TERMS = amended(PARAMS, inner_steps=99, train_seconds=Seconds(208), step_seconds=Seconds(4), clock_seconds=Seconds(208),
    audit_seconds=Seconds(200),
)  # fmt: skip
"""Just long enough at a second a step, and four for one that is shown."""
AT_ONCE = ChainPace()
"""A chain that takes no time."""
ETHEREUM = ChainPace(block=12.0, promised=24.0)


@pytest.fixture
def toy(tmp_path: Path) -> Job:
    return toyjob.load(DirectoryStore(tmp_path))


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The Programs that are run."""
    programs: list[object] = []
    executable = Job.executable
    monkeypatch.setattr(Job, "executable", lambda self, program: programs.append(program) or executable(self, program))
    return programs


def test_what_just_fits_is_joined_and_witnessed() -> None:
    require_claimant(TERMS, Pace(1.0, 4.0), AT_ONCE)
    require_witness(TERMS, Pace(1.0, 4.0), AT_ONCE)


@pytest.mark.parametrize(
    ("window", "short", "require"),
    [
        ("train_seconds", 207, require_claimant),
        ("step_seconds", 3, require_claimant),
        ("clock_seconds", 207, require_claimant),
        ("audit_seconds", 199, require_witness),
    ],
)
def test_a_window_that_is_too_short_is_named(window: str, short: int, require: Require) -> None:
    with pytest.raises(Unfit, match=window) as refused:
        require(amended(TERMS, **{window: Seconds(short)}), Pace(1.0, 4.0), AT_ONCE)
    assert "threads" in refused.value.hint


def test_the_pace_is_that_of_the_jobs_own_steps(toy: Job, ran: list[object]) -> None:
    found = measure(toy)
    assert found.step > 0
    assert found.shown > 0
    assert found.merge > 0
    of_step, of_merge = (sum(program is one for program in ran) for one in (toy.programs.step, toy.programs.merge))
    assert of_step == 1 + 2 * capacity.SAMPLES, "one that is not counted, three that are, three as a game shows them"
    assert of_merge == capacity.SAMPLES
    assert len(ran) == of_step + of_merge
    keep_up(toy, require_claimant, AT_ONCE)


def test_a_step_that_could_not_be_in_time_is_not_even_tried(toy: Job, ran: list[object]) -> None:
    assert operations(toy.programs.step) > 2 * toyjob.TERMS, "a fold counts its terms"
    assert least(toy).step < measure(toy).step
    ran.clear()
    giant = replace(toy, params=amended(toy.params, inner_steps=10**15))
    with pytest.raises(Unfit, match="train_seconds"):
        keep_up(giant, require_claimant, AT_ONCE)
    assert ran == []


def test_a_step_that_would_keep_a_device_for_hours_is_not_begun(
    toy: Job, ran: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "FASTEST_DEVICE", operations(toy.programs.step) - 1)
    with pytest.raises(Unfit, match="a transition has more than"):
        keep_up(replace(toy, path="emulated"), require_nothing, AT_ONCE)
    assert ran == []


def test_a_merge_that_takes_longer_than_a_turn_is_no_work_for_anybody(
    toy: Job, ran: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = toy.params.merge.turn_seconds
    require_claimant(toy.params, Pace(0.001, 0.001, merge=turn - 2), ChainPace(block=1.0))
    with pytest.raises(Unfit, match="merge_seconds"):
        require_claimant(toy.params, Pace(0.001, 0.001, merge=turn - 1), ChainPace(block=1.0))
    slowest = operations(toy.programs.merge) / turn
    monkeypatch.setattr(capacity, "FASTEST", slowest / toy.threads / 2)
    with pytest.raises(Unfit, match="merge_seconds"):
        keep_up(toy, require_merger, AT_ONCE)
    assert ran == [], "one that could not be in time is not tried"
    keep_up(toy, require_nothing, AT_ONCE, footprint.verifier)
    assert all(program is toy.programs.step for program in ran), "a witness merges nothing"


def require_merger(params: JobParams, pace: Pace, chain: ChainPace) -> None:
    """A worker's windows, but that for its steps."""
    require_claimant(params, Pace(0.0, 0.0, merge=pace.merge), chain)


def test_payloads_are_here_in_half_of_the_time_for_receipts(toy: Job) -> None:
    fetched = footprint.fetched_bytes(toy.programs, toy.params, toy.wire_format)
    others = toy.params.role.slots - 1
    assert fetched == others * wire_length(toy.payload_layout, fitting(toy.payload_layout, toy.wire_format))
    half = toy.params.role.attest_seconds // 2
    require_fetched(toy.params, 1000 * half, 1000)
    require_fetched(toy.params, 10**15, None)
    with pytest.raises(Unfit, match="half of attest_seconds") as refused:
        require_fetched(toy.params, 1000 * half + 1, 1000)
    assert "--download" in refused.value.hint


def test_no_stake_waits_for_silent_owners_much_longer_than_training_takes() -> None:
    day, fast = capacity.IDLE_SECONDS, Pace(1.0, 4.0)
    for window in ("join_seconds", "train_seconds"):
        require_prompt(amended(TERMS, **{window: day}), fast)
        long = amended(TERMS, **{window: Seconds(day + 1)})
        with pytest.raises(Unfit, match=window) as refused:
            require_prompt(long, fast)
        assert window in refused.value.hint
        require_prompt(amended(long, challenge_seconds=Seconds(day + 1)), fast)
        slow = Pace(step=day / (16 * TERMS.role.transitions), shown=1.0)
        require_prompt(amended(TERMS, **{window: Seconds(day + 16)}), slow)
        with pytest.raises(Unfit, match="16 times its own training"):
            require_prompt(amended(TERMS, **{window: Seconds(day + 17)}), slow)


def test_a_step_whose_tensors_do_not_fit_is_not_tried(
    toy: Job, ran: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    need = footprint.worker(toy.programs, toy.params.role.slots).total
    for held in (Memory(need - 1, need - 1), Memory(2 * need, 0)):
        monkeypatch.setattr(capacity, "memory", lambda held=held: held)
        with pytest.raises(Unfit, match=f"needs {readable(need)} of memory, this machine has"):
            keep_up(toy, require_claimant, AT_ONCE)
        assert ran == []
    monkeypatch.setattr(capacity, "memory", lambda: Memory(need, need))
    keep_up(toy, require_claimant, AT_ONCE)


def test_a_chain_takes_its_part_of_every_window() -> None:
    assert ETHEREUM.inclusion == 24, "two blocks"
    assert ChainPace(block=2.0, promised=60.0).inclusion == 60, "a deployment may promise less"
    assert ETHEREUM.game == 16 * 24, "sixteen moves"
    roomy = amended(
        TERMS, train_seconds=Seconds(208), reveal_seconds=Seconds(24), attest_seconds=Seconds(12),
        merge_seconds=Seconds(24), clock_seconds=Seconds(16 * 24 + 104),
    )  # fmt: skip
    require_claimant(roomy, Pace(1.0, 4.0), ETHEREUM)
    for window in ("reveal_seconds", "attest_seconds", "merge_seconds", "clock_seconds"):
        with pytest.raises(Unfit, match=window):
            require_claimant(amended(roomy, **{window: value_of(roomy, window) - 1}), Pace(1.0, 4.0), ETHEREUM)
    with pytest.raises(Unfit, match="audit_seconds"):
        require_witness(amended(roomy, audit_seconds=Seconds(20)), Pace(0.0, 0.0), ETHEREUM)


def test_the_shortest_clock_of_a_fast_chain_cannot_be_kept_on_a_slow_one() -> None:
    short = amended(TERMS, clock_seconds=Seconds(60))
    require_claimant(short, Pace(0.1, 0.1), ChainPace(block=1.0))
    with pytest.raises(Unfit, match="clock_seconds"):
        require_claimant(short, Pace(0.1, 0.1), ChainPace(block=12.0))


def test_every_live_claim_could_be_defended_at_once() -> None:
    claim = live_claim(amended(TERMS, clock_seconds=Seconds(208), step_seconds=Seconds(4)), Pace(1.0, 4.0))
    assert claim == LiveClaim(208, 4, 104)
    require_all([claim, claim], AT_ONCE)
    with pytest.raises(Unfit, match="3 claims"):
        require_all([claim] * 3, AT_ONCE)
    roomy = LiveClaim(clock=1000, extra=4, work=104)
    require_all([roomy, claim, claim], AT_ONCE)
    with pytest.raises(Unfit, match="2 claims"):
        require_all([claim, claim], ChainPace(block=0.2))
    require_all([LiveClaim(208, 104, 104)] * 50, AT_ONCE)
    half = TERMS.windows.clock_seconds / 2
    assert live_claim(TERMS, None).work == half, "what nobody measured was allowed half a clock"
