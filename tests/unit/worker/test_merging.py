"""Merges of this worker: computed once, and defended under whatever id the chain gives their claims."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from lockstep.chain.events import Event
from lockstep.disputes.game_queue import HeldOf
from lockstep.execution import merging
from lockstep.execution.box import loading
from lockstep.execution.box.handle import Overdue
from lockstep.execution.jobs import ClaimRun, Job
from lockstep.execution.rounds import Payload, RoundRecord
from lockstep.market.acts import Action, ActionKind
from lockstep.market.held import HeldClaim
from lockstep.market.ledger import ClaimRecord, GameRecord, Ledger
from lockstep.protocol.dispute.game import DisputedClaim, Game
from lockstep.protocol.dispute.moves import GameEvent, Move, Pick, PickElement, PickPartial, Verdict
from lockstep.protocol.jobs import Phase, Round
from lockstep.protocol.market.ids import claim_id
from lockstep.protocol.types import MERGE_SLOT, ClaimId, GameId, ProgramRoot, Seconds, Seed, StateRoot, TensorRoot
from lockstep.runtime.guard.doppelganger import Watch
from lockstep.runtime.guard.memory import GuardMemory, RecordKey
from lockstep.runtime.party import Head
from lockstep.storage import ContentStore
from lockstep.storage.payload import store_checkpoint
from tests.support import toyjob
from tests.support.games import Match, Policy, defends, open_at, random_challenger, silent
from tests.support.merges import SCOPE, put, trained
from tests.support.params import amended
from tests.support.workers import ME, OTHER, bare_parts, taken_of
from tests.unit.market.test_ledger import whole_args
from worker import progress
from worker.decide import RoundView
from worker.parts import TrackedJob, WorkerParts
from worker.progress import WorkFolder
from worker.service import Worker

HEAD = Head(9, Seconds(9000))
NODE = b"node"


@dataclass
class Field:
    """A job of which two rounds are merged and wait for backing, and the home of a worker whose turn it is."""

    job: Job
    store: ContentStore
    home: Path
    guard: GuardMemory
    ledger: Ledger = field(default_factory=Ledger)
    runs: dict[int, ClaimRun] = field(default_factory=dict)
    """The merge of each round, by number."""
    attempt: int = 0
    blocks: int = 0

    def say(self, name: str, contract: str = "JobMarket", **arguments: Any) -> None:
        """An event of the market."""
        self.blocks += 1
        args = whole_args(contract, name, {"job": self.job.id, **arguments})
        self.ledger.apply(Event(contract, name, args, self.blocks, bytes(32), Seconds(self.blocks), bytes(32), 0))

    def freeze(self, number: int, refs: Sequence[Payload], seed: Seed) -> None:
        """A round is started in the job's attempt, and these payloads of it are frozen."""
        base = merging.base_checkpoint(self.job, self.store, self.records(number))
        roots = self.job.checkpoint_roots(base)
        self.say("RoundStarted", round=number, attempt=self.attempt, base=roots[0], outer=roots[1])
        for slot, ref in enumerate(refs):
            claim = claim_id(self.job.id, number, self.attempt, slot)
            self.say("Joined", round=number, slot=slot, worker=OTHER)
            self.say(
                "Revealed", round=number, slot=slot, claim=claim, worker=OTHER, out=ref.out, out2=ref.out2,
                payload_cid=ref.cid,
            )  # fmt: skip
        self.say("Sealed", round=number, seed=seed)
        padded = [*refs, *[None] * (toyjob.SLOTS - len(refs))]
        payloads = merging.fetch_payloads(self.job, self.store, padded)
        run = self.runs[number] = merging.merge_run(self.job, base, payloads, seed, number)
        self.say("Frozen", round=number, mask=(1 << len(refs)) - 1, merge_in=run.root(0, run.start))

    def merged(self, number: int, worker: str) -> ClaimId:
        """A round is merged, or merged again, by what its payloads give."""
        known = self.ledger.jobs[self.job.id]
        done = merging.finish(self.runs[number])
        self.attempt += known.rounds[number].merge is not None
        claim = claim_id(self.job.id, number, self.attempt, MERGE_SLOT)
        cid = store_checkpoint(self.store, done.checkpoint)
        self.say(
            "Merged", round=number, claim=claim, worker=worker, out=done.out, out2=done.out2, checkpoint_cid=cid
        )  # fmt: skip
        return claim

    def records(self, before: int) -> list[RoundRecord]:
        known = self.ledger.jobs[self.job.id]
        return known.records(before, toyjob.SLOTS)

    def view(self, number: int, phase: Phase) -> RoundView:
        """As the chain has a round that is to be merged."""
        r = self.ledger.jobs[self.job.id].rounds[number]
        out, out2 = (r.merge.out, r.merge.out2) if r.merge else (bytes(32), bytes(32))
        state = Round(
            phase, r.attempt, seed=r.seed, base=r.base, outer=r.outer, merge_in=r.merge_in or r.base,
            next_shared=StateRoot(out), next_outer=StateRoot(out2),
        )  # fmt: skip
        return RoundView(number, state, phase, ())

    def worker(self) -> HomeWorker:
        """A process that works in the home."""
        parts: Any = bare_parts(self.home, self.store)
        parts.guard, parts.watcher.ledger, parts.watcher.poll = self.guard, self.ledger, list
        parts.node = SimpleNamespace(public=NODE)
        parts.party = SimpleNamespace(head=lambda: HEAD)
        parts.outbox.tend = lambda: None
        parts.contracts.vault = SimpleNamespace(free=lambda account: 0)
        parts.contracts.market = SimpleNamespace(merge=lambda *arguments: arguments)
        parts.watch = Watch(self.guard, ME, NODE, lambda sent: True, lambda job, r: Phase.NONE, Seconds(120))
        made = HomeWorker(parts)
        taken = made._jobs.taken[self.job.id] = taken_of(self.job)
        taken.ledger = self.ledger.jobs[self.job.id]
        return made


