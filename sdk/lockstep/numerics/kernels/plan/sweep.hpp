// Every op's output once, in order, in little more memory than an ordinary step has.
//
// An ordinary step leaves out what it computes in passing: the scores of attention, a one-hot matrix. A sweep must show those,
// too. Each exists until its last reader runs, and goes earlier where memory is short: it is computed again, from what an
// ordinary step keeps, when it is read again. What an ordinary step keeps stays until nothing can ask for it any more.
#pragma once

#include <vector>

#include "program.hpp"

namespace lockstep {

struct Sweep {
    struct Run {
        int op;
        Index offset;  // of its output, in words
        bool again;    // its output was shown before
    };
    std::vector<Run> runs;
    Index words = 0;  // of the memory that the outputs share
};

// `reads`: the ops that each op's own step reads. `stored`: those whose output is in memory in an ordinary step; the others are
// dropped, the one that is read last first, while more than `most` words are held.
Sweep plan_sweep(const Program& program, const std::vector<std::vector<int>>& reads, const std::vector<bool>& stored, Index most);

}  // namespace lockstep
