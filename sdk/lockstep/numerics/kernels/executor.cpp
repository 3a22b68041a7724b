// The executor: buffers, threads, and one function per form of op.
#include "executor.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include "apply_op.hpp"
#include "multiply.hpp"
#include "plan/soundness.hpp"
#include "strips_run.hpp"
#include "threads.hpp"

namespace lockstep {

Buffer Pool::take(Index words) {
    const std::lock_guard lock(mutex_);
    resting_ = false;
    for (auto it = free_.begin(); it != free_.end(); ++it)
        if (it->words() == words) {
            Buffer found = std::move(*it);
            free_.erase(it);
            return found;
        }
    return Buffer(words);
}

void Pool::give(Buffer buffer) {
    const std::lock_guard lock(mutex_);
    if (resting_) return;
    Index held = buffer.words();
    for (const Buffer& b : free_) held += b.words();
    if (held <= most_) free_.push_back(std::move(buffer));
}

void Pool::rest() {
    const std::lock_guard lock(mutex_);
    free_.clear();
    resting_ = true;
}

// One run: resolves sources, computes op after op.
class Executor::Run {
public:
    Run(Executor& executor, const Schedule& schedule, const RunInputs& in)
        : e_(executor), schedule_(schedule), ops_(schedule.planned.program.ops), in_(in), context_(in.context), results_(executor.program_.ops.size()), out_(ops_.size()) {}

    std::vector<Buffer> compute() {
        const f32::FloatEnvironment environment;
        for (std::size_t i = 0; i < out_.size(); ++i) {
            if (in_.keep || (schedule_.needed[i] && schedule_.kept[i])) {
                const std::size_t op = schedule_.original(i);  // an op's and its copy's
                if (!in_.into.empty() && in_.into[op]) {
                    out_[i] = in_.into[op];
                    continue;
                }
                Buffer& result = results_[op];
                if (!result.data()) result = e_.pool_->take(ops_[i].elements);
                out_[i] = result.data();
            } else if (schedule_.needed[i]) {
                out_[i] = placed(i, schedule_.arena_offset[i]);
            }
        }
        if (in_.keep)
            for (std::size_t op = 0; op < results_.size(); ++op) timed(schedule_.at(op), schedule_.steps[schedule_.at(op)]);
        else
            for (const int op : schedule_.order) {
                const auto i = static_cast<std::size_t>(op);
                const int run = schedule_.run_of[i];
                if (run < 0) run_op(i);
                else if (schedule_.runs[static_cast<std::size_t>(run)].ops.front() == op) timed(i, std::variant<const BatchRun*>(&schedule_.runs[static_cast<std::size_t>(run)]));
            }
        return std::move(results_);
    }

    void sweep(const Sweep& sweep, const Visit& visit) {
        const f32::FloatEnvironment environment;
        for (const Sweep::Run& run : sweep.runs) {
            const auto op = static_cast<std::size_t>(run.op), i = schedule_.at(op);
            out_[i] = placed(i, run.offset);
            if (const int copy = schedule_.planned.copy_of[op]; copy >= 0) out_[static_cast<std::size_t>(copy)] = out_[i];
            timed(i, schedule_.steps[i]);
            if (!run.again) visit(op, out_[i]);
        }
    }

private:
    // Where op i's output lies in the arena; a checked build has it elsewhere.
    Word* placed(std::size_t i, Index offset) {
        if constexpr (!kChecked) return e_.arena_.data() + offset;
        apart_.resize(ops_.size());
        apart_[i] = Buffer(ops_[i].elements);
        return apart_[i].data();
    }

    void run_op(std::size_t i) {
        if (const Loop* loop = compiled_loop(i)) {
            if (loop->members.back() == i) timed(i, std::variant<const Loop*>(loop));
        } else if (std::holds_alternative<std::monostate>(schedule_.fused[i])) {
            timed(i, schedule_.steps[i]);
        } else if (!std::holds_alternative<Absorbed>(schedule_.fused[i])) {
            timed(i, schedule_.fused[i]);
        }
    }

    template <class Any>
    void timed(std::size_t op, const Any& step) {
        const auto begin = std::chrono::steady_clock::now();
        std::visit([&](const auto& chosen) { compute(chosen, ops_[op], out_[op]); }, step);
        if (in_.nanoseconds) (*in_.nanoseconds)[schedule_.original(op)] += (std::chrono::steady_clock::now() - begin).count();
    }

    std::span<Workspace> workspaces() { return {e_.workspaces_.data(), static_cast<std::size_t>(in_.threads)}; }

