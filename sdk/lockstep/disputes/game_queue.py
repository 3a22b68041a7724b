"""Plays one party's games, earliest deadline first.

    a new block -> read every game -> moves whose material is in memory are sent at once, without waiting for a block
                                   -> the rest is prepared beside, the earliest deadline first, a slice at a time

No move waits for another game's block, or for a replay of another claim: the order is decided again after every move
and every slice. All state is on chain, so a process that is killed loses only slices. A party that may act for a
limited time, as under a lease, runs the same within that time (`turn`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lockstep.base.cache import MemoryCache, bytes_of
from lockstep.chain.game_table import GameTable
from lockstep.disputes.player import GamePlayer, PlannedMove, Side
from lockstep.execution.states import ClaimStates
from lockstep.market.held import CachedClaim, HeldClaim, NotCached
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.dispute.moves import DEFENDERS, GamePhase
from lockstep.protocol.errors import ChainError, FundsError, LockstepError, TryLater, Unreachable
from lockstep.protocol.types import ClaimId, GameId, Seconds, StateRoot
from lockstep.runtime.backoff import Backoff
from lockstep.runtime.error_boundary import ErrorBoundary
from lockstep.runtime.keyed_executor import KeyedExecutor
from lockstep.runtime.sender import MINED_SECONDS

if TYPE_CHECKING:
    from lockstep.chain.outbox import Outbox
    from lockstep.execution.jobs import ClaimRun
    from lockstep.execution.states import States
    from lockstep.runtime.party import Head

SLICE_SECONDS = 1.0
"""Machine seconds of one slice of a replay, after which the order is decided again."""
BACKOFF_SECONDS = (1.0, 10.0)
"""First and longest back-off, in machine seconds, of a game whose move failed; it doubles in between."""

PLAY, PREPARE = "play", "prepare"
"""The two kinds of background work, with one piece of each at a time."""

HeldOf = Callable[[ClaimId], HeldClaim | None]
"""Returns a claim as this party computed it; None if that is not available."""
OnMove = Callable[[Seconds, GameId, PlannedMove, float], None]
"""Called for each mined move with the last block's time, the game, the move, and the machine seconds that it took."""


@dataclass
class _Entry:
    """One game in the queue."""

    id: GameId
    claim: ClaimId
    game: Game | None = None
    """The game's state as last read."""
    read: int = -1
    """Block at which the game was last read."""
    sent: PlannedMove | None = None
    """The move that was sent and is not mined yet."""
    took: float = 0.0
    hard: bool = False
    """True if the next move needs a replay first."""
    quiet: int = -1
    """Block at which no move was due."""

    @property
    def deadline(self) -> Seconds:
        """Chain time at which the mover's clock runs out."""
        return Seconds(0) if self.game is None else self.game.deadline

    @property
    def fields(self) -> dict[str, str]:
        """The entry's fields in a line of the log."""
        return {"game": self.id.hex(), "claim": self.claim.hex()}


