// Dots, of values and of codes, as matrix products.
#include <algorithm>

#include "plan/axes.hpp"
#include "plan/steps.hpp"
#include "plan/views.hpp"

namespace lockstep {
namespace {

// The axis of a product's rows: the longest of those that `is_row` names, but not the innermost one; one more where there is none.
template <class IsRow>
std::size_t row_axis(const Axes& axes, IsRow is_row) {
    std::size_t found = axes.extents.size();
    for (std::size_t axis = 0; axis + 1 < axes.extents.size(); ++axis)
        if (is_row(axis) && (found == axes.extents.size() || axes.extents[axis] > axes.extents[found])) found = axis;
    return found;
}

// The product of arrays `a` and `b` of the axes, whose array 0 is the output: rows along axis `m`, columns along the last one.
GemmPlan plan_shape(const Axes& axes, std::size_t m, std::size_t a, std::size_t b, Index k, Index a_k, Index b_k) {
    const std::size_t n_axes = axes.extents.size(), n = n_axes - 1;  // none if there are no axes
    const auto along = [&](std::size_t array, std::size_t axis) { return axis < n_axes ? axes.strides[array][axis] : 0; };
    GemmPlan plan{};
    plan.m = m < n_axes ? axes.extents[m] : 1;
    plan.n = n < n_axes ? axes.extents[n] : 1;
    plan.k = k;
    plan.out_m = along(0, m);
    plan.a = Factor::strided(along(a, m), a_k);
    plan.b = Factor::strided(along(b, n), b_k);
    plan.batches = 1;
    for (std::size_t axis = 0; axis + 1 < n_axes; ++axis) {
        if (axis == m) continue;
        const int ax = plan.batch_axes++;
        plan.batch[ax] = axes.extents[axis];
        plan.out_batch[ax] = axes.strides[0][axis];
        plan.a.batch[ax] = axes.strides[a][axis];
        plan.b.batch[ax] = axes.strides[b][axis];
        plan.batches *= axes.extents[axis];
    }
    return plan;
}

// The groups of `words` words of a qdot's operand of codes whose last ones are padding: one of `period`, with `Padding::words` that
// are not. 0: none is known to have any.
struct Padding {
    Index period = 0, words = 0;
};
Padding padding_of(const Program& program, const View& view, Index words) {
    if (view.tag != Tag::kOp) return {};
    const Descriptor& made = program.at(view.index);
    const Index pitch = made.extents.empty() ? 1 : made.extents.back();
    if (view.offset % pitch != 0) return {};
    for (std::size_t axis = 0; axis + 1 < view.strides.size(); ++axis)
        if (view.strides[axis] % pitch != 0) return {};
    const auto own = [&](const Descriptor& op) -> Padding {
        // Groups of other sizes have their padding elsewhere.
        if (op.kind != Kind::kQuant || !op.wants_codes() || op.p0 != words) return {};
        const Index groups = op.groups(), last = (op.k - (groups - 1) * 4 * words + 3) / 4;
        return last == words ? Padding{} : Padding{groups, last};
    };
    if (made.kind != Kind::kConcat || made.p0 + 1 != made.extents.size()) return own(made);
    Padding all;
    for (std::size_t j = 0; j < made.views.size(); ++j) {
        Indices extents = made.extents;
        extents.back() = made.sizes[j];
        if (made.views[j].tag != Tag::kOp || !reads_all(program, made.views[j], extents)) return {};
        const Descriptor& part = program.at(made.views[j].index);
        const Padding found = own(part);
        if (part.extents.back() != made.sizes[j] || found.period == 0 || (j > 0 && (found.period != all.period || found.words != all.words))) return {};
        all = found;
    }
    return all;
}

}  // namespace

std::optional<GemmStep> plan_gemm(const Descriptor& op, const std::vector<View>& views) {
    if (op.mode != static_cast<int>(FoldMode::kDot) || op.k > kChunk * kChunk) return std::nullopt;
    const Axes axes = Axes{op.extents, {row_major(op.extents), views[0].strides, views[1].strides}}.merged();
    if (axes.extents.size() < 2) return std::nullopt;
    const std::size_t rank = op.extents.size();
    const auto still = [&](std::size_t side, std::size_t axis) { return axes.strides[side + 1][axis] == 0; };
    const std::size_t n = axes.extents.size() - 1, a = still(1, n) ? 1 : 0, b = 1 - a;
    if (!still(a, n) || still(b, n)) return std::nullopt;
    const std::size_t m = row_axis(axes, [&](std::size_t axis) { return still(b, axis) && !still(a, axis); });
    if (m > n) return std::nullopt;
    return GemmStep{plan_shape(axes, m, a + 1, b + 1, op.k, views[a].strides[rank], views[b].strides[rank]), source_of(views[a]), source_of(views[b])};
}

// Rows of one operand that are multiplied with one row of the other are a product of one row.
Step plan_qdot_step(const Program& program, const Descriptor& op) {
    const std::size_t rank = op.extents.size();
    Axes axes{op.extents, {row_major(op.extents)}};
    for (const View& view : op.views) axes.strides.push_back(view.strides);
    axes = axes.merged();
    const std::size_t n_axes = axes.extents.size(), n = n_axes - 1;
    std::size_t a = 0, b = 1;
    const auto still = [&](std::size_t side, std::size_t axis) { return axes.strides[side + 1][axis] == 0 && axes.strides[side + 3][axis] == 0; };
    if (n_axes > 0 && still(b, n)) std::swap(a, b);
    if (n_axes > 0 && !still(a, n)) return PlainStep{};
    const std::size_t m = row_axis(axes, [&](std::size_t axis) { return still(b, axis) && !still(a, axis); });
    QdotStep step{};
    QdotPlan& plan = step.plan;
    plan.shape = plan_shape(axes, m, a + 1, b + 1, op.k * op.p0, 1, 1);
    plan.words = op.p0;
    plan.groups = op.k;
    for (const std::size_t side : {a, b}) {
        const Padding padding = padding_of(program, op.views[side], op.p0);
        if (!padding.period || (plan.period && plan.period != padding.period)) continue;
        plan.last_words = plan.period ? std::min(plan.last_words, padding.words) : padding.words;
        plan.period = padding.period;
    }
    const GemmPlan scales = plan_shape(axes, m, a + 3, b + 3, op.k, op.views[a + 2].strides[rank], op.views[b + 2].strides[rank]);
    const Factor::Part scale_a = scales.a.from(nullptr, 0, 0), scale_b = scales.b.from(nullptr, 0, 0);
    plan.scale_a_m = scale_a.row;
    plan.scale_a_k = scale_a.k;
    plan.scale_b_n = scale_b.row;
    plan.scale_b_k = scale_b.k;
    std::copy(scales.a.batch, scales.a.batch + kMaxAxes, plan.scale_a_batch);
    std::copy(scales.b.batch, scales.b.batch + kMaxAxes, plan.scale_b_batch);
    const std::size_t order[4] = {a, b, a + 2, b + 2};
    for (std::size_t v = 0; v < 4; ++v) step.sources[v] = source_of(op.views[order[v]]);
    return step;
}

}  // namespace lockstep
