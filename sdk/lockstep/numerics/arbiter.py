"""The Arbiter in Python: verified openings, then the reference; twin of contracts/Arbiter.sol.

A challenger runs it before it pays for a transaction; the game's twin runs it in the place of the chain.
"""

from __future__ import annotations

import struct

from lockstep.numerics import reference
from lockstep.protocol.dispute.moves import Opening
from lockstep.protocol.dispute.openings import OpenedOperands, stage
from lockstep.protocol.dispute.statement import Statement
from lockstep.protocol.programs.program import CHUNK, Kind, Op


class ReferenceArbiter:
    """Executes one element or chunk. Raises `OpeningWrong` where the contract reverts."""

    def execute(
        self,
        statement: Statement,
        op: int,
        descriptor: bytes,
        element: int,
        chunk: int,
        openings: tuple[Opening, ...],
        staged: int = 0,
    ) -> int:
        """The word of flat element `element`; for a fold of more than 256 terms, of its chunk `chunk`."""
        decoded = Op.decode(descriptor)
        opened = OpenedOperands(statement, op, decoded, element, chunk, openings, staged)
        rows = reference.Rows(
            statement.dataset_rows, lambda row, column: opened.drawn(row * statement.row_length + column)
        )
        context = (statement.round, statement.slot, int(statement.t))
        operands = reference.Operands(opened.word, statement.seed, context, rows)
        if decoded.kind == Kind.FOLD and decoded.chunks > 1:
            return reference.chunk(decoded, element, chunk, operands)
        return reference.element(decoded, element, operands)

    def stage(
        self,
        statement: Statement,
        op: int,
        descriptor: bytes,
        element: int,
        openings: tuple[Opening, ...],
        staged: int = 0,
    ) -> int:
        """Adds the words of a map's next tensor operands to those staged before."""
        return stage(statement, op, Op.decode(descriptor), element, openings, staged)

    def combine(self, mode: int, words: bytes) -> int:
        """The word that a fold's posted partials make: at most 512, first by 256."""
        partials = struct.unpack(f">{len(words) // 4}I", words)
        return reference.combine(mode, partials) if len(partials) <= CHUNK else reference.joined(mode, partials)
