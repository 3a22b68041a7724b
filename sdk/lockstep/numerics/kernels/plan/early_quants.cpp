// When quants run.
#include <algorithm>

#include "plan/passes.hpp"

namespace lockstep {

// Codes are a quarter of what they are made of. Where quants alone read a tensor long after everything else has, they run as soon as
// that has: their codes wait in its place.
void Planner::quantise_early() {
    constexpr std::size_t kLong = 16;  // steps
    const std::size_t n = program.ops.size(), steps = schedule.order.size();
    const std::vector<std::size_t> position = positions();
    std::vector<std::size_t> made_at(n, 0);
    std::vector<std::vector<std::size_t>> read_at(n);
    for (const int step : schedule.order) {
        const Traffic own = traffic(step);
        const std::size_t runs_at = reads_at(step, position);
        for (const int op : own.writes) made_at[static_cast<std::size_t>(op)] = runs_at;
        for (const int op : own.reads) read_at[static_cast<std::size_t>(op)].push_back(runs_at);
    }
    std::vector<std::vector<int>> after(steps);
    std::vector<bool> moved(steps, false);
    for (std::size_t x = 0; x < n; ++x) {
        std::vector<std::size_t>& readers = read_at[x];
        std::sort(readers.begin(), readers.end());
        const auto quant_at = [&](std::size_t reader) { return std::get_if<QuantStep>(&schedule.fused[static_cast<std::size_t>(schedule.order[reader])]); };
        const auto before = [&](std::size_t first) { return first > 0 ? readers[first - 1] : made_at[x]; };
        std::size_t first = readers.size();
        while (first > 0 && quant_at(readers[first - 1])) --first;
        while (first < readers.size() && readers[first] < before(first) + kLong) ++first;
        Index words = 0;
        for (std::size_t late = first; late < readers.size(); ++late)
            for (const int op : traffic(schedule.order[readers[late]]).writes) words += program.at(op).elements;
        if (first == readers.size() || schedule.kept[x] || 2 * words > program.ops[x].elements) continue;
        const std::size_t due = before(first);
        for (; first < readers.size(); ++first) {
            moved[readers[first]] = true;
            after[due].push_back(schedule.order[readers[first]]);
        }
    }
    std::vector<int> order;
    for (std::size_t at = 0; at < steps; ++at) {
        if (!moved[at]) order.push_back(schedule.order[at]);
        order.insert(order.end(), after[at].begin(), after[at].end());
    }
    schedule.order = std::move(order);
}

}  // namespace lockstep
