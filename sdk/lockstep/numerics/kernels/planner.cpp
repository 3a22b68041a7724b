// Planning: views merged, folds matched to kernels, copies read through, memory from liveness.
#include "planner.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "apply_op.hpp"
#include "arena.hpp"
#include "axes.hpp"
#include "budget.hpp"
#include "kernels.hpp"
#include "loops.hpp"
#include "soundness.hpp"

namespace lockstep {

namespace {

constexpr Index kPass = 1000;               // operations to look at a view once, in some pass
constexpr Index kPasses = 16;
constexpr Index kPlaceBytes = 4 * sizeof(Index);  // of a place with its run, while tables are made and after

// --- maps ---------------------------------------------------------------------------------------------------------------

// A block is a square where some operand lies transposed, else a run of whole rows.
void choose_box(MapPlan& plan) {
    const int last = plan.axes - 1;
    for (int ax = 0; ax < plan.axes; ++ax) plan.box[ax] = 1;
    for (int v = 0; v < plan.operands; ++v) {
        const MapOperand& operand = plan.operand[v];
        if (operand.iota || operand.uniform || last < 1 || plan.extents[last] < 8) continue;
        const Index inner = operand.strides[last];
        if (inner >= -1 && inner <= 1) continue;
        for (int ax = 0; ax < last; ++ax)
            if (operand.strides[ax] == 1 && plan.extents[ax] >= 8) {
                plan.box[ax] = std::min<Index>(plan.extents[ax], 32);
                plan.box[last] = std::min(plan.extents[last], kBlock / plan.box[ax]);
                return;
            }
    }
    Index room = kBlock;
    for (int ax = last; ax >= 0 && room > 1; --ax) {
        plan.box[ax] = std::min(plan.extents[ax], room);
        room = plan.box[ax] == plan.extents[ax] ? room / plan.extents[ax] : 1;
    }
}

// Registers to buffers, each free again after its last reader. A result never shares with what it is computed from.
void assign_buffers(MapPlan& plan) {
    const int registers = plan.operands + plan.instrs;
    std::vector<int> last_use(static_cast<std::size_t>(registers), -1);
    for (int i = 0; i < plan.instrs; ++i) {
        if (static_cast<Op>(plan.instr[i].op) == Op::IMM) continue;
        for (const std::size_t r : {plan.instr[i].a, plan.instr[i].b, plan.instr[i].c}) last_use[r] = i;
    }
    std::vector<int> free;
    int buffers = 0;
    const auto take = [&] {
        if (free.empty()) return buffers++;
        const int buffer = free.back();
        free.pop_back();
        return buffer;
    };
    std::vector<int> held(static_cast<std::size_t>(registers));
    std::vector<bool> uniform(static_cast<std::size_t>(registers));
    for (int v = 0; v < plan.operands; ++v) {
        held[static_cast<std::size_t>(v)] = take();
        uniform[static_cast<std::size_t>(v)] = plan.operand[v].uniform;
        plan.operand_buffer[v] = static_cast<std::uint8_t>(held[static_cast<std::size_t>(v)]);
    }
    // Uniform results are computed before the first block, so their buffers are never anybody else's.
    for (int i = 0; i < plan.instrs; ++i) {
        const auto own = static_cast<std::size_t>(plan.operands + i);
        uniform[own] = plan.instr[i].uniform;
        if (uniform[own]) held[own] = take();
    }
    for (int i = 0; i < plan.instrs; ++i) {
        const auto own = static_cast<std::size_t>(plan.operands + i);
        if (!uniform[own]) held[own] = take();
        plan.instr[i].buffer = static_cast<std::uint8_t>(held[own]);
        for (int r = 0; r <= plan.operands + i; ++r) {
            const auto reg = static_cast<std::size_t>(r);
            const bool ends = last_use[reg] == i || (r == plan.operands + i && last_use[reg] < 0);
            if (ends && !uniform[reg]) free.push_back(held[reg]);
        }
    }
    plan.buffers = buffers;
}

}  // namespace

MapPlan plan_map(const std::vector<Index>& extents, const std::vector<Index>& out_strides, const std::vector<const View*>& views,
                 const std::vector<Instr>& instrs) {
    Axes axes{extents, {out_strides}};
    for (const View* view : views) axes.strides.push_back(view->strides);
    axes.merge();
    MapPlan plan{};
    plan.axes = static_cast<int>(axes.extents.size());
    plan.operands = static_cast<int>(views.size());
    plan.instrs = static_cast<int>(instrs.size());
    plan.elements = 1;
    for (int ax = 0; ax < plan.axes; ++ax) {
        const auto axis = static_cast<std::size_t>(ax);
        plan.extents[ax] = axes.extents[axis];
        plan.out_strides[ax] = axes.strides[0][axis];
        plan.elements *= axes.extents[axis];
        for (std::size_t v = 0; v < views.size(); ++v) plan.operand[v].strides[ax] = axes.strides[v + 1][axis];
    }
    std::vector<bool> uniform;
    for (std::size_t v = 0; v < views.size(); ++v) {
        MapOperand& operand = plan.operand[v];
        operand.iota = views[v]->tag == Tag::kIota;
        operand.offset = static_cast<Word>(views[v]->offset);
        operand.uniform = std::all_of(operand.strides, operand.strides + plan.axes, [](Index s) { return s == 0; });
        uniform.push_back(operand.uniform);
    }
    for (std::size_t i = 0; i < instrs.size(); ++i) {
        const Instr& in = instrs[i];
        bool same = true;
        if (static_cast<Op>(in.op) != Op::IMM) same = uniform[in.a] && uniform[in.b] && uniform[in.c];
        plan.instr[i] = MapInstr{in.op, in.a, in.b, in.c, in.imm, same, 0};
        uniform.push_back(same);
    }
    choose_box(plan);
    assign_buffers(plan);
    plan.blocks = 1;
    for (int ax = 0; ax < plan.axes; ++ax) plan.blocks *= (plan.extents[ax] + plan.box[ax] - 1) / plan.box[ax];
    return plan;
}

std::vector<Instr> with_read_registers_only(const Descriptor& op) {
    std::vector<Instr> instrs = op.instrs;
    for (Instr& instr : instrs) {
        const int reads = arity(instr.op);
        if (reads < 1) instr.a = 0;
        if (reads < 2) instr.b = instr.a;
        if (reads < 3) instr.c = instr.b;
    }
    return instrs;
}

namespace {

MapStep plan_map_step(const Descriptor& op) {
    MapStep step;
    std::vector<const View*> views;
    std::vector<Source> sources;
    for (const View& view : op.views) {
        views.push_back(&view);
        sources.push_back(source_of(view));
    }
    step.parts.push_back(plan_map(op.extents, row_major(op.extents), views, with_read_registers_only(op)));
    step.sources.push_back(std::move(sources));
    step.out_offsets.push_back(0);
    return step;
}

MapStep plan_concat(const Descriptor& op) {
    MapStep step;
    const std::vector<Index> strides = row_major(op.extents);
    Index before = 0;
    for (std::size_t i = 0; i < op.views.size(); ++i) {
        std::vector<Index> extents = op.extents;
        extents[op.p0] = op.sizes[i];
        step.parts.push_back(plan_map(extents, strides, {&op.views[i]}, {}));
        step.sources.push_back({source_of(op.views[i])});
        step.out_offsets.push_back(before * strides[op.p0]);
        before += op.sizes[i];
    }
    return step;
}

// --- folds --------------------------------------------------------------------------------------------------------------

// dot as a matrix product if the innermost output axis belongs to one operand and some other axis to the other one.
std::optional<GemmStep> plan_gemm(const Descriptor& op, const View& first, const View& second) {
    if (op.mode != static_cast<int>(FoldMode::kDot) || op.k > kChunk * kChunk) return std::nullopt;
    const View *a = &first, *b = &second;
    const auto rank = op.extents.size();
    Axes axes{op.extents, {row_major(op.extents), {}, {}}};
    axes.strides[1].assign(a->strides.begin(), a->strides.begin() + static_cast<std::ptrdiff_t>(rank));
    axes.strides[2].assign(b->strides.begin(), b->strides.begin() + static_cast<std::ptrdiff_t>(rank));
    axes.merge();
    const auto n_axes = axes.extents.size();
    if (n_axes < 2) return std::nullopt;
    std::size_t va = 1, vb = 2;
    if (axes.strides[2].back() == 0) {
        std::swap(a, b);
        std::swap(va, vb);
    }
    if (axes.strides[va].back() != 0 || axes.strides[vb].back() == 0) return std::nullopt;
    std::size_t m_axis = n_axes;
    for (std::size_t axis = 0; axis + 1 < n_axes; ++axis)
        if (axes.strides[vb][axis] == 0 && axes.strides[va][axis] != 0 && (m_axis == n_axes || axes.extents[axis] > axes.extents[m_axis]))
            m_axis = axis;
    if (m_axis == n_axes) return std::nullopt;
    GemmStep step{};
    GemmPlan& plan = step.plan;
    plan.m = axes.extents[m_axis];
    plan.n = axes.extents.back();
    plan.k = op.k;
    plan.out_m = axes.strides[0][m_axis];
    plan.a = Factor::strided(axes.strides[va][m_axis], a->strides[rank]);
    plan.b = Factor::strided(axes.strides[vb].back(), b->strides[rank]);
    plan.batches = 1;
    for (std::size_t axis = 0; axis + 1 < n_axes; ++axis) {
        if (axis == m_axis) continue;
        plan.batch[plan.batch_axes] = axes.extents[axis];
        plan.out_batch[plan.batch_axes] = axes.strides[0][axis];
        plan.a.batch[plan.batch_axes] = axes.strides[va][axis];
        plan.b.batch[plan.batch_axes] = axes.strides[vb][axis];
        ++plan.batch_axes;
        plan.batches *= axes.extents[axis];
    }
    step.a = source_of(*a);
    step.b = source_of(*b);
    return step;
}

// A qdot as a matrix product if one operand, codes and scales, is the same along the innermost output axis. Rows of one operand
// that are multiplied with one row of the other are a product of one row.
std::optional<QdotStep> plan_qdot(const Program& program, const Descriptor& op) {
    const auto rank = op.extents.size();
    Axes axes{op.extents, {row_major(op.extents)}};
    for (const View& view : op.views) axes.strides.emplace_back(view.strides.begin(), view.strides.begin() + static_cast<std::ptrdiff_t>(rank));
    axes.merge();
    const auto n_axes = axes.extents.size();
    std::size_t a = 0, b = 1;
    const auto still = [&](std::size_t side, std::size_t axis) { return axes.strides[side + 1][axis] == 0 && axes.strides[side + 3][axis] == 0; };
    if (n_axes > 0 && still(b, n_axes - 1)) std::swap(a, b);
    if (n_axes > 0 && !still(a, n_axes - 1)) return std::nullopt;
    std::size_t m_axis = n_axes;
    for (std::size_t axis = 0; axis + 1 < n_axes; ++axis)
        if (still(b, axis) && !still(a, axis) && (m_axis == n_axes || axes.extents[axis] > axes.extents[m_axis])) m_axis = axis;
    QdotStep step{};
    QdotPlan& plan = step.plan;
    GemmPlan& shape = plan.shape;
    const auto along = [&](std::size_t array, std::size_t axis) { return axis < n_axes ? axes.strides[array][axis] : 0; };
    const std::size_t n_axis = n_axes - 1;  // none if there are no axes
    plan.words = op.p0;
    plan.groups = op.k;
    for (const std::size_t side : {a, b}) {
        const Padding padding = padding_of(program, op.views[side], op.p0);
        if (!padding.period || (plan.period && plan.period != padding.period)) continue;
        plan.last_words = plan.period ? std::min(plan.last_words, padding.words) : padding.words;
        plan.period = padding.period;
    }
    shape.m = m_axis < n_axes ? axes.extents[m_axis] : 1;
    shape.n = n_axes > 0 ? axes.extents[n_axis] : 1;
    shape.k = op.k * op.p0;
    shape.out_m = along(0, m_axis);
    shape.a = Factor::strided(along(a + 1, m_axis), 1);
    shape.b = Factor::strided(along(b + 1, n_axis), 1);
    plan.scale_a_m = along(a + 3, m_axis);
    plan.scale_b_n = along(b + 3, n_axis);
    plan.scale_a_k = op.views[a + 2].strides[rank];
    plan.scale_b_k = op.views[b + 2].strides[rank];
    shape.batches = 1;
    for (std::size_t axis = 0; axis + 1 < n_axes; ++axis) {
        if (axis == m_axis) continue;
        const int ax = shape.batch_axes++;
        shape.batch[ax] = axes.extents[axis];
        shape.out_batch[ax] = axes.strides[0][axis];
        shape.a.batch[ax] = axes.strides[a + 1][axis];
        shape.b.batch[ax] = axes.strides[b + 1][axis];
        plan.scale_a_batch[ax] = axes.strides[a + 3][axis];
        plan.scale_b_batch[ax] = axes.strides[b + 3][axis];
        shape.batches *= axes.extents[axis];
    }
    const std::size_t order[4] = {a, b, a + 2, b + 2};
    for (std::size_t v = 0; v < 4; ++v) step.sources[v] = source_of(op.views[order[v]]);
    return step;
}

FoldStep plan_fold(const Descriptor& op, const std::vector<const View*>& views) {
    FoldStep step{};
    FoldPlan& plan = step.plan;
    const auto rank = op.extents.size();
    Axes axes{op.extents, {}};
    for (const View* view : views)
        axes.strides.emplace_back(view->strides.begin(), view->strides.begin() + static_cast<std::ptrdiff_t>(rank));
    axes.merge();
    plan.mode = static_cast<FoldMode>(op.mode);
    plan.axes = static_cast<int>(axes.extents.size());
    plan.outputs = op.elements;
    plan.k = op.k;
    step.operands = static_cast<int>(views.size());
    for (std::size_t v = 0; v < views.size(); ++v) {
        plan.k_stride[v] = views[v]->strides[rank];
        step.sources[v] = source_of(*views[v]);
        for (int ax = 0; ax < plan.axes; ++ax) plan.strides[v][ax] = axes.strides[v][static_cast<std::size_t>(ax)];
    }
    for (int ax = 0; ax < plan.axes; ++ax) plan.extents[ax] = axes.extents[static_cast<std::size_t>(ax)];
    return step;
}

bool is_copy(const Descriptor& op) {
    if (op.kind != Kind::kMap || op.views.size() != 1 || op.views[0].tag == Tag::kIota) return false;
    if (op.instrs.empty()) return true;
    return op.instrs.size() == 1 && static_cast<Op>(op.instrs[0].op) == Op::MOV && op.instrs[0].a == 0;
}

// `reader`, which reads the output of the copy over `extents`, as a view of what was copied; nothing where an axis of the reader
// runs across axes of the copy that do not merge.
std::optional<View> read_through(const View& reader, const std::vector<Index>& extents, const Descriptor& copy) {
    Axes axes{copy.extents, {row_major(copy.extents), copy.views[0].strides}};
    axes.merge();
    const auto n_axes = axes.extents.size();
    const std::vector<Index>&row = axes.strides[0], &source = axes.strides[1];
    View through{copy.views[0].tag, copy.views[0].index, copy.views[0].offset, std::vector<Index>(reader.strides.size(), 0)};
    std::vector<Index> low(n_axes), high(n_axes);
    Index rest = reader.offset;
    for (std::size_t axis = 0; axis < n_axes; ++axis) {
        low[axis] = high[axis] = rest / row[axis];
        rest %= row[axis];
        through.offset += low[axis] * source[axis];
    }
    for (std::size_t own = 0; own < extents.size(); ++own) {
        const Index stride = reader.strides[own];
        if (extents[own] == 1 || stride == 0) continue;
        std::size_t axis = 0;
        while (axis < n_axes && stride % row[axis] != 0) ++axis;
        if (axis == n_axes) return std::nullopt;
        const Index steps = stride / row[axis], reach = steps * (extents[own] - 1);
        (reach < 0 ? low : high)[axis] += reach;
        through.strides[own] = steps * source[axis];
    }
    for (std::size_t axis = 0; axis < n_axes; ++axis)
        if (low[axis] < 0 || high[axis] >= axes.extents[axis]) return std::nullopt;
    return through;
}

// Folds read through copies: the transposes that make a k axis contiguous in the committed form need not exist.
View seen_through(const Program& program, const Descriptor& op, View view, Budget& budget) {
    std::vector<Index> extents = op.extents;
    extents.push_back(op.k);
    while (view.tag == Tag::kOp && is_copy(program.ops[static_cast<std::size_t>(view.index)])) {
        budget.spend(kPass);
        const std::optional<View> through = read_through(view, extents, program.ops[static_cast<std::size_t>(view.index)]);
        // Something must stay contiguous, or every term would be a cache line of its own.
        if (!through || std::find(through->strides.begin(), through->strides.end(), 1) == through->strides.end()) break;
        view = *through;
    }
    return view;
}

// Places along one axis and how many neighbours from each on lie side by side; negative where they lie in descending order.
struct PlacesAlong {
    std::vector<Index> at, run;