class GameQueue:
    """Every open game in which a party plays one side."""

    def __init__(
        self, table: GameTable, outbox: Outbox, side: Side, cached: HeldOf, made: OnMove, *,
        states: States | None = None, on_done: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`cached` returns a claim if it is in memory; `states` stores states of disputed claims on disk; `on_done` is
        called whenever a move was prepared.
        """
        self._table = table
        self._outbox = outbox
        self._side = side
        self._cached = cached
        self._made = made
        self._on_done = on_done
        self._states = states
        self._entries: dict[GameId, _Entry] = {}
        self._moves = 0
        """Number of mined moves."""
        self._block = -1
        self._now = Seconds(0)
        self._lock = threading.Lock()
        self._executor: KeyedExecutor[str, None] = KeyedExecutor("play", threads=2)
        self._backoff: Backoff[GameId] = Backoff(*BACKOFF_SECONDS)
        self._boundary = ErrorBoundary()

    def play(self, games: Mapping[GameId, ClaimId], head: Head, held_of: HeldOf) -> None:
        """Starts to make every due move in these open games, without waiting.

        Raises the errors of the previous turn that no single game caused.
        """
        if self._states is not None:
            self._states.need({claim: {t - 1 for t in ts} for claim, ts in self.needs().items()})
        self._executor.take(PLAY)
        if PLAY in self._executor:
            return
        self._sit(games)
        if games:
            self._executor.begin(PLAY, partial(self._pass, head))
            self._executor.take(PREPARE)
            self._executor.begin(PREPARE, partial(self._prepare, held_of))

    def turn(self, games: Mapping[GameId, ClaimId], head: Head, held_of: HeldOf) -> int:
        """Makes all due moves on the calling thread, as `play` does on a worker thread, and returns how many were made.
        Raises Unreachable if the chain does not answer, since then no game can continue."""
        before = self._moves
        self._sit(games)
        self._pass(head, outage_ends=True)
        self._prepare(held_of)
        for entry in self._by_deadline():
            if entry.sent is not None:
                self._guarded(entry, partial(self._wait, entry, entry.sent))
        return self._moves - before

    def needs(self) -> dict[ClaimId, frozenset[int]]:
        """Returns the transitions that open games are about, by claim; the claim with the earliest deadline comes
        first."""
        found: dict[ClaimId, set[int]] = {}
        for entry in self._by_deadline():
            wanted = found.setdefault(entry.claim, set())
            if entry.game is not None and entry.game.t:
                wanted.add(entry.game.t)
        return {claim: frozenset(ts) for claim, ts in found.items()}

    @property
    def idle(self) -> bool:
        """True if no move is waiting to be mined."""
        return all(entry.sent is None for entry in self._entries.values())

    def close(self) -> None:
        """Finishes the slice in progress; sent transactions stay sent."""
        self._executor.close()

    def _sit(self, games: Mapping[GameId, ClaimId]) -> None:
        with self._lock:
            for gone in set(self._entries) - set(games):
                del self._entries[gone]
                self._backoff.succeeded(gone)
            for game, claim in games.items():
                self._entries.setdefault(game, _Entry(game, claim))

    # -- what can be done at once

    def _pass(self, head: Head, *, outage_ends: bool = False) -> None:
        block, fresh = head.number, head.number != self._block
        self._block, self._now = block, head.time
        for entry in self._by_deadline():
            self._executor.go_on()
            # A game that could not be read is read again after a back-off, without waiting for a block.
            if fresh or (entry.read != block and not self._backoff.in_backoff(entry.id, time.monotonic())):
                self._guarded(entry, partial(self._read, entry), outage_ends)
        for entry in self._by_deadline():
            self._executor.go_on()
            waits = entry.sent is not None or entry.hard or entry.quiet == block or entry.read != block
            if entry.game is not None and not waits and not self._backoff.in_backoff(entry.id, time.monotonic()):
                self._guarded(entry, partial(self._turn_at, entry), outage_ends)

    def _read(self, entry: _Entry) -> None:
        entry.game = self._table.game(entry.id)
        entry.read = self._block
        if entry.sent is not None:
            self._settle(entry, entry.sent)

    def _wait(self, entry: _Entry, sent: PlannedMove) -> None:
        with suppress(ChainError, FundsError):  # it reverted; its receipt shows why
            self._outbox.wait(sent.key, MINED_SECONDS)
        self._settle(entry, sent)

    def _settle(self, entry: _Entry, sent: PlannedMove) -> None:
        """Closes a sent move by its receipt, if it has one; raises ChainError if the move did nothing."""
        receipt = self._outbox.receipt(sent.key)
        if receipt is None:
            # The outbox resends a transaction that has waited for long.
            return
        # The game was read before the receipt, so a block may lie between the two.
        if _stands(entry.game, sent.state):
            entry.game = self._table.game(entry.id)
        entry.sent = None
        # INVARIANT: a move answers the game as it stands; if it stands elsewhere, somebody has moved.
        if receipt.succeeded and not _stands(entry.game, sent.state):
            self._backoff.succeeded(entry.id)
            self._moves += 1
            self._made(self._now, entry.id, sent, entry.took)
            return
        self._outbox.forget(sent.key)
        if _stands(entry.game, sent.state):
            raise ChainError(
                f"{sent.move.call} did nothing", hint="no action is needed: it is sent again", code="chain.reverted"
            )

    def _turn_at(self, entry: _Entry) -> None:
        """Sends the due move of a game if its material is in memory; otherwise has it prepared."""
        game = entry.game
        assert game is not None, "it was read"
        if game.phase == GamePhase.CLOSED:
            return
        mine = (game.phase in DEFENDERS) == (self._side is Side.DEFENDER)
        if mine and self._now > game.deadline and not self._decided(game):
            self._boundary.log(LockstepError("a game's clock has run out", code="late"), entry.id, **entry.fields)
            return
        began = time.monotonic()
        try:
            due = self._seat(entry, CachedClaim(self._cached(entry.claim))).due(self._now, game)
        except NotCached:
            entry.hard = True
            return
        self._send(entry, due, time.monotonic() - began)

    def _decided(self, game: Game) -> bool:
        return self._side is Side.CHALLENGER and self._table.decided_elsewhere(game)

    def _seat(self, entry: _Entry, held: HeldClaim | CachedClaim) -> GamePlayer:
        return GamePlayer(entry.id, self._side, held, self._table, self._outbox.submit)

    def _send(self, entry: _Entry, due: PlannedMove | None, took: float) -> None:
        entry.hard = False
        if due is None:
            entry.quiet = self._block
            return
        self._outbox.submit(due.call, due.key)
        entry.sent, entry.took = due, took

    # -- what takes time

    def _prepare(self, held_of: HeldOf) -> None:
        """Prepare moves until none is left, the one with the earliest deadline first."""
        while True:
            self._executor.go_on()
            now = time.monotonic()
            waiting = [
                e for e in self._by_deadline() if e.hard and e.sent is None and not self._backoff.in_backoff(e.id, now)
            ]
            if not waiting:
                return
            entry = waiting[0]
            if self._guarded(entry, partial(self._slice, entry, held_of)):
                self._on_done()

    def _slice(self, entry: _Entry, held_of: HeldOf) -> None:
        """Prepares one move for a slice of time, and sends it once it is ready."""
        game, began = entry.game, time.monotonic()
        assert game is not None, "only what was read is hard"
        held = self._cached(entry.claim) or held_of(entry.claim)
        if held is None:
            raise LockstepError(
                "the files of a challenged claim are missing",
                hint="restore the home from a backup, or its stake is lost",
            )
        needs = self.needs()
        held.wanted = needs.get(entry.claim, frozenset())
        if game.t and not held.has(game.t) and held.approach(game.t, SLICE_SECONDS) is None:
            entry.took += time.monotonic() - began
            return
        due = self._seat(entry, held).due(self._now, game)
        self._send(entry, due, entry.took + time.monotonic() - began)

    # -- inside

    def _by_deadline(self) -> list[_Entry]:
        with self._lock:
            return sorted(self._entries.values(), key=lambda e: (e.deadline, e.id))

    def _guarded(self, entry: _Entry, work: Callable[[], None], outage_ends: bool = False) -> bool:
        """Runs work on one game; returns True if it succeeds. A failure puts this game alone into back-off."""
        try:
            failure = self._boundary.run(work, entry.id, **entry.fields)
        except Unreachable as error:
            if outage_ends:
                raise
            # A store that does not answer for one game must not stop games that do not need it.
            failure = error
            self._boundary.log(error, entry.id, **entry.fields)
        if failure is None:
            return True
        passes = isinstance(failure, Unreachable | TryLater)
        self._backoff.failed(entry.id, time.monotonic(), at_most=BACKOFF_SECONDS[0] if passes else None)
        return False


class DefenceQueue(GameQueue):
    """Plays the games about an account's own claims, from these claims as the account computed them."""

    def __init__(
        self, table: GameTable, outbox: Outbox, cache: MemoryCache, made: OnMove, *,
        states: States | None = None, on_done: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`cache` holds the claims in memory."""
        super().__init__(table, outbox, Side.DEFENDER, self.cached, made, states=states, on_done=on_done)
        self._cache = cache

    def hold(self, claim: ClaimId, run: ClaimRun, trace: Sequence[StateRoot]) -> HeldClaim:
        """Keeps a claim's computation in memory for games. Thread-safe: the computing thread calls this method too."""
        held = HeldClaim(run, trace, self._cache, None if self._states is None else ClaimStates(self._states, claim))
        # INVARIANT: a claim with an open game is the last to leave the memory.
        self._cache.put((claim, "claim"), held, bytes_of(run.start), lambda: claim in self.needs())
        return held

    def cached(self, claim: ClaimId) -> HeldClaim | None:
        """Returns a claim if it is in memory."""
        held: HeldClaim | None = self._cache.get((claim, "claim"))
        return held

    def drop(self, claim: ClaimId) -> None:
        """Drops a claim that can no longer be challenged."""
        self._cache.drop((claim, "claim"))


def tell_move(tell: Callable[..., None]) -> OnMove:
    """Returns a callback that prints each of a defender's moves as an event."""
    return lambda now, game, due, seconds: tell(
        "defending", time=now, game=game.hex(), claim=due.state.claim.hex(), move=due.move.call,
        seconds=round(seconds, 3),
    )  # fmt: skip


def _stands(game: Game | None, sent: Game) -> bool:
    """Returns True if a game is still in the state for which a move was sent."""
    return game is not None and game.standing == sent.standing
