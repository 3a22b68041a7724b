// Running a group of ops that share rows.
#pragma once

#include <functional>
#include <span>

#include "buffers.hpp"
#include "kernels.hpp"
#include "loops.hpp"
#include "strips.hpp"

namespace lockstep {

// `base` finds a source in memory, `result` where an op's output belongs; `loops` are the schedule's. One workspace per thread.
void run_strips(const StripGroup& group, const std::function<const Word*(const Source&)>& base, const std::function<Word*(int)>& result,
                const std::vector<Loop>& loops, const Kernels& kernels, std::span<Workspace> workspaces);

}  // namespace lockstep