    explicit PlacesAlong(std::vector<Index> places) : at(std::move(places)), run(at.size(), 1) {
        for (std::size_t i = at.size() - 1; i-- > 0;)
            if (at[i + 1] == at[i] + 1) run[i] = std::max<Index>(run[i + 1], 1) + 1;
            else if (at[i + 1] == at[i] - 1) run[i] = std::min<Index>(run[i + 1], -1) - 1;
    }
    // The stride that tells all places, if one does.
    std::optional<Index> stride() const {
        const Index step = at.size() > 1 ? at[1] : 0;
        for (std::size_t i = 0; i < at.size(); ++i)
            if (at[i] != static_cast<Index>(i) * step) return std::nullopt;
        return step;
    }
};

// The longest runs that a kernel has code for; single rows where the rows lie otherwise.
Runs runs_of(const std::vector<Index>& rows) {
    for (const Runs runs : {Runs{4, 1}, Runs{4, 2}, Runs{3, 1}}) {
        const auto length = static_cast<std::size_t>(runs.length);
        bool all = rows.size() % length == 0;
        for (std::size_t i = 0; all && i < rows.size(); ++i) all = i % length == 0 || rows[i] == rows[i - 1] + runs.step;
        if (all) return runs;
    }
    return {1, 1};
}

// An operand of a product read where a copy took it from, if rows and terms each add a part of their own to an element's place there:
// the windows of a convolution are never copied together. False if it is no such copy.
bool read_in_place(const Program& program, GemmStep& step, std::size_t side, Budget& budget) {
    GemmPlan& plan = step.plan;
    Source& source = side == 0 ? step.a : step.b;
    if (source.tag != Tag::kOp || !is_copy(program.ops[static_cast<std::size_t>(source.index)])) return false;
    const Descriptor& copy = program.ops[static_cast<std::size_t>(source.index)];
    Axes axes{copy.extents, {row_major(copy.extents), copy.views[0].strides}};
    axes.merge();
    const auto n_axes = axes.extents.size();
    std::vector<Index> reach(n_axes, 0);  // the largest coordinate along each axis, if the parts of an element's place add up
    const auto places = [&](Index begin, Index extent, Index stride) {
        budget.spend(extent, 4 * static_cast<Index>(n_axes + 2));
        budget.hold(extent, kPlaceBytes);
        std::vector<Index> found, largest(n_axes, 0);
        for (Index i = 0; i < extent; ++i) {
            Index rest = begin + i * stride, place = 0;
            for (std::size_t axis = 0; axis < n_axes; ++axis) {
                const Index coordinate = rest / axes.strides[0][axis];
                rest %= axes.strides[0][axis];
                largest[axis] = std::max(largest[axis], coordinate);
                place += coordinate * axes.strides[1][axis];
            }
            found.push_back(place);
        }
        for (std::size_t axis = 0; axis < n_axes; ++axis) reach[axis] += largest[axis];
        return PlacesAlong(std::move(found));
    };
    Factor& factor = side == 0 ? plan.a : plan.b;
    Index* const batch_strides = factor.batch;
    const Factor::Part strided = factor.from(nullptr, 0, 0);
    const Index row_stride = strided.row, k_stride = strided.k;
    // What every batch shares would be packed for each of them, so it is copied once. A product that is turned on every path packs it
    // once, wherever it lies.
    const bool turned = side == 0 && plan.b_runs.length && plan.m % kMostLanes == 0 && plan.m <= kWindowsPerRow * plan.n * plan.batches;
    if (!turned && plan.batches > 1 && std::all_of(batch_strides, batch_strides + plan.batch_axes, [](Index s) { return s == 0; })) return false;
    if (row_stride < 0 || k_stride < 0 || std::any_of(batch_strides, batch_strides + plan.batch_axes, [](Index s) { return s < 0; })) return false;
    const Index offset = places(source.offset, 1, 0).at[0];
    PlacesAlong rows = places(0, side == 0 ? plan.m : plan.n, row_stride);
    const PlacesAlong terms = places(0, plan.k, k_stride);
    std::vector<Index> batches;
    for (int ax = 0; ax < plan.batch_axes; ++ax) {
        const auto stride = places(0, plan.batch[ax], batch_strides[ax]).stride();
        if (!stride) return false;
        batches.push_back(*stride);
    }
    for (std::size_t axis = 0; axis < n_axes; ++axis)
        if (reach[axis] >= axes.extents[axis]) return false;
    if (rows.stride() && terms.stride()) return false;  // seen through, if that is worth it
    for (Index& run : rows.run) run = std::max<Index>(run, 1);  // rows are packed in their order
    source = {copy.views[0].tag, copy.views[0].index, copy.views[0].offset + offset};
    std::copy(batches.begin(), batches.end(), batch_strides);
    auto table = std::make_shared<std::vector<Index>>();
    for (const PlacesAlong* axis : std::initializer_list<const PlacesAlong*>{&rows, &terms}) {
        table->insert(table->end(), axis->at.begin(), axis->at.end());
        table->insert(table->end(), axis->run.begin(), axis->run.end());
    }
    const Index *row = table->data(), *k_at = row + 2 * rows.at.size();
    factor.place({row, row + rows.at.size(), k_at, k_at + terms.at.size()});
    if (side == 1) plan.b_runs = runs_of(rows.at);
    step.places[side] = std::move(table);
    return true;
}

// A quant of a copy with its rows cut where the copy's axes are, so that it can be read through.
Descriptor cut_as_copied(const Program& program, const Descriptor& op) {
    const View& view = op.views[0];
    if (view.tag != Tag::kOp || !is_copy(program.ops[static_cast<std::size_t>(view.index)])) return op;
    std::vector<Index> cuts;
    for (const Index cut : cuts_of(program.ops[static_cast<std::size_t>(view.index)].extents))
        if (cut % op.k == 0) cuts.push_back(cut / op.k);
    std::vector<Index> rows(op.extents.begin(), op.extents.end() - 1), strides(view.strides.begin(), view.strides.end() - 2);
    const Index all = cuts_of(rows).back();
    std::erase_if(cuts, [&](Index cut) { return cut > all; });
    const auto axes = refined(rows, cuts);
    if (!axes || axes->size() + 1 > kMaxAxes) return op;
    Descriptor finer = op;
    finer.extents = *axes;
    finer.extents.push_back(op.extents.back());
    finer.views[0].strides = *along(rows, strides, *axes);
    finer.views[0].strides.insert(finer.views[0].strides.end(), view.strides.end() - 2, view.strides.end());
    return finer;
}

Step plan_fold_step(const Descriptor& op, const std::vector<View>& views) {
    for (const View& view : views)
        if (view.tag == Tag::kIota && !view.uniform()) return PlainStep{};
    if (views.size() == 2)
        if (auto gemm = plan_gemm(op, views[0], views[1])) return *gemm;
    std::vector<const View*> pointers;
    for (const View& view : views) pointers.push_back(&view);
    return plan_fold(op, pointers);
}

// The step of an op by itself.
Step plain_step(const Program& program, const Descriptor& op, std::size_t index) {
    switch (op.kind) {
    case Kind::kMap: return plan_map_step(op);
    case Kind::kConcat: return plan_concat(op);
    case Kind::kQuant: return plan_quant(op, static_cast<int>(index), op.views[0]);
    case Kind::kFold:
        if (!op.is_qdot()) return plan_fold_step(op, op.views);
        if (auto qdot = plan_qdot(program, op)) return *qdot;
        return PlainStep{};
    default: return PlainStep{};
    }
}

// --- layouts ------------------------------------------------------------------------------------------------------------

// A permutation of a map's axes, outermost first, in which all that it reads lies contiguous; nothing if its own order will do.
std::optional<std::vector<std::size_t>> reading_order(const Descriptor& op) {
    const auto rank = op.extents.size();
    std::vector<std::size_t> order(rank);
    for (std::size_t axis = 0; axis < rank; ++axis) order[axis] = axis;
    const auto reads = [](const View& view) { return view.tag != Tag::kIota && !view.uniform(); };
    const auto whole = std::find_if(op.views.begin(), op.views.end(), [&](const View& view) {
        for (std::size_t axis = 0; axis < rank; ++axis)
            if (op.extents[axis] > 1 && view.strides[axis] <= 0) return false;
        return reads(view);
    });
    if (whole == op.views.end()) return std::nullopt;
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return whole->strides[a] > whole->strides[b]; });
    const std::size_t innermost = order.back();
    if (innermost == rank - 1) return std::nullopt;
    for (const View& view : op.views)
        if (reads(view) && view.strides[innermost] != 1 && view.strides[innermost] != 0) return std::nullopt;
    return order;
}

