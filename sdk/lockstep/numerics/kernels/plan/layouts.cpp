// Maps stored as their operands lie, for the folds that read them.
#include "plan/passes.hpp"
#include "plan/steps.hpp"
#include "plan/views.hpp"

namespace lockstep {

// Column sums: the committed form transposes what a map computes and folds its rows. Where a fold alone reads such a map, the map
// is stored as its operands lie, and the fold walks down columns.
void Planner::choose_layouts() {
    const std::size_t n = program.ops.size();
    std::vector<std::size_t> readers(n, 0), reader(n, 0);
    std::vector<bool> alone(n, false);  // neither part of a group nor run in another form
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        alone[i] = schedule.alone(i);
    }
    for (std::size_t i = 0; i < n; ++i)
        for (const View& view : views[i])
            if (view.tag == Tag::kOp && schedule.needed[i]) {
                ++readers[static_cast<std::size_t>(view.index)];
                reader[static_cast<std::size_t>(view.index)] = i;
            }
    for (std::size_t i = 0; i < n; ++i) {
        const std::size_t r = reader[i];
        if (schedule.kept[i] || readers[i] != 1 || !alone[i] || !alone[r] || program.ops[i].kind != Kind::kMap || is_copy(program.ops[i]) ||
            !std::holds_alternative<FoldStep>(schedule.steps[r]) || views[r].size() != 1)
            continue;
        const auto order = reading_order(program.ops[i]);
        const auto view = order ? in_order(views[r][0], program.ops[r], program.ops[i], *order) : std::nullopt;
        if (!view) continue;
        program.ops[i] = permuted(program.ops[i], *order);
        views[i] = program.ops[i].views;
        views[r] = {*view};
        schedule.fused[i] = plan_map_step(program.ops[i]);
        schedule.fused[r] = plan_fold(program.ops[r], views[r]);
    }
}

}  // namespace lockstep
