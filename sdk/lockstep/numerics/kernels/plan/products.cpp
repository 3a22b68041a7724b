// Operands of products read where copies took them from: transposed ones, and windows of convolutions.
#include <algorithm>

#include "plan/axes.hpp"
#include "kernels.hpp"
#include "plan/passes.hpp"
#include "plan/places.hpp"
#include "plan/views.hpp"

namespace lockstep {
namespace {

// The longest runs that a kernel has code for; single rows where the rows lie otherwise.
Runs runs_of(const std::vector<Index>& rows) {
    for (const Runs runs : {Runs{4, 1}, Runs{4, 2}, Runs{3, 1}}) {
        const auto length = static_cast<std::size_t>(runs.length);
        bool all = rows.size() % length == 0;
        for (std::size_t i = 0; all && i < rows.size(); ++i) all = i % length == 0 || rows[i] == rows[i - 1] + runs.step;
        if (all) return runs;
    }
    return {1, 1};
}

// An operand of a product read where a copy took it from, if rows and terms each add a part of their own to an element's place there:
// the windows of a convolution are never copied together. False if it is no such copy.
bool read_in_place(const Program& program, GemmStep& step, std::size_t side, Budget& budget) {
    GemmPlan& plan = step.plan;
    Source& source = side == 0 ? step.a : step.b;
    if (source.tag != Tag::kOp || !is_copy(program.at(source.index))) return false;
    const Descriptor& copy = program.at(source.index);
    const Axes axes = Axes{copy.extents, {row_major(copy.extents), copy.views[0].strides}}.merged();
    const auto n_axes = axes.extents.size();
    std::vector<Index> reach(n_axes, 0);  // the largest coordinate along each axis, if the parts of an element's place add up
    const auto places = [&](Index begin, Index extent, Index stride) {
        budget.spend(extent, 4 * static_cast<Index>(n_axes + 2));
        budget.hold(extent, kPlaceBytes);
        return PlacesAlong(places_of(axes.strides[0], axes.strides[1], begin, extent, stride, reach));
    };
    Factor& factor = side == 0 ? plan.a : plan.b;
    Index* const batch_strides = factor.batch;
    const Factor::Part strided = factor.from(nullptr, 0, 0);
    const Index row_stride = strided.row, k_stride = strided.k;
    // What every batch shares would be packed for each of them, so it is copied once. A product that is turned on every path packs it
    // once, wherever it lies.
    const bool turned = side == 0 && plan.b_runs.length && plan.m % kMostLanes == 0 && plan.m <= kWindowsPerRow * plan.n * plan.batches;
    if (!turned && plan.batches > 1 && std::all_of(batch_strides, batch_strides + plan.batch_axes, [](Index s) { return s == 0; })) return false;
    if (row_stride < 0 || k_stride < 0 || std::any_of(batch_strides, batch_strides + plan.batch_axes, [](Index s) { return s < 0; })) return false;
    const Index offset = places(source.offset, 1, 0).at[0];
    PlacesAlong rows = places(0, side == 0 ? plan.m : plan.n, row_stride);
    const PlacesAlong terms = places(0, plan.k, k_stride);
    std::vector<Index> batches;
    for (int ax = 0; ax < plan.batch_axes; ++ax) {
        const auto stride = places(0, plan.batch[ax], batch_strides[ax]).stride();
        if (!stride) return false;
        batches.push_back(*stride);
    }
    for (std::size_t axis = 0; axis < n_axes; ++axis)
        if (reach[axis] >= axes.extents[axis]) return false;
    if (rows.stride() && terms.stride()) return false;  // seen through, if that is worth it
    for (Index& run : rows.run) run = std::max<Index>(run, 1);  // rows are packed in their order
    source = {copy.views[0].tag, copy.views[0].index, copy.views[0].offset + offset};
    std::copy(batches.begin(), batches.end(), batch_strides);
    auto table = std::make_shared<std::vector<Index>>();
    for (const PlacesAlong* axis : std::initializer_list<const PlacesAlong*>{&rows, &terms}) {
        table->insert(table->end(), axis->at.begin(), axis->at.end());
        table->insert(table->end(), axis->run.begin(), axis->run.end());
    }
    const Index *row = table->data(), *k_at = row + 2 * rows.at.size();
    factor.place({row, row + rows.at.size(), k_at, k_at + terms.at.size()});
    if (side == 1) plan.b_runs = runs_of(rows.at);
    step.places[side] = std::move(table);
    return true;
}

}  // namespace

// Products that are in no group read their operands in place, and copies that nobody reads any more are not made.
void Planner::read_products_in_place() {
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        auto* gemm = std::get_if<GemmStep>(&schedule.steps[i]);
        if (!gemm || !schedule.alone(i)) continue;
        const bool b = read_in_place(program, *gemm, 1, budget), a = read_in_place(program, *gemm, 0, budget);
        if (!a && !b) continue;
        views[i].clear();
        for (const Source& source : {gemm->a, gemm->b}) views[i].push_back(View{source.tag, source.index, source.offset, {}});
        schedule.reads[i] = ops_read(views[i]);
    }
    std::vector<bool> read = schedule.kept;
    std::vector<int> order;
    for (std::size_t at = schedule.order.size(); at-- > 0;) {
        const int op = schedule.order[at];
        const auto i = static_cast<std::size_t>(op);
        if (!read[i] && is_copy(program.ops[i]) && schedule.alone(i)) {
            schedule.needed[i] = false;
            continue;
        }
        for (const int source : traffic(op).reads) read[static_cast<std::size_t>(source)] = true;
        order.push_back(op);
    }
    schedule.order.assign(order.rbegin(), order.rend());
}

}  // namespace lockstep
