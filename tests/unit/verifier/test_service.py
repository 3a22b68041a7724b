"""The loop: what it reads, in which order it acts, and that no part of it keeps another from acting."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from lockstep.cli.retry import forget
from lockstep.execution.box.handle import Cancelled
from lockstep.execution.invalidity import Undefendable
from lockstep.protocol.errors import (
    BlobMissing,
    ChainError,
    Crashed,
    Mismatch,
    NotFoundError,
    ProgramInvalid,
    TryLater,
    Unfit,
    Unreachable,
)
from lockstep.protocol.jobs import ClaimStatus, Phase
from lockstep.protocol.programs.defects import Rule
from lockstep.protocol.types import Cid, ClaimId, JobId, Seed, StateRoot, Wei
from lockstep.runtime.identity import NodeKey
from lockstep.runtime.refusals import Refusals
from lockstep.runtime.sender import Sender
from tests.adversarial.coalitions import coordinator
from tests.support.constant import Lie
from tests.support.serving import Served
from tests.support.world import World
from tests.unit.verifier.desk import SECONDS, Desk, Replays, desk_of
from verifier import challenging
from verifier.challenging import Challenger
from verifier.demanding import Demander
from verifier.loading import LoadedJobs
from verifier.replaying import Replayer
from worker.announcing import Announcer
from worker.progress import Material

__all__ = ["desk_of"]

LIAR = 1


@pytest.fixture
def world() -> World:
    """A round whose second slot lies, revealed."""
    made = World.start()
    made.to(Phase.ATTESTING, lies={LIAR: Lie.VALUE})
    return made


@pytest.fixture
def desk(world: World, desk_of: Any) -> Desk:
    made: Desk = desk_of(world)
    return made


def to_the_end(desk: Desk) -> dict[str, Any]:
    """The liar never answers, and its clock runs out."""
    desk.poll(3)
    desk.world.pass_to(desk.world.now + 2 * desk.world.params.windows.clock_seconds)
    return desk.until("won")


def test_a_lie_is_audited_challenged_and_won(desk: Desk, world: World) -> None:
    claims = [world.claim_id(slot) for slot in range(2)]
    challenged = desk.until("challenged")
    assert [(e["claim"], e["verdict"]) for e in desk.told("audited")] == [
        (claims[0].hex(), "match"), (claims[LIAR].hex(), "mismatch"),
    ]  # fmt: skip
    mismatch = desk.told("audited")[LIAR]
    assert list(mismatch) == ["event", "time", "claim", "job", "round", "slot", "verdict", "t", "seconds"]
    assert (challenged["claim"], challenged["t"], challenged["slot"]) == (claims[LIAR].hex(), 1, LIAR)
    won = to_the_end(desk)
    assert (won["game"], won["verdict"]) == (challenged["game"], "timeout")
    assert world.contracts.market.claim(claims[LIAR]).status == ClaimStatus.CONVICTED
    assert desk.until("withdrawn", draining=True)["amount"] != "0"
    assert desk.verifier._at_rest(desk.verifier.poll(True))
    assert len(desk.told("won")) == len(desk.told("challenged")) == 1


def test_who_is_killed_sits_down_again_and_opens_nothing_twice(desk: Desk) -> None:
    desk.until("challenged")
    desk.stop()
    desk.start()
    assert not desk.verifier._at_rest(desk.verifier.poll(True)), "its game runs, though nobody sits at it yet"
    to_the_end(desk)
    assert len(desk.told("challenged")) == 1
    assert desk.replays.begun[-1] == desk.world.claim_id(LIAR), "the game's claim is held again"
    assert len(desk.told("audited", verdict="match", claim=desk.world.claim_id(0).hex())) == 2
    assert desk.replays.begun.count(desk.world.claim_id(0)) == 1, "what was found right is not replayed again"


def test_a_part_that_fails_is_logged_once_and_keeps_no_other(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self: Demander, view: Any) -> None:
        raise Mismatch("what a stranger published", hint="")

    monkeypatch.setattr(Demander, "step", failing)
    with capture_logs() as logs:
        desk.until("challenged")
    assert [line["where"] for line in logs if line["log_level"] == "error"] == [failing.__qualname__]


@pytest.mark.parametrize("error", [ChainError("reverted"), NotFoundError("no such job")])
def test_a_node_that_refuses_a_job_of_its_logs_is_asked_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refused(job: JobId) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(desk.verifier._market._market, "params", refused)
        with pytest.raises(TryLater, match="which its logs name"):
            desk.verifier.poll()
    desk.until("challenged")


def test_without_a_chain_no_part_goes_on_and_the_block_is_looked_at_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Challenger, view: Any) -> None:
        raise Unreachable("nobody answers")

    with monkeypatch.context() as patch:
        patch.setattr(Challenger, "step", failing)
        with pytest.raises(Unreachable):
            desk.verifier.poll()
        assert not desk.replays.begun
    desk.verifier.poll()
    desk._settled()
    assert desk.replays.begun, "the same block"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("error", "stays"),
    [
        (TryLater("wait"), True),
        (ChainError("no such claim"), True),
        (NotFoundError("not revealed"), True),
        (Mismatch("another S_0"), False),
    ],
    ids=["later", "reveal taken back", "not revealed", "mismatch"],
)
def test_a_game_that_cannot_be_opened_yet_is_opened_later_and_one_that_never_can_is_given_up(
    desk: Desk, error: Exception, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Challenger, wrong: Any, nonce: int) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Challenger, "_challenge", failing)
        desk.until("audited", 2)
        assert len(desk.verifier._challenger) == stays
    if stays:
        desk.until("challenged")
    else:
        desk.poll(10)
        assert not desk.told("challenged")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("first", "then", "verdicts"),
    [(Lie.NONE, Lie.VALUE, ["match", "mismatch"]), (Lie.VALUE, Lie.NONE, ["mismatch", "match"])],
    ids=["honest, then a lie", "a lie, then honest"],
)
def test_a_claim_that_comes_again_with_another_trace_is_audited_again(
    desk_of: Any, first: Lie, then: Lie, verdicts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World.start()
    world.to(Phase.TRAINING)
    mark, claim = world.devnet.snapshot(), world.claim_id(LIAR)
    world.to(Phase.ATTESTING, lies={LIAR: first})
    desk: Desk = desk_of(world)
    with monkeypatch.context() as patch:
        patch.setattr(Challenger, "_challenge", lambda *_: (_ for _ in ()).throw(TryLater("wait")))
        desk.until("audited", 2)
        assert len(desk.verifier._challenger) == (first is Lie.VALUE)
        world.devnet.revert(mark)
        world.to(Phase.ATTESTING, lies={LIAR: then})
        desk.until("audited", 3)
        desk.poll()
        assert len(desk.verifier._challenger) == (then is Lie.VALUE), "the other trace is not challenged any more"
    assert [e["verdict"] for e in desk.told("audited", claim=claim.hex())] == verdicts
    desk.poll(10)
    assert len(desk.told("challenged")) == (then is Lie.VALUE)


def test_a_refused_game_is_given_up_when_the_claim_s_window_is_over(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(self: Challenger, wrong: Any, nonce: int) -> None:
        raise ChainError("closed")

    with monkeypatch.context() as patch:
        patch.setattr(Challenger, "_challenge", closed)
        desk.until("audited", 2)
        assert len(desk.verifier._challenger) == 1
        desk.world.pass_to(desk.world.now + desk.world.params.windows.challenge_seconds)
        desk.poll(3)
        assert len(desk.verifier._challenger) == 0
    desk.poll(10)
    assert not desk.told("challenged")


def test_a_game_whose_opening_was_mined_and_reverted_is_opened_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim's reveal is taken back between the look at the chain and the block: here t is beyond the claim."""
    outbox, opening = desk.verifier._party.outbox, challenging.opening_of

    def beyond(*given: Any) -> Any:
        claim, move = opening(*given)
        return claim, replace(move, t=2**31)

    with monkeypatch.context() as patch:
        patch.setattr(challenging, "opening_of", beyond)
        patch.setattr(outbox._wire, "simulate", lambda call: None)
        desk.until("audited", 2)
        assert len(desk.verifier._challenger) == 1
        assert not desk.told("challenged")
    desk.until("challenged")
    assert len(desk.verifier._challenger) == 0


