"""A fast toy job for hundreds of thousands of games: a letter plus one, a line of text, and sums of both.

All values are 32-bit integers, so that numpy's arithmetic is exact; tests/property/test_letters.py compares every op
with `numerics.reference`. The state is [letter, line, tally, name, EMPTY ...]; a step has ops of one leaf, of two and
of 66, a fold of one level of partials and one of two, aliases of ops and of the state, and padding.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from lockstep.numerics import scalar
from lockstep.protocol import merkle
from lockstep.protocol.dispute import game, moves
from lockstep.protocol.dispute.openings import Contents, Levels
from lockstep.protocol.jobs import NO_STATE, Body
from lockstep.protocol.merkle import EMPTY, TensorHeader
from lockstep.protocol.programs.program import CHUNK, I32, Alias, Fold, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.types import Address, ClaimId, Digest, Seconds, Seed, StateRoot, TensorRoot, TraceRoot, Wei

Words = NDArray[np.uint32]

RULER = 66 * CHUNK
"""Elements of the longest tensor: more leaves than one move reveals."""
TERMS = 131_500
"""Terms of the fold with two levels of partials."""
LINE = 300
"""Elements of the state's vector: two leaves, and two chunks of its sum."""

RULER_OP, TOTAL_OP, LINE_OP, SUM_OP, LETTER_OP, TALLY_OP = range(6)
LETTER, TEXT, TALLY, NAME = range(4)
"""Entries of the state."""

SEED = Seed(b"letters".ljust(32, b"."))
WORKER = Address("0x" + "11" * 20)
CLOCK, STEP_SECONDS = Seconds(120), Seconds(10)
STAKE, BOND = Wei(1_000_003), Wei(10_007)
"""Odd amounts, so that every share leaves a remainder."""

_ADD = scalar.Opcode.IADD


def _view(tag: Tag, index: int, *strides: int, offset: int = 0) -> View:
    return View(tag, index, offset, strides)


def _cumulated(*ops: Op) -> tuple[Op, ...]:
    total, out = 0, []
    for op in ops:
        total += op.header.elements
        out.append(Op(**{**{f: getattr(op, f) for f in op.__dataclass_fields__}, "cumulative": total}))
    return tuple(out)


def _layout(depth: int) -> tuple[TensorHeader | None, ...]:
    scalar_, line = TensorHeader(I32, ()), TensorHeader(I32, (LINE,))
    return (scalar_, line, scalar_, scalar_, *[None] * ((1 << depth) - 4))


@cache
def step_program(depth: int = 3) -> Program:
    """Returns the step Program.

    The state has 2^depth entries: depth 3 gives a G of 16 leaves, 6 one of 128, more than one move reveals.
    """
    ops = _cumulated(
        Op(Kind.MAP, I32, (RULER,), (_view(Tag.IOTA, 0, 1), _view(Tag.IOTA, 0, 1)), instrs=(Instr(_ADD, 0, 1),)),
        Op(Kind.FOLD, I32, (), (_view(Tag.IOTA, 0, 3, offset=5),), (TERMS,), Fold.ISUM),
        Op(
            Kind.MAP, I32, (LINE,),
            (_view(Tag.STATE, TEXT, 1), _view(Tag.STATE, LETTER, 0), _view(Tag.OP, RULER_OP, 1)),
            instrs=(Instr(_ADD, 0, 1), Instr(_ADD, 3, 2)),
        ),
        Op(Kind.FOLD, I32, (), (_view(Tag.OP, LINE_OP, 1),), (LINE,), Fold.ISUM),
        Op(Kind.MAP, I32, (), (_view(Tag.STATE, LETTER), _view(Tag.IOTA, 0, offset=1)), instrs=(Instr(_ADD, 0, 1),)),
        Op(
            Kind.MAP, I32, (), (_view(Tag.OP, SUM_OP), _view(Tag.OP, TOTAL_OP), _view(Tag.STATE, NAME)),
            instrs=(Instr(_ADD, 0, 1), Instr(_ADD, 3, 2)),
        ),
    )  # fmt: skip
    empty = [Alias(Alias.EMPTY_KIND)] * ((1 << depth) - 4)
    named = (Alias(1, LETTER_OP), Alias(1, LINE_OP), Alias(1, TALLY_OP), Alias(2, NAME))
    return Program(ops, _layout(depth), (*named, *empty))


@cache
def encode_program(depth: int = 3) -> Program:
    """Returns the last transition: the payload is the line plus the letter, then the name; two entries are EMPTY."""
    views = (_view(Tag.STATE, TEXT, 1), _view(Tag.STATE, LETTER, 0))
    ops = _cumulated(Op(Kind.MAP, I32, (LINE,), views, instrs=(Instr(_ADD, 0, 1),)))
    return Program(ops, _layout(depth), (Alias(1, 0), Alias(2, NAME), Alias(0), Alias(0)))


