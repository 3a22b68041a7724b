// From a Program to plans: what runs, in which form, and where its result lies.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "batches.hpp"
#include "loops.hpp"
#include "program.hpp"
#include "quants.hpp"
#include "recompute.hpp"
#include "scatter.hpp"
#include "strips.hpp"

namespace lockstep {

struct MapStep {
    std::vector<MapPlan> parts;  // one for a map; one per part of a concat
    std::vector<std::vector<Source>> sources;
    std::vector<Index> out_offsets;
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

// A fold of something that is nowhere in memory; a gather, a random or a draw: the descriptor says it all.
struct PlainStep {};

using Step = std::variant<MapStep, GemmStep, FoldStep, QdotStep, QuantStep, PlainStep>;

// What is run in place of an op's own step where not every output is asked for: the work of other ops too, so that their outputs
// need not exist; or a map and the fold that reads it, with the map's output stored in another order or nowhere.
using Fused = std::variant<std::monostate, ScatterPlan, StripGroup, MapStep, FoldStep, PiecewiseSumStep, QuantStep, Absorbed>;

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

    // Where an op of the original Program stands.
    std::size_t at(std::size_t original) const { return static_cast<std::size_t>(planned.op_of[original]); }
    std::size_t original(std::size_t op) const { return static_cast<std::size_t>(planned.original[op]); }
};

// The ops that views read, each once.
std::vector<int> ops_read(const std::vector<View>& views);

// A schedule that holds (soundness.hpp): the fused one, or the plain one where that takes too much to plan, or is asked for.
Schedule make_schedule(const Program& original, bool plain = false);

// A map over `extents` whose operands' strides are those of `views` and whose output has `out_strides`.
MapPlan plan_map(const std::vector<Index>& extents, const std::vector<Index>& out_strides, const std::vector<const View*>& views,
                 const std::vector<Instr>& instrs);
// Registers that an instruction does not read become copies of one that it does: planning need not know arities.
std::vector<Instr> with_read_registers_only(const Descriptor& op);

}  // namespace lockstep
