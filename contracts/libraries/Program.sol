// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {CHUNK} from "./Constants.sol";

/// The bytes are no canonical op descriptor or Program header of this op-set (docs/protocol.md, section 2).
error DescriptorInvalid();

/// @title Program
/// @notice Reads the two committed byte layouts of a Program: op descriptors and the header.
/// @dev Nothing here reverts for a rule that the validator holds, except where a wrong read would follow.
library Program {
    uint256 internal constant MAP = 1;
    uint256 internal constant FOLD = 2;
    uint256 internal constant GATHER = 3;
    uint256 internal constant CONCAT = 4;
    uint256 internal constant RANDOM = 5;
    uint256 internal constant DRAW = 6;
    uint256 internal constant QUANT = 7;

    /// The fold of codes.
    uint256 internal constant QDOT = 5;

    uint256 internal constant TAG_OP = 0;
    uint256 internal constant TAG_STATE = 1;
    uint256 internal constant TAG_CONST = 2;
    uint256 internal constant TAG_IOTA = 3;
    uint256 internal constant TAG_CONTEXT = 4;

    uint256 internal constant ALIAS_EMPTY = 0;
    uint256 internal constant ALIAS_OP = 1;

    uint256 private constant EXTENTS_AT = 24;
    uint256 internal constant INPUTS_AT = 15;

    /// @notice The fixed part of a descriptor.
    struct Op {
        uint256 kind;
        uint256 mode;
        uint256 rank;
        uint256 axes;
        uint256 operands;
        uint256 instrs;
        uint256 p0;
        uint256 p1;
    }

    /// @notice An operand's view: `flat` is filled in by the reader.
    struct View {
        uint256 tag;
        uint256 index;
        int256 offset;
        uint256 stridesAt;
    }

    // -- descriptors -----------------------------------------------------------------------------------------------

    /// @notice The fixed part; reverts unless the whole descriptor has the length that it implies.
    function decode(bytes calldata descriptor) internal pure returns (Op memory op) {
        // INVARIANT: a descriptor has one canonical encoding and nothing after it.
        if (descriptor.length < EXTENTS_AT) revert DescriptorInvalid();
        uint256 head;
        assembly ("memory-safe") {
            head := calldataload(descriptor.offset)
        }
        op.kind = head >> 248;
        op.mode = (head >> 240) & 0xff;
        op.rank = (head >> 224) & 0xff;
        uint256 kAxes = (head >> 216) & 0xff;
        op.axes = op.rank + kAxes;
        op.operands = (head >> 208) & 0xff;
        op.instrs = (head >> 200) & 0xff;
        op.p0 = (head >> 160) & 0xffffffff;
        op.p1 = (head >> 128) & 0xffffffff;
        uint256 length = EXTENTS_AT + 4 * op.axes + op.operands * (7 + 4 * op.axes) + 8 * op.instrs;
        if (op.kind == CONCAT) length += 4 * op.operands;
        uint256 due = op.kind == FOLD || op.kind == QUANT ? 1 : 0;
        if (descriptor.length != length || kAxes != due) revert DescriptorInvalid();
    }

    /// @notice Extent of axis `axis`, the output's first, then k.
    function extent(bytes calldata descriptor, uint256 axis) internal pure returns (uint256 value) {
        assembly ("memory-safe") {
            value := shr(224, calldataload(add(descriptor.offset, add(EXTENTS_AT, mul(4, axis)))))
        }
    }

    /// @notice Elements of the output; 1 for a scalar.
    function elements(bytes calldata descriptor, Op memory op) internal pure returns (uint256 count) {
        count = 1;
        for (uint256 axis = 0; axis < op.rank; axis++) count *= extent(descriptor, axis);
        // INVARIANT: elements of an op are counted in 32 bits.
        if (count > type(uint32).max) revert DescriptorInvalid();
    }

    /// @notice K, the terms of a fold, where a group of a qdot, which is a chunk, counts 256; 0 for other kinds.
    function terms(bytes calldata descriptor, Op memory op) internal pure returns (uint256) {
        if (op.kind != FOLD) return 0;
        return extent(descriptor, op.rank) * (op.mode == QDOT ? CHUNK : 1);
    }

    /// @notice The output's coordinates of a flat element, row-major; k coordinates are left at 0.
    function coordinates(bytes calldata descriptor, Op memory op, uint256 element)
        internal
        pure
        returns (uint256[] memory coords)
    {
        coords = new uint256[](op.axes);
        for (uint256 axis = op.rank; axis > 0; ) {
            unchecked {
                axis--;
            }
            uint256 size = extent(descriptor, axis);
            coords[axis] = element % size;
            element /= size;
        }
        // INVARIANT: an element lies inside the op's output.
        if (element != 0) revert DescriptorInvalid();
    }

    /// @notice Operand `j`.
    function operand(bytes calldata descriptor, Op memory op, uint256 j) internal pure returns (View memory v) {
        // INVARIANT: an op reads only the operands that its descriptor lists.
        if (j >= op.operands) revert DescriptorInvalid();
        uint256 at = EXTENTS_AT + 4 * op.axes + j * (7 + 4 * op.axes);
        uint256 word;
        assembly ("memory-safe") {
            word := calldataload(add(descriptor.offset, at))
        }
        v.tag = word >> 248;
        v.index = (word >> 232) & 0xffff;
        v.offset = int256(int32(uint32(word >> 200)));
        v.stridesAt = at + 7;
        // INVARIANT: a view has one of the five sources.
        if (v.tag > TAG_CONTEXT) revert DescriptorInvalid();
    }

    /// @notice Stride of a view along `axis`.
    function stride(bytes calldata descriptor, View memory v, uint256 axis) internal pure returns (int256 value) {
        uint256 at = v.stridesAt + 4 * axis;
        assembly ("memory-safe") {
            value := signextend(3, shr(224, calldataload(add(descriptor.offset, at))))
        }
    }

    /// @notice offset + sum of stride x coordinate.
    function flat(bytes calldata descriptor, View memory v, uint256[] memory coords)
        internal
        pure
        returns (int256 position)
    {
        position = v.offset;
        unchecked {
            // At most 255 products of 32-bit factors: far from the ends of int256.
            for (uint256 axis = 0; axis < coords.length; axis++) {
                position += stride(descriptor, v, axis) * int256(coords[axis]);
            }
        }
    }

    /// @notice concat alone: extent of part `j` along the axis.
    function partSize(bytes calldata descriptor, Op memory op, uint256 j) internal pure returns (uint256 value) {
        uint256 at = EXTENTS_AT + 4 * op.axes + op.operands * (7 + 4 * op.axes) + 4 * j;
        assembly ("memory-safe") {
            value := shr(224, calldataload(add(descriptor.offset, at)))
        }
    }

    /// @notice Instruction `i`: opcode u8 ‖ a u8 ‖ b u8 ‖ c u8 ‖ imm u32, as one 64-bit integer.
    function instruction(bytes calldata descriptor, Op memory op, uint256 i) internal pure returns (uint256 value) {
        uint256 at = EXTENTS_AT + 4 * op.axes + op.operands * (7 + 4 * op.axes) + 8 * i;
        assembly ("memory-safe") {
            value := shr(192, calldataload(add(descriptor.offset, at)))
        }
    }

    /// @notice SHA256(0x02 ‖ header ‖ tree), with the output's header taken from the descriptor.
    function outputRoot(bytes calldata descriptor, Op memory op, bytes32 tree) internal pure returns (bytes32) {
        return
            sha256(
                abi.encodePacked(
                    bytes1(0x02), descriptor[2:4], descriptor[EXTENTS_AT:EXTENTS_AT + 4 * op.rank], tree
                )
            );
    }

    // -- trees -----------------------------------------------------------------------------------------------------

    /// @notice Leaves of a tensor of `count` elements.
    function leaves(uint256 count) internal pure returns (uint256) {
        return (count + CHUNK - 1) / CHUNK;
    }

    /// @notice The least k with 2^k >= count; count >= 1.
    function depthOf(uint256 count) internal pure returns (uint256) {
        return Math.log2(count, Math.Rounding.Ceil);
    }

    // -- the header ------------------------------------------------------------------------------------------------

    /// @notice The fields of a Program header that the game needs.
    struct Header {
        uint256 opset;
        uint256 n;
        uint256 depth;
        uint256 stateIn;
        uint256 stateOut;
        uint256 consts;
    }

    /// @notice The fixed fields; reverts unless the header has the length that they imply.
    function decodeHeader(bytes calldata header) internal pure returns (Header memory h) {
        h = fieldsOf(header);
        // INVARIANT: a Program has exactly one header.
        if (header.length != INPUTS_AT + (6 << h.stateIn) + (3 << h.stateOut)) revert DescriptorInvalid();
    }

    /// @notice The bytes of the fixed fields.
    function headOf(bytes calldata header) internal pure returns (bytes calldata) {
        if (header.length < INPUTS_AT) revert DescriptorInvalid();
        return header[:INPUTS_AT];
    }

    /// @notice The fixed fields, whatever stands behind them.
    function fieldsOf(bytes calldata header) internal pure returns (Header memory h) {
        header = headOf(header);
        uint256 word;
        assembly ("memory-safe") {
            word := calldataload(header.offset)
        }
        h.opset = (word >> 192) & 0xffff;
        h.n = (word >> 176) & 0xffff;
        h.depth = (word >> 168) & 0xff;
        h.stateIn = (word >> 160) & 0xff;
        h.stateOut = (word >> 152) & 0xff;
        h.consts = (word >> 136) & 0xffff;
    }

    /// @notice dtype, rank and dims of the tensor at entry `k` of the input state, and its elements. EMPTY has no rank: reverts.
    function inputTensor(bytes calldata header, uint256 k) internal pure returns (bytes memory, uint256) {
        bytes calldata raw = header[INPUTS_AT + 6 * k:INPUTS_AT + 6 + 6 * k];
        uint8 rank = uint8(raw[0]) - 1;
        bytes memory dim = rank == 0 ? bytes("") : abi.encodePacked(bytes4(raw[2:6]));
        return (abi.encodePacked(raw[1], rank, dim), uint32(bytes4(raw[2:6])));
    }

    /// @notice What entry `k` of the output state names: (kind, index).
    function aliasOf(bytes calldata header, Header memory h, uint256 k) internal pure returns (uint256, uint256) {
        uint256 at = INPUTS_AT + (6 << h.stateIn) + 3 * k;
        return (uint8(header[at]), uint16(bytes2(header[at + 1:at + 3])));
    }
}
