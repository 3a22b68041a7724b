// The result of planning: the steps, their forms and order, and each result's place in memory.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "loops.hpp"
#include "program.hpp"
#include "scatter.hpp"
#include "strips.hpp"

namespace lockstep {

struct MapStep {
    struct Part {
        MapPlan plan;
        std::vector<Source> sources;
        Index out_offset;
    };
    std::vector<Part> parts;  // one for a map; one per part of a concat
};

struct GemmStep {
    GemmPlan plan;
    Source a, b;
    std::shared_ptr<const std::vector<Index>> places[2] = {};  // what the plan's places of a and b point into
};

struct FoldStep {
    FoldPlan plan;
    Source sources[2];
    int operands;
};

struct PiecewiseSumStep {
    PiecewiseSum plan;
    Source sources[2];
    std::shared_ptr<const std::vector<Index>> places;  // what the plan points into
};

struct QdotStep {
    QdotPlan plan;
    Source sources[4];
};

// An op that a quant writes to: row r of one of its arrays at offset + pitch x r.
struct QuantOutput {
    int op;
    Index offset, pitch;
    int array;  // of QuantTarget
};

// Quants of one tensor in one pass: codes, scales, those of what they leave of it, and wherever these are copied to.
struct QuantStep {
    QuantPlan plan;
    Source source;
    std::vector<QuantOutput> outputs;
};

// A fold whose input is not in memory; a gather, a random or a draw: the descriptor suffices.
struct PlainStep {};

// An op that another one's step computes.
struct Absorbed {};

using Step = std::variant<MapStep, GemmStep, FoldStep, QdotStep, QuantStep, PlainStep>;

// What is run in place of an op's own step where not every output is asked for: the work of other ops too, so that their outputs
// need not exist; or a map and the fold that reads it, with the map's output stored in another order or nowhere.
using Fused = std::variant<std::monostate, ScatterPlan, StripGroup, MapStep, FoldStep, PiecewiseSumStep, QuantStep, Absorbed>;

// Steps that never look beyond their own batch: attention's heads, one after another.
//
// All steps of a run are taken for one batch, then for the next one, so that what lies between them is a batch's share and stays in
// a core's cache. A thread has its own batches, and memory of its own for what nobody reads after the run.
struct BatchRun {
    Index batches;
    std::vector<int> ops;  // in the schedule's order
    struct Share {
        int op;
        Index offset, words;  // of a thread's memory; of one batch
    };
    std::vector<Share> shares;  // outputs that exist a batch at a time
    Index words = 0;            // of a thread's memory
};

struct Recomputed {
    Program program;            // with copies of some ops, each before the first of the readers that take it in the op's place
    std::vector<int> original;  // one per op of it: the op that it is, or is a copy of
    std::vector<int> op_of;     // one per original op: its position now
    std::vector<int> copy_of;   // one per original op: its copy's position, or -1
};

struct Schedule {
    Recomputed planned;               // the Program whose ops these are
    std::vector<Step> steps;          // one per op: how it is run by itself
    std::vector<std::vector<int>> reads;  // one per op: the ops whose outputs its own step reads
    std::vector<Fused> fused;         // one per op: what is run in its place, unless every op's output is kept
    std::vector<int> order;           // of the ops that are run; a group is run in the place of its last member
    std::vector<bool> needed;         // false: nothing reads it from memory
    std::vector<bool> kept;           // an output of the Program: has memory of its own
    std::vector<Index> arena_offset;  // of the others, in words
    std::vector<Loop> loops;          // maps that may run together
    std::vector<int> loop_of;         // per op: its loop, or -1
    std::vector<BatchRun> runs;       // of steps that are taken a batch at a time
    std::vector<int> run_of;          // per op: its run, or -1
    Index arena_words = 0;
    std::string plain;                // a reason why every op is run by itself; empty: the ops are fused

    // Returns the position of an op of the original Program.
    std::size_t at(std::size_t original) const { return static_cast<std::size_t>(planned.op_of[original]); }
    std::size_t original(std::size_t op) const { return static_cast<std::size_t>(planned.original[op]); }
    // Whether the op is run by its own step.
    bool alone(std::size_t op) const { return std::holds_alternative<std::monostate>(fused[op]); }
};

// A schedule that holds (soundness.hpp): the fused one, or the plain one if that takes too much to plan or is requested.
Schedule make_schedule(const Program& original, bool plain = false);

}  // namespace lockstep
