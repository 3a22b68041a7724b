// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Context, Roots} from "../interfaces/IArbiter.sol";
import {Program} from "./Program.sol";

/// @title Statement
/// @notice What a game argues about, as packed bytes: the contract stores their keccak, movers send them again.
///
///   0 prev (S_{t-1})   32 graph (G_t; 0 until defended)   64 ops root   96 consts root   128 dataset root   160 seed
///   192 dataset rows u32   196 row length u32   200 round u32   204 slot u32   208 t u32   212 Program root
///   244 the fixed fields of the Program's header
library Statement {
    uint256 internal constant PROGRAM_AT = 212;
    uint256 internal constant HEAD_AT = 244;

    /// @notice G_t.
    function graph(bytes calldata statement) internal pure returns (bytes32) {
        return bytes32(statement[32:64]);
    }

    /// @notice S_{t-1}.
    function prev(bytes calldata statement) internal pure returns (bytes32) {
        return bytes32(statement[:32]);
    }

    /// @notice Root over the op descriptors.
    function opsRoot(bytes calldata statement) internal pure returns (bytes32) {
        return bytes32(statement[64:96]);
    }

    /// @notice Root over the constants' tensor roots.
    function constsRoot(bytes calldata statement) internal pure returns (bytes32) {
        return bytes32(statement[96:128]);
    }

    /// @notice The fixed fields of the Program's header.
    function head(bytes calldata statement) internal pure returns (Program.Header memory) {
        return Program.fieldsOf(statement[HEAD_AT:]);
    }

    /// @notice The transition's number, from 1.
    function t(bytes calldata statement) internal pure returns (uint32) {
        return uint32(bytes4(statement[208:212]));
    }

    /// @notice The same statement with G_t filled in.
    function withGraph(bytes calldata statement, bytes32 graph_) internal pure returns (bytes memory) {
        return abi.encodePacked(statement[:32], graph_, statement[64:]);
    }

    /// @notice The trees that operands are opened against.
    function roots(bytes calldata statement) internal pure returns (Roots memory r) {
        Program.Header memory h = head(statement);
        r.graph = graph(statement);
        r.graphDepth = uint8(h.depth);
        r.prev = prev(statement);
        r.prevDepth = uint8(h.stateIn);
        r.consts = constsRoot(statement);
        r.constsDepth = uint8(h.consts == 0 ? 0 : Program.depthOf(h.consts));
        r.dataset = bytes32(statement[128:160]);
        r.datasetRows = uint32(bytes4(statement[192:196]));
        r.rowLength = uint32(bytes4(statement[196:200]));
    }

    /// @notice Where op `op` runs.
    function context(bytes calldata statement, uint16 op) internal pure returns (Context memory c) {
        c.seed = bytes32(statement[160:192]);
        c.round = uint32(bytes4(statement[200:204]));
        c.slot = uint32(bytes4(statement[204:208]));
        c.t = t(statement);
        c.op = op;
    }

    /// @notice Root of the Program that the transition runs.
    function program(bytes calldata statement) internal pure returns (bytes32) {
        return bytes32(statement[PROGRAM_AT:HEAD_AT]);
    }

    /// @notice SHA256(0x03 ‖ leaf(header) ‖ ops_root ‖ consts_root).
    function programRoot(bytes calldata header_, bytes32 opsRoot_, bytes32 constsRoot_) internal pure returns (bytes32) {
        bytes32 leaf = sha256(abi.encodePacked(bytes1(0x00), header_));
        return sha256(abi.encodePacked(bytes1(0x03), leaf, opsRoot_, constsRoot_));
    }
}
