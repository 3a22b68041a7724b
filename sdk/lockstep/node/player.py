"""Games on chain: what a party holds of a claim, and its seat at each game about it.

read the game and its log -> decide (`protocol.honest`) -> send one move. A seat keeps nothing that the chain does not
say again, so a process that was killed sits down where it stood.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

from lockstep.base.cache import MemoryCache, bytes_of
from lockstep.chain import games
from lockstep.execution.jobs import ClaimRun, State
from lockstep.numerics.arrays import Array
from lockstep.numerics.trace import StepTrace, TensorCache
from lockstep.protocol import merkle
from lockstep.protocol.dispute import honest, moves
from lockstep.protocol.dispute.game import Game
from lockstep.protocol.dispute.moves import DEFENDERS, GameEvent, GamePhase, Move, Verdict
from lockstep.protocol.dispute.openings import CommittedTensor, Levels, MaterialisedStep
from lockstep.protocol.errors import ChainError
from lockstep.protocol.programs.program import Program
from lockstep.protocol.types import GameId, Seconds, StateRoot, TensorRoot

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call, Market
    from lockstep.chain.contracts import GameContract as GameContract
    from lockstep.execution.states import ClaimStates

Send = Callable[["Call", str], object]
"""Sends a transaction once per key and waits until it is mined; raises ChainError if it reverts."""

WAYPOINTS = 16
"""States along a claim that a replay leaves on disk: the next game, on any step, replays a part of it alone."""
KEPT = 1_024
"""Games that a table remembers as they stood."""


class NotAtHand(Exception):
    """A move needs what takes time to make."""


@dataclass(eq=False)
class HeldClaim:
    """A claim as one party computed it, its steps materialised on demand.

    What that takes (states, single tensors of steps) lies in a cache and can be made again; states that games argue
    from are on disk too, where `states` says so. A step's tree, once made, stays.
    """

    run: ClaimRun
    trace: Sequence[StateRoot]
    """S_1 .. S_T of this computation."""
    cache: MemoryCache = field(default_factory=MemoryCache, repr=False)
    """Shared by all claims of a process."""
    states: ClaimStates | None = field(default=None, repr=False)
    wanted: frozenset[int] = frozenset()
    """Transitions that open games are about."""
    _trees: dict[int, Tree] = field(default_factory=dict, repr=False)
    _pinned: dict[int, MaterialisedStep] = field(default_factory=dict, repr=False)
    """Steps that cannot be made again from the run."""

    @staticmethod
    def of(run: ClaimRun) -> HeldClaim:
        """Run a claim to its end."""
        return HeldClaim(run, [root for _, _, root in run.states()])

    @cached_property
    def state_zero(self) -> StateRoot:
        """S_0."""
        return self.run.root(0, self.run.start)

    @property
    def carried(self) -> moves.Proof:
        """The words of the claim whose carry is in S_0; none if that is zero."""
        return () if self.run.carried is None else self.run.carried.words

    def step(self, t: int) -> MaterialisedStep:
        """Transition t with all that a game may ask of it, for one move."""
        pinned = self._pinned.get(t)
        if pinned is not None:
            return pinned
        if t not in self._trees:
            self.whole(t)
        return ShownStep(self._trees[t], self.place(t), lambda: self.whole(t))

    def at_hand(self, t: int) -> MaterialisedStep:
        """Transition t, as far as it is in memory; what is not raises NotAtHand, here or when it is asked for."""
        pinned = self._pinned.get(t)
        if pinned is not None:
            return pinned
        if t not in self._trees:
            raise NotAtHand
        return ShownStep(self._trees[t], self.place(t), lambda: self._in_memory(t))

    def has(self, t: int) -> bool:
        """Tells if transition t can be shown without a replay: S_{t-1} is in memory."""
        return t in self._pinned or any((self, kind, t) in self.cache for kind in ("step", "state"))

    def whole(self, t: int) -> StepTrace:
        """Transition t from the tensors of S_{t-1}, which are computed again if they had to go."""
        known: StepTrace | None = self.cache.get((self, "step", t))
        if known is not None:
            return known
        before = self.approach(t)
        assert before is not None, "nothing limits the time"
        return self.hold(t, before)

    def hold(self, t: int, before: State) -> StepTrace:
        """Materialise transition t from the tensors of S_{t-1}, where they are at hand; its tree is made now."""
        self._keep_state(t, before)
        step = replace(self.run.materialise(t, before), place=self.place(t))
        if t not in self._trees:
            self._trees[t] = Tree(step.program, step.graph, step.prev)
        # Its state is the one that was kept just now, and takes no memory of its own.
        self.cache.drop((self, "state", t))
        self.cache.put((self, "step", t), step, bytes_of(before, self.run.start), lambda: t in self.wanted)
        return step

    def place(self, t: int) -> TensorCache:
        """Returns the cache that holds the tensors of transition t between moves."""
        return TensorCache(self.cache, (self, "tensors", t), lambda: t in self.wanted)

    def keep(self, t: int, step: MaterialisedStep) -> None:
        """Keep a transition that was materialised elsewhere."""
        self._pinned[t] = step

    def approach(self, t: int, seconds: float = inf) -> State | None:
        """The tensors of S_{t-1}, from the nearest state that is kept; None if it takes longer than `seconds`.

        What was done in that time is kept: the next call goes on from there.
        """
        began = time.monotonic()
        k, state = self._nearest(t)
        while k < t:
            if time.monotonic() - began > seconds:
                self._put_state(k, state)
                return None
            state = self.run.advance(k, state)
            k += 1
            if k in self.wanted or (k - 1) % self._stride == 0:
                self._keep_state(k, state)
        self._keep_state(t, state)
        return state

    @property
    def _stride(self) -> int:
        return -(-self.run.transitions // WAYPOINTS)

    def _nearest(self, t: int) -> tuple[int, State]:
        """(k, the tensors of S_{k-1}), k <= t as large as can be had."""
        on_disk = [] if self.states is None else [s + 1 for s in self.states.kept() if s < t]
        for k in sorted({*on_disk, *range(2, t + 1)}, reverse=True):
            state = self._shelved(k)
            if state is None and k in on_disk and self.states is not None:
                state = self.states.load(self.run, k - 1, self.trace[k - 2])
                if state is not None:
                    self._put_state(k, state)
            if state is not None:
                return k, state
        return 1, self.run.start

    def _in_memory(self, t: int) -> StepTrace:
        known: StepTrace | None = self.cache.get((self, "step", t))
        if known is None:
            raise NotAtHand
        return replace(known, made=InMemory())

    def _shelved(self, t: int) -> State | None:
        """The tensors of S_{t-1}, if they are in memory."""
        step: StepTrace | None = self.cache.get((self, "step", t))
        state: State | None = self.cache.get((self, "state", t)) if step is None else list(step.before)
        return state

    def _keep_state(self, t: int, before: State) -> None:
        """S_{t-1} in the cache if a game is about t, on disk if there is one."""
        if t == 1:
            return
        on_disk = self.states is not None and self.states.save(self.run, t - 1, before)
        if not on_disk or t in self.wanted:
            self._put_state(t, before)

    def _put_state(self, t: int, before: State) -> None:
        if t > 1 and (self, "step", t) not in self.cache:
            before = list(before)  # a device's memory is for what it computes
            size = bytes_of(before, self.run.start)
            self.cache.put((self, "state", t), before, size, lambda: t in self.wanted)


@dataclass(frozen=True)
class Tree:
    """The part of a materialised step that stays in memory."""

    program: Program
    graph: Levels
    prev: Levels


class InMemory:
    """The outputs of a step's ops (`trace.Made`) while none may be computed: raises NotAtHand."""

    @property
    def roots(self) -> tuple[TensorRoot, ...]:
        """Those of a step that was made are in its tree."""
        raise NotAtHand

    def arrays(self, ops: frozenset[int]) -> Mapping[int, Array]:
        """Raises NotAtHand: outputs in memory are found before this is called."""
        raise NotAtHand


