// Every op's own step; folds and quants read through copies.
#include "plan/steps.hpp"

#include "plan/axes.hpp"
#include "plan/passes.hpp"
#include "plan/views.hpp"

namespace lockstep {
namespace {

// A quant of a copy with its rows cut where the copy's axes are, so that it can be read through.
Descriptor cut_as_copied(const Program& program, const Descriptor& op) {
    const View& view = op.views[0];
    if (view.tag != Tag::kOp || !is_copy(program.at(view.index))) return op;
    Indices cuts;
    for (const Index cut : cuts_of(program.at(view.index).extents))
        if (cut % op.k == 0) cuts.push_back(cut / op.k);
    const Indices rows(op.extents.begin(), op.extents.end() - 1), strides(view.strides.begin(), view.strides.end() - 2);
    std::erase_if(cuts, [all = product(rows)](Index cut) { return cut > all; });
    const auto axes = refined(rows, cuts);
    if (!axes || axes->size() + 1 > kMaxAxes) return op;
    Descriptor finer = op;
    finer.extents = *axes;
    finer.extents.push_back(op.extents.back());
    finer.views[0].strides = *along(rows, strides, *axes);
    finer.views[0].strides.insert(finer.views[0].strides.end(), view.strides.end() - 2, view.strides.end());
    return finer;
}

}  // namespace

Step plan_step(const Program& program, std::size_t index) {
    const Descriptor& op = program.ops[index];
    switch (op.kind) {
    case Kind::kMap: return plan_map_step(op);
    case Kind::kConcat: return plan_concat(op);
    case Kind::kQuant: return plan_quant(op, static_cast<int>(index), op.views[0]);
    case Kind::kFold: return op.is_qdot() ? plan_qdot_step(program, op) : plan_fold_step(op, op.views);
    default: return PlainStep{};
    }
}

void Planner::plan_steps() {
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        Descriptor& op = program.ops[i];
        std::vector<View> read = op.views;
        if (op.kind == Kind::kQuant) {
            op = cut_as_copied(program, op);
            read = op.views;
            if (const View through = seen_through(program, op, read[0], budget); quantises(op, through)) read[0] = through;
            schedule.steps.emplace_back(plan_quant(op, static_cast<int>(i), read[0]));
        } else if (op.kind == Kind::kFold && !op.is_qdot()) {
            for (View& view : read) view = seen_through(program, op, view, budget);
            schedule.steps.push_back(plan_fold_step(op, read));
            if (std::holds_alternative<PlainStep>(schedule.steps.back())) read = op.views;
        } else {
            schedule.steps.push_back(plan_step(program, i));
        }
        schedule.reads.push_back(ops_read(read));
        views.push_back(std::move(read));
    }
}

}  // namespace lockstep
