// What a sweep holds, drops and computes again.
#include "plan/sweep.hpp"

#include <algorithm>
#include <optional>

#include "plan/arena.hpp"
#include "plan/budget.hpp"

namespace lockstep {
namespace {

constexpr Index kMostWork = 2;      // times the work of the ops themselves; a larger budget is tried instead
constexpr std::size_t kMostRuns = 4;  // times the number of ops
constexpr std::size_t kMostAgain = 256;  // ops that are computed again for one another, as deep as calls go
constexpr Index kLeastShare = 256;  // a tensor below this part of what is too much is not worth its second computation

class SweepPlanner {
public:
    SweepPlanner(const Program& program, const std::vector<std::vector<int>>& reads, const std::vector<bool>& stored, Index most, Budget& budget)
        : ops_(program.ops), reads_(reads), stored_(stored), most_(most), budget_(budget), readers_(ops_.size()), last_(ops_.size()), until_(ops_.size()),
          stay_(ops_.size(), -1), pins_(ops_.size(), 0), ends_(ops_.size()), place_(ops_.size()) {
        for (std::size_t i = 0; i < ops_.size(); ++i) {
            most_work_ += kMostWork * work(i);
            for (const int read : reads_[i]) readers_[static_cast<std::size_t>(read)].push_back(i);
        }
        for (std::size_t i = ops_.size(); i-- > 0;) {
            last_[i] = until_[i] = i;
            for (const std::size_t reader : readers_[i]) {
                // A reader that can be dropped is perhaps computed again, for a reader of its own.
                until_[i] = std::max(until_[i], stored_[reader] ? reader : until_[reader]);
                last_[i] = stored_[i] ? until_[i] : std::max(last_[i], reader);
            }
        }
        for (std::size_t i = 0; i < ops_.size(); ++i) ends_[last_[i]].push_back(i);
    }

    // Nothing if it takes too much work.
    std::optional<Sweep> plan() {
        for (now_ = 0; now_ < ops_.size(); ++now_) {
            if (!make(now_)) return std::nullopt;
            for (const std::size_t dead : ends_[now_]) drop(dead);
            for (const std::size_t made : again_)
                if (last_[made] <= now_) drop(made);
            again_.clear();
        }
        sweep_.words = place_stays(stays_);
        for (std::size_t k = 0; k < stays_.size(); ++k) sweep_.runs[k].offset = stays_[k].offset;
        return std::move(sweep_);
    }

private:
    // A sum of them for 2^16 ops does not overflow a double, as it does 64 bits.
    double work(std::size_t i) const { return static_cast<double>(ops_[i].elements) * static_cast<double>(std::max<Index>(1, ops_[i].k)); }
    bool live(std::size_t i) const { return stay_[i] >= 0; }

    bool make(std::size_t i, std::size_t depth = 0) {
        if (depth > kMostAgain) return false;
        for (const int read : reads_[i]) {
            const auto operand = static_cast<std::size_t>(read);
            if (!live(operand) && !make(operand, depth + 1)) return false;
            ++pins_[operand];
        }
        make_room(ops_[i].elements);
        stay_[i] = static_cast<Index>(stays_.size());
        stays_.push_back({stays_.size(), ops_.size() * kMostRuns + 1, whole_lines(ops_[i].elements)});
        held_ += ops_[i].elements;
        if (!stored_[i]) {
            place_[i] = droppable_.size();
            droppable_.push_back(i);
        }
        const bool again = i != now_;
        if (again) again_.push_back(i);
        sweep_.runs.push_back({static_cast<int>(i), 0, again});
        for (const int read : reads_[i]) --pins_[static_cast<std::size_t>(read)];
        work_ += work(i);
        return work_ <= most_work_ && sweep_.runs.size() <= kMostRuns * ops_.size();
    }

    void make_room(Index words) {
        while (held_ + words > most_) {
            const Index least = (held_ + words - most_) / kLeastShare;
            budget_.spend(static_cast<Index>(droppable_.size()), 16);
            std::optional<std::size_t> found;
            for (const std::size_t i : droppable_)
                if (pins_[i] == 0 && ops_[i].elements > least && (!found || next(i) > next(*found) || (next(i) == next(*found) && i < *found))) found = i;
            if (!found) return;
            drop(*found);
        }
    }

    // The next op that reads it; past the last one if none does.
    std::size_t next(std::size_t i) const {
        const auto found = std::lower_bound(readers_[i].begin(), readers_[i].end(), now_);
        return found == readers_[i].end() ? ops_.size() : *found;
    }

    void drop(std::size_t i) {
        if (!live(i)) return;
        stays_[static_cast<std::size_t>(stay_[i])].end = stays_.size();
        held_ -= ops_[i].elements;
        stay_[i] = -1;
        if (stored_[i]) return;
        place_[droppable_.back()] = place_[i];
        droppable_[place_[i]] = droppable_.back();
        droppable_.pop_back();
    }

    const std::vector<Descriptor>& ops_;
    const std::vector<std::vector<int>>& reads_;
    const std::vector<bool>& stored_;
    const Index most_;
    Budget& budget_;
    std::vector<std::vector<std::size_t>> readers_;
    std::vector<std::size_t> last_;   // the op after which it goes
    std::vector<std::size_t> until_;  // the last op that can request it
    std::vector<Index> stay_;         // -1: not in memory
    std::vector<Stay> stays_;         // one per run
    std::vector<int> pins_;
    std::vector<std::vector<std::size_t>> ends_;  // by last_
    std::vector<std::size_t> droppable_, again_;
    std::vector<std::size_t> place_;  // of an op among the droppable ones
    std::size_t now_ = 0;
    Index held_ = 0;
    double work_ = 0, most_work_ = 0;
    Sweep sweep_;
};

}  // namespace

Sweep plan_sweep(const Program& program, const std::vector<std::vector<int>>& reads, const std::vector<bool>& stored, Index most) {
    Index all = 0;
    for (const Descriptor& op : program.ops) all += op.elements;  // below 2^47
    Budget budget;
    for (Index tried = std::max<Index>(most, 1); tried < all; tried *= 2) try {
            if (auto sweep = SweepPlanner(program, reads, stored, tried, budget).plan()) return std::move(*sweep);
        } catch (const OverBudget&) {
            break;
        }
    // With room for all of them nothing is dropped, and nothing computed twice.
    return std::move(*SweepPlanner(program, reads, stored, all, budget).plan());
}

}  // namespace lockstep