class ShownStep:
    """A step as one move sees it: its tree, and tensors from where they lie; the step itself only if one is missing."""

    def __init__(self, tree: Tree, place: TensorCache, find: Callable[[], StepTrace]) -> None:
        self.program = tree.program
        self.graph = tree.graph
        self.prev = tree.prev
        self._place = place
        self._find = find

    @property
    def root(self) -> StateRoot:
        """S_t."""
        s = self.program.s_out
        return StateRoot(merkle.node_at(self.graph, s, self.program.state_block >> s))

    def output(self, op: int) -> CommittedTensor:
        """The output of an op."""
        found = self._place.get(op)
        return self._step.output(op) if found is None else found

    def state(self, entry: int) -> CommittedTensor:
        """A tensor of S_{t-1}."""
        return self._step.state(entry)

    def dataset(self) -> CommittedTensor:
        """The job's dataset."""
        return self._step.dataset()

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        """One level of a fold's partials."""
        return self._step.partials(op, element, group)

    @cached_property
    def _step(self) -> StepTrace:
        # A copy: what this move asks for lives as long as it does, and no longer.
        return replace(self._find())


@dataclass(frozen=True)
class AtHand:
    """A held claim of which only what is in memory may be asked for: raises NotAtHand for the rest."""

    known: HeldClaim | None
    """None: not even that."""

    @property
    def state_zero(self) -> StateRoot:
        """S_0."""
        return self._held.state_zero

    @property
    def carried(self) -> moves.Proof:
        """The words of the claim whose carry is in S_0."""
        return self._held.carried

    @property
    def trace(self) -> Sequence[StateRoot]:
        """S_1 .. S_T."""
        return self._held.trace

    def step(self, t: int) -> MaterialisedStep:
        """Transition t, as far as it is in memory."""
        return self._held.at_hand(t)

    @property
    def _held(self) -> HeldClaim:
        if self.known is None:
            raise NotAtHand
        return self.known


