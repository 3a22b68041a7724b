// Which results exist, and where they lie.
#include <algorithm>

#include "plan/arena.hpp"
#include "plan/passes.hpp"

namespace lockstep {

void Planner::choose_results() {
    schedule.needed = schedule.kept;
    for (std::size_t i = views.size(); i-- > 0;)
        if (schedule.needed[i])
            for (const View& view : views[i])
                if (view.tag == Tag::kOp) schedule.needed[static_cast<std::size_t>(view.index)] = true;
    for (std::size_t i = 0; i < views.size(); ++i)
        if (schedule.needed[i]) schedule.order.push_back(static_cast<int>(i));
}

void Planner::place_results() {
    const std::size_t n = views.size(), steps = schedule.order.size();
    const std::vector<std::size_t> position = positions();
    std::vector<std::size_t> last_use(n, 0);
    std::vector<std::vector<int>> writes(steps);
    std::vector<bool> shared(n, false);
    for (const BatchRun& run : schedule.runs)
        for (const BatchRun::Share& share : run.shares) shared[static_cast<std::size_t>(share.op)] = true;
    for (std::size_t at = 0; at < steps; ++at) {
        const Traffic own = traffic(schedule.order[at]);
        const int run = schedule.run_of[static_cast<std::size_t>(schedule.order[at])];
        // A run is one step: the first one of its steps reads and writes all.
        const std::size_t runs_at = run < 0 ? at : position[static_cast<std::size_t>(schedule.runs[static_cast<std::size_t>(run)].ops.front())];
        const std::size_t read_at = run < 0 ? reads_at(schedule.order[at], position) : runs_at;
        for (const int op : own.writes)
            if (!shared[static_cast<std::size_t>(op)]) writes[runs_at].push_back(op);
        for (const std::vector<int>* used : {&own.reads, &own.writes})
            for (const int read : *used) last_use[static_cast<std::size_t>(read)] = std::max(last_use[static_cast<std::size_t>(read)], read_at);
    }
    schedule.needed.assign(n, false);
    schedule.arena_offset.assign(n, -1);
    std::vector<std::size_t> placed;
    std::vector<Stay> stays;
    for (std::size_t at = 0; at < steps; ++at)
        for (const int op : writes[at]) {
            const auto i = static_cast<std::size_t>(op);
            schedule.needed[i] = true;
            if (schedule.kept[i]) continue;
            placed.push_back(i);
            stays.push_back({at, last_use[i] + 1, whole_lines(program.ops[i].elements)});
        }
    schedule.arena_words = place_stays(stays);
    for (std::size_t k = 0; k < stays.size(); ++k) schedule.arena_offset[placed[k]] = stays[k].offset;
}

}  // namespace lockstep
