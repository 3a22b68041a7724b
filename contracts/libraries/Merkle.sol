// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

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
    /// @dev A table to k = 16, hashed above: every depth that an accepted job has is in the table.
    function zero(uint256 k) internal view returns (bytes32 digest) {
        if (k == 0) return bytes32(0);
        if (k == 1) return 0xae0798d0ecaed2b778eddebf18f071a561c53658c05e76cedecc27cafbdbc577;
        if (k == 2) return 0x90534fe0aff6db9edb29eee74e78a386916a581c8e6465349493e1a6c87241e1;
        if (k == 3) return 0xbea16162721bca4b6e1782cbdc695a471522157c6716f508db47c599195340f4;
        if (k == 4) return 0x30765fef341bdfe749c391bf956a9f03d363941b2eb8f85ab16bb6eb0d3c4def;
        if (k == 5) return 0xf1a0a71a6550c41bc8d4dac4f186b6d274a839f2f95ad9e3bb651d45810c5a1f;
        if (k == 6) return 0xc6984907d2e534964351393bc85f04374065b63870cc859c68192def090c1017;
        if (k == 7) return 0xdc0606b906238dd157e69cb261e75696007e4d9a3f707a7ce10ce410d08bcfec;
        if (k == 8) return 0x8e4b3745e5f2f7d48e36b192cb39242fa0f7a76fac1e36a519d8ebe00f3e21fb;
        if (k == 9) return 0xbd752b8e76f5f891e5d3a10352dbf3ac25123b6eb48a3ad154020cd0c84d2176;
        if (k == 10) return 0x29398d48e1a1a9f3c8e0f97b0f8c066d2beaf88a319baef02a5482d6157ebd2b;
        if (k == 11) return 0x76dc94f187362590f6fd2f1e2b1b8c8f06d7439080b4a499ae6b267ab1b5cc31;
        if (k == 12) return 0xd100399f607ba956d68737045ea9eb3e75475dfa633b7cabecf0afa05c9f3af8;
        if (k == 13) return 0x3e46222c092b9baa5a16df1dc2864c7cb5fb79609d096ac2a10d64f824d1c73a;
        if (k == 14) return 0x8cf2c9bd2369a3b9e0bbdd2cee634605440adb2d70b15263dbe7d0d16ebfc03d;
        if (k == 15) return 0xfbbb942587ef256738d2bbb0506423880206cfbfa2ed4d340d796b0f7e290980;
        if (k == 16) return 0xbbc84bb1eca9b98b546708cadcf829983dd03da168f65aeae21724003072c21a;
        digest = zero(16);
        for (uint256 i = 16; i < k; i++) digest = node(digest, digest);
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
    function climb(bytes32 x, uint256 index, bytes32[] calldata proof) internal view returns (bytes32) {
        // INVARIANT: a proof names one position; an index with more bits than the proof has siblings names none.
        if (proof.length < 256 && index >> proof.length != 0) revert ProofInvalid();
        for (uint256 k = 0; k < proof.length; k++) {
            x = (index >> k) & 1 == 0 ? node(x, proof[k]) : node(proof[k], x);
        }
        return x;
    }

    /// @notice Reverts unless `x` is at position `index` of the tree of depth `depth` under `root`.
    function verify(bytes32 root, bytes32 x, uint256 index, uint256 depth, bytes32[] calldata proof) internal view {
        // INVARIANT: a tree's depth comes from the claim or the Program, never from the proof that a mover sends.
        if (proof.length != depth || climb(x, index, proof) != root) revert ProofInvalid();
    }

    /// @notice The root of the full tree over `nodes` (a power of two many). Overwrites `nodes`.
    function rootOf(bytes32[] memory nodes) internal view returns (bytes32) {
        uint256 width = nodes.length;
        // INVARIANT: a tree's leaves are padded by the caller to a power of two, at least one.
        if (width == 0 || width & (width - 1) != 0) revert ProofInvalid();
        while (width > 1) {
            width /= 2;
            for (uint256 i = 0; i < width; i++) nodes[i] = node(nodes[2 * i], nodes[2 * i + 1]);
        }
        return nodes[0];
    }

    /// @notice The least k with 2^k >= count (0 for counts 0 and 1).
    function depthOf(uint256 count) internal pure returns (uint256 k) {
        while ((uint256(1) << k) < count) k++;
    }
}