def test_a_claim_whose_data_cannot_be_had_rests_and_is_told_of_once(desk: Desk) -> None:
    claim = desk.world.claim_id(0)
    desk.replays.failing[claim] = BlobMissing("nobody holds it")
    desk.until("audited", 2)
    desk.poll(12)
    assert len(desk.told("audited", claim=claim.hex(), verdict="unavailable", reason="blob_missing")) == 1
    tries = desk.replays.begun.count(claim)
    assert 1 < tries <= 4, "five seconds of chain time apart"
    del desk.replays.failing[claim]
    desk.until("audited", 3)
    assert desk.told("audited", claim=claim.hex(), verdict="match")


def test_a_defect_in_a_replay_ends_nothing(desk: Desk) -> None:
    desk.replays.failing[desk.world.claim_id(0)] = ZeroDivisionError("what a stranger published")
    desk.until("challenged")
    assert desk.told("audited", verdict="unavailable", reason="internal")


def test_a_job_that_this_machine_cannot_hold_is_refused_once(desk: Desk) -> None:
    for slot in range(2):
        desk.replays.failing[desk.world.claim_id(slot)] = Unfit("too large")
    desk.poll(12)
    assert len(desk.told("refused", code="unfit", job=desk.world.job.hex())) == 1
    assert len(desk.replays.begun) == 1, "no claim of the job is looked at meanwhile"


