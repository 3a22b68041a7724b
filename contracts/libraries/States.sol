// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Merkle} from "./Merkle.sol";

/// @title States
/// @notice The state roots that the contract computes itself, so that nobody can choose them (docs/protocol.md, section 3).
library States {
    bytes1 private constant TENSOR = 0x02;
    uint8 private constant F32 = 0;
    uint8 private constant I32 = 1;
    bytes4 private constant ONE = 0x0000803f; // 1.0f, little-endian

    /// @notice A slot's S_0: base as live and as anchor, its carry, and the clock at the steps done before this round.
    function slotZero(bytes32 base, bytes32 carry, uint32 stepsDone, uint8 sharedDepth) internal view returns (bytes32) {
        bytes32 clock = Merkle.lift(_clock(stepsDone), 0, sharedDepth);
        return Merkle.node(Merkle.node(base, base), Merkle.node(carry, clock));
    }

    /// @notice A merge's S_0: base and outer state, every payload of the mask, and the mask itself.
    /// @param payloads 2^q roots of depth `payloadDepth`. Overwritten.
    function mergeIn(
        bytes32 base,
        bytes32 outer,
        bytes32[] memory payloads,
        bytes32 maskRoot,
        uint8 sharedDepth,
        uint8 payloadDepth
    ) internal view returns (bytes32) {
        uint256 depth = payloadDepth + Merkle.depthOf(payloads.length);
        bytes32 states = Merkle.lift(Merkle.node(base, outer), uint256(sharedDepth) + 1, depth + 1);
        return Merkle.node(states, Merkle.node(Merkle.rootOf(payloads), Merkle.lift(maskRoot, 0, depth)));
    }

    /// @notice The tensor root of the mask: f32 of dims (slots), 1.0 where the bit is set. At most 256 slots: one leaf.
    function maskTensor(uint256 mask, uint16 slots) internal pure returns (bytes32) {
        bytes memory words;
        for (uint256 s = 0; s < slots; s++) words = abi.encodePacked(words, (mask >> s) & 1 == 1 ? ONE : bytes4(0));
        return sha256(abi.encodePacked(TENSOR, F32, uint8(1), uint32(slots), Merkle.leaf(words)));
    }

    /// @dev The tensor root of an i32 scalar.
    function _clock(uint32 value) private pure returns (bytes32) {
        bytes32 contents = Merkle.leaf(abi.encodePacked(_littleEndian(value)));
        return sha256(abi.encodePacked(TENSOR, I32, uint8(0), contents));
    }

    function _littleEndian(uint32 value) private pure returns (uint32) {
        value = ((value >> 8) & 0x00ff00ff) | ((value & 0x00ff00ff) << 8);
        return (value >> 16) | (value << 16);
    }
}
