"""Random games on the pure rules, several at a time on one claim: whoever is honest wins, and the money adds up.

    python -m tests.property.games --games 100000        a table of who met whom, and how it ended

A history is one claim, true or false, and the games on it. An honest defender meets dishonest challengers alone; a
false claim meets an honest challenger among others, or none. Everything follows from the history's number.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random as Dice

from lockstep.protocol.dispute import honest
from lockstep.protocol.dispute.moves import GamePhase, Open, Resolve, Verdict
from lockstep.protocol.types import Address, Digest, GameId, Seconds, StateRoot
from tests.property.actors import DISHONEST, Actor, Honest, View
from tests.property.table import DELEGATE, DEPOSIT, REQUESTER, START, STRANGER, Act, Record, Table, opening_of
from tests.support import letters
from tests.support.letters import LetterClaim, Lie

LENGTHS = (1, 2, 2, 3, 3, 5, 9, 70)
"""T: a merge, short slots, and one whose trace takes two reveals."""
LETTERS = (0x61, 0xFFFFFFFF)
TOO_LONG = 400
"""Moves that no game has."""

_LIES = (
    Lie(letters.RULER_OP), Lie(letters.TOTAL_OP), Lie(letters.TOTAL_OP, chunk=0), Lie(letters.LINE_OP),
    Lie(letters.SUM_OP), Lie(letters.SUM_OP, chunk=0), Lie(letters.LETTER_OP), Lie(letters.TALLY_OP),
)  # fmt: skip
_SIZES = {letters.RULER_OP: letters.RULER, letters.LINE_OP: letters.LINE}
_CHUNKS = {letters.TOTAL_OP: -(-letters.TERMS // 256), letters.SUM_OP: 2}


def lying(dice: Dice, transitions: int, depth: int, letter: int) -> LetterClaim:
    """A claim with something wrong in it: a word, a chunk, an alias, padding, an op or states of no computation."""
    t = dice.randint(1, transitions)
    known = {"transitions": transitions, "depth": depth, "letter": letter}
    program = (letters.encode_program if t == transitions else letters.step_program)(depth)
    garbage = Digest(dice.randbytes(32))
    match dice.randrange(8):
        case 0:
            return LetterClaim(**known, forged={t: StateRoot(garbage)})
        case 1:
            entries = dice.randrange(1 << program.s_out)
            return LetterClaim(**known, lie_at=t, tampered={program.state_block + entries: garbage})
        case 2:
            position = dice.randrange(program.state_block)
            both = {position: garbage, program.state_block + dice.randrange(2): garbage}
            return LetterClaim(**known, lie_at=t, tampered=both)
        case 3 if transitions & (transitions - 1):
            return LetterClaim(**known, padded=garbage)
    lie = dice.choice(_LIES) if t < transitions else Lie(0)
    size = _SIZES.get(lie.op, 1) if t < transitions else letters.LINE
    return LetterClaim(**known, lie_at=t, lie=_placed(dice, lie, size))


def _placed(dice: Dice, lie: Lie, size: int) -> Lie:
    bits = dice.choice((1, 1 << 31, dice.getrandbits(32) | 1))
    if lie.chunk is not None:
        return Lie(lie.op, 0, bits, dice.choice((0, _CHUNKS[lie.op] - 1, dice.randrange(_CHUNKS[lie.op]))))
    # The state shows a wrong ruler only where the line reads it.
    return Lie(lie.op, dice.choice((0, size - 1, dice.randrange(size))), bits)


@dataclass
class Seat:
    """A challenger's place: who it is and what it has opened."""

    account: Address
    actor: Actor


