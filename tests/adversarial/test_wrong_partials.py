"""Wrong partials: words that combine to a lie are convicted at their chunk, words that do not by how they combine."""

import struct
from dataclasses import dataclass
from itertools import product

import pytest

from lockstep.chain import games
from lockstep.demo.cheats.lies import wrong_partials
from lockstep.node.player import Side
from lockstep.node.replay import Replay
from lockstep.numerics.trace import StepTrace
from lockstep.protocol.dispute import moves
from lockstep.protocol.types import GameId, Seconds
from tests.adversarial.cheat import Cheat, Ended, ended, run
from tests.adversarial.court import Court, Where
from tests.adversarial.lies import Lying, Written, at, changed, lying, named, next_of, recomputed, with_word, words
from tests.support.toyjob import SIZE

STEP, CHUNK = 1, 1


@dataclass(frozen=True)
class Padded(Written):
    """A step whose one gradient word is a lie, with partials that combine to it."""

    cell: tuple[int, int] = (0, 0)
    """(op, element)."""
    shown: tuple[int, ...] = ()

    def partials(self, op: int, element: int, group: int | None = None) -> list[int]:
        """Of the lie: the words that were made up."""
        return list(self.shown) if (op, element) == self.cell else super().partials(op, element, group)


def lie(run: Lying, t: int, step: StepTrace) -> Padded:
    """A gradient's element a little off, made up for by the partial of chunk CHUNK: the first that S_1 shows."""
    op = named(step.program, "gradient")
    for bit, element in product((0, 1, 2, 4, 8), range(SIZE)):
        off = int(words(step.output(op).array)[element]) ^ 1 << bit
        shown = wrong_partials(step.program.ops[op].mode, step.partials(op, element), CHUNK, off)
        if shown is None:
            continue
        made = recomputed(run, changed(step, {op: with_word(step.output(op).array, element, off)}), op)
        if made.root != step.root:
            return Padded(
                step.program, step.before, made.made, step.context, step.rows, next=next_of(made), cell=(op, element),
                shown=shown,
            )  # fmt: skip
    raise AssertionError("no wrong gradient shows")


def opened(court: Court) -> tuple[Padded, GameId, Replay]:
    """(the liar's step, a game about it, what the audit found)."""
    claims = court.claim({0: lying(court.run(0), at(STEP, lie))})
    ((claim, found),) = court.audits().items()
    assert claim == claims[0]
    step = court.held[claim].whole(STEP)
    assert isinstance(step, Padded)
    return step, court.open(claim, found), found


def play(court: Court) -> Ended:
    step, game, found = opened(court)
    defender, challenger = court.defender(game), court.seat(game, Side.CHALLENGER, found.held, "verifier").turn
    refusals: list[str] = []

    def tries_first(now: Seconds) -> moves.Move | None:
        state = games.read(court.contracts.game, game)
        if state.phase == moves.GamePhase.PARTIALS and not refusals:
            shown = list(step.shown)
            for bad in (shown[:-1], [*shown, 0], []):
                call = games.call(court.contracts.game, moves.PostPartials(state.standing, pack(bad)), game)
                refusals.append(court.refused(call, "worker-0"))
        return defender(now)

    court.play(game, tries_first, challenger)
    assert refusals == ["LengthWrong", "LengthWrong", "LengthWrong"]
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(STEP, *step.cell, CHUNK, "op"))


def play_right_ones(court: Court) -> Ended:
    """The partials are right: their combination is not the claimed word."""
    step, game, found = opened(court)
    defender, challenger = court.defender(game), court.seat(game, Side.CHALLENGER, found.held, "verifier").turn

    def shows_what_is_right(now: Seconds) -> moves.Move | None:
        state = games.read(court.contracts.game, game)
        if state.phase == moves.GamePhase.PARTIALS:
            right = found.held.step(STEP).partials(*step.cell, None)
            move = moves.PostPartials(state.standing, pack(list(right)))
            court.send(games.call(court.contracts.game, move, game), "worker-0")
            return move
        return defender(now)

    court.play(game, shows_what_is_right, challenger)
    court.settle()
    court.balance({"worker-0": court.params.role.slot_stake})
    return ended(court, game, Where(STEP, *step.cell, moves.COMBINED, "op"))


def pack(partials: list[int]) -> bytes:
    return struct.pack(f">{len(partials)}I", *partials)


CHEAT = Cheat("wrong partials", "fraud", {"one chunk of three": play, "their combination": play_right_ones})


@pytest.mark.parametrize("form", CHEAT.forms)
def test_wrong_partials_are_convicted(court: Court, form: str) -> None:
    run(court, CHEAT, form)
