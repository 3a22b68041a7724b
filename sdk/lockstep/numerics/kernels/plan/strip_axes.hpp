// The axes that the tensors of a strip group share, and how the operands of products lie on them.
#pragma once

#include <optional>

#include "plan/axes.hpp"
#include "program.hpp"
#include "strips.hpp"

namespace lockstep {

struct StripAxes {
    Index all_rows, columns;
    Indices rows = {};       // of batches and rows, outermost first
    Index product_rows = 0;  // rows that multiply the same columns: the innermost of `rows`

    // The axes of a tile.
    Indices tile() const;
    bool is_tile(const Descriptor& op) const { return op.elements == all_rows * columns; }
    // The outermost of the axes that are a product's rows.
    std::size_t first_product_row() const;
    // A view's strides over the tile's axes; the last one is the column's, 0 for an op without columns.
    std::optional<Indices> strides_of(const Descriptor& op, const View& view) const;
    // Cuts the rows where a map's own axes are; false where they do not fit.
    bool cut_as(const Descriptor& map);
    // Cuts the rows where the axes of a view of a tile do, if they fit.
    void cut_as_read(const Descriptor& op, const View& tile);
};

// The operand of a product that does not depend on the column, if the other one does not depend on the row.
std::optional<std::size_t> row_operand(const StripAxes& axes, const Descriptor& op, const std::vector<View>& views);
// Whether all rows of a product of codes are multiplied with the same columns.
bool shares_columns(const StripAxes& axes, const Descriptor& op, const std::vector<View>& views);

// How a dot uses a tile up: the strides of its result and of its other operand over the tile's axes.
struct Consumer {
    MemberKind kind;
    Indices out, other;  // batch, row, column
    Index out_own, other_own, own;
};
std::optional<Consumer> match_consumer(const StripAxes& axes, const Descriptor& op, const View& tile, const View& other);

}  // namespace lockstep
