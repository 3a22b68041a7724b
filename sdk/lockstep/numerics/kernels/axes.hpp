// Iteration axes with the strides of what is read and written along them.
#pragma once

#include <utility>
#include <vector>

#include "plans.hpp"

namespace lockstep {

inline std::vector<Index> row_major(const std::vector<Index>& extents) {
    std::vector<Index> strides(extents.size());
    Index stride = 1;
    for (std::size_t i = extents.size(); i-- > 0; stride *= extents[i]) strides[i] = stride;
    return strides;
}

// Iteration axes with the strides of several arrays on each.
struct Axes {
    std::vector<Index> extents;
    std::vector<std::vector<Index>> strides;  // [array][axis]

    // Drops axes of extent 1 and merges neighbours that every array walks as one.
    void merge() {
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
        *this = std::move(merged);
    }
};

}  // namespace lockstep
