#include "strips_run.hpp"

#include <algorithm>
#include <atomic>

#include "f32.hpp"
#include "multiply.hpp"
#include "threads.hpp"

namespace lockstep {
namespace {

constexpr Word kBounded = (127u + 40) << 23;  // 2^40: sums of 2^16 products of two such are finite

constexpr Index rounded_up(Index words) { return (words + 15) / 16 * 16; }

// Whether all |x| of a matrix lie below 2^40, which neither infinities nor NaNs do.
bool bounded(const Word* x, Index rows, Index row, Index columns, Index column) {
    if (row == 1) std::swap(rows, columns), std::swap(row, column);
    Word beyond = 0;
    for (Index i = 0; i < rows; ++i) {
        const Word* at = x + i * row;
        if (column == 1)
            for (Index j = 0; j < columns; ++j) beyond |= (at[j] & ~f32::SIGN) + (f32::SIGN - kBounded);
        else
            for (Index j = 0; j < columns; ++j) beyond |= (at[j * column] & ~f32::SIGN) + (f32::SIGN - kBounded);
    }
    return !(beyond & f32::SIGN);
}

// A product or a result as gemm() takes it; what depends on the block is filled in there.
GemmPlan plan_of(const StripGroup& group, const StripMember& m) {
    GemmPlan plan{};
    plan.batches = 1;
    const StripOperand &a = m.operands[0], &b = m.operands[1];
    plan.m = group.rows;
    switch (m.kind) {
    case MemberKind::kProducer:
        plan.n = group.columns;
        plan.k = m.own;
        plan.a = Factor::strided(a.row, a.own);
        plan.b = Factor::strided(b.column, b.own);
        plan.out_m = group.columns;
        break;
    case MemberKind::kRowConsumer:
        plan.n = m.own;
        plan.k = group.columns;
        plan.b = Factor::strided(b.own, b.column);
        plan.out_m = m.out.own == 1 ? m.out.row : m.own;
        break;
    default:
        plan.m = group.columns;
        plan.n = m.own;
        plan.k = std::min(group.rows, kChunk);
        plan.a = Factor::strided(1, group.columns);
        plan.b = Factor::strided(b.own, b.row);
        plan.out_m = m.out.own == 1 ? m.out.column : m.own;
    }
    return plan;
}

// What one thread needs for one batch: scratch laid out once, pointers moved from batch to batch.
class Strips {
public:
    Strips(const StripGroup& group, const std::function<const Word*(const Source&)>& base, const std::function<Word*(int)>& result,
           const std::vector<Loop>& loops, const Kernels& kernels)
        : group_(group), loops_(loops), kernels_(kernels) {
        for (const StripMember& m : group.members) {
            bases_.emplace_back();
            for (const StripOperand& o : m.operands) bases_.back().push_back(o.member >= 0 || o.source.tag == Tag::kIota ? nullptr : base(o.source));
            code_bases_.emplace_back();
            for (const StripOperand& o : m.loop_operands) code_bases_.back().push_back(o.member >= 0 || o.source.tag == Tag::kIota ? nullptr : base(o.source));
            results_.push_back(m.tile && m.buffer >= 0 ? nullptr : result(m.op));
            aside_.push_back(aside_words_);
            if (!m.tile && m.own > 0 && m.out.own != 1) aside_words_ += rounded_up(m.own * std::max(group.columns, group.block_rows));
            plans_.push_back(m.kind == MemberKind::kMap || m.kind == MemberKind::kFold ? GemmPlan{} : plan_of(group, m));
        }
    }

    Index scratch_words() const {
        Index most = 0;
        for (const GemmPlan& plan : plans_)
            if (plan.k) most = std::max(most, multiply_scratch(plan, kernels_));
        for (const StripVariant& v : group_.variants)
            for (std::size_t m = 0; m < v.maps.size(); ++m) most = std::max({most, map_scratch(v.maps[m]), map_scratch(v.dead[m])});
        return rounded_up(most);
    }

    Index buffer_words() const {
        const auto members = static_cast<Index>(group_.members.size());
        return group_.block_buffers * block_words() + group_.strip_buffers * strip_words() + (members + 1) * dead_words() + aside_words_;
    }

