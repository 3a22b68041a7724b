"""The game queue: games side by side, earliest deadline first; no game's replay or failure holds up another's move."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lockstep.base.cache import MemoryCache
from lockstep.disputes import game_queue as module
from lockstep.disputes.game_queue import GameQueue
from lockstep.disputes.player import Side
from lockstep.execution.jobs import Job, slot_run
from lockstep.execution.states import ClaimStates, States
from lockstep.market.held import HeldClaim
from lockstep.protocol.dispute import honest
from lockstep.protocol.dispute.game import NOBODY, Game
from lockstep.protocol.dispute.moves import GamePhase, Move
from lockstep.protocol.errors import ChainError, NotFoundError, TryLater
from lockstep.protocol.types import ClaimId, Digest, GameId, Seconds, Seed, Step
from lockstep.runtime.party import Head
from lockstep.storage.directory import DirectoryStore
from tests.support import toyjob
from tests.support.waiting import PATIENCE
from tests.unit.disputes.test_player import counted

PHASES = (
    GamePhase.DEFEND,
    GamePhase.GRAPH_REVEAL,
    GamePhase.TENSOR,
    GamePhase.TENSOR_REVEAL,
    GamePhase.LEAF,
    GamePhase.PARTIALS,
)
"""The defender's moves in a game about a fold."""
FOLD = 3
ZERO = Digest(bytes(32))


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return toyjob.load(DirectoryStore(tmp_path_factory.mktemp("toy")))


@dataclass
class Answer:
    """In the place of a move."""

    call: str = "reveal"

    def arguments(self, game: GameId) -> tuple[object, ...]:
        return (game,)


@dataclass
class Court:
    """The games as a chain would have them: a move that is sent is mined at the next block, and answered at once."""

    claims: dict[GameId, ClaimId]
    ts: dict[GameId, int]
    deadlines: dict[GameId, int]
    at: dict[GameId, int] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    waited: list[str] = field(default_factory=list)
    refused: Callable[[GameId], None] = lambda game: None
    lock: Any = field(default_factory=threading.Lock)

    def game(self, game: GameId) -> Game:
        k = self.at.get(game, 0)
        phase = PHASES[k] if k < len(PHASES) else GamePhase.CLOSED
        position = 0 if phase != GamePhase.TENSOR else FOLD
        node = Digest(bytes([k]) * 32)
        return Game(
            NOBODY, self.claims[game], NOBODY, t=Step(self.ts[game]), terms=600, op=FOLD, node=node, phase=phase,
            deadline=Seconds(self.deadlines[game]), position=position,
        )  # fmt: skip

    def log(self, game: GameId) -> list[Any]:
        return [self.game(game)]

    def decided_elsewhere(self, game: Game) -> bool:
        return False

    # -- the outbox

    def submit(self, call: Any, key: str) -> None:
        self.refused(GameId(bytes.fromhex(key.split("/")[1])))
        with self.lock:
            if key not in self.waiting and key not in self.done:
                self.waiting.append(key)

    def receipt(self, key: str) -> Any:
        return type("Receipt", (), {"succeeded": True}) if key in self.done else None

    def wait(self, key: str, timeout: float) -> None:
        self.waited.append(key)
        self.mine()

    def forget(self, key: str) -> None:
        self.done.remove(key)

    def mine(self) -> list[GameId]:
        """A block; the games that moved in it, in the order of their transactions."""
        with self.lock:
            moved = [GameId(bytes.fromhex(key.split("/")[1])) for key in self.waiting]
            self.done += self.waiting
            self.waiting.clear()
        for game in moved:
            self.at[game] = self.at.get(game, 0) + 1
        return moved


def answer(game: Game, events: Any, own: honest.MaterialisedClaim) -> Move:
    """What the real one asks of a claim at each phase."""
    step = own.step(game.t)
    if game.phase in (GamePhase.DEFEND, GamePhase.GRAPH_REVEAL):
        assert step.graph
    elif game.phase == GamePhase.TENSOR:
        assert step.output(game.position).levels
    elif game.phase == GamePhase.PARTIALS:
        assert step.output(game.op)
        assert step.program.ops
    else:
        assert step.output(game.op).levels
    return Answer()  # type: ignore[return-value]


