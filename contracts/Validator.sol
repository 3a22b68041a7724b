// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IJobMarket, JobParams, Role} from "./interfaces/IJobMarket.sol";
import {
    Code,
    Evidence,
    EvidenceWrong,
    IValidator,
    JobParts,
    Piece,
    Rule,
    RuleHolds,
    Subject
} from "./interfaces/IValidator.sol";
import {
    CHUNK,
    LEAF_BYTES,
    MAX_AXES,
    MAX_ELEMENTS,
    MAX_FUNCTIONS,
    MAX_GROUP_WORDS,
    MAX_INSTRS,
    MAX_OPERANDS,
    MAX_OPS,
    MAX_STATE_DEPTH,
    MAX_TENSOR_OPERANDS,
    MAX_TERMS,
    MAX_TOTAL
} from "./libraries/Constants.sol";
import {Expression} from "./libraries/Expression.sol";
import {Merkle} from "./libraries/Merkle.sol";
import {Openings} from "./libraries/Openings.sol";
import {Precommitted} from "./libraries/Precommitted.sol";
import {Program} from "./libraries/Program.sol";
import {Statement} from "./libraries/Statement.sol";
import {ProofInvalid} from "./libraries/Errors.sol";
import {JobId} from "./types/Ids.sol";

/// @title Validator
/// @notice The rules that make a Program defensible, each provable by anyone at any time from what the job commits to.
/// @dev The Python twins are protocol/programs/rules.py (the rules) and protocol/programs/defects.py (what is opened): the same names in the same order.
contract Validator is IValidator, Precommitted {
    IJobMarket public immutable market;

    /// "LSP1", profile 1; the op-set follows.
    uint256 private constant FORMAT = 0x4c5350310001;
    uint256 private constant LAST_OPSET = 2;
    uint256 private constant EXTENTS_AT = 24;

    uint256 private constant F32 = 0;
    uint256 private constant I32 = 1;
    uint256 private constant DOT = 0;
    uint256 private constant ISUM = 4;

    /// A quant's streams begin here.
    uint256 private constant STOCHASTIC = 1 << 31;

    uint256 private constant LAST_OPCODE = 37;
    /// Bit o: opcode o reads one register, or three. IMM reads none; all others read two.
    uint256 private constant UNARY = 0x3800007383;
    uint256 private constant TERNARY = 0x40040;
    /// Bit o: exp, log, tanh.
    uint256 private constant FUNCTIONS = 0x7000;

    uint256 private constant STEP = 0;
    uint256 private constant ENCODE = 1;
    uint256 private constant MERGE = 2;

    uint256 private constant STEP_IN = 0;
    uint256 private constant STEP_OUT = 1;
    uint256 private constant ENCODE_IN = 2;
    uint256 private constant ENCODE_OUT = 3;
    uint256 private constant MERGE_IN = 4;
    uint256 private constant MERGE_OUT = 5;

    /// State entries as they stand in a header, six bytes: kind, dtype, dim. 0 is EMPTY.
    uint256 private constant SCALAR = 1 << 40;
    uint256 private constant VECTOR = 2 << 40;
    uint256 private constant CLOCK = SCALAR | (I32 << 32) | 1;
    /// An entry that may be anything, and one that another layout names: (side, index) below the flag.
    uint256 private constant FREE = 1 << 64;
    uint256 private constant ELSEWHERE = 1 << 65;

    /// @notice A descriptor's fixed part, and what follows from it.
    struct Op {
        Program.Op at;
        uint256 dtype;
        uint256 kAxes;
        uint256 cumulative;
        uint256 elements;
    }

    /// @notice What an operand reads; `computed` for iota.
    struct Source {
        bool computed;
        uint256 dtype;
        uint256 elements;
    }

    constructor(IJobMarket market_) {
        market = market_;
    }

    /// @inheritdoc IValidator
    function proveInvalid(JobId job, Evidence calldata evidence) external {
        _requireCommitted();
        Rule rule = _check(_jobOf(job), evidence);
        // INVARIANT: a job is void by a rule that it breaks, and by nothing else.
        if (rule == Rule.Holds) revert RuleHolds();

        emit Invalid(job, msg.sender, rule, evidence.subject, evidence.program, evidence.index);

        market.onInvalid(job, msg.sender);
    }

    /// @inheritdoc IValidator
    function check(JobParts memory job, Evidence calldata evidence) external view returns (Rule) {
        return _check(job, evidence);
    }

    function _check(JobParts memory job, Evidence calldata e) private view returns (Rule rule) {
        Subject subject = e.subject;
        if (subject == Subject.Dataset) return _dataset(job, e);
        if (subject == Subject.Layout) return _layout(job, e);
        Program.Header memory h;
        (rule, h) = _code(job, _programOf(subject, e.program), e.code);
        if (rule != Rule.Holds || subject == Subject.Header) return rule;
        if (subject == Subject.Input) (rule,) = _entry(e.code, h, e.index);
        else if (subject == Subject.Output) (rule,) = _output(e, e.code, h, e.index, 0);
        else if (subject == Subject.Op) (rule,) = _op(job, e, h);
        else if (subject == Subject.Operand) rule = _operand(job, e, h);
        else if (subject == Subject.Cumulative) rule = _cumulative(e, h);
        else if (subject == Subject.Constant) rule = _constantLeaf(e, h);
        else if (subject == Subject.Genesis || subject == Subject.Outer) rule = _genesis(job, e, h);
        else rule = _zero(job, e, h);
    }

    function _jobOf(JobId id) private view returns (JobParts memory job) {
        JobParams memory p = market.params(id);
        Role memory role = p.roles[0];
        (job.stepProgram, job.encodeProgram, job.mergeProgram) = (role.stepProgram, role.encodeProgram, p.merge.program);
        (job.datasetRoot, job.datasetRows, job.rowLength) = (role.datasetRoot, role.datasetRows, role.rowLength);
        (job.genesisShared, job.genesisOuter) = (p.genesis.shared, p.genesis.outer);
        (job.zeroCarry, job.zeroPayload) = (role.zeroCarry, role.zeroPayload);
        (job.sharedDepth, job.payloadDepth) = (p.genesis.sharedDepth, role.payloadDepth);
        (job.slots, job.carry) = (role.slots, role.carryPeriod == 0 ? 0 : 1);
    }

    function _programOf(Subject subject, uint256 program) private pure returns (uint256) {
        if (subject == Subject.Genesis || subject == Subject.Carry) return STEP;
        if (subject == Subject.Payload) return ENCODE;
        return subject == Subject.Outer ? MERGE : program;
    }

    // -- headers ---------------------------------------------------------------------------------------------------

    /// @dev The header of Program `which`, if it is one.
    function _code(JobParts memory job, uint256 which, Code calldata code)
        private
        pure
        returns (Rule, Program.Header memory h)
    {
        if (which > MERGE) revert EvidenceWrong();
        bytes32 root = which == STEP ? job.stepProgram : which == ENCODE ? job.encodeProgram : job.mergeProgram;
        // INVARIANT: evidence is about the Programs that the job names.
        if (Statement.programRoot(code.header, code.opsRoot, code.constsRoot) != root) revert ProofInvalid();
        bytes calldata header = code.header;
        // INVARIANT: a Program has exactly one header.
        if (header.length < 15) return (Rule.HeaderLength, h);
        uint256 head;
        assembly ("memory-safe") {
            head := calldataload(header.offset)
        }
        // INVARIANT: a Program is of this format, profile and op-set.
        h.opset = (head >> 192) & 0xffff;
        if (head >> 208 != FORMAT || h.opset == 0 || h.opset > LAST_OPSET) return (Rule.HeaderForeign, h);
        h.n = (head >> 176) & 0xffff;
        h.depth = (head >> 168) & 0xff;
        h.stateIn = (head >> 160) & 0xff;
        h.stateOut = (head >> 152) & 0xff;
        h.consts = (head >> 136) & 0xffff;
        // INVARIANT: a state has at most 2^10 entries.
        if (h.stateIn > MAX_STATE_DEPTH || h.stateOut > MAX_STATE_DEPTH) return (Rule.StateWidth, h);
        // INVARIANT: a Program has exactly one header.
        if (header.length != 15 + (6 << h.stateIn) + (3 << h.stateOut)) return (Rule.HeaderLength, h);
        // INVARIANT: a Program has 1 to 2^14 ops.
        if (h.n == 0 || h.n > MAX_OPS) return (Rule.OpCount, h);
        // INVARIANT: G_t is the least tree with room for every op and, aligned, the state block.
        uint256 blocks = ((h.n + (1 << h.stateOut) - 1) >> h.stateOut) + 1;
        return (h.depth == Program.depthOf(blocks) + h.stateOut ? Rule.Holds : Rule.GraphDepth, h);
    }

    /// @dev Entry `k` of the input state, six bytes.
    function _entry(Code calldata code, Program.Header memory h, uint256 k) private pure returns (Rule, uint256 entry) {
        if (k >= 1 << h.stateIn) revert EvidenceWrong();
        bytes calldata header = code.header;
        entry = uint48(bytes6(header[15 + 6 * k:21 + 6 * k]));
        // INVARIANT: state is flat.
        return (_isEntry(entry) ? Rule.Holds : Rule.InputEntry, entry);
    }

    function _isEntry(uint256 entry) private pure returns (bool) {
        (uint256 kind, uint256 dtype, uint256 dim) = (entry >> 40, (entry >> 32) & 0xff, entry & 0xffffffff);
        if (kind == 0) return entry == 0;
        return kind <= 2 && dtype <= I32 && dim > 0 && dim <= (kind == 1 ? 1 : MAX_ELEMENTS);
    }

    /// @dev Entry `k` of the output state as six bytes; an op's descriptor is piece `piece`.
    function _output(Evidence calldata e, Code calldata code, Program.Header memory h, uint256 k, uint256 piece)
        private
        view
        returns (Rule rule, uint256 entry)
    {
        if (k >= 1 << h.stateOut) revert EvidenceWrong();
        (uint256 kind, uint256 index) = Program.aliasOf(code.header, h, k);
        // INVARIANT: an output entry names what exists.
        if (kind == Program.ALIAS_EMPTY) return (index == 0 ? Rule.Holds : Rule.OutputEntry, 0);
        if (kind == Program.ALIAS_OP) {
            if (index >= h.n) return (Rule.OutputEntry, 0);
            Op memory op;
            (rule, op) = _shapedOp(e, code, h, index, piece);
            if (rule != Rule.Holds) return (rule, 0);
            // INVARIANT: state is flat.
            if (op.at.rank > 1) return (Rule.OutputRank, 0);
            return (rule, (op.at.rank == 0 ? SCALAR : VECTOR) | (op.dtype << 32) | op.elements);
        }
        if (kind != 2 || index >= 1 << h.stateIn) return (Rule.OutputEntry, 0);
        (rule, entry) = _entry(code, h, index);
        if (rule == Rule.Holds && entry == 0) rule = Rule.OutputEntry;
    }

    // -- one op ----------------------------------------------------------------------------------------------------

    /// @dev The descriptor of op `index`, opened by piece `piece`.
    function _descriptor(
        Evidence calldata e,
        Code calldata code,
        Program.Header memory h,
        uint256 index,
        uint256 piece
    ) private view returns (Rule, bytes calldata d) {
        if (index >= h.n || piece >= e.pieces.length) revert EvidenceWrong();
        Piece calldata p = e.pieces[piece];
        d = p.data;
        bytes32 leaf = d.length == 0 ? bytes32(0) : Openings.leafHash(d);
        // INVARIANT: every op has a descriptor at its place in the tree.
        return (_stands(code.opsRoot, leaf, index, h.n, p.proof) ? Rule.Holds : Rule.OpMissing, d);
    }

    /// @dev Whether what a proof shows is a leaf of the full tree of `count`: a leaf elsewhere, or EMPTY, is none. Of a tree with
    /// all its leaves neither can be shown, since leaves and nodes are hashed apart.
    function _stands(bytes32 root, bytes32 x, uint256 index, uint256 count, bytes32[] calldata proof)
        private
        view
        returns (bool)
    {
        // INVARIANT: evidence is about the Programs that the job names.
        if (Merkle.climb(x, index, proof) != root) revert ProofInvalid();
        return x != 0 && proof.length == Program.depthOf(count);
    }

    /// @dev The fixed part of an op whose descriptor parses and whose output has a shape.
    function _shapedOp(
        Evidence calldata e,
        Code calldata code,
        Program.Header memory h,
        uint256 index,
        uint256 piece
    ) private view returns (Rule rule, Op memory op) {
        bytes calldata d;
        (rule, d) = _descriptor(e, code, h, index, piece);
        if (rule == Rule.Holds) rule = _parse(d, op, h.opset);
        if (rule == Rule.Holds) rule = _shape(d, op);
    }

    function _parse(bytes calldata d, Op memory op, uint256 opset) private pure returns (Rule) {
        // INVARIANT: a descriptor has one canonical encoding and nothing after it.
        if (d.length < EXTENTS_AT) return Rule.DescriptorLength;
        uint256 head;
        assembly ("memory-safe") {
            head := calldataload(d.offset)
        }
        Program.Op memory at = op.at;
        at.kind = head >> 248;
        at.mode = (head >> 240) & 0xff;
        op.dtype = (head >> 232) & 0xff;
        at.rank = (head >> 224) & 0xff;
        op.kAxes = (head >> 216) & 0xff;
        at.axes = at.rank + op.kAxes;
        at.operands = (head >> 208) & 0xff;
        at.instrs = (head >> 200) & 0xff;
        at.p0 = (head >> 160) & 0xffffffff;
        at.p1 = (head >> 128) & 0xffffffff;
        op.cumulative = (head >> 64) & 0xffffffffffffffff;
        // INVARIANT: an op is of a kind of its Program's op-set.
        if (at.kind < Program.MAP || at.kind > (opset == 1 ? Program.DRAW : Program.QUANT)) return Rule.Kind;
        // INVARIANT: a fold has a mode of its Program's op-set.
        if (at.kind == Program.FOLD && at.mode > (opset == 1 ? ISUM : Program.QDOT)) return Rule.FoldMode;
        uint256 length = EXTENTS_AT + 4 * at.axes + at.operands * (7 + 4 * at.axes) + 8 * at.instrs;
        if (at.kind == Program.CONCAT) length += 4 * at.operands;
        // INVARIANT: a descriptor has one canonical encoding and nothing after it.
        if ((head >> 192) & 0xff != 0 || d.length != length) return Rule.DescriptorLength;
        for (uint256 j = 0; j < at.operands; j++) {
            // INVARIANT: a view has one of the five sources.
            if (uint8(d[EXTENTS_AT + 4 * at.axes + j * (7 + 4 * at.axes)]) > Program.TAG_CONTEXT) return Rule.Tag;
        }
        return Rule.Holds;
    }

    function _shape(bytes calldata d, Op memory op) private pure returns (Rule) {
        // INVARIANT: an op's dtype is in the table.
        if (op.dtype > I32) return Rule.Dtype;
        // INVARIANT: an op has at most 8 axes.
        if (op.at.axes > MAX_AXES) return Rule.Axes;
        uint256 count = 1;
        for (uint256 axis = 0; axis < op.at.rank; axis++) count *= Program.extent(d, axis);
        // INVARIANT: a tensor has no empty dimension and at most 2^31 - 1 elements.
        if (count == 0 || count > MAX_ELEMENTS) return Rule.Shape;
        op.elements = count;
        return Rule.Holds;
    }

    /// @dev Everything that op `e.index` (piece 0) must be by itself.
    function _op(JobParts memory job, Evidence calldata e, Program.Header memory h)
        private
        view
        returns (Rule rule, Op memory op)
    {
        (rule, op) = _shapedOp(e, e.code, h, e.index, 0);
        if (rule != Rule.Holds) return (rule, op);
        bytes calldata d = e.pieces[0].data;
        rule = _fields(op);
        if (rule == Rule.Holds) rule = _names(e, h, d, op);
        if (rule == Rule.Holds) rule = _kind(d, op);
        if (rule != Rule.Holds) return (rule, op);
        // INVARIANT: a draw's rows are the dataset's rows.
        if (op.at.kind == Program.DRAW && Program.extent(d, 1) != job.rowLength) return (Rule.DrawLength, op);
        // INVARIANT: the ops of a Program have at most 2^40 elements together.
        if (op.cumulative > MAX_TOTAL) return (Rule.ElementLimit, op);
    }

    function _fields(Op memory op) private pure returns (Rule) {
        (uint256 kind, uint256 p0, uint256 p1) = (op.at.kind, op.at.p0, op.at.p1);
        bool grouped = kind == Program.FOLD || kind == Program.QUANT;
        // INVARIANT: a fold or quant has one k axis, nothing else has any.
        if (op.kAxes != (grouped ? 1 : 0)) return Rule.FoldAxis;
        // INVARIANT: fields that a kind does not have are 0.
        if (kind != Program.MAP && op.at.instrs != 0) return Rule.ForeignField;
        if (!grouped && op.at.mode != 0) return Rule.ForeignField;
        bool qdot = kind == Program.FOLD && op.at.mode == Program.QDOT;
        if (kind <= Program.FOLD && (qdot ? p1 : p0 | p1) != 0) return Rule.ForeignField;
        if (kind >= Program.CONCAT && kind <= Program.DRAW && p1 != 0) return Rule.ForeignField;
        return Rule.Holds;
    }

    function _names(Evidence calldata e, Program.Header memory h, bytes calldata d, Op memory op)
        private
        pure
        returns (Rule)
    {
        for (uint256 j = 0; j < op.at.operands; j++) {
            Program.View memory v = Program.operand(d, op.at, j);
            // INVARIANT: an operand's index is always smaller than the op's own.
            if (v.tag == Program.TAG_OP && v.index >= e.index) return Rule.OperandOrder;
            // INVARIANT: a state operand is a tensor of the input state.
            if (v.tag == Program.TAG_STATE) {
                if (v.index >= 1 << h.stateIn) return Rule.OperandState;
                (Rule rule, uint256 entry) = _entry(e.code, h, v.index);
                if (rule != Rule.Holds) return rule;
                if (entry == 0) return Rule.OperandState;
            }
            // INVARIANT: a constant operand is one of the Program's constants.
            if (v.tag == Program.TAG_CONST && v.index >= h.consts) return Rule.OperandConst;
            // INVARIANT: fields that a kind does not have are 0.
            if (v.tag >= Program.TAG_IOTA && v.index != 0) return Rule.ForeignField;
        }
        return Rule.Holds;
    }

    function _kind(bytes calldata d, Op memory op) private pure returns (Rule) {
        uint256 kind = op.at.kind;
        if (kind == Program.MAP) return _map(d, op);
        if (kind == Program.FOLD) return _fold(d, op);
        if (kind == Program.GATHER) return _gather(d, op);
        if (kind == Program.CONCAT) return _concat(d, op);
        if (kind == Program.QUANT) return _quant(d, op);
        // INVARIANT: a random gives i32 words and reads nothing.
        if (kind == Program.RANDOM) return op.at.operands == 0 && op.dtype == I32 ? Rule.Holds : Rule.RandomForm;
        // INVARIANT: a draw gives whole i32 rows and reads nothing else.
        return op.at.operands == 0 && op.dtype == I32 && op.at.rank == 2 ? Rule.Holds : Rule.DrawForm;
    }

    function _map(bytes calldata d, Op memory op) private pure returns (Rule) {
        (uint256 operands, uint256 instrs) = (op.at.operands, op.at.instrs);
        // INVARIANT: a map has a result.
        if (operands == 0 && instrs == 0) return Rule.MapEmpty;
        uint256 tensors = 0;
        for (uint256 j = 0; j < operands; j++) {
            if (Program.operand(d, op.at, j).tag < Program.TAG_IOTA) tensors++;
        }
        // INVARIANT: a map has at most 8 operands, 6 of them tensors.
        if (operands > MAX_OPERANDS || tensors > MAX_TENSOR_OPERANDS) return Rule.OperandCount;
        // INVARIANT: a map has at most 32 instructions.
        if (instrs > MAX_INSTRS) return Rule.InstructionCount;
        uint256 functions = 0;
        for (uint256 i = 0; i < instrs; i++) {
            functions += (FUNCTIONS >> (Program.instruction(d, op.at, i) >> 56)) & 1;
        }
        // INVARIANT: a map has at most 8 functions.
        if (functions > MAX_FUNCTIONS) return Rule.FunctionCount;
        for (uint256 i = 0; i < instrs; i++) {
            Rule rule = _instruction(Program.instruction(d, op.at, i), operands + i);
            if (rule != Rule.Holds) return rule;
        }
        return Rule.Holds;
    }

    /// @dev opcode u8 ‖ a u8 ‖ b u8 ‖ c u8 ‖ imm u32, with `registers` written before it.
    function _instruction(uint256 code, uint256 registers) private pure returns (Rule) {
        uint256 opcode = code >> 56;
        // INVARIANT: an instruction has an opcode of the op-set.
        if (opcode > LAST_OPCODE) return Rule.Opcode;
        bool immediate = opcode == Expression.IMM;
        uint256 reads = immediate ? 0 : (UNARY >> opcode) & 1 == 1 ? 1 : (TERNARY >> opcode) & 1 == 1 ? 3 : 2;
        // INVARIANT: a register is written before it is read.
        for (uint256 k = 0; k < reads; k++) {
            if ((code >> (48 - 8 * k)) & 0xff >= registers) return Rule.Register;
        }
        // INVARIANT: fields that a kind does not have are 0.
        bool foreign = ((code >> 32) & 0xffffff) << (8 * reads) & 0xffffff != 0 || (code & 0xffffffff != 0 && !immediate);
        return foreign ? Rule.ForeignField : Rule.Holds;
    }

    function _fold(bytes calldata d, Op memory op) private pure returns (Rule) {
        // INVARIANT: a fold has one of the six modes.
        bool qdot = op.at.mode == Program.QDOT;
        // INVARIANT: a dot has two operands, a qdot four, any other fold one.
        if (op.at.operands != (op.at.mode == DOT ? 2 : qdot ? 4 : 1)) return Rule.OperandCount;
        // INVARIANT: isum folds i32, the others f32.
        if (op.dtype != (op.at.mode == ISUM ? I32 : F32)) return Rule.FoldDtype;
        uint256 terms = Program.terms(d, op.at);
        // INVARIANT: a fold has 1 to 2^24 terms, a qdot 1 to 2^16 groups.
        if (terms == 0 || terms > MAX_TERMS) return Rule.FoldTerms;
        if (qdot) return _qdot(d, op);
        for (uint256 j = 0; j < op.at.operands; j++) {
            Program.View memory v = Program.operand(d, op.at, j);
            int256 along = Program.stride(d, v, op.at.rank);
            // INVARIANT: a chunk of 256 terms lies in at most two leaves of each operand.
            if (v.tag < Program.TAG_IOTA && along != 0 && along != 1) return Rule.FoldStride;
        }
        return Rule.Holds;
    }

    function _isGroup(Op memory op) private pure returns (bool) {
        uint256 words = op.at.p0;
        return words != 0 && words <= MAX_GROUP_WORDS && words & (words - 1) == 0;
    }

    function _qdot(bytes calldata d, Op memory op) private pure returns (Rule) {
        // INVARIANT: a group has 1 to 64 words of four codes, a power of two.
        if (!_isGroup(op)) return Rule.GroupWords;
        int256 words = int256(op.at.p0);
        for (uint256 j = 0; j < 4; j++) {
            Program.View memory v = Program.operand(d, op.at, j);
            int256 along = Program.stride(d, v, op.at.rank);
            // INVARIANT: codes and scales are tensors.
            if (v.tag >= Program.TAG_IOTA) return Rule.GroupPlace;
            if (j < 2) {
                // INVARIANT: a group of codes lies in one leaf, and the next one along k behind it.
                if (along != words || v.offset % words != 0) return Rule.GroupPlace;
                for (uint256 axis = 0; axis < op.at.rank; axis++) {
                    if (Program.stride(d, v, axis) % words != 0) return Rule.GroupPlace;
                }
            } else if (along != 0 && along != 1) {
                // INVARIANT: a chunk of 256 terms lies in at most two leaves of each operand.
                return Rule.FoldStride;
            }
        }
        return Rule.Holds;
    }

    function _quant(bytes calldata d, Op memory op) private pure returns (Rule) {
        bool codes = op.at.mode & 1 == 0;
        // INVARIANT: a quant gives i32 codes or f32 scales of one tensor.
        if (op.at.mode > 3 || op.dtype != (codes ? I32 : F32) || op.at.operands != 1) return Rule.QuantForm;
        Program.View memory v = Program.operand(d, op.at, 0);
        if (v.tag >= Program.TAG_IOTA) return Rule.QuantForm;
        // INVARIANT: codes are rounded to nearest, or by a stream from 2^31 on; scales by nothing.
        if (op.at.p1 != 0 && (op.at.p1 < STOCHASTIC || !codes)) return Rule.QuantForm;
        // INVARIANT: a group has 1 to 64 words of four codes, a power of two.
        if (!_isGroup(op)) return Rule.GroupWords;
        (uint256 rank, uint256 size) = (op.at.rank, 4 * op.at.p0);
        uint256 groups = (Program.extent(d, rank) + size - 1) / size;
        // INVARIANT: the last axis of a quant holds the groups of k, at least one, whole.
        if (rank == 0 || groups == 0) return Rule.QuantShape;
        if (Program.extent(d, rank - 1) != groups * (codes ? op.at.p0 : 1)) return Rule.QuantShape;
        // INVARIANT: a group of values lies in at most two leaves.
        return Program.stride(d, v, rank) == 1 && Program.stride(d, v, rank - 1) == 0 ? Rule.Holds : Rule.QuantShape;
    }

    function _gather(bytes calldata d, Op memory op) private pure returns (Rule) {
        // INVARIANT: a gather has an index and a table.
        if (op.at.operands != 2) return Rule.OperandCount;
        // INVARIANT: a table has 1 to 2^31 - 1 rows, and as many elements between two at most.
        if (op.at.p0 == 0 || op.at.p0 > MAX_ELEMENTS || op.at.p1 > MAX_ELEMENTS) return Rule.TableRows;
        // INVARIANT: a table is a tensor.
        return Program.operand(d, op.at, 1).tag >= Program.TAG_IOTA ? Rule.TableComputed : Rule.Holds;
    }

    function _concat(bytes calldata d, Op memory op) private pure returns (Rule) {
        // INVARIANT: a concat joins along an axis of its output.
        if (op.at.p0 >= op.at.rank) return Rule.ConcatAxis;
        uint256 sum = 0;
        // INVARIANT: the parts of a concat are not empty and fill its axis exactly.
        for (uint256 j = 0; j < op.at.operands; j++) {
            uint256 size = Program.partSize(d, op.at, j);
            if (size == 0) return Rule.ConcatParts;
            sum += size;
        }
        return sum != 0 && sum == Program.extent(d, op.at.p0) ? Rule.Holds : Rule.ConcatParts;
    }

    function _cumulative(Evidence calldata e, Program.Header memory h) private view returns (Rule rule) {
        Op memory op;
        Op memory before;
        (rule, op) = _shapedOp(e, e.code, h, e.index, 0);
        if (rule != Rule.Holds) return rule;
        if (e.index != 0) {
            bytes calldata earlier;
            (rule, earlier) = _descriptor(e, e.code, h, e.index - 1, 1);
            if (rule == Rule.Holds) rule = _parse(earlier, before, h.opset);
            if (rule != Rule.Holds) return rule;
        }
        // INVARIANT: every descriptor carries the elements of all ops up to and including itself.
        return op.cumulative == before.cumulative + op.elements ? Rule.Holds : Rule.Cumulative;
    }

    // -- one operand -----------------------------------------------------------------------------------------------

    function _operand(JobParts memory job, Evidence calldata e, Program.Header memory h) private view returns (Rule rule) {
        Op memory op;
        (rule, op) = _op(job, e, h);
        if (rule != Rule.Holds) return rule;
        if (e.at >= op.at.operands) revert EvidenceWrong();
        bytes calldata d = e.pieces[0].data;
        Program.View memory v = Program.operand(d, op.at, e.at);
        Source memory source;
        (rule, source) = _source(e, h, v);
        if (rule == Rule.Holds) rule = _dtype(d, op, v, e.at, source);
        if (rule == Rule.Holds && !source.computed) rule = _range(d, op, v, e.at, source.elements);
    }

    /// @dev What a view reads; piece 1 opens another op's descriptor or a constant.
    function _source(Evidence calldata e, Program.Header memory h, Program.View memory v)
        private
        view
        returns (Rule rule, Source memory s)
    {
        if (v.tag == Program.TAG_OP) {
            Op memory op;
            (rule, op) = _shapedOp(e, e.code, h, v.index, 1);
            (s.dtype, s.elements) = (op.dtype, op.elements);
        } else if (v.tag == Program.TAG_CONST) {
            (rule, s) = _constant(e, h, v.index, 1);
        } else if (v.tag == Program.TAG_STATE) {
            uint256 entry;
            (rule, entry) = _entry(e.code, h, v.index);
            (s.dtype, s.elements) = ((entry >> 32) & 0xff, entry & 0xffffffff);
        } else {
            s.computed = v.tag == Program.TAG_IOTA;
            (s.dtype, s.elements) = (I32, 3);
        }
    }

    function _dtype(bytes calldata d, Op memory op, Program.View memory v, uint256 j, Source memory s)
        private
        pure
        returns (Rule)
    {
        if (op.at.kind == Program.MAP) return Rule.Holds;
        if (op.at.kind == Program.GATHER && j == 0) {
            // INVARIANT: an index is an integer.
            return s.computed || s.dtype == I32 ? Rule.Holds : Rule.OperandDtype;
        }
        bool qdot = op.at.kind == Program.FOLD && op.at.mode == Program.QDOT;
        if (qdot || op.at.kind == Program.QUANT) {
            // INVARIANT: codes are i32; scales, and what is quantised, are f32.
            return s.computed || s.dtype == (qdot && j < 2 ? I32 : F32) ? Rule.Holds : Rule.OperandDtype;
        }
        // INVARIANT: what is moved or folded keeps its dtype.
        if (!s.computed) return s.dtype == op.dtype ? Rule.Holds : Rule.OperandDtype;
        for (uint256 axis = 0; axis < op.at.axes; axis++) {
            if (Program.stride(d, v, axis) != 0 && op.dtype != I32) return Rule.OperandDtype;
        }
        return Rule.Holds;
    }

    function _range(bytes calldata d, Op memory op, Program.View memory v, uint256 j, uint256 elements)
        private
        pure
        returns (Rule)
    {
        int256 low = v.offset;
        int256 high = v.offset;
        for (uint256 axis = 0; axis < op.at.axes; axis++) {
            uint256 extent = Program.extent(d, axis);
            if (op.at.kind == Program.CONCAT && axis == op.at.p0) extent = Program.partSize(d, op.at, j);
            int256 reach = Program.stride(d, v, axis) * int256(extent - 1);
            if (reach < 0) low += reach;
            else high += reach;
        }
        if (op.at.kind == Program.GATHER && j == 1) high += int256(op.at.p1 * (op.at.p0 - 1));
        if (op.at.kind == Program.FOLD && op.at.mode == Program.QDOT && j < 2) high += int256(op.at.p0 - 1);
        // INVARIANT: a view reads inside its source.
        return low < 0 || high >= int256(elements) ? Rule.OperandRange : Rule.Holds;
    }

    // -- tensors ---------------------------------------------------------------------------------------------------

    /// @dev Constant `index`, whose header and tree are piece `piece`.
    function _constant(Evidence calldata e, Program.Header memory h, uint256 index, uint256 piece)
        private
        view
        returns (Rule, Source memory s)
    {
        if (index >= h.consts || piece >= e.pieces.length) revert EvidenceWrong();
        Piece calldata p = e.pieces[piece];
        bytes calldata header = p.data;
        bytes32 root = header.length == 0 && p.tree == 0 ? bytes32(0) : _tensorRoot(p);
        // INVARIANT: every constant has a tensor at its place in the tree.
        if (!_stands(e.code.constsRoot, root, index, h.consts, p.proof)) return (Rule.ConstantMissing, s);
        // INVARIANT: a constant is f32 or i32, of at most 8 axes and 2^31 - 1 elements.
        if (header.length < 2 || header.length != 2 + 4 * uint256(uint8(header[1]))) return (Rule.ConstantHeader, s);
        if (uint8(header[0]) > I32 || uint8(header[1]) > MAX_AXES) return (Rule.ConstantHeader, s);
        s.dtype = uint8(header[0]);
        s.elements = 1;
        for (uint256 at = 2; at < header.length; at += 4) s.elements *= uint32(bytes4(header[at:at + 4]));
        return (s.elements == 0 || s.elements > MAX_ELEMENTS ? Rule.ConstantHeader : Rule.Holds, s);
    }

    function _constantLeaf(Evidence calldata e, Program.Header memory h) private view returns (Rule rule) {
        Source memory s;
        (rule, s) = _constant(e, h, e.index, 0);
        if (rule == Rule.Holds) rule = _leaf(e, s.elements);
    }

    /// @dev If piece 1 is there, it is leaf `e.at` of the tensor of piece 0.
    function _leaf(Evidence calldata e, uint256 elements) private view returns (Rule) {
        if (e.pieces.length < 2) return Rule.Holds;
        uint256 leaves = Program.leaves(elements);
        if (e.at >= leaves) revert EvidenceWrong();
        Piece calldata p = e.pieces[1];
        // INVARIANT: a tree's depth comes from the committed header, never from the proof that a mover sends.
        Merkle.verify(e.pieces[0].tree, Openings.leafHash(p.data), e.at, Program.depthOf(leaves), p.proof);
        uint256 rest = 4 * (elements - CHUNK * e.at);
        // INVARIANT: a leaf has 1 KiB, the last one what is left.
        return p.data.length == (rest < LEAF_BYTES ? rest : LEAF_BYTES) ? Rule.Holds : Rule.TensorLeaf;
    }

    /// @dev Tensor `e.index` of the job's first checkpoint is that of the Programs' states.
    function _genesis(JobParts memory job, Evidence calldata e, Program.Header memory h) private view returns (Rule rule) {
        bool outer = e.subject == Subject.Outer;
        uint256 quarter = 1 << job.sharedDepth;
        if (e.index >= quarter || e.pieces.length == 0) revert EvidenceWrong();
        rule = _width(job, outer ? MERGE_IN : STEP_IN, h);
        if (rule != Rule.Holds) return rule;
        uint256 entry;
        (rule, entry) = _entry(e.code, h, e.index + (outer ? quarter : 0));
        if (rule != Rule.Holds) return rule;
        Piece calldata p = e.pieces[0];
        bytes32 value = p.data.length == 0 ? p.tree : _tensorRoot(p);
        Merkle.verify(outer ? job.genesisOuter : job.genesisShared, value, e.index, job.sharedDepth, p.proof);
        // INVARIANT: the first checkpoint has the tensors of the state tables.
        if ((entry == 0) != (value == 0)) return Rule.GenesisEntry;
        if (p.data.length == 0) return Rule.Holds;
        if (keccak256(p.data) != keccak256(_header(entry))) return Rule.GenesisEntry;
        return _leaf(e, entry & 0xffffffff);
    }

    /// @dev Tensor `e.index` of what stands for a carry or a payload is zero.
    function _zero(JobParts memory job, Evidence calldata e, Program.Header memory h) private view returns (Rule rule) {
        bool carry = e.subject == Subject.Carry;
        uint256 depth = carry ? job.sharedDepth : job.payloadDepth;
        if (e.index >= 1 << depth || e.pieces.length == 0) revert EvidenceWrong();
        rule = _width(job, carry ? STEP_IN : ENCODE_OUT, h);
        if (rule != Rule.Holds) return rule;
        uint256 entry;
        if (carry) (rule, entry) = _entry(e.code, h, e.index + (2 << depth));
        else (rule, entry) = _output(e, e.code, h, e.index, 1);
        if (rule != Rule.Holds) return rule;
        bytes32 value = e.pieces[0].tree;
        Merkle.verify(carry ? job.zeroCarry : job.zeroPayload, value, e.index, depth, e.pieces[0].proof);
        // INVARIANT: what the contract puts in the place of a carry or a payload is zero, as its parties compute it.
        return value == _zeroTensor(entry) ? Rule.Holds : Rule.ZeroEntry;
    }

    function _dataset(JobParts memory job, Evidence calldata e) private view returns (Rule) {
        uint256 elements = uint256(job.datasetRows) * job.rowLength;
        // INVARIANT: a dataset is a tensor like any other: at most 2^31 - 1 elements.
        if (elements > MAX_ELEMENTS) return Rule.DatasetSize;
        if (e.pieces.length == 0) revert EvidenceWrong();
        Merkle.verify(job.datasetRoot, _tensorRoot(e.pieces[0]), 0, 0, e.pieces[0].proof);
        bytes memory header = abi.encodePacked(uint8(I32), uint8(2), job.datasetRows, job.rowLength);
        // INVARIANT: the dataset is an i32 tensor of dims (rows, row length), as the job says.
        if (keccak256(e.pieces[0].data) != keccak256(header)) return Rule.DatasetHeader;
        return _leaf(e, elements);
    }

    /// @dev SHA256(0x02 ‖ header ‖ tree).
    function _tensorRoot(Piece calldata p) private pure returns (bytes32) {
        return sha256(abi.encodePacked(bytes1(0x02), p.data, p.tree));
    }

    /// @dev dtype ‖ rank ‖ dims of a state entry.
    function _header(uint256 entry) private pure returns (bytes memory) {
        uint8 dtype = uint8(entry >> 32);
        return entry >= VECTOR ? abi.encodePacked(dtype, uint8(1), uint32(entry)) : abi.encodePacked(dtype, uint8(0));
    }

    /// @dev The root of the zero tensor of a state entry; EMPTY stays EMPTY.
    function _zeroTensor(uint256 entry) private view returns (bytes32) {
        if (entry == 0) return 0;
        uint256 elements = entry & 0xffffffff;
        uint256 leaves = Program.leaves(elements);
        uint256 depth = Program.depthOf(leaves);
        bytes32 full = Merkle.leaf(new bytes(LEAF_BYTES));
        bytes32 last = Merkle.leaf(new bytes(4 * (elements - CHUNK * (leaves - 1))));
        bytes32 empty = 0;
        // Up from the last leaf: left of its path all is full, right of it all is EMPTY.
        for (uint256 at = leaves - 1; depth > 0; (at, depth) = (at >> 1, depth - 1)) {
            last = at & 1 == 1 ? Merkle.node(full, last) : Merkle.node(last, empty);
            full = Merkle.node(full, full);
            empty = Merkle.node(empty, empty);
        }
        return sha256(abi.encodePacked(bytes1(0x02), _header(entry), last));
    }

    // -- three Programs --------------------------------------------------------------------------------------------

    function _layout(JobParts memory job, Evidence calldata e) private view returns (Rule rule) {
        uint256 side = e.program;
        Program.Header memory h;
        (rule, h) = _code(job, side / 2, e.code);
        if (rule == Rule.Holds) rule = _width(job, side, h);
        if (rule != Rule.Holds) return rule;
        uint256 entry;
        (rule, entry) = _at(e, e.code, h, side, e.index);
        if (rule != Rule.Holds) return rule;
        uint256 wanted = _due(job, side, e.index);
        if (wanted == FREE) return Rule.Holds;
        if (wanted & ELSEWHERE != 0) {
            (rule, wanted) = _elsewhere(job, e, h, (wanted >> 32) & 0xff, wanted & 0xffffffff);
            if (rule != Rule.Holds) return rule;
        }
        // INVARIANT: layouts of consecutive Programs are equal.
        return entry == wanted ? Rule.Holds : Rule.LayoutEntry;
    }

    /// @dev Entry `k` of the layout `side`, of the same Program or of the other one.
    function _elsewhere(JobParts memory job, Evidence calldata e, Program.Header memory h, uint256 side, uint256 k)
        private
        view
        returns (Rule rule, uint256 entry)
    {
        bool own = side / 2 == e.program / 2;
        if (!own) (rule, h) = _code(job, side / 2, e.other);
        if (rule == Rule.Holds) rule = _width(job, side, h);
        if (rule != Rule.Holds) return (rule, 0);
        return _at(e, own ? e.code : e.other, h, side, k);
    }

    function _at(Evidence calldata e, Code calldata code, Program.Header memory h, uint256 side, uint256 k)
        private
        view
        returns (Rule, uint256)
    {
        return side % 2 == 0 ? _entry(code, h, k) : _output(e, code, h, k, 0);
    }

    function _width(JobParts memory job, uint256 side, Program.Header memory h) private pure returns (Rule) {
        uint256 depth = uint256(job.sharedDepth) + 2;
        if (side == ENCODE_OUT) depth = uint256(job.payloadDepth) + 1;
        else if (side == MERGE_IN) depth = job.payloadDepth + Program.depthOf(job.slots) + 2;
        else if (side == MERGE_OUT) depth = uint256(job.sharedDepth) + 1;
        // INVARIANT: a layout has the width that the job's depths imply.
        return depth == (side % 2 == 0 ? h.stateIn : h.stateOut) ? Rule.Holds : Rule.LayoutWidth;
    }

    /// @dev What entry `k` of a layout must be: six bytes, FREE, or ELSEWHERE with (side, index).
    function _due(JobParts memory job, uint256 side, uint256 k) private pure returns (uint256) {
        uint256 quarter = 1 << job.sharedDepth;
        uint256 width = 1 << job.payloadDepth;
        if (side == STEP_OUT || side == ENCODE_IN) return _same(STEP_IN, k);
        if (side == STEP_IN) {
            if (k >= quarter && k < 2 * quarter) return _same(STEP_IN, k - quarter);
            if (k < 3 * quarter) return FREE;
            return k == 3 * quarter ? CLOCK : 0;
        }
        if (side == ENCODE_OUT) {
            if (k < width) return FREE;
            // INVARIANT: what one round puts out as its carry is laid out as the next one's.
            return job.carry == 0 ? 0 : _same(ENCODE_IN, 2 * quarter + k - width);
        }
        if (k < quarter) return _same(STEP_IN, k);
        if (side == MERGE_OUT) return _same(MERGE_IN, k);
        if (k < 2 * quarter) return FREE;
        uint256 room = width << Program.depthOf(job.slots);
        if (k < 2 * room) return 0;
        k -= 2 * room;
        if (k < job.slots * width) return _same(ENCODE_OUT, k % width);
        return k == room ? VECTOR | (F32 << 32) | job.slots : 0;
    }

    function _same(uint256 side, uint256 k) private pure returns (uint256) {
        return ELSEWHERE | (side << 32) | k;
    }
}
