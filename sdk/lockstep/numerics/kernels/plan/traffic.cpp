// What steps read and leave in memory, and when.
#include <algorithm>

#include "plan/passes.hpp"

namespace lockstep {

Traffic Planner::traffic(int op) const {
    const Fused& fused = schedule.fused[static_cast<std::size_t>(op)];
    Traffic traffic;
    if (std::holds_alternative<Absorbed>(fused)) return traffic;
    if (const auto* quant = std::get_if<QuantStep>(&fused)) {
        if (quant->source.tag == Tag::kOp) traffic.reads.push_back(quant->source.index);
        for (const QuantOutput& output : quant->outputs)
            if (std::find(traffic.writes.begin(), traffic.writes.end(), output.op) == traffic.writes.end()) traffic.writes.push_back(output.op);
    } else if (const auto* group = std::get_if<StripGroup>(&fused)) {
        for (const StripMember& m : group->members) {
            for (const StripOperand& o : m.operands)
                if (o.member < 0 && o.source.tag == Tag::kOp) traffic.reads.push_back(o.source.index);
            if (!m.tile || m.buffer < 0) traffic.writes.push_back(m.op);
        }
    } else {
        for (const View& view : views[static_cast<std::size_t>(op)])
            if (view.tag == Tag::kOp) traffic.reads.push_back(view.index);
        traffic.writes.push_back(op);
    }
    return traffic;
}

std::vector<int> Planner::count_reads() const {
    std::vector<int> counts(views.size(), 0);
    for (const int op : schedule.order)
        for (const int read : traffic(op).reads) ++counts[static_cast<std::size_t>(read)];
    return counts;
}

std::vector<std::size_t> Planner::positions() const {
    std::vector<std::size_t> found(views.size(), 0);
    for (std::size_t at = 0; at < schedule.order.size(); ++at) found[static_cast<std::size_t>(schedule.order[at])] = at;
    return found;
}

std::size_t Planner::reads_at(int op, const std::vector<std::size_t>& positions) const {
    const int loop = schedule.loop_of[static_cast<std::size_t>(op)];
    return positions[loop < 0 ? static_cast<std::size_t>(op) : schedule.loops[static_cast<std::size_t>(loop)].members.back()];
}

}  // namespace lockstep
