"""All games on one claim, with the money behind them: one game's rules, the vault's books and the market's part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from lockstep.numerics.arbiter import ReferenceArbiter
from lockstep.protocol.dispute import game, moves
from lockstep.protocol.dispute.docket import Docket
from lockstep.protocol.dispute.moves import GameEvent, GamePhase, Move, Verdict
from lockstep.protocol.dispute.openings import OpeningWrong
from lockstep.protocol.market.types import BURN, Keeper
from lockstep.protocol.types import Address, GameId, Seconds, Wei
from tests.support import letters
from tests.support.ledger import Books

DEPOSIT = Wei(10**9)
REQUESTER = Address("0x" + "99" * 20)
STRANGER = Address("0x" + "55" * 20)
DELEGATE = Address("0x" + "44" * 20)
START = Seconds(1_000_000)

_ARBITER = ReferenceArbiter()


@dataclass
class Record:
    """One game so far."""

    state: game.Game
    challenger: Address
    opened: Seconds
    budget: int
    """Seconds that both clocks together had at the opening."""
    log: list[GameEvent] = field(default_factory=list)
    played: list[Move] = field(default_factory=list)
    closed: Seconds | None = None


@dataclass(frozen=True)
class Act:
    """One call of the game contract and what became of it."""

    time: Seconds
    sender: Address
    game: GameId
    move: Move
    rule: str
    """That refused it; "" if it was played."""


@dataclass
class Table:
    """The games on a claim whose stake is locked."""

    claim: game.DisputedClaim
    books: Books = field(default_factory=lambda: Books.of(Seconds(0)))
    records: dict[GameId, Record] = field(default_factory=dict)
    docket: Docket = field(default_factory=Docket)
    convicted_by: GameId | None = None
    watcher: Callable[[Act], None] | None = None
    """Told of every call, after it."""

    def __post_init__(self) -> None:
        self.seat(self.claim.defender)
        self.books.lock(self.claim.defender, self.claim.id, letters.STAKE)

    def seat(self, account: Address) -> None:
        """Gives an account what it plays with."""
        self.books.deposit(account, DEPOSIT)

    def play(self, id_: GameId, move: Move, sender: Address, now: Seconds) -> Sequence[GameEvent]:
        """Plays one move, and pays where it ends a game. Raises what the contract reverts with, nothing changed."""
        record = self.records.get(id_)
        state, events = game.play(record.state if record else None, move, sender, now, self.claim, _ARBITER)
        if record is None:
            self.books.lock(sender, id_, self.claim.bond, Keeper.GAME)
            record = self.records[id_] = Record(state, sender, now, state.left_defender + state.left_challenger)
            self.docket.listed.append(id_)
            self.claim = replace(self.claim, open_games=self.claim.open_games + 1)
        record.state = state
        record.log += events
        record.played.append(move)
        if state.phase == GamePhase.CLOSED:
            record.closed = now
            self._settle(id_, record)
        return events

    def _settle(self, id_: GameId, closed: Record) -> None:
        games = {key: record.state for key, record in self.records.items()}
        self.claim = replace(self.claim, open_games=self.claim.open_games - 1)
        if closed.state.verdict == Verdict.REJECTED:
            self.docket.skip_closed(games)
            self.books.take_bond(id_, self.claim.defender)
            return
        if closed.state.verdict != Verdict.VOID:
            award = self.docket.award(games, closed.challenger, 0)
            self.books.slash(self.claim.id, Wei(0), award.winners, (), REQUESTER)
            self.claim = replace(self.claim, live=False)
            self.convicted_by = id_
        self.books.unlock(id_, Keeper.GAME)

    def tries(self, id_: GameId, move: Move, sender: Address, now: Seconds) -> str:
        """The rule that refuses a move, "" if it was played."""
        rule = ""
        try:
            self.play(id_, move, sender, now)
        except (game.MoveRefused, OpeningWrong) as refused:
            rule = refused.rule
        if self.watcher is not None:
            self.watcher(Act(now, sender, id_, move, rule))
        return rule

    # -- what must hold

    def worth(self, account: Address) -> int:
        """What an account could take away."""
        return self.books.free[account] + self.books.credits[account]

    @property
    def burned(self) -> int:
        """So far."""
        return self.books.credits[BURN]


def opening_of(move: moves.Open, sender: Address) -> GameId:
    """The game that an opening makes."""
    return game.game_id(move.claim, sender, move.nonce)
