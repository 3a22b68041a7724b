// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

/// @param header dtype u8 ‖ rank u8 ‖ dims u32 each, of the opened tensor.
/// @param data One leaf of its contents: 1 KiB, or less for the last one.
/// @param leafProof Siblings from the leaf to the tensor's tree.
/// @param rootProof Siblings from the tensor root to G (an op's output), S_{t-1} (state), consts_root (constant); none for the dataset.
/// @param leafIndex Position of the leaf: flat element / 256.
struct Opening {
    bytes header;
    bytes data;
    bytes32[] leafProof;
    bytes32[] rootProof;
    uint32 leafIndex;
}

/// @notice The trees that operands are opened against, with their depths.
struct Roots {
    bytes32 graph;
    uint8 graphDepth;
    bytes32 prev;
    uint8 prevDepth;
    bytes32 consts;
    uint8 constsDepth;
    bytes32 dataset;
    uint32 datasetRows;
    uint32 rowLength;
}

/// @notice Where in the job the op runs, and its own index in the Program.
struct Context {
    bytes32 seed;
    uint32 round;
    uint32 slot;
    uint32 t;
    uint16 op;
}

/// An operand is the output of an op that does not come before this one.
error OperandNotEarlier(uint256 operand, uint256 op);
/// A view reads outside its source, or an opening is not of the leaf that is read.
error OutOfRange();
/// More or fewer openings than the element reads.
error OpeningsWrong(uint256 given);
/// The dataset's header is not i32 of dims (rows, row length).
error DatasetInvalid();
/// The op-set has no such kind, fold mode, opcode or register.
error OpUnknown(uint256 what);

/// @title IArbiter
/// @notice Executes one element of an op, or one chunk of a fold, from committed bytes. Pure: it holds no state, no key, no token.
///
/// Openings come in operand order, one for each 1 KiB leaf that an operand touches, lowest leaf first; a leaf that several reads of
/// one call share is opened once, for the first of them. An operand that is iota or context needs none.
interface IArbiter {
    /// @notice The word of flat element `element` of the op; for a fold of more than 256 terms, the result of chunk `chunk`
    /// (terms 256 chunk .. 256 chunk + 255) of that element.
    /// @param staged Words of a map's first tensor operands, which then take no openings: as `stage` returns them, 0 for none.
    function execute(
        bytes calldata descriptor,
        Roots calldata roots,
        Context calldata context,
        uint64 element,
        uint32 chunk,
        Opening[] calldata openings,
        uint256 staged
    ) external view returns (uint32 word);

    /// @notice The words of a map's next tensor operands at `element`, until the openings are used, added to those `staged` before:
    /// the k-th in bits 32k, their number from bit 248.
    function stage(
        bytes calldata descriptor,
        Roots calldata roots,
        Context calldata context,
        uint64 element,
        Opening[] calldata openings,
        uint256 staged
    ) external view returns (uint256);

    /// @notice What a fold's partials make: `words` (big-endian, 4 bytes each, at most 512) chained from the mode's identity; of more
    /// than 256, the first 256, the rest, then both results.
    function combine(uint8 mode, bytes calldata words) external pure returns (uint32 word);
}