Descriptor permuted(const Descriptor& op, const std::vector<std::size_t>& order) {
    Descriptor result = op;
    for (std::size_t axis = 0; axis < order.size(); ++axis) {
        result.extents[axis] = op.extents[order[axis]];
        for (std::size_t v = 0; v < op.views.size(); ++v) result.views[v].strides[axis] = op.views[v].strides[order[axis]];
    }
    return result;
}

// `view` of the output of op `index` as a view of the same output with its axes stored in `order`.
std::optional<View> in_order(const View& view, const Descriptor& reader, const Descriptor& op, const std::vector<std::size_t>& order) {
    const std::vector<Index> stored = row_major(permuted(op, order).extents);
    std::vector<Index> strides(order.size());
    for (std::size_t axis = 0; axis < order.size(); ++axis) strides[order[axis]] = stored[axis];
    Descriptor turned = op;
    turned.views = {View{view.tag, view.index, 0, strides}};
    std::vector<Index> extents = reader.extents;
    extents.push_back(reader.k);
    return read_through(view, extents, turned);
}

// The gradient of an embedding whose rows come from a map that also transposes them, as the committed form of the fold wants: the
// map is stored as its operands lie, and its rows are added where they belong.
void find_scatters(const Program& program, std::vector<std::vector<View>>& views, Schedule& schedule) {
    std::vector<int> readers(program.ops.size(), 0);
    const auto count = [&](int op) { ++readers[static_cast<std::size_t>(op)]; };
    for (const std::vector<View>& read : views)
        for (const View& view : read)
            if (view.tag == Tag::kOp) count(view.index);
    for (const Alias& alias : program.outputs)
        if (alias.kind == 1) count(alias.index);
    for (std::size_t r = 0; r < views.size(); ++r) {
        if (program.ops[r].kind != Kind::kFold || program.ops[r].is_qdot() || !std::holds_alternative<std::monostate>(schedule.fused[r])) continue;
        for (std::size_t side = 0; side < views[r].size(); ++side) {
            if (views[r][side].tag != Tag::kOp) continue;
            const auto i = static_cast<std::size_t>(views[r][side].index);
            const Descriptor& map = program.ops[i];
            if (map.kind != Kind::kMap || is_copy(map) || readers[i] != 1) continue;
            const auto order = reading_order(map);
            const auto view = order ? in_order(views[r][side], program.ops[r], map, *order) : std::nullopt;
            if (!view) continue;
            std::vector<View> turned = views[r];
            turned[side] = *view;
            auto scatter = plan_scatter(program, program.ops[r], turned);
            if (!scatter) continue;
            views[r] = {scatter->index, scatter->table};
            schedule.fused[r] = std::move(*scatter);
            schedule.fused[i] = plan_map_step(permuted(map, *order));
            break;
        }
    }
}

