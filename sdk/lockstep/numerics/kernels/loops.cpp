// Which maps run together, over which axes, in which blocks.
#include "loops.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "apply_op.hpp"
#include "axes.hpp"
#include "kernels.hpp"

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

bool is_identity(const View& view, const std::vector<Index>& extents) {
    if (view.offset != 0) return false;
    const std::vector<Index> whole = row_major(extents);
    for (std::size_t axis = 0; axis < extents.size(); ++axis)
        if (extents[axis] != 1 && view.strides[axis] != whole[axis]) return false;
    return true;
}

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
    const std::vector<std::vector<View>>& views;
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
            if (member(view, group) && !is_identity(view, op.extents)) return false;
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

std::vector<Candidate> grouped(const Program& program, const std::vector<std::vector<View>>& views, const std::vector<bool>& candidate,
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
    const std::vector<std::vector<View>>& views;
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
        axes.merge();
        if (axes.extents.empty()) {
            axes.extents.push_back(1);
            for (std::vector<Index>& strides : axes.strides) strides.push_back(0);
            axes.strides[0][0] = 1;
        }
        LoopPlan& plan = loop.plan;
        plan.axes = static_cast<int>(axes.extents.size());
        plan.operands = static_cast<int>(loop.sources.size());
        plan.outputs = static_cast<int>(loop.outputs.size());
        plan.elements = 1;
        for (int ax = 0; ax < plan.axes; ++ax) {
            const auto axis = static_cast<std::size_t>(ax);
            plan.extents[ax] = axes.extents[axis];
            plan.out_strides[ax] = axes.strides[0][axis];
            plan.elements *= axes.extents[axis];
            for (std::size_t v = 0; v < loop.sources.size(); ++v) plan.operand[v].strides[ax] = axes.strides[v + 1][axis];
        }
        for (std::size_t v = 0; v < loop.sources.size(); ++v) {
            plan.operand[v].iota = loop.sources[v].tag == Tag::kIota;
            plan.operand[v].offset = static_cast<Word>(loop.sources[v].offset);
        }
        plan.streams = plan.elements >= kStreamed;
        choose_forms(plan);
        choose_blocks(plan);
    }
};

}  // namespace

std::vector<Loop> make_loops(const Program& program, const std::vector<std::vector<View>>& views, const std::vector<bool>& candidate,
                             const std::vector<bool>& needed, const std::vector<bool>& kept, Budget& budget) {
    const std::vector<Candidate> groups = grouped(program, views, candidate, needed, budget);
    std::vector<std::size_t> home(program.ops.size(), groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g)
        for (const std::size_t i : groups[g].members) home[i] = g;
    std::vector<bool> read_outside = kept;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        if (!needed[i]) continue;
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

// --- trust --------------------------------------------------------------------------------------------------------------

namespace {

// Numbers of every kind: mostly near 1, small integers, one word in eight special, one in eight any word at all.
class Probe {
public:
    explicit Probe(std::uint64_t seed) : state_(seed * 2 + 1) {}
    Word operator()() {
        static constexpr Word kSpecial[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xffffffff, 0x7f800000, 0xff800000, 0x80000000, 0,
                                            1,          0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f800000, 31};
        state_ = state_ * 6364136223846793005u + 1442695040888963407u;
        const Word x = static_cast<Word>(state_ >> 32), kind = static_cast<Word>(state_ >> 20) & 7;
        if (kind == 0) return kSpecial[x % 16];
        if (kind == 1) return x;
        if (kind == 2) return x % 64;
        return (x & 0x81ffffff) | 0x3e000000;
    }

private:
    std::uint64_t state_;
};

}  // namespace

bool same_function(const Loop& one, const Loop& other) {
    if (one.plan.operands != other.plan.operands || one.plan.streams != other.plan.streams || one.instrs != other.instrs || one.results != other.results)
        return false;
    return std::equal(one.plan.operand, one.plan.operand + one.plan.operands, other.plan.operand, [](const LoopOperand& a, const LoopOperand& b) {
        return a.form == b.form && (a.form != Form::kIota || a.step == b.step);
    });
}

bool computes(LoopFunction function, const Loop& loop, const Kernels& kernels) {
    constexpr Index kRows = 3, kColumns = 277, kCells = kRows * kColumns;
    constexpr std::size_t kLine = 16, kPitch = (kCells + kLine - 1) / kLine * kLine;
    constexpr int kTrials = 16;
    const LoopPlan& plan = loop.plan;
    const f32::FloatEnvironment environment;
    const auto registers = static_cast<std::size_t>(plan.operands) + loop.instrs.size();
    std::vector<std::vector<Word>> due(registers, std::vector<Word>(kCells));
    std::vector<Word> cells(loop.results.size() * kPitch + kLine);  // the outputs, each from the start of a line on
    std::size_t shift = 0;
    while (reinterpret_cast<std::uintptr_t>(cells.data() + shift) % (kLine * sizeof(Word)) != 0) ++shift;
    const auto got = [&](std::size_t j) { return cells.data() + shift + j * kPitch; };
    for (int trial = 0; trial < kTrials; ++trial) {
        Probe probe(static_cast<std::uint64_t>(trial));
        std::vector<std::vector<Word>> memory;
        const Word* in[kMaxLoopOperands];
        Index in_stride[kMaxLoopOperands], out_stride[kMaxLoopOutputs];
        Word* out[kMaxLoopOutputs];
        for (int v = 0; v < plan.operands; ++v) {
            const LoopOperand& operand = plan.operand[v];
            const Index stride = operand.form == Form::kElement ? kColumns : operand.form == Form::kUniform ? 0 : 1;
            memory.emplace_back(operand.form == Form::kElement ? kCells : kRows);
            std::generate(memory.back().begin(), memory.back().end(), probe);
            const std::vector<Word>& held = memory.back();
            for (Index r = 0; r < kRows; ++r)
                for (Index c = 0; c < kColumns; ++c)
                    due[static_cast<std::size_t>(v)][static_cast<std::size_t>(r * kColumns + c)] =
                        operand.form == Form::kIota ? held[0] + static_cast<Word>(r) + operand.step * static_cast<Word>(c)
                                                    : held[static_cast<std::size_t>(r * stride + (operand.form == Form::kElement ? c : 0))];
            in[v] = held.data();
            in_stride[v] = stride;
        }
        for (std::size_t i = 0; i < loop.instrs.size(); ++i) {
            const LoopInstr& instr = loop.instrs[i];
            std::vector<Word>& result = due[static_cast<std::size_t>(plan.operands) + i];
            const auto at = [&](int r) { return r < 0 ? nullptr : due[static_cast<std::size_t>(r)].data(); };
            if (static_cast<Op>(instr.op) == Op::IMM) std::fill(result.begin(), result.end(), instr.imm);
            else kernels.apply_op(instr.op, at(instr.a), at(instr.b), at(instr.c), result.data(), kCells);
        }
        for (std::size_t j = 0; j < loop.results.size(); ++j) {
            out[j] = got(j);
            out_stride[j] = kColumns;
        }
        function(in, in_stride, out, out_stride, kRows, kColumns);
        for (std::size_t j = 0; j < loop.results.size(); ++j) {
            const std::vector<Word>& wanted = due[static_cast<std::size_t>(loop.results[j])];
            if (!std::equal(wanted.begin(), wanted.end(), got(j))) return false;
        }
    }
    return true;
}

}  // namespace lockstep
