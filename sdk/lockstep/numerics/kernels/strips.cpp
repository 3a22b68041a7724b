// Finding groups of ops that share rows.
#include "strips.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "apply_op.hpp"
#include "axes.hpp"
#include "planner.hpp"

namespace lockstep {
namespace {

using Kind_ = StripMember::Kind;
using Indices = std::vector<Index>;

constexpr Index kBlockWords = 1 << 15;        // of one wide tensor in a block: a few of them stay in L2
constexpr Index kMostRows = 64, kLeastRows = 16;
constexpr Index kMostMaskCells = 1 << 24;     // that are looked at to find what a mask leaves
constexpr Index kDear = 16;                   // operations of a dear instruction
constexpr Index kMatching = 2000;             // operations to find out whether an op joins a group
constexpr std::size_t kMostMembers = 256;     // planning takes their square

Index product(const Indices& extents) { return std::accumulate(extents.begin(), extents.end(), Index{1}, std::multiplies<>()); }

// A model has few masks, and each layer has them again: the ends of the rows of each condition that was looked at.
using Marks = std::map<std::vector<Index>, Indices>;

// One group under construction.
class Group {
public:
    Group(const Program& program, const std::vector<std::vector<View>>& views, const std::vector<bool>& wanted, Index rows, Index columns, Budget& budget)
        : program_(program), views_(views), wanted_(wanted), budget_(budget), all_rows_(rows), columns_(columns), role_(program.ops.size(), Role::kNone) {
        budget.spend(static_cast<Index>(role_.size()));
    }

    // Starts with a product, whose output axes are the group's. One whose operands are the same for every batch is better computed
    // as a whole, where they are packed once; the group then reads what it left in memory. So is a product of codes.
    bool begin(int op) {
        const Descriptor& descriptor = descriptor_of(op);
        rows_axes_.clear();
        for (const Index extent : descriptor.extents)
            if (extent > 1) rows_axes_.push_back(extent);
        if (rows_axes_.size() < 2 || rows_axes_.back() != columns_) return false;
        rows_axes_.pop_back();
        product_rows_ = rows_axes_.back();
        if (descriptor.is_qdot() ? !shares_columns(op) : !add_product(op)) return false;
        if (!apart_) {
            members_.clear();
            role_[static_cast<std::size_t>(op)] = Role::kWide;
            whole_ = op;
            return true;
        }
        const Indices b = *strides_of(descriptor, views_of(op)[1 - *operand_by_rows(op)]);
        for (std::size_t axis = rows_axes_.size() - 1; axis-- > 0 && b[axis] == 0;) product_rows_ *= rows_axes_[axis];
        return true;
    }

    // Takes the other group's axes and computes `op`, a wide member of it, again.
    bool again(const Group& other, int op) {
        if (role_[static_cast<std::size_t>(op)] == Role::kWide) return true;
        rows_axes_ = other.rows_axes_;
        product_rows_ = other.product_rows_;
        apart_ = apart_ || other.apart_;
        for (const View& view : views_of(op))
            if (view.tag == Tag::kOp && other.role(view.index) == Role::kWide && !again(other, view.index)) return false;
        const auto found = std::find_if(other.members_.begin(), other.members_.end(), [&](const Entry& e) { return e.op == op; });
        if (found == other.members_.end() || found->kind == Kind_::kFold) return false;
        insert(found->kind, op, Role::kWide);
        return true;
    }

    // Joins every op of [first, last) that reads members and can, and those `beside` them: products and maps that read none.
    void grow(int first, int last, const std::vector<bool>& taken, const std::function<bool(int)>& beside) {
        budget_.get().spend(last - first, 8);
        for (int i = first; i < last; ++i) {
            if (!wanted_.get()[static_cast<std::size_t>(i)] || role(i) != Role::kNone) continue;
            bool tainted = false, uses = false;
            for (const View& view : views_of(i)) {
                if (view.tag != Tag::kOp) continue;
                tainted = tainted || role(view.index) == Role::kTainted || role(view.index) == Role::kResult;
                uses = uses || role(view.index) == Role::kWide || role(view.index) == Role::kRow;
            }
            if (tainted) role_[static_cast<std::size_t>(i)] = Role::kTainted;
            else if (taken[static_cast<std::size_t>(i)]) uses ? void(role_[static_cast<std::size_t>(i)] = Role::kTainted) : void();
            else if (uses) {
                if (!join(i)) role_[static_cast<std::size_t>(i)] = Role::kTainted;
            } else if (beside(i)) {
                add_beside(i);
            }
        }
    }

    // Wide maps that members read in place, computed since the first member.
    std::vector<int> maps_beside() const {
        std::vector<int> found;
        for (const Entry& e : members_)
            for (const View& view : views_of(e.op)) {
                if (e.kind != Kind_::kMap || view.tag != Tag::kOp || role(view.index) != Role::kNone || view.index < members_[0].op) continue;
                const Descriptor& op = descriptor_of(view.index);
                if (op.kind == Kind::kMap && op.elements == all_rows_ * columns_) found.push_back(view.index);
            }
        return found;
    }

