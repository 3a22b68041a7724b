// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Opening} from "../../contracts/interfaces/IArbiter.sol";
import {Step} from "../../contracts/interfaces/IDisputeGame.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";

/// @title Letters
/// @notice A toy Program and the claims that can be made with it: a letter plus one, a tally, a name; all scalars of i32.
/// @dev State [letter, tally, name, EMPTY]. G has 8 leaves: op 0 letter + 1, op 1 the sum of 5 + 3k for k < 600 (three chunks, one
///      level of partials), op 2 tally + op 0 + op 1; one leaf of padding; the state block [op 0, op 2, name, EMPTY].
library Letters {
    uint32 internal constant T = 8;
    uint256 internal constant OPS = 3;
    uint256 internal constant BLOCK = 4;
    uint256 internal constant TERMS = 600;
    uint256 internal constant CHUNKS = 3;

    /// What is wrong with a claim, at step `at`. From Alias on it is the tree G itself.
    enum Lie { None, Letter, Total, Chunk, Tally, Alias, Name, Empty, Padding, Unopenable, Forged }
    uint256 internal constant LIES = 11;

    /// @param bits What is added to the wrong word; not 0.
    /// @param chunk The wrong chunk of a Lie.Chunk.
    struct Claim {
        uint32 letter;
        Lie lie;
        uint32 at;
        uint32 bits;
        uint32 chunk;
    }

    /// @notice The same claim without its lie.
    function truth(Claim memory c) internal pure returns (Claim memory) {
        return Claim(c.letter, Lie.None, 0, 0, 0);
    }

    // -- the Program -----------------------------------------------------------------------------------------------

    /// @notice The header's fixed fields.
    function head() internal pure returns (bytes memory) {
        return abi.encodePacked("LSP1", uint16(1), uint16(1), uint16(OPS), uint8(3), uint8(2), uint8(2), uint16(0));
    }

    function header() internal pure returns (bytes memory) {
        bytes memory scalar = abi.encodePacked(uint8(1), uint8(1), uint32(1));
        return bytes.concat(
            head(),
            bytes.concat(scalar, scalar, scalar, bytes6(0)),
            abi.encodePacked(uint8(1), uint16(0), uint8(1), uint16(2), uint8(2), uint16(2), uint8(0), uint16(0))
        );
    }

    function descriptor(uint256 op) internal pure returns (bytes memory) {
        if (op == 0) {
            return abi.encodePacked(
                hex"0100010000020100", uint64(0), uint64(1), _scalar(1, 0, 0), _scalar(3, 0, 1), hex"1300010000000000"
            );
        }
        if (op == 1) {
            bytes memory iota = abi.encodePacked(uint8(3), uint16(0), int32(5), int32(3));
            return abi.encodePacked(hex"0204010001010000", uint64(0), uint64(2), uint32(TERMS), iota);
        }
        bytes memory operands = bytes.concat(_scalar(1, 1, 0), _scalar(0, 0, 0), _scalar(0, 1, 0));
        return abi.encodePacked(hex"0100010000030200", uint64(0), uint64(3), operands, hex"1300010000000000", hex"1303020000000000");
    }

    /// @dev A view of a scalar: tag, index, offset; no strides.
    function _scalar(uint8 tag, uint16 index, int32 offset) private pure returns (bytes memory) {
        return abi.encodePacked(tag, index, offset);
    }

    function opsTree() internal pure returns (bytes32[] memory leaves) {
        leaves = new bytes32[](4);
        for (uint256 op = 0; op < OPS; op++) leaves[op] = Merkle.leaf(descriptor(op));
    }

    function opsRoot() internal view returns (bytes32) {
        return Merkle.rootOf(opsTree());
    }

    function programRoot() internal view returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x03), Merkle.leaf(header()), opsRoot(), bytes32(0)));
    }

    // -- values ----------------------------------------------------------------------------------------------------

    /// @notice The sum of the terms of one chunk.
    function chunkOf(Claim memory c, uint32 t, uint256 chunk) internal pure returns (uint32) {
        uint256 first = 256 * chunk;
        uint256 last = first + 256 > TERMS ? TERMS : first + 256;
        uint256 before = first == 0 ? 0 : first * (first - 1);
        uint256 sum = 5 * (last - first) + 3 * (last * (last - 1) - before) / 2;
        unchecked {
            return uint32(sum) + (c.lie == Lie.Chunk && c.at == t && c.chunk == chunk ? c.bits : 0);
        }
    }

    function valueOf(Claim memory c, uint32 t, uint256 op) internal pure returns (uint32 value) {
        unchecked {
            if (op == 0) return c.letter + t + (c.lie == Lie.Letter && t >= c.at ? c.bits : 0);
            if (op == 1) {
                for (uint256 k = 0; k < CHUNKS; k++) value += chunkOf(c, t, k);
                return value + (c.lie == Lie.Total && t == c.at ? c.bits : 0);
            }
            for (uint32 i = 1; i <= t; i++) value += valueOf(c, i, 0) + valueOf(c, i, 1);
            return value + (c.lie == Lie.Tally && t >= c.at ? c.bits : 0);
        }
    }

    function nameOf(Claim memory c) internal pure returns (uint32) {
        return c.letter ^ 0x5a;
    }

    /// @notice Little-endian contents of a scalar.
    function word(uint32 value) internal pure returns (bytes memory) {
        value = ((value >> 8) & 0x00ff00ff) | ((value & 0x00ff00ff) << 8);
        return abi.encodePacked((value >> 16) | (value << 16));
    }

    function rootOf(uint32 value) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(hex"020100", Merkle.leaf(word(value))));
    }

    // -- trees -----------------------------------------------------------------------------------------------------

    /// @notice The entries of S_t before anything is tampered with; S_0 for t = 0.
    function entries(Claim memory c, uint32 t) internal pure returns (bytes32[] memory made) {
        made = new bytes32[](4);
        made[0] = rootOf(t == 0 ? c.letter : valueOf(c, t, 0));
        made[1] = rootOf(t == 0 ? 0 : valueOf(c, t, 2));
        made[2] = rootOf(nameOf(c));
    }

    /// @notice The 8 leaves of G_t.
    function graph(Claim memory c, uint32 t) internal pure returns (bytes32[] memory leaves) {
        leaves = new bytes32[](8);
        for (uint256 op = 0; op < OPS; op++) leaves[op] = rootOf(valueOf(c, t, op));
        bytes32[] memory block_ = entries(c, t);
        for (uint256 k = 0; k < 3; k++) leaves[BLOCK + k] = block_[k];
        if (c.at != t) return leaves;
        bytes32 garbage = keccak256(abi.encode(c.bits));
        if (c.lie == Lie.Alias) leaves[BLOCK + c.bits % 2] = garbage;
        if (c.lie == Lie.Name) leaves[BLOCK + 2] = rootOf(c.bits);
        if (c.lie == Lie.Empty) leaves[BLOCK + 3] = garbage;
        if (c.lie == Lie.Padding) leaves[3] = leaves[BLOCK + 3] = garbage;
        if (c.lie == Lie.Unopenable) leaves[0] = leaves[BLOCK] = garbage;
    }

    function graphRoot(Claim memory c, uint32 t) internal view returns (bytes32) {
        return Merkle.rootOf(graph(c, t));
    }

    /// @notice S_t as claimed.
    function state(Claim memory c, uint32 t) internal view returns (bytes32) {
        if (t == 0) return Merkle.rootOf(entries(c, 0));
        if (c.lie == Lie.Forged && c.at == t) return keccak256(abi.encode("forged", c.bits));
        bytes32[] memory leaves = graph(c, t);
        return Merkle.node(Merkle.node(leaves[4], leaves[5]), Merkle.node(leaves[6], leaves[7]));
    }

    function trace(Claim memory c) internal view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](T);
        for (uint32 t = 1; t <= T; t++) leaves[t - 1] = Merkle.leaf(state(c, t));
    }

    /// @notice Siblings of leaf `at`, upward. Overwrites `level`.
    function proof(bytes32[] memory level, uint256 at) internal view returns (bytes32[] memory siblings) {
        siblings = new bytes32[](Merkle.depthOf(level.length));
        uint256 width = level.length;
        for (uint256 k = 0; k < siblings.length; k++) {
            siblings[k] = level[(at >> k) ^ 1];
            width /= 2;
            for (uint256 i = 0; i < width; i++) level[i] = Merkle.node(level[2 * i], level[2 * i + 1]);
        }
    }

    /// @notice The index of the first of two lists' words that differ; their length if none does.
    function firstDifference(bytes32[] memory a, bytes32[] memory b) internal pure returns (uint256 i) {
        while (i < a.length && a[i] == b[i]) i++;
    }

    // -- what moves carry ------------------------------------------------------------------------------------------

    function step(Claim memory c, uint32 t) internal view returns (Step memory s) {
        s.prev = state(c, t - 1);
        if (t > 1) s.prevProof = proof(trace(c), t - 2);
        (s.header, s.opsRoot) = (header(), opsRoot());
    }

    function statement(Claim memory c, uint32 t, bytes32 root) internal view returns (bytes memory) {
        return bytes.concat(
            abi.encodePacked(state(c, t - 1), root, opsRoot(), bytes32(0), bytes32(0), bytes32(0)),
            abi.encodePacked(uint32(0), uint32(0), uint32(0), uint32(0), t, programRoot(), head())
        );
    }

    /// @notice Big-endian partials of op 1.
    function partials(Claim memory c, uint32 t) internal pure returns (bytes memory words) {
        for (uint256 k = 0; k < CHUNKS; k++) words = abi.encodePacked(words, chunkOf(c, t, k));
    }

    /// @notice The operands of op `op` of step t: what is under `c`'s G, and the state before.
    function openings(Claim memory c, uint32 t, uint256 op) internal view returns (Opening[] memory opened) {
        if (op == 1) return opened;
        opened = new Opening[](op == 0 ? 1 : 3);
        if (op == 0) {
            opened[0] = _opening(t == 1 ? c.letter : valueOf(c, t - 1, 0), proof(entries(c, t - 1), 0));
        } else {
            opened[0] = _opening(t == 1 ? 0 : valueOf(c, t - 1, 2), proof(entries(c, t - 1), 1));
            for (uint256 k = 0; k < 2; k++) opened[1 + k] = _opening(valueOf(c, t, k), proof(graph(c, t), k));
        }
    }

    function _opening(uint32 value, bytes32[] memory rootProof) private pure returns (Opening memory) {
        return Opening(hex"0100", word(value), new bytes32[](0), rootProof, 0);
    }
}