    // A whole batch; with what the masks leave alone if that is known to give the same bits.
    void batch(Index index, Word* scratch, Word* buffers) const {
        if (group_.masked && operands_bounded(index) && batch(index, true, scratch, buffers)) return;
        batch(index, false, scratch, buffers);
    }

    // One block; false if a dead column holds what the folds cannot leave out.
    bool block(Index batch, const StripBlock& block, bool masked, Word* scratch, Word* buffers) const {
        const StripVariant& variant = group_.variants[masked ? block.masked : block.whole];
        const Block here{batch, block.begin, variant, variant.live < group_.columns, scratch, buffers};
        for (std::size_t m = 0; m < group_.members.size(); ++m) {
            switch (group_.members[m].kind) {
            case MemberKind::kMap: run_map(m, here); break;
            case MemberKind::kFold:
                if (!run_fold(m, here)) return false;
                break;
            case MemberKind::kProducer: run_product(m, here); break;
            case MemberKind::kRowConsumer:
                if (!run_by_rows(m, here)) return false;
                break;
            case MemberKind::kColumnConsumer:
                if (!finish_columns(m, here)) return false;
                break;
            }
        }
        return true;
    }

private:
    struct Block {
        Index batch, begin;
        const StripVariant& variant;
        bool masked;
        Word *scratch, *buffers;
    };

    Index block_words() const { return rounded_up(group_.block_rows * group_.columns); }
    Index strip_words() const { return rounded_up(std::min(group_.rows, kChunk) * group_.columns); }
    Index dead_words() const { return rounded_up(group_.block_rows); }

    Index batch_offset(const StripOperand& o, Index batch) const {
        Index offset = 0;
        for (std::size_t axis = group_.batch.size(); axis-- > 0; batch /= group_.batch[axis]) offset += batch % group_.batch[axis] * o.batch[axis];
        return offset;
    }
    Index rows_to(const StripOperand& o, Index row) const { return row_offset(o, group_.lead, group_.inner_rows, row); }
    const Word* at(std::size_t m, std::size_t operand, Index batch) const {
        return bases_[m][operand] + batch_offset(group_.members[m].operands[operand], batch);
    }
    Word* result(std::size_t m, Index batch) const { return results_[m] + batch_offset(group_.members[m].out, batch); }

    // Where a buffered member's block begins, and the words from row to row.
    Word* buffer(std::size_t m, const Block& here) const {
        const StripMember& own = group_.members[m];
        if (!own.by_strip) return here.buffers + own.buffer * block_words();
        return here.buffers + group_.block_buffers * block_words() + own.buffer * strip_words() + here.begin % kChunk * group_.columns;
    }
    Index pitch(std::size_t m, const Block& here) const { return group_.members[m].by_strip ? group_.columns : here.variant.live; }
    Word* dead(std::size_t m, const Block& here) const {
        return here.buffers + group_.block_buffers * block_words() + group_.strip_buffers * strip_words() + static_cast<Index>(m) * dead_words();
    }

    // Every operand of products and results, of which dead columns would be multiples by zero.
    bool operands_bounded(Index batch) const {
        for (std::size_t m = 0; m < plans_.size(); ++m) {
            const GemmPlan& plan = plans_[m];
            const StripMember& own = group_.members[m];
            if (!plan.k) continue;
            const Index terms = own.kind == MemberKind::kColumnConsumer ? group_.rows : plan.k;
            const Factor::Part b = plan.b.from(at(m, 1, batch), 0, 0);
            if (!bounded(b.at, terms, b.k, plan.n, b.row)) return false;
            if (own.kind != MemberKind::kProducer) continue;
            for (Index row = 0; row < group_.rows; row += group_.inner_rows) {
                const Factor::Part a = plan.a.from(at(m, 0, batch) + rows_to(own.operands[0], row), 0, 0);
                if (!bounded(a.at, group_.inner_rows, a.row, plan.k, a.k)) return false;
            }
        }
        return true;
    }

