// Quants as steps, and those of one tensor as one step: codes, scales, those of what they leave of it, copies of them.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "apply_op.hpp"
#include "plan/axes.hpp"
#include "plan/passes.hpp"
#include "plan/steps.hpp"
#include "plan/views.hpp"

namespace lockstep {
namespace {

constexpr Index kLeastColumns = 8;  // rows side by side that are worth a tile
constexpr std::size_t kMostOutputs = 64;

Indices rows_of(const Descriptor& quant) { return {quant.extents.begin(), quant.extents.end() - 1}; }
Axes row_axes(const Descriptor& op, const View& view) { return Axes{rows_of(op), {view.strides}}.merged(); }

template <class... Index_>
Indices joined(Indices extents, Index_... more) {
    (extents.push_back(more), ...);
    return extents;
}

bool same_place(const View& a, const View& b) { return a.tag == b.tag && a.index == b.index && a.offset == b.offset; }

// The registers of x - code x scale, with a code's byte spread over its word: x, codes, shifts, scales.
std::optional<std::array<int, 4>> parts_of_rest(const Descriptor& map) {
    const int operands = static_cast<int>(map.views.size());
    if (operands != 4 || map.instrs.size() != 6) return std::nullopt;
    const auto made_by = [&](int reg, Op op) -> const Instr* {
        if (reg < operands) return nullptr;
        const Instr& instr = map.instrs[static_cast<std::size_t>(reg - operands)];
        return static_cast<Op>(instr.op) == op ? &instr : nullptr;
    };
    const Instr* rest = made_by(operands + 5, Op::FSUB);
    const Instr* value = rest ? made_by(rest->b, Op::FMUL) : nullptr;
    const Instr* code = value ? made_by(value->a, Op::I2F) : nullptr;
    const Instr* down = code ? made_by(code->a, Op::ISHR) : nullptr;
    const Instr* up = down ? made_by(down->a, Op::ISHL) : nullptr;
    const Instr* bits = down ? made_by(down->b, Op::IMM) : nullptr;
    if (!up || !bits || bits->imm != 24) return std::nullopt;
    const std::array<int, 4> parts{rest->a, up->a, up->b, value->b};
    for (const int reg : parts)
        if (reg >= operands) return std::nullopt;
    return parts;
}

// Whether the map is what the codes and scales leave of what they are of.
bool is_rest(const Program& program, const Descriptor& map, int codes, int scales) {
    const auto parts = map.kind == Kind::kMap ? parts_of_rest(map) : std::nullopt;
    const Descriptor& quant = program.at(codes);
    const Index words = quant.p0, groups = quant.groups();
    if (!parts || quant.k != 4 * words * groups || map.elements != product(rows_of(quant)) * quant.k) return false;
    const auto part = [&](std::size_t i) -> const View& { return map.views[static_cast<std::size_t>((*parts)[i])]; };
    if (part(1).tag != Tag::kOp || part(1).index != codes || part(1).offset != 0) return false;
    if (part(3).tag != Tag::kOp || part(3).index != scales || part(3).offset != 0) return false;
    if (part(2).tag != Tag::kIota || part(2).offset != 24 || !same_place(part(0), quant.views[0])) return false;
    const Indices rows = rows_of(quant), all = joined(rows, groups, words, Index{4});
    const auto axes = refined(map.extents, cuts_of(all));
    if (!axes) return false;
    const auto matches = [&](const View& view, const Indices& extents, const Indices& strides) {
        const auto found = along(map.extents, view.strides, *axes), due = along(extents, strides, *axes);
        return found && due && *found == *due;
    };
    Indices values = quant.views[0].strides;
    values.erase(values.end() - 2);  // the axis of the words
    Indices shifts(all.size(), 0);
    shifts.back() = -8;
    return matches(part(0), joined(rows, quant.k), values) && matches(part(1), all, joined(row_major(joined(rows, groups, words)), Index{0})) &&
           matches(part(2), all, shifts) && matches(part(3), all, joined(row_major(joined(rows, groups)), Index{0}, Index{0}));
}

}  // namespace

bool quantises(const Descriptor& op, const View& view) {
    if (view.strides.back() == 1) return true;
    const Axes axes = row_axes(op, view);
    return op.p0 >= 2 && !axes.extents.empty() && axes.strides[0].back() == 1 && axes.extents.back() >= kLeastColumns;
}

QuantStep plan_quant(const Descriptor& op, int index, const View& view) {
    const Axes axes = row_axes(op, view);
    QuantStep step{};
    QuantPlan& plan = step.plan;
    plan.axes = static_cast<int>(axes.extents.size());
    for (int ax = 0; ax < plan.axes; ++ax) {
        plan.extents[ax] = axes.extents[static_cast<std::size_t>(ax)];
        plan.strides[ax] = axes.strides[0][static_cast<std::size_t>(ax)];
    }
    const Index rows = product(axes.extents), inner = plan.axes ? axes.extents.back() : 1;
    plan.k = op.k;
    plan.k_stride = view.strides.back();
    plan.words = op.p0;
    plan.groups = op.groups();
    plan.columns = plan.k_stride != 1;
    plan.blocks = plan.columns ? (inner + kRowsAtOnce - 1) / kRowsAtOnce : inner;
    plan.items = rows / inner * plan.blocks * plan.groups;
    plan.power = op.power();
    plan.limbs = 1;
    plan.stream[0] = op.p1;
    step.source = source_of(view);
    step.outputs.push_back({index, 0, op.extents.back(), op.wants_codes() ? 0 : 1});
    return step;
}

// Quants of one tensor run in the place of the first of them, which the others then read.
void Planner::find_quants() {
    const std::size_t n = program.ops.size();
    std::vector<std::vector<int>> readers(n);
    std::vector<bool> taken(n);
    for (std::size_t i = 0; i < n; ++i) {
        taken[i] = !schedule.alone(i);
        for (const int read : ops_read(views[i])) readers[static_cast<std::size_t>(read)].push_back(static_cast<int>(i));
    }

    // Codes and scales of the same values: a second pair of codes would be rounded otherwise.
    using Key = std::tuple<int, int, Index, Indices, Indices, Index, Word, bool>;
    std::map<Key, std::array<std::vector<int>, 2>> found;
    for (std::size_t i = 0; i < n; ++i) {
        const Descriptor& op = program.ops[i];
        if (op.kind != Kind::kQuant || taken[i]) continue;
        const View& view = views[i][0];
        found[{static_cast<int>(view.tag), view.index, view.offset, view.strides, rows_of(op), op.k, op.p0, op.power()}][op.wants_codes() ? 0 : 1].push_back(
            static_cast<int>(i));
    }
    struct Pair {
        int codes, scales;
    };
    std::vector<Pair> pairs;
    std::vector<int> pair_of(n, -1);
    for (const auto& [key, ops] : found)
        for (std::size_t j = 0; j < std::max(ops[0].size(), ops[1].size()); ++j) {
            const Pair pair{j < ops[0].size() ? ops[0][j] : -1, j < ops[1].size() ? ops[1][j] : -1};
            for (const int op : {pair.codes, pair.scales})
                if (op >= 0) pair_of[static_cast<std::size_t>(op)] = static_cast<int>(pairs.size());
            pairs.push_back(pair);
        }

    std::vector<bool> done(pairs.size(), false);
    for (std::size_t i = 0; i < n; ++i) {
        if (pair_of[i] < 0 || done[static_cast<std::size_t>(pair_of[i])]) continue;
        const auto own = static_cast<std::size_t>(pair_of[i]);
        done[own] = true;
        const Pair high = pairs[own];
        QuantStep step = plan_quant(program.ops[i], static_cast<int>(i), views[i][0]);
        step.outputs.clear();
        std::vector<int> absorbed;
        QuantPlan& plan = step.plan;
        std::vector<int> arrays{high.codes, high.scales, -1, -1};
        if (high.codes >= 0) plan.stream[0] = program.at(high.codes).p1;
        int rest = -1;
        if (high.codes >= 0 && high.scales >= 0)
            for (const int reader : readers[static_cast<std::size_t>(high.codes)]) {
                const auto r = static_cast<std::size_t>(reader);
                if (taken[r] || schedule.kept[r] || readers[r].empty() || !is_rest(program, program.ops[r], high.codes, high.scales)) continue;
                const int low = pair_of[static_cast<std::size_t>(readers[r][0])];
                if (low < 0 || done[static_cast<std::size_t>(low)]) continue;
                const Pair pair = pairs[static_cast<std::size_t>(low)];
                const Descriptor& codes = program.at(high.codes);
                const auto of_rest = [&](int index) {
                    if (index < 0) return true;
                    const Descriptor& op = program.at(index);
                    return op.p0 == codes.p0 && op.k == codes.k && op.power() == plan.power &&
                           reads_all(program, views[static_cast<std::size_t>(index)][0], joined(rows_of(op), Index{1}, op.k));
                };
                if (!of_rest(pair.codes) || !of_rest(pair.scales)) continue;
                if (std::any_of(readers[r].begin(), readers[r].end(), [&](int q) { return q != pair.codes && q != pair.scales; })) continue;
                done[static_cast<std::size_t>(low)] = true;
                rest = reader;
                plan.limbs = 2;
                arrays[2] = pair.codes;
                arrays[3] = pair.scales;
                if (pair.codes >= 0) plan.stream[1] = program.at(pair.codes).p1;
                break;
            }
        if (rest >= 0) absorbed.push_back(rest);
        const auto array_of = [&](int op) { return static_cast<int>(std::find(arrays.begin(), arrays.end(), op) - arrays.begin()); };
        // Copies of nothing else: the parts of a product's operand.
        std::vector<int> copies;
        for (const int array : arrays)
            if (array >= 0)
                for (const int reader : readers[static_cast<std::size_t>(array)]) {
                    const auto r = static_cast<std::size_t>(reader);
                    const Descriptor& op = program.ops[r];
                    budget.spend(static_cast<Index>(copies.size() + op.views.size()));
                    if (op.kind != Kind::kConcat || taken[r] || op.p0 + 1 != op.extents.size() || std::find(copies.begin(), copies.end(), reader) != copies.end()) continue;
                    std::vector<QuantOutput> parts;
                    Index before = 0;
                    for (std::size_t j = 0; j < op.views.size(); ++j) {
                        Indices extents = op.extents;
                        extents.back() = op.sizes[j];
                        const int array_read = op.views[j].tag == Tag::kOp ? array_of(op.views[j].index) : 4;
                        if (array_read > 3 || program.at(op.views[j].index).extents.back() != op.sizes[j] || !reads_all(program, op.views[j], extents)) break;
                        parts.push_back({reader, before, op.extents.back(), array_read});
                        before += op.sizes[j];
                    }
                    if (parts.size() != op.views.size() || step.outputs.size() + parts.size() > kMostOutputs - 4) continue;
                    step.outputs.insert(step.outputs.end(), parts.begin(), parts.end());
                    copies.push_back(reader);
                    absorbed.push_back(reader);
                }
        for (int a = 0; a < 4; ++a) {
            const int op = arrays[static_cast<std::size_t>(a)];
            if (op < 0) continue;
            if (op != static_cast<int>(i)) absorbed.push_back(op);
            const auto& by = readers[static_cast<std::size_t>(op)];
            const bool read = std::any_of(by.begin(), by.end(), [&](int r) { return r != rest && std::find(copies.begin(), copies.end(), r) == copies.end(); });
            if (read || schedule.kept[static_cast<std::size_t>(op)]) step.outputs.push_back({op, 0, program.at(op).extents.back(), a});
        }
        if (step.outputs.empty()) continue;
        for (const int op : absorbed) {
            views[static_cast<std::size_t>(op)] = {View{Tag::kOp, static_cast<int>(i), 0, {}}};
            schedule.fused[static_cast<std::size_t>(op)] = Absorbed{};
        }
        schedule.fused[i] = std::move(step);
    }
}

}  // namespace lockstep
