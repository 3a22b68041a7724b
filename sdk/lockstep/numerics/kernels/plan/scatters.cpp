// The gradient of an embedding: a dot fold of a one-hot map becomes a scatter.
#include <algorithm>
#include <optional>

#include "apply_op.hpp"
#include "plan/passes.hpp"
#include "plan/steps.hpp"
#include "plan/views.hpp"

namespace lockstep {
namespace {

// (iota == x) as a float, the iota along the first axis and x along the others.
bool is_one_hot(const Descriptor& op) {
    if (op.kind != Kind::kMap || op.views.size() != 2 || op.instrs.size() != 2 || op.extents.size() < 2) return false;
    const View &iota = op.views[0], &index = op.views[1];
    const Instr &same = op.instrs[0], &cast = op.instrs[1];
    if (iota.tag != Tag::kIota || index.tag == Tag::kIota || iota.offset != 0 || index.strides[0] != 0) return false;
    for (std::size_t axis = 0; axis < op.extents.size(); ++axis)
        if (iota.strides[axis] != (axis == 0 ? 1 : 0)) return false;
    return static_cast<Op>(same.op) == Op::IEQ && same.a == 0 && same.b == 1 && static_cast<Op>(cast.op) == Op::I2F && cast.a == 2;
}

// The plan if `op`, a dot that reads `views`, has a one-hot map of the Program as one operand: (iota == index) as a float.
std::optional<ScatterPlan> plan_scatter(const Program& program, const Descriptor& op, const std::vector<View>& views) {
    if (op.mode != static_cast<int>(FoldMode::kDot) || op.extents.size() != 2 || op.k > kChunk * kChunk) return std::nullopt;
    for (std::size_t side = 0; side < 2; ++side) {
        const View &hot = views[side], &table = views[1 - side];
        if (hot.tag != Tag::kOp || table.tag == Tag::kIota || table.strides[0] != 0 || table.strides[1] != 1) continue;
        const Descriptor& map = program.at(hot.index);
        if (!is_one_hot(map) || map.extents[0] != op.extents[0] || map.elements != op.extents[0] * op.k) continue;
        if (hot.offset != 0 || hot.strides[0] != op.k || hot.strides[1] != 0 || hot.strides[2] != 1) continue;
        ScatterPlan plan;
        plan.index = map.views[1];
        plan.index.strides.erase(plan.index.strides.begin());
        plan.k_extents.assign(map.extents.begin() + 1, map.extents.end());
        plan.table = table;
        plan.table.strides = {table.strides[2], table.strides[1]};
        plan.rows = op.extents[0];
        plan.columns = op.extents[1];
        plan.k = op.k;
        return plan;
    }
    return std::nullopt;
}

}  // namespace

// Where its rows come from a map that also transposes them, as the committed form of the fold wants, the map is stored as its operands
// lie, and its rows are added where they belong.
void Planner::find_scatters() {
    const auto fold = [&](std::size_t i) { return program.ops[i].kind == Kind::kFold && !program.ops[i].is_qdot(); };
    const auto scatters = [&](std::size_t i, const std::vector<View>& read) {
        auto scatter = plan_scatter(program, program.ops[i], read);
        if (!scatter) return false;
        views[i] = {scatter->index, scatter->table};
        schedule.fused[i] = std::move(*scatter);
        return true;
    };
    for (std::size_t i = 0; i < views.size(); ++i)
        if (fold(i)) scatters(i, views[i]);
    std::vector<int> readers(views.size(), 0);
    for (const std::vector<View>& read : views)
        for (const View& view : read)
            if (view.tag == Tag::kOp) ++readers[static_cast<std::size_t>(view.index)];
    for (std::size_t r = 0; r < views.size(); ++r) {
        if (!fold(r) || !schedule.alone(r)) continue;
        for (std::size_t side = 0; side < views[r].size(); ++side) {
            if (views[r][side].tag != Tag::kOp) continue;
            const auto i = static_cast<std::size_t>(views[r][side].index);
            const Descriptor& map = program.ops[i];
            if (map.kind != Kind::kMap || is_copy(map) || readers[i] != 1 || schedule.kept[i]) continue;
            const auto order = reading_order(map);
            const auto view = order ? in_order(views[r][side], program.ops[r], map, *order) : std::nullopt;
            if (!view) continue;
            std::vector<View> turned = views[r];
            turned[side] = *view;
            if (!scatters(r, turned)) continue;
            program.ops[i] = permuted(map, *order);
            views[i] = program.ops[i].views;
            schedule.fused[i] = plan_map_step(program.ops[i]);
            break;
        }
    }
}

}  // namespace lockstep
