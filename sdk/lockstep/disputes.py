"""Games on chain: what a party holds of a claim, and its seat at each game about it.

read the game and its log -> decide (`protocol.honest`) -> send one move. A seat keeps nothing that the chain does not
say again, so a process that was killed sits down where it stood.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

from lockstep.chain import games
from lockstep.jobs import ClaimRun, State
from lockstep.protocol import honest, moves
from lockstep.protocol.errors import ChainError
from lockstep.protocol.game import Game
from lockstep.protocol.moves import DEFENDERS, Event, Move, Phase, Verdict
from lockstep.protocol.openings import MaterialisedStep
from lockstep.protocol.types import GameId, Seconds, StateRoot

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call, Market
    from lockstep.chain.contracts import Game as GameContract

Send = Callable[["Call", str], object]
"""Sends a transaction once per key and waits until it is mined; raises ChainError if it reverts."""

KEPT_STEPS = 2
"""Materialised steps that are kept: a game is about one, two games seldom about more."""

KEPT_STATES = 16
"""States before a step that are kept: games on as many steps cost no replay at their moves, only the step itself."""


@dataclass
class HeldClaim:
    """A claim as one party computed it, its steps materialised on demand."""

    run: ClaimRun
    trace: Sequence[StateRoot]
    """S_1 .. S_T of this computation."""
    _steps: OrderedDict[int, MaterialisedStep] = field(default_factory=OrderedDict, repr=False)
    _before: OrderedDict[int, State] = field(default_factory=OrderedDict, repr=False)
    """t -> the tensors of S_{t-1}."""

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
        """Transition t with all that a game may ask of it."""
        if t not in self._steps:
            self.hold(t, self._state_before(t))
        return self._steps[t]

    def hold(self, t: int, before: State) -> None:
        """Materialise transition t from the tensors of S_{t-1}, where they are at hand."""
        self._before[t] = before
        self._before.move_to_end(t)
        while len(self._before) > KEPT_STATES:
            self._before.popitem(last=False)
        self.keep(t, self.run.materialise(t, before))

    def keep(self, t: int, step: MaterialisedStep) -> None:
        """Keep a transition that was materialised elsewhere."""
        self._steps[t] = step
        while len(self._steps) > KEPT_STEPS:
            self._steps.popitem(last=False)

    def _state_before(self, t: int) -> State:
        """The tensors of S_{t-1}, from the nearest state that is kept."""
        near = max((k for k in self._before if k <= t), default=1)
        state = self._before.get(near, self.run.start)
        for k in range(near, t):
            state = self.run.advance(k, state)
        return state


class Side(Enum):
    """Of a game."""

    DEFENDER = "defender"
    CHALLENGER = "challenger"


@dataclass(frozen=True)
class Table:
    """The games as the chain shows them."""

    contract: GameContract
    first_block: int
    """Of the deployment: no log is older."""
    market: Market | None = None
    """Given, a challenger also ends games whose claim another game has decided: its bond comes back at once."""

    def game(self, game: GameId) -> Game:
        """A game as stored; raises NotFoundError if there is none."""
        return games.read(self.contract, game)

    def log(self, game: GameId) -> list[Event]:
        """Its events, in order."""
        return games.log(self.contract, game, self.first_block)

    def decided_elsewhere(self, game: Game) -> bool:
        """Whether a verdict on the game's claim counts no more."""
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


@dataclass
class Seat:
    """One party's seat at one game."""

    game: GameId
    side: Side
    held: HeldClaim
    table: Table
    send: Send

    def due(self, now: Seconds) -> Due | None:
        """The move to make at `now`, if there is one: ours, or `resolve` once the other side's clock has run out.

        None also where there is nothing to prove, or our own clock has run out: the game is lost then.
        """
        state = self.table.game(self.game)
        move = self._move(state, now)
        if move is None:
            return None
        # Equal nodes can be answered at different times after a reorganisation: the deadline tells them apart.
        place = f"{state.phase.name}/{state.node.hex()}/{state.deadline}"
        key = f"game/{self.game.hex()}/{place}/{move.call}"
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
        """Whether the game stands elsewhere than when the move was decided."""
        # INVARIANT: a move answers one node; if the game stands elsewhere, that node was answered.
        after = self.table.game(self.game)
        return (after.phase, after.node) != (due.state.phase, due.state.node)

    @property
    def verdict(self) -> Verdict:
        """NONE while the game runs."""
        return self.table.game(self.game).verdict

    def _move(self, state: Game, now: Seconds) -> Move | None:
        if state.phase == Phase.CLOSED:
            return None
        if self.side is Side.CHALLENGER and self.table.decided_elsewhere(state):
            return moves.Resolve()
        if (state.phase in DEFENDERS) != (self.side is Side.DEFENDER):
            return moves.Resolve() if now > state.deadline else None
        if now > state.deadline:
            return None
        choose = honest.answer if self.side is Side.DEFENDER else honest.point
        return choose(state, self.table.log(self.game), self.held)
