"""Limits of one op: size of a map's expression, what is recomputed instead of stored, windows that a fold can read."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from lockstep.numerics.scalar import FUNCTIONS, Opcode
from lockstep.protocol.programs.rules import MAX_FUNCTIONS, MAX_INSTRS, MAX_OPERANDS, MAX_TENSOR_OPERANDS
from lockstep.tracing.affine import Expr, FoldChain, Inst, Leaf, Val
from lockstep.tracing.graph import Node

MAX_BIG = 4
"""Most operands of a map that exceed one 1 KiB leaf: in a dispute each costs a Merkle opening on chain."""

EXPENSIVE = frozenset({Opcode.FDIV, Opcode.FSQRT, Opcode.IDIV, Opcode.IREM}) | FUNCTIONS
"""Operations too expensive to recompute for every element of a broadcast."""


@dataclass(frozen=True)
class MapCost:
    """Counts the operands and instructions that an expression needs in a map."""

    instrs: int
    operands: int
    tensors: int
    big: int
    functions: int
    heavy: bool

    @property
    def fits(self) -> bool:
        """True if one map can hold the expression."""
        return (
            self.instrs <= MAX_INSTRS
            and self.operands <= MAX_OPERANDS
            and self.tensors <= MAX_TENSOR_OPERANDS
            and self.big <= MAX_BIG
            and self.functions <= MAX_FUNCTIONS
        )

    @property
    def saved(self) -> tuple[int, int]:
        """Returns the (tensor operands, instructions) that a map saves if the expression is stored instead."""
        return (0, 0) if self.tensors + self.operands == 0 else (max(self.tensors - 1, 0), self.instrs)


def cost(expr: Expr) -> MapCost:
    """Returns the cost of an expression, over its distinct sub-expressions."""
    parts = expr.parts
    leaves = [p for p in parts if isinstance(p, Leaf)]
    insts = [p for p in parts if isinstance(p, Inst)]
    return MapCost(
        len(insts),
        len(leaves),
        sum(leaf.is_tensor for leaf in leaves),
        sum(leaf.is_tensor and leaf.big for leaf in leaves),
        sum(i.op in FUNCTIONS for i in insts),
        any(i.op in EXPENSIVE for i in insts),
    )


def is_cheap(expr: Expr) -> bool:
    """Returns True if recomputing the expression in every consumer is cheaper than storing it."""
    if isinstance(expr, Leaf):
        return True
    c, constants = cost(expr), sum(isinstance(e, Inst) and e.op == Opcode.IMM for e in expr.parts)
    own = c.instrs - constants
    return not c.heavy and (own <= 8 if c.tensors == 0 else own <= 1 and c.tensors == 1)


def is_dear_under(view: Node, expr: Expr) -> bool:
    """Returns True if recomputing the expression under the view is more expensive than storing it first."""
    if view.kind == "window":
        return view.shape[view.attrs[0] + 1] > view.attrs[1] and not is_cheap(expr)
    return view.kind == "expand" and cost(expr).heavy


def dearest(bodies: list[Expr]) -> int:
    """Returns the index of the computed argument whose storing saves the map most."""
    saved = [cost(b).saved if isinstance(b, Inst) else (0, 0) for b in bodies]
    worst = max(range(len(saved)), key=saved.__getitem__)
    assert saved[worst] > (0, 0), "three windows fit in a map"
    return worst


def k_stride(val: Val, rank: int) -> int | None:
    """Returns the single stride of a window along all k axes (those after the first `rank` dimensions); None if they
    have no common stride.
    """
    leaf = val.body
    if not isinstance(leaf, Leaf):
        return None
    first = sum(len(d) for d in val.dims[:rank])
    axes = [(n, s) for n, s in zip(val.axes[first:], leaf.strides[first:], strict=True) if n > 1]
    if not any(s for _, s in axes):
        return 0
    if any(outer != n * inner for (_, outer), (n, inner) in pairwise(axes)):
        return None
    last = axes[-1][1]
    return last if last == 1 or not leaf.is_tensor else None


def factors(val: Val, rank: int) -> list[Val] | None:
    """Returns the two factors of a product if a `dot` can read both windows directly; else None."""
    if not isinstance(val.body, Inst) or val.body.op != Opcode.FMUL:
        return None
    found = [Val(val.dims, a) for a in val.body.args]
    fit = all(isinstance(f.body, Leaf) and f.body.is_tensor and k_stride(f, rank) is not None for f in found)
    return found if fit else None


def is_row(val: Val) -> bool:
    """Returns True if the value is in memory and contiguous along its last dimension."""
    if not isinstance(val.body, Leaf) or not val.body.is_tensor:
        return False
    return not val.dims[-1] or (len(val.dims[-1]) == 1 and val.body.strides[-1] == 1)


def is_batch_innermost(val: Val) -> bool:
    """Returns True if neighbours in memory belong to different products, so that a product has no contiguous row to
    write.
    """
    chain = val.body
    if not isinstance(chain, FoldChain) or len(chain.operands) < 2:
        return False
    shared = [all(x.strides[a] for x in chain.operands) for a, n in enumerate(val.axes) if n > 1]
    return not all(shared) and shared[-1]