@dataclass
class Desk:
    """A game queue and the claims behind it."""

    court: Court
    queue: GameQueue
    held_of: Callable[[ClaimId], HeldClaim | None]
    rebuilt: list[ClaimId]
    made: list[GameId]
    block: int = 0
    held: dict[ClaimId, HeldClaim] = field(default_factory=dict)

    def cached(self, claim: ClaimId) -> HeldClaim | None:
        return self.held.get(claim)

    def keep(self, claim: ClaimId) -> HeldClaim | None:
        found = self.held_of(claim)
        if found is not None:
            self.held[claim] = found
        return found

    def blocks(self, count: int, seconds: float = 20.0) -> None:
        """Play until every game has moved `count` times, a block whenever nothing more is sent."""
        until = time.monotonic() + seconds
        while any(self.court.at.get(game, 0) < count for game in self.court.claims):
            assert time.monotonic() < until, self.court.at
            self.poll()
            self.court.mine()

    def poll(self) -> None:
        """A new block is seen, and what can be done about it is done."""
        self.block += 1
        for _ in range(3):
            self.queue.play(self.court.claims, Head(self.block, Seconds(self.block)), self.keep)
            time.sleep(0.01)


@pytest.fixture
def desk_of(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Desk]]:
    monkeypatch.setattr(honest, "answer", answer)
    monkeypatch.setattr(module, "BACKOFF_SECONDS", (0.01, 0.05))
    desks: list[Desk] = []

    def build(n: int, ts: list[int], memory: int | None = None, deadlines: list[int] | None = None) -> Desk:
        runs = [slot_run(job, job.genesis, Seed(bytes([i]) * 32), 0, 0) for i in range(n)]
        roots = [[root for _, _, root in run.states()] for run in runs]
        claims = [ClaimId(bytes([i]) * 32) for i in range(n)]
        ids = [GameId(bytes([0xC0 + i]) * 32) for i in range(n)]
        ends = deadlines or [10_000 + i for i in range(n)]
        court = Court(
            dict(zip(ids, claims, strict=True)), dict(zip(ids, ts, strict=True)), dict(zip(ids, ends, strict=True))
        )
        cache, states = MemoryCache(memory), States(tmp_path / "states", 1 << 30)
        rebuilt: list[ClaimId] = []
        made: list[GameId] = []

        def held_of(claim: ClaimId) -> HeldClaim | None:
            rebuilt.append(claim)
            i = claims.index(claim)
            return HeldClaim(runs[i], roots[i], cache, ClaimStates(states, claim))

        made_one = lambda now, game, due, seconds: made.append(game)  # noqa: E731
        desk = Desk(court, None, held_of, rebuilt, made)  # type: ignore[arg-type]
        desk.queue = GameQueue(court, court, Side.DEFENDER, desk.cached, made_one)  # type: ignore[arg-type]
        desks.append(desk)
        return desk

    monkeypatch.setattr("lockstep.chain.games.call", lambda contract, move, game: move)
    monkeypatch.setattr(Court, "contract", None, raising=False)
    yield build
    for desk in desks:
        desk.queue.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("memory", [None, 1], ids=["roomy", "one step"])
@pytest.mark.parametrize("n", [1, 5, 16])
def test_many_claims_challenged_at_once_cost_one_replay_each(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch, n: int, memory: int | None
) -> None:
    desk = desk_of(n, [toyjob.STEPS] * n, memory)
    advanced = counted(monkeypatch)
    desk.blocks(len(PHASES))
    assert sorted(set(desk.rebuilt)) == sorted(desk.court.claims.values())
    assert len(desk.rebuilt) == n, "each claim is made once"
    assert len(advanced) == n * (toyjob.STEPS - 1), "one replay a claim, for all its moves"


