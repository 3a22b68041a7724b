#include "plan/views.hpp"

#include <algorithm>

#include "apply_op.hpp"
#include "plan/axes.hpp"

namespace lockstep {
namespace {

constexpr Index kLook = 1000;  // operations to look at a copy

}  // namespace

bool is_copy(const Descriptor& op) {
    if (op.kind != Kind::kMap || op.views.size() != 1 || op.views[0].tag == Tag::kIota) return false;
    if (op.instrs.empty()) return true;
    return op.instrs.size() == 1 && static_cast<Op>(op.instrs[0].op) == Op::MOV && op.instrs[0].a == 0;
}

bool reads_in_order(const View& view, const Indices& extents) {
    if (view.offset != 0) return false;
    const Indices whole = row_major(extents);
    for (std::size_t axis = 0; axis < extents.size(); ++axis)
        if (extents[axis] != 1 && view.strides[axis] != whole[axis]) return false;
    return true;
}

bool reads_all(const Program& program, const View& view, const Indices& extents) {
    return view.tag == Tag::kOp && product(extents) == program.at(view.index).elements && reads_in_order(view, extents);
}

std::optional<View> read_through(const View& reader, const std::vector<Index>& extents, const Descriptor& copy) {
    const Axes axes = Axes{copy.extents, {row_major(copy.extents), copy.views[0].strides}}.merged();
    const auto n_axes = axes.extents.size();
    const std::vector<Index>&row = axes.strides[0], &source = axes.strides[1];
    View through{copy.views[0].tag, copy.views[0].index, copy.views[0].offset, std::vector<Index>(reader.strides.size(), 0)};
    std::vector<Index> low(n_axes), high(n_axes);
    Index rest = reader.offset;
    for (std::size_t axis = 0; axis < n_axes; ++axis) {
        low[axis] = high[axis] = rest / row[axis];
        rest %= row[axis];
        through.offset += low[axis] * source[axis];
    }
    for (std::size_t own = 0; own < extents.size(); ++own) {
        const Index stride = reader.strides[own];
        if (extents[own] == 1 || stride == 0) continue;
        std::size_t axis = 0;
        while (axis < n_axes && stride % row[axis] != 0) ++axis;
        if (axis == n_axes) return std::nullopt;
        const Index steps = stride / row[axis], reach = steps * (extents[own] - 1);
        (reach < 0 ? low : high)[axis] += reach;
        through.strides[own] = steps * source[axis];
    }
    for (std::size_t axis = 0; axis < n_axes; ++axis)
        if (low[axis] < 0 || high[axis] >= axes.extents[axis]) return std::nullopt;
    return through;
}

View seen_through(const Program& program, const Descriptor& op, View view, Budget& budget) {
    std::vector<Index> extents = op.extents;
    extents.push_back(op.k);
    while (view.tag == Tag::kOp && is_copy(program.at(view.index))) {
        budget.spend(kLook);
        const std::optional<View> through = read_through(view, extents, program.at(view.index));
        // Something must stay contiguous, or every term would be a cache line of its own.
        if (!through || std::find(through->strides.begin(), through->strides.end(), 1) == through->strides.end()) break;
        view = *through;
    }
    return view;
}

std::optional<std::vector<std::size_t>> reading_order(const Descriptor& op) {
    const auto rank = op.extents.size();
    std::vector<std::size_t> order(rank);
    for (std::size_t axis = 0; axis < rank; ++axis) order[axis] = axis;
    const auto reads = [](const View& view) { return view.tag != Tag::kIota && !view.uniform(); };
    const auto whole = std::find_if(op.views.begin(), op.views.end(), [&](const View& view) {
        for (std::size_t axis = 0; axis < rank; ++axis)
            if (op.extents[axis] > 1 && view.strides[axis] <= 0) return false;
        return reads(view);
    });
    if (whole == op.views.end()) return std::nullopt;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return whole->strides[a] > whole->strides[b]; });
    const std::size_t innermost = order.back();
    if (innermost == rank - 1) return std::nullopt;
    for (const View& view : op.views)
        if (reads(view) && view.strides[innermost] != 1 && view.strides[innermost] != 0) return std::nullopt;
    return order;
}

Descriptor permuted(const Descriptor& op, const std::vector<std::size_t>& order) {
    Descriptor result = op;
    for (std::size_t axis = 0; axis < order.size(); ++axis) {
        result.extents[axis] = op.extents[order[axis]];
        for (std::size_t v = 0; v < op.views.size(); ++v) result.views[v].strides[axis] = op.views[v].strides[order[axis]];
    }
    return result;
}

std::optional<View> in_order(const View& view, const Descriptor& reader, const Descriptor& op, const std::vector<std::size_t>& order) {
    const std::vector<Index> stored = row_major(permuted(op, order).extents);
    std::vector<Index> strides(order.size());
    for (std::size_t axis = 0; axis < order.size(); ++axis) strides[order[axis]] = stored[axis];
    Descriptor turned = op;
    turned.views = {View{view.tag, view.index, 0, strides}};
    std::vector<Index> extents = reader.extents;
    extents.push_back(reader.k);
    return read_through(view, extents, turned);
}

}  // namespace lockstep
