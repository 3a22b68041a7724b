// Planning: one pass after another.
#include "plan/schedule.hpp"

#include <numeric>
#include <stdexcept>

#include "plan/passes.hpp"
#include "plan/soundness.hpp"
#include "plan/steps.hpp"

namespace lockstep {

Planner::Planner(Recomputed planned, Budget& budget) : program(planned.program), budget(budget) {
    const std::size_t n = program.ops.size();
    schedule.planned = std::move(planned);
    schedule.fused.resize(n);
    schedule.loop_of.assign(n, -1);
    schedule.run_of.assign(n, -1);
    schedule.kept.assign(n, false);
    for (const Alias& alias : program.outputs)
        if (alias.kind == 1) schedule.kept[static_cast<std::size_t>(alias.index)] = true;
}

namespace {

constexpr Index kPass = 1000;  // operations to look at a view once, in some pass
constexpr Index kPasses = 16;

Schedule fused_schedule(const Program& original, Budget& budget) {
    for (const Descriptor& op : original.ops) budget.spend(static_cast<Index>(1 + op.views.size()), kPasses * kPass);
    Planner plan(recompute(original), budget);
    plan.plan_steps();
    plan.find_scatters();
    plan.find_quants();
    plan.choose_results();
    plan.find_strips();
    plan.read_products_in_place();
    plan.choose_layouts();
    plan.read_sums_in_place();
    plan.join_concats();
    plan.find_loops();
    plan.quantise_early();
    plan.find_batches();
    plan.place_results();
    return std::move(plan.schedule);
}

// Every op by itself, with its operands where the Program has them.
Schedule plain_schedule(const Program& program, std::string reason, Budget& budget) {
    std::vector<int> same(program.ops.size());
    std::iota(same.begin(), same.end(), 0);
    Planner plan({program, same, same, std::vector<int>(program.ops.size(), -1)}, budget);
    plan.schedule.plain = std::move(reason);
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        plan.views.push_back(program.ops[i].views);
        plan.schedule.reads.push_back(ops_read(plan.views[i]));
        plan.schedule.steps.push_back(plan_step(program, i));
    }
    plan.choose_results();
    plan.place_results();
    return std::move(plan.schedule);
}

}  // namespace

Schedule make_schedule(const Program& original, bool plain) {
    std::string reason = plain ? "asked for" : "planning it takes too long";
    Budget budget;
    if (!plain) try {
        Schedule schedule = fused_schedule(original, budget);
        reason = unsound(schedule);
        if (reason.empty()) return schedule;
    } catch (const OverBudget&) {
    }
    Schedule schedule = plain_schedule(original, std::move(reason), budget);
    if (const std::string why = unsound(schedule); !why.empty()) throw std::logic_error("no schedule: " + why);
    return schedule;
}

}  // namespace lockstep