class HomeWorker(Worker):
    """Sends nothing, looks at no chain, and plays the games that a test asks about."""

    def __init__(self, parts: WorkerParts) -> None:
        super().__init__(parts)
        self.sent: dict[str, Any] = {}
        self.cached: HeldOf = lambda claim: None
        self.held_of: HeldOf = lambda claim: None
        """Finds the claim that its moves are made from."""
        sender: Any = self._sender
        sender.submit = lambda key, call, act=None: self.sent.setdefault(key, call)
        defence: Any = self._handlers.defence
        defence.play = self._played

    def merge(self, field: Field, number: int, phase: Phase, attempt: int) -> Any:
        """The call that merges a round, when the look was made in this attempt of the job."""
        (taken,) = self._jobs.taken.values()
        taken.view = SimpleNamespace(job=SimpleNamespace(attempt=attempt))  # type: ignore[assignment]
        key, deadline = f"{number}/{phase}/{attempt}", time.monotonic() + 60
        before = set(self.sent)
        while set(self.sent) == before:
            assert time.monotonic() < deadline
            act = Action(ActionKind.MERGE, number, rounds=2)
            self._handlers.commitments.merge(taken, field.view(number, phase), act, key, Seconds(1000))
            time.sleep(0.002)
        (sent,) = set(self.sent) - before
        return self.sent[sent]

    def looks(self) -> None:
        """Take in a block, and play."""
        self._load(0, HEAD)
        self._handlers.defence.defend(self._ledger, HEAD, self._run_of)

    def play(self, claim: ClaimId) -> None:
        """Take in a block with a game about a claim."""
        self._ledger.games[GameId(b"g" * 32)] = GameRecord(GameId(b"g" * 32), claim, OTHER, ME, 0, 1)
        self.looks()

    def _played(self, games: Any, head: Head, held_of: Any) -> None:
        self.cached = self._handlers.defence.cached
        self.held_of = lambda claim: self.cached(claim) or held_of(claim)

    def _look(self, taken: TrackedJob) -> None:
        pass

    def _answer(self) -> None:
        pass


@pytest.fixture
def field_(toy: Job, toy_store: ContentStore, tmp_path: Path) -> Iterator[Field]:
    with GuardMemory(tmp_path, SCOPE) as guard:
        guard.trust()
        made = Field(toy, toy_store, tmp_path, guard)
        made.ledger.nodes[ME] = NODE
        made.say("JobCreated", requester=OTHER)
        for number in (0, 1):
            made.freeze(number, payloads(made, 3), toyjob.SEED)
            made.merged(number, OTHER)
        yield made


@pytest.fixture
def workers(field_: Field) -> Iterator[Callable[[], HomeWorker]]:
    made: list[HomeWorker] = []

    def begin() -> HomeWorker:
        made.append(field_.worker())
        return made[-1]

    yield begin
    for worker in made:
        worker._handlers.close()


def payloads(field: Field, slots: int) -> list[Payload]:
    return [put(field.job, field.store, trained(field.job, slot)) for slot in range(slots)]


