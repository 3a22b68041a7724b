// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Leaf} from "../interfaces/IWitnesses.sol";
import {ProofInvalid} from "./Errors.sol";
import {Merkle} from "./Merkle.sol";
import {Program} from "./Program.sol";
import {Statement} from "./Statement.sol";

/// @title Moving
/// @notice The part of a slot's state that every step computes anew, without the clock; one leaf of it shows a replay
///         (docs/protocol.md, section 7).
/// @dev The Python twin is lockstep/protocol/market/moving.py.
library Moving {
    /// @notice The leaf of the moving part that a word names: counted through its tensors in order, modulo what there is.
    /// @param header Of the step's Program, whose states before and after have one layout.
    /// @return entry The tensor's, in the state.
    /// @return at The leaf, in the tensor.
    /// @return leaves Of the tensor; 0 where nothing moves.
    function placeOf(bytes calldata header, Program.Header memory h, uint256 word)
        internal
        pure
        returns (uint256 entry, uint256 at, uint256 leaves)
    {
        // The clock is the last quarter.
        uint256 end = h.stateIn == h.stateOut ? (3 << h.stateOut) / 4 : 0;
        uint256 aliases = Program.INPUTS_AT + (6 << h.stateIn);
        uint256 total = 0;
        for (uint256 k = 0; k < end; k++) total += _leavesOf(header, aliases, k);
        if (total == 0) return (0, 0, 0);
        // INVARIANT: nobody chooses the leaf: whatever fixes t* names it, among all that a step computes.
        at = word % total;
        leaves = _leavesOf(header, aliases, 0);
        while (at >= leaves) {
            at -= leaves;
            entry++;
            leaves = _leavesOf(header, aliases, entry);
        }
    }

    /// @notice Reverts unless a witness's leaf is the one of this state that `word` names. Where nothing moves, every one is.
    function requireLeaf(bytes32 state, bytes32 program, uint256 word, Leaf calldata leaf) internal view {
        bytes calldata header = leaf.code.header;
        // INVARIANT: evidence is about the Programs that the job names.
        if (Statement.programRoot(header, leaf.code.opsRoot, leaf.code.constsRoot) != program) revert ProofInvalid();
        Program.Header memory h = Program.decodeHeader(header);
        (uint256 entry, uint256 at, uint256 leaves) = placeOf(header, h, word);
        if (leaves == 0) return;
        // INVARIANT: a tree's depth comes from the committed header, never from the proof that a mover sends.
        if (leaf.leafProof.length != Program.depthOf(leaves)) revert ProofInvalid();
        bytes32 tree = Merkle.climb(leaf.digest, at, leaf.leafProof);
        (bytes memory tensor,) = Program.inputTensor(header, entry);
        bytes32 root = sha256(abi.encodePacked(bytes1(0x02), tensor, tree));
        Merkle.verify(state, root, entry, h.stateOut, leaf.entryProof);
    }

    /// @dev Leaves of a state's entry, if the Program computes it; read from the calldata, since there may be 768 of them, twice.
    function _leavesOf(bytes calldata header, uint256 aliases, uint256 k) private pure returns (uint256) {
        uint256 inputs = Program.INPUTS_AT;
        uint256 kind;
        uint256 elements;
        assembly ("memory-safe") {
            kind := byte(0, calldataload(add(header.offset, add(aliases, mul(3, k)))))
            elements := shr(224, calldataload(add(header.offset, add(add(inputs, 2), mul(6, k)))))
        }
        return kind == Program.ALIAS_OP ? Program.leaves(elements) : 0;
    }
}