    bool has(int op) const { return std::any_of(members_.begin(), members_.end(), [&](const Entry& e) { return e.op == op; }); }
    bool is_apart() const { return apart_; }
    bool is_wide(int op) const { return role(op) == Role::kWide; }
    bool makes(Kind_ kind) const { return std::any_of(members_.begin(), members_.end(), [&](const Entry& e) { return e.kind == kind; }); }
    bool joins_maxima() const {
        return std::any_of(members_.begin(), members_.end(), [&](const Entry& e) { return e.kind == Kind_::kFold && fold_mode(e.op) == FoldMode::kMax; });
    }
    int last() const { return std::max_element(members_.begin(), members_.end(), [](const Entry& a, const Entry& b) { return a.op < b.op; })->op; }
    int first_of_its_own(const Group* other) const {
        int first = static_cast<int>(program_.get().ops.size());
        for (const Entry& e : members_)
            if (!other || !other->has(e.op)) first = std::min(first, e.op);
        return first;
    }

    // Wide members that ops outside of the group read.
    std::vector<int> read_outside(const std::vector<std::vector<int>>& readers, const std::vector<bool>& kept) const {
        std::vector<int> found;
        for (const Entry& e : members_) {
            if (role(e.op) != Role::kWide) continue;
            const auto& by = readers[static_cast<std::size_t>(e.op)];
            budget_.get().spend(static_cast<Index>(by.size()), static_cast<Index>(members_.size()));
            if (kept[static_cast<std::size_t>(e.op)] || std::any_of(by.begin(), by.end(), [&](int r) { return !has(r); })) found.push_back(e.op);
        }
        return found;
    }

    // `stored`: wide members that lie in memory; `owned`: members that no other group computes.
    StripGroup finish(std::vector<int> stored, const std::function<bool(int)>& owned, Marks& marks);

private:
    enum class Role { kNone, kWide, kRow, kResult, kTainted };
    struct Entry {
        Kind_ kind;
        int op;
    };

    Role role(int op) const { return role_[static_cast<std::size_t>(op)]; }
    const Descriptor& descriptor_of(int op) const { return program_.get().ops[static_cast<std::size_t>(op)]; }
    const std::vector<View>& views_of(int op) const { return views_.get()[static_cast<std::size_t>(op)]; }
    FoldMode fold_mode(int op) const { return static_cast<FoldMode>(descriptor_of(op).mode); }
    Indices wide_axes() const {
        Indices axes = rows_axes_;
        axes.push_back(columns_);
        return axes;
    }
    void insert(Kind_ kind, int op, Role role) {
        members_.push_back({kind, op});
        role_[static_cast<std::size_t>(op)] = role;
    }

    // A view's strides over the group's axes; the last one is the column's, 0 for an op without columns.
    std::optional<Indices> strides_of(const Descriptor& op, const View& view) const {
        const bool wide = op.elements == all_rows_ * columns_;
        const Indices own(view.strides.begin(), view.strides.begin() + static_cast<std::ptrdiff_t>(op.extents.size()));
        auto found = along(op.extents, own, wide ? wide_axes() : rows_axes_);
        if (found && !wide) found->push_back(0);
        return found;
    }

    // Whether the view reads the member at the op's own row (and column).
    bool in_place(const Descriptor& op, const View& view) const {
        const bool wide = role(view.index) == Role::kWide;
        const auto found = strides_of(op, view);
        if (!found || view.offset != 0 || (wide && op.elements != all_rows_ * columns_)) return false;
        Indices due = wide ? row_major(wide_axes()) : row_major(rows_axes_);
        if (!wide) due.push_back(0);
        return *found == due;
    }

    bool join(int op) {
        if (members_.size() >= kMostMembers) return false;
        budget_.get().spend(kMatching);
        const Descriptor& descriptor = descriptor_of(op);
        if (descriptor.kind == Kind::kMap) return join_map(op, descriptor);
        if (descriptor.kind != Kind::kFold || descriptor.is_qdot()) return false;
        return join_fold(op, descriptor) || join_result(op, descriptor);
    }

    void add_beside(int op) {
        if (members_.size() >= kMostMembers) return;
        budget_.get().spend(kMatching);
        const Descriptor& descriptor = descriptor_of(op);
        if (descriptor.kind == Kind::kMap) join_map(op, descriptor);
        else add_product(op);
    }

    bool join_map(int op, const Descriptor& descriptor) {
        const bool wide = descriptor.elements == all_rows_ * columns_;
        if (!wide && descriptor.elements != all_rows_) return false;
        const Indices before = rows_axes_;
        auto axes = refined(wide ? wide_axes() : rows_axes_, cuts_of(descriptor.extents));
        if (!axes) return false;
        if (wide) {
            if (axes->back() != columns_) return false;
            axes->pop_back();
        }
        rows_axes_ = *axes;
        for (const View& view : views_of(op))
            if (view.tag == Tag::kOp && (role(view.index) == Role::kWide || role(view.index) == Role::kRow) && !in_place(descriptor, view)) {
                rows_axes_ = before;
                return false;
            }
        insert(Kind_::kMap, op, wide ? Role::kWide : Role::kRow);
        return true;
    }

