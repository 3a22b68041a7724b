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
from typing import TYPE_CHECKING, Any

from lockstep.jobs import ClaimRun, State
from lockstep.protocol import honest, moves
from lockstep.protocol.errors import ChainError
from lockstep.protocol.game import Game
from lockstep.protocol.moves import DEFENDERS, Event, Finding, Move, Phase, Verdict, Wrong
from lockstep.protocol.openings import MaterialisedStep
from lockstep.protocol.types import GameId, Seconds, StateRoot

if TYPE_CHECKING:
    from lockstep.chain.contracts import Call
    from lockstep.chain.contracts import Game as GameContract

Send = Callable[["Call", str], object]
"""Sends a transaction once per key and waits until it is mined; raises ChainError if it reverts."""

KEPT_STEPS = 2
"""Materialised steps that are kept: a game is about one, two games seldom about more."""


@dataclass
class HeldClaim:
    """A claim as one party computed it, its steps materialised on demand."""

    run: ClaimRun
    trace: Sequence[StateRoot]
    """S_1 .. S_T of this computation."""
    _steps: OrderedDict[int, MaterialisedStep] = field(default_factory=OrderedDict, repr=False)

    @staticmethod
    def of(run: ClaimRun) -> HeldClaim:
        """Run a claim to its end."""
        return HeldClaim(run, [root for _, _, root in run.states()])

    @cached_property
    def state_zero(self) -> StateRoot:
        """S_0."""
        return self.run.root(0, self.run.start)

    def step(self, t: int) -> MaterialisedStep:
        """Transition t with all that a game may ask of it."""
        if t not in self._steps:
            self.hold(t, self.run.state_before(t))
        return self._steps[t]

    def hold(self, t: int, before: State) -> None:
        """Materialise transition t from the tensors of S_{t-1}, where they are at hand."""
        self._steps[t] = self.run.materialise(t, before)
        while len(self._steps) > KEPT_STEPS:
            self._steps.popitem(last=False)


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

    def game(self, game: GameId) -> Game:
        """A game as stored."""
        claim, challenger, phase, rem, deadline, verdict, *rest = self.contract.read("game", game)
        return Game(claim, challenger, Phase(phase), rem, deadline, Verdict(verdict), *rest)

    def log(self, game: GameId) -> list[Event]:
        """Its events, in order."""
        topics: list[Any] = [None, "0x" + game.hex()]
        return [event for _, event in self.entries(topics)]

    def entries(self, topics: Sequence[Any], from_block: int | None = None) -> list[tuple[Any, Event]]:
        """(raw log, event) of every log entry of the contract that matches."""
        w3 = self.contract.w3
        logs = w3.eth.get_logs(
            {
                "address": self.contract.address,
                "fromBlock": self.first_block if from_block is None else from_block,
                "toBlock": "latest",
                "topics": list(topics),
            }
        )
        return [(log, self._decode(log)) for log in logs]

    def _decode(self, log: Any) -> Event:
        named = self._abi_events[bytes(log["topics"][0])]
        arguments = dict(named().process_log(log)["args"])
        arguments.pop("game")
        return _event(named.event_name if hasattr(named, "event_name") else named.name, arguments)

    @cached_property
    def _abi_events(self) -> dict[bytes, Any]:
        from eth_utils.abi import event_abi_to_log_topic

        contract = self.contract.contract
        abis = [entry for entry in self.contract.artifact.abi if entry["type"] == "event"]
        return {bytes(event_abi_to_log_topic(abi)): contract.events[abi["name"]] for abi in abis}


def _event(name: str, arguments: dict[str, Any]) -> Event:
    kind: Any = getattr(moves, name)
    for key, value in arguments.items():
        if key == "phase":
            arguments[key] = Phase(value)
        elif key == "verdict":
            arguments[key] = Verdict(value)
        elif key == "finding":
            fields = list(value.values()) if hasattr(value, "values") else list(value)
            arguments[key] = Finding(Wrong(fields[0]), *fields[1:])
        elif key == "children":
            arguments[key] = tuple(value)
    event: Event = kind(**arguments)
    return event


@dataclass
class Seat:
    """One party's seat at one game."""

    game: GameId
    side: Side
    held: HeldClaim
    table: Table
    send: Send

    def turn(self, now: Seconds) -> Move | None:
        """Make the move that is due, if one is: ours, or `resolve` once the other side's clock has run out.

        Returns what was sent. A move that reverts because the game has moved on is no error; any other is raised.
        """
        state = self.table.game(self.game)
        if state.phase in (Phase.NONE, Phase.CLOSED):
            return None
        ours = (state.phase in DEFENDERS) == (self.side is Side.DEFENDER)
        move: Move | None = None
        if ours:
            choose = honest.answer if self.side is Side.DEFENDER else honest.point
            move = choose(state, self.table.log(self.game), self.held)
        elif now > state.deadline:
            move = moves.Resolve()
        if move is None:
            return None
        call = self.table.contract.call(move.call, *move.arguments(self.game))
        try:
            self.send(call, f"game/{self.game.hex()}/{state.phase.name}/{state.node.hex()}/{move.call}")
        except ChainError:
            # INVARIANT: a move answers one node; if the game stands elsewhere, that node was answered.
            after = self.table.game(self.game)
            if (after.phase, after.node) == (state.phase, state.node):
                raise
            return None
        return move

    @property
    def verdict(self) -> Verdict:
        """NONE while the game runs."""
        return self.table.game(self.game).verdict
