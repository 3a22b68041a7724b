#include "plan/strip_groups.hpp"

#include <algorithm>

#include "plan/steps.hpp"

namespace lockstep {
namespace {

using Role = StripMatcher::Role;

constexpr Index kBlockWords = 1 << 15;  // of one tile: a few of them stay in L2
constexpr Index kMostRows = 64, kLeastRows = 16;

// Members as they are matched, with their operands on the group's axes.
class Members {
public:
    Members(const Planner& plan, const StripMatcher& match, std::vector<int> stored) : plan_(plan), match_(match), axes_(match.axes()), stored_(std::move(stored)) {
        if (match.in_memory() >= 0) stored_.push_back(match.in_memory());
    }

    // Where the axes of a batch end: rows that producers share stay together.
    std::size_t first_batchless_axis() const { return match_.per_batch() ? axes_.first_product_row() : axes_.rows.size() - 1; }

    StripMember make(const StripMatcher::Member& entry) const {
        const Descriptor& op = plan_.program.at(entry.op);
        const auto& views = plan_.views[static_cast<std::size_t>(entry.op)];
        StripMember m;
        m.kind = entry.kind;
        m.op = entry.op;
        m.tile = match_.role(entry.op) == Role::kTile;
        if (m.tile && !stored(m.op)) m.buffer = 0;  // it has one; assign_buffers() chooses which
        const auto out = [&](const Indices& strides) { return operand(View{Tag::kOp, m.op, 0, {}}, strides, false); };
        const auto in = [&](const View& view, const Indices& strides) { return operand(view, strides, true); };
        if (m.kind == MemberKind::kRowConsumer || m.kind == MemberKind::kColumnConsumer) {
            const auto [found, tile] = *match_.consumer(m.op);
            m.operands = {in(views[tile], row_major(axes_.tile())), in(views[1 - tile], found.other)};
            m.operands[1].own = found.other_own;
            m.own = found.own;
            m.out = out(found.out);
            m.out.own = found.out_own;
            return m;
        }
        Indices strides = row_major(m.tile ? axes_.tile() : axes_.rows);
        if (!m.tile) strides.push_back(0);
        m.out = out(strides);
        if (m.kind == MemberKind::kProducer) {
            const std::size_t left = *row_operand(axes_, op, views);
            for (const std::size_t v : {left, 1 - left}) {
                m.operands.push_back(in(views[v], *axes_.strides_of(op, views[v])));
                m.operands.back().own = views[v].strides.back();
            }
            m.own = op.k;
            return m;
        }
        for (const View& view : views) {
            strides = *axes_.strides_of(op, view);
            if (m.kind == MemberKind::kFold) strides.back() = view.strides.back();  // its terms are the columns
            m.operands.push_back(in(view, strides));
        }
        if (m.kind == MemberKind::kMap) m.instrs = with_read_registers_only(op);
        else m.mode = static_cast<FoldMode>(op.mode);
        return m;
    }

private:
    bool stored(int op) const { return std::find(stored_.begin(), stored_.end(), op) != stored_.end(); }

    StripOperand operand(const View& view, const Indices& strides, bool reads) const {
        StripOperand found;
        found.source = source_of(view);
        if (reads && view.tag == Tag::kOp && match_.role(view.index) == Role::kTile && !stored(view.index))
            for (std::size_t m = 0; m < match_.members().size(); ++m)
                if (match_.members()[m].op == view.index) found.member = static_cast<int>(m);
        const auto lead = strides.begin() + static_cast<std::ptrdiff_t>(first_batchless_axis());
        found.batch.assign(strides.begin(), lead);
        found.lead.assign(lead, strides.end() - 2);
        found.row = strides[strides.size() - 2];
        found.column = strides.back();
        return found;
    }