    // The loop that computes op i, if there is code for these kernels.
    const Loop* compiled_loop(std::size_t i) const {
        if (schedule_.loop_of[i] < 0) return nullptr;
        const Loop& loop = schedule_.loops[static_cast<std::size_t>(schedule_.loop_of[i])];
        return loop.function && loop.isa == in_.kernels ? &loop : nullptr;
    }

    const Word* base(const Source& s) const {
        const auto index = static_cast<std::size_t>(s.index);
        switch (s.tag) {
        case Tag::kOp: return out_[index] + s.offset;
        case Tag::kState: return in_.state[index] + s.offset;
        case Tag::kConst: return e_.consts_[index].words + s.offset;
        case Tag::kContext: return context_.words + s.offset;
        case Tag::kIota: break;
        }
        return nullptr;
    }

    void compute(const MapStep& step, const Descriptor&, Word* out) {
        for (const MapStep::Part& part : step.parts) {
            const MapPlan& plan = part.plan;
            const Word* bases[kMaxOperands];
            for (std::size_t v = 0; v < part.sources.size(); ++v) bases[v] = base(part.sources[v]);
            const Index work = plan.elements * (1 + plan.instrs / 4), least = std::max<Index>(1, plan.blocks * kLeastWork / std::max<Index>(1, work));
            split(plan.blocks, least, in_.threads, [&](Index begin, Index end, int thread) {
                Word* scratch = at_least(e_.workspaces_[static_cast<std::size_t>(thread)].scratch, map_scratch(plan));
                in_.kernels->map(plan, bases, out + part.out_offset, begin, end, scratch);
            });
        }
    }

    void compute(const Loop* found, const Descriptor&, Word*) {
        const Loop& loop = *found;
        const Word* bases[kMaxLoopOperands];
        Word* outs[kMaxLoopOutputs];
        for (std::size_t v = 0; v < loop.sources.size(); ++v) bases[v] = base(loop.sources[v]);
        for (std::size_t j = 0; j < loop.outputs.size(); ++j) outs[j] = out_[loop.outputs[j]];
        const Index work = loop.plan.elements * (1 + static_cast<Index>(loop.instrs.size()) / 4);
        const Index least = std::max<Index>(1, loop.plan.blocks * kLeastWork / std::max<Index>(1, work));
        split(loop.plan.blocks, least, in_.threads, [&](Index begin, Index end, int thread) {
            Word* scratch = at_least(e_.workspaces_[static_cast<std::size_t>(thread)].scratch, loop_scratch(loop.plan));
            in_.kernels->loop(loop.plan, loop.function, bases, outs, begin, end, scratch);
        });
    }

    void compute(const GemmStep& step, const Descriptor&, Word* out) {
        multiply(step.plan, base(step.a), base(step.b), out, *in_.kernels, workspaces());
    }

    void compute(const QdotStep& step, const Descriptor&, Word* out) {
        const QdotOperands at{base(step.sources[0]), base(step.sources[1]), base(step.sources[2]), base(step.sources[3])};
        multiply_codes(step.plan, at, out, *in_.kernels, workspaces());
    }

    void compute(const QuantStep& step, const Descriptor&, Word*) {
        const QuantPlan& plan = step.plan;
        const Draws draws[2] = {draws_of(plan.stream[0], context_), draws_of(plan.stream[1], context_)};
        std::vector<QuantTarget> targets;
        for (const QuantOutput& o : step.outputs) targets.push_back({out_[static_cast<std::size_t>(o.op)] + o.offset, o.pitch, o.array});
        const Index least = std::max<Index>(1, kLeastWork / (8 * plan.words * (plan.columns ? kRowsAtOnce : 1)));
        split(plan.items, least, in_.threads, [&](Index begin, Index end, int thread) {
            Word* scratch = at_least(e_.workspaces_[static_cast<std::size_t>(thread)].scratch, quant_scratch(plan));
            in_.kernels->quant(plan, base(step.source), draws, targets.data(), static_cast<int>(targets.size()), begin, end, scratch);
        });
    }

    // Each thread runs its own batches in turn; a shared buffer is offset as if the memory before it held the earlier batches.
    void compute(const BatchRun* found, const Descriptor&, Word*) {
        const BatchRun& run = *found;
        std::atomic<Index> next = 0;
        on_threads(static_cast<int>(std::min<Index>(in_.threads, run.batches)), [&](int thread, int) {
            Workspace& workspace = e_.workspaces_[static_cast<std::size_t>(thread)];
            Word* memory = at_least(workspace.packed, run.words);
            std::vector<Word*> out = out_;
            for (Index batch = next++; batch < run.batches; batch = next++) {
                for (const BatchRun::Share& share : run.shares) out[static_cast<std::size_t>(share.op)] = memory + share.offset - batch * share.words;
                for (const int op : run.ops) compute_batch(run, static_cast<std::size_t>(op), batch, out, workspace.scratch);
            }
        });
    }

