"""A row of the table of cheats: where a lie is told, who finds it, how it ends, who pays for it; and its run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lockstep.chain import games
from lockstep.protocol.jobs import JobParams
from lockstep.protocol.programs.program import Program
from lockstep.protocol.types import GameId
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import OpName, named

Outcome = GameId | str | tuple[GameId, Where | None]
"""The game that decided, with the place where it had to end if that is drawn from a seed; or the rule that was met."""
Story = Callable[[Court], Outcome]
Losses = Callable[[JobParams], Mapping[str, int]]
"""Stakes, bonds and fines by party; `MERGER` is whoever merged round 0 first."""
MERGER = "merger"
CONTRACT = "the contract"


@dataclass(frozen=True)
class Place:
    """A place in a transition, named before the lie is told."""

    t: int | None
    op: OpName | int | None = None
    """Of an alias: the state's entry."""
    element: int | None = None
    chunk: int | None = None
    rule: str = "op"

    def where(self, program: Callable[[int], Program]) -> Where:
        """As a game finds it."""
        if self.op is None or self.t is None:
            return Where(self.t)
        op = self.op if isinstance(self.op, int) else named(program(self.t), self.op)
        return Where(self.t, op, self.element, self.chunk, self.rule)


def slot_stake(params: JobParams) -> Mapping[str, int]:
    """Worker 0 loses the stake of its slot."""
    return {"worker-0": params.role.slot_stake}


def merge_stake(params: JobParams) -> Mapping[str, int]:
    """The merger loses its stake."""
    return {MERGER: params.merge.stake}


def bond(params: JobParams) -> Mapping[str, int]:
    """Mallory loses the bond of one game."""
    return {"mallory": params.prices.bond}


def nothing(params: JobParams) -> Mapping[str, int]:
    """Nobody loses anything."""
    return {}


def toy(**changes: object) -> Callable[[Court], object]:
    """A toy job whose round 0 has drawn its seed; its aggregator, if it has one, by name."""

    def begin(court: Court) -> None:
        named = {k: court.address(str(v)) if k == "aggregator" else v for k, v in changes.items()}
        court.reset(**named)

    return begin


TOY = toy()
"""With nothing changed."""


@dataclass(frozen=True)
class Cheat:
    """A row: one form of a cheat of docs/threat-model.md."""

    name: str
    form: str
    told: Place | str
    """The place in a transition, or the act in which it is told."""
    story: Story
    ends: str
    """A game's verdict (fraud, timeout, rejected), or refused, excluded, fined, slashed, void, answered."""
    rule: str = ""
    """The rule that it breaks, where no game decides."""
    finder: str = "verifier"
    loses: Losses | None = nothing
    """None: the story itself has weighed everybody, or nobody was paid."""
    gains: Callable[[Mapping[str, int], JobParams], bool] = lambda gained, params: True
    """What else is true of everybody's gains."""
    begins: Callable[[Court], object] = TOY
    demo: str = ""
    """The lie of `lockstep demo` that it is, if it is one."""

    @property
    def id(self) -> str:
        """As a test bears it."""
        return f"{self.name}: {self.form}"


@dataclass(frozen=True)
class Row:
    """A line of the printed table."""

    cheat: str
    form: str
    verdict: str
    declared: str
    found: str
    finder: str
    transactions: int
    """Of the games; of everything since the round was sealed, if there was none."""
    gas: int
    seconds: float


def ended(court: Court, cheat: Cheat, game: GameId, drawn: Where | None = None) -> tuple[Where, Where]:
    """Where a game had to end and where it did; fails unless it ended so, there, and for the finder of the row."""
    state, found = games.read(court.contracts.game, game), court.found(game)
    assert isinstance(cheat.told, Place)
    declared = drawn or cheat.told.where(lambda t: court.program_at(game, t))
    verdict, finder = state.verdict.name.lower(), court.name_of(state.challenger)
    assert (verdict, finder) == (cheat.ends, cheat.finder), f"{cheat.id}: {verdict}, by {finder}"
    assert declared.matches(found), f"{cheat.id}: declared {declared}, found {found}"
    return declared, found


def run(court: Court, cheat: Cheat) -> Row:
    """Play a cheat to its end; raises AssertionError if it ends otherwise than its row says."""
    begun = time.monotonic()
    cheat.begins(court)
    outcome = cheat.story(court)
    decided, drawn = outcome if isinstance(outcome, tuple) else (outcome, None)
    if isinstance(decided, str):
        declared, found = Where(rule=cheat.rule), Where(rule=decided)
        assert decided == cheat.rule, f"{cheat.id}: {decided}, not {cheat.rule}"
    else:
        declared, found = ended(court, cheat, decided, drawn)
    if cheat.loses is not None:
        court.settle()
        losers = {court.merger() if k == MERGER else k: v for k, v in cheat.loses(court.params).items()}
        gained = court.balance(losers)
        assert cheat.gains(gained, court.params), f"{cheat.id}: {gained}"
    played = court.played or court.spent
    return Row(
        cheat.name, cheat.form, cheat.ends, str(declared), str(found), cheat.finder, len(played),
        sum(s.gas for s in played), time.monotonic() - begun,
    )  # fmt: skip