    bool join_fold(int op, const Descriptor& descriptor) {
        if (descriptor.elements != all_rows_ || descriptor.k != columns_ || !along(descriptor.extents, row_major(descriptor.extents), rows_axes_)) return false;
        Indices due = row_major(rows_axes_);
        for (Index& stride : due) stride *= columns_;
        due.push_back(0);
        for (const View& view : views_of(op)) {
            if (view.tag == Tag::kIota) return false;
            if (view.tag != Tag::kOp || role(view.index) == Role::kNone) continue;
            if (role(view.index) != Role::kWide || view.offset != 0 || view.strides.back() != 1 || *strides_of(descriptor, view) != due) return false;
        }
        insert(Kind_::kFold, op, Role::kRow);
        return true;
    }

    bool add_product(int op) {
        const Descriptor& descriptor = descriptor_of(op);
        if (descriptor.kind != Kind::kFold || fold_mode(op) != FoldMode::kDot || descriptor.elements != all_rows_ * columns_ ||
            descriptor.k > kChunk * kChunk)
            return false;
        const auto left = operand_by_rows(op);
        if (!left) return false;
        const Indices b = *strides_of(descriptor, views_of(op)[1 - *left]);
        apart_ = apart_ || std::any_of(b.begin(), b.end() - 2, [](Index s) { return s != 0; });
        insert(Kind_::kProduct, op, Role::kWide);
        return true;
    }

    // Whether all rows of a product of codes are multiplied with the same columns.
    bool shares_columns(int op) const {
        const auto& views = views_of(op);
        std::vector<Indices> strides;
        for (const View& view : views) {
            const auto found = strides_of(descriptor_of(op), view);
            if (!found) return false;
            strides.push_back(*found);
        }
        const auto of_columns = [&](std::size_t side) {
            const auto none = [](const Indices& s) { return std::all_of(s.begin(), s.end() - 1, [](Index stride) { return stride == 0; }); };
            return none(strides[side]) && none(strides[side + 2]);
        };
        const auto of_rows = [&](std::size_t side) { return strides[side].back() == 0 && strides[side + 2].back() == 0; };
        return (of_rows(0) && of_columns(1)) || (of_rows(1) && of_columns(0));
    }

    // The operand of a product that does not depend on the column, if the other one does not depend on the row.
    std::optional<std::size_t> operand_by_rows(int op) const {
        for (std::size_t left = 0; left < 2; ++left) {
            const View &a = views_of(op)[left], &b = views_of(op)[1 - left];
            const auto a_strides = strides_of(descriptor_of(op), a), b_strides = strides_of(descriptor_of(op), b);
            if (!a_strides || !b_strides || a.tag == Tag::kIota || b.tag == Tag::kIota) return std::nullopt;
            const auto rows = b_strides->begin() + static_cast<std::ptrdiff_t>(first_row_axis());
            const bool shared = std::all_of(rows, b_strides->end() - 1, [](Index s) { return s == 0; });
            if (a_strides->back() == 0 && b_strides->back() != 0 && shared) return left;
        }
        return std::nullopt;
    }

    // How a dot uses a wide member up: the strides of its result and of its other operand over the group's axes.
    struct Result {
        Kind_ kind;
        std::size_t wide;         // which operand
        Indices out, other;       // batch, row, column
        Index out_own, other_own, own;
    };
    std::optional<Result> result_of(int op) const {
        const Descriptor& descriptor = descriptor_of(op);
        const auto& views = views_of(op);
        if (fold_mode(op) != FoldMode::kDot || descriptor.k > kChunk * kChunk) return std::nullopt;
        for (std::size_t w = 0; w < 2; ++w) {
            const View &wide = views[w], &other = views[1 - w];
            if (wide.tag != Tag::kOp || role(wide.index) != Role::kWide || wide.offset != 0 || other.tag == Tag::kIota) continue;
            if (other.tag == Tag::kOp && role(other.index) != Role::kNone) continue;
            if (auto found = match_result(descriptor, wide, other)) {
                found->wide = w;
                return found;
            }
        }
        return std::nullopt;
    }

    std::optional<Result> match_result(const Descriptor& op, const View& wide, const View& other) const {
        const Indices axes = wide_axes(), steps = row_major(axes), out = row_major(op.extents);
        const std::size_t column = axes.size() - 1, row = first_row_axis();
        Result found{};
        if (wide.strides.back() == 1 && op.k == columns_) found.kind = Kind_::kByRows;
        else if (wide.strides.back() == columns_ && op.k == product_rows_) found.kind = Kind_::kByColumns;
        else return std::nullopt;
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
        if (found.kind == Kind_::kByRows) match(column, column, 0, other.strides.back());
        else match(row, column - 1, 0, other.strides.back());
        for (std::size_t e = 0; e < op.extents.size(); ++e) {
            if (op.extents[e] == 1) continue;
            if (wide.strides[e] == 0) {
                if (found.own != 1) return std::nullopt;
                found.own = op.extents[e];
                found.out_own = out[e];
                found.other_own = other.strides[e];
                continue;
            }
            std::size_t last = 0;
            while (last < axes.size() && (matched[last] || steps[last] != wide.strides[e])) ++last;
            if (last == axes.size()) return std::nullopt;
            std::size_t first = last;
            Index covered = axes[last];
            while (covered < op.extents[e] && first > 0 && !matched[first - 1]) covered *= axes[--first];
            if (covered != op.extents[e]) return std::nullopt;
            match(first, last, out[e], other.strides[e]);
        }
        // Its other operand does not depend on the row (column) that stays.
        if (std::find(matched.begin(), matched.end(), false) != matched.end()) return std::nullopt;
        const auto stays = found.other.begin() + static_cast<std::ptrdiff_t>(found.kind == Kind_::kByRows ? row : column);
        const auto end = found.kind == Kind_::kByRows ? found.other.end() - 1 : found.other.end();
        return std::all_of(stays, end, [](Index s) { return s == 0; }) ? std::optional(found) : std::nullopt;
    }

