// Outputs that are computed again where they are read late, so that they need not wait there.
#pragma once

#include <vector>

#include "program.hpp"

namespace lockstep {

struct Recomputed {
    Program program;            // with copies of some ops, each before the first of the readers that take it in the op's place
    std::vector<int> original;  // one per op of it: the op that it is, or is a copy of
    std::vector<int> op_of;     // one per original op: where it stands now
    std::vector<int> copy_of;   // one per original op: where its copy stands, or -1
};

// Copied is what costs little beside what it saves: a cheap map that waits long while what it is computed from waits anyway, and
// attention's probabilities (Dao et al., "FlashAttention", 2022, section 3) where their product is one of codes.
Recomputed recompute(const Program& program);
// The Program as it is.
Recomputed as_written(const Program& program);

}  // namespace lockstep
