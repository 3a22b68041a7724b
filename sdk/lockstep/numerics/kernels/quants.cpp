// Finding quants of one tensor.
#include "quants.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>

#include "apply_op.hpp"
#include "axes.hpp"

namespace lockstep {
namespace {

using Indices = std::vector<Index>;

constexpr Index kLeastColumns = 8;  // rows side by side that are worth a tile
constexpr std::size_t kMostOutputs = 64;

Index product(const Indices& extents) { return std::accumulate(extents.begin(), extents.end(), Index{1}, std::multiplies<>()); }

Indices rows_of(const Descriptor& quant) { return {quant.extents.begin(), quant.extents.end() - 1}; }
Index groups_of(const Descriptor& quant) { return (quant.k + 4 * quant.p0 - 1) / (4 * quant.p0); }

Axes row_axes(const Descriptor& op, const View& view) {
    Axes axes{rows_of(op), {{view.strides.begin(), view.strides.begin() + static_cast<std::ptrdiff_t>(op.extents.size() - 1)}}};
    axes.merge();
    return axes;
}

template <class... Index_>
Indices joined(Indices extents, Index_... more) {
    (extents.push_back(more), ...);
    return extents;
}

// `strides` over `extents`, as those of contiguous memory.
bool in_order(const Indices& extents, const Indices& strides) {
    const Indices due = row_major(extents);
    for (std::size_t axis = 0; axis < extents.size(); ++axis)
        if (extents[axis] > 1 && strides[axis] != due[axis]) return false;
    return true;
}

// Whether the view, over `extents`, is the whole output of the op, in its order.
bool reads_all(const Program& program, const View& view, const Indices& extents) {
    return view.tag == Tag::kOp && view.offset == 0 && product(extents) == program.ops[static_cast<std::size_t>(view.index)].elements &&
           in_order(extents, view.strides);
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
    const Descriptor& quant = program.ops[static_cast<std::size_t>(codes)];
    const Index words = quant.p0, groups = groups_of(quant);
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

Padding padding_of(const Program& program, const View& view, Index words) {
    if (view.tag != Tag::kOp) return {};
    const Descriptor& made = program.ops[static_cast<std::size_t>(view.index)];
    const Index pitch = made.extents.empty() ? 1 : made.extents.back();
    if (view.offset % pitch != 0) return {};
    for (std::size_t axis = 0; axis + 1 < view.strides.size(); ++axis)
        if (view.strides[axis] % pitch != 0) return {};
    const auto own = [&](const Descriptor& op) -> Padding {
        // Groups of other sizes have their padding elsewhere.
        if (op.kind != Kind::kQuant || !op.wants_codes() || op.p0 != words) return {};
        const Index groups = groups_of(op), last = (op.k - (groups - 1) * 4 * words + 3) / 4;
        return last == words ? Padding{} : Padding{groups, last};
    };
    if (made.kind != Kind::kConcat || made.p0 + 1 != made.extents.size()) return own(made);
    Padding all;
    for (std::size_t j = 0; j < made.views.size(); ++j) {
        Indices extents = made.extents;
        extents.back() = made.sizes[j];
        if (made.views[j].tag != Tag::kOp || !reads_all(program, made.views[j], extents)) return {};
        const Descriptor& part = program.ops[static_cast<std::size_t>(made.views[j].index)];
        const Padding found = own(part);
        if (part.extents.back() != made.sizes[j] || found.period == 0 || (j > 0 && (found.period != all.period || found.words != all.words))) return {};
        all = found;
    }
    return all;
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
    plan.groups = groups_of(op);
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

std::vector<QuantGroup> plan_quants(const Program& program, const std::vector<std::vector<View>>& views, const std::vector<bool>& taken, Budget& budget) {
    const std::size_t n = program.ops.size();
    const auto op_of = [&](int op) -> const Descriptor& { return program.ops[static_cast<std::size_t>(op)]; };
    std::vector<std::vector<int>> readers(n);
    std::vector<bool> kept(n, false);
    for (std::size_t i = 0; i < n; ++i)
        for (const View& view : views[i])
            if (view.tag == Tag::kOp && (readers[static_cast<std::size_t>(view.index)].empty() || readers[static_cast<std::size_t>(view.index)].back() != static_cast<int>(i)))
                readers[static_cast<std::size_t>(view.index)].push_back(static_cast<int>(i));
    for (const Alias& alias : program.outputs)
        if (alias.kind == 1) kept[static_cast<std::size_t>(alias.index)] = true;

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
    std::vector<QuantGroup> groups;
    for (std::size_t i = 0; i < n; ++i) {
        if (pair_of[i] < 0 || done[static_cast<std::size_t>(pair_of[i])]) continue;
        const auto own = static_cast<std::size_t>(pair_of[i]);
        done[own] = true;
        const Pair high = pairs[own];
        QuantGroup group;
        group.op = static_cast<int>(i);
        group.step = plan_quant(program.ops[i], group.op, views[i][0]);
        group.step.outputs.clear();
        QuantPlan& plan = group.step.plan;
        std::vector<int> arrays{high.codes, high.scales, -1, -1};
        if (high.codes >= 0) plan.stream[0] = op_of(high.codes).p1;
        int rest = -1;
        if (high.codes >= 0 && high.scales >= 0)
            for (const int reader : readers[static_cast<std::size_t>(high.codes)]) {
                const auto r = static_cast<std::size_t>(reader);
                if (taken[r] || kept[r] || readers[r].empty() || !is_rest(program, program.ops[r], high.codes, high.scales)) continue;
                const int low = pair_of[static_cast<std::size_t>(readers[r][0])];
                if (low < 0 || done[static_cast<std::size_t>(low)]) continue;
                const Pair pair = pairs[static_cast<std::size_t>(low)];
                const auto of_rest = [&](int op) {
                    return op < 0 || (op_of(op).p0 == op_of(high.codes).p0 && op_of(op).k == op_of(high.codes).k && op_of(op).power() == plan.power &&
                                      reads_all(program, views[static_cast<std::size_t>(op)][0], joined(rows_of(op_of(op)), Index{1}, op_of(op).k)));
                };
                if (!of_rest(pair.codes) || !of_rest(pair.scales)) continue;
                if (std::any_of(readers[r].begin(), readers[r].end(), [&](int q) { return q != pair.codes && q != pair.scales; })) continue;
                done[static_cast<std::size_t>(low)] = true;
                rest = reader;
                plan.limbs = 2;
                arrays[2] = pair.codes;
                arrays[3] = pair.scales;
                if (pair.codes >= 0) plan.stream[1] = op_of(pair.codes).p1;
                break;
            }
        if (rest >= 0) group.absorbed.push_back(rest);
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
                        if (array_read > 3 || op_of(op.views[j].index).extents.back() != op.sizes[j] || !reads_all(program, op.views[j], extents)) break;
                        parts.push_back({reader, before, op.extents.back(), array_read});
                        before += op.sizes[j];
                    }
                    if (parts.size() != op.views.size() || group.step.outputs.size() + parts.size() > kMostOutputs - 4) continue;
                    group.step.outputs.insert(group.step.outputs.end(), parts.begin(), parts.end());
                    copies.push_back(reader);
                    group.absorbed.push_back(reader);
                }
        for (int a = 0; a < 4; ++a) {
            const int op = arrays[static_cast<std::size_t>(a)];
            if (op < 0) continue;
            if (op != group.op) group.absorbed.push_back(op);
            const auto& by = readers[static_cast<std::size_t>(op)];
            const bool read = std::any_of(by.begin(), by.end(), [&](int r) { return r != rest && std::find(copies.begin(), copies.end(), r) == copies.end(); });
            if (read || kept[static_cast<std::size_t>(op)]) group.step.outputs.push_back({op, 0, op_of(op).extents.back(), a});
        }
        if (!group.step.outputs.empty()) groups.push_back(std::move(group));
    }
    return groups;
}

}  // namespace lockstep
