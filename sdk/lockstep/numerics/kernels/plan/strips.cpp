// Attention, softmax and cross-entropy: which ops share rows.
#include <algorithm>
#include <optional>

#include "plan/passes.hpp"
#include "plan/strip_groups.hpp"

namespace lockstep {
namespace {

// From the first op to the last one that they absorb, no two groups overlap: what one of them postpones never is due in another one.
class StripFinder {
public:
    explicit StripFinder(const Planner& plan) : plan_(plan), n_(static_cast<int>(plan.program.ops.size())), readers_(plan.views.size()), within_(plan.views.size(), false) {
        for (std::size_t i = 0; i < plan.views.size(); ++i) {
            taken_.push_back(!plan.schedule.alone(i));
            if (!plan.schedule.needed[i]) continue;
            for (const View& view : plan.views[i])
                if (view.tag == Tag::kOp) readers_[static_cast<std::size_t>(view.index)].push_back(static_cast<int>(i));
        }
    }

    std::vector<StripGroup> find() {
        for (int seed = 0; seed < n_; ++seed) {
            const auto forward = match_forward(seed);
            if (!forward || !clear(seed, forward->last())) continue;
            std::vector<int> stored = forward->read_outside(readers_);
            const auto backward = match_backward(*forward, stored);
            if (backward) stored.clear();
            accept(make_strip_group(plan_, *forward, std::move(stored), [](int) { return true; }, masks_));
            if (backward) accept(make_strip_group(plan_, *backward, {}, [&](int own) { return !forward->has(own); }, masks_));
        }
        return std::move(groups_);
    }

private:
    // A group that a product begins and that folds maxima, as a softmax does, with the maps that it reads beside: a mask, a bias.
    std::optional<StripMatcher> match_forward(int seed) const {
        const auto own = static_cast<std::size_t>(seed);
        const Descriptor& op = plan_.program.ops[own];
        if (!plan_.schedule.needed[own] || taken_[own] || op.kind != Kind::kFold || op.extents.size() < 2 || op.extents.back() < 2 ||
            (static_cast<FoldMode>(op.mode) != FoldMode::kDot && !op.is_qdot()))
            return std::nullopt;
        const Index columns = op.extents.back(), rows = op.elements / columns;
        StripMatcher group(plan_, rows, columns);
        if (!group.begin(seed)) return std::nullopt;
        group.grow(seed + 1, taken_, [](int) { return false; });
        if (!group.folds_maxima()) return std::nullopt;
        if (const std::vector<int> maps = group.maps_beside(); !maps.empty()) {
            group = StripMatcher(plan_, rows, columns);
            group.begin(seed);
            plan_.budget.spend(n_, static_cast<Index>(maps.size()));
            group.grow(seed + 1, taken_, [&](int op) { return std::find(maps.begin(), maps.end(), op) != maps.end(); });
        }
        return group.folds_maxima() ? std::optional(std::move(group)) : std::nullopt;
    }

    // The gradient of an attention, which computes again the tiles of its forward group that others read, so that none is `stored`;
    // nothing if something else reads them.
    std::optional<StripMatcher> match_backward(const StripMatcher& forward, const std::vector<int>& stored) const {
        StripMatcher group(plan_, forward.axes().all_rows, forward.axes().columns);
        if (!forward.per_batch() || stored.empty()) return std::nullopt;
        for (const int tile : stored)
            if (plan_.schedule.kept[static_cast<std::size_t>(tile)] || !group.recompute(forward, tile)) return std::nullopt;
        // Products that some op reads together with what is computed again.
        group.grow(forward.last() + 1, taken_, [&](int candidate) {
            const auto& by = readers_[static_cast<std::size_t>(candidate)];
            plan_.budget.spend(static_cast<Index>(by.size()), 16);
            return std::any_of(by.begin(), by.end(), [&](int reader) {
                const auto& read = plan_.views[static_cast<std::size_t>(reader)];
                return std::any_of(read.begin(), read.end(), [&](const View& view) { return view.tag == Tag::kOp && group.role(view.index) == StripMatcher::Role::kTile; });
            });
        });
        for (const int tile : stored) plan_.budget.spend(static_cast<Index>(readers_[static_cast<std::size_t>(tile)].size()), kMostMembers);
        bool whole = true;  // the two groups read all that is computed again, and nothing else reads what the second one makes
        for (const int tile : stored)
            for (const int reader : readers_[static_cast<std::size_t>(tile)]) whole = whole && (forward.has(reader) || group.has(reader));
        for (const int tile : group.read_outside(readers_)) whole = whole && forward.has(tile);
        return whole && clear(group.first_beside(forward), group.last()) ? std::optional(std::move(group)) : std::nullopt;
    }

    // A group runs in the place of its last op, and what it postpones right after: no other group may lie around or between its own.
    bool clear(int first, int last) const {
        return std::none_of(within_.begin() + first, within_.begin() + last + 1, [](bool w) { return w; });
    }

    void accept(StripGroup group) {
        for (const int op : group.absorbed) taken_[static_cast<std::size_t>(op)] = true;
        std::fill(within_.begin() + group.absorbed.front(), within_.begin() + group.absorbed.back() + 1, true);
        groups_.push_back(std::move(group));
    }

    const Planner& plan_;
    const int n_;
    std::vector<std::vector<int>> readers_;
    std::vector<bool> taken_, within_;
    std::vector<StripGroup> groups_;
    MaskCache masks_;
};

// A group's ops run in the place of the last one, and what reads them before that runs after it.
void schedule_group(StripGroup&& group, Planner& plan) {
    Schedule& schedule = plan.schedule;
    plan.budget.spend(static_cast<Index>(schedule.order.size()), 16);
    const int last = group.absorbed.back();
    const auto listed = [](const std::vector<int>& ops, int op) { return std::binary_search(ops.begin(), ops.end(), op); };
    std::vector<int> order;
    for (const int op : schedule.order) {
        if (op != last && (listed(group.absorbed, op) || listed(group.postponed, op))) continue;
        order.push_back(op);
        if (op == last) order.insert(order.end(), group.postponed.begin(), group.postponed.end());
    }
    schedule.order = std::move(order);
    schedule.fused[static_cast<std::size_t>(last)] = std::move(group);
}

}  // namespace

void Planner::find_strips() {
    for (StripGroup& group : StripFinder(*this).find()) schedule_group(std::move(group), *this);
}

}  // namespace lockstep
