#include "plan/strip_matcher.hpp"

#include <algorithm>

namespace lockstep {
namespace {

constexpr Index kMatching = 2000;  // operations to find out whether an op joins a group

bool is_dot(const Descriptor& op) { return op.kind == Kind::kFold && static_cast<FoldMode>(op.mode) == FoldMode::kDot; }

}  // namespace

StripMatcher::StripMatcher(const Planner& plan, Index rows, Index columns) : plan_(&plan), axes_{rows, columns}, role_(plan.program.ops.size(), Role::kNone) {
    plan.budget.spend(static_cast<Index>(role_.size()));
}

bool StripMatcher::begin(int op) {
    const Descriptor& own = plan_->program.at(op);
    for (const Index extent : own.extents)
        if (extent > 1) axes_.rows.push_back(extent);
    if (axes_.rows.size() < 2 || axes_.rows.back() != axes_.columns) return false;
    axes_.rows.pop_back();
    axes_.product_rows = axes_.rows.back();
    if (own.is_qdot() ? !shares_columns(axes_, own, views_of(op)) : !join_producer(op)) return false;
    if (!per_batch_) {
        members_.clear();
        role_[static_cast<std::size_t>(op)] = Role::kTile;
        in_memory_ = op;
        return true;
    }
    // Where the columns stand still along an outer axis, its rows are rows of the same product: heads that share their keys.
    const Indices b = *axes_.strides_of(own, views_of(op)[1 - *row_operand(axes_, own, views_of(op))]);
    for (std::size_t axis = axes_.rows.size() - 1; axis-- > 0 && b[axis] == 0;) axes_.product_rows *= axes_.rows[axis];
    return true;
}

bool StripMatcher::recompute(const StripMatcher& other, int op) {
    if (role(op) == Role::kTile) return true;
    axes_ = other.axes_;
    per_batch_ = per_batch_ || other.per_batch_;
    for (const View& view : views_of(op))
        if (other.is(view, Role::kTile) && !recompute(other, view.index)) return false;
    const auto found = std::find_if(other.members_.begin(), other.members_.end(), [&](const Member& m) { return m.op == op; });
    if (found == other.members_.end() || found->kind == MemberKind::kFold) return false;
    insert(found->kind, op, Role::kTile);
    return true;
}

void StripMatcher::grow(int first, const std::vector<bool>& taken, const std::function<bool(int)>& beside) {
    const auto n = static_cast<int>(role_.size());
    plan_->budget.spend(n - first, 8);
    for (int i = first; i < n; ++i) {
        if (!plan_->schedule.needed[static_cast<std::size_t>(i)] || role(i) != Role::kNone) continue;
        bool late = false, reads = false;
        for (const View& view : views_of(i)) {
            late = late || is(view, Role::kPostponed) || is(view, Role::kResult);
            reads = reads || is(view, Role::kTile) || is(view, Role::kRow);
        }
        const bool free = !taken[static_cast<std::size_t>(i)];
        if (late || (reads && !(free && join(i)))) role_[static_cast<std::size_t>(i)] = Role::kPostponed;
        else if (!reads && free && beside(i)) join_beside(i);
    }
}

std::vector<int> StripMatcher::maps_beside() const {
    std::vector<int> found;
    for (const Member& m : members_)
        for (const View& view : views_of(m.op))
            if (m.kind == MemberKind::kMap && is(view, Role::kNone) && view.index >= members_[0].op && plan_->program.at(view.index).kind == Kind::kMap && axes_.is_tile(plan_->program.at(view.index)))
                found.push_back(view.index);
    return found;
}

std::vector<int> StripMatcher::read_outside(const std::vector<std::vector<int>>& readers) const {
    std::vector<int> found;
    for (const Member& m : members_) {
        if (role(m.op) != Role::kTile) continue;
        const auto& by = readers[static_cast<std::size_t>(m.op)];
        plan_->budget.spend(static_cast<Index>(by.size()), static_cast<Index>(members_.size()));
        if (plan_->schedule.kept[static_cast<std::size_t>(m.op)] || std::any_of(by.begin(), by.end(), [&](int r) { return !has(r); })) found.push_back(m.op);
    }
    return found;
}

bool StripMatcher::has(int op) const {
    return std::any_of(members_.begin(), members_.end(), [&](const Member& m) { return m.op == op; });
}

bool StripMatcher::folds_maxima() const {
    return std::any_of(members_.begin(), members_.end(), [&](const Member& m) { return m.kind == MemberKind::kFold && plan_->program.at(m.op).mode == static_cast<int>(FoldMode::kMax); });
}

int StripMatcher::last() const {
    return std::max_element(members_.begin(), members_.end(), [](const Member& a, const Member& b) { return a.op < b.op; })->op;
}

int StripMatcher::first_beside(const StripMatcher& other) const {
    int first = static_cast<int>(role_.size());
    for (const Member& m : members_)
        if (!other.has(m.op)) first = std::min(first, m.op);
    return first;
}

void StripMatcher::insert(MemberKind kind, int op, Role role) {
    members_.push_back({kind, op});
    role_[static_cast<std::size_t>(op)] = role;
}

// Whether the view reads a member at the op's own row (and column).
bool StripMatcher::reads_in_place(const Descriptor& op, const View& view) const {
    const bool tile = role(view.index) == Role::kTile;
    const auto found = axes_.strides_of(op, view);
    if (!found || view.offset != 0 || (tile && !axes_.is_tile(op))) return false;
    Indices due = row_major(tile ? axes_.tile() : axes_.rows);
    if (!tile) due.push_back(0);
    return *found == due;
}

bool StripMatcher::join(int op) {
    if (members_.size() >= kMostMembers) return false;
    plan_->budget.spend(kMatching);
    const Descriptor& own = plan_->program.at(op);
    if (own.kind == Kind::kMap) return join_map(op);
    return own.kind == Kind::kFold && !own.is_qdot() && (join_fold(op) || join_consumer(op));
}

void StripMatcher::join_beside(int op) {
    if (members_.size() >= kMostMembers) return;
    plan_->budget.spend(kMatching);
    if (plan_->program.at(op).kind == Kind::kMap) join_map(op);
    else join_producer(op);
}

// A map of tiles or rows that reads members at its own row and column alone. The rows are cut where its axes are, or stay as they were.
bool StripMatcher::join_map(int op) {
    const Descriptor& map = plan_->program.at(op);
    if (!axes_.is_tile(map) && map.elements != axes_.all_rows) return false;
    const Indices before = axes_.rows;
    if (!axes_.cut_as(map)) return false;
    for (const View& view : views_of(op))
        if ((is(view, Role::kTile) || is(view, Role::kRow)) && !reads_in_place(map, view)) {
            axes_.rows = before;
            return false;
        }
    insert(MemberKind::kMap, op, axes_.is_tile(map) ? Role::kTile : Role::kRow);
    return true;
}

// A fold of tiles along all columns of each row.
bool StripMatcher::join_fold(int op) {
    const Descriptor& fold = plan_->program.at(op);
    if (fold.elements != axes_.all_rows || fold.k != axes_.columns || !along(fold.extents, row_major(fold.extents), axes_.rows)) return false;
    Indices due = row_major(axes_.rows);
    for (Index& stride : due) stride *= axes_.columns;
    due.push_back(0);
    for (const View& view : views_of(op)) {
        if (view.tag == Tag::kIota) return false;
        if (view.tag != Tag::kOp || role(view.index) == Role::kNone) continue;
        if (role(view.index) != Role::kTile || view.offset != 0 || view.strides.back() != 1 || *axes_.strides_of(fold, view) != due) return false;
    }
    insert(MemberKind::kFold, op, Role::kRow);
    return true;
}

bool StripMatcher::join_producer(int op) {
    const Descriptor& own = plan_->program.at(op);
    if (!is_dot(own) || !axes_.is_tile(own) || own.k > kChunk * kChunk) return false;
    const auto left = row_operand(axes_, own, views_of(op));
    if (!left) return false;
    const Indices b = *axes_.strides_of(own, views_of(op)[1 - *left]);
    per_batch_ = per_batch_ || std::any_of(b.begin(), b.end() - 2, [](Index s) { return s != 0; });
    insert(MemberKind::kProducer, op, Role::kTile);
    return true;
}

std::optional<StripMatcher::Match> StripMatcher::consumer(int op) const {
    const Descriptor& own = plan_->program.at(op);
    const auto& views = views_of(op);
    if (!is_dot(own) || own.k > kChunk * kChunk) return std::nullopt;
    for (std::size_t tile = 0; tile < 2; ++tile) {
        const View &read = views[tile], &other = views[1 - tile];
        if (!is(read, Role::kTile) || read.offset != 0 || other.tag == Tag::kIota) continue;
        if (other.tag == Tag::kOp && role(other.index) != Role::kNone) continue;
        if (const auto found = match_consumer(axes_, own, read, other)) return Match{*found, tile};
    }
    return std::nullopt;
}

// Groups whose producers share their columns have no consumers: those are products of whole tensors, whose operands are packed once.
bool StripMatcher::join_consumer(int op) {
    if (!per_batch_) return false;
    const Indices before = axes_.rows;
    for (const View& view : views_of(op))
        if (is(view, Role::kTile)) axes_.cut_as_read(plan_->program.at(op), view);
    if (const auto found = consumer(op)) {
        insert(found->consumer.kind, op, Role::kResult);
        return true;
    }
    axes_.rows = before;
    return false;
}

}  // namespace lockstep
