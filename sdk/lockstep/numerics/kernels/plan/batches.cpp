// Finding runs of steps that share batches.
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "plan/arena.hpp"
#include "plan/axes.hpp"
#include "plan/passes.hpp"

namespace lockstep {
namespace {

constexpr Index kLeastBatches = 8;      // that are worth a run: every thread has some
constexpr std::size_t kMostSteps = 256;  // of a run: planning takes their number for every step of a Program
constexpr Index kTaking = 2000;           // operations to find out whether a step can be taken
constexpr Index kLeastShare = 1 << 12;  // words of a batch's largest output: less stays in a cache anyway

// Whether outputs [b n / batches, (b + 1) n / batches) over `extents`, n in all, read the same share of a tensor of `words`. The view
// has more strides than there are extents where `terms` are read along its last axis.
bool reads_own_share(const Indices& extents, const View& view, Index terms, Index words, Index batches) {
    const Index all = product(extents);
    if (all % batches != 0 || words % batches != 0) return false;
    const auto axes = refined(extents, {1, all / batches, all});
    if (!axes) return false;
    const auto strides = along(extents, {view.strides.begin(), view.strides.begin() + static_cast<std::ptrdiff_t>(extents.size())}, *axes);
    if (!strides) return false;
    Index rest = batches, reach = view.offset;
    if (terms > 1) {
        if (view.strides.back() < 0) return false;
        reach += view.strides.back() * (terms - 1);
    }
    for (std::size_t axis = 0; axis < axes->size(); ++axis) {
        const Index extent = (*axes)[axis], stride = (*strides)[axis];
        if (rest > 1) {
            rest /= extent;
            if (stride != words / batches * rest) return false;
        } else if (stride < 0) {
            return false;
        } else {
            reach += stride * (extent - 1);
        }
    }
    return reach < words / batches;
}

// Whether blocks [b n / batches, (b + 1) n / batches) of a map's or a loop's plan are the elements of batch b.
template <class Plan>
bool blocks_are_shares(const Plan& plan, Index batches) {
    Index before = 1;
    for (int ax = 0; ax < plan.axes; ++ax) {
        const Index all = before * plan.extents[ax];
        if (all >= batches) {
            const Index own = all / batches;
            return all % batches == 0 && plan.extents[ax] % own == 0 && own % plan.box[ax] == 0;
        }
        if (plan.box[ax] != 1) return false;
        before = all;
    }
    return false;
}

bool items_are_shares(const QuantPlan& plan, Index batches) {
    Index rows = 1;
    for (int ax = 0; ax < plan.axes; ++ax) rows *= plan.extents[ax];
    if (rows % batches != 0 || plan.axes == 0) return false;
    const Index own = rows / batches, inner = plan.extents[plan.axes - 1];
    return !plan.columns || own % inner == 0 || (inner % own == 0 && own % kRowsAtOnce == 0 && plan.groups == 1);
}

class Finder {
public:
    explicit Finder(const Planner& plan)
        : program_(plan.program), views_(plan.views), schedule_(plan.schedule), budget_(plan.budget), last_reader_(program_.ops.size(), -1) {
        const std::vector<std::size_t> position = plan.positions();
        for (const int step : schedule_.order)
            for (const int op : plan.traffic(step).reads)
                last_reader_[static_cast<std::size_t>(op)] = std::max(last_reader_[static_cast<std::size_t>(op)], static_cast<int>(plan.reads_at(step, position)));
    }

    std::vector<BatchRun> find() {
        std::vector<BatchRun> runs;
        const std::size_t n = schedule_.order.size();
        for (std::size_t at = 0; at < n; ++at) {
            const Index batches = batches_ahead(at);
            if (batches < kLeastBatches) continue;
            std::size_t end = at;
            made_.clear();
            while (end < n && end - at < kMostSteps && takes(end, batches)) ++end;
            end = without_cut_loops(at, end);
            if (has_product(at, end))
                if (BatchRun run = build(at, end, batches); !run.shares.empty()) {
                    runs.push_back(std::move(run));
                    at = end - 1;
                }
        }
        return runs;
    }

private:
    // The number of batches of a product of codes within the next steps; a run begins where it can.
    Index batches_ahead(std::size_t at) const {
        constexpr std::size_t kAhead = 16;
        for (std::size_t i = at; i < std::min(schedule_.order.size(), at + kAhead); ++i) {
            const auto own = static_cast<std::size_t>(schedule_.order[i]);
            const auto* qdot = std::get_if<QdotStep>(&schedule_.steps[own]);
            if (qdot && schedule_.alone(own)) return qdot->plan.shape.batches;
        }
        return 0;
    }