// Quants of one tensor run in the place of the first of them, which the others then read.
void find_quants(const Program& program, std::vector<std::vector<View>>& views, Schedule& schedule, Budget& budget) {
    std::vector<bool> taken;
    for (const Fused& fused : schedule.fused) taken.push_back(!std::holds_alternative<std::monostate>(fused));
    for (QuantGroup& group : plan_quants(program, views, taken, budget)) {
        for (const int op : group.absorbed) {
            views[static_cast<std::size_t>(op)] = {View{Tag::kOp, group.op, 0, {}}};
            schedule.fused[static_cast<std::size_t>(op)] = Absorbed{};
        }
        schedule.fused[static_cast<std::size_t>(group.op)] = std::move(group.step);
    }
}

// Column sums: the committed form transposes what a map computes and folds its rows. Where a fold alone reads such a map, the map
// is stored as its operands lie, and the fold walks down columns.
void choose_layouts(Program& program, std::vector<std::vector<View>>& views, Schedule& schedule) {
    const std::size_t n = program.ops.size();
    std::vector<std::size_t> readers(n, 0), reader(n, 0);
    std::vector<bool> alone(n, false);  // neither part of a group nor run in another form
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        alone[i] = std::holds_alternative<std::monostate>(schedule.fused[i]);
    }
    for (std::size_t i = 0; i < n; ++i)
        for (const View& view : views[i])
            if (view.tag == Tag::kOp && schedule.needed[i]) {
                ++readers[static_cast<std::size_t>(view.index)];
                reader[static_cast<std::size_t>(view.index)] = i;
            }
    for (std::size_t i = 0; i < n; ++i) {
        if (!std::holds_alternative<MapStep>(schedule.fused[i])) continue;  // a scatter reads it
        program.ops[i] = permuted(program.ops[i], *reading_order(program.ops[i]));
        views[i] = program.ops[i].views;
    }
    for (std::size_t i = 0; i < n; ++i) {
        const std::size_t r = reader[i];
        if (schedule.kept[i] || readers[i] != 1 || !alone[i] || !alone[r] || program.ops[i].kind != Kind::kMap || is_copy(program.ops[i]) ||
            !std::holds_alternative<FoldStep>(schedule.steps[r]) || views[r].size() != 1)
            continue;
        const auto order = reading_order(program.ops[i]);
        const auto view = order ? in_order(views[r][0], program.ops[r], program.ops[i], *order) : std::nullopt;
        if (!view) continue;
        program.ops[i] = permuted(program.ops[i], *order);
        views[i] = program.ops[i].views;
        views[r] = {*view};
        schedule.fused[i] = plan_map_step(program.ops[i]);
        schedule.fused[r] = plan_fold(program.ops[r], {&views[r][0]});
    }
}