@dataclass
class History:
    """One claim and its games, to the end."""

    number: int
    table: Table
    defender: Actor
    truth: LetterClaim
    dice: Dice
    seats: dict[GameId, Seat] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)
    _due: list[tuple[int, int, GameId]] = field(default_factory=list)
    _order: int = 0

    # -- opening

    def opens(self, seat: Seat, move: Open, now: Seconds) -> None:
        """Opens a game, unless the rules refuse it."""
        id_ = opening_of(move, seat.account)
        rule = self.table.tries(id_, move, seat.account, now)
        assert not (rule and isinstance(seat.actor, Honest)), f"an honest opening is refused: {rule}"
        if rule:
            self.refused[rule] += 1
            return
        self.seats[id_] = seat
        self._turn(id_, now)

    # -- playing

    def run(self) -> None:
        """Plays every game to its end."""
        while self._due:
            at, _, id_ = heapq.heappop(self._due)
            record, now = self.table.records[id_], Seconds(at)
            if record.state.phase == GamePhase.CLOSED:
                continue
            assert len(record.played) < TOO_LONG, "a game that does not end"
            if not self.table.claim.live or now > record.state.deadline:
                rule = self.table.tries(
                    id_, Resolve(record.state.standing), self.dice.choice((STRANGER, record.challenger)), now
                )
                assert not rule, f"a game that is over cannot be resolved: {rule}"
            else:
                self._move(id_, record, now)

    def _turn(self, id_: GameId, now: Seconds) -> None:
        """When somebody acts next in a game that has just changed."""
        state = self.table.records[id_].state
        self._at(id_, now + self._mover(id_).wait(Seconds(state.deadline - now)))

    def _at(self, id_: GameId, time_: int) -> None:
        self._order += 1
        heapq.heappush(self._due, (time_, self._order, id_))

    def _mover(self, id_: GameId) -> Actor:
        return self.defender if self.table.records[id_].state.defender_moves else self.seats[id_].actor

    def _move(self, id_: GameId, record: Record, now: Seconds) -> None:
        mover, state = self._mover(id_), record.state
        others = [other.played for key, other in self.table.records.items() if key != id_]
        sender = state.mover
        if sender == self.table.claim.defender and self.table.claim.delegate and self.dice.random() < 0.5:
            sender = self.table.claim.delegate
        for move in mover.moves(View(id_, state, record.log, record.played, others)):
            if self.dice.random() < 0.05:
                self._intrude(id_, move, state.mover, now)
            rule = self.table.tries(id_, move, sender, now)
            if not rule:
                if record.state.phase != GamePhase.CLOSED:
                    self._turn(id_, now)
                return
            assert not isinstance(mover, Honest) or rule == "EqualBits", f"an honest move is refused: {rule}"
            assert not isinstance(mover, Honest), f"honest play ends at {state.phase.name} with {rule}"
            self.refused[rule] += 1
        assert record.state is state, "what is refused changes nothing"
        assert not isinstance(mover, Honest) or state.phase == GamePhase.CLOSED, (
            f"honest play has no move: {state.phase.name}"
        )
        self._at(id_, state.deadline + 1)

    def _intrude(self, id_: GameId, move: object, mover: Address, now: Seconds) -> None:
        """No other key moves: not a stranger's, not the other side's; and nobody ends a game that runs."""
        other = self.seats[id_].account if mover == self.table.claim.defender else self.table.claim.defender
        before = self.table.records[id_].state
        for sender in (STRANGER, REQUESTER, other):
            rule = self.table.tries(id_, move, sender, now)  # type: ignore[arg-type]
            assert rule, f"{type(move).__name__} by another key"
            if before.standing == getattr(move, "standing", None) and not isinstance(move, Resolve):
                assert rule in ("Unauthorized", "PhaseWrong"), f"{type(move).__name__} by another key: {rule}"
        assert self.table.tries(id_, Resolve(before.standing), STRANGER, now) == "ClockRunning", (
            "ended while a clock runs"
        )
        assert self.table.records[id_].state is before, "a stranger's move changes nothing"

    # -- what must hold

    def check(self) -> None:
        """The claims of this module, on a history that is over."""
        table, defender = self.table, self.table.claim.defender
        self._check_time_and_money()
        verdicts = [record.state.verdict for record in table.records.values()]
        bonds = table.claim.bond * verdicts.count(Verdict.REJECTED)
        if isinstance(self.defender, Honest):
            assert set(verdicts) <= {Verdict.REJECTED}, "an honest defender wins every game"
            assert table.books.locks[table.claim.id].amount == letters.STAKE, "its stake stays"
            share = (table.claim.bond * 60 // 100) * len(verdicts)
            assert table.worth(defender) == DEPOSIT - letters.STAKE + share, "and it has its part of every bond"
        for id_, seat in self.seats.items():
            if isinstance(seat.actor, Honest):
                assert table.convicted_by is not None, "an honest challenger convicts"
                assert table.records[id_].state.verdict != Verdict.REJECTED, "or another did before"
                assert table.worth(seat.account) >= DEPOSIT, "and loses nothing"
        if table.convicted_by is None:
            assert table.burned == bonds - (table.claim.bond * 60 // 100) * verdicts.count(Verdict.REJECTED)
        else:
            assert verdicts.count(Verdict.FRAUD) + verdicts.count(Verdict.TIMEOUT) == 1, "convicted once"
            assert table.burned * 2 >= letters.STAKE, "at least half of the stake is burned"

    def _check_time_and_money(self) -> None:
        table = self.table
        for record in table.records.values():
            assert record.closed is not None, "a game that never ended"
            assert record.closed - record.opened <= record.budget + 1, "longer than both clocks"
        assert table.books.owed == table.books.tokens, "money is made or lost"
        held = set(table.books.locks)
        assert held <= {table.claim.id}, "a bond is stuck"
        assert (table.claim.id in held) == (table.convicted_by is None), "the stake is locked, or slashed"


def history(number: int, watch: Callable[[Table], Callable[[Act], None]] | None = None) -> History:
    """The history of that number, its games opened; `watch` makes what is told of every call."""
    dice = Dice(number)
    shape = (dice.choice(LENGTHS), dice.choice((3, 3, 6)), dice.choice(LETTERS))
    truth, right = letters.truth(*shape), dice.random() < 0.5
    held = truth if right else lying(dice, *shape)
    defends = Honest if right else dice.choice(DISHONEST)
    table = Table(letters.claim_of(held))
    if dice.random() < 0.3:
        table.claim = letters.with_delegate(table.claim, DELEGATE)
    if watch is not None:
        table.watcher = watch(table)
    made = History(number, table, defends(dice, held), truth, dice)
    seats: list[type[Actor]] = [dice.choice(DISHONEST) for _ in range(dice.choice((0, 0, 1, 2)))]
    seats.append(Honest if not held.is_true and dice.random() < 0.8 else dice.choice(DISHONEST))
    dice.shuffle(seats)
    now = START
    accounts = [Address(f"0x{0x2200 + i:040x}") for i in range(len(seats))]
    for account in accounts:
        table.seat(account)
    for account, actor in zip(accounts, seats, strict=True):
        now = Seconds(now + dice.choice((0, 1, 5)))
        seat = Seat(account, actor(dice, truth if actor is Honest else _another(dice, shape, held)))
        for move in _openings(dice, table, seat, held, truth):
            made.opens(seat, move, now)
    return made


def _another(dice: Dice, shape: tuple[int, int, int], held: LetterClaim) -> LetterClaim:
    """What a dishonest challenger argues from: another lie, or the claim itself."""
    return held if dice.random() < 0.3 else lying(dice, *shape)


def _openings(dice: Dice, table: Table, seat: Seat, held: LetterClaim, truth: LetterClaim) -> Iterator[Open]:
    """An honest challenger's one game; of others one or more, wherever they like."""
    if isinstance(seat.actor, Honest):
        published = held.trace if dice.random() < 0.7 and held.padded is None else None
        move = honest.opening(table.claim, truth, published, 0)
        assert move is not None, "a false claim can be challenged"
        yield move
        return
    for nonce in range(dice.choice((1, 1, 1, 2, 7))):
        yield letters.open_at(table.claim, held, dice.randint(0, held.transitions), nonce)


def play(number: int, watch: Callable[[Table], Callable[[Act], None]] | None = None) -> History:
    """The history of that number, played to its end and checked."""
    played = history(number, watch)
    played.run()
    played.check()
    return played


def main() -> int:
    """Plays histories until enough games are over; prints who met whom and how it ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--games", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="number of the first history")
    arguments = parser.parse_args()
    begun, number, count = time.monotonic(), arguments.seed, 0
    ended: Counter[tuple[str, str, str]] = Counter()
    refused: Counter[str] = Counter()
    while count < arguments.games:
        try:
            played = play(number)
        except AssertionError as broken:
            print(f"history {number}: {broken}", file=sys.stderr)
            return 1
        for id_, record in played.table.records.items():
            names = (type(played.defender).__name__, type(played.seats[id_].actor).__name__)
            ended[*names, record.state.verdict.name.lower()] += 1
        refused += played.refused
        count, number = count + len(played.table.records), number + 1
    seconds = time.monotonic() - begun
    print(f"{count} games in {number - arguments.seed} histories, {seconds:.0f} s: the honest side won all of its own")
    for (defender, challenger, verdict), games in sorted(ended.items()):
        print(f"  {defender:12} challenged by {challenger:12} {verdict:9} {games:7}")
    print("refused: " + ", ".join(f"{rule} {times}" for rule, times in refused.most_common()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