def test_a_payload_that_is_not_there_is_demanded_while_that_can_keep_it_out(desk: Desk) -> None:
    claim = desk.world.claim_id(0)
    desk.replays.faults[claim] = "blob_missing"
    demanded = desk.until("demanded")
    assert (demanded["claim"], demanded["slot"]) == (claim.hex(), 0)
    assert desk.told("audited", claim=claim.hex(), verdict="match", payload="blob_missing"), "no ground for a game"
    assert desk.world.ledger().demands


@pytest.mark.parametrize("staked", [True, False], ids=["staked", "to be staked first"])
def test_a_demand_waits_for_no_block_and_is_told_of_once_it_is_mined(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, staked: bool
) -> None:
    vault, outbox = desk.world.contracts.vault, desk.party.outbox
    if not staked:
        desk.world.send(vault.request_unbond(vault.free(desk.party.address)), "verifier")
    desk.world.devnet._request("evm_setAutomine", [False])
    monkeypatch.setattr(outbox, "wait", lambda key, timeout: pytest.fail(f"the loop waits for {key}"))
    monkeypatch.setattr(Challenger, "step", lambda *_: None)
    claim = desk.world.claim_id(0)
    desk.replays.faults[claim] = "blob_missing"
    while not outbox.keys(f"demand/{claim.hex()}"):
        desk.verifier.poll()
        desk._settled()
    assert len(outbox.keys("deposit/")) == (not staked)
    desk.verifier._step(desk.verifier.poll())
    assert not desk.told("demanded"), "nothing is mined yet"
    assert not desk.verifier._at_rest(desk.verifier.poll(True)), "its bond will be locked"
    desk.poll(4)
    assert [e["claim"] for e in desk.told("demanded")] == [claim.hex()]
    assert desk.world.ledger().demands