# -- a step, materialised ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lie:
    """One wrong word: an op's element, or (`chunk` not None) one of its fold's chunks, differs by `bits`."""

    op: int
    element: int = 0
    bits: int = 1
    chunk: int | None = None


def _held(shape: tuple[int, ...], words: Words) -> Contents:
    return Contents(TensorHeader(I32, shape), words.astype("<u4").tobytes())


def _root(held: Contents) -> Digest:
    return Digest(merkle.tensor_root_of_tree(held.header, held.levels[-1][0]))


@cache
def _ruler() -> Words:
    return (2 * np.arange(RULER)).astype(np.uint32)


@cache
def _ruler_contents() -> Contents:
    return _held((RULER,), _ruler())


def _chunks(terms: Words) -> Words:
    """Returns the wrapping sum of each 256 terms."""
    starts = np.arange(0, len(terms), CHUNK)
    return np.add.reduceat(terms, starts, dtype=np.uint32)


@cache
def _total_chunks() -> Words:
    return _chunks((5 + 3 * np.arange(TERMS)).astype(np.uint32))


def _total(words: Words) -> Words:
    return np.add.reduce(words, dtype=np.uint32).reshape(1)


@dataclass
class LetterStep:
    """One transition with at most one lie in an op and some replaced nodes of G."""

    program: Program
    inputs: tuple[Words, Words, Words, Words]
    lie: Lie | None = None
    tampered: dict[int, Digest] = field(default_factory=dict)
    """Maps positions in G to replacement nodes (a wrong alias, garbage in padding, an op that cannot be opened)."""

    @cached_property
    def _values(self) -> list[Words]:
        """Returns every op's output as claimed."""
        letter, line, _, name = self.inputs
        if len(self.program.ops) == 1:
            return [self._lied(0, line + letter)]
        ruler = self._lied(RULER_OP, _ruler())
        total = self._lied(TOTAL_OP, _total(self._fold_chunks(TOTAL_OP, _total_chunks())))
        moved = self._lied(LINE_OP, line + letter + ruler[:LINE])
        summed = self._lied(SUM_OP, _total(self._fold_chunks(SUM_OP, _chunks(moved))))
        return [
            ruler, total, moved, summed, self._lied(LETTER_OP, letter + np.uint32(1)),
            self._lied(TALLY_OP, summed + total + name),
        ]  # fmt: skip

    def _lied(self, op: int, words: Words) -> Words:
        if self.lie is None or self.lie.op != op or self.lie.chunk is not None:
            return words
        words = words.copy()
        words[self.lie.element] ^= np.uint32(self.lie.bits)
        return words

    def _fold_chunks(self, op: int, words: Words) -> Words:
        if self.lie is None or self.lie.op != op or self.lie.chunk is None:
            return words
        words = words.copy()
        words[self.lie.chunk] ^= np.uint32(self.lie.bits)
        return words

    @cached_property
    def outputs(self) -> list[Contents]:
        """Returns every op's output as a committed tensor."""
        shared = _ruler()
        return [
            _ruler_contents() if words is shared else _held(op.extents, words)
            for op, words in zip(self.program.ops, self._values, strict=True)
        ]

    @cached_property
    def _states(self) -> tuple[Contents, ...]:
        shapes = ((), (LINE,), (), ())
        return tuple(_held(shape, words) for shape, words in zip(shapes, self.inputs, strict=True))

    @cached_property
    def prev(self) -> Levels:
        return merkle.levels([_root(held) for held in self._states], self.program.s_in)

    @property
    def next(self) -> tuple[Words, Words, Words, Words]:
        """Returns the output state of a step."""
        values = self._values
        return values[LETTER_OP], values[LINE_OP], values[TALLY_OP], self.inputs[NAME]

    @cached_property
    def graph(self) -> Levels:
        made = [_root(held) for held in self.outputs]
        leaves = made + [EMPTY[0]] * (self.program.state_block - len(made))
        for alias in self.program.outputs:
            if alias.kind == Alias.EMPTY_KIND:
                break
            leaves.append(
                made[alias.index] if alias.kind == Alias.OP_KIND else merkle.node_at(self.prev, 0, alias.index)
            )
        leaves += [EMPTY[0]] * (max(self.tampered, default=0) + 1 - len(leaves))
        for position, node in self.tampered.items():
            leaves[position] = node
        return merkle.levels(leaves, self.program.depth)

    @property
    def end(self) -> StateRoot:
        """Returns S_t according to this G."""
        up = self.program.depth - self.program.s_out
        return StateRoot(merkle.node_at(self.graph, self.program.s_out, (1 << up) - 1))

    def output(self, op: int) -> Contents:
        return self.outputs[op]

    def state(self, entry: int) -> Contents:
        return self._states[entry]

    def dataset(self) -> Contents:
        raise AssertionError("the letters draw nothing")

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        words = self._fold_chunks(op, _total_chunks() if op == TOTAL_OP else _chunks(self._values[LINE_OP]))
        if self.program.ops[op].is_grouped:
            words = _chunks(words) if group is None else words[CHUNK * group : CHUNK * (group + 1)]
        return [int(word) for word in words]


