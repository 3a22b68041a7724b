// Whether a schedule can be run: no step reads what is not there, or outside of a tensor.
//
// The planner has a dozen passes that move reads from one tensor to another one. What they leave is looked at once more, from the
// plans alone: the operands of every step are computed before it, and nothing else has been written where they lie; each index that a
// step forms, tables included, lies inside of its tensor. It uses nothing that a pass has recorded.
#pragma once

#include <string>

#include "plan/schedule.hpp"
#include "plan/sweep.hpp"

namespace lockstep {

// What is wrong with it; empty if nothing is.
std::string unsound(const Schedule& schedule);
std::string unsound(const Schedule& schedule, const Sweep& sweep);

}  // namespace lockstep
