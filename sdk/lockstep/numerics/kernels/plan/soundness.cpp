// What every step reads and writes, and whether it is there.
#include "plan/soundness.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>

namespace lockstep {
namespace {

// Words [low, high] of a tensor.
struct Range {
    Index low, high;

    Range(Index at) : low(at), high(at) {}
    void stretch(Index extent, Index stride) { (stride < 0 ? low : high) += stride * (extent - 1); }
    void join(const Range& other) {
        low = std::min(low, other.low);
        high = std::max(high, other.high);
    }
    void shift(const Range& other) {
        low += other.low;
        high += other.high;
    }
};

struct Access {
    Tag tag;
    int index;
    Range range;
    bool writes = false;
};
using Accesses = std::vector<Access>;

// Elements [begin, end) of a plan's outputs, rows or elements, in order; all of them by default.
struct Elements {
    Index begin = 0, end = -1;
};

// Where those elements of a row-major box lie.
Range within(const Index* extents, const Index* strides, int axes, Elements elements) {
    Range all(0);
    Index count = 1;
    for (int ax = 0; ax < axes; ++ax) {
        all.stretch(extents[ax], strides[ax]);
        count *= extents[ax];
    }
    if (elements.end < 0 || (elements.begin == 0 && elements.end >= count) || axes == 0) return all;
    const Index inner = count / extents[0], first = elements.begin / inner, last = (elements.end - 1) / inner;
    const auto part = [&](Index coordinate, Index begin, Index end) {
        Range found = within(extents + 1, strides + 1, axes - 1, {begin, end});
        found.shift(Range(coordinate * strides[0]));
        return found;
    };
    if (first == last) return part(first, elements.begin - first * inner, elements.end - first * inner);
    Range found = part(first, elements.begin - first * inner, inner);
    found.join(part(last, 0, elements.end - last * inner));
    for (const Index middle : {first + 1, last - 1})
        if (first < middle && middle < last) found.join(part(middle, 0, inner));
    return found;
}

Range of_table(const Index* places, Index count) {
    const auto [low, high] = std::minmax_element(places, places + count);
    Range found(*low);
    found.join(Range(*high));
    return found;
}

class Checker {
public:
    explicit Checker(const Schedule& schedule) : program_(schedule.planned.program) {}

    // What an op's own step does, or what runs in its place; of one batch of a run if `batch` is not negative.
    Accesses accesses(const Step& step, int op, Index batch = -1, Index batches = 1) const {
        Accesses found;
        std::visit([&](const auto& own) { add(found, own, op, batch, batches); }, step);
        return found;
    }
    Accesses accesses(const Fused& fused, int op, Index batch = -1, Index batches = 1) const {
        Accesses found;
        std::visit([&](const auto& own) { add(found, own, op, batch, batches); }, fused);
        return found;
    }
    Accesses accesses(const Loop& loop, Index batch = -1, Index batches = 1) const {
        Accesses found;
        const LoopPlan& plan = loop.plan;
        const Elements elements = share(plan.elements, batch, batches);
        for (std::size_t v = 0; v < loop.sources.size(); ++v) read(found, loop.sources[v], within(plan.extents, plan.operand[v].strides, plan.axes, elements));
        for (const std::size_t op : loop.outputs) write(found, static_cast<int>(op), within(plan.extents, plan.out_strides, plan.axes, elements));
        return found;
    }

    Index words(Tag tag, int index) const { return program_.source_elements(View{tag, index, 0, {}}); }

