"""States with several moving tensors of several leaves, and some constant ones: a witness's leaf is one of the moving.

Step: [flat, scalar | flat, scalar | flat, EMPTY | clock, EMPTY] -> the same, the second quarter unchanged. Every
tensor's words follow from a name: nobody computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from hashlib import sha256

from lockstep.numerics import scalar
from lockstep.protocol import merkle
from lockstep.protocol.dispute.openings import Contents, Levels
from lockstep.protocol.hashing import keccak
from lockstep.protocol.jobs import Body
from lockstep.protocol.market import moving
from lockstep.protocol.market.types import StateLeaf
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, I32, Alias, Instr, Kind, Op, Program, Tag, View
from lockstep.protocol.types import StateRoot, TraceRoot

LIVE, CARRIED, SCALAR, CLOCK = (
    TensorHeader(F32, (600,)), TensorHeader(I32, (300,)), TensorHeader(F32, ()), TensorHeader(I32, ()),
)  # fmt: skip
LAYOUT = (LIVE, SCALAR, LIVE, SCALAR, CARRIED, None, CLOCK, None)
PLACES = ((0, 0), (0, 1), (0, 2), (1, 0), (4, 0), (4, 1))
"""(entry, leaf) of everything that moves, without the clock."""


@cache
def program() -> Program:
    """Returns the Program of the step."""
    made = (LIVE, SCALAR, CARRIED, CLOCK)
    ops = []
    for k, header in enumerate(made):
        view = View(Tag.IOTA, 0, 7, tuple(1 for _ in header.shape))
        cumulative = sum(h.elements for h in made[: k + 1])
        instrs = (Instr(scalar.Opcode.IADD, 0, 0),)
        ops.append(Op(Kind.MAP, header.dtype, header.shape, (view,), instrs=instrs, cumulative=cumulative))
    empty, op, state = Alias.EMPTY_KIND, Alias.OP_KIND, Alias.STATE_KIND
    outputs = ((op, 0), (op, 1), (state, 2), (state, 3), (op, 2), (empty, 0), (op, 3), (empty, 0))
    return Program(tuple(ops), LAYOUT, tuple(Alias(*alias) for alias in outputs))


@dataclass(frozen=True)
class WideState:
    """One state, determined by its name."""

    name: bytes

    def tensor(self, entry: int) -> Contents:
        """Returns one of its tensors."""
        header = LAYOUT[entry]
        assert header is not None
        leaves = (sha256(self.name + bytes([entry, at])).digest() * 32 for at in range(header.leaves))
        return Contents(header, b"".join(leaves)[: 4 * header.elements])

    @cached_property
    def roots(self) -> tuple[bytes | None, ...]:
        """Returns the roots of its tensors."""
        return tuple(
            None if header is None else merkle.tensor_root(header.dtype, header.shape, self.tensor(k).data)
            for k, header in enumerate(LAYOUT)
        )

    @cached_property
    def root(self) -> StateRoot:
        """Returns the state's root."""
        return StateRoot(merkle.tree([merkle.EMPTY[0] if root is None else root for root in self.roots]))

    def leaf(self, word: int) -> StateLeaf:
        """Returns the leaf that a witness's word selects."""
        return moving.leaf_of(program(), word, self.roots, lambda entry: self.tensor(entry).levels)


@lru_cache(maxsize=4096)
def state(name: bytes) -> WideState:
    """Returns the state of a name, with trees built once."""
    return WideState(name)


@dataclass(frozen=True)
class WideClaim:
    """A slot's claim: T - 1 such states, then its outputs; `wrong_from` is the first false one."""

    name: bytes
    transitions: int
    wrong_from: int | None = None

    @cached_property
    def truth(self) -> WideClaim:
        """Returns the claim without its lie."""
        return WideClaim(self.name, self.transitions)

    def state(self, u: int) -> WideState:
        """Returns its state at u, 1 to T - 1."""
        wrong = self.wrong_from is not None and u >= self.wrong_from
        return state(self.name + (b"wrong" if wrong else b"") + bytes([u]))

    def leaf(self, word: int, u: int) -> StateLeaf:
        """Returns the leaf of S_u that a witness's word selects."""
        return self.state(u).leaf(word)

    @property
    def outputs(self) -> tuple[StateRoot, StateRoot]:
        """Returns `out` and `out2`."""
        wrong = b"wrong" if self.wrong_from is not None else b""
        return StateRoot(keccak(self.name + wrong + b"out")), StateRoot(merkle.EMPTY[2])

    @cached_property
    def trace(self) -> Sequence[StateRoot]:
        """Returns S_1 .. S_T."""
        states = [self.state(u).root for u in range(1, self.transitions)]
        return (*states, StateRoot(merkle.node(*self.outputs)))

    @cached_property
    def levels(self) -> Levels:
        """Returns the Merkle levels over the trace."""
        return merkle.levels([merkle.leaf(state) for state in self.trace])

    @property
    def body(self) -> Body:
        """Returns the body that it commits to."""
        return Body(TraceRoot(self.levels[-1][0]), *self.outputs)
