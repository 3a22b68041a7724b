"""A job whose three Programs have one op each, 7 + 1, and all possible claims on it.

All tensors are scalars of i32. Step: [live, anchor, carry, clock] -> [8, anchor, carry, clock]; encode: -> [8, carry];
merge: the 16 entries of three slots -> [8, 8]. tests/forge/Constant.sol has the same.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache, cached_property

from lockstep.numerics import scalar
from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.openings import Contents, Levels
from lockstep.protocol.jobs import Body
from lockstep.protocol.market import moving
from lockstep.protocol.market.types import StateLeaf
from lockstep.protocol.merkle import EMPTY, TensorHeader
from lockstep.protocol.programs.program import I32, Alias, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.types import Digest, StateRoot, TensorRoot, TraceRoot

VALUE, CARRY, ROW = 8, 3, 5
SCALAR = TensorHeader(I32, ())


class Lie(IntEnum):
    """The wrong part of a claim: the step's word, the encode's, a leaf of padding, an alias, or a state that cannot be
    opened.
    """

    NONE = 0
    VALUE = 1
    ENCODED = 2
    PADDING = 3
    ALIAS = 4
    FORGED = 5


def held(word: int) -> Contents:
    """Returns a scalar tensor."""
    return Contents(SCALAR, struct.pack("<I", word))


@cache
def root_of(word: int) -> TensorRoot:
    """Returns a scalar's root."""
    return merkle.scalar_root(I32, word)


@cache
def program(entries: int, outputs: tuple[tuple[int, int], ...]) -> Program:
    """Returns the Program 7 + 1 for a state of `entries` entries, with outputs as (kind, index)."""
    seven, one = View(Tag.IOTA, 0, 7, ()), View(Tag.IOTA, 0, 1, ())
    op = Op(Kind.MAP, I32, (), (seven, one), instrs=(Instr(scalar.Opcode.IADD, 0, 1),), cumulative=1)
    return Program((op,), (SCALAR,) * entries, tuple(Alias(kind, index) for kind, index in outputs))


def step_program() -> Program:
    """Returns the step Program: [live, anchor, carry, clock] -> [8, anchor, carry, clock]."""
    return program(4, ((1, 0), (2, 1), (2, 2), (2, 3)))


def encode_program() -> Program:
    """Returns the encode Program: -> [8, carry]."""
    return program(4, ((1, 0), (2, 2)))


def merge_program(entries: int = 16) -> Program:
    """Returns the merge Program: -> [8, 8]."""
    return program(entries, ((1, 0), (1, 0)))


def dataset_root() -> TensorRoot:
    """Returns the root of a dataset with one row of one word."""
    return TensorRoot(Digest(merkle.tensor_root(I32, (1, 1), struct.pack("<I", ROW))))


@dataclass(frozen=True)
class ConstantStep:
    """One transition as claimed."""

    program: Program
    before: tuple[bytes, ...]
    """The entries of S_{t-1}."""
    value: int = VALUE
    lie: Lie = Lie.NONE

    @cached_property
    def prev(self) -> Levels:
        return merkle.levels(self.before, self.program.s_in)

    @cached_property
    def graph(self) -> Levels:
        leaves: list[bytes] = [root_of(self.value)]
        leaves += [EMPTY[0]] * (self.program.state_block - 1)
        if self.lie == Lie.PADDING:
            leaves[1] = Digest(b"\x77" * 32)
        return merkle.levels([*leaves, *self.after], self.program.depth)

    @cached_property
    def after(self) -> tuple[bytes, ...]:
        """Returns the entries of S_t."""
        made = [root_of(self.value) if a.kind == Alias.OP_KIND else self.before[a.index] for a in self.program.outputs]
        if self.lie == Lie.ALIAS:
            made[1] = Digest(b"\x55" * 32)
        return tuple(made)

    def output(self, op: int) -> Contents:
        return held(self.value)

    def state(self, entry: int) -> Contents:
        raise AssertionError("7 + 1 reads no state")

    def dataset(self) -> Contents:
        raise AssertionError("7 + 1 draws nothing")

    def partials(self, op: int, element: int, group: int | None) -> Sequence[int]:
        raise AssertionError("7 + 1 folds nothing")


@dataclass(frozen=True)
class ConstantClaim:
    """A claim of a slot (one step, then the encode) or of a merge."""

    zero: tuple[bytes, ...]
    """The entries of S_0."""
    lie: Lie = Lie.NONE
    is_merge: bool = False
    start: StateRoot | None = None
    """S_0 of a merge, whose entries are never needed."""

    @staticmethod
    def of_slot(base: bytes, carry: bytes, clock: int, lie: Lie = Lie.NONE) -> ConstantClaim:
        """Creates a slot's claim from the round's base, the slot's carry and the steps done before."""
        return ConstantClaim((base, base, carry, root_of(clock)), lie)

    @staticmethod
    def of_merge(start: StateRoot, lie: Lie = Lie.NONE, entries: int = 16) -> ConstantClaim:
        """Creates a merge's claim from S_0 as the market computes it."""
        return ConstantClaim((EMPTY[0],) * entries, lie, is_merge=True, start=start)

    @property
    def truth(self) -> ConstantClaim:
        """Returns the claim without its lie."""
        return replace(self, lie=Lie.NONE)

    @property
    def transitions(self) -> int:
        return 1 if self.is_merge else 2

    @property
    def wrong_from(self) -> int:
        """Returns the first wrong transition; 0 if there is none."""
        if self.lie == Lie.NONE or (self.is_merge and self.lie in (Lie.ENCODED, Lie.ALIAS, Lie.FORGED)):
            return 0
        return 2 if self.lie == Lie.ENCODED else 1

    def step(self, t: int) -> ConstantStep:
        """Returns transition t."""
        return self._steps[t - 1]

    @cached_property
    def _steps(self) -> tuple[ConstantStep, ...]:
        lie = self.lie if self.wrong_from == 1 else Lie.NONE
        value = VALUE + (lie == Lie.VALUE)
        if self.is_merge:
            return (ConstantStep(merge_program(len(self.zero)), self.zero, value, lie),)
        first = ConstantStep(step_program(), self.zero, value, lie)
        return first, ConstantStep(encode_program(), first.after, VALUE + (self.lie == Lie.ENCODED))

    @property
    def state_zero(self) -> StateRoot:
        return self.start if self.start is not None else StateRoot(self.step(1).prev[-1][0])

    @property
    def carried(self) -> moves.Proof:
        return ()

    @cached_property
    def trace(self) -> tuple[StateRoot, ...]:
        states = [StateRoot(merkle.levels(step.after)[-1][0]) for step in self._steps]
        if self.lie == Lie.FORGED and not self.is_merge:
            states[0] = StateRoot(Digest(b"\xf0" * 32))
        return tuple(states)

    def leaf(self, word: int, u: int = 1) -> StateLeaf:
        """Returns the leaf of a slot's S_1 that a witness's word selects."""
        assert u == 1, "of the two states the last one is public"
        first = self.step(1)
        outputs = first.program.outputs
        return moving.leaf_of(first.program, word, first.after, lambda k: first.output(outputs[k].index).levels)

    @cached_property
    def levels(self) -> Levels:
        """Returns the Merkle levels over the trace."""
        return merkle.levels([merkle.leaf(state) for state in self.trace])

    @cached_property
    def body(self) -> Body:
        """Returns the claim's body."""
        out, out2 = self._steps[-1].after
        return Body(TraceRoot(self.levels[-1][0]), StateRoot(out), StateRoot(out2))
