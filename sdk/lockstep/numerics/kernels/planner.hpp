// From a Program to plans: what runs, in which form, and where its result lies.
#pragma once

#include <variant>
#include <vector>

#include "program.hpp"

namespace lockstep {

// Where a plan's operand lies: a tensor, or (tag kIota) a word of its own.
struct Source {
    Tag tag;
    int index;
    Index offset;
};

struct MapStep {
    std::vector<MapPlan> parts;  // one for a map; one per part of a concat
    std::vector<std::vector<Source>> sources;
    std::vector<Index> out_offsets;
};

struct GemmStep {
    GemmPlan plan;
    Source a, b;
};

struct FoldStep {
    FoldPlan plan;
    Source sources[2];
    int operands;
};

// A fold of something that is nowhere in memory; a gather, a random or a draw: the descriptor says it all.
struct PlainStep {};

using Step = std::variant<MapStep, GemmStep, FoldStep, PlainStep>;

struct Schedule {
    std::vector<Step> steps;          // one per op
    std::vector<bool> needed;         // false: a copy that every reader reads through
    std::vector<bool> kept;           // an output of the Program: has memory of its own
    std::vector<Index> arena_offset;  // of the others, in words
    Index arena_words = 0;
    Index map_scratch_words = 0;
};

Schedule make_schedule(const Program& program);

}  // namespace lockstep