def test_the_earliest_deadline_is_played_first(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(4, [1, 2, 3, 4], deadlines=[40_000, 20_000, 30_000, 10_000])
    desk.poll()
    until = time.monotonic() + PATIENCE
    while len(desk.court.waiting) < 4:
        assert time.monotonic() < until
        time.sleep(0.01)
    first = [key.split("/")[1][:2] for key in desk.court.waiting]
    assert first == ["c3", "c1", "c2", "c0"]


def test_a_move_at_hand_does_not_wait_for_a_replay(
    desk_of: Callable[..., Desk], job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(2, [5, 1], deadlines=[10_000, 20_000])
    blocked, go_on = threading.Event(), threading.Event()
    plain = HeldClaim.approach

    def approach(held: HeldClaim, t: int, seconds: float = 0.0) -> Any:
        if t == 5:
            blocked.set()
            assert go_on.wait(PATIENCE)
        return plain(held, t)

    second = list(desk.court.claims)[1]
    held = desk.keep(desk.court.claims[second])
    assert held is not None
    held.step(1).output(FOLD)
    monkeypatch.setattr(HeldClaim, "approach", approach)
    until = time.monotonic() + PATIENCE
    while desk.court.at.get(second, 0) < 3:
        assert time.monotonic() < until
        desk.poll()
        desk.court.mine()
    assert blocked.is_set()
    assert desk.court.at.get(next(iter(desk.court.claims)), 0) == 0, "the other game still waits for its replay"
    go_on.set()
    desk.blocks(len(PHASES))


def test_a_game_whose_log_lags_is_not_played_as_it_stood_and_asked_for_once_a_rest(
    desk_of: Callable[..., Desk], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BACKOFF_SECONDS", (60.0, 60.0))
    desk, real, asked = desk_of(2, [1, 2]), Court.game, list[int]()
    late, other = desk.court.claims
    desk.blocks(1)
    at = desk.court.at[late]

    def game(court: Court, id_: GameId) -> Game:
        if id_ == late:
            asked.append(desk.block)
            raise TryLater("the log is not as far", "the next block brings it")
        return real(court, id_)

    monkeypatch.setattr(Court, "game", game)
    while desk.court.at[other] < 3:
        desk.poll()
        desk.court.mine()
    assert desk.court.at[late] <= at + 1, "what was under way is mined, and no more is made of the old standing"
    assert len(asked) == len(set(asked)), "once a block"
    monkeypatch.setattr(Court, "game", real)
    desk.blocks(len(PHASES))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "kind", [ChainError("no", code="chain.No"), RuntimeError("a defect"), NotFoundError("gone", "")]
)
def test_a_game_that_fails_rests_and_holds_up_no_other(
    desk_of: Callable[..., Desk], kind: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = desk_of(3, [1, 2, 3])
    bad = next(iter(desk.court.claims))
    failing, tried = True, []

    def refused(game: GameId) -> None:
        if game == bad and failing:
            tried.append(game)
            raise kind

    desk.court.refused = refused
    until = time.monotonic() + PATIENCE
    while any(desk.court.at.get(game, 0) < len(PHASES) for game in desk.court.claims if game != bad):
        assert time.monotonic() < until
        desk.poll()
        desk.court.mine()
    assert tried
    failing = False
    desk.blocks(len(PHASES))
    assert set(desk.made) == set(desk.court.claims)


def test_lost_material_is_no_end(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(2, [1, 2])
    lost, plain = next(iter(desk.court.claims.values())), desk.held_of

    def held_of(claim: ClaimId) -> HeldClaim | None:
        return None if claim == lost else plain(claim)

    desk.held_of = held_of
    until = time.monotonic() + PATIENCE
    while desk.court.at.get(list(desk.court.claims)[1], 0) < len(PHASES):
        assert time.monotonic() < until
        desk.poll()
        desk.court.mine()


def test_who_waits_has_sent_all_before_and_is_told_how_many_moved(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(3, [2, 1, 3], deadlines=[30_000, 10_000, 20_000])
    claims, sent = desk.court.claims, list[int]()
    desk.court.refused = lambda game: sent.append(len(desk.court.waited))
    for block in range(1, len(PHASES) + 1):
        assert desk.queue.turn(claims, Head(block, Seconds(block)), desk.keep) == len(claims)
        assert set(desk.court.at.values()) == {block}
    assert [len(claims) * (block - 1) for block in range(1, len(PHASES) + 1) for _ in claims] == sent
    assert desk.court.waited[0].split("/")[1][:2] == "c1", "the earliest deadline first"
    assert sorted(desk.made) == sorted(list(claims) * len(PHASES))
    assert desk.queue.turn(claims, Head(99, Seconds(99)), desk.keep) == 0, "they are over"


def test_what_a_reorganisation_undid_is_sent_again(desk_of: Callable[..., Desk]) -> None:
    desk = desk_of(1, [1])
    (game,) = desk.court.claims
    desk.blocks(2)
    desk.poll()
    desk.court.at[game] = 1
    desk.blocks(len(PHASES))