    // Whether tables of neighbours tell the truth: kernels read a run of them at once.
    static bool runs_hold(const Index* at, const Index* run, Index count, bool descending) {
        for (Index i = 0; i < count; ++i) {
            if (run[i] == 0 || (run[i] < 0 && !descending) || i + std::abs(run[i]) > count) return false;
            if (std::abs(run[i]) > 1 && (at[i + 1] != at[i] + (run[i] < 0 ? -1 : 1) || std::abs(run[i + 1]) < std::abs(run[i]) - 1)) return false;
        }
        return true;
    }
    static bool tables_hold(const GemmPlan& plan) {
        for (const auto& [factor, rows] : {std::pair(&plan.a, plan.m), std::pair(&plan.b, plan.n)}) {
            if (!factor->placed()) continue;
            const Places places = factor->from(nullptr, 0, 0).places;
            if (!runs_hold(places.row, places.row_run, rows, false) || !runs_hold(places.k_at, places.k_run, plan.k, true)) return false;
        }
        if (!plan.b_runs.length) return true;
        if (!plan.b.placed() || plan.n % plan.b_runs.length != 0) return false;
        const Index* row = plan.b.from(nullptr, 0, 0).places.row;
        for (Index i = 0; i < plan.n; ++i)
            if (i % plan.b_runs.length != 0 && row[i] != row[i - 1] + plan.b_runs.step) return false;
        return true;
    }

private:
    static Elements share(Index all, Index batch, Index batches) { return batch < 0 ? Elements{} : Elements{all / batches * batch, all / batches * (batch + 1)}; }

    static void read(Accesses& found, const Source& source, Range range) {
        if (source.tag == Tag::kIota) return;
        range.shift(Range(source.offset));
        found.push_back({source.tag, source.index, range});
    }
    static void write(Accesses& found, int op, Range range) { found.push_back({Tag::kOp, op, range, true}); }

    void add(Accesses& found, const MapStep& step, int op, Index batch, Index batches) const {
        for (const auto& [plan, sources, out_offset] : step.parts) {
            const Elements elements = share(plan.elements, batch, batches);
            for (std::size_t v = 0; v < sources.size(); ++v) read(found, sources[v], within(plan.extents, plan.operand[v].strides, plan.axes, elements));
            Range out = within(plan.extents, plan.out_strides, plan.axes, elements);
            out.shift(Range(out_offset));
            write(found, op, out);
        }
    }

    // A factor's rows, terms and batches, or one batch.
    static Range of_factor(const Factor& factor, const GemmPlan& plan, Index rows, Index batch) {
        const Factor::Part own = factor.from(nullptr, 0, 0);
        Range found(0);
        if (own.placed) {
            found.shift(of_table(own.places.row, rows));
            found.shift(of_table(own.places.k_at, plan.k));
        } else {
            found.stretch(rows, own.row);
            found.stretch(plan.k, own.k);
        }
        found.shift(within(plan.batch, factor.batch, plan.batch_axes, share(plan.batches, batch, plan.batches)));
        return found;
    }
    static Range of_output(const GemmPlan& plan, Index batch) {
        Range out = within(plan.batch, plan.out_batch, plan.batch_axes, share(plan.batches, batch, plan.batches));
        out.stretch(plan.m, plan.out_m);
        out.stretch(plan.n, 1);
        return out;
    }

    void add(Accesses& found, const GemmStep& step, int op, Index batch, Index) const {
        read(found, step.a, of_factor(step.plan.a, step.plan, step.plan.m, batch));
        read(found, step.b, of_factor(step.plan.b, step.plan, step.plan.n, batch));
        write(found, op, of_output(step.plan, batch));
    }

    void add(Accesses& found, const QdotStep& step, int op, Index batch, Index) const {
        const GemmPlan& shape = step.plan.shape;
        const auto scales = [&](Index rows, Index row, Index k, const Index* strides) {
            Range range = within(shape.batch, strides, shape.batch_axes, share(shape.batches, batch, shape.batches));
            range.stretch(rows, row);
            range.stretch(step.plan.groups, k);
            return range;
        };
        read(found, step.sources[0], of_factor(shape.a, shape, shape.m, batch));
        read(found, step.sources[1], of_factor(shape.b, shape, shape.n, batch));
        read(found, step.sources[2], scales(shape.m, step.plan.scale_a_m, step.plan.scale_a_k, step.plan.scale_a_batch));
        read(found, step.sources[3], scales(shape.n, step.plan.scale_b_n, step.plan.scale_b_k, step.plan.scale_b_batch));
        write(found, op, of_output(shape, batch));
    }

    void add(Accesses& found, const FoldStep& step, int op, Index batch, Index batches) const {
        const FoldPlan& plan = step.plan;
        const Elements elements = share(plan.outputs, batch, batches);
        for (int v = 0; v < step.operands; ++v) {
            Range range = within(plan.extents, plan.strides[v], plan.axes, elements);
            range.stretch(plan.k, plan.k_stride[v]);
            read(found, step.sources[v], range);
        }
        Range out(elements.begin);
        out.stretch(elements.end < 0 ? plan.outputs : elements.end - elements.begin, 1);
        write(found, op, out);
    }

