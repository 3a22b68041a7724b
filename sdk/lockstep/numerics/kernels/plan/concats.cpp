// Concats of concats.
#include "plan/axes.hpp"
#include "plan/passes.hpp"
#include "plan/steps.hpp"

namespace lockstep {

// A concat that one part of another concat alone reads, whole: its parts are copied to their place in the other one at once. This is
// how an image gets its padding along both axes.
void Planner::join_concats() {
    const std::vector<int> readers = count_reads();
    const auto alone = [&](std::size_t i) { return program.ops[i].kind == Kind::kConcat && schedule.alone(i); };
    std::vector<bool> joined(program.ops.size(), false);
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        if (!alone(i)) continue;
        const Descriptor& outer = program.ops[i];
        const std::vector<Index> strides = row_major(outer.extents);
        const MapStep& own = std::get<MapStep>(schedule.steps[i]);
        MapStep joint;
        std::vector<View> read;
        bool joins = false;
        for (std::size_t part = 0; part < outer.views.size(); ++part) {
            const View& view = outer.views[part];
            const auto inside = static_cast<std::size_t>(view.tag == Tag::kOp ? view.index : 0);
            std::vector<Index> extents = outer.extents;
            extents[outer.p0] = outer.sizes[part];
            const bool whole = view.tag == Tag::kOp && view.offset == 0 && view.strides == row_major(extents) && readers[inside] == 1 &&
                               !schedule.kept[inside] && alone(inside) && program.ops[inside].elements == cuts_of(extents).back();
            const auto placed = whole ? along(extents, strides, program.ops[inside].extents) : std::nullopt;
            if (!placed) {
                joint.parts.push_back(own.parts[part]);
                read.push_back(view);
                continue;
            }
            const Descriptor& inner = program.ops[inside];
            Index before = 0;
            for (std::size_t j = 0; j < inner.views.size(); ++j) {
                std::vector<Index> own_extents = inner.extents;
                own_extents[inner.p0] = inner.sizes[j];
                const Index offset = own.parts[part].out_offset + before * (*placed)[inner.p0];
                joint.parts.push_back({plan_map(own_extents, *placed, {inner.views[j]}, {}), {source_of(inner.views[j])}, offset});
                before += inner.sizes[j];
                read.push_back(inner.views[j]);
            }
            joins = joined[inside] = true;
            schedule.needed[inside] = false;
        }
        if (!joins) continue;
        schedule.fused[i] = std::move(joint);
        views[i] = std::move(read);
    }
    std::erase_if(schedule.order, [&](int op) { return joined[static_cast<std::size_t>(op)]; });
}

}  // namespace lockstep