    bool batch(Index index, bool masked, Word* scratch, Word* buffers) const {
        // What is unknown in dead columns is read as +0: whatever depends on it is never used.
        std::fill_n(dead(group_.members.size(), {0, 0, group_.variants[0], false, scratch, buffers}), dead_words(), 0);
        for (std::size_t b = 0; b < group_.blocks.size(); ++b) {
            if (!block(index, group_.blocks[b], masked, scratch, buffers)) return false;
            const Index end = group_.blocks[b].begin + group_.blocks[b].rows;
            if (end % kChunk == 0 || end == group_.rows) run_by_columns(index, end, masked, scratch, buffers);
        }
        return true;
    }

    void run_map(std::size_t m, const Block& here) const {
        const StripMember& own = group_.members[m];
        Word* out = own.tile && own.buffer >= 0 ? buffer(m, here) : result(m, here.batch) + rows_to(own.out, here.begin);
        // Where the loop of its reader computes it, nobody reads it.
        if (!part_of_code(own)) {
            if (has_code(own)) run_code(m, here, out);
            else run_plan(m, here.variant.maps[m], here, 0, [&](const StripOperand& o) { return buffer(static_cast<std::size_t>(o.member), here); }, out);
        }
        if (here.masked && own.dead_known)
            run_plan(m, here.variant.dead[m], here, here.variant.live, [&](const StripOperand& o) {
                const auto read = static_cast<std::size_t>(o.member);
                return dead(group_.members[read].dead_known ? read : group_.members.size(), here);
            }, dead(m, here));
    }

    bool has_code(const StripMember& m) const {
        if (m.loop < 0) return false;
        const Loop& loop = loops_[static_cast<std::size_t>(m.loop)];
        return loop.function && loop.isa == &kernels_;
    }
    bool part_of_code(const StripMember& m) const {
        if (m.inlined_by < 0) return false;
        const StripMember& reader = group_.members[static_cast<std::size_t>(m.inlined_by)];
        return has_code(reader) || part_of_code(reader);
    }

    void run_code(std::size_t m, const Block& here, Word* out) const {
        const StripMember& own = group_.members[m];
        const Word* in[kMaxLoopOperands];
        Index in_stride[kMaxLoopOperands];
        Word starts[kMaxLoopOperands];
        for (std::size_t v = 0; v < own.loop_operands.size(); ++v) {
            const StripOperand& o = own.loop_operands[v];
            const auto read = static_cast<std::size_t>(o.member);
            in_stride[v] = o.member >= 0 ? pitch(read, here) : o.row;
            const Index offset = batch_offset(o, here.batch) + rows_to(o, here.begin);
            if (o.member >= 0) in[v] = buffer(read, here);
            else if (o.source.tag == Tag::kIota) starts[v] = static_cast<Word>(o.source.offset + offset), in[v] = &starts[v];
            else in[v] = code_bases_[m][v] + offset;
        }
        const Index out_stride = own.buffer >= 0 ? pitch(m, here) : group_.columns;
        loops_[static_cast<std::size_t>(own.loop)].function(in, in_stride, &out, &out_stride, here.variant.rows, here.variant.live);
    }

    template <class Buffered>
    void run_plan(std::size_t m, const MapPlan& plan, const Block& here, Index column, Buffered buffered, Word* out) const {
        const StripMember& own = group_.members[m];
        const Word* bases[kMaxOperands];
        MapPlan placed = plan;
        for (std::size_t v = 0; v < own.operands.size(); ++v) {
            const StripOperand& o = own.operands[v];
            const Index offset = batch_offset(o, here.batch) + rows_to(o, here.begin) + column * o.column;
            if (o.member >= 0) bases[v] = buffered(o);
            else if (o.source.tag == Tag::kIota) bases[v] = nullptr, placed.operand[v].offset += static_cast<Word>(offset);
            else bases[v] = bases_[m][v] + offset;
        }
        kernels_.map(placed, bases, out, 0, placed.blocks, here.scratch);
    }

    bool dead_is_zero(std::size_t m, const Block& here) const {
        const Word* x = dead(m, here);
        return std::all_of(x, x + here.variant.rows, [](Word w) { return w == 0; });
    }
    bool dead_is_bounded(std::size_t m, const Block& here) const {
        return !group_.members[m].dead_known || bounded(dead(m, here), 1, 0, here.variant.rows, 1);
    }

