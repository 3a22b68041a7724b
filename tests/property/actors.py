"""Who sits at a table: the honest side, and those that it must beat.

An actor offers moves; the first that the rules accept is played, and who offers none that they accept lets its clock
run.
`held` is the claim that the actor argues from: the truth for the honest, any lie for the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from random import Random as Dice
from typing import Any

from lockstep.protocol import merkle
from lockstep.protocol.dispute import game, honest, moves, openings
from lockstep.protocol.dispute.moves import GameEvent, GamePhase, Move
from lockstep.protocol.errors import Inconclusive
from lockstep.protocol.programs.program import CHUNK
from lockstep.protocol.types import Digest, GameId, Seconds
from tests.support.letters import LetterClaim

GARBAGE = Digest(b"\xee" * 32)


@dataclass(frozen=True)
class View:
    """What everybody sees of one game, and of the others on its claim."""

    id: GameId
    state: game.Game
    log: Sequence[GameEvent]
    played: Sequence[Move]
    """Accepted in this game, by both sides."""
    others: Sequence[Sequence[Move]]
    """Accepted in the other games on the claim, a list each."""


class Actor:
    """One side of one game. Here: opens or points as its own claim says, at once."""

    def __init__(self, dice: Dice, held: LetterClaim) -> None:
        self.dice = dice
        self.held = held

    def wait(self, left: Seconds) -> int:
        """Seconds until it moves, `left` being all that it has."""
        return min(self.dice.choice((0, 0, 1, 2)), left)

    def moves(self, view: View) -> Iterator[Move]:
        """What it offers, best first."""
        move = due(view, self.held)
        if move is not None:
            yield move


def due(view: View, held: LetterClaim) -> Move | None:
    """The move that follows from a claim, for whoever's turn it is; None if nothing follows from it."""
    state = view.state
    try:
        if state.phase == GamePhase.TRACE_REVEAL:
            return moves.Reveal(state.standing, honest.descendants(held.trace_levels, state.rem, state.position))
        if state.defender_moves:
            return honest.answer(state, view.log, held)
        return honest.point(state, view.log, held)
    except (Inconclusive, IndexError, ValueError):
        # A claim of another shape than the one argued about has nothing to say here.
        return None


class Honest(Actor):
    """Argues from the truth, promptly."""


class Liar(Actor):
    """Opens what it committed to, promptly: its best defence is that nobody looks."""


class Silent(Actor):
    """Never answers."""

    def moves(self, view: View) -> Iterator[Move]:
        return iter(())


class Random(Actor):
    """Whatever the rules allow and much that they do not, with true proofs of what it points at; it may give up."""

    def wait(self, left: Seconds) -> int:
        return self.dice.randint(0, left + 1) if self.dice.random() < 0.1 else super().wait(left)

    def moves(self, view: View) -> Iterator[Move]:
        if self.dice.random() < 0.03:
            return
        own = due(view, self.held)
        if own is not None and self.dice.random() < 0.3:
            yield from self.dice.sample(wrong := list(mutations(own)), min(2, len(wrong)))
        possible = list(anything(view, self.held))
        if possible:
            yield self.dice.choice(possible)
        if own is not None:
            yield own


class Exhaustive(Actor):
    """Tries everything that can be tried at each turn, wrong phases and broken proofs first."""

    def moves(self, view: View) -> Iterator[Move]:
        own = due(view, self.held)
        wrong = [*of_other_phases(view.state), *(mutations(own) if own is not None else ())]
        self.dice.shuffle(wrong)
        yield from wrong
        possible = [*anything(view, self.held), *([own] if own is not None else [])]
        self.dice.shuffle(possible)
        yield from possible


class Sandbagging(Actor):
    """Plays properly but to the last second of its clock, and from some move on not at all."""

    def __init__(self, dice: Dice, held: LetterClaim) -> None:
        super().__init__(dice, held)
        self._effort = dice.randint(0, 12)

    def wait(self, left: Seconds) -> int:
        return left

    def moves(self, view: View) -> Iterator[Move]:
        self._effort -= 1
        return super().moves(view) if self._effort >= 0 else iter(())