# -- a claim -----------------------------------------------------------------------------------------------------------


@dataclass
class LetterClaim:
    """A claim of `transitions` from a letter: steps, then the encode (a single transition is the encode, as in a
    merge).

    At most one lie, at step `lie_at`; later states are computed from it. `forged` states come from no computation.
    """

    transitions: int
    depth: int = 3
    letter: int = 0x61
    lie_at: int = 0
    lie: Lie | None = None
    tampered: dict[int, Digest] = field(default_factory=dict)
    forged: dict[int, StateRoot] = field(default_factory=dict)
    padded: Digest | None = None
    """Garbage in the trace's last leaf, which is padding."""
    _steps: dict[int, LetterStep] = field(default_factory=dict)

    @property
    def _truth(self) -> LetterClaim:
        return truth(self.transitions, self.depth, self.letter)

    def _follows(self, t: int) -> bool:
        """Returns True if step t is computed here: a true step, or one that follows from the lie."""
        return self is self._truth or 0 < self.lie_at <= t

    def step(self, t: int) -> LetterStep:
        if not self._follows(t):
            return self._truth.step(t)
        if t not in self._steps:
            if self is self._truth:
                inputs = self.step(t - 1).next if t > 1 else self._start
            else:
                inputs = self.step(t - 1).next if t > self.lie_at else self._truth.step(t).inputs
            program = (encode_program if t == self.transitions else step_program)(self.depth)
            lies = t == self.lie_at
            self._steps[t] = LetterStep(program, inputs, self.lie if lies else None, self.tampered if lies else {})
        return self._steps[t]

    @property
    def _start(self) -> tuple[Words, Words, Words, Words]:
        one = np.array([self.letter], np.uint32)
        return one, np.arange(LINE, dtype=np.uint32) * np.uint32(7), np.array([0], np.uint32), one ^ np.uint32(0x5A)

    @cached_property
    def trace(self) -> tuple[StateRoot, ...]:
        states = range(1, self.transitions + 1)
        return tuple(
            self.forged.get(t) or (self.step(t).end if self._follows(t) else self._truth.trace[t - 1]) for t in states
        )

    @cached_property
    def trace_levels(self) -> Levels:
        """Returns the Merkle levels of the committed trace."""
        leaves = [merkle.leaf(state) for state in self.trace]
        if self.padded is not None:
            leaves += [EMPTY[0]] * ((1 << merkle.ceil_log2(len(leaves))) - len(leaves))
            leaves[-1] = self.padded
        return merkle.levels(leaves)

    @cached_property
    def state_zero(self) -> StateRoot:
        return StateRoot(self._truth.step(1).prev[-1][0])

    @property
    def carried(self) -> moves.Proof:
        return ()

    @property
    def is_true(self) -> bool:
        """Returns True if every state is the one that the schedule computes."""
        return self.padded is None and self.trace == self._truth.trace


@cache
def truth(transitions: int, depth: int = 3, letter: int = 0x61) -> LetterClaim:
    """Returns the honest claim."""
    return LetterClaim(transitions, depth, letter)


def claim_of(held: LetterClaim) -> game.DisputedClaim:
    """Returns the market's view of a claim with the trace of `held`."""
    programs = (step_program(held.depth), encode_program(held.depth))
    steps = programs[held.transitions == 1].root
    identity = struct.pack(">II", held.transitions, held.depth) + held.trace_levels[-1][0][:24]
    body = Body(TraceRoot(held.trace_levels[-1][0]), NO_STATE, NO_STATE)
    return game.DisputedClaim(
        ClaimId(identity), WORKER, held.transitions, body, held.state_zero,
        steps, programs[1].root, SEED, 3, 1, TensorRoot(EMPTY[0]), 0, 0, CLOCK, STEP_SECONDS, BOND,
    )  # fmt: skip


def open_at(claim: game.DisputedClaim, held: LetterClaim, t: int, nonce: int) -> moves.Open:
    """Returns the opening of a game on transition t (0: on the trace) of a claim, wrong or not."""
    if t == 0:
        return moves.Open(claim.id, claim.body, nonce, 0, StateRoot(EMPTY[0]), (), moves.NO_TRANSITION)
    tree, program = held.trace_levels, (encode_program if t == held.transitions else step_program)(held.depth)
    prev = held.trace[t - 2] if t > 1 else held.state_zero
    proof = tuple(merkle.proof(tree, t - 2)) if t > 1 else ()
    transition = moves.Transition(prev, proof, program.header, program.ops_root, program.consts_root)
    return moves.Open(claim.id, claim.body, nonce, t, held.trace[t - 1], tuple(merkle.proof(tree, t - 1)), transition)


def with_delegate(claim: game.DisputedClaim, delegate: Address) -> game.DisputedClaim:
    """Returns the claim with a delegate of its defender."""
    return replace(claim, delegate=delegate)
