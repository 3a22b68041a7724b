"""Selects one leaf of the part of a slot's state that every step recomputes (without the clock); knowing it shows that
a witness has replayed (docs/protocol.md, section 7). Twin of contracts/libraries/Moving.sol; `leaf_of` is the witness's
side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.protocol import merkle
from lockstep.protocol.market.types import StateLeaf
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.defects import Code
from lockstep.protocol.programs.program import Alias, Program, ProgramHeader
from lockstep.protocol.reverts import revert
from lockstep.protocol.types import Digest, StateRoot


@dataclass(frozen=True)
class LeafPlace:
    """Position of a leaf in a state."""

    entry: int
    """Index of the tensor in the state."""
    at: int
    """Index of the leaf in the tensor."""
    tensor: TensorHeader


def place_of(header: ProgramHeader, word: int) -> LeafPlace | None:
    """Returns the leaf of the moving part that a word selects, counted through its tensors in order, modulo their
    total.

    Returns None if no tensor moves. `header` is the step Program's; its states before and after have one layout.
    """
    # The clock is the last section of the state.
    end = (3 << header.s_out) // 4 if header.s_in == header.s_out else 0
    tensors = [
        (k, tensor)
        for k, (tensor, alias) in enumerate(zip(header.inputs[:end], header.outputs[:end], strict=True))
        if alias.kind == Alias.OP_KIND and tensor is not None
    ]
    total = sum(tensor.leaves for _, tensor in tensors)
    if total == 0:
        return None
    # INVARIANT: nobody chooses the leaf: whatever fixes t* names it, among all that a step computes.
    at = word % total
    for k, tensor in tensors:
        if at < tensor.leaves:
            return LeafPlace(k, at, tensor)
        at -= tensor.leaves
    raise AssertionError("a remainder lies below what it is the remainder of")


def require_leaf(state: StateRoot, program: Digest, word: int, leaf: StateLeaf) -> None:
    """Reverts unless a witness's leaf is the one of this state that `word` selects.

    If no tensor moves, any leaf passes.
    """
    code = leaf.code
    # INVARIANT: evidence is about the Programs that the job names.
    if merkle.program_root(code.header, code.ops_root, code.consts_root) != bytes(program):
        raise revert("ProofInvalid")
    header = ProgramHeader.decode(code.header)
    place = place_of(header, word)
    if place is None:
        return
    # INVARIANT: a tree's depth comes from the committed header, never from the proof that a mover sends.
    if len(leaf.leaf_proof) != place.tensor.depth:
        raise revert("ProofInvalid")
    tree = merkle.climb(leaf.digest, place.at, leaf.leaf_proof)
    root = merkle.tensor_root_of_tree(place.tensor, tree)
    merkle.require(state, root, place.entry, header.s_out, leaf.entry_proof)


# -- the witness's side ------------------------------------------------------------------------------------------------


def leaf_of(
    program: Program, word: int, roots: Sequence[bytes | None], levels: Callable[[int], Sequence[Sequence[Digest]]]
) -> StateLeaf:
    """Returns the leaf that `word` selects, proven to a state with these tensor roots (None = EMPTY); EMPTY if no
    tensor moves.

    `program` is the step's; `levels(entry)` returns a tensor's Merkle levels, leaves first.
    """
    code = Code(program.header, program.ops_root, program.consts_root)
    place = place_of(ProgramHeader.decode(program.header), word)
    if place is None:
        return StateLeaf(merkle.EMPTY[0], code)
    tree = levels(place.entry)
    entries = merkle.levels([merkle.EMPTY[0] if root is None else root for root in roots])
    proofs = tuple(merkle.proof(tree, place.at)), tuple(merkle.proof(entries, place.entry))
    return StateLeaf(tree[0][place.at], code, *proofs)
