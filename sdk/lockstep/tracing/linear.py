"""Rules for triangular systems of linear equations."""

from __future__ import annotations

from lockstep.numerics.scalar import Opcode
from lockstep.tracing.graph import F32, Node
from lockstep.tracing.lowering import Lowering, rule
from lockstep.tracing.reductions import product


@rule("linalg_solve_triangular")
def solve_triangular(
    low: Lowering, a: Node, b: Node, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Node:
    """Solves a x = b (or x a = b) for x [..., N, K]; a [..., N, N] is triangular, and its other half is not read."""
    rank = len(low.shape)
    last = [*range(rank - 2), rank - 1, rank - 2]
    batch = low.shape[:-2]
    a, b = (low.graph.expand(x, (*batch, *x.shape[-2:])) for x in (a, b))
    if not left:
        # x a = b is equivalent to a^T x^T = b^T.
        a, b, upper = low.graph.permute(a, last), low.graph.permute(b, last), not upper
    if upper:
        # Reversing rows and columns turns an upper triangular matrix into a lower one.
        a, b = low.graph.flip(a, [rank - 2, rank - 1]), low.graph.flip(b, [rank - 2])
    x = product(low, _inverse(low, a, unitriangular), b)
    if upper:
        x = low.graph.flip(x, [rank - 2])
    return x if left else low.graph.permute(x, last)


def _inverse(low: Lowering, a: Node, unitriangular: bool) -> Node:
    """Inverts lower triangular matrices [..., N, N] by halves (Higham 2002, section 14.2.2, equation 14.15).

    The inverse of [[A, 0], [C, B]] is [[A^-1, 0], [-B^-1 C A^-1, B^-1]]. From blocks of one element to the whole it
    takes log2(N) levels of two products each, where substitution would take N steps.
    """
    g, (*batch, n, _) = low.graph, a.shape
    lead = len(batch)
    size = 1
    diagonal = _blocks(low, a, n, 1, 0, 0)
    found = g.number(1.0, F32, diagonal.shape) if unitriangular else low.f(Opcode.FDIV, 1.0, diagonal)
    whole = 1 << max(n - 1, 0).bit_length()
    if whole > n:
        # Pads with rows of the identity, so that both halves have equal size.
        a = _bordered(low, a, whole)
        ones = g.number(1.0, F32, (*batch, whole - n, 1, 1))
        found = g.concat([found, ones], lead)
    while size < whole:
        halves = g.reshape(found, (*batch, whole // (2 * size), 2, size, size))
        first, second = (
            g.reshape(g.slice(halves, lead + 1, half, 1), (*batch, whole // (2 * size), size, size)) for half in (0, 1)
        )
        below = _blocks(low, a, whole, 2 * size, size, 0)
        corner = low.f(Opcode.FMUL, -1.0, product(low, product(low, second, below), first))
        none = g.number(0.0, F32, corner.shape)
        rows = [g.concat([first, none], lead + 2), g.concat([corner, second], lead + 2)]
        found = g.concat(rows, lead + 1)
        size *= 2
    found = g.reshape(found, (*batch, whole, whole))
    return g.slice(g.slice(found, lead, 0, n), lead + 1, 0, n)


def _blocks(low: Lowering, a: Node, n: int, size: int, row: int, column: int) -> Node:
    """Returns [..., N / size, S, S]: for each diagonal block of `size`, the square that begins at (row, column)
    in it.
    """
    g, (*batch, _, _) = low.graph, a.shape
    lead, count, side = len(batch), n // size, max(size - max(row, column), 1)
    cut = g.reshape(a, (*batch, count, size, count, size))
    cut = g.slice(g.slice(cut, lead + 1, row, side), lead + 3, column, side)
    moved = g.permute(cut, [*range(lead), lead + 1, lead + 3, lead, lead + 2])
    flat = g.reshape(moved, (*batch, side, side, count * count))
    own = g.slice(flat, lead + 2, 0, count, count + 1)
    return g.permute(own, [*range(lead), lead + 2, lead, lead + 1])


def _bordered(low: Lowering, a: Node, whole: int) -> Node:
    """Pads matrices with zeros to the right and below; the padding of the diagonal is never read."""
    g, (*batch, n, _) = low.graph, a.shape
    lead = len(batch)
    wide = g.concat([a, g.number(0.0, F32, (*batch, n, whole - n))], lead + 1)
    return g.concat([wide, g.number(0.0, F32, (*batch, whole - n, whole))], lead)
