// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IJobMarket} from "./IJobMarket.sol";
import {IPrecommitted} from "./IPrecommitted.sol";
import {JobId} from "../types/Ids.sol";

/// @notice What of a job is shown to be wrong.
enum Subject { Header, Input, Output, Op, Operand, Cumulative, Constant, Layout, Genesis, Outer, Carry, Payload, Dataset }

/// @notice The rule that does not hold. The names are protocol/programs/rules.py's.
enum Rule {
    Holds,
    HeaderLength,
    HeaderForeign,
    StateWidth,
    OpCount,
    GraphDepth,
    InputEntry,
    OutputEntry,
    OutputRank,
    DescriptorLength,
    Kind,
    Tag,
    Dtype,
    Axes,
    Shape,
    FoldAxis,
    ForeignField,
    OperandOrder,
    OperandState,
    OperandConst,
    MapEmpty,
    OperandCount,
    InstructionCount,
    FunctionCount,
    Opcode,
    Register,
    FoldMode,
    FoldDtype,
    FoldTerms,
    FoldStride,
    TableRows,
    TableComputed,
    ConcatAxis,
    ConcatParts,
    RandomForm,
    DrawForm,
    DrawLength,
    ElementLimit,
    OperandDtype,
    OperandRange,
    Cumulative,
    ConstantHeader,
    TensorLeaf,
    LayoutWidth,
    LayoutEntry,
    GenesisEntry,
    ZeroEntry,
    DatasetHeader,
    DatasetSize,
    OpMissing,
    ConstantMissing,
    GroupWords,
    GroupPlace,
    QuantForm,
    QuantShape
}

/// @notice What of a job's parameters its rules depend on; the names are JobParams'.
struct JobParts {
    bytes32 stepProgram;
    bytes32 encodeProgram;
    bytes32 mergeProgram;
    bytes32 datasetRoot;
    uint32 datasetRows;
    uint32 rowLength;
    bytes32 genesisShared;
    bytes32 genesisOuter;
    bytes32 zeroCarry;
    bytes32 zeroPayload;
    uint8 sharedDepth;
    uint8 payloadDepth;
    uint16 slots;
    uint8 carry;
}

/// @notice The parts of a Program that hash to its root.
struct Code {
    bytes header;
    bytes32 opsRoot;
    bytes32 constsRoot;
}

/// @notice An opened leaf of the ops (`data` the descriptor; no data: EMPTY), a tensor (`data` its header, `tree` its tree; no
/// data: `tree` is the root itself), or a leaf of that tensor (`data` its bytes).
struct Piece {
    bytes data;
    bytes32 tree;
    bytes32[] proof;
}

/// @param program 0 step, 1 encode, 2 merge; of a Layout: 0 step in, 1 step out, 2 encode in, 3 encode out, 4 merge in, 5 merge out.
/// @param index The op, entry or constant.
/// @param at The operand of an Operand; the leaf, if a tensor's leaf is shown.
/// @param other The second Program of a Layout.
struct Evidence {
    Subject subject;
    uint8 program;
    uint32 index;
    uint32 at;
    Code code;
    Code other;
    Piece[] pieces;
}

/// The evidence opens nothing that its subject has.
error EvidenceWrong();
/// What was opened breaks no rule.
error RuleHolds();

/// @title IValidator
/// @notice Voids a job whose committed parts break a rule without which no honest party could defend a claim (docs/protocol.md,
/// section 8). Anyone shows the bytes that break it; nothing else is judged here.
interface IValidator is IPrecommitted {
    event Invalid(JobId indexed job, address indexed prover, Rule rule, Subject subject, uint8 program, uint32 index);

    /// @notice Voids the job. Reverts `RuleHolds` unless `check` finds a broken rule, `NotCommitted` unless the prover committed to
    /// this call in an earlier block.
    function proveInvalid(JobId job, Evidence calldata evidence) external;

    /// @notice The rule that the evidence shows to be broken; Holds if it breaks none. Reverts if it is none of this job's.
    function check(JobParts memory job, Evidence calldata evidence) external view returns (Rule);

    function market() external view returns (IJobMarket);
}
