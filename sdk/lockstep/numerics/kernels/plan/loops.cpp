// Which maps run together, over which axes, in which blocks.
#include "loops.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "apply_op.hpp"
#include "plan/axes.hpp"
#include "plan/passes.hpp"
#include "plan/strip_groups.hpp"
#include "plan/views.hpp"

namespace lockstep {
namespace {

constexpr std::size_t kMostApart = 4;  // ops that may stand between members: what they read lives as much longer
constexpr Index kShortRow = 16;        // rows below this are not worth a call

// --- extents ------------------------------------------------------------------------------------------------------------

// The coarsest extents of which both are made by merging neighbours; nothing if there are none, or too many.
std::optional<std::vector<Index>> merged_from(const std::vector<Index>& a, const std::vector<Index>& b) {
    auto result = refined(a, cuts_of(b));
    if (result && result->size() > kMaxAxes) return std::nullopt;
    return result;
}

// A view over `extents` as one over extents that refine them.
std::vector<Index> refined_strides(const View& view, const std::vector<Index>& extents, const std::vector<Index>& finer) {
    std::vector<Index> strides(finer.size());
    std::size_t at = finer.size();
    for (std::size_t axis = extents.size(); axis-- > 0;)
        for (Index covered = 1; covered < extents[axis]; covered *= finer[at]) strides[--at] = view.strides[axis] * covered;
    return strides;
}

// --- which maps ---------------------------------------------------------------------------------------------------------

// Members found so far, and what they have in common.
struct Candidate {
    std::vector<std::size_t> members;
    std::vector<Index> extents;
    Index elements;
    std::size_t operands, instrs;
    bool open = true;  // false once another op reads a member: the members run no later than they do now
};

struct Grouping {
    const Program& program;
    const Views& views;
    std::vector<Candidate> groups;
    std::vector<int> group_of;

    bool member(const View& view, std::size_t group) const {
        return view.tag == Tag::kOp && group_of[static_cast<std::size_t>(view.index)] == static_cast<int>(group);
    }

    // Whether op i reads a member, or what a member reads: one pass then saves a read.
    bool shares(std::size_t i, std::size_t group) const {
        for (const View& view : views[i]) {
            if (member(view, group)) return true;
            if (view.tag == Tag::kIota || view.tag == Tag::kContext || view.uniform()) continue;
            for (const std::size_t m : groups[group].members)
                for (const View& other : views[m])
                    if (other.tag == view.tag && other.index == view.index && other.offset == view.offset) return true;
        }
        return false;
    }

    bool joins(std::size_t i, std::size_t group, std::size_t apart) const {
        const Descriptor& op = program.ops[i];
        const Candidate& g = groups[group];
        if (!g.open || apart > kMostApart || op.elements != g.elements) return false;
        if (g.operands + views[i].size() > kMaxLoopOperands || g.instrs + op.instrs.size() > kMaxLoopInstrs ||
            g.members.size() == kMaxLoopOutputs || !merged_from(g.extents, op.extents))
            return false;
        for (const View& view : views[i])
            if (member(view, group) && !reads_in_order(view, op.extents)) return false;
        return shares(i, group);
    }

