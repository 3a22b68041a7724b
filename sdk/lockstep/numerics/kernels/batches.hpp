// Runs of steps that never look beyond their own batch: attention's heads, one after another.
//
// All steps of a run are taken for one batch, then for the next one, so that what lies between them is a batch's share and stays in
// a core's cache. A thread has its own batches, and memory of its own for what nobody reads after the run.
#pragma once

#include <variant>
#include <vector>

#include "budget.hpp"
#include "program.hpp"

namespace lockstep {

struct Schedule;

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

// `program` has the ops with their axes as they are read at `views`.
std::vector<BatchRun> plan_batches(const Program& program, const std::vector<std::vector<View>>& views, const Schedule& schedule, Budget& budget);

}  // namespace lockstep