def shifted(field: Field, worker: HomeWorker) -> ClaimId:
    """Ours is on its way when another merge is made again, in a transaction that is mined before it."""
    foreseen = claim_id(field.job.id, 1, field.attempt + 1, MERGE_SLOT)
    worker.merge(field, 1, Phase.LEAD, field.attempt)
    field.merged(0, OTHER)
    claim = field.merged(1, ME)
    assert claim != foreseen
    return claim


def disputed(field: Field, record: ClaimRecord) -> DisputedClaim:
    """A merge as the market tells of it where a game is opened."""
    p, r = field.job.params, field.ledger.jobs[field.job.id].rounds[record.round]
    assert r.merge_in is not None
    root = ProgramRoot(field.job.programs.merge.root)
    return DisputedClaim(
        record.id, record.worker, 1, record.body, r.merge_in, root, root, r.seed, r.number, MERGE_SLOT,
        TensorRoot(p.role.dataset_root), p.role.dataset_rows, p.role.row_length, p.windows.clock_seconds,
        p.windows.step_seconds, p.prices.bond,
    )  # fmt: skip


def record_of(field: Field, claim: ClaimId) -> ClaimRecord:
    found = field.ledger.find(claim)
    assert found is not None
    return found[2]


def verdicts(field: Field, claim: ClaimId, held: HeldClaim | None) -> set[Verdict]:
    """Plays false games, which point wherever the rules allow and end where something had to be wrong."""
    about, truth, found = disputed(field, record_of(field, claim)), HeldClaim.of(field.runs[1]), set[Verdict]()
    for seed in range(4):
        wanders = random_challenger(Random(seed), truth, concede=0)  # type: ignore[arg-type]

        def points(state: Game, log: Sequence[GameEvent], wanders: Policy = wanders) -> Move | None:
            move = wanders(state, log)
            return move if isinstance(move, Pick | PickElement | PickPartial) else None

        defender = silent if held is None else defends(held)
        found.add(Match(about).run(open_at(about, truth, 1), defender, points).verdict)
    return found


@pytest.mark.parametrize("life", ["it goes on", "it is started again", "it was down"])
def test_a_merge_that_was_mined_under_another_attempt_is_defended(
    field_: Field, workers: Callable[[], HomeWorker], life: str
) -> None:
    worker = workers()
    claim = shifted(field_, worker)
    if life == "it is started again":
        worker.looks()
    if life != "it goes on":
        worker = workers()
        worker._start()
        assert worker.parts.watch.until is None, "its own claim is no reason to listen"
    worker.play(claim)
    if life == "it goes on":
        assert worker.cached(claim) is not None, "what is in memory stays there"
    held = worker.held_of(claim)
    assert verdicts(field_, claim, held) == {Verdict.REJECTED}
    assert Verdict.REJECTED not in verdicts(field_, claim, None), "by silence it is lost"
    r = field_.ledger.jobs[field_.job.id].rounds[1]
    assert r.merge_in is not None
    promise = field_.guard.record(RecordKey(claim, r.seed, r.merge_in))
    assert promise is not None
    assert promise.values == record_of(field_, claim).body.words
    worker._handlers.training.forget(field_.job.id)
    assert [*field_.home.glob("work/*"), *field_.home.glob("states/*")] == [], "nothing is left of a job that is over"