    void add(std::size_t i, std::size_t group) {
        Candidate& g = groups[group];
        g.members.push_back(i);
        g.extents = *merged_from(g.extents, program.ops[i].extents);
        g.operands += views[i].size();
        g.instrs += program.ops[i].instrs.size();
        group_of[i] = static_cast<int>(group);
    }
};

std::vector<Candidate> grouped(const Program& program, const Views& views, const std::vector<bool>& candidate,
                               const std::vector<bool>& needed, Budget& budget) {
    const std::size_t n = program.ops.size();
    Grouping all{program, views, {}, std::vector<int>(n, -1)};
    std::vector<std::size_t> ordinal;  // of each group's last member among the needed ops
    std::size_t count = 0;
    for (std::size_t i = 0; i < n; ++i) {
        if (!needed[i]) continue;
        ++count;
        std::optional<std::size_t> home;
        budget.spend(static_cast<Index>(all.groups.size()));
        for (std::size_t g = all.groups.size(); candidate[i] && g-- > 0;)
            if (all.joins(i, g, count - ordinal[g] - 1)) {
                home = g;
                break;
            }
        for (const View& view : views[i])
            if (view.tag == Tag::kOp) {
                const int read = all.group_of[static_cast<std::size_t>(view.index)];
                if (read >= 0 && static_cast<std::size_t>(read) != home.value_or(n)) all.groups[static_cast<std::size_t>(read)].open = false;
            }
        if (!candidate[i]) continue;
        if (!home) {
            const Descriptor& op = program.ops[i];
            const auto extents = merged_from(op.extents, {op.elements});
            if (!extents) continue;
            home = all.groups.size();
            all.groups.push_back(Candidate{{}, *extents, op.elements, 0, 0});
            ordinal.push_back(count);
        }
        all.add(i, *home);
        ordinal[*home] = count;
    }
    return std::move(all.groups);
}

// --- blocks -------------------------------------------------------------------------------------------------------------

// The axis of a transposing operand's own rows: there it walks word by word, while it leaps along the last axis.
int transposed_axis(const LoopPlan& plan) {
    const int last = plan.axes - 1;
    for (int v = 0; v < plan.operands; ++v) {
        if (!plan.operand[v].gathered) continue;
        for (int ax = 0; ax < last; ++ax)
            if (plan.operand[v].strides[ax] == 1 && plan.extents[ax] >= 8) return ax;
    }
    return -1;
}

void choose_blocks(LoopPlan& plan) {
    const int last = plan.axes - 1;
    std::fill(plan.box, plan.box + plan.axes, Index{1});
    plan.row_axis = -1;
    bool gathers = false;
    for (int v = 0; v < plan.operands; ++v) gathers |= plan.operand[v].gathered;
    const int transposed = plan.flat ? -1 : transposed_axis(plan);
    if (transposed >= 0) {
        plan.row_axis = transposed;
        plan.box[transposed] = std::min<Index>(plan.extents[transposed], 32);
        plan.box[last] = std::min(plan.extents[last], kBlock / plan.box[transposed]);
    } else {
        Index room = gathers || plan.flat ? kBlock : kLoopBlock;
        for (int ax = last; ax >= 0 && room > 1 && (plan.flat || ax >= last - 1); --ax) {
            plan.box[ax] = std::min(plan.extents[ax], room);
            if (ax == last - 1 && !plan.flat) plan.row_axis = ax;
            room = plan.box[ax] == plan.extents[ax] ? room / plan.extents[ax] : 1;
        }
    }
    plan.blocks = 1;
    for (int ax = 0; ax < plan.axes; ++ax) plan.blocks *= (plan.extents[ax] + plan.box[ax] - 1) / plan.box[ax];
}

void choose_forms(LoopPlan& plan) {
    const int last = plan.axes - 1;
    plan.flat = plan.axes > 1 && plan.extents[last] < kShortRow;
    for (int v = 0; v < plan.operands; ++v) {
        LoopOperand& operand = plan.operand[v];
        const Index inner = operand.strides[last];
        operand.step = static_cast<Word>(inner);
        operand.gathered = false;
        if (std::all_of(operand.strides, operand.strides + plan.axes, [](Index s) { return s == 0; })) operand.form = Form::kUniform;
        else if (plan.flat) operand.form = Form::kElement, operand.gathered = true;
        else if (operand.iota) operand.form = Form::kIota;
        else if (inner == 0) operand.form = Form::kRow;
        else operand.form = Form::kElement, operand.gathered = inner != 1;
    }
}

// --- one loop -----------------------------------------------------------------------------------------------------------

// The operands and instructions of all members in one numbering.
struct Builder {
    const Program& program;
    const Views& views;
    Loop loop;
    Axes axes;

    // The register of a view that is read from memory.
    int operand(const View& view, const std::vector<Index>& extents) {
        const Source source{view.tag, view.index, view.offset};
        std::vector<Index> strides = refined_strides(view, extents, axes.extents);
        for (std::size_t v = 0; v < loop.sources.size(); ++v) {
            const Source& s = loop.sources[v];
            if (s.tag == source.tag && s.index == source.index && s.offset == source.offset && axes.strides[v + 1] == strides) return static_cast<int>(v);
        }
        loop.sources.push_back(source);
        axes.strides.push_back(std::move(strides));
        return static_cast<int>(loop.sources.size()) - 1;
    }