class Copycat(Actor):
    """Has nothing of its own: plays what its side played at this point of another game, else what the truth would."""

    def moves(self, view: View) -> Iterator[Move]:
        turn = len(view.played)
        for other in view.others:
            if turn < len(other):
                yield other[turn]
        yield from super().moves(view)


# -- what can be tried -------------------------------------------------------------------------------------------------


def anything(view: View, held: LetterClaim) -> Iterator[Move]:
    """Well-formed moves of this phase, right or wrong."""
    state, seen = view.state, honest.GameLog(view.log)
    if state.phase in (GamePhase.TRACE_PICK, GamePhase.GRAPH_PICK, GamePhase.TENSOR_PICK):
        tree = merkle.levels(seen.children)
        for i, child in enumerate(seen.children):
            yield moves.Pick(state.standing, i, child, tuple(merkle.proof(tree, i)))
    elif state.phase == GamePhase.ELEMENT and state.terms > CHUNK and (leaf := seen.last(moves.LeafPosted)):
        yield from (moves.PickElement(state.standing, i) for i in range(0, len(leaf.data) // 4, 37))
    elif state.phase == GamePhase.PARTIAL_PICK and (posted := seen.last(moves.PartialsPosted)):
        yield from (moves.PickPartial(state.standing, i, seen.posted) for i in range(len(posted.words) // 4))
        yield _combination(state, seen, held)
    elif state.phase in (GamePhase.ELEMENT, GamePhase.PROOF):
        yield from _proofs(state, seen, held)
    elif state.phase == GamePhase.ALIAS:
        yield from _values(state, seen, held)
    elif state.phase in (GamePhase.PARTIALS, GamePhase.LOW_PARTIALS):
        yield _partials_that_combine(state, seen)


def _proofs(state: game.Game, seen: honest.GameLog, held: LetterClaim) -> Iterator[moves.ProveOp]:
    """Executions of what was picked, or of the leaf's first word and its last; of its first chunk and its last, and how
    all combine."""
    statement = seen.statement
    step, partials, leaf = held.step(statement.t), seen.last(moves.PartialsPosted), seen.last(moves.LeafPosted)
    shown = seen.posted
    last = len(shown) // 4 - 9
    if partials is None:
        shown = leaf.data if leaf is not None and state.phase == GamePhase.ELEMENT else b""
        last = len(shown) // 4 - 1
    graph = honest.known(step.graph, step.program.depth, seen, moves.Defended)
    for chunk in sorted({0, max(last, 0)}):
        element = CHUNK * state.position + chunk if state.phase == GamePhase.ELEMENT else state.position
        at = CHUNK * state.group + chunk if partials is not None else 0
        opened = openings.build(step, graph, statement, state.op, element, at, state.staged)
        described = step.program.descriptors[state.op]
        if opened and not (state.terms and state.staged):
            part = opened if state.terms else opened[:1]
            yield moves.Stage(state.standing, described, chunk, shown, part, statement.encode())
        yield moves.ProveOp(state.standing, described, chunk, shown, opened, statement.encode())
    if partials is not None:
        yield _combination(state, seen, held)


def _combination(state: game.Game, seen: honest.GameLog, held: LetterClaim) -> moves.ProveOp:
    """The proof that the posted partials do not combine to what they should, whether they do or not."""
    proof = honest.combination(state, seen, seen.statement, held.step(seen.statement.t))
    assert proof is not None, "a leaf was posted"
    return proof


def _values(state: game.Game, seen: honest.GameLog, held: LetterClaim) -> Iterator[moves.ProveAlias]:
    """Every leaf of G and of the state before, as the value of the entry that was picked."""
    statement = seen.statement
    step = held.step(statement.t)
    graph = honest.known(step.graph, step.program.depth, seen, moves.Defended)
    for index in range(len(step.program.ops)):
        value, proof = graph.at(0, index), graph.proof(index)
        yield moves.ProveAlias(state.standing, statement.encode(), step.program.header, value, proof)
    for index in range(4):
        value, proof = merkle.node_at(step.prev, 0, index), tuple(merkle.proof(step.prev, index))
        yield moves.ProveAlias(state.standing, statement.encode(), step.program.header, value, proof)


def _partials_that_combine(state: game.Game, seen: honest.GameLog) -> moves.PostPartials:
    """Partials of no computation whose sum is the claimed word."""
    group, claimed = (None, 0) if state.phase == GamePhase.PARTIALS else (state.group, state.word)
    leaf = seen.last(moves.LeafPosted)
    if group is None and leaf is not None:
        claimed = openings.word_of(leaf.data, state.position)
    words = [i * 0x9E3779B9 & 0xFFFFFFFF for i in range(game.partial_count(state.terms, group))]
    words[0] = (words[0] + claimed - sum(words)) & 0xFFFFFFFF
    return moves.PostPartials(state.standing, struct.pack(f">{len(words)}I", *words))


def of_other_phases(state: game.Game) -> Iterator[Move]:
    """One call of each kind, with nothing to show for it."""
    shown, none = state.standing, moves.NO_TRANSITION
    yield moves.Resolve(shown)
    yield moves.Reveal(shown, (GARBAGE, GARBAGE))
    yield moves.Pick(shown, 0, GARBAGE, (GARBAGE,))
    yield moves.Adjacent(shown, none)
    yield moves.Defend(shown, b"", GARBAGE, none.prev, (), ())
    yield moves.RevealTensor(shown, b"", b"", (), GARBAGE, ())
    yield moves.PostLeaf(shown, b"\0\0\0\0")
    yield moves.PickElement(shown, 0)
    yield moves.PostPartials(shown, b"\0\0\0\0")
    yield moves.PickPartial(shown, 0, b"\0\0\0\0")
    yield moves.Stage(shown, b"", 0, b"", (), b"")
    yield moves.ProveOp(shown, b"", 0, b"", (), b"")
    yield moves.ProveAlias(shown, b"", b"", GARBAGE, ())
    yield moves.ProvePadding(shown)


def mutations(move: Any) -> Iterator[Any]:
    """The same move with one part of it changed: another word of the game's, a byte more or less, ..."""
    for part in fields(move):
        value = getattr(move, part.name)
        if isinstance(value, moves.GameState):
            changed: list[Any] = [value._replace(**{name: _other(word)}) for name, word in value._asdict().items()]
        elif isinstance(value, bytes):
            changed = [value[:-1] + bytes((value[-1] ^ 1,))] if value else []
            if len(value) != 32:
                changed += [value + b"\0", value[:-4]]
        elif isinstance(value, bool):
            changed = []
        elif isinstance(value, int):
            # Numbers of a move are words of 32 bits: after COMBINED comes 0.
            changed = [(value + 1) % (1 << 32), value ^ 1, 1 << 15]
        elif isinstance(value, tuple):
            changed = [(*value, *value[-1:]), value[:-1]] if value else []
            if value and isinstance(value[0], bytes):
                changed += [(GARBAGE, *value[1:]), value[::-1]]
            elif value:
                changed += [(inner, *value[1:]) for inner in mutations(value[0])]
        else:
            changed = list(mutations(value)) if is_dataclass(value) else []
        yield from (replace(move, **{part.name: other}) for other in changed if other != value)


def _other(word: Any) -> Any:
    """The same with its lowest bit flipped."""
    return word ^ 1 if isinstance(word, int) else word[:-1] + bytes((word[-1] ^ 1,))


DISHONEST: tuple[type[Actor], ...] = (Liar, Silent, Random, Exhaustive, Sandbagging, Copycat)
"""Whom the honest side meets."""