    // The outermost of the axes that are a product's rows.
    std::size_t first_row_axis() const {
        std::size_t axis = rows_axes_.size();
        for (Index covered = 1; covered < product_rows_;) covered *= rows_axes_[--axis];
        return std::min(axis, rows_axes_.size() - 1);
    }

    bool join_result(int op, const Descriptor& descriptor) {
        if (!apart_) return false;
        const Indices before = rows_axes_;
        for (const View& view : views_of(op))
            if (view.tag == Tag::kOp && role(view.index) == Role::kWide) cut_rows(descriptor, view);
        if (const auto found = result_of(op)) {
            insert(found->kind, op, Role::kResult);
            return true;
        }
        rows_axes_ = before;
        return false;
    }

    // Cuts the rows where the axes of a view of a wide member do.
    void cut_rows(const Descriptor& op, const View& wide) {
        Indices cuts;
        for (std::size_t e = 0; e < op.extents.size(); ++e)
            if (op.extents[e] > 1 && wide.strides[e] >= columns_ && wide.strides[e] % columns_ == 0) {
                cuts.push_back(wide.strides[e] / columns_);
                cuts.push_back(cuts.back() * op.extents[e]);
            }
        if (const auto axes = refined(rows_axes_, cuts)) rows_axes_ = *axes;
    }

    StripOperand operand(const View& view, const Indices& strides, const std::vector<int>& stored) const {
        StripOperand found;
        found.source = source_of(view);
        const bool buffered = view.tag == Tag::kOp && role(view.index) == Role::kWide && std::find(stored.begin(), stored.end(), view.index) == stored.end();
        if (buffered)
            for (std::size_t m = 0; m < members_.size(); ++m)
                if (members_[m].op == view.index) found.member = static_cast<int>(m);
        const auto lead = strides.begin() + static_cast<std::ptrdiff_t>(first_batchless_axis());
        found.batch.assign(strides.begin(), lead);
        found.lead.assign(lead, strides.end() - 2);
        found.row = strides[strides.size() - 2];
        found.column = strides.back();
        return found;
    }

    // Where the axes of a batch end: rows that products share stay together.
    std::size_t first_batchless_axis() const { return apart_ ? first_row_axis() : rows_axes_.size() - 1; }

    StripMember member(const Entry& entry, const std::vector<int>& stored) const;
    void assign_buffers(StripGroup& group) const;
    void find_masks(StripGroup& group) const;