@pytest.mark.parametrize("cut", ["before the copy", "in the copy", "before the promise"])
def test_who_is_killed_while_it_takes_a_merge_over_does_so_in_its_next_life(
    field_: Field, workers: Callable[[], HomeWorker], monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    def killed(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    worker = workers()
    claim = shifted(field_, worker)
    place, name = {
        "before the copy": (WorkFolder, "save_material"),
        "in the copy": (progress, "write_atomically"),
        "before the promise": (field_.guard, "bind"),
    }[cut]
    with monkeypatch.context() as patched:
        patched.setattr(place, name, killed)
        with pytest.raises(KeyboardInterrupt):
            worker.looks()
    again = workers()
    again._start()
    assert again.parts.watch.until is None
    again.play(claim)
    assert verdicts(field_, claim, again.held_of(claim)) == {Verdict.REJECTED}


def test_a_merge_is_computed_once_however_often_the_job_is_in_another_attempt(
    field_: Field, workers: Callable[[], HomeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = workers()
    first = worker.merge(field_, 1, Phase.LEAD, 0)
    monkeypatch.setattr(merging, "finish", lambda *_: pytest.fail("it is computed"))
    assert worker.merge(field_, 1, Phase.LEAD, 1) == first


def test_a_round_that_is_run_again_is_not_merged_to_what_its_voided_attempt_gave(
    field_: Field, workers: Callable[[], HomeWorker]
) -> None:
    worker = workers()
    voided = worker.merge(field_, 1, Phase.LEAD, 0)
    (false,) = field_.ledger.jobs[field_.job.id].rounds[0].merges
    field_.say("Convicted", claim=false.id, round=0, slot=MERGE_SLOT, worker=OTHER)
    field_.say("RoundVoid", round=1)
    field_.attempt = 1
    field_.merged(0, OTHER)
    field_.freeze(1, payloads(field_, 2), Seed(b"s" * 32))
    _, _, out, out2, *_ = worker.merge(field_, 1, Phase.MERGING, 1)
    true = merging.finish(field_.runs[1])
    assert (out, out2) == (true.out, true.out2)
    assert (out, out2) != voided[2:4]


def test_nothing_is_taken_over_for_a_claim_of_other_outputs(field_: Field, workers: Callable[[], HomeWorker]) -> None:
    worker = workers()
    worker.merge(field_, 1, Phase.LEAD, 0)
    r = field_.ledger.jobs[field_.job.id].rounds[1]
    claim = ClaimId(b"o" * 32)
    r.merges.append(replace(r.merges[0], id=claim, worker=ME, out=r.merges[0].out2))
    worker.looks()
    assert WorkFolder(field_.home, claim).material() is None


@pytest.mark.parametrize("name", ["next_shared", "next_outer"])
def test_who_merges_again_backs_no_outputs_that_are_not_its_own(
    field_: Field, workers: Callable[[], HomeWorker], name: str
) -> None:
    worker = workers()
    own = worker.merge(field_, 1, Phase.LEAD, 0)
    (taken,), sent, promised = worker._jobs.taken.values(), dict(worker.sent), field_.guard.records()
    taken.view = SimpleNamespace(job=SimpleNamespace(attempt=1))  # type: ignore[assignment]
    merged = field_.view(1, Phase.LEAD)
    false = replace(merged, state=replace(merged.state, **{name: StateRoot(b"f" * 32)}))
    again = partial(
        worker._handlers.commitments.merge, act=Action(ActionKind.MERGE, 1, rounds=2), key="again", now=Seconds(1000)
    )
    again(taken, false)
    assert (worker.sent, field_.guard.records()) == (sent, promised), "false outputs are nobody's to back"
    again(taken, replace(false, phase=Phase.MERGING))
    assert worker.sent.keys() - sent.keys() == {"again/1"}, "nobody has merged it: its own are due"
    assert worker.sent["again/1"] == own


def test_what_was_taken_over_is_let_go_with_its_job(field_: Field, workers: Callable[[], HomeWorker]) -> None:
    worker = workers()
    shifted(field_, worker)
    worker.looks()
    defence, job = worker._handlers.defence, field_.job.id
    assert set(defence._adopted) == {job}
    worker._jobs.kept, worker._ledger.jobs[job].done = {job}, True
    worker._jobs.taken.clear()
    worker.looks()
    assert not defence._adopted


def test_a_merge_that_is_not_done_in_its_turn_is_ended_and_not_claimed(
    field_: Field, workers: Callable[[], HomeWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, bounds, ran = workers(), list[float](), list[int]()

    @contextmanager
    def within(seconds: float) -> Iterator[None]:
        bounds.append(seconds)
        yield

    def late(run: ClaimRun) -> Any:
        ran.append(run.round)
        raise Overdue(f"it was not done after {bounds[-1]:.0f} s", "")

    box: Any = SimpleNamespace(within=within, close=lambda: None)
    (taken,) = worker._jobs.taken.values()
    taken.job = replace(taken.job, box=box, params=amended(taken.job.params, turn_seconds=0))
    taken.view = SimpleNamespace(job=SimpleNamespace(attempt=0))  # type: ignore[assignment]
    monkeypatch.setattr(loading, "LEAST_SECONDS", 0)
    monkeypatch.setattr(merging, "finish", late)
    merge = partial(
        worker._handlers.commitments.merge, taken, field_.view(1, Phase.LEAD), Action(ActionKind.MERGE, 1), "merge"
    )
    training, name = worker._handlers.training, claim_id(field_.job.id, 1, field_.attempt, MERGE_SLOT)
    deadline = time.monotonic() + 60
    with capture_logs() as logs:
        while not logs:
            assert time.monotonic() < deadline
            merge(Seconds(1000))
    assert "after 0 s" in logs[0]["message"]
    assert (bounds, ran) == ([0], [1])
    assert (worker.sent, field_.guard.records()) == ({}, [])
    merge(Seconds(9000))
    assert ("claim", name) not in training._executor, "it is begun once, and the thread is free"
