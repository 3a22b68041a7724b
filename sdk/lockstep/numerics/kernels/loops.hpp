// Loops: maps over the same elements in one pass, each a function that was compiled for its expression.
//
// A loop's members are maps of as many elements whose operands are either read from memory or, at the same index, another
// member's result: AdamW's m', v' and p' are one loop, a LayerNorm's scale and gain are one. What nothing outside of the loop
// reads is never stored. The members keep their own steps, which the executor runs while a loop has no function; the bits are
// the same.
#pragma once

#include <cstddef>
#include <vector>

#include "program.hpp"

namespace lockstep {

struct Kernels;

constexpr int kMaxLoopOperands = 16;
constexpr int kMaxLoopOutputs = 8;
constexpr int kMaxLoopInstrs = 96;
constexpr Index kStreamed = 1 << 22;  // words of a result that does not stay in a cache
constexpr Index kLoopBlock = 16384;  // elements of a block that nothing is copied for

// How a loop's function reads an operand in row r, column c of a block.
enum class Form : char {
    kUniform = 'U',    // in[0]: one value for the whole loop
    kRow = 'B',        // in[r * stride]: one value per row
    kElement = 'C',    // in[r * stride + c]
    kIota = 'I',       // in[0] + r * stride + c * step; the step is part of the function
};

// out[j][r * out_stride[j] + c] for r < rows, c < cols; strides in words. The outputs lie alike
// in their cache lines. The caller holds a FloatEnvironment.
using LoopFunction = void (*)(const Word* const* in, const Index* in_stride, Word* const* out, const Index* out_stride, Index rows,
                              Index cols);

struct LoopOperand {
    Index strides[kMaxAxes];
    Form form;
    bool iota;
    bool gathered;  // its rows are copied together in scratch first
    Word offset;    // of an iota
    Word step;      // of an iota, along a row
};

struct LoopPlan {
    int axes, operands, outputs;
    int row_axis;  // the axis of a block's rows; -1: a block is one row
    bool flat;     // rows are too short: a block is one row of elements in order, whatever its axes
    bool streams;  // results are too large to be found in a cache again: the function writes them past it
    Index extents[kMaxAxes], out_strides[kMaxAxes];
    Index box[kMaxAxes];  // extents of one block; at most kBlock elements where some operand is gathered
    Index blocks, elements;
    LoopOperand operand[kMaxLoopOperands];
};

struct LoopInstr {
    int op, a, b, c;  // registers: the plan's operands first, then one per instruction
    Word imm;
    bool operator==(const LoopInstr&) const = default;
};

struct Loop {
    LoopPlan plan;
    std::vector<std::size_t> members;  // ops, ascending; the loop runs in place of the last one
    std::vector<Source> sources;       // of the plan's operands
    std::vector<LoopInstr> instrs;
    std::vector<std::size_t> outputs;  // ops whose results are stored
    std::vector<int> results;          // their registers
    LoopFunction function = nullptr;
    const Kernels* isa = nullptr;      // whose instructions the function uses
};

// Returns true if code compiled for one computes the other: the compiler's input is the same.
bool same_function(const Loop& one, const Loop& other);

// Whether `function` gives the interpreter's bits on blocks of numbers of every kind: a compiler is trusted no further.
bool computes(LoopFunction function, const Loop& loop, const Kernels& kernels);

constexpr Index loop_scratch(const LoopPlan& plan) { return plan.operands * (kBlock + 16); }

}  // namespace lockstep
