// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {ProofInvalid} from "./Errors.sol";

/// @title Merkle
/// @notice SHA-256 trees: domain-separated leaves and nodes, empty subtrees, lifts, proofs (docs/protocol.md, section 1).
library Merkle {
    /// @notice SHA256(0x00 ‖ data).
    function leaf(bytes memory data) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x00), data));
    }

    /// @notice SHA256(0x00 ‖ word): the leaf of one 32-byte value, as in a trace.
    function leaf(bytes32 word) internal view returns (bytes32 digest) {
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore8(free, 0x00)
            mstore(add(free, 0x01), word)
            if iszero(staticcall(gas(), 0x02, free, 0x21, 0x00, 0x20)) { revert(0x00, 0x00) }
            digest := mload(0x00)
        }
    }

    /// @notice SHA256(0x01 ‖ left ‖ right).
    function node(bytes32 left, bytes32 right) internal view returns (bytes32 digest) {
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore8(free, 0x01)
            mstore(add(free, 0x01), left)
            mstore(add(free, 0x21), right)
            // The precompile fails only for want of gas.
            if iszero(staticcall(gas(), 0x02, free, 0x41, 0x00, 0x20)) { revert(0x00, 0x00) }
            digest := mload(0x00)
        }
    }

    /// @notice Z_k, the root of an EMPTY subtree of depth k: Z_0 = 0, Z_{k+1} = node(Z_k, Z_k).
    function zero(uint256 k) internal view returns (bytes32 digest) {
        for (uint256 i = 0; i < k; i++) digest = node(digest, digest);
    }

    /// @notice The root of a tree of depth `to` whose leftmost subtree, of depth `from`, is `x` and whose rest is EMPTY.
    function lift(bytes32 x, uint256 from, uint256 to) internal view returns (bytes32) {
        if (from >= to) return x;
        bytes32 empty = zero(from);
        for (uint256 k = from; k < to; k++) {
            x = node(x, empty);
            empty = node(empty, empty);
        }
        return x;
    }

    /// @notice The root that a proof leads to: siblings from `x` upward, the index's bits (lowest first) say right or left.
    /// @dev One loop: a proof of a game has up to 30 levels.
    function climb(bytes32 x, uint256 index, bytes32[] calldata proof) internal view returns (bytes32 root) {
        uint256 length = proof.length;
        // INVARIANT: a proof names one position; an index with more bits than the proof has siblings names none.
        if (length > 64 || index >> length != 0) revert ProofInvalid();
        assembly ("memory-safe") {
            let free := mload(0x40)
            let left := add(free, 0x01)
            let right := add(free, 0x21)
            let hashed := 1
            mstore8(free, 0x01)
            root := x
            let at := proof.offset
            for { let end := add(at, shl(5, length)) } lt(at, end) { at := add(at, 0x20) } {
                let side := shl(5, and(index, 1))
                mstore(add(left, side), root)
                mstore(sub(right, side), calldataload(at))
                hashed := and(hashed, staticcall(gas(), 0x02, free, 0x41, 0x00, 0x20))
                root := mload(0x00)
                index := shr(1, index)
            }
            // The precompile fails only for want of gas.
            if iszero(hashed) { revert(0x00, 0x00) }
        }
    }

    /// @notice Reverts unless `x` is at position `index` of the tree of depth `depth` under `root`.
    function verify(bytes32 root, bytes32 x, uint256 index, uint256 depth, bytes32[] calldata proof) internal view {
        // INVARIANT: a tree's depth comes from the claim or the Program, never from the proof that a mover sends.
        if (proof.length != depth || climb(x, index, proof) != root) revert ProofInvalid();
    }

    /// @notice The root of the full tree over `nodes` (a power of two many). Overwrites `nodes`.
    function rootOf(bytes32[] memory nodes) internal view returns (bytes32) {
        reduce(nodes, 1);
        return nodes[0];
    }

    /// @notice Leaves of the full tree over `nodes` (a power of two many) the level of `width` nodes (another one). Overwrites `nodes`.
    function reduce(bytes32[] memory nodes, uint256 width) internal view {
        uint256 count = nodes.length;
        // INVARIANT: a full tree has a power of two of leaves, at least one.
        if (count == 0 || count & (count - 1) != 0) revert ProofInvalid();
        assembly ("memory-safe") {
            // The byte of domain goes right before a pair, over the end of the pair before, which is hashed already; the digests, half
            // as long, never reach that far. Two pairs a turn, but for the last two nodes: a reveal has up to 128.
            let first := add(nodes, 0x20)
            let hashed := 1
            for { } gt(count, width) { count := shr(1, count) } {
                let from := sub(first, 0x01)
                let to := first
                if eq(count, 2) {
                    mstore8(from, 0x01)
                    hashed := and(hashed, staticcall(gas(), 0x02, from, 0x41, to, 0x20))
                }
                for { let end := add(from, shl(5, and(count, not(3)))) } lt(from, end) { from := add(from, 0x40) } {
                    mstore8(from, 0x01)
                    hashed := and(hashed, staticcall(gas(), 0x02, from, 0x41, to, 0x20))
                    from := add(from, 0x40)
                    to := add(to, 0x20)
                    mstore8(from, 0x01)
                    hashed := and(hashed, staticcall(gas(), 0x02, from, 0x41, to, 0x20))
                    to := add(to, 0x20)
                }
            }
            // The precompile fails only for want of gas.
            if iszero(hashed) { revert(0x00, 0x00) }
            // The first byte of domain went over the length.
            mstore(nodes, count)
        }
    }

    /// @notice The least k with 2^k >= count (0 for counts 0 and 1).
    function depthOf(uint256 count) internal pure returns (uint256 k) {
        while ((uint256(1) << k) < count) k++;
    }
}