    std::reference_wrapper<const Program> program_;
    std::reference_wrapper<const std::vector<std::vector<View>>> views_;
    std::reference_wrapper<const std::vector<bool>> wanted_;
    std::reference_wrapper<Budget> budget_;
    Index all_rows_, columns_;
    Indices rows_axes_;
    Index product_rows_ = 0;  // rows that multiply the same columns: the innermost of rows_axes_
    bool apart_ = false;
    int whole_ = -1;  // the product that the group reads from memory
    std::vector<Role> role_;
    std::vector<Entry> members_;
};

StripMember Group::member(const Entry& entry, const std::vector<int>& stored) const {
    const Descriptor& op = descriptor_of(entry.op);
    StripMember m;
    m.kind = entry.kind;
    m.op = entry.op;
    m.wide = role(entry.op) == Role::kWide;
    const auto& views = views_of(entry.op);
    View whole{Tag::kOp, entry.op, 0, row_major(op.extents)};
    if (entry.kind == Kind_::kByRows || entry.kind == Kind_::kByColumns) {
        const Result result = *result_of(entry.op);
        const View &wide = views[result.wide], &other = views[1 - result.wide];
        m.operands = {operand(wide, row_major(wide_axes()), stored), operand(other, result.other, stored)};
        m.operands[1].own = result.other_own;
        m.own = result.own;
        m.out = operand(whole, result.out, {entry.op});
        m.out.own = result.out_own;
        return m;
    }
    Indices out = m.wide ? row_major(wide_axes()) : row_major(rows_axes_);
    if (!m.wide) out.push_back(0);
    m.out = operand(whole, out, {entry.op});
    if (entry.kind == Kind_::kProduct) {
        const std::size_t left = *operand_by_rows(entry.op);
        for (const std::size_t v : {left, 1 - left}) {
            m.operands.push_back(operand(views[v], *strides_of(op, views[v]), stored));
            m.operands.back().own = views[v].strides.back();
        }
        m.own = op.k;
        return m;
    }
    for (const View& view : views) {
        Indices strides = *strides_of(op, view);
        if (entry.kind == Kind_::kFold) strides.back() = view.strides.back();
        m.operands.push_back(operand(view, strides, stored));
    }
    if (entry.kind == Kind_::kMap) m.instrs = with_read_registers_only(op);
    else m.mode = fold_mode(entry.op);
    return m;
}

// Maps that one map alone reads become part of its loop.
void inline_maps(StripGroup& group) {
    std::vector<std::vector<std::size_t>> readers(group.members.size());
    for (std::size_t m = 0; m < group.members.size(); ++m)
        for (const StripOperand& o : group.members[m].operands)
            if (o.member >= 0) readers[static_cast<std::size_t>(o.member)].push_back(m);
    for (std::size_t m = 0; m < group.members.size(); ++m) {
        StripMember& own = group.members[m];
        if (own.kind != Kind_::kMap || !own.wide || own.buffer < 0 || readers[m].size() != 1) continue;
        const StripMember& reader = group.members[readers[m][0]];
        if (reader.kind == Kind_::kMap && reader.wide) own.inlined_by = static_cast<int>(readers[m][0]);
    }
}

// The member at which m's operands are read, by it or by the loop that it is part of.
std::size_t reader_of(const StripGroup& group, std::size_t m) {
    while (group.members[m].inlined_by >= 0) m = static_cast<std::size_t>(group.members[m].inlined_by);
    return m;
}

// Wide members that lie nowhere else get scratch, again free after the last reader.
void Group::assign_buffers(StripGroup& group) const {
    const auto n = group.members.size();
    std::vector<std::size_t> last(n, 0);
    std::vector<bool> by_columns(n, false);
    for (std::size_t m = 0; m < n; ++m)
        for (const StripOperand& o : group.members[m].operands)
            if (o.member >= 0) {
                last[static_cast<std::size_t>(o.member)] = std::max(last[static_cast<std::size_t>(o.member)], reader_of(group, m));
                if (group.members[m].kind == Kind_::kByColumns) by_columns[static_cast<std::size_t>(o.member)] = true;
            }
    std::vector<int> free;
    for (std::size_t m = 0; m < n; ++m) {
        StripMember& own = group.members[m];
        if (own.wide && own.buffer == 0) {
            own.by_strip = by_columns[m];
            if (own.by_strip) own.buffer = group.strip_buffers++;
            else if (free.empty()) own.buffer = group.block_buffers++;
            else own.buffer = free.back(), free.pop_back();
        }
        for (std::size_t d = 0; d <= m; ++d)
            if (last[d] == m && group.members[d].buffer >= 0 && !group.members[d].by_strip) free.push_back(group.members[d].buffer);
    }
}

// --- masks --------------------------------------------------------------------------------------------------------------

// What a register holds in the dead columns of a row.
enum class Dead { kOneValue, kOfColumn, kUnknown };  // kOfColumn: a function of row and column alone

// The columns that the masks leave, row by row: nothing is computed beyond them. A mask is a SELECT by a condition on row and
// column between a known value and one that may be anything.
class Masks {
public:
    Masks(StripGroup& group, const Kernels& kernels, Budget& budget, Marks& marks) : group_(group), kernels_(kernels), budget_(budget), marks_(marks) {}

    // Live columns of each row; empty if everything has to be computed.
    Indices find() {
        if (group_.rows > kMostMaskCells / group_.columns) return {};
        budget_.hold(group_.rows, sizeof(Index));
        live_.assign(static_cast<std::size_t>(group_.rows), 0);
        bool any = false;
        for (StripMember& m : group_.members) {
            if (!acceptable(m)) return {};
            if (m.kind != Kind_::kMap || !m.wide) continue;
            any = follow(m) || any;
        }
        return any ? live_ : Indices{};
    }

private:
    bool known(const StripOperand& o) const { return o.member >= 0 && group_.members[static_cast<std::size_t>(o.member)].dead_known; }
    bool from_product(const StripOperand& o) const {
        return o.member >= 0 && group_.members[static_cast<std::size_t>(o.member)].kind == Kind_::kProduct;
    }

    // Whether a member can do without the dead columns of what it reads.
    bool acceptable(const StripMember& m) const {
        if (m.wide && m.buffer < 0) return false;
        switch (m.kind) {
        case Kind_::kMap:
        case Kind_::kProduct: return true;
        case Kind_::kByRows:
        case Kind_::kByColumns: return known(m.operands[0]);
        case Kind_::kFold: break;
        }
        if (m.mode != FoldMode::kDot) return known(m.operands[0]);
        const StripOperand &a = m.operands[0], &b = m.operands[1];
        return (known(a) && (known(b) || from_product(b))) || (known(b) && from_product(a));
    }

    Dead operand_state(const StripOperand& o) const {
        if (o.member >= 0) return known(o) ? Dead::kOneValue : Dead::kUnknown;
        if (o.column == 0) return Dead::kOneValue;
        return o.source.tag == Tag::kIota && same_in_batches(o) ? Dead::kOfColumn : Dead::kUnknown;
    }
    static bool same_in_batches(const StripOperand& o) {
        return std::all_of(o.batch.begin(), o.batch.end(), [](Index s) { return s == 0; });
    }