    const Planner& plan_;
    const StripMatcher& match_;
    const StripAxes& axes_;
    std::vector<int> stored_;
};

// Maps that one map alone reads become part of its loop.
void inline_maps(StripGroup& group) {
    std::vector<std::vector<std::size_t>> readers(group.members.size());
    for (std::size_t m = 0; m < group.members.size(); ++m)
        for (const StripOperand& o : group.members[m].operands)
            if (o.member >= 0) readers[static_cast<std::size_t>(o.member)].push_back(m);
    for (std::size_t m = 0; m < group.members.size(); ++m) {
        StripMember& own = group.members[m];
        if (own.kind != MemberKind::kMap || !own.tile || own.buffer < 0 || readers[m].size() != 1) continue;
        const StripMember& reader = group.members[readers[m][0]];
        if (reader.kind == MemberKind::kMap && reader.tile) own.inlined_by = static_cast<int>(readers[m][0]);
    }
}

// The member at which m's operands are read, by it or by the loop that it is part of.
std::size_t reader_of(const StripGroup& group, std::size_t m) {
    while (group.members[m].inlined_by >= 0) m = static_cast<std::size_t>(group.members[m].inlined_by);
    return m;
}

// Tiles that lie nowhere else get scratch, again free after the last reader. What a column consumer reads stays for a whole strip,
// one chunk of its fold: each such tile has a buffer that no other one has.
void assign_buffers(StripGroup& group) {
    const auto n = group.members.size();
    std::vector<std::size_t> last(n, 0);
    std::vector<bool> by_columns(n, false);
    for (std::size_t m = 0; m < n; ++m)
        for (const StripOperand& o : group.members[m].operands)
            if (o.member >= 0) {
                last[static_cast<std::size_t>(o.member)] = std::max(last[static_cast<std::size_t>(o.member)], reader_of(group, m));
                if (group.members[m].kind == MemberKind::kColumnConsumer) by_columns[static_cast<std::size_t>(o.member)] = true;
            }
    std::vector<int> free;
    for (std::size_t m = 0; m < n; ++m) {
        StripMember& own = group.members[m];
        if (own.tile && own.buffer == 0) {
            own.by_strip = by_columns[m];
            if (own.by_strip) own.buffer = group.strip_buffers++;
            else if (free.empty()) own.buffer = group.block_buffers++;
            else own.buffer = free.back(), free.pop_back();
        }
        for (std::size_t d = 0; d <= m; ++d)
            if (last[d] == m && group.members[d].buffer >= 0 && !group.members[d].by_strip) free.push_back(group.members[d].buffer);
    }
}

// A map over a block: its live columns or, `dead`, the one value that each row has beyond them.
MapPlan plan_block_map(const StripGroup& group, const StripMember& m, Index rows, Index columns, bool dead) {
    const bool tile = m.tile && !dead;
    std::vector<View> views;
    for (const StripOperand& o : m.operands) {
        Index row = o.row, column = o.column;
        if (o.member >= 0) {
            const bool by_strip = group.members[static_cast<std::size_t>(o.member)].by_strip;
            row = dead ? 1 : by_strip ? group.columns : columns;
            column = 1;
        }
        View view{o.source.tag, o.source.index, o.source.tag == Tag::kIota ? o.source.offset : 0, {row}};
        if (tile) view.strides.push_back(column);
        views.push_back(std::move(view));
    }
    if (!tile) return plan_map({rows}, {m.tile ? 1 : m.out.row}, views, m.instrs);
    const Index pitch = m.buffer >= 0 && !m.by_strip ? columns : group.columns;
    return plan_map({rows, columns}, {pitch, 1}, views, m.instrs);
}

// Blocks of one size share their plans.
std::size_t variant(StripGroup& group, Index rows, Index live, Budget& budget) {
    budget.spend(static_cast<Index>(group.variants.size()) + 1);
    for (std::size_t v = 0; v < group.variants.size(); ++v)
        if (group.variants[v].rows == rows && group.variants[v].live == live) return v;
    StripVariant made{rows, live, {}, {}};
    budget.hold(static_cast<Index>(group.members.size()), 2 * sizeof(MapPlan));
    for (const StripMember& m : group.members) {
        const bool map = m.kind == MemberKind::kMap;
        made.maps.push_back(map ? plan_block_map(group, m, rows, live, false) : MapPlan{});
        made.dead.push_back(map && m.dead_known ? plan_block_map(group, m, rows, live, true) : MapPlan{});
    }
    group.variants.push_back(std::move(made));
    return group.variants.size() - 1;
}

void cut_blocks(StripGroup& group, const Indices& live, Budget& budget) {
    group.block_rows = std::min(kMostRows, group.rows);
    while (group.block_rows > kLeastRows && group.block_rows * group.columns > kBlockWords) group.block_rows /= 2;
    // A block lies within one strip and one run of inner rows.
    for (Index begin = 0, end = 0; begin < group.rows; begin = end) {
        end = std::min({begin + group.block_rows, group.rows, (begin / kChunk + 1) * kChunk, (begin / group.inner_rows + 1) * group.inner_rows});
        StripBlock block{begin, end - begin, group.columns, 0, 0};
        budget.hold(1, sizeof block);
        if (!live.empty()) {
            const auto at = live.begin() + begin;
            block.live = std::max<Index>(1, *std::max_element(at, at + block.rows));
        }
        group.masked = group.masked || block.live < group.columns;
        block.masked = variant(group, block.rows, block.live, budget);
        block.whole = variant(group, block.rows, group.columns, budget);
        group.blocks.push_back(block);
    }
}

}  // namespace

StripGroup make_strip_group(const Planner& plan, const StripMatcher& match, std::vector<int> stored, const std::function<bool(int)>& owned, MaskCache& masks) {
    plan.budget.spend(static_cast<Index>(match.members().size() * match.members().size()), 64);
    const Members members(plan, match, std::move(stored));
    const Indices& rows = match.axes().rows;
    const auto lead = rows.begin() + static_cast<std::ptrdiff_t>(members.first_batchless_axis());
    StripGroup group;
    group.batch.assign(rows.begin(), lead);
    group.lead.assign(lead, rows.end() - 1);
    group.batches = product(group.batch);
    group.inner_rows = rows.back();
    group.rows = product(group.lead) * group.inner_rows;
    group.columns = match.axes().columns;
    group.per_batch = match.per_batch();
    for (const StripMatcher::Member& member : match.members()) {
        group.members.push_back(members.make(member));
        if (owned(member.op)) group.absorbed.push_back(member.op);
    }
    std::sort(group.absorbed.begin(), group.absorbed.end());
    inline_maps(group);
    assign_buffers(group);
    cut_blocks(group, live_columns(group, plan.budget, masks), plan.budget);
    for (int op = 0; op < match.last(); ++op)
        if (plan.schedule.needed[static_cast<std::size_t>(op)] && match.role(op) == Role::kPostponed) group.postponed.push_back(op);
    return group;
}

}  // namespace lockstep
