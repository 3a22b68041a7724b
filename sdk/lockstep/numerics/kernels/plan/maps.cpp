// Maps and concats as steps: axes merged, blocks chosen, registers in buffers.
#include <algorithm>

#include "apply_op.hpp"
#include "plan/axes.hpp"
#include "plan/steps.hpp"

namespace lockstep {
namespace {

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

MapPlan plan_map(const std::vector<Index>& extents, const std::vector<Index>& out_strides, const std::vector<View>& views,
                 const std::vector<Instr>& instrs) {
    Axes axes{extents, {out_strides}};
    for (const View& view : views) axes.strides.push_back(view.strides);
    axes = axes.merged();
    MapPlan plan{};
    set_axes(plan, axes);
    plan.instrs = static_cast<int>(instrs.size());
    std::vector<bool> uniform;
    for (std::size_t v = 0; v < views.size(); ++v) {
        MapOperand& operand = plan.operand[v];
        operand.iota = views[v].tag == Tag::kIota;
        operand.offset = static_cast<Word>(views[v].offset);
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

MapStep plan_map_step(const Descriptor& op) {
    MapStep step{{{plan_map(op.extents, row_major(op.extents), op.views, with_read_registers_only(op)), {}, 0}}};
    for (const View& view : op.views) step.parts[0].sources.push_back(source_of(view));
    return step;
}

MapStep plan_concat(const Descriptor& op) {
    MapStep step;
    const std::vector<Index> strides = row_major(op.extents);
    Index before = 0;
    for (std::size_t i = 0; i < op.views.size(); ++i) {
        std::vector<Index> extents = op.extents;
        extents[op.p0] = op.sizes[i];
        step.parts.push_back({plan_map(extents, strides, {op.views[i]}, {}), {source_of(op.views[i])}, before * strides[op.p0]});
        before += op.sizes[i];
    }
    return step;
}

}  // namespace lockstep
