// Quants of one tensor in one pass: codes, scales, those of what they leave of it, and wherever these are copied to.
#pragma once

#include <vector>

#include "budget.hpp"
#include "program.hpp"

namespace lockstep {

// An op that a quant writes to: row r of one of its arrays at offset + pitch x r.
struct QuantOutput {
    int op;
    Index offset, pitch;
    int array;  // of QuantTarget
};

struct QuantStep {
    QuantPlan plan;
    Source source;
    std::vector<QuantOutput> outputs;
};

// An op that another one's step computes.
struct Absorbed {};

// Op `index`, a quant, by itself, with its operand read at `view`.
QuantStep plan_quant(const Descriptor& op, int index, const View& view);
// Whether a quant may read its operand there: its k is contiguous, or its rows lie side by side.
bool quantises(const Descriptor& op, const View& view);

// The groups of `words` words of a qdot's operand of codes whose last ones are padding: one of `period`, with `Padding::words` that
// are not. 0: none is known to have any.
struct Padding {
    Index period = 0, words = 0;
};
Padding padding_of(const Program& program, const View& view, Index words);

struct QuantGroup {
    int op;  // in whose place it is run: the first one that is part of it
    QuantStep step;
    std::vector<int> absorbed;  // the others
};

// The quants of a Program that are run together; `views` are the operands of each op as they are read, and `taken` says which ops
// already run in a form of their own.
std::vector<QuantGroup> plan_quants(const Program& program, const std::vector<std::vector<View>>& views, const std::vector<bool>& taken, Budget& budget);

}  // namespace lockstep
