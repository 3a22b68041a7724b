#include "scatter.hpp"

#include <algorithm>

#include "f32.hpp"

namespace lockstep {
namespace {

using f32::value;
using f32::word;

// The place of each k's index.
std::vector<Index> places(const ScatterPlan& plan) {
    std::vector<Index> found{0};
    for (std::size_t axis = 0; axis < plan.k_extents.size(); ++axis) {
        std::vector<Index> finer;
        for (const Index place : found)
            for (Index i = 0; i < plan.k_extents[axis]; ++i) finer.push_back(place + i * plan.index.strides[axis]);
        found = std::move(finer);
    }
    return found;
}

// One column with every term, zeros too.
void chain_column(const ScatterPlan& plan, const std::vector<Word>& rows, const Word* column, Word* out) {
    for (Index v = 0; v < plan.rows; ++v) {
        float sum = 0, chain = 0;
        for (Index k = 0; k < plan.k; ++k) {
            const float one = rows[static_cast<std::size_t>(k)] == static_cast<Word>(v) ? 1.0f : 0.0f;
            chain = f32::fma(one, value(column[k * plan.table.strides[0]]), chain);
            if ((k + 1) % kChunk && k + 1 < plan.k) continue;
            sum = f32::add(sum, chain);
            chain = 0;
        }
        out[v * plan.columns] = word(sum);
    }
}

}  // namespace

void scatter(const ScatterPlan& plan, const Word* index, const Word* table, Word* out, Index begin, Index end) {
    const std::vector<Index> at = places(plan);
    std::vector<Word> rows(at.size());
    for (std::size_t k = 0; k < at.size(); ++k) rows[k] = index[at[k]];
    const auto width = static_cast<std::size_t>(end - begin);
    for (Index v = 0; v < plan.rows; ++v) std::fill_n(out + v * plan.columns + begin, width, 0);

    std::vector<Word> largest(width, 0);
    std::vector<float> chain(width);
    std::vector<Index> order;
    for (Index first = 0; first < plan.k; first += kChunk) {
        order.clear();
        for (Index k = first; k < std::min(plan.k, first + kChunk); ++k) order.push_back(k);
        const auto row_of = [&](Index k) { return rows[static_cast<std::size_t>(k)]; };
        std::stable_sort(order.begin(), order.end(), [&](Index a, Index b) { return row_of(a) < row_of(b); });
        for (std::size_t i = 0; i < order.size();) {
            const Word row = row_of(order[i]);
            std::fill(chain.begin(), chain.end(), 0.0f);
            for (; i < order.size() && row_of(order[i]) == row; ++i) {
                const Word* terms = table + order[i] * plan.table.strides[0] + begin;
                for (std::size_t d = 0; d < width; ++d) {
                    chain[d] += value(terms[d]);
                    largest[d] = std::max(largest[d], terms[d] & ~f32::SIGN);
                }
            }
            if (row >= static_cast<Word>(plan.rows)) continue;
            Word* sums = out + static_cast<Index>(row) * plan.columns + begin;
            for (std::size_t d = 0; d < width; ++d) sums[d] = word(f32::add(value(sums[d]), chain[d]));
        }
    }
    for (std::size_t d = 0; d < width; ++d)
        if (largest[d] >= f32::INFINITE) {
            const auto column = begin + static_cast<Index>(d);
            chain_column(plan, rows, table + column, out + column);
        }
}

}  // namespace lockstep