class Side(Enum):
    """The two parties to a game."""

    DEFENDER = "defender"
    CHALLENGER = "challenger"


@dataclass(frozen=True)
class GameTable:
    """The games as the chain shows them."""

    contract: GameContract
    first_block: int
    """The block of the deployment: no log is older."""
    market: Market | None = None
    """Given, a challenger also ends games whose claim another game has decided: its bond comes back at once."""
    _read: dict[GameId, Game] = field(default_factory=dict, compare=False, repr=False)
    """Open games as they stood when they were read last: one request tells that they still stand so."""

    def game(self, game: GameId) -> Game:
        """A game as it stands; raises NotFoundError if there is none, TryLater if the node's log lags behind."""
        found = games.read(self.contract, game, self.first_block, self._read.pop(game, None))
        if found.phase != GamePhase.CLOSED:
            self._read[game] = found
        for longest_unread in list(self._read)[:-KEPT]:
            self._read.pop(longest_unread, None)
        return found

    def log(self, game: GameId) -> list[GameEvent]:
        """Its events, in order."""
        return games.log(self.contract, game, self.first_block)

    def decided_elsewhere(self, game: Game) -> bool:
        """Returns True if a verdict on the game's claim counts no more."""
        return self.market is not None and not self.market.live(game.claim)


@dataclass(frozen=True)
class Due:
    """A move that a seat is to make now."""

    move: Move
    call: Call
    key: str
    """One per move: sent twice, it is one transaction."""
    state: Game
    """The game that it answers."""


def key_of(game: GameId, state: Game, move: Move) -> str:
    """The key of a move in a game that stands so: sent twice, it is one transaction."""
    return f"game/{game.hex()}/{state.phase.name}/{state.standing.digest.hex()}/{move.call}"


@dataclass
class Seat:
    """One party's seat at one game."""

    game: GameId
    side: Side
    held: honest.MaterialisedClaim
    table: GameTable
    send: Send

    def due(self, now: Seconds, state: Game | None = None) -> Due | None:
        """The move to make at `now`, if there is one: ours, or `resolve` once the other side's clock has run out.

        None also where there is nothing to prove, or our own clock has run out: the game is lost then. `state` is the
        game as it stands, where it is known already.
        """
        state = self.table.game(self.game) if state is None else state
        move = self._move(state, now)
        if move is None:
            return None
        key = key_of(self.game, state, move)
        return Due(move, games.call(self.table.contract, move, self.game), key, state)

    def turn(self, now: Seconds) -> Move | None:
        """Make the move that is due, if one is, and return it.

        A move that reverts because the game has moved on is no error; any other is raised.
        """
        due = self.due(now)
        if due is None:
            return None
        try:
            self.send(due.call, due.key)
        except ChainError:
            if self.moved_on(due):
                return None
            raise
        return due.move

    def moved_on(self, due: Due) -> bool:
        """Returns True if the game stands elsewhere than when the move was decided."""
        # INVARIANT: a move answers the game as it stands; if it stands elsewhere, somebody has moved.
        return self.table.game(self.game).standing != due.state.standing

    @property
    def verdict(self) -> Verdict:
        """NONE while the game runs."""
        return self.table.game(self.game).verdict

    def _move(self, state: Game, now: Seconds) -> Move | None:
        if state.phase == GamePhase.CLOSED:
            return None
        if self.side is Side.CHALLENGER and self.table.decided_elsewhere(state):
            return moves.Resolve(state.standing)
        if (state.phase in DEFENDERS) != (self.side is Side.DEFENDER):
            return moves.Resolve(state.standing) if now > state.deadline else None
        if now > state.deadline:
            return None
        choose = honest.answer if self.side is Side.DEFENDER else honest.point
        return choose(state, self.table.log(self.game), self.held)