    bool run_fold(std::size_t m, const Block& here) const {
        const StripMember& own = group_.members[m];
        FoldPlan plan{};
        plan.mode = own.mode;
        plan.axes = 1;
        plan.extents[0] = plan.outputs = here.variant.rows;
        plan.k = here.variant.live;
        const Word* bases[2] = {};
        for (std::size_t v = 0; v < own.operands.size(); ++v) {
            const StripOperand& o = own.operands[v];
            const auto read = static_cast<std::size_t>(o.member);
            bases[v] = o.member >= 0 ? buffer(read, here) : at(m, v, here.batch) + rows_to(o, here.begin);
            plan.strides[v][0] = o.member >= 0 ? pitch(read, here) : o.row;
            plan.k_stride[v] = o.member >= 0 ? 1 : o.column;
        }
        Word* out = result(m, here.batch) + rows_to(own.out, here.begin);
        kernels_.fold(plan, bases, out, 0, plan.outputs);
        return !here.masked || fold_dead(own, here, out);
    }

    // The dead columns of a fold: joined to an extreme, left out of a sum that they do not change.
    bool fold_dead(const StripMember& own, const Block& here, Word* out) const {
        const auto read = static_cast<std::size_t>(own.operands[0].member);
        switch (own.mode) {
        case FoldMode::kSum:
        case FoldMode::kWrappingSum: return dead_is_zero(read, here);
        case FoldMode::kDot: {
            const auto other = static_cast<std::size_t>(own.operands[1].member);
            const auto zero = [&](std::size_t x, std::size_t y) {
                return group_.members[x].dead_known && dead_is_zero(x, here) && dead_is_bounded(y, here);
            };
            return zero(read, other) || zero(other, read);
        }
        case FoldMode::kMax:
        case FoldMode::kMin: break;
        }
        const Word* x = dead(read, here);
        const auto join = own.mode == FoldMode::kMax ? f32::max : f32::min;
        for (Index i = 0; i < here.variant.rows; ++i) out[i] = f32::word(join(f32::value(out[i]), f32::value(x[i])));
        return true;
    }

    void run_product(std::size_t m, const Block& here) const {
        const StripMember& own = group_.members[m];
        GemmPlan plan = plans_[m];
        plan.m = here.variant.rows;
        plan.n = here.variant.live;
        Word* out = own.buffer >= 0 ? buffer(m, here) : result(m, here.batch) + rows_to(own.out, here.begin);
        plan.out_m = own.buffer >= 0 ? pitch(m, here) : group_.columns;
        multiply_alone(plan, at(m, 0, here.batch) + rows_to(own.operands[0], here.begin), at(m, 1, here.batch), out, kernels_, here.scratch);
    }

    bool run_by_rows(std::size_t m, const Block& here) const {
        const StripMember& own = group_.members[m];
        const StripOperand& tile = own.operands[0];
        const auto read = static_cast<std::size_t>(tile.member);
        if (here.masked && !dead_is_zero(read, here)) return false;
        GemmPlan plan = plans_[m];
        plan.m = here.variant.rows;
        plan.k = here.variant.live;
        plan.a = Factor::strided(tile.member < 0 ? tile.row : pitch(read, here), 1);
        const Word* a = tile.member < 0 ? at(m, 0, here.batch) + rows_to(tile, here.begin) : buffer(read, here);
        Word* out = result(m, here.batch) + rows_to(own.out, here.begin);
        Word* rows = own.out.own == 1 ? out : aside(m, here);
        multiply_alone(plan, a, at(m, 1, here.batch), rows, kernels_, here.scratch);
        if (rows != out) spread(rows, plan.m, own.own, out, own.out.row, own.out.own);
        return true;
    }

    // Holds a result until it is complete, if its own axis is not the innermost one.
    Word* aside(std::size_t m, const Block& here) const { return dead(group_.members.size() + 1, here) + aside_[m]; }
    static void spread(const Word* in, Index rows, Index columns, Word* out, Index row, Index column) {
        for (Index i = 0; i < rows; ++i)
            for (Index j = 0; j < columns; ++j) out[i * row + j * column] = in[i * columns + j];
    }