    void add(Accesses& found, const PiecewiseSumStep& step, int op, Index, Index) const {
        const PiecewiseSum& plan = step.plan;
        for (int v = 0; v < plan.operands; ++v) {
            Range range = of_table(plan.piece_at[v], plan.k / kPiece);
            range.stretch(plan.outputs, plan.row[v]);
            range.stretch(kPiece, 1);
            read(found, step.sources[v], range);
        }
        Range out(0);
        out.stretch(plan.outputs, 1);
        write(found, op, out);
    }

    void add(Accesses& found, const QuantStep& step, int, Index batch, Index batches) const {
        const QuantPlan& plan = step.plan;
        Index rows = 1;
        for (int ax = 0; ax < plan.axes; ++ax) rows *= plan.extents[ax];
        const Elements own = share(rows, batch, batches);
        Range range = within(plan.extents, plan.strides, plan.axes, own);
        range.stretch(plan.k, plan.k_stride);
        read(found, step.source, range);
        for (const QuantOutput& output : step.outputs) {
            Range out(output.offset + own.begin * output.pitch);
            out.stretch(own.end < 0 ? rows : own.end - own.begin, output.pitch);
            out.stretch(output.array % 2 == 0 ? plan.groups * plan.words : plan.groups, 1);
            write(found, output.op, out);
        }
    }

    void add(Accesses& found, const ScatterPlan& plan, int op, Index, Index) const {
        Range index(0);
        for (std::size_t axis = 0; axis < plan.k_extents.size(); ++axis) index.stretch(plan.k_extents[axis], plan.index.strides[axis]);
        read(found, source_of(plan.index), index);
        Range table(0);
        table.stretch(plan.k, plan.table.strides[0]);
        table.stretch(plan.columns, 1);
        read(found, source_of(plan.table), table);
        Range out(0);
        out.stretch(plan.rows * plan.columns, 1);
        write(found, op, out);
    }

    void add(Accesses& found, const StripGroup& group, int, Index, Index) const {
        const auto range_of = [&](const StripOperand& o, Index own) {
            Range range = within(group.batch.data(), o.batch.data(), static_cast<int>(group.batch.size()), {});
            range.shift(within(group.lead.data(), o.lead.data(), static_cast<int>(group.lead.size()), {}));
            range.stretch(group.inner_rows, o.row);
            range.stretch(group.columns, o.column);
            if (own > 1) range.stretch(own, o.own);
            return range;
        };
        for (const StripMember& m : group.members) {
            for (const std::vector<StripOperand>* operands : {&m.operands, &m.loop_operands})
                for (const StripOperand& o : *operands)
                    if (o.member < 0) read(found, o.source, range_of(o, m.own));
            if (!m.tile || m.buffer < 0) write(found, m.op, range_of(m.out, m.own));
        }
    }

    // The descriptor suffices, and was checked when it was decoded.
    void add(Accesses& found, const PlainStep&, int op, Index, Index) const {
        for (const View& view : program_.at(op).views)
            if (view.tag != Tag::kIota) found.push_back({view.tag, view.index, Range(0)});
        Range out(0);
        out.stretch(program_.at(op).elements, 1);
        write(found, op, out);
    }

    void add(Accesses&, const Absorbed&, int, Index, Index) const {}
    void add(Accesses&, std::monostate, int, Index, Index) const {}

    const Program& program_;
};

// Tracks which op occupies which words of a buffer, and what was overwritten.
class Memory {
public:
    void write(int op, Index begin, Index words) {
        const Index end = begin + words;
        auto at = held_.lower_bound(begin);
        if (at != held_.begin() && std::prev(at)->second.first > begin) --at;
        while (at != held_.end() && at->first < end) at = held_.erase(at);
        held_[begin] = {end, op};
    }
    bool holds(int op, Index begin) const {
        const auto at = held_.find(begin);
        return at != held_.end() && at->second.second == op;
    }

private:
    std::map<Index, std::pair<Index, int>> held_;  // by where it begins: its end, and the op
};

// Follows the schedule step by step.
class Walk {
public:
    Walk(const Schedule& schedule, bool compiled)
        : schedule_(schedule), program_(schedule.planned.program), checker_(schedule), compiled_(compiled), written_(program_.ops.size(), false) {}

