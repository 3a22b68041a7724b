// The gradient of an embedding: a dot fold of a one-hot map, done by adding rows instead of multiplying by zeros.
#pragma once

#include <vector>

#include "program.hpp"

namespace lockstep {

// out[v, d] = fold_k [index_k == v] x table[k, d]
struct ScatterPlan {
    View index;                    // of k, over `k_extents`
    std::vector<Index> k_extents;  // row-major
    View table;                    // strides: of k, of d
    Index rows, columns, k;
};

// Columns [begin, end) of the result. The bits are the fold's: a term 0 x finite leaves a chain that began at +0 as it was, and
// columns with a term that is not finite are chained in full.
void scatter(const ScatterPlan& plan, const Word* index, const Word* table, Word* out, Index begin, Index end);

}  // namespace lockstep