    const Word* base(const Source& s, const std::vector<Word*>& out) const { return s.tag == Tag::kOp ? out[static_cast<std::size_t>(s.index)] + s.offset : base(s); }

    // The share of one batch of an op's step, on this thread.
    void compute_batch(const BatchRun& run, std::size_t i, Index batch, const std::vector<Word*>& out, Buffer& scratch) {
        const auto from = [&](Index all) { return all / run.batches * batch; };
        const auto to = [&](Index all) { return all / run.batches * (batch + 1); };
        if (const Loop* loop = compiled_loop(i)) {
            if (loop->members.back() != i) return;
            const Word* bases[kMaxLoopOperands];
            Word* outs[kMaxLoopOutputs];
            for (std::size_t v = 0; v < loop->sources.size(); ++v) bases[v] = base(loop->sources[v], out);
            for (std::size_t j = 0; j < loop->outputs.size(); ++j) outs[j] = out[loop->outputs[j]];
            const Index blocks = loop->plan.blocks;
            return in_.kernels->loop(loop->plan, loop->function, bases, outs, from(blocks), to(blocks), at_least(scratch, loop_scratch(loop->plan)));
        }
        if (const auto* quant = std::get_if<QuantStep>(&schedule_.fused[i])) {
            const QuantPlan& plan = quant->plan;
            const Draws draws[2] = {draws_of(plan.stream[0], context_), draws_of(plan.stream[1], context_)};
            std::vector<QuantTarget> targets;
            for (const QuantOutput& o : quant->outputs) targets.push_back({out[static_cast<std::size_t>(o.op)] + o.offset, o.pitch, o.array});
            return in_.kernels->quant(plan, base(quant->source, out), draws, targets.data(), static_cast<int>(targets.size()), from(plan.items),
                                      to(plan.items), at_least(scratch, quant_scratch(plan)));
        }
        if (const auto* qdot = std::get_if<QdotStep>(&schedule_.steps[i])) {
            const auto at = [&](std::size_t v) { return base(qdot->sources[v], out); };
            return multiply_codes_alone(qdot->plan, {at(0), at(1), at(2), at(3)}, out[i], *in_.kernels, batch,
                                        at_least(scratch, multiply_codes_scratch(qdot->plan, *in_.kernels)));
        }
        if (const auto* map = std::get_if<MapStep>(&schedule_.steps[i])) {
            const auto& [plan, sources, out_offset] = map->parts[0];
            const Word* bases[kMaxOperands];
            for (std::size_t v = 0; v < sources.size(); ++v) bases[v] = base(sources[v], out);
            return in_.kernels->map(plan, bases, out[i] + out_offset, from(plan.blocks), to(plan.blocks), at_least(scratch, map_scratch(plan)));
        }
        const auto& fold = std::get<FoldStep>(schedule_.steps[i]);
        Word immediates[2];
        const Word* bases[2];
        for (int v = 0; v < fold.operands; ++v) {
            immediates[v] = static_cast<Word>(fold.sources[v].offset);
            bases[v] = fold.sources[v].tag == Tag::kIota ? &immediates[v] : base(fold.sources[v], out);
        }
        in_.kernels->fold(fold.plan, bases, out[i], from(fold.plan.outputs), to(fold.plan.outputs));
    }

    void compute(Absorbed, const Descriptor&, Word*) {}

    void compute(const FoldStep& step, const Descriptor&, Word* out) {
        Word immediates[2];
        const Word* bases[2];
        for (int v = 0; v < step.operands; ++v) {
            const Source& s = step.sources[v];
            immediates[v] = static_cast<Word>(s.offset);
            bases[v] = s.tag == Tag::kIota ? &immediates[v] : base(s);
        }
        const FoldPlan& plan = step.plan;
        const bool ordered = plan.mode == FoldMode::kDot || plan.mode == FoldMode::kSum;
        if (ordered && plan.outputs < 64 && plan.k >= 16 * kChunk) return fold_by_chunks(plan, bases, out);
        split(plan.outputs, std::max<Index>(1, kLeastWork / plan.k), in_.threads, [&](Index begin, Index end, int) {
            in_.kernels->fold(plan, bases, out, begin, end);
        });
    }