    std::string wrong() {
        for (const int op : schedule_.order) {
            const int run = schedule_.run_of[static_cast<std::size_t>(op)];
            if (run < 0) step(op);
            else if (schedule_.runs[static_cast<std::size_t>(run)].ops.front() == op) take(schedule_.runs[static_cast<std::size_t>(run)]);
        }
        for (std::size_t op = 0; op < written_.size(); ++op)
            if (schedule_.kept[op] && !written_[op]) fail(static_cast<int>(op), "is an output, and nothing computes it");
        return std::move(wrong_);
    }

private:
    void fail(int op, const std::string& what) {
        if (wrong_.empty()) wrong_ = "op " + std::to_string(schedule_.original(static_cast<std::size_t>(op))) + " " + what;
    }

    // The loop that op runs in, if it has code.
    const Loop* loop_of(int op) const {
        const int loop = schedule_.loop_of[static_cast<std::size_t>(op)];
        return compiled_ && loop >= 0 ? &schedule_.loops[static_cast<std::size_t>(loop)] : nullptr;
    }

    Accesses of(int op, Index batch = -1, Index batches = 1) const {
        const auto i = static_cast<std::size_t>(op);
        if (const Loop* loop = loop_of(op)) return loop->members.back() == i ? checker_.accesses(*loop, batch, batches) : Accesses{};
        if (std::holds_alternative<std::monostate>(schedule_.fused[i])) return checker_.accesses(schedule_.steps[i], op, batch, batches);
        return checker_.accesses(schedule_.fused[i], op, batch, batches);
    }

    void step(int op) {
        check_tables(op);
        const Accesses all = of(op);
        for (const Access& access : all)
            if (access.writes) place(op, access.index);
        // In order: members of a strip group read what earlier ones have written.
        for (const Access& access : all) {
            look(op, access);
            if (access.writes) written_[static_cast<std::size_t>(access.index)] = true;
        }
    }

    void check_tables(int op) {
        const auto i = static_cast<std::size_t>(op);
        const auto* gemm = std::get_if<GemmStep>(&schedule_.steps[i]);
        if (gemm && !Checker::tables_hold(gemm->plan)) fail(op, "reads runs that are none");
    }

    void place(int op, int output) {
        const auto o = static_cast<std::size_t>(output);
        if (!schedule_.needed[o]) return fail(op, "writes what has no memory");
        if (schedule_.kept[o]) return;
        if (schedule_.arena_offset[o] < 0 || schedule_.arena_offset[o] + program_.ops[o].elements > schedule_.arena_words) return fail(op, "writes outside of the arena");
        memory_.write(output, schedule_.arena_offset[o], program_.ops[o].elements);
    }

    void look(int op, const Access& access) {
        if (access.range.low < 0 || access.range.high >= checker_.words(access.tag, access.index)) return fail(op, "reaches outside of a tensor");
        if (access.tag != Tag::kOp || access.writes) return;
        const auto read = static_cast<std::size_t>(access.index);
        if (!written_[read]) return fail(op, "reads what is not computed yet");
        if (!schedule_.kept[read] && !memory_.holds(access.index, schedule_.arena_offset[read])) fail(op, "reads what has been written over");
    }

