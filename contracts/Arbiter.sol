// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {
    Context,
    DatasetInvalid,
    IArbiter,
    OpUnknown,
    Opening,
    OpeningsWrong,
    OperandNotEarlier,
    OutOfRange,
    Roots
} from "./interfaces/IArbiter.sol";
import {Codes} from "./libraries/Codes.sol";
import {CHUNK, PARTIALS} from "./libraries/Constants.sol";
import {Expression} from "./libraries/Expression.sol";
import {Float32} from "./libraries/Float32.sol";
import {Openings} from "./libraries/Openings.sol";
import {Philox} from "./libraries/Philox.sol";
import {Program} from "./libraries/Program.sol";

/// @title Arbiter
/// @notice The meaning of each op kind, one element or one chunk at a time (docs/protocol.md, section 2).
contract Arbiter is IArbiter {
    uint256 private constant DOT = 0;
    uint256 private constant SUM = 1;
    uint256 private constant MAX = 2;
    uint256 private constant MIN = 3;
    uint256 private constant ISUM = 4;

    uint256 private constant NEGATIVE_INFINITY = 0xff800000;
    uint256 private constant INFINITY = 0x7f800000;

    uint256 private constant I32 = 1;

    /// Staged words: their number is in the highest byte, the words from the lowest bit.
    uint256 private constant COUNT_AT = 248;
    uint256 private constant WORDS = (1 << COUNT_AT) - 1;

    /// Bytes of eight words: folds read their terms a block at a time.
    uint256 private constant BLOCK = 32;
    uint256 private constant WORD = 0xffffffff;
    uint256 private constant LANES = 0x0000000100000001000000010000000100000001000000010000000100000001;

    /// @notice One execution's working set. The first four words point into the calldata: they would not fit the stack.
    /// @param next The opening to be used next.
    /// @param opened Of the openings that were used the leaves, as `_open` names them.
    /// @param staged Words of a map's first tensor operands, their number from bit 248.
    struct Frame {
        uint256 descriptorAt;
        uint256 descriptorLength;
        uint256 openingsAt;
        uint256 openingsLength;
        Program.Op op;
        uint256[] coords;
        uint256 next;
        uint256[] opened;
        uint256 staged;
    }

    /// @inheritdoc IArbiter
    function execute(
        bytes calldata descriptor,
        Roots calldata roots,
        Context calldata context,
        uint64 element,
        uint32 chunk,
        Opening[] calldata openings,
        uint256 staged
    ) external view returns (uint32) {
        Frame memory f = _frame(descriptor, element, openings, staged);
        uint256 kind = f.op.kind;
        uint256 word;
        if (kind == Program.MAP) word = _map(roots, context, f);
        else if (kind == Program.FOLD) word = _fold(roots, context, f, chunk);
        else if (kind == Program.GATHER) word = _gather(roots, context, f);
        else if (kind == Program.CONCAT) word = _concat(roots, context, f);
        else if (kind == Program.RANDOM) word = _random(context, f.op.p0, element);
        else if (kind == Program.QUANT) word = _quant(roots, context, f, element);
        else if (kind == Program.DRAW) word = _draw(roots, context, f);
        else revert OpUnknown(kind);

        // INVARIANT: an element reads exactly the openings that its descriptor implies.
        if (f.next != openings.length) revert OpeningsWrong(openings.length);
        return uint32(word);
    }

    /// @inheritdoc IArbiter
    function stage(
        bytes calldata descriptor,
        Roots calldata roots,
        Context calldata context,
        uint64 element,
        Opening[] calldata openings,
        uint256 staged
    ) external view returns (uint256) {
        Frame memory f = _frame(descriptor, element, openings, staged);
        // INVARIANT: only a map's operands are staged.
        if (f.op.kind != Program.MAP) revert OpUnknown(f.op.kind);
        uint256 known = staged >> COUNT_AT;
        uint256 words = staged & WORDS;
        uint256 k = 0;
        for (uint256 j = 0; j < f.op.operands && f.next < openings.length; j++) {
            if (!_isTensor(f, j) || k++ < known) continue;
            words |= _read(roots, context, f, j, 0) << (32 * known++);
        }
        // INVARIANT: an element reads exactly the openings that its descriptor implies.
        if (f.next != openings.length) revert OpeningsWrong(openings.length);
        return words | known << COUNT_AT;
    }

    function _frame(bytes calldata descriptor, uint64 element, Opening[] calldata openings, uint256 staged)
        private
        pure
        returns (Frame memory f)
    {
        assembly ("memory-safe") {
            mstore(f, descriptor.offset)
            mstore(add(f, 0x20), descriptor.length)
            mstore(add(f, 0x40), openings.offset)
            mstore(add(f, 0x60), openings.length)
        }
        f.op = Program.decode(descriptor);
        f.coords = Program.coordinates(descriptor, f.op, element);
        f.opened = new uint256[](openings.length);
        f.staged = staged;
    }

    /// @inheritdoc IArbiter
    function combine(uint8 mode, bytes calldata words) external pure returns (uint32) {
        uint256 count = words.length / 4;
        // INVARIANT: no check ever reads more than 512 terms.
        if (words.length % 4 != 0 || count == 0 || count > PARTIALS) revert OutOfRange();
        uint256 at;
        assembly ("memory-safe") {
            at := mload(0x40)
            mstore(0x40, add(at, add(words.length, 0x40)))
            calldatacopy(at, words.offset, words.length)
        }
        uint256 joining = _joining(mode);
        if (count <= CHUNK) return uint32(_chain(joining, at, BLOCK, count));
        uint256 first = _chain(joining, at, BLOCK, CHUNK);
        uint256 second = _chain(joining, at + 4 * CHUNK, BLOCK, count - CHUNK);
        assembly ("memory-safe") {
            mstore(0x00, or(shl(224, first), shl(192, second)))
        }
        return uint32(_chain(joining, 0x00, BLOCK, 2));
    }

    // -- kinds -----------------------------------------------------------------------------------------------------

    function _map(Roots calldata roots, Context calldata context, Frame memory f) private view returns (uint256) {
        Program.Op memory op = f.op;
        uint256[] memory registers = new uint256[](op.operands + op.instrs);
        uint256 k = 0;
        for (uint256 j = 0; j < op.operands; j++) {
            if (f.staged != 0 && _isTensor(f, j) && k < f.staged >> COUNT_AT) registers[j] = (f.staged >> (32 * k++)) & WORD;
            else registers[j] = _read(roots, context, f, j, 0);
        }
        for (uint256 i = 0; i < op.instrs; i++) {
            uint256 code = Program.instruction(_descriptor(f), op, i);
            uint256 written = op.operands + i;
            if (code >> 56 == Expression.IMM) {
                registers[written] = code & 0xffffffff;
                continue;
            }
            uint256 a = (code >> 48) & 0xff;
            uint256 b = (code >> 40) & 0xff;
            uint256 c = (code >> 32) & 0xff;
            // INVARIANT: an instruction reads registers that are written already.
            if (a >= written || b >= written || c >= written) revert OpUnknown(code);
            registers[written] = Expression.run(code >> 56, registers[a], registers[b], registers[c]);
        }
        // INVARIANT: a map has a result.
        if (registers.length == 0) revert OpUnknown(Program.MAP);
        return registers[registers.length - 1];
    }

    /// @dev One chunk; a fold of one chunk is combined too, so that the word is the element (`+0 + s_0`).
    function _fold(Roots calldata roots, Context calldata context, Frame memory f, uint256 chunk)
        private
        view
        returns (uint256 word)
    {
        uint256 mode = f.op.mode;
        uint256 terms = Program.terms(_descriptor(f), f.op);
        uint256 first = chunk * CHUNK;
        // INVARIANT: a chunk starts inside the fold's terms.
        if (first >= terms) revert OutOfRange();
        uint256 count = terms - first > CHUNK ? CHUNK : terms - first;
        if (mode == Program.QDOT) return _group(roots, context, f, chunk, terms);
        f.coords[f.op.rank] = first;

        (uint256 a, uint256 stepA) = _terms(roots, context, f, 0, count);
        if (mode == DOT) {
            (uint256 b, uint256 stepB) = _terms(roots, context, f, 1, count);
            word = Float32.dot(0, a, stepA / 8, b, stepB / 8, count);
        } else {
            word = _chain(mode, a, stepA, count);
        }
        if (terms <= CHUNK) {
            assembly ("memory-safe") {
                mstore(0x00, shl(224, word))
            }
            word = _chain(_joining(mode), 0x00, BLOCK, 1);
        }
    }

    /// @dev The mode in which a fold's chunks are combined.
    function _joining(uint256 mode) private pure returns (uint256) {
        return mode == DOT || mode == Program.QDOT ? SUM : mode;
    }

    /// @dev Group `c` of a qdot: the exact sum of its products, times both scales.
    function _group(Roots calldata roots, Context calldata context, Frame memory f, uint256 c, uint256 terms)
        private
        view
        returns (uint256 word)
    {
        f.coords[f.op.rank] = c;
        uint256 a = _codes(roots, context, f, 0);
        uint256 b = _codes(roots, context, f, 1);
        word = Float32.fromInt(Codes.product(a, b, 4 * f.op.p0));
        uint256 scale = _read(roots, context, f, 2, 0);
        scale = Float32.mul(scale, _read(roots, context, f, 3, 0));
        word = Float32.mul(word, scale);
        if (terms <= CHUNK) word = Float32.add(0, word);
    }

    /// @dev Where in the calldata the group of codes lies that operand `j` has at the frame's coordinates.
    function _codes(Roots calldata roots, Context calldata context, Frame memory f, uint256 j)
        private
        view
        returns (uint256 at)
    {
        Program.View memory v = Program.operand(_descriptor(f), f.op, j);
        int256 position = Program.flat(_descriptor(f), v, f.coords);
        // INVARIANT: codes and scales are tensors.
        if (v.tag >= Program.TAG_IOTA || position < 0) revert OutOfRange();
        bytes calldata data = _open(roots, context, f, v, uint256(position)).data;
        uint256 first = uint256(position) % CHUNK;
        // INVARIANT: a group of codes lies in one leaf, and the next one along k behind it.
        if (4 * (first + f.op.p0) > data.length) revert OutOfRange();
        assembly ("memory-safe") {
            at := add(data.offset, mul(4, first))
        }
    }

    /// @dev A word of four codes, or the scale of a group.
    function _quant(Roots calldata roots, Context calldata context, Frame memory f, uint256 element)
        private
        view
        returns (uint256)
    {
        bool scales = f.op.mode & 1 == 1;
        uint256 own = f.op.rank == 0 ? 0 : f.coords[f.op.rank - 1];
        uint256 count = _enter(f, scales ? own : own / f.op.p0);
        (uint256 at,) = _terms(roots, context, f, 0, count);
        (uint256 scale, uint256 inverse) = Codes.scaleOf(Codes.magnitude(at, count), f.op.mode >= 2);
        if (scales) return scale;
        if (inverse == 0) return 0;
        own = 4 * (own % f.op.p0);
        if (own >= count) return 0;
        return _word(context, f.op.p1, 4 * element, at + 4 * own, count - own < 4 ? count - own : 4, inverse);
    }

    /// @dev Sets the frame's k coordinate to the first value of group `g` of a quant, and returns how many it has.
    function _enter(Frame memory f, uint256 g) private pure returns (uint256 count) {
        uint256 size = 4 * f.op.p0;
        uint256 first = size * g;
        count = Program.extent(_descriptor(f), f.op.rank);
        // INVARIANT: a group has at least one value, and at most 256.
        if (first >= count || size > CHUNK) revert OutOfRange();
        count -= first;
        if (count > size) count = size;
        f.coords[f.op.rank] = first;
    }

    /// @dev The codes of `count` big-endian words in memory from `at` on, the first of which is code `number` of the op.
    function _word(Context calldata context, uint256 stream, uint256 number, uint256 at, uint256 count, uint256 inverse)
        private
        pure
        returns (uint256 word)
    {
        for (uint256 j = 0; j < count; j++) {
            uint256 x = _load(at + 4 * j) >> 224;
            if (stream == 0) {
                word |= Codes.codeOf(x, inverse) << (8 * j);
                continue;
            }
            // Two codes take the halves of one word.
            uint256 random = _random(context, stream, (number + j) >> 1) >> (16 * (j & 1));
            word |= Codes.codeOf(x, inverse, random & 0xffff) << (8 * j);
        }
    }

    function _gather(Roots calldata roots, Context calldata context, Frame memory f) private view returns (uint256) {
        uint256 index = _read(roots, context, f, 0, 0);
        if (index >= f.op.p0) return 0;
        return _read(roots, context, f, 1, int256(index * f.op.p1));
    }

    function _concat(Roots calldata roots, Context calldata context, Frame memory f) private view returns (uint256) {
        uint256 axis = f.op.p0;
        uint256 at = f.coords[axis];
        for (uint256 j = 0; j < f.op.operands; j++) {
            uint256 size = Program.partSize(_descriptor(f), f.op, j);
            if (at < size) {
                f.coords[axis] = at;
                return _read(roots, context, f, j, 0);
            }
            at -= size;
        }
        revert OutOfRange();
    }

    /// @dev Word `number` of a stream.
    function _random(Context calldata context, uint256 stream, uint256 number) private pure returns (uint256) {
        uint256 key = Openings.swap(uint256(context.seed));
        return
            Philox.word(
                (number >> 2) & 0xffffffff,
                context.round,
                context.slot,
                context.t,
                (key >> 224) ^ stream,
                (key >> 192) & 0xffffffff,
                number & 3
            );
    }

    function _draw(Roots calldata roots, Context calldata context, Frame memory f) private view returns (uint256) {
        if (f.op.rank != 2) revert DatasetInvalid();
        uint256 length = roots.rowLength;
        // INVARIANT: a draw's rows are the dataset's rows.
        if (Program.extent(_descriptor(f), 1) != length || roots.datasetRows == 0) revert DatasetInvalid();
        uint32 j = uint32(f.op.p0 + f.coords[0]);
        bytes32 hash = keccak256(abi.encodePacked(context.seed, context.round, context.slot, context.t, j));
        uint256 position = (uint256(hash) % roots.datasetRows) * length + f.coords[1];

        Opening calldata opening = _next(f);
        // INVARIANT: the dataset is an i32 tensor of dims (rows, row length), as the job says.
        if (keccak256(opening.header) != keccak256(abi.encodePacked(uint8(I32), uint8(2), roots.datasetRows, roots.rowLength))) {
            revert DatasetInvalid();
        }
        Openings.verify(opening, roots.dataset, 0, 0, position);
        return Openings.word(opening.data, position % CHUNK);
    }

    /// @dev Whether operand `j` is opened: not iota, not context.
    function _isTensor(Frame memory f, uint256 j) private pure returns (bool) {
        return Program.operand(_descriptor(f), f.op, j).tag < Program.TAG_IOTA;
    }

    // -- operands --------------------------------------------------------------------------------------------------

    /// @dev Operand `j` at the frame's coordinates, `extra` elements further.
    function _read(
        Roots calldata roots,
        Context calldata context,
        Frame memory f,
        uint256 j,
        int256 extra
    ) private view returns (uint256) {
        Program.View memory v = Program.operand(_descriptor(f), f.op, j);
        int256 position = Program.flat(_descriptor(f), v, f.coords) + extra;
        if (v.tag >= Program.TAG_IOTA) return _immediate(context, v.tag, position);
        // INVARIANT: a view reads inside its source.
        if (position < 0) revert OutOfRange();
        Opening calldata opening = _open(roots, context, f, v, uint256(position));
        return Openings.word(opening.data, uint256(position) % CHUNK);
    }

    /// @dev `count` consecutive terms of operand `j` of a fold, from the k coordinate in the frame: big-endian words in memory,
    /// eight to a block, the blocks at `at`, `at + step`, `at + 2 step`, ... (step 0: one block serves them all).
    function _terms(
        Roots calldata roots,
        Context calldata context,
        Frame memory f,
        uint256 j,
        uint256 count
    ) private view returns (uint256 at, uint256 step) {
        Program.View memory v = Program.operand(_descriptor(f), f.op, j);
        int256 position = Program.flat(_descriptor(f), v, f.coords);
        int256 stride = Program.stride(_descriptor(f), v, f.op.rank);
        at = _allocate(4 * count + 0x40);
        if (v.tag >= Program.TAG_IOTA) {
            for (uint256 i = 0; i < count; i++) {
                uint256 word = _immediate(context, v.tag, position + int256(i) * stride);
                assembly ("memory-safe") {
                    mstore(add(at, mul(4, i)), shl(224, word))
                }
            }
            return (at, BLOCK);
        }
        // INVARIANT: along k a fold's operand is contiguous or constant.
        if (position < 0 || (stride != 0 && stride != 1)) revert OutOfRange();
        step = uint256(stride) * BLOCK;
        if (stride == 0) count = 1;
        for (uint256 done = 0; done < count; ) {
            uint256 start = (uint256(position) + done) % CHUNK;
            uint256 part = CHUNK - start;
            if (part > count - done) part = count - done;
            Opening calldata opening = _open(roots, context, f, v, uint256(position) + done);
            Openings.copy(opening.data, start, part, at + 4 * done);
            done += part;
        }
        if (stride == 0) {
            assembly ("memory-safe") {
                mstore(at, mul(shr(224, mload(at)), LANES))
            }
        }
    }

    /// @dev The opening of the leaf that holds flat element `position` of the view's source: one that an earlier read of that leaf has
    /// verified, or the next one.
    function _open(
        Roots calldata roots,
        Context calldata context,
        Frame memory f,
        Program.View memory v,
        uint256 position
    ) private view returns (Opening calldata opening) {
        uint256 leaf = (position / CHUNK) << 24 | v.tag << 16 | v.index;
        uint256 used = _used(f, leaf);
        if (used < f.next) {
            opening = _opening(f, used);
            // INVARIANT: a view reads inside its source.
            if (position >= Openings.elements(opening.header)) revert OutOfRange();
            return opening;
        }
        opening = _next(f);
        f.opened[used] = leaf;
        if (v.tag == Program.TAG_OP) {
            // INVARIANT: an operand's index is always smaller than the op's own.
            if (v.index >= context.op) revert OperandNotEarlier(v.index, context.op);
            Openings.verify(opening, roots.graph, v.index, roots.graphDepth, position);
        } else if (v.tag == Program.TAG_STATE) {
            Openings.verify(opening, roots.prev, v.index, roots.prevDepth, position);
        } else {
            Openings.verify(opening, roots.consts, v.index, roots.constsDepth, position);
        }
    }

    /// @dev Which of the openings that were used holds the leaf; their number if none does.
    function _used(Frame memory f, uint256 leaf) private pure returns (uint256 i) {
        (uint256[] memory opened, uint256 next) = (f.opened, f.next);
        assembly ("memory-safe") {
            for { let at := add(opened, 0x20) } lt(i, next) { i := add(i, 1) } {
                if eq(mload(add(at, shl(5, i))), leaf) { break }
            }
        }
    }

    function _next(Frame memory f) private pure returns (Opening calldata) {
        // INVARIANT: an element reads exactly the openings that its descriptor implies.
        if (f.next >= f.opened.length) revert OpeningsWrong(f.opened.length);
        return _opening(f, f.next++);
    }

    function _opening(Frame memory f, uint256 i) private pure returns (Opening calldata) {
        Opening[] calldata openings;
        assembly ("memory-safe") {
            openings.offset := mload(add(f, 0x40))
            openings.length := mload(add(f, 0x60))
        }
        return openings[i];
    }

    function _descriptor(Frame memory f) private pure returns (bytes calldata descriptor) {
        assembly ("memory-safe") {
            descriptor.offset := mload(f)
            descriptor.length := mload(add(f, 0x20))
        }
    }

    /// @dev iota: the position itself; context: one of the words round, slot, t.
    function _immediate(Context calldata context, uint256 tag, int256 position) private pure returns (uint256) {
        if (tag == Program.TAG_IOTA) return uint32(uint256(position));
        if (position == 0) return context.round;
        if (position == 1) return context.slot;
        // INVARIANT: the context has three words.
        if (position != 2) revert OutOfRange();
        return context.t;
    }

    function _allocate(uint256 size) private pure returns (uint256 at) {
        assembly ("memory-safe") {
            at := mload(0x40)
            mstore(0x40, add(at, size))
        }
    }

    // -- chains ----------------------------------------------------------------------------------------------------

    /// @dev The mode's identity, then one step for each term.
    function _chain(uint256 mode, uint256 at, uint256 step, uint256 count) private pure returns (uint256 s) {
        if (mode == SUM && step == BLOCK) return Float32.sum(0, at, at + 4 * count);
        if (mode == MAX) s = NEGATIVE_INFINITY;
        else if (mode == MIN) s = INFINITY;
        else if (mode != SUM && mode != ISUM) revert OpUnknown(mode);
        unchecked {
            for (; count != 0; at += step) {
                uint256 x = _load(at);
                uint256 terms = count < 8 ? count : 8;
                count -= terms;
                for (; terms != 0; (terms, x) = (terms - 1, x << 32)) {
                    if (mode == SUM) s = Float32.add(s, x >> 224);
                    else if (mode == MAX) s = Float32.max(s, x >> 224);
                    else if (mode == MIN) s = Float32.min(s, x >> 224);
                    else s = (s + (x >> 224)) & WORD;
                }
            }
        }
    }

    function _load(uint256 at) private pure returns (uint256 value) {
        assembly ("memory-safe") {
            value := mload(at)
        }
    }
}