// --- memory -------------------------------------------------------------------------------------------------------------

// Which ops run, and which of them have memory of their own.
void choose_results(const Program& program, const std::vector<std::vector<View>>& views, Schedule& schedule) {
    const std::size_t n = program.ops.size();
    schedule.kept.assign(n, false);
    for (const Alias& alias : program.outputs)
        if (alias.kind == 1) schedule.kept[static_cast<std::size_t>(alias.index)] = true;
    schedule.needed = schedule.kept;
    for (std::size_t i = n; i-- > 0;)
        if (schedule.needed[i])
            for (const View& view : views[i])
                if (view.tag == Tag::kOp) schedule.needed[static_cast<std::size_t>(view.index)] = true;
}


// What a step reads and leaves in memory, by op.
struct Traffic {
    std::vector<int> reads, writes;
};

Traffic traffic_of(const Fused& fused, int op, const std::vector<View>& views) {
    Traffic traffic;
    const auto* group = std::get_if<StripGroup>(&fused);
    if (std::holds_alternative<Absorbed>(fused)) return traffic;
    if (const auto* quant = std::get_if<QuantStep>(&fused)) {
        if (quant->source.tag == Tag::kOp) traffic.reads.push_back(quant->source.index);
        for (const QuantOutput& output : quant->outputs)
            if (std::find(traffic.writes.begin(), traffic.writes.end(), output.op) == traffic.writes.end()) traffic.writes.push_back(output.op);
        return traffic;
    }
    if (!group) {
        for (const View& view : views)
            if (view.tag == Tag::kOp) traffic.reads.push_back(view.index);
        traffic.writes.push_back(op);
        return traffic;
    }
    for (const StripMember& m : group->members) {
        for (const StripOperand& o : m.operands)
            if (o.member < 0 && o.source.tag == Tag::kOp) traffic.reads.push_back(o.source.index);
        if (!m.wide || m.buffer < 0) traffic.writes.push_back(m.op);
    }
    return traffic;
}

