// A Program's committed bytes as values (docs/protocol.md, section 2).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plans.hpp"

namespace lockstep {

enum class Kind : int { kMap = 1, kFold, kGather, kConcat, kRandom, kDraw, kQuant };
enum class Tag : int { kOp, kState, kConst, kIota, kContext };

struct View {
    Tag tag;
    int index;
    Index offset;
    std::vector<Index> strides;  // per output axis, then per k axis

    // One value wherever it is read.
    bool uniform() const;
};

using Views = std::vector<std::vector<View>>;  // of several ops

// The ops that views read, each once.
std::vector<int> ops_read(const std::vector<View>& views);

// Where a plan's operand lies: a tensor, or (tag kIota) a word of its own.
struct Source {
    Tag tag;
    int index;
    Index offset;
};
Source source_of(const View& view);

struct Instr {
    std::uint8_t op, a, b, c;
    Word imm;
};

// How many of a, b, c an opcode reads: ARITY of scalar.py, with 0 for IMM.
int arity(int op);
// Whether it takes many times as long as an addition.
bool is_dear(int op);

struct Descriptor {
    Kind kind;
    int mode, dtype;  // dtype: 0 f32, 1 i32
    std::vector<Index> extents;
    Index k = 0;  // terms of a fold, groups of a qdot, values along k of a quant
    std::vector<View> views;
    std::vector<Instr> instrs;
    Word p0, p1;
    std::vector<Index> sizes;
    Index elements = 1;

    bool is_qdot() const;
    // Of a quant: groups of a row; the codes and not the scales; by powers of two.
    Index groups() const { return (k + 4 * p0 - 1) / (4 * p0); }
    bool wants_codes() const { return mode % 2 == 0; }
    bool power() const { return mode >= 2; }
};

struct Entry {
    int kind, dtype;  // kind: 0 EMPTY, 1 scalar, 2 vector
    Index elements;
};

struct Alias {
    int kind, index;  // kind: 0 EMPTY, 1 op, 2 state
};

struct Program {
    std::vector<Entry> inputs;
    std::vector<Alias> outputs;
    std::vector<Descriptor> ops;
    std::vector<Index> const_elements;

    const Descriptor& at(int op) const { return ops[static_cast<std::size_t>(op)]; }
    // Words of what a view reads: an op's output, a state tensor, a constant, the three context words.
    Index source_elements(const View& view) const;
};

// Throws std::invalid_argument if the bytes do not parse, or if some op would read outside of what it names: this is what
// makes running a Program memory-safe. The rules that make one defensible are validate.py's.
Program decode_program(std::span<const std::uint8_t> header, const std::vector<std::span<const std::uint8_t>>& descriptors,
                       std::vector<Index> const_elements);

}  // namespace lockstep