    bool has_product(std::size_t begin, std::size_t end) const {
        for (std::size_t at = begin; at < end; ++at)
            if (std::holds_alternative<QdotStep>(schedule_.steps[static_cast<std::size_t>(schedule_.order[at])])) return true;
        return false;
    }

    // Whether a source that the run has made is read a batch at a time.
    bool reads_shares(const Source& source, const std::function<bool(Index words)>& own_share) const {
        if (source.tag != Tag::kOp) return true;
        const auto found = made_.find(source.index);
        return found == made_.end() || (found->second && own_share(program_.at(source.index).elements));
    }

    bool takes(std::size_t at, Index batches) {
        budget_.spend(kTaking);
        const int index = schedule_.order[at];
        const auto i = static_cast<std::size_t>(index);
        const Descriptor& own = program_.at(index);
        const Fused& fused = schedule_.fused[i];
        if (std::holds_alternative<Absorbed>(fused)) return true;
        if (const auto* quant = std::get_if<QuantStep>(&fused)) {
            const Indices rows(own.extents.begin(), own.extents.end() - 1);
            View view = views_[i][0];
            view.strides.erase(view.strides.end() - 2);
            if (!items_are_shares(quant->plan, batches) || !reads_shares(quant->source, [&](Index words) { return reads_own_share(rows, view, own.k, words, batches); }))
                return false;
            for (const QuantOutput& output : quant->outputs) made_[output.op] = true;
            return true;
        }
        if (!std::holds_alternative<std::monostate>(fused)) return false;
        if (const auto* qdot = std::get_if<QdotStep>(&schedule_.steps[i])) return takes_product(*qdot, index, batches);
        if (const auto* map = std::get_if<MapStep>(&schedule_.steps[i])) {
            if (map->parts.size() != 1 || !blocks_are_shares(map->parts[0].plan, batches)) return false;
            const int loop = schedule_.loop_of[i];
            if (loop >= 0 && !blocks_are_shares(schedule_.loops[static_cast<std::size_t>(loop)].plan, batches)) return false;
        } else if (!std::holds_alternative<FoldStep>(schedule_.steps[i]) || own.elements % batches != 0) {
            return false;
        }
        for (const View& view : views_[i])
            if (!reads_shares(source_of(view), [&](Index words) { return reads_own_share(own.extents, view, own.k, words, batches); })) return false;
        made_[index] = true;
        return true;
    }

    bool takes_product(const QdotStep& step, int index, Index batches) {
        const QdotPlan& plan = step.plan;
        const GemmPlan& shape = plan.shape;
        if (shape.batches != batches) return false;
        const Indices extents(shape.batch, shape.batch + shape.batch_axes), due = row_major(extents);
        const Index a = shape.a.from(nullptr, 0, 0).row, b = shape.b.from(nullptr, 0, 0).row;
        const auto shares = [&](const Index* strides, Index words, Index reach) {
            if (words % batches != 0) return false;
            for (std::size_t ax = 0; ax < extents.size(); ++ax)
                if (extents[ax] > 1 && strides[ax] != due[ax] * (words / batches)) return false;
            return reach < words / batches;
        };
        const Index groups = plan.groups - 1;
        const bool reads = reads_shares(step.sources[0], [&](Index words) { return step.sources[0].offset == 0 && shares(shape.a.batch, words, (shape.m - 1) * a + shape.k - 1); }) &&
                           reads_shares(step.sources[1], [&](Index words) { return step.sources[1].offset == 0 && shares(shape.b.batch, words, (shape.n - 1) * b + shape.k - 1); }) &&
                           reads_shares(step.sources[2], [&](Index words) { return step.sources[2].offset == 0 && shares(plan.scale_a_batch, words, (shape.m - 1) * plan.scale_a_m + groups * plan.scale_a_k); }) &&
                           reads_shares(step.sources[3], [&](Index words) { return step.sources[3].offset == 0 && shares(plan.scale_b_batch, words, (shape.n - 1) * plan.scale_b_n + groups * plan.scale_b_k); });
        if (reads) made_[index] = shares(shape.out_batch, program_.at(index).elements, (shape.m - 1) * shape.out_m + shape.n - 1);
        return reads;
    }

