// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Opening, OutOfRange} from "../interfaces/IArbiter.sol";
import {CHUNK} from "./Constants.sol";
import {ProofInvalid} from "./Errors.sol";
import {Merkle} from "./Merkle.sol";
import {Program} from "./Program.sol";

/// @title Openings
/// @notice Verified reads of committed tensors: from a root down to the 32-bit words of one leaf.
library Openings {
    uint256 private constant LANES_8 = 0x00FF00FF00FF00FF00FF00FF00FF00FF00FF00FF00FF00FF00FF00FF00FF00FF;
    uint256 private constant LANES_16 = 0x0000FFFF0000FFFF0000FFFF0000FFFF0000FFFF0000FFFF0000FFFF0000FFFF;

    /// @notice Reverts unless `opening` is the leaf with flat element `flat` of the tensor at `index` of the tree under `root`.
    function verify(Opening calldata opening, bytes32 root, uint256 index, uint256 depth, uint256 flat) internal view {
        bytes calldata header = opening.header;
        uint256 leafIndex = flat / CHUNK;
        // INVARIANT: the leaf that is opened is the leaf that is read.
        if (opening.leafIndex != leafIndex) revert OutOfRange();

        uint256 count = elements(header);
        // INVARIANT: a view reads inside its source.
        if (flat >= count) revert OutOfRange();

        bytes32 x = leafHash(opening.data);
        x = _climb(x, leafIndex, Program.depthOf(Program.leaves(count)), opening.leafProof);
        x = _tensorRoot(header, x);
        if (_climb(x, index, depth, opening.rootProof) != root) revert ProofInvalid();
    }

    /// @notice Elements of the tensor that `header` describes; 1 for a scalar.
    function elements(bytes calldata header) internal pure returns (uint256 count) {
        // INVARIANT: a header is dtype, rank and exactly rank dimensions.
        if (header.length < 2 || header.length != 2 + 4 * uint256(uint8(header[1]))) revert ProofInvalid();
        count = 1;
        for (uint256 at = 2; at < header.length; at += 4) count *= _u32(header, at);
    }

    /// @notice SHA256(0x00 ‖ data), without keeping a copy.
    function leafHash(bytes calldata data) internal view returns (bytes32 digest) {
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore8(free, 0x00)
            calldatacopy(add(free, 0x01), data.offset, data.length)
            // The precompile fails only for want of gas.
            if iszero(staticcall(gas(), 0x02, free, add(data.length, 0x01), 0x00, 0x20)) { revert(0x00, 0x00) }
            digest := mload(0x00)
        }
    }

    /// @notice Word `i` of a leaf (little-endian).
    function word(bytes calldata data, uint256 i) internal pure returns (uint256 value) {
        // INVARIANT: a leaf is read inside its bytes.
        if (4 * i + 4 > data.length) revert OutOfRange();
        assembly ("memory-safe") {
            value := calldataload(add(data.offset, mul(4, i)))
        }
        value = swap(value) >> 224;
    }

    /// @notice Copies words `first` .. `first + count - 1` of a leaf to memory at `to`, 4 big-endian bytes each.
    /// @dev Writes whole 32-byte blocks: up to 28 bytes beyond the last word, which the caller has allocated.
    function copy(bytes calldata data, uint256 first, uint256 count, uint256 to) internal pure {
        // INVARIANT: a leaf is read inside its bytes.
        if (4 * (first + count) > data.length) revert OutOfRange();
        uint256 from;
        assembly ("memory-safe") {
            from := add(data.offset, mul(4, first))
        }
        for (uint256 end = to + 4 * count; to < end; ) {
            uint256 block_;
            assembly ("memory-safe") {
                block_ := calldataload(from)
            }
            block_ = swap(block_);
            assembly ("memory-safe") {
                mstore(to, block_)
                from := add(from, 0x20)
                to := add(to, 0x20)
            }
        }
    }

    /// @notice The bytes of each of eight 32-bit lanes reversed.
    function swap(uint256 lanes) internal pure returns (uint256) {
        lanes = ((lanes & LANES_8) << 8) | ((lanes >> 8) & LANES_8);
        return ((lanes & LANES_16) << 16) | ((lanes >> 16) & LANES_16);
    }

    function _climb(bytes32 x, uint256 index, uint256 depth, bytes32[] calldata proof) private view returns (bytes32) {
        // INVARIANT: a tree's depth comes from the committed header, never from the proof that a mover sends.
        if (proof.length != depth) revert ProofInvalid();
        return Merkle.climb(x, index, proof);
    }

    /// @dev SHA256(0x02 ‖ header ‖ tree).
    function _tensorRoot(bytes calldata header, bytes32 tree) private view returns (bytes32 digest) {
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore8(free, 0x02)
            calldatacopy(add(free, 0x01), header.offset, header.length)
            mstore(add(free, add(header.length, 0x01)), tree)
            if iszero(staticcall(gas(), 0x02, free, add(header.length, 0x21), 0x00, 0x20)) { revert(0x00, 0x00) }
            digest := mload(0x00)
        }
    }

    function _u32(bytes calldata data, uint256 at) private pure returns (uint256 value) {
        assembly ("memory-safe") {
            value := shr(224, calldataload(add(data.offset, at)))
        }
    }
}