    void compute(const PiecewiseSumStep& step, const Descriptor&, Word* out) {
        const PiecewiseSum& plan = step.plan;
        const Word* bases[2];
        for (int v = 0; v < plan.operands; ++v) bases[v] = base(step.sources[v]);
        const Index vectors = (plan.outputs + kMostLanes - 1) / kMostLanes;
        split(vectors, std::max<Index>(1, kLeastWork / (kMostLanes * plan.k)), in_.threads, [&](Index begin, Index end, int) {
            in_.kernels->piecewise_sum(plan, bases, out, begin * kMostLanes, std::min(plan.outputs, end * kMostLanes));
        });
    }

    // Few outputs, many terms: every chunk is an output of its own, then the levels of partials in order.
    void fold_by_chunks(const FoldPlan& plan, const Word* const* bases, Word* out) {
        const Index full = plan.k / kChunk, tail = plan.k % kChunk, chunks = full + (tail ? 1 : 0);
        FoldPlan partial = plan;
        partial.partial = true;
        partial.k = kChunk;
        partial.axes = plan.axes + 1;
        partial.extents[plan.axes] = full;
        partial.outputs = plan.outputs * full;
        for (int v = 0; v < 2; ++v) partial.strides[v][plan.axes] = kChunk * plan.k_stride[v];
        Word* full_chunks = at_least(e_.workspaces_[0].packed, partial.outputs + plan.outputs);
        Word* last = full_chunks + partial.outputs;
        split(partial.outputs, kLeastWork / kChunk, in_.threads, [&](Index begin, Index end, int) {
            in_.kernels->fold(partial, bases, full_chunks, begin, end);
        });
        if (tail) {
            FoldPlan rest = plan;
            rest.partial = true;
            rest.k = tail;
            const Word* tails[2];
            for (int v = 0; v < 2; ++v) tails[v] = bases[v] + full * kChunk * plan.k_stride[v];
            in_.kernels->fold(rest, tails, last, 0, plan.outputs);
        }
        for (Index o = 0; o < plan.outputs; ++o) {
            float sum = 0, total = 0;
            for (Index c = 0; c < chunks; ++c) {
                sum += f32::value(c < full ? full_chunks[o * full + c] : last[o]);
                if ((c + 1) % kChunk && c + 1 < chunks) continue;
                total += sum;
                sum = 0;
            }
            // With one level of partials `total` is +0 + sum, and sum is never -0.
            out[o] = f32::word(f32::canonical(total));
        }
    }

    void compute(std::monostate, const Descriptor&, Word*) {}

    void compute(const StripGroup& group, const Descriptor&, Word*) {
        run_strips(group, [&](const Source& s) { return base(s); }, [&](int op) { return out_[static_cast<std::size_t>(op)]; },
                   schedule_.loops, *in_.kernels, workspaces());
    }

    void compute(const ScatterPlan& plan, const Descriptor&, Word* out) {
        const Word *index = base(source_of(plan.index)), *table = base(source_of(plan.table));
        split(plan.columns, std::max<Index>(1, kLeastWork / plan.k), in_.threads,
              [&](Index begin, Index end, int) { scatter(plan, index, table, out, begin, end); });
    }

    void compute(const PlainStep&, const Descriptor& op, Word* out) {
        const Word* bases[kMaxOperands];
        for (std::size_t v = 0; v < op.views.size(); ++v) bases[v] = base(Source{op.views[v].tag, op.views[v].index, op.views[v].offset});
        switch (op.kind) {
        case Kind::kDraw: return compute_draw(op, out);
        case Kind::kGather:
            return split(op.elements, kLeastWork, in_.threads, [&](Index begin, Index end, int) { gather(op, bases, out, begin, end); });
        case Kind::kRandom:
            return split(op.elements, kLeastWork, in_.threads, [&](Index begin, Index end, int) { random_words(op, context_, out, begin, end); });
        default:
            if (op.is_qdot())
                return split(op.elements, std::max<Index>(1, kLeastWork / (op.k * op.p0)), in_.threads,
                             [&](Index begin, Index end, int) { qdot_plainly(op, bases, out, begin, end); });
            split(op.elements, std::max<Index>(1, kLeastWork / op.k), in_.threads, [&](Index begin, Index end, int) { fold_plainly(op, bases, out, begin, end); });
        }
    }

