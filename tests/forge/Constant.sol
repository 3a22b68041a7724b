// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Shown} from "../../contracts/interfaces/IAvailability.sol";
import {Step} from "../../contracts/interfaces/IDisputeGame.sol";
import {Body, Facts} from "../../contracts/interfaces/IJobMarket.sol";
import {Leaf} from "../../contracts/interfaces/IWitnesses.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {Letters} from "./Letters.sol";

/// @title Constant
/// @notice A job whose three Programs have one op each, 7 + 1, and every claim that can be made with it: all tensors are scalars of i32.
/// @dev Step: [live, anchor, carry, clock] -> [8, anchor, carry, clock]. Encode: -> [8, carry]. Merge: 16 entries -> [8, 8].
library Constant {
    uint32 internal constant VALUE = 8;
    uint32 internal constant CARRY = 3;
    uint32 internal constant ROW = 5;

    /// What is wrong with a claim: the step's word, the encode's, a leaf of padding, an alias, a state that nobody can open.
    enum Lie { None, Value, Encoded, Padding, Alias, Forged }

    /// @param base The shared tensor's root, of a slot.
    /// @param clock Steps done before the round, of a slot.
    struct Claim {
        Lie lie;
        bool isMerge;
        bytes32 base;
        uint32 clock;
    }

    enum Kind { Step, Encode, Merge }

    // -- the Programs ----------------------------------------------------------------------------------------------

    /// @notice The header's fixed fields.
    function head(Kind kind) internal pure returns (bytes memory) {
        (uint8 depth, uint8 stateIn, uint8 stateOut) = kind == Kind.Step ? (3, 2, 2) : kind == Kind.Encode ? (2, 2, 1) : (2, 4, 1);
        return abi.encodePacked("LSP1", uint16(1), uint16(1), uint16(1), depth, stateIn, stateOut, uint16(0));
    }

    function header(Kind kind) internal pure returns (bytes memory made) {
        made = head(kind);
        for (uint256 i = 0; i < (kind == Kind.Merge ? 16 : 4); i++) made = abi.encodePacked(made, uint8(1), uint8(1), uint32(1));
        if (kind == Kind.Step) return abi.encodePacked(made, hex"010000", hex"020001", hex"020002", hex"020003");
        return abi.encodePacked(made, hex"010000", kind == Kind.Encode ? bytes3(0x020002) : bytes3(0x010000));
    }

    function descriptor() internal pure returns (bytes memory) {
        bytes memory operands = abi.encodePacked(hex"030000", int32(7), hex"030000", int32(1));
        return abi.encodePacked(hex"0100010000020100", uint64(0), uint64(1), operands, hex"1300010000000000");
    }

    function opsRoot() internal pure returns (bytes32) {
        return Merkle.leaf(descriptor());
    }

    function programRoot(Kind kind) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x03), Merkle.leaf(header(kind)), opsRoot(), bytes32(0)));
    }

    /// @notice The dataset's one row of one word.
    function datasetTree() internal pure returns (bytes32) {
        return Merkle.leaf(Letters.word(ROW));
    }

    function datasetRoot() internal pure returns (bytes32) {
        return sha256(abi.encodePacked(hex"020102", uint32(1), uint32(1), datasetTree()));
    }

    // -- a claim ---------------------------------------------------------------------------------------------------

    function kindOf(Claim memory c, uint32 t) internal pure returns (Kind) {
        return c.isMerge ? Kind.Merge : t == 1 ? Kind.Step : Kind.Encode;
    }

    function transitions(Claim memory c) internal pure returns (uint32) {
        return c.isMerge ? 1 : 2;
    }

    /// @notice The first transition that is wrong; 0: none is.
    function wrongFrom(Claim memory c) internal pure returns (uint32) {
        return c.lie == Lie.None ? 0 : c.lie == Lie.Encoded ? 2 : 1;
    }

    function truth(Claim memory c) internal pure returns (Claim memory) {
        return Claim(Lie.None, c.isMerge, c.base, c.clock);
    }

    /// @notice The op's word at transition `t`.
    function valueOf(Claim memory c, uint32 t) internal pure returns (uint32) {
        bool isWrong = t == 1 ? c.lie == Lie.Value : c.lie == Lie.Encoded;
        return isWrong ? VALUE + 1 : VALUE;
    }

    /// @notice The leaves of G_t.
    function graph(Claim memory c, uint32 t) internal pure returns (bytes32[] memory g) {
        bytes32 value = Letters.rootOf(valueOf(c, t));
        if (c.isMerge || t == 2) {
            g = new bytes32[](4);
            (g[0], g[2], g[3]) = (value, value, c.isMerge ? value : Letters.rootOf(CARRY));
        } else {
            g = new bytes32[](8);
            (g[0], g[4], g[5]) = (value, value, c.base);
            (g[6], g[7]) = (Letters.rootOf(CARRY), Letters.rootOf(c.clock));
            if (c.lie == Lie.Alias) g[5] = keccak256("not the anchor");
        }
        if (t == 1 && c.lie == Lie.Padding) g[1] = keccak256("not padding");
    }

    function blockAt(Claim memory c, uint32 t) internal pure returns (uint256) {
        return c.isMerge || t == 2 ? 2 : 4;
    }

    /// @notice The entries of S_t before it is forged; S_0's of a slot for t = 0.
    function entries(Claim memory c, uint32 t) internal pure returns (bytes32[] memory made) {
        if (t == 0) {
            made = new bytes32[](4);
            (made[0], made[1], made[2], made[3]) = (c.base, c.base, Letters.rootOf(CARRY), Letters.rootOf(c.clock));
            return made;
        }
        bytes32[] memory g = graph(c, t);
        uint256 at = blockAt(c, t);
        made = new bytes32[](at);
        for (uint256 k = 0; k < at; k++) made[k] = g[at + k];
    }

    function graphRoot(Claim memory c, uint32 t) internal view returns (bytes32) {
        return Merkle.rootOf(graph(c, t));
    }

    /// @notice S_t as claimed, t >= 1.
    function state(Claim memory c, uint32 t) internal view returns (bytes32) {
        if (t == 1 && c.lie == Lie.Forged && !c.isMerge) return keccak256("forged");
        return Merkle.rootOf(entries(c, t));
    }

    function trace(Claim memory c) internal view returns (bytes32[] memory leaves) {
        leaves = new bytes32[](transitions(c));
        for (uint32 t = 1; t <= leaves.length; t++) leaves[t - 1] = Merkle.leaf(state(c, t));
    }

    function traceProof(Claim memory c, uint32 t) internal view returns (bytes32[] memory) {
        return Letters.proof(trace(c), t - 1);
    }

    function body(Claim memory c) internal view returns (Body memory) {
        bytes32[] memory last = entries(c, transitions(c));
        return Body(Merkle.rootOf(trace(c)), last[0], last[1]);
    }

    /// @notice The leaf of S_1 that a witness binds: the state moves in its first entry alone, a scalar.
    function leaf(Claim memory c) internal view returns (Leaf memory l) {
        (l.digest, l.entryProof) = (Merkle.leaf(Letters.word(valueOf(c, 1))), Letters.proof(entries(c, 1), 0));
        (l.code.header, l.code.opsRoot) = (header(Kind.Step), opsRoot());
    }

    // -- what moves carry ------------------------------------------------------------------------------------------

    /// @param zero S_0, as the market computes it.
    function step(Claim memory c, uint32 t, bytes32 zero) internal view returns (Step memory s) {
        s.prev = t == 1 ? zero : state(c, t - 1);
        if (t > 1) s.prevProof = traceProof(c, t - 1);
        (s.header, s.opsRoot) = (header(kindOf(c, t)), opsRoot());
    }

    function statement(Claim memory c, uint32 t, bytes32 root, Facts memory f) internal view returns (bytes memory) {
        return bytes.concat(
            abi.encodePacked(t == 1 ? f.stateZero : state(c, t - 1), root, opsRoot(), bytes32(0), f.datasetRoot, f.seed),
            abi.encodePacked(f.datasetRows, f.rowLength, f.round, f.slot, t, f.program, head(kindOf(c, t)))
        );
    }

    /// @notice The eight leaves that an answer shows: the payload has one tensor, of one leaf.
    function shown(Claim memory c) internal pure returns (Shown[] memory s) {
        s = new Shown[](8);
        for (uint256 i = 0; i < 8; i++) {
            s[i].leaf = Letters.word(valueOf(c, 2));
            s[i].entryProof = new bytes32[](1);
            s[i].entryProof[0] = entries(c, 2)[1];
            s[i].descriptor = descriptor();
        }
    }
}
