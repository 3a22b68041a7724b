#include "plan/strip_axes.hpp"

#include <algorithm>

namespace lockstep {
namespace {

bool all_zero(Indices::const_iterator begin, Indices::const_iterator end) {
    return std::all_of(begin, end, [](Index stride) { return stride == 0; });
}

}  // namespace

Indices StripAxes::tile() const {
    Indices axes = rows;
    axes.push_back(columns);
    return axes;
}

std::size_t StripAxes::first_product_row() const {
    std::size_t axis = rows.size();
    for (Index covered = 1; covered < product_rows;) covered *= rows[--axis];
    return std::min(axis, rows.size() - 1);
}

std::optional<Indices> StripAxes::strides_of(const Descriptor& op, const View& view) const {
    const Indices own(view.strides.begin(), view.strides.begin() + static_cast<std::ptrdiff_t>(op.extents.size()));
    auto found = along(op.extents, own, is_tile(op) ? tile() : rows);
    if (found && !is_tile(op)) found->push_back(0);
    return found;
}

bool StripAxes::cut_as(const Descriptor& map) {
    auto axes = refined(is_tile(map) ? tile() : rows, cuts_of(map.extents));
    if (!axes) return false;
    if (is_tile(map)) {
        if (axes->back() != columns) return false;
        axes->pop_back();
    }
    rows = *axes;
    return true;
}

void StripAxes::cut_as_read(const Descriptor& op, const View& tile) {
    Indices cuts;
    for (std::size_t e = 0; e < op.extents.size(); ++e)
        if (op.extents[e] > 1 && tile.strides[e] >= columns && tile.strides[e] % columns == 0) {
            cuts.push_back(tile.strides[e] / columns);
            cuts.push_back(cuts.back() * op.extents[e]);
        }
    if (const auto axes = refined(rows, cuts)) rows = *axes;
}

std::optional<std::size_t> row_operand(const StripAxes& axes, const Descriptor& op, const std::vector<View>& views) {
    for (std::size_t left = 0; left < 2; ++left) {
        const View &a = views[left], &b = views[1 - left];
        const auto a_strides = axes.strides_of(op, a), b_strides = axes.strides_of(op, b);
        if (!a_strides || !b_strides || a.tag == Tag::kIota || b.tag == Tag::kIota) return std::nullopt;
        const auto rows = b_strides->begin() + static_cast<std::ptrdiff_t>(axes.first_product_row());
        if (a_strides->back() == 0 && b_strides->back() != 0 && all_zero(rows, b_strides->end() - 1)) return left;
    }
    return std::nullopt;
}

bool shares_columns(const StripAxes& axes, const Descriptor& op, const std::vector<View>& views) {
    std::vector<Indices> strides;
    for (const View& view : views) {
        const auto found = axes.strides_of(op, view);
        if (!found) return false;
        strides.push_back(*found);
    }
    const auto of_columns = [&](std::size_t side) {
        const auto none = [](const Indices& s) { return all_zero(s.begin(), s.end() - 1); };
        return none(strides[side]) && none(strides[side + 2]);
    };
    const auto of_rows = [&](std::size_t side) { return strides[side].back() == 0 && strides[side + 2].back() == 0; };
    return (of_rows(0) && of_columns(1)) || (of_rows(1) && of_columns(0));
}

// Each axis of the dot is its own, in one case, or some neighbouring axes of the tile; the axis that it folds is the tile's columns,
// or all rows of a product.
std::optional<Consumer> match_consumer(const StripAxes& group, const Descriptor& op, const View& tile, const View& other) {
    const Indices axes = group.tile(), steps = row_major(axes), out = row_major(op.extents);
    const std::size_t column = axes.size() - 1, row = group.first_product_row();
    Consumer found{};
    if (tile.strides.back() == 1 && op.k == group.columns) found.kind = MemberKind::kRowConsumer;
    else if (tile.strides.back() == group.columns && op.k == group.product_rows) found.kind = MemberKind::kColumnConsumer;
    else return std::nullopt;
    const bool by_rows = found.kind == MemberKind::kRowConsumer;
    found.out.assign(axes.size(), 0);
    found.other.assign(axes.size(), 0);
    found.own = 1;
    std::vector<bool> matched(axes.size(), false);
    const auto match = [&](std::size_t first, std::size_t last, Index out_stride, Index other_stride) {
        for (std::size_t axis = last + 1; axis-- > first; out_stride *= axes[axis], other_stride *= axes[axis]) {
            matched[axis] = true;
            found.out[axis] = out_stride;
            found.other[axis] = other_stride;
        }
    };
    match(by_rows ? column : row, by_rows ? column : column - 1, 0, other.strides.back());
    for (std::size_t e = 0; e < op.extents.size(); ++e) {
        if (op.extents[e] == 1) continue;
        if (tile.strides[e] == 0) {
            if (found.own != 1) return std::nullopt;
            found.own = op.extents[e];
            found.out_own = out[e];
            found.other_own = other.strides[e];
            continue;
        }
        std::size_t last = 0;
        while (last < axes.size() && (matched[last] || steps[last] != tile.strides[e])) ++last;
        if (last == axes.size()) return std::nullopt;
        std::size_t first = last;
        Index covered = axes[last];
        while (covered < op.extents[e] && first > 0 && !matched[first - 1]) covered *= axes[--first];
        if (covered != op.extents[e]) return std::nullopt;
        match(first, last, out[e], other.strides[e]);
    }
    // Its other operand does not depend on the row (column) that stays.
    if (std::find(matched.begin(), matched.end(), false) != matched.end()) return std::nullopt;
    const auto stays = found.other.begin() + static_cast<std::ptrdiff_t>(by_rows ? row : column);
    return all_zero(stays, by_rows ? found.other.end() - 1 : found.other.end()) ? std::optional(found) : std::nullopt;
}

}  // namespace lockstep
