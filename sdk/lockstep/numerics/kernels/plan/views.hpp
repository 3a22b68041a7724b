// Views moved from one tensor to another one: through a copy, and onto an output whose axes are stored in another order.
#pragma once

#include <optional>
#include <vector>

#include "plan/budget.hpp"
#include "program.hpp"

namespace lockstep {

bool is_copy(const Descriptor& op);
// Whether the view, over `extents`, reads what it names from its first word on, in its order.
bool reads_in_order(const View& view, const std::vector<Index>& extents);
// Whether the view, over `extents`, is the whole output of an op, in its order.
bool reads_all(const Program& program, const View& view, const std::vector<Index>& extents);
// `reader`, which reads the output of the copy over `extents`, as a view of what was copied; nothing where an axis of the reader
// runs across axes of the copy that do not merge.
std::optional<View> read_through(const View& reader, const std::vector<Index>& extents, const Descriptor& copy);
// Folds read through copies: the transposes that make a k axis contiguous in the committed form need not exist.
View seen_through(const Program& program, const Descriptor& op, View view, Budget& budget);

// A permutation of a map's axes, outermost first, in which all that it reads lies contiguous; nothing if its own order will do.
std::optional<std::vector<std::size_t>> reading_order(const Descriptor& op);
Descriptor permuted(const Descriptor& op, const std::vector<std::size_t>& order);
// `view` of the output of `op` as a view of the same output with its axes stored in `order`.
std::optional<View> in_order(const View& view, const Descriptor& reader, const Descriptor& op, const std::vector<std::size_t>& order);

}  // namespace lockstep
