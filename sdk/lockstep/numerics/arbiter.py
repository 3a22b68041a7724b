"""Python twin of contracts/Arbiter.sol: verifies openings, then executes the reference.

A challenger runs this twin before it pays for a transaction; the twin of the dispute game uses it in place of the
chain.
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
        """Returns the word of flat element `element`; for a fold of more than 256 terms, the word of its chunk
        `chunk`.
        """
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
        """Adds the words of a map's next tensor operands to those staged before; returns the new `staged` value."""
        return stage(statement, op, Op.decode(descriptor), element, openings, staged)

    def combine(self, mode: int, words: bytes) -> int:
        """Combines a fold's posted partials, at most 512, into one word; first by 256."""
        partials = struct.unpack(f">{len(words) // 4}I", words)
        return reference.combine(mode, partials) if len(partials) <= CHUNK else reference.joined(mode, partials)