// Codes are a quarter of what they are made of. Where quants alone read a tensor long after everything else has, they run as soon as
// that has: their codes wait in its place.
void hasten_quants(const Program& program, const std::vector<std::vector<View>>& views, Schedule& schedule) {
    constexpr std::size_t kLong = 16;  // steps
    const std::size_t n = program.ops.size(), steps = schedule.order.size();
    std::vector<std::size_t> position(n, 0), made_at(n, 0);
    for (std::size_t at = 0; at < steps; ++at) position[static_cast<std::size_t>(schedule.order[at])] = at;
    std::vector<std::vector<std::size_t>> read_at(n);
    for (std::size_t at = 0; at < steps; ++at) {
        const auto i = static_cast<std::size_t>(schedule.order[at]);
        const Traffic own = traffic_of(schedule.fused[i], schedule.order[at], views[i]);
        const int loop = schedule.loop_of[i];
        const std::size_t runs_at = loop < 0 ? at : position[schedule.loops[static_cast<std::size_t>(loop)].members.back()];
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
            for (const int op : traffic_of(*quant_at(readers[late]), 0, {}).writes) words += program.ops[static_cast<std::size_t>(op)].elements;
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

// The arena: each output lies there from its step to its last reader's. A loop reads where its last member stands.
void place(const Program& program, const std::vector<std::vector<View>>& views, Schedule& schedule) {
    const std::size_t n = program.ops.size(), steps = schedule.order.size();
    std::vector<std::size_t> position(n, 0), last_use(n, 0);
    for (std::size_t at = 0; at < steps; ++at) position[static_cast<std::size_t>(schedule.order[at])] = at;
    // A run is one step: the first one of its steps reads and writes all.
    std::vector<Traffic> traffic(steps);
    std::vector<bool> shared(n, false);
    for (const BatchRun& run : schedule.runs)
        for (const BatchRun::Share& share : run.shares) shared[static_cast<std::size_t>(share.op)] = true;
    for (std::size_t at = 0; at < steps; ++at) {
        const auto i = static_cast<std::size_t>(schedule.order[at]);
        const Traffic own = traffic_of(schedule.fused[i], schedule.order[at], views[i]);
        const int run = schedule.run_of[i], loop = schedule.loop_of[i];
        const std::size_t runs_at = run < 0 ? at : position[static_cast<std::size_t>(schedule.runs[static_cast<std::size_t>(run)].ops.front())];
        const std::size_t read_at = run >= 0 || loop < 0 ? runs_at : position[schedule.loops[static_cast<std::size_t>(loop)].members.back()];
        for (const int op : own.writes)
            if (!shared[static_cast<std::size_t>(op)]) traffic[runs_at].writes.push_back(op);
        for (const std::vector<int>* used : {&own.reads, &own.writes})
            for (const int read : *used) last_use[static_cast<std::size_t>(read)] = std::max(last_use[static_cast<std::size_t>(read)], read_at);
    }
    schedule.needed.assign(n, false);
    schedule.arena_offset.assign(n, -1);
    std::vector<std::size_t> placed;
    std::vector<Stay> stays;
    for (std::size_t at = 0; at < steps; ++at)
        for (const int op : traffic[at].writes) {
            const auto i = static_cast<std::size_t>(op);
            schedule.needed[i] = true;
            if (schedule.kept[i]) continue;
            placed.push_back(i);
            stays.push_back({at, last_use[i] + 1, whole_lines(program.ops[i].elements)});
        }
    schedule.arena_words = place_stays(stays);
    for (std::size_t k = 0; k < stays.size(); ++k) schedule.arena_offset[placed[k]] = stays[k].offset;
}

// --- groups -------------------------------------------------------------------------------------------------------------

// A group's ops run in the place of the last one, and what reads them before that runs after it.
void take_place(StripGroup&& group, Schedule& schedule, Budget& budget) {
    budget.spend(static_cast<Index>(schedule.order.size()), 16);
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

void find_groups(const Program& program, const std::vector<std::vector<View>>& views, Schedule& schedule, Budget& budget) {
    for (std::size_t i = 0; i < program.ops.size(); ++i)
        if (schedule.needed[i]) schedule.order.push_back(static_cast<int>(i));
    std::vector<bool> taken;
    for (const Fused& fused : schedule.fused) taken.push_back(!std::holds_alternative<std::monostate>(fused));
    for (StripGroup& group : plan_strips(program, views, schedule.needed, std::move(taken), budget)) take_place(std::move(group), schedule, budget);
}

// Where element `begin` + i * `step` of a map's row-major output comes from, for i < count.
std::vector<Index> places_of(const std::vector<Index>& extents, const std::vector<Index>& strides, Index begin, Index count, Index step) {
    const std::vector<Index> row = row_major(extents);
    std::vector<Index> found;
    for (Index i = 0; i < count; ++i) {
        Index rest = begin + i * step, place = 0;
        for (std::size_t axis = 0; axis < extents.size(); ++axis) {
            place += rest / row[axis] * strides[axis];
            rest %= row[axis];
        }
        found.push_back(place);
    }
    return found;
}

// A map that one sum alone reads, whole and in its order, and that is a copy or a product: its rows, and pieces of kPiece of its
// terms, lie in its operands as they are, so that it need not exist. This is how batch norm sums an image's channels.
std::optional<PiecewiseSumStep> sum_in_pieces(const Descriptor& fold, const Descriptor& map, Budget& budget) {
    constexpr Index kLeastOutputs = 8;     // lanes beyond them do nothing
    constexpr Index kMostTerms = 1 << 20;  // whose places are looked at
    const bool product = map.instrs.size() == 1 && static_cast<Op>(map.instrs[0].op) == Op::FMUL;
    if (!(is_copy(map) || product) || fold.elements < kLeastOutputs || fold.k % kPiece != 0 || fold.k > kMostTerms || map.elements != fold.elements * fold.k) return std::nullopt;
    PiecewiseSumStep step{};
    budget.spend(fold.elements + 2 * fold.k, 64);
    budget.hold(fold.elements + 2 * fold.k, kPlaceBytes);
    step.plan = {fold.elements, fold.k, product ? 2 : 1, {}, {}};
    auto table = std::make_shared<std::vector<Index>>();
    const Index pieces = fold.k / kPiece;
    bool in_pieces = false;
    for (int v = 0; v < step.plan.operands; ++v) {
        const std::size_t own = product ? (v == 0 ? map.instrs[0].a : map.instrs[0].b) : 0;
        const View& view = map.views[own];
        if (view.tag == Tag::kIota) return std::nullopt;
        const PlacesAlong rows(places_of(map.extents, view.strides, 0, fold.elements, fold.k)), terms(places_of(map.extents, view.strides, 0, fold.k, 1));
        const std::vector<Index> last = places_of(map.extents, view.strides, (fold.elements - 1) * fold.k, fold.k, 1);
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

void read_sums_in_place(const Program& program, std::vector<std::vector<View>>& views, Schedule& schedule, Budget& budget) {
    std::vector<int> readers(program.ops.size(), 0);
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        for (const int read : traffic_of(schedule.fused[i], op, views[i]).reads) ++readers[static_cast<std::size_t>(read)];
    }
    const auto alone = [&](std::size_t i) { return std::holds_alternative<std::monostate>(schedule.fused[i]); };
    std::vector<bool> gone(program.ops.size(), false);
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        const Descriptor& fold = program.ops[i];
        const auto* sum = std::get_if<FoldStep>(&schedule.steps[i]);
        if (!alone(i) || !sum || sum->plan.mode != FoldMode::kSum || views[i].size() != 1 || views[i][0].tag != Tag::kOp) continue;
        const View& view = views[i][0];
        const auto m = static_cast<std::size_t>(view.index);
        std::vector<Index> extents = fold.extents;
        extents.push_back(fold.k);
        if (program.ops[m].kind != Kind::kMap || !alone(m) || schedule.kept[m] || readers[m] != 1 || view.offset != 0 || view.strides != row_major(extents)) continue;
        auto step = sum_in_pieces(fold, program.ops[m], budget);
        if (!step) continue;
        schedule.fused[i] = std::move(*step);
        views[i] = views[m];
        schedule.needed[m] = false;
        gone[m] = true;
    }
    std::erase_if(schedule.order, [&](int op) { return gone[static_cast<std::size_t>(op)]; });
}

// A concat that one part of another concat alone reads, whole: its parts are copied to their place in the other one at once. This is
// how an image gets its padding along both axes.
void join_concats(const Program& program, std::vector<std::vector<View>>& views, Schedule& schedule) {
    std::vector<int> readers(program.ops.size(), 0);
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        for (const int read : traffic_of(schedule.fused[i], op, views[i]).reads) ++readers[static_cast<std::size_t>(read)];
    }
    const auto alone = [&](std::size_t i) { return program.ops[i].kind == Kind::kConcat && std::holds_alternative<std::monostate>(schedule.fused[i]); };
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
                joint.sources.push_back(own.sources[part]);
                joint.out_offsets.push_back(own.out_offsets[part]);
                read.push_back(view);
                continue;
            }
            const Descriptor& inner = program.ops[inside];
            Index before = 0;
            for (std::size_t j = 0; j < inner.views.size(); ++j) {
                std::vector<Index> own_extents = inner.extents;
                own_extents[inner.p0] = inner.sizes[j];
                joint.parts.push_back(plan_map(own_extents, *placed, {&inner.views[j]}, {}));
                joint.sources.push_back({source_of(inner.views[j])});
                joint.out_offsets.push_back(own.out_offsets[part] + before * (*placed)[inner.p0]);
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

// Products that are in no group read their operands in place, and copies that nobody reads any more are not made.
void read_products_in_place(const Program& program, std::vector<std::vector<View>>& views, Schedule& schedule, Budget& budget) {
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        auto* gemm = std::get_if<GemmStep>(&schedule.steps[i]);
        if (!gemm || !std::holds_alternative<std::monostate>(schedule.fused[i])) continue;
        const bool b = read_in_place(program, *gemm, 1, budget), a = read_in_place(program, *gemm, 0, budget);
        if (!a && !b) continue;
        views[i].clear();
        for (const Source& source : {gemm->a, gemm->b}) views[i].push_back(View{source.tag, source.index, source.offset, {}});
        schedule.reads[i] = ops_read(views[i]);
    }
    std::vector<bool> read = schedule.kept;
    std::vector<int> order;
    for (std::size_t at = schedule.order.size(); at-- > 0;) {
        const int op = schedule.order[at];
        const auto i = static_cast<std::size_t>(op);
        if (!read[i] && is_copy(program.ops[i]) && std::holds_alternative<std::monostate>(schedule.fused[i])) {
            schedule.needed[i] = false;
            continue;
        }
        for (const int source : traffic_of(schedule.fused[i], op, views[i]).reads) read[static_cast<std::size_t>(source)] = true;
        order.push_back(op);
    }
    schedule.order.assign(order.rbegin(), order.rend());
}

// Maps that still have a step of their own, in the Program's order, may run in loops; a group's maps are loops, too.
void find_loops(const Program& program, const std::vector<std::vector<View>>& views, Schedule& schedule, Budget& budget) {
    std::vector<bool> candidate(program.ops.size(), false);
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        candidate[i] = program.ops[i].kind == Kind::kMap && !program.ops[i].instrs.empty() && !is_copy(program.ops[i]) &&
                       !std::holds_alternative<ScatterPlan>(schedule.fused[i]) && !std::holds_alternative<StripGroup>(schedule.fused[i]) &&
                       !std::holds_alternative<Absorbed>(schedule.fused[i]);
    }
    for (Fused& fused : schedule.fused)
        if (const auto* group = std::get_if<StripGroup>(&fused))
            for (const int op : group->postponed) candidate[static_cast<std::size_t>(op)] = false;
    schedule.loops = make_loops(program, views, candidate, schedule.needed, schedule.kept, budget);
    schedule.loop_of.assign(program.ops.size(), -1);
    for (std::size_t l = 0; l < schedule.loops.size(); ++l)
        for (const std::size_t member : schedule.loops[l].members) schedule.loop_of[member] = static_cast<int>(l);
    for (Fused& fused : schedule.fused)
        if (auto* group = std::get_if<StripGroup>(&fused)) add_loops(*group, schedule.loops);
}

}  // namespace

