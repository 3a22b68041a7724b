// Iteration axes with the strides of what is read and written along them.
#pragma once

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "plans.hpp"

namespace lockstep {

using Indices = std::vector<Index>;

inline Index product(const Indices& extents) { return std::accumulate(extents.begin(), extents.end(), Index{1}, std::multiplies<>()); }

inline std::vector<Index> row_major(const std::vector<Index>& extents) {
    std::vector<Index> strides(extents.size());
    Index stride = 1;
    for (std::size_t i = extents.size(); i-- > 0; stride *= extents[i]) strides[i] = stride;
    return strides;
}

// Products of the innermost extents: where axes cut an index space.
inline std::vector<Index> cuts_of(const std::vector<Index>& extents) {
    std::vector<Index> cuts{1};
    for (std::size_t i = extents.size(); i-- > 0;) cuts.push_back(cuts.back() * extents[i]);
    return cuts;
}

// The coarsest axes that cut the index space wherever `axes` do, and at `cuts`.
inline std::optional<std::vector<Index>> refined(const std::vector<Index>& axes, std::vector<Index> cuts) {
    const std::vector<Index> own = cuts_of(axes);
    cuts.insert(cuts.end(), own.begin(), own.end());
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<Index> finer;
    for (std::size_t i = 1; i < cuts.size(); ++i) {
        if (cuts[i] % cuts[i - 1] != 0) return std::nullopt;
        finer.insert(finer.begin(), cuts[i] / cuts[i - 1]);
    }
    return finer;
}

// Strides over `extents` as strides over `axes`, which cut the same index space finer; nothing where they do not.
inline std::optional<std::vector<Index>> along(const std::vector<Index>& extents, const std::vector<Index>& strides,
                                               const std::vector<Index>& axes) {
    std::vector<Index> found(axes.size(), 0);
    std::size_t axis = axes.size();
    for (std::size_t e = extents.size(); e-- > 0;) {
        Index rest = extents[e], below = 1;
        while (rest > 1) {
            if (axis == 0 || rest % axes[axis - 1] != 0) return std::nullopt;
            --axis;
            found[axis] = strides[e] * below;
            below *= axes[axis];
            rest /= axes[axis];
        }
    }
    return axis == 0 ? std::optional(found) : std::nullopt;
}

// Iteration axes with the strides of several arrays on each.
struct Axes {
    std::vector<Index> extents;
    std::vector<std::vector<Index>> strides;  // [array][axis]; those behind the axes count for nothing

    // Without axes of extent 1, and neighbours that every array walks as one merged.
    Axes merged() const {
        Axes merged;
        merged.strides.resize(strides.size());
        for (std::size_t axis = 0; axis < extents.size(); ++axis) {
            if (extents[axis] == 1) continue;
            bool joins = !merged.extents.empty();
            for (std::size_t v = 0; v < strides.size() && joins; ++v)
                joins = merged.strides[v].back() == strides[v][axis] * extents[axis];
            if (joins) merged.extents.back() *= extents[axis];
            else merged.extents.push_back(extents[axis]);
            for (std::size_t v = 0; v < strides.size(); ++v) {
                if (joins) merged.strides[v].back() = strides[v][axis];
                else merged.strides[v].push_back(strides[v][axis]);
            }
        }
        return merged;
    }
};

// A plan's axes, and the strides of its output and its operands along them: the first array of `axes`, and those behind it.
template <class Plan>
void set_axes(Plan& plan, const Axes& axes) {
    plan.axes = static_cast<int>(axes.extents.size());
    plan.operands = static_cast<int>(axes.strides.size()) - 1;
    plan.elements = 1;
    for (int ax = 0; ax < plan.axes; ++ax) {
        const auto axis = static_cast<std::size_t>(ax);
        plan.extents[ax] = axes.extents[axis];
        plan.out_strides[ax] = axes.strides[0][axis];
        plan.elements *= axes.extents[axis];
        for (int v = 0; v < plan.operands; ++v) plan.operand[v].strides[ax] = axes.strides[static_cast<std::size_t>(v) + 1][axis];
    }
}

}  // namespace lockstep
