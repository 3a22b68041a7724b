// Where the elements along one axis lie that no stride may tell.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "plan/axes.hpp"

namespace lockstep {

constexpr Index kPlaceBytes = 4 * sizeof(Index);  // of a place with its run, while tables are made and after

// Places along one axis and how many neighbours from each on lie side by side; negative where they lie in descending order.
struct PlacesAlong {
    std::vector<Index> at, run;

    explicit PlacesAlong(std::vector<Index> places) : at(std::move(places)), run(at.size(), 1) {
        for (std::size_t i = at.size() - 1; i-- > 0;)
            if (at[i + 1] == at[i] + 1) run[i] = std::max<Index>(run[i + 1], 1) + 1;
            else if (at[i + 1] == at[i] - 1) run[i] = std::min<Index>(run[i + 1], -1) - 1;
    }
    // The stride that tells all places, if one does.
    std::optional<Index> stride() const {
        const Index step = at.size() > 1 ? at[1] : 0;
        for (std::size_t i = 0; i < at.size(); ++i)
            if (at[i] != static_cast<Index>(i) * step) return std::nullopt;
        return step;
    }
};

// Where element `begin` + i * `step` of a row-major tensor comes from, for i < count: `strides` over the same axes. Adds the largest
// coordinate along each axis to `reach`.
inline std::vector<Index> places_of(const Indices& row, const Indices& strides, Index begin, Index count, Index step, Indices& reach) {
    Indices found, largest(row.size(), 0);
    for (Index i = 0; i < count; ++i) {
        Index rest = begin + i * step, place = 0;
        for (std::size_t axis = 0; axis < row.size(); ++axis) {
            const Index coordinate = rest / row[axis];
            rest %= row[axis];
            largest[axis] = std::max(largest[axis], coordinate);
            place += coordinate * strides[axis];
        }
        found.push_back(place);
    }
    for (std::size_t axis = 0; axis < row.size(); ++axis) reach[axis] += largest[axis];
    return found;
}

}  // namespace lockstep