    void compute_draw(const Descriptor& op, Word* out) {
        if (in_.dataset.rows == 0) throw std::invalid_argument("the Program draws rows, and there is no dataset");
        if (in_.dataset.columns != op.extents[1])
            throw std::invalid_argument("the Program draws rows of " + std::to_string(op.extents[1]) + " words; the dataset's have " +
                                        std::to_string(in_.dataset.columns));
        draw(op, context_, in_.dataset, out, 0, op.extents[0]);
    }

    Executor& e_;
    const Schedule& schedule_;
    const std::vector<Descriptor>& ops_;  // as they are planned
    const RunInputs& in_;
    const Context context_;
    std::vector<Buffer> results_, apart_;
    std::vector<Word*> out_;
};

namespace {

Index result_words(const Program& program, const Schedule& schedule) {
    Index words = 0;
    for (std::size_t i = 0; i < program.ops.size(); ++i)
        if (schedule.kept[schedule.at(i)]) words += program.ops[i].elements;
    return words;
}

}  // namespace

Sweep make_sweep(const Program& program, const Schedule& schedule) {
    std::vector<std::vector<int>> reads(program.ops.size());
    std::vector<bool> stored(program.ops.size());
    for (std::size_t op = 0; op < program.ops.size(); ++op) {
        for (const int read : schedule.reads[schedule.at(op)]) reads[op].push_back(schedule.planned.original[static_cast<std::size_t>(read)]);
        stored[op] = schedule.needed[schedule.at(op)] && schedule.planned.copy_of[op] < 0;
    }
    Sweep sweep = plan_sweep(program, reads, stored, schedule.arena_words + result_words(program, schedule));
    if (const std::string wrong = unsound(schedule, sweep); !wrong.empty()) throw std::logic_error("no sweep: " + wrong);
    return sweep;
}

Program asked_for(const Program& program, const std::vector<int>& ops) {
    Program asked = program;
    asked.outputs.clear();
    for (const int op : ops) asked.outputs.push_back(Alias{1, op});
    return asked;
}

Executor::Executor(Program program, std::vector<Table> consts, bool plain)
    : program_(std::move(program)), schedule_(make_schedule(program_, plain)), consts_(std::move(consts)) {
    // A step's inputs are the last step's outputs: its results replace the state before those.
    pool_ = std::make_shared<Pool>(result_words(program_, schedule_));
}

// Games are rare: what they need beyond an ordinary step is given back.
struct Executor::Shrunk {
    Executor& executor;
    ~Shrunk() {
        if (executor.arena_.words() > executor.schedule_.arena_words) executor.arena_ = Buffer();
    }
};

bool Executor::attach(std::size_t index, LoopFunction function, const Kernels& kernels) {
    Loop& loop = schedule_.loops.at(index);
    // Loops of one expression share a function; one trial is enough.
    if (!trusted_.contains({function, &kernels}) && !computes(function, loop, kernels)) return false;
    const std::lock_guard lock(running_);
    trusted_.insert({function, &kernels});
    loop.function = function;
    loop.isa = &kernels;
    return true;
}

std::vector<Buffer> Executor::run(const RunInputs& in) {
    const std::lock_guard lock(running_);
    prepare(in, in.keep ? 0 : schedule_.arena_words);
    return Run(*this, schedule_, in).compute();
}

void Executor::sweep(const RunInputs& in, const Visit& visit) {
    const std::lock_guard lock(running_);
    if (!sweep_) sweep_ = make_sweep(program_, schedule_);
    prepare(in, sweep_->words);
    const Shrunk afterwards{*this};
    Run(*this, schedule_, in).sweep(*sweep_, visit);
}

std::vector<Buffer> Executor::some(const RunInputs& in, const std::vector<int>& ops) {
    Schedule schedule = make_schedule(asked_for(program_, ops));
    const std::lock_guard lock(running_);
    for (Loop& loop : schedule.loops)
        for (const Loop& known : schedule_.loops)
            if (known.function && same_function(known, loop)) {
                loop.function = known.function;
                loop.isa = known.isa;
                break;
            }
    prepare(in, schedule.arena_words);
    const Shrunk afterwards{*this};
    return Run(*this, schedule, in).compute();
}

void Executor::rest() {
    const std::unique_lock lock(running_, std::try_to_lock);
    if (!lock) return;
    arena_ = Buffer();
    workspaces_.clear();
    pool_->rest();
}

void Executor::prepare(const RunInputs& in, Index arena_words) {
    at_least(arena_, arena_words);
    if (workspaces_.size() < static_cast<std::size_t>(in.threads)) workspaces_.resize(static_cast<std::size_t>(in.threads));
}

}  // namespace lockstep
