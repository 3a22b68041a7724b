// Sums of what would be copied or multiplied first.
#include <algorithm>

#include "apply_op.hpp"
#include "plan/axes.hpp"
#include "plan/passes.hpp"
#include "plan/places.hpp"
#include "plan/views.hpp"

namespace lockstep {
namespace {

// A map that one sum alone reads, whole and in its order, and that is a copy or a product: its rows, and pieces of kPiece of its
// terms, lie in its operands as they are, so that it need not exist. This is how batch norm sums an image's channels.
std::optional<PiecewiseSumStep> sum_in_pieces(const Descriptor& fold, const Descriptor& map, Budget& budget) {
    constexpr Index kLeastOutputs = 8;     // lanes beyond them do nothing
    constexpr Index kMostTerms = 1 << 20;  // most terms whose places are examined
    const bool product = map.instrs.size() == 1 && static_cast<Op>(map.instrs[0].op) == Op::FMUL;
    if (!(is_copy(map) || product) || fold.elements < kLeastOutputs || fold.k % kPiece != 0 || fold.k > kMostTerms || map.elements != fold.elements * fold.k) return std::nullopt;
    PiecewiseSumStep step{};
    budget.spend(fold.elements + 2 * fold.k, 64);
    budget.hold(fold.elements + 2 * fold.k, kPlaceBytes);
    step.plan = {fold.elements, fold.k, product ? 2 : 1, {}, {}};
    auto table = std::make_shared<std::vector<Index>>();
    const Index pieces = fold.k / kPiece;
    const Indices row = row_major(map.extents);
    bool in_pieces = false;
    for (int v = 0; v < step.plan.operands; ++v) {
        const std::size_t own = product ? (v == 0 ? map.instrs[0].a : map.instrs[0].b) : 0;
        const View& view = map.views[own];
        if (view.tag == Tag::kIota) return std::nullopt;
        Indices reach(row.size());
        const auto places = [&](Index begin, Index count, Index step) { return places_of(row, view.strides, begin, count, step, reach); };
        const PlacesAlong rows(places(0, fold.elements, fold.k)), terms(places(0, fold.k, 1));
        const Indices last = places((fold.elements - 1) * fold.k, fold.k, 1);
        if (!rows.stride()) return std::nullopt;
        in_pieces |= !terms.stride();
        for (Index k = 0; k < fold.k; ++k) {
            const auto at = static_cast<std::size_t>(k);
            if (terms.run[at] < kPiece - k % kPiece || last[at] != rows.at.back() + terms.at[at]) return std::nullopt;
            if (k % kPiece == 0) table->push_back(terms.at[at]);
        }
        step.plan.row[v] = *rows.stride();
        step.sources[v] = source_of(view);
    }
    if (!in_pieces) return std::nullopt;
    for (int v = 0; v < step.plan.operands; ++v) step.plan.piece_at[v] = table->data() + v * pieces;
    step.places = std::move(table);
    return step;
}

}  // namespace

void Planner::read_sums_in_place() {
    const std::vector<int> readers = count_reads();
    std::vector<bool> gone(program.ops.size(), false);
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        const Descriptor& fold = program.ops[i];
        const auto* sum = std::get_if<FoldStep>(&schedule.steps[i]);
        if (!schedule.alone(i) || !sum || sum->plan.mode != FoldMode::kSum || views[i].size() != 1 || views[i][0].tag != Tag::kOp) continue;
        const View& view = views[i][0];
        const auto m = static_cast<std::size_t>(view.index);
        std::vector<Index> extents = fold.extents;
        extents.push_back(fold.k);
        if (program.ops[m].kind != Kind::kMap || !schedule.alone(m) || schedule.kept[m] || readers[m] != 1 || view.offset != 0 || view.strides != row_major(extents)) continue;
        auto step = sum_in_pieces(fold, program.ops[m], budget);
        if (!step) continue;
        schedule.fused[i] = std::move(*step);
        views[i] = views[m];
        schedule.needed[m] = false;
        gone[m] = true;
    }
    std::erase_if(schedule.order, [&](int op) { return gone[static_cast<std::size_t>(op)]; });
}

}  // namespace lockstep
