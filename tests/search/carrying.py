"""A job whose carry records its history: the counterpart of tests/support/constant.py for slots that carry.

A step maps the carry to `4 carry + slot + 1`, so that carries of different rounds, or of any of three slots, differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

from lockstep.numerics import scalar
from lockstep.protocol import merkle
from lockstep.protocol.dispute import moves
from lockstep.protocol.dispute.openings import Contents, Levels
from lockstep.protocol.programs.program import I32, Alias, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.types import ClaimId
from tests.support.constant import CARRY, SCALAR, VALUE, ConstantClaim, ConstantStep, Lie, encode_program, held, root_of

BASE, WORD = 4, 1 << 32


@cache
def step_program() -> Program:
    """Returns the step Program: [live, anchor, carry, clock] -> [8, anchor, 4 carry + slot + 1, clock]."""
    iota, slot = View(Tag.IOTA, 0, 7, ()), View(Tag.CONTEXT, 0, 1, ())
    one, four, carry = View(Tag.IOTA, 0, 1, ()), View(Tag.IOTA, 0, BASE, ()), View(Tag.STATE, 2, 0, ())
    add, multiply = scalar.Opcode.IADD, scalar.Opcode.IMUL
    ops = (
        Op(Kind.MAP, I32, (), (iota, one), instrs=(Instr(add, 0, 1),), cumulative=1),
        Op(
            Kind.MAP, I32, (), (carry, four, slot, one),
            instrs=(Instr(multiply, 0, 1), Instr(add, 4, 2), Instr(add, 5, 3)), cumulative=2,
        ),
    )  # fmt: skip
    outputs = (Alias(1, 0), Alias(2, 1), Alias(1, 1), Alias(2, 3))
    return Program(ops, (SCALAR,) * 4, outputs)


def put_out(carry: int, slot: int) -> int:
    """Returns the carry that a slot outputs, given the one it starts from."""
    return (BASE * carry + slot + 1) % WORD


@dataclass(frozen=True)
class CarryStep(ConstantStep):
    """A claimed step."""

    carry: int = CARRY
    """Word in S_0."""
    out: int = 0
    """Claimed word of S_1."""

    @cached_property
    def graph(self) -> Levels:
        leaves: list[bytes] = [root_of(self.value), root_of(self.out)]
        leaves += [merkle.EMPTY[0]] * (self.program.state_block - len(leaves))
        if self.lie == Lie.PADDING:
            leaves[2] = b"\x77" * 32
        return merkle.levels([*leaves, *self.after], self.program.depth)

    @cached_property
    def after(self) -> tuple[bytes, ...]:
        made = (root_of(self.value), root_of(self.out))
        after = [made[a.index] if a.kind == Alias.OP_KIND else self.before[a.index] for a in self.program.outputs]
        if self.lie == Lie.ALIAS:
            after[1] = b"\x55" * 32
        return tuple(after)

    def output(self, op: int) -> Contents:
        return held((self.value, self.out)[op])

    def state(self, entry: int) -> Contents:
        assert entry == 2, "of the state, the step reads its carry alone"
        return held(self.carry)


@dataclass(frozen=True)
class CarryClaim(ConstantClaim):
    """A slot's claim that may start from a carry."""

    slot: int = 0
    carry: int = CARRY
    """Word that S_0 must have."""
    started: int = CARRY
    """Word from which it was computed."""
    source: ClaimId | None = None
    """Claim whose carry that is; None: it starts from zero."""
    words: tuple[bytes, ...] = ()
    """The three words of that claim's Body."""
    stored: bool = True
    """True if its own carry is stored with its payload, for all."""

    @property
    def truth(self) -> CarryClaim:
        return replace(self, lie=Lie.NONE, started=self.carry)

    @property
    def wrong_from(self) -> int:
        return 1 if self.started != self.carry else super().wrong_from

    @property
    def out(self) -> int:
        """Returns the carry that it outputs."""
        return put_out(self.started, self.slot)

    @property
    def carried(self) -> moves.Proof:
        return self.words  # type: ignore[return-value]

    @cached_property
    def _steps(self) -> tuple[ConstantStep, ...]:
        lie = Lie.NONE if self.lie == Lie.ENCODED else self.lie
        first = CarryStep(step_program(), self.zero, VALUE + (lie == Lie.VALUE), lie, carry=self.carry, out=self.out)
        return first, ConstantStep(encode_program(), first.after, VALUE + (self.lie == Lie.ENCODED))


def claim_of(
    base: bytes, clock: int, slot: int, source: tuple[ClaimId, CarryClaim] | None, *, lie: Lie = Lie.NONE,
    started: int | None = None, stored: bool = True,
) -> CarryClaim:  # fmt: skip
    """Creates a claim from the round's base and the carry of `source`, or zero; `started` computes from another word
    instead.
    """
    carry = CARRY if source is None else source[1].out
    words: Sequence[bytes] = () if source is None else source[1].body.words
    return CarryClaim(
        (base, base, root_of(carry), root_of(clock)), lie, slot=slot, carry=carry,
        started=carry if started is None else started, source=None if source is None else source[0],
        words=tuple(words), stored=stored,
    )  # fmt: skip
