"""The statement in dispute, as packed bytes whose keccak the contract stores.

Twin of contracts/libraries/Statement.sol, field by field.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from functools import cached_property

from lockstep.protocol.errors import Mismatch
from lockstep.protocol.programs.program import HeaderFields
from lockstep.protocol.types import Digest, ProgramRoot, Seed, StateRoot, Step, TensorRoot

PROGRAM_AT, HEAD_AT, END = 212, 244, 259


@dataclass(frozen=True)
class Statement:
    """The disputed transition t of a claim: from `prev`, by this Program, with this data and randomness."""

    prev: StateRoot
    """S_{t-1}."""
    graph: Digest
    """Root of G_t; 32 zero bytes until the defender has shown it."""
    ops_root: Digest
    consts_root: Digest
    dataset_root: TensorRoot
    seed: Seed
    dataset_rows: int
    row_length: int
    round: int
    slot: int
    t: Step
    program: ProgramRoot
    """Root of the Program that the transition runs."""
    head: bytes
    """The fixed fields of the Program's header, 15 bytes."""

    def encode(self) -> bytes:
        """Returns the bytes that movers send as `context`."""
        return b"".join(
            (
                self.prev, self.graph, self.ops_root, self.consts_root, self.dataset_root, self.seed,
                struct.pack(">5I", self.dataset_rows, self.row_length, self.round, self.slot, self.t), self.program,
                self.head,
            )
        )  # fmt: skip

    @staticmethod
    def decode(data: bytes) -> Statement:
        """Parses the bytes of `encode`. Raises Mismatch if there are fewer or more."""
        if len(data) != END:
            raise Mismatch(f"a statement of {len(data)} bytes", hint="read the game's events again")
        roots = [Digest(data[32 * i : 32 * i + 32]) for i in range(6)]
        rows, row_length, round_, slot, t = struct.unpack_from(">5I", data, 192)
        return Statement(
            StateRoot(roots[0]), roots[1], roots[2], roots[3], TensorRoot(roots[4]), Seed(roots[5]), rows, row_length,
            round_, slot, Step(t), ProgramRoot(data[PROGRAM_AT:HEAD_AT]), data[HEAD_AT:],
        )  # fmt: skip

    def with_graph(self, graph: Digest) -> Statement:
        """Returns the statement with G_t filled in."""
        return replace(self, graph=graph)

    @cached_property
    def fields(self) -> HeaderFields:
        """Parses the fields of the header."""
        return HeaderFields.decode(self.head)