    // Rows of a strip that a result by columns will read: zeros from where they are dead to where another block's row may live.
    bool finish_columns(std::size_t m, const Block& here) const {
        const auto read = static_cast<std::size_t>(group_.members[m].operands[0].member);
        if (!here.masked) return true;
        if (!dead_is_zero(read, here)) return false;
        Word* rows = buffer(read, here);
        for (Index i = 0; i < here.variant.rows; ++i)
            std::fill(rows + i * group_.columns + here.variant.live, rows + (i + 1) * group_.columns, 0);
        return true;
    }

    // Results by columns take in the strip that ends with row `end`: one chunk of their folds.
    void run_by_columns(Index batch, Index end, bool masked, Word* scratch, Word* buffers) const {
        const Index begin = (end - 1) / kChunk * kChunk;
        for (std::size_t m = 0; m < plans_.size(); ++m)
            if (group_.members[m].kind == MemberKind::kColumnConsumer) take_strip(m, batch, begin, end, masked, scratch, buffers);
    }

    // Columns [from, to) begin with the first block that has any of them alive: the rows before add zeros to chains at +0.
    void take_strip(std::size_t m, Index batch, Index begin, Index end, bool masked, Word* scratch, Word* buffers) const {
        const StripMember& own = group_.members[m];
        const StripOperand& tile = own.operands[0];
        const Block strip{batch, begin, group_.variants[0], false, scratch, buffers};
        GemmPlan plan = plans_[m];
        plan.begun = begin > 0;
        const Index step = masked && group_.masked ? group_.block_rows : group_.columns;
        for (Index from = 0; from < group_.columns; from += step) {
            Index row = begin;
            for (const StripBlock& block : group_.blocks)
                if (masked && block.begin == row && row < end && block.live <= from) row += block.rows;
            Word* out = (own.out.own == 1 ? result(m, batch) : aside(m, strip)) + from * plan.out_m;
            GemmPlan part = plan;
            part.m = std::min(step, group_.columns - from);
            if (row >= end) {
                // Nothing is alive: a first chunk of zeros is +0, a later one changes nothing.
                if (!plan.begun)
                    for (Index j = 0; j < part.m; ++j) std::fill_n(out + j * plan.out_m, plan.n, 0);
                continue;
            }
            part.k = end - row;
            const Word* rows = tile.member < 0 ? at(m, 0, batch) + rows_to(tile, begin) : buffer(static_cast<std::size_t>(tile.member), strip);
            multiply_alone(part, rows + (row - begin) * group_.columns + from, plan.b.from(at(m, 1, batch), 0, row).at, out, kernels_, scratch);
        }
        if (own.out.own != 1 && end == group_.rows)
            spread(aside(m, strip), group_.columns, own.own, result(m, batch), own.out.column, own.out.own);
    }

    const StripGroup& group_;
    const std::vector<Loop>& loops_;
    const Kernels& kernels_;
    std::vector<std::vector<const Word*>> bases_, code_bases_;
    std::vector<Word*> results_;
    std::vector<GemmPlan> plans_;
    std::vector<Index> aside_;
    Index aside_words_ = 0;
};

}  // namespace

void run_strips(const StripGroup& group, const std::function<const Word*(const Source&)>& base, const std::function<Word*(int)>& result,
                const std::vector<Loop>& loops, const Kernels& kernels, std::span<Workspace> workspaces) {
    const Strips strips(group, base, result, loops, kernels);
    const auto blocks = static_cast<Index>(group.blocks.size()), items = group.per_batch ? group.batches : group.batches * blocks;
    const auto threads = static_cast<int>(std::min<Index>(static_cast<Index>(workspaces.size()), items));
    std::atomic<Index> next = 0;
    on_threads(threads, [&](int thread, int) {
        Word* scratch = at_least(workspaces[static_cast<std::size_t>(thread)].scratch, strips.scratch_words() + strips.buffer_words());
        Word* buffers = scratch + strips.scratch_words();
        for (Index i = next++; i < items; i = next++) {
            if (group.per_batch) strips.batch(i, scratch, buffers);
            else strips.block(i / blocks, group.blocks[static_cast<std::size_t>(i % blocks)], false, scratch, buffers);
        }
    });
}

}  // namespace lockstep
