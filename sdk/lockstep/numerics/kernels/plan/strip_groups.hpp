// From matched ops to a group that runs: members and their operands, scratch, live columns, blocks, loops.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "plan/strip_matcher.hpp"

namespace lockstep {

// A model has few masks, and each layer has them again: the ends of the rows of each condition that was looked at.
using MaskCache = std::map<std::vector<Index>, Indices>;

// `stored`: tiles that lie in memory; `owned`: members that no other group computes.
StripGroup make_strip_group(const Planner& plan, const StripMatcher& match, std::vector<int> stored, const std::function<bool(int)>& owned, MaskCache& masks);

// Live columns of each row, beyond which the group's masks leave nothing; empty if everything has to be computed. Tells of each
// member if its dead columns are known.
Indices live_columns(StripGroup& group, Budget& budget, MaskCache& masks);

// Adds the loops of the group's maps of tiles to the schedule's.
void add_strip_loops(StripGroup& group, std::vector<Loop>& loops);

}  // namespace lockstep
