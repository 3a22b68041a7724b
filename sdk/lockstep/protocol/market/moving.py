"""The part of a slot's state that every step computes anew, without the clock; one leaf of it shows a replay
(docs/protocol.md, section 7). Twin of contracts/libraries/Moving.sol; `leaf_of` is the witness's side.
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
    """The place of a leaf in a state."""

    entry: int
    """The tensor's, in the state."""
    at: int
    """The leaf, in the tensor."""
    tensor: TensorHeader


def place_of(header: ProgramHeader, word: int) -> LeafPlace | None:
    """The leaf of the moving part that a word names: counted through its tensors in order, modulo what there is. None
    where nothing moves. `header`: the step Program's, whose states before and after have one layout."""
    # The clock is the last quarter.
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
    """Reverts unless a witness's leaf is the one of this state that `word` names. Where nothing moves, every one is."""
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
    """The leaf that `word` names, proven to a state with these tensor roots (None = EMPTY); EMPTY where nothing moves.

    `program`: of the step; `levels(entry)`: a tensor's Merkle levels, leaves first.
    """
    code = Code(program.header, program.ops_root, program.consts_root)
    place = place_of(ProgramHeader.decode(program.header), word)
    if place is None:
        return StateLeaf(merkle.EMPTY[0], code)
    tree = levels(place.entry)
    entries = merkle.levels([merkle.EMPTY[0] if root is None else root for root in roots])
    proofs = tuple(merkle.proof(tree, place.at)), tuple(merkle.proof(entries, place.entry))
    return StateLeaf(tree[0][place.at], code, *proofs)