    // Whether the map masks.
    bool follow(StripMember& m) {
        std::vector<Dead> state;
        for (const StripOperand& o : m.operands) state.push_back(operand_state(o));
        const std::vector<bool> pure = pure_registers(m);
        bool masks = false;
        for (std::size_t i = 0; i < m.instrs.size(); ++i) {
            const Instr& in = m.instrs[i];
            const int arguments = arity(in.op);
            const auto of = [&](int argument, std::uint8_t reg) { return argument < arguments ? state[reg] : Dead::kOneValue; };
            const Dead a = of(0, in.a), b = of(1, in.b), c = of(2, in.c);
            Dead own = std::max({a, b, c});
            if (static_cast<Op>(in.op) == Op::SELECT && a == Dead::kOfColumn && own == Dead::kUnknown && std::min(b, c) == Dead::kOneValue &&
                pure[in.a]) {
                mark(m, pure, in.a, b == Dead::kUnknown);
                own = Dead::kOneValue;
                masks = true;
            }
            state.push_back(own);
        }
        m.dead_known = state.back() == Dead::kOneValue;
        return masks;
    }

    // The registers that are computed from immediates alone and iotas that are the same in every batch.
    static std::vector<bool> pure_registers(const StripMember& m) {
        std::vector<bool> pure;
        for (const StripOperand& o : m.operands) pure.push_back(o.member < 0 && o.source.tag == Tag::kIota && same_in_batches(o));
        for (const Instr& in : m.instrs) {
            const int arguments = arity(in.op);
            pure.push_back((arguments < 1 || pure[in.a]) && (arguments < 2 || pure[in.b]) && (arguments < 3 || pure[in.c]));
        }
        return pure;
    }

    // Extends each row's live columns to the last one whose condition is `live`.
    void mark(const StripMember& m, const std::vector<bool>& pure, std::size_t condition, bool live) {
        const auto [found, made] = marks_.try_emplace(key_of(m, pure, condition, live));
        if (made) found->second = ends(m, pure, condition, live);
        for (std::size_t row = 0; row < live_.size(); ++row) live_[row] = std::max(live_[row], found->second[row]);
    }

    // All that the ends depend on.
    std::vector<Index> key_of(const StripMember& m, const std::vector<bool>& pure, std::size_t condition, bool live) const {
        std::vector<Index> key{group_.rows, group_.columns, group_.inner_rows, static_cast<Index>(condition), live};
        key.insert(key.end(), group_.lead.begin(), group_.lead.end());
        for (std::size_t reg = 0; reg <= condition; ++reg) {
            if (!pure[reg]) continue;
            key.push_back(static_cast<Index>(reg));
            if (reg < m.operands.size()) {
                const StripOperand& o = m.operands[reg];
                key.insert(key.end(), {o.source.offset, o.row, o.column});
                key.insert(key.end(), o.lead.begin(), o.lead.end());
            } else {
                const Instr& in = m.instrs[reg - m.operands.size()];
                key.insert(key.end(), {in.op, in.a, in.b, in.c, in.imm});
            }
        }
        return key;
    }

    // Per row, the last column whose condition is `live`, and one more.
    Indices ends(const StripMember& m, const std::vector<bool>& pure, std::size_t condition, bool live) const {
        const f32::FloatEnvironment environment;
        const auto columns = static_cast<std::size_t>(group_.columns);
        Index operations = 1;
        for (std::size_t reg = 0; reg <= condition; ++reg)
            if (pure[reg]) operations += reg >= m.operands.size() && is_dear(m.instrs[reg - m.operands.size()].op) ? kDear : 1;
        budget_.spend(group_.rows * group_.columns, operations);
        budget_.hold(group_.rows, sizeof(Index));
        std::vector<std::vector<Word>> values(condition + 1, std::vector<Word>(columns));
        Indices found(static_cast<std::size_t>(group_.rows), 0);
        for (Index row = 0; row < group_.rows; ++row) {
            for (std::size_t reg = 0; reg <= condition; ++reg) {
                if (!pure[reg]) continue;
                std::vector<Word>& value = values[reg];
                if (reg < m.operands.size()) {
                    const StripOperand& o = m.operands[reg];
                    const Index start = o.source.offset + row_offset(o, group_.lead, group_.inner_rows, row);
                    for (std::size_t j = 0; j < columns; ++j) value[j] = static_cast<Word>(start + static_cast<Index>(j) * o.column);
                    continue;
                }
                const Instr& in = m.instrs[reg - m.operands.size()];
                if (static_cast<Op>(in.op) == Op::IMM) std::fill(value.begin(), value.end(), in.imm);
                else kernels_.apply_op(in.op, values[in.a].data(), values[in.b].data(), values[in.c].data(), value.data(), columns);
            }
            Index& end = found[static_cast<std::size_t>(row)];
            for (Index j = group_.columns; j > end; --j)
                if ((values[condition][static_cast<std::size_t>(j - 1)] != 0) == live) end = j;
        }
        return found;
    }