    // All batches run at once, on any thread: outputs for other steps are live from the run's first step on; the rest is per batch.
    void take(const BatchRun& run) {
        std::map<int, const BatchRun::Share*> shares;
        for (const BatchRun::Share& share : run.shares) {
            if (share.offset < 0 || share.offset + share.words > run.words || share.words * run.batches != program_.at(share.op).elements)
                fail(share.op, "has a share of another size");
            shares[share.op] = &share;
        }
        std::set<int> outputs;
        for (const int op : run.ops)
            for (const Access& access : of(op)) {
                if (!access.writes) continue;
                outputs.insert(access.index);
                if (!shares.contains(access.index)) place(op, access.index);
            }
        for (const int op : run.ops) {
            check_tables(op);
            for (const Access& access : of(op))
                if (!shares.contains(access.index) || access.tag != Tag::kOp) look(op, access);
            for (const Access& access : of(op))
                if (access.writes && !shares.contains(access.index)) written_[static_cast<std::size_t>(access.index)] = true;
        }
        // Batches are alike: their shares are equally spaced.
        for (const Index batch : std::set<Index>{0, 1, run.batches / 2, run.batches - 1}) {
            Memory memory;
            std::set<int> made;
            for (const int op : run.ops) {
                const Accesses all = of(op, batch, run.batches);
                for (const Access& access : all)
                    if (access.tag == Tag::kOp && access.writes && shares.contains(access.index))
                        memory.write(access.index, shares[access.index]->offset, shares[access.index]->words);
                for (const Access& access : all) {
                    if (access.tag != Tag::kOp) continue;
                    const auto found = shares.find(access.index);
                    const Index words = found == shares.end() ? 0 : found->second->words;
                    if (found == shares.end()) {
                        // Written by the run for others, and read in it: a batch reads what it has written itself.
                        if (!access.writes && outputs.contains(access.index) && !own_share(access, batch, run.batches)) fail(op, "reads another batch's words");
                        continue;
                    }
                    if (access.range.low < batch * words || access.range.high >= (batch + 1) * words) fail(op, "reaches outside of its batch");
                    if (access.writes) continue;
                    if (!made.contains(access.index)) fail(op, "reads what its batch has not computed");
                    else if (!memory.holds(access.index, found->second->offset)) fail(op, "reads what its batch has written over");
                }
                for (const Access& access : all)
                    if (access.tag == Tag::kOp && access.writes) made.insert(access.index);
            }
        }
    }

    bool own_share(const Access& access, Index batch, Index batches) const {
        const Index words = program_.at(access.index).elements / batches;
        return access.range.low >= batch * words && access.range.high < (batch + 1) * words;
    }

    const Schedule& schedule_;
    const Program& program_;
    const Checker checker_;
    const bool compiled_;
    std::vector<bool> written_;
    Memory memory_;
    std::string wrong_;
};

}  // namespace

std::string unsound(const Schedule& schedule) {
    for (const bool compiled : {false, true})
        if (std::string wrong = Walk(schedule, compiled).wrong(); !wrong.empty()) return wrong;
    // As a game has it: every op by its own step, in the Program's order, each with memory of its own.
    const Checker checker(schedule);
    for (std::size_t op = 0; op < schedule.planned.op_of.size(); ++op)
        for (const Access& access : checker.accesses(schedule.steps[schedule.at(op)], static_cast<int>(schedule.at(op)))) {
            const std::string name = "op " + std::to_string(op);
            if (access.range.low < 0 || access.range.high >= checker.words(access.tag, access.index)) return name + " by itself reaches outside of a tensor";
            if (access.tag == Tag::kOp && !access.writes && schedule.original(static_cast<std::size_t>(access.index)) >= op) return name + " by itself reads what comes after it";
        }
    return {};
}

std::string unsound(const Schedule& schedule, const Sweep& sweep) {
    const Checker checker(schedule);
    Memory memory;
    std::vector<Index> lies(schedule.planned.op_of.size(), -1);
    std::size_t due = 0;
    for (const Sweep::Run& run : sweep.runs) {
        const auto op = static_cast<std::size_t>(run.op);
        const std::string name = "op " + std::to_string(op);
        const Index words = schedule.planned.program.ops[schedule.at(op)].elements;
        if (run.offset < 0 || run.offset + words > sweep.words) return name + " is swept outside of its memory";
        memory.write(run.op, run.offset, words);
        for (const Access& access : checker.accesses(schedule.steps[schedule.at(op)], static_cast<int>(schedule.at(op)))) {
            if (access.tag != Tag::kOp || access.writes) continue;
            const std::size_t read = schedule.original(static_cast<std::size_t>(access.index));
            if (lies[read] < 0 || !memory.holds(static_cast<int>(read), lies[read])) return name + " is swept before what it reads, or after that is gone";
        }
        lies[op] = run.offset;
        if (!run.again && op != due++) return name + " is swept out of order";
    }
    return due == lies.size() ? std::string() : "not every op is swept";
}

}  // namespace lockstep