def test_a_payload_whose_demand_the_chain_does_not_take_yet_is_demanded_at_the_next_look(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, refused = desk.world.claim_id(0), []
    desk.replays.faults[claim] = "blob_missing"

    def dear(call: Any, key: str, **_: Any) -> None:
        refused.append(key)
        raise TryLater("the base fee is above max_fee")

    with monkeypatch.context() as patch:
        patch.setattr(desk.party.outbox, "submit", dear)
        desk.until("audited", 2)
        desk.poll()
    assert f"demand/{claim.hex()}" in refused
    desk.until("demanded")


def test_an_answer_waits_for_no_block_and_is_told_of_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    due = [(f"{act}/{'ab' * 32}/{i}", desk.world.contracts.token.mint(desk.party.address, Wei(1)))
           for i, act in enumerate(("commit", "answer", "keep"))]  # fmt: skip
    monkeypatch.setattr(desk.verifier._demander._answers, "due", lambda *_: due)
    monkeypatch.setattr(Challenger, "step", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(desk.party.outbox, "wait", lambda key, timeout: pytest.fail(f"the loop waits for {key}"))
        desk.poll(5)
    assert [e["demand"] for name in ("precommitted", "answered") for e in desk.told(name)] == ["ab" * 32] * 2


def test_who_ends_stops_auditing_and_plays_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.until("challenged")
    merged: list[ClaimId] = []
    monkeypatch.setattr(Replayer, "_replay", lambda self, task, *_: merged.append(task.claim.id))
    desk.world.to(Phase.FREEZING)
    desk.poll(3, draining=True)
    assert not merged, "nothing new is begun"
    desk.world.pass_to(desk.world.now + 2 * desk.world.params.windows.clock_seconds)
    desk.until("won", draining=True)


def test_claims_that_nobody_can_challenge_any_more_are_told_as_closed(desk: Desk) -> None:
    desk.world.pass_to(desk.world.now + desk.world.params.windows.challenge_seconds)
    desk.poll()
    assert [e["verdict"] for e in desk.told("audited")] == ["closed", "closed"]
    assert not desk.replays.begun


def test_who_ends_stops_the_replay_of_a_claim_but_not_of_a_game(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    began, go_on = threading.Event(), threading.Event()
    plain = Replays.audit

    def waiting(self: Replays, run: Any, record: Any, store: Any, told: Any, hold: Any) -> Any:
        began.set()
        assert go_on.wait(SECONDS)
        return plain(self, run, record, store, told, hold)

    monkeypatch.setattr("verifier.replaying.audit", partial(waiting, desk.replays))
    desk.verifier.poll()
    assert began.wait(SECONDS)
    desk.verifier.poll(draining=True)
    go_on.set()
    desk.poll(2, draining=True)
    assert not desk.told("audited")
    assert desk.verifier._at_rest(desk.verifier.poll(True))


def test_a_game_s_claim_is_replayed_to_its_end_while_the_process_ends(desk: Desk) -> None:
    desk.until("challenged")
    desk.stop()
    desk.start()
    desk.poll(2, draining=True)
    assert len(desk.verifier._seats) == 1


def test_a_job_that_breaks_a_rule_is_voided_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, sent = next(iter(Rule)), []
    keys = iter(["commit/a", "void/a"])
    monkeypatch.setattr("verifier.proving.proof", lambda *_: (next(keys), None))
    monkeypatch.setattr(Sender, "attempt", lambda self, key, call: sent.append(key) or True)
    error = Undefendable(ProgramInvalid("a rule"), None, rule)  # type: ignore[arg-type]
    for slot in range(2):
        desk.replays.failing[desk.world.claim_id(slot)] = error
    desk.poll(3)
    assert sent == ["commit/a", "void/a"]
    assert [e["job"] for e in desk.told("precommitted")] == [desk.world.job.hex()]
    assert desk.told("voided", rule=rule.name.lower())


def test_a_worker_that_signed_two_claims_is_convicted_by_what_its_coordinator_shows(desk_of: Any) -> None:
    world = World.start()
    world.to(Phase.ATTESTING)
    claim, at = world.claim_id(0), world.contracts.addresses
    account, stored = world.accounts["worker-0"], world.contracts.market.round(world.job, 0)
    announcer = Announcer("", account, NodeKey(bytes([1]) * 32), at.chain_id, at.market)
    first, *others = world.held[claim].trace
    said = [
        announcer.body(
            Material(
                claim, world.job, 0, stored.attempt, 0, Seed(stored.seed), (start, *others),
                world.held[claim].body.out, world.held[claim].body.out2, Cid(""), Cid(""),
            ),
            StateRoot(stored.base), world.params.role.transitions,
        )
        for start in (first, StateRoot(first[::-1]))
    ]  # fmt: skip
    with Served(coordinator(said)) as url:
        desk: Desk = desk_of(world, coordinator=url)
        told = desk.until("equivocated")
        assert (told["claim"], told["slot"], told["worker"]) == (claim.hex(), 0, account.address)
        desk.poll(3)
        desk.stop()
    assert world.contracts.market.claim(claim).status == ClaimStatus.CONVICTED
    assert len(desk.told("equivocated")) == 1, "once"
    assert not desk.told("challenged"), "two signatures need no game"
    assert world.contracts.vault.credits(desk.party.address) == 0, "and earn no prize"


@pytest.mark.parametrize(("was_at_stake", "ended"), [(False, None), (True, KeyboardInterrupt)])
def test_an_outage_lets_only_those_leave_of_whom_nothing_was_at_stake(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, was_at_stake: bool, ended: type[BaseException] | None
) -> None:
    faults = [Unreachable("nobody answers", ""), KeyboardInterrupt()]

    def look(draining: bool) -> Any:
        raise faults.pop(0)

    monkeypatch.setattr(desk.verifier, "poll", look)
    monkeypatch.setattr("verifier.service.time.sleep", lambda seconds: None)
    desk.verifier._idle.see(was_at_stake, 5)
    desk.verifier._idle.see(False, 9)
    stop = threading.Event()
    stop.set()
    with pytest.raises(ended) if ended else nullcontext():
        desk.verifier.run(stop)
    assert len(faults) == (not was_at_stake), "it waits to rely on the block since which nothing is"


def test_a_job_that_ends_what_runs_it_is_refused_in_every_later_process(desk: Desk) -> None:
    for slot in range(2):
        desk.replays.failing[desk.world.claim_id(slot)] = Crashed("it was ended: SIGSEGV", "")
    desk.poll(4)
    (told,) = desk.told("refused")
    assert (told["code"], len(desk.replays.begun)) == ("crashed", 1), "no second claim of it is tried"
    desk.stop()
    desk.start()
    desk.poll(4)
    assert len(desk.replays.begun) == 1


def test_a_job_whose_refusal_is_cleared_is_looked_at_by_the_process_that_runs(desk: Desk) -> None:
    desk.replays.failing[desk.world.claim_id(0)] = Crashed("it was ended: SIGSEGV", "")
    desk.poll(4)
    assert len(desk.replays.begun) == 1
    desk.replays.failing.clear()
    (refusal,) = Refusals(desk.verifier._party.settings.home_dir).all().values()
    forget(desk.verifier._party.settings.home_dir, refusal)
    desk.poll(4)
    assert len(desk.replays.begun) > 1


def test_refusals_are_read_of_jobs_with_something_to_replay_alone(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Refusals(desk.home)
    for i in range(3):
        kept.record(JobId(bytes([i]) * 32), Crashed("a stranger's", ""))
    asked: list[object] = []
    of = Refusals.of
    monkeypatch.setattr(Refusals, "of", lambda self, job: (asked.append(job), of(self, job))[1])
    desk.until("audited", 2)
    assert set(asked) == {desk.world.job}
    asked.clear()
    desk.poll()
    assert asked == [], "every claim is settled"


def test_a_replay_is_given_up_for_an_own_game(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, stopped, threads = threading.Event(), threading.Event(), list[int]()

    def endless(*_: Any) -> Any:
        threads.append(threading.get_ident())
        begun.set()
        assert stopped.wait(SECONDS), "nobody stops it"
        raise Cancelled

    monkeypatch.setattr("verifier.replaying.audit", endless)
    monkeypatch.setattr(LoadedJobs, "stop", lambda jobs, job, thread: (threads.append(thread), stopped.set()))
    while not begun.wait(0.01):
        desk.verifier.poll()
        desk.world.devnet.mine(1)
    view, replayer = desk.verifier._market.view(desk.verifier._seen, False), desk.verifier._replayer
    replayer.step(view)
    assert not stopped.is_set(), "nothing else waits"
    monkeypatch.setattr(desk.verifier._backlog, "urgent", lambda view, games: True)
    replayer.step(view)
    assert stopped.is_set()
    assert threads[0] == threads[1], "the replay's work alone: an own game's may have come after it"


def test_a_replay_that_has_used_up_its_budget_makes_room_for_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def endless(*_: Any) -> Any:
        begun.set()
        assert stopped.wait(SECONDS), "nobody stops it"
        raise Cancelled

    monkeypatch.setattr("verifier.replaying.audit", endless)
    monkeypatch.setattr("verifier.replaying.budget", lambda params: -1.0)
    monkeypatch.setattr(LoadedJobs, "stop", lambda *_: stopped.set())
    while not begun.wait(0.01):
        desk.verifier.poll()
        desk.world.devnet.mine(1)
    desk.poll(3)
    (told,) = desk.told("refused")
    assert told["code"] == "unfit"


class Child:
    """In the place of what runs a job's Programs."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_a_job_that_is_over_is_let_go_with_what_runs_its_programs(desk_of: Any) -> None:
    world = World.start(rounds=1, witnesses=1, witness_fee=11, witness_stake=223, audit_seconds=40)
    desk: Desk = desk_of(world, witness=True)
    children = []
    for jobs in (desk.verifier._jobs, desk.verifier._duties._jobs):  # type: ignore[union-attr]
        children.append(Child())
        jobs._loaded[world.job] = SimpleNamespace(job=SimpleNamespace(box=children[-1], params=world.params))  # type: ignore[assignment]
    world.to(Phase.FINAL)
    desk.poll(4)
    assert not any(child.closed for child in children), "it may go on"
    world.send(world.contracts.market.finish(world.job), "requester")
    desk.poll(2)
    assert all(child.closed for child in children)
    assert (desk.verifier._jobs.find(world.job), desk.verifier._duties._jobs._loaded) == (None, {})  # type: ignore[union-attr]