std::vector<int> ops_read(const std::vector<View>& views) {
    std::vector<int> ops;
    for (const View& view : views)
        if (view.tag == Tag::kOp && std::find(ops.begin(), ops.end(), view.index) == ops.end()) ops.push_back(view.index);
    return ops;
}

namespace {

Schedule fused_schedule(const Program& original, Budget& budget) {
    for (const Descriptor& op : original.ops) budget.spend(static_cast<Index>(1 + op.views.size()), kPasses * kPass);
    Schedule schedule;
    schedule.planned = recompute(original);
    const Program& program = schedule.planned.program;
    std::vector<std::vector<View>> views;
    Program cut = program;
    for (const Descriptor& op : program.ops) {
        views.push_back(op.views);
        schedule.reads.push_back(ops_read(op.views));
        schedule.fused.emplace_back();
        switch (op.kind) {
        case Kind::kQuant: {
            const std::size_t own = schedule.steps.size();
            Descriptor& finer = cut.ops[own];
            finer = cut_as_copied(program, op);
            View& view = views.back()[0] = finer.views[0];
            if (const View through = seen_through(program, finer, view, budget); quantises(finer, through)) view = through;
            schedule.steps.emplace_back(plan_quant(finer, static_cast<int>(own), view));
            schedule.reads.back() = ops_read(views.back());
            break;
        }
        case Kind::kFold:
            if (op.is_qdot()) {
                schedule.steps.push_back(plain_step(program, op, schedule.steps.size()));
                break;
            }
            for (View& view : views.back()) view = seen_through(program, op, view, budget);
            schedule.steps.push_back(plan_fold_step(op, views.back()));
            if (std::holds_alternative<PlainStep>(schedule.steps.back())) views.back() = op.views;
            schedule.reads.back() = ops_read(views.back());
            if (auto scatter = plan_scatter(program, op, views.back())) {
                views.back() = {scatter->index, scatter->table};
                schedule.fused.back() = std::move(*scatter);
            }
            break;
        default: schedule.steps.push_back(plain_step(program, op, schedule.steps.size()));
        }
    }
    find_scatters(program, views, schedule);
    find_quants(cut, views, schedule, budget);
    choose_results(program, views, schedule);
    find_groups(program, views, schedule, budget);
    read_products_in_place(program, views, schedule, budget);
    Program laid_out = program;
    choose_layouts(laid_out, views, schedule);
    read_sums_in_place(laid_out, views, schedule, budget);
    join_concats(program, views, schedule);
    find_loops(laid_out, views, schedule, budget);
    for (std::size_t i = 0; i < program.ops.size(); ++i)
        if (program.ops[i].kind == Kind::kQuant) laid_out.ops[i] = cut.ops[i];
    hasten_quants(program, views, schedule);
    schedule.runs = plan_batches(laid_out, views, schedule, budget);
    schedule.run_of.assign(program.ops.size(), -1);
    for (std::size_t r = 0; r < schedule.runs.size(); ++r)
        for (const int op : schedule.runs[r].ops) schedule.run_of[static_cast<std::size_t>(op)] = static_cast<int>(r);
    place(program, views, schedule);
    return schedule;
}

// Every op by itself, with its operands where the Program has them.
Schedule plain_schedule(const Program& program, std::string reason) {
    const std::size_t n = program.ops.size();
    Schedule schedule;
    schedule.planned = as_written(program);
    schedule.plain = std::move(reason);
    schedule.fused.resize(n);
    schedule.loop_of.assign(n, -1);
    schedule.run_of.assign(n, -1);
    std::vector<std::vector<View>> views;
    for (const Descriptor& op : program.ops) {
        views.push_back(op.views);
        schedule.reads.push_back(ops_read(op.views));
        schedule.steps.push_back(plain_step(program, op, schedule.steps.size()));
    }
    choose_results(program, views, schedule);
    for (std::size_t i = 0; i < n; ++i)
        if (schedule.needed[i]) schedule.order.push_back(static_cast<int>(i));
    place(program, views, schedule);
    return schedule;
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
    Schedule schedule = plain_schedule(original, std::move(reason));
    if (const std::string why = unsound(schedule); !why.empty()) throw std::logic_error("no schedule: " + why);
    return schedule;
}

}  // namespace lockstep