    void build(const Candidate& group) {
        loop.members = group.members;
        axes = Axes{group.extents, {row_major(group.extents)}};
        const auto is_member = [&](const View& view) {
            return view.tag == Tag::kOp && std::binary_search(group.members.begin(), group.members.end(), static_cast<std::size_t>(view.index));
        };
        for (const std::size_t i : group.members)
            for (const View& view : views[i])
                if (!is_member(view)) operand(view, program.ops[i].extents);
        const int operands = static_cast<int>(loop.sources.size());
        std::map<std::size_t, int> result;
        for (const std::size_t i : group.members) {
            const Descriptor& op = program.ops[i];
            std::vector<int> registers;
            for (const View& view : views[i])
                registers.push_back(is_member(view) ? result[static_cast<std::size_t>(view.index)] : operand(view, op.extents));
            for (const Instr& in : op.instrs) {
                const int reads = arity(in.op);
                const auto at = [&](int k, std::uint8_t r) { return reads > k ? registers[r] : -1; };
                loop.instrs.push_back(LoopInstr{in.op, at(0, in.a), at(1, in.b), at(2, in.c), in.imm});
                registers.push_back(operands + static_cast<int>(loop.instrs.size()) - 1);
            }
            result[i] = registers.back();
        }
        for (const std::size_t i : group.members) loop.results.push_back(result[i]);
    }

    // Drops results that nobody outside of the loop reads.
    void store_only(const std::vector<bool>& read_outside) {
        std::vector<int> results;
        for (std::size_t j = 0; j < loop.members.size(); ++j)
            if (read_outside[loop.members[j]]) {
                loop.outputs.push_back(loop.members[j]);
                results.push_back(loop.results[j]);
            }
        loop.results = std::move(results);
    }

    void plan() {
        axes = axes.merged();
        if (axes.extents.empty()) {
            axes.extents.push_back(1);
            for (std::vector<Index>& strides : axes.strides) strides.push_back(0);
            axes.strides[0][0] = 1;
        }
        LoopPlan& plan = loop.plan;
        set_axes(plan, axes);
        plan.outputs = static_cast<int>(loop.outputs.size());
        for (std::size_t v = 0; v < loop.sources.size(); ++v) {
            plan.operand[v].iota = loop.sources[v].tag == Tag::kIota;
            plan.operand[v].offset = static_cast<Word>(loop.sources[v].offset);
        }
        plan.streams = plan.elements >= kStreamed;
        choose_forms(plan);
        choose_blocks(plan);
    }
};

// The loops over the ops that `candidate` marks.
std::vector<Loop> make_loops(const Planner& plan, const std::vector<bool>& candidate) {
    const Program& program = plan.program;
    const Views& views = plan.views;
    const std::vector<Candidate> groups = grouped(program, views, candidate, plan.schedule.needed, plan.budget);
    std::vector<std::size_t> home(program.ops.size(), groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g)
        for (const std::size_t i : groups[g].members) home[i] = g;
    std::vector<bool> read_outside = plan.schedule.kept;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        if (!plan.schedule.needed[i]) continue;
        for (const View& view : views[i])
            if (view.tag == Tag::kOp && (home[i] == groups.size() || home[static_cast<std::size_t>(view.index)] != home[i]))
                read_outside[static_cast<std::size_t>(view.index)] = true;
    }
    std::vector<Loop> loops;
    for (const Candidate& group : groups) {
        Builder builder{program, views, {}, {}};
        builder.build(group);
        builder.store_only(read_outside);
        builder.plan();
        loops.push_back(std::move(builder.loop));
    }
    return loops;
}

}  // namespace

// Maps that still have a step of their own, in the Program's order, may run in loops; a group's maps are loops, too.
void Planner::find_loops() {
    std::vector<bool> candidate(program.ops.size(), false);
    for (const int op : schedule.order) {
        const auto i = static_cast<std::size_t>(op);
        candidate[i] = program.ops[i].kind == Kind::kMap && !program.ops[i].instrs.empty() && !is_copy(program.ops[i]) &&
                       !std::holds_alternative<ScatterPlan>(schedule.fused[i]) && !std::holds_alternative<StripGroup>(schedule.fused[i]) &&
                       !std::holds_alternative<Absorbed>(schedule.fused[i]);
    }
    for (const Fused& fused : schedule.fused)
        if (const auto* group = std::get_if<StripGroup>(&fused))
            for (const int op : group->postponed) candidate[static_cast<std::size_t>(op)] = false;
    schedule.loops = make_loops(*this, candidate);
    for (std::size_t l = 0; l < schedule.loops.size(); ++l)
        for (const std::size_t member : schedule.loops[l].members) schedule.loop_of[member] = static_cast<int>(l);
    for (Fused& fused : schedule.fused)
        if (auto* group = std::get_if<StripGroup>(&fused)) add_strip_loops(*group, schedule.loops);
}

}  // namespace lockstep