    // A loop runs in place of its last member: an incomplete one is not part of the run, nor are steps after its first member.
    std::size_t without_cut_loops(std::size_t begin, std::size_t end) const {
        for (bool again = true; again;) {
            again = false;
            budget_.spend(static_cast<Index>(end - begin), 64);
            std::set<std::size_t> inside;
            for (std::size_t at = begin; at < end; ++at) inside.insert(static_cast<std::size_t>(schedule_.order[at]));
            for (std::size_t at = begin; at < end && !again; ++at) {
                const int loop = schedule_.loop_of[static_cast<std::size_t>(schedule_.order[at])];
                if (loop < 0) continue;
                const auto& members = schedule_.loops[static_cast<std::size_t>(loop)].members;
                if (std::all_of(members.begin(), members.end(), [&](std::size_t m) { return inside.contains(m); })) continue;
                end = at;
                again = true;
            }
        }
        return end;
    }

    BatchRun build(std::size_t begin, std::size_t end, Index batches) const {
        BatchRun run{batches, {}, {}, 0};
        Index largest = 0;
        std::vector<std::vector<std::size_t>> ends(end - begin);
        std::vector<std::vector<int>> begins(end - begin);
        for (std::size_t at = begin; at < end; ++at) {
            const int index = schedule_.order[at];
            const auto i = static_cast<std::size_t>(index);
            if (std::holds_alternative<Absorbed>(schedule_.fused[i])) continue;
            run.ops.push_back(index);
            std::vector<int> outputs{index};
            if (const auto* quant = std::get_if<QuantStep>(&schedule_.fused[i])) {
                outputs.clear();
                for (const QuantOutput& o : quant->outputs)
                    if (std::find(outputs.begin(), outputs.end(), o.op) == outputs.end()) outputs.push_back(o.op);
            }
            for (const int output : outputs) {
                const auto o = static_cast<std::size_t>(output);
                const auto found = made_.find(output);
                if (found == made_.end() || !found->second || schedule_.kept[o] || last_reader_[o] >= static_cast<int>(end)) continue;
                run.shares.push_back({output, 0, program_.at(output).elements / batches});
                largest = std::max(largest, program_.at(output).elements / batches);
                begins[at - begin].push_back(static_cast<int>(run.shares.size()) - 1);
                // A map of a loop without code writes in its own place.
                ends[static_cast<std::size_t>(std::max(last_reader_[o], static_cast<int>(at))) - begin].push_back(run.shares.size() - 1);
            }
        }
        if (largest < kLeastShare) run.shares.clear();
        if (run.shares.empty()) return run;
        Arena arena;
        for (std::size_t at = 0; at < end - begin; ++at) {
            for (const int share : begins[at]) run.shares[static_cast<std::size_t>(share)].offset = arena.take(run.shares[static_cast<std::size_t>(share)].words);
            for (const std::size_t share : ends[at]) arena.give(run.shares[share].offset, run.shares[share].words);
        }
        run.words = arena.size();
        return run;
    }

    const Program& program_;
    const Views& views_;
    const Schedule& schedule_;
    Budget& budget_;
    std::vector<int> last_reader_;  // position of the last step that reads an op's output
    std::map<int, bool> made_;      // by the run: whether it is shared out as it lies
};

}  // namespace

void Planner::find_batches() {
    schedule.runs = Finder(*this).find();
    for (std::size_t r = 0; r < schedule.runs.size(); ++r)
        for (const int op : schedule.runs[r].ops) schedule.run_of[static_cast<std::size_t>(op)] = static_cast<int>(r);
}

}  // namespace lockstep