    StripGroup& group_;
    const Kernels& kernels_;
    Budget& budget_;
    Marks& marks_;
    Indices live_;
};

// --- blocks -------------------------------------------------------------------------------------------------------------

MapPlan plan_block_map(const StripGroup& group, const StripMember& m, Index rows, Index columns, bool dead) {
    const bool wide = m.wide && !dead;
    std::vector<View> views;
    for (const StripOperand& o : m.operands) {
        Index row = o.row, column = o.column;
        if (o.member >= 0) {
            const bool by_strip = group.members[static_cast<std::size_t>(o.member)].by_strip;
            row = dead ? 1 : by_strip ? group.columns : columns;
            column = 1;
        }
        View view{o.source.tag, o.source.index, o.source.tag == Tag::kIota ? o.source.offset : 0, {row}};
        if (wide) view.strides.push_back(column);
        views.push_back(std::move(view));
    }
    std::vector<const View*> pointers;
    for (const View& view : views) pointers.push_back(&view);
    if (!wide) return plan_map({rows}, {m.wide ? 1 : m.out.row}, pointers, m.instrs);
    const Index pitch = m.buffer >= 0 && !m.by_strip ? columns : group.columns;
    return plan_map({rows, columns}, {pitch, 1}, pointers, m.instrs);
}

std::size_t variant(StripGroup& group, Index rows, Index live, Budget& budget) {
    budget.spend(static_cast<Index>(group.variants.size()) + 1);
    for (std::size_t v = 0; v < group.variants.size(); ++v)
        if (group.variants[v].rows == rows && group.variants[v].live == live) return v;
    StripVariant made{rows, live, {}, {}};
    budget.hold(static_cast<Index>(group.members.size()), 2 * sizeof(MapPlan));
    for (const StripMember& m : group.members) {
        const bool map = m.kind == Kind_::kMap;
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

// --- loops --------------------------------------------------------------------------------------------------------------

namespace {

// The operands and instructions of a map, and of those that it takes in, in one numbering.
class LoopOf {
public:
    LoopOf(const StripGroup& group, std::size_t m) : group_(group) {
        collect(m);
        fits_ = fits_ && operands_.size() <= kMaxLoopOperands;
        if (!fits_) return;
        const int result = emit(m);
        loop_.members = loop_.outputs = {static_cast<std::size_t>(group.members[m].op)};
        loop_.results = {result};
        loop_.plan.operands = static_cast<int>(operands_.size());
        loop_.plan.outputs = 1;
        loop_.plan.elements = group.batches * group.rows * group.columns;
        for (std::size_t v = 0; v < operands_.size(); ++v) loop_.plan.operand[v] = form_of(operands_[v]);
        fits_ = loop_.instrs.size() <= kMaxLoopInstrs;
    }
    bool fits() const { return fits_; }
    Loop& loop() { return loop_; }
    std::vector<StripOperand>& operands() { return operands_; }

private:
    bool taken_in(const StripOperand& o, std::size_t m) const {
        return o.member >= 0 && group_.members[static_cast<std::size_t>(o.member)].inlined_by == static_cast<int>(m);
    }

    void collect(std::size_t m) {
        for (const StripOperand& o : group_.members[m].operands) {
            if (taken_in(o, m)) collect(static_cast<std::size_t>(o.member));
            else operands_.push_back(o);
            fits_ = fits_ && (o.member >= 0 || o.source.tag == Tag::kIota || o.column == 0 || o.column == 1);
        }
    }

    // The register of the map's result; operands are met in the order of collect().
    int emit(std::size_t m) {
        const StripMember& own = group_.members[m];
        std::vector<int> registers;
        for (const StripOperand& o : own.operands) registers.push_back(taken_in(o, m) ? emit(static_cast<std::size_t>(o.member)) : next_++);
        for (const Instr& in : own.instrs) {
            const int arguments = arity(in.op);
            const auto at = [&](int k, std::uint8_t r) { return arguments > k ? registers[r] : -1; };
            loop_.instrs.push_back(LoopInstr{in.op, at(0, in.a), at(1, in.b), at(2, in.c), in.imm});
            registers.push_back(static_cast<int>(operands_.size() + loop_.instrs.size()) - 1);
        }
        return registers.back();
    }

    static LoopOperand form_of(const StripOperand& o) {
        LoopOperand found{};
        found.iota = o.member < 0 && o.source.tag == Tag::kIota;
        found.step = static_cast<Word>(o.column);
        const auto none = [](Index s) { return s == 0; };
        const bool one_per_batch = std::all_of(o.batch.begin(), o.batch.end(), none) && std::all_of(o.lead.begin(), o.lead.end(), none);
        if (o.member >= 0 || (!found.iota && o.column == 1)) found.form = Form::kElement;
        else if (o.column == 0 && o.row == 0 && one_per_batch) found.form = Form::kUniform;
        else found.form = found.iota ? Form::kIota : Form::kRow;
        return found;
    }

    const StripGroup& group_;
    std::vector<StripOperand> operands_;
    Loop loop_;
    int next_ = 0;
    bool fits_ = true;
};

}  // namespace

void add_loops(StripGroup& group, std::vector<Loop>& loops) {
    for (std::size_t m = 0; m < group.members.size(); ++m) {
        StripMember& own = group.members[m];
        if (own.kind != Kind_::kMap || !own.wide || own.instrs.empty()) continue;
        LoopOf found(group, m);
        if (!found.fits()) continue;
        own.loop = static_cast<int>(loops.size());
        own.loop_operands = std::move(found.operands());
        loops.push_back(std::move(found.loop()));
    }
}

StripGroup Group::finish(std::vector<int> stored, const std::function<bool(int)>& owned, Marks& marks) {
    budget_.get().spend(static_cast<Index>(members_.size() * members_.size()), 64);
    StripGroup group;
    if (whole_ >= 0) stored.push_back(whole_);
    const auto lead = rows_axes_.begin() + static_cast<std::ptrdiff_t>(first_batchless_axis());
    group.batch.assign(rows_axes_.begin(), lead);
    group.lead.assign(lead, rows_axes_.end() - 1);
    group.batches = lockstep::product(group.batch);
    group.inner_rows = rows_axes_.back();
    group.rows = lockstep::product(group.lead) * group.inner_rows;
    group.columns = columns_;
    group.apart = apart_;
    for (const Entry& entry : members_) {
        group.members.push_back(member(entry, stored));
        StripMember& m = group.members.back();
        if (m.wide && std::find(stored.begin(), stored.end(), m.op) == stored.end()) m.buffer = 0;
        if (owned(entry.op)) group.absorbed.push_back(entry.op);
    }
    std::sort(group.absorbed.begin(), group.absorbed.end());
    inline_maps(group);
    assign_buffers(group);
    cut_blocks(group, Masks(group, kScalarKernels, budget_, marks).find(), budget_);
    for (int op = 0; op < last(); ++op)
        if (wanted_.get()[static_cast<std::size_t>(op)] && role(op) == Role::kTainted) group.postponed.push_back(op);
    return group;
}

std::vector<StripGroup> plan_strips(const Program& program, const std::vector<std::vector<View>>& views, const std::vector<bool>& wanted,
                                    std::vector<bool> taken, Budget& budget) {
    const auto n = static_cast<int>(program.ops.size());
    std::vector<std::vector<int>> readers(program.ops.size());
    for (int i = 0; i < n; ++i)
        if (wanted[static_cast<std::size_t>(i)])
            for (const View& view : views[static_cast<std::size_t>(i)])
                if (view.tag == Tag::kOp) readers[static_cast<std::size_t>(view.index)].push_back(i);
    std::vector<bool> kept(program.ops.size(), false), within(program.ops.size(), false);
    for (const Alias& alias : program.outputs)
        if (alias.kind == 1) kept[static_cast<std::size_t>(alias.index)] = true;

    std::vector<StripGroup> groups;
    Marks marks;
    const auto never = [](int) { return false; };
    const auto accept = [&](StripGroup group) {
        for (const int op : group.absorbed) taken[static_cast<std::size_t>(op)] = true;
        std::fill(within.begin() + group.absorbed.front(), within.begin() + group.absorbed.back() + 1, true);
        groups.push_back(std::move(group));
    };
    // A group runs in the place of its last op, and what it postpones right after: no other group may lie around or between its own.
    const auto clear = [&](int first, int last) { return std::none_of(within.begin() + first, within.begin() + last + 1, [](bool w) { return w; }); };

    for (int seed = 0; seed < n; ++seed) {
        const Descriptor& op = program.ops[static_cast<std::size_t>(seed)];
        if (!wanted[static_cast<std::size_t>(seed)] || taken[static_cast<std::size_t>(seed)] || op.kind != Kind::kFold || op.extents.size() < 2 ||
            op.extents.back() < 2 || (static_cast<FoldMode>(op.mode) != FoldMode::kDot && !op.is_qdot()))
            continue;
        const Index columns = op.extents.back(), rows = op.elements / columns;
        Group forward(program, views, wanted, rows, columns, budget);
        if (!forward.begin(seed)) continue;
        forward.grow(seed + 1, n, taken, never);
        if (!forward.joins_maxima()) continue;
        if (const std::vector<int> maps = forward.maps_beside(); !maps.empty()) {
            forward = Group(program, views, wanted, rows, columns, budget);
            forward.begin(seed);
            budget.spend(n, static_cast<Index>(maps.size()));
            forward.grow(seed + 1, n, taken, [&](int op) { return std::find(maps.begin(), maps.end(), op) != maps.end(); });
        }
        if (!forward.joins_maxima() || !clear(seed, forward.last())) continue;

        std::vector<int> stored = forward.read_outside(readers, kept);
        Group backward(program, views, wanted, rows, columns, budget);
        bool again = forward.is_apart() && !stored.empty();
        for (const int wide : stored) again = again && !kept[static_cast<std::size_t>(wide)] && backward.again(forward, wide);
        if (again) {
            // Products that some op reads together with what is computed again.
            const auto beside = [&](int candidate) {
                const auto& by = readers[static_cast<std::size_t>(candidate)];
                budget.spend(static_cast<Index>(by.size()), 16);
                return std::any_of(by.begin(), by.end(), [&](int reader) {
                    const auto& read = views[static_cast<std::size_t>(reader)];
                    return std::any_of(read.begin(), read.end(), [&](const View& view) { return view.tag == Tag::kOp && backward.is_wide(view.index); });
                });
            };
            backward.grow(forward.last() + 1, n, taken, beside);
            for (const int wide : stored) budget.spend(static_cast<Index>(readers[static_cast<std::size_t>(wide)].size()), kMostMembers);
            for (const int wide : stored)
                for (const int reader : readers[static_cast<std::size_t>(wide)]) again = again && (forward.has(reader) || backward.has(reader));
            const std::vector<int> outside = backward.read_outside(readers, kept);
            const bool own = std::any_of(outside.begin(), outside.end(), [&](int wide) { return !forward.has(wide); });
            again = again && !own && clear(backward.first_of_its_own(&forward), backward.last());
        }
        accept(forward.finish(again ? std::vector<int>{} : stored, [](int) { return true; }, marks));
        if (again) accept(backward.finish({}, [&](int own) { return !forward.has(own); }, marks));
    }
    return groups;
}

}  // namespace lockstep
