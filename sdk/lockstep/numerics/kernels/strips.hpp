// Ops that share rows, run together a few rows at a time, so that no intermediate is a whole tensor.
//
// A group's tensors are [batch, row, column], taken a tile of rows and columns at a time, or [batch, row]. Its members are products
// that make tiles (producers), maps, folds along the columns, and products that use tiles up (consumers): by rows, out[row, :] = sum
// over columns, or by columns, out[column, :] = sum over rows. Softmax attention is such a group, its gradient another one that computes the probabilities
// again (Dao et al., "FlashAttention", 2022, section 3); so is softmax cross-entropy. The bits are those of the separate ops:
// maxima are exact and every chain keeps its order. Rows are taken in strips of 256, so that a strip is one chunk of the folds
// over rows, and strips in blocks that stay in cache.
#pragma once

#include <vector>

#include "program.hpp"

namespace lockstep {

struct StripOperand {
    Source source;             // its place in memory, or an iota
    int member = -1;           // the member whose buffer holds it instead
    std::vector<Index> batch, lead;  // strides; `lead` of the row axes but the innermost
    Index row = 0, column = 0;
    Index own = 0;  // along the axis that is the member's alone: k of a product, the columns of a result
};

// Words from row 0 to `row`: heads that share their keys are rows of one product, apart in what else is read.
inline Index row_offset(const StripOperand& o, const std::vector<Index>& lead, Index inner_rows, Index row) {
    Index offset = row % inner_rows * o.row, outer = row / inner_rows;
    for (std::size_t axis = lead.size(); axis-- > 0; outer /= lead[axis]) offset += outer % lead[axis] * o.lead[axis];
    return offset;
}

enum class MemberKind { kMap, kFold, kProducer, kRowConsumer, kColumnConsumer };

struct StripMember {
    MemberKind kind;
    int op;
    bool tile = false;     // its output has columns
    int buffer = -1;      // of a tile that is nowhere else
    bool by_strip = false;  // the buffer holds a strip, not a block
    bool dead_known = false;  // see StripBlock
    std::vector<StripOperand> operands;  // of a producer: a, then b; of a consumer: the tile first
    std::vector<Instr> instrs;
    int loop = -1;                            // what computes it where there is code: a loop of the schedule
    std::vector<StripOperand> loop_operands;  // of the loop
    int inlined_by = -1;                      // the one member that reads it, whose loop computes it, too
    FoldMode mode = FoldMode::kDot;
    Index own = 0;  // extent of the axis that is the member's alone
    StripOperand out;  // in memory
};

// Rows [begin, begin + rows) of a batch, columns [0, live). The columns beyond are dead: a mask gives every column there the same
// value in each row, whatever the products before the mask are.
struct StripBlock {
    Index begin, rows, live;
    std::size_t masked, whole;  // variants with `live` columns, and with all
};

// Plans of the maps for blocks of one size.
struct StripVariant {
    Index rows, live;
    std::vector<MapPlan> maps, dead;  // one per member
};

struct StripGroup {
    std::vector<StripMember> members;
    std::vector<Index> batch, lead;  // extents; rows are lead x inner_rows
    Index batches = 1, rows = 0, inner_rows = 0, columns = 0;
    Index block_rows = 0;
    int block_buffers = 0, strip_buffers = 0;
    bool per_batch = false;  // products differ from batch to batch: a batch is one thread's
    bool masked = false;   // some block has dead columns
    std::vector<StripBlock> blocks;
    std::vector<StripVariant> variants;
    std::vector<int> absorbed;   // ops that run with the group; it takes the place of the last one
    std::vector<int> postponed;  // ops before the last one that read the group's results
};

}  // namespace lockstep
