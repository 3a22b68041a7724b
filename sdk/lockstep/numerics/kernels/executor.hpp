// Runs a Program: one pass over its ops, every op split over the threads, the bits independent of how.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "buffers.hpp"
#include "kernels.hpp"
#include "plain.hpp"
#include "plan/schedule.hpp"
#include "plan/sweep.hpp"

namespace lockstep {

// Buffers that outlive a run: a result's memory comes back here when its last reader drops it.
class Pool {
public:
    // Holds at most `most` words that nobody uses.
    explicit Pool(Index most) : most_(most) {}
    Buffer take(Index words);
    void give(Buffer buffer);
    // Gives the system back what nobody uses, and what comes back before the next `take`.
    void rest();

private:
    std::mutex mutex_;
    std::vector<Buffer> free_;
    Index most_;
    bool resting_ = false;
};

struct RunInputs {
    std::vector<const Word*> state;  // null for an EMPTY entry
    Context context;
    Dataset dataset;
    bool keep = false;  // every op's output, not only the Program's
    std::vector<Word*> into;  // per op: the caller's memory for its output, if it has some; it holds nothing that the run reads
    int threads = 1;
    const Kernels* kernels = nullptr;
    std::vector<std::int64_t>* nanoseconds = nullptr;  // filled with each op's time where there is one
};

// A sweep in the memory of an ordinary step: what that returns is shown and let go of.
Sweep make_sweep(const Program& program, const Schedule& schedule);

// The Program with the outputs of these ops in the place of its own.
Program asked_for(const Program& program, const std::vector<int>& ops);

// Told of an op's output as soon as it is complete; the words are gone afterwards.
using Visit = std::function<void(std::size_t op, const Word* words)>;
// A constant's words, where their owner has them: those of a frozen model are mapped, and never copied.
struct Table {
    const Word* words;
    std::shared_ptr<const void> owner;
};

class Executor {
public:
    // `plain`: every op by itself.
    Executor(Program program, std::vector<Table> consts, bool plain = false);

    // One buffer per op; empty where the op's output was not kept.
    std::vector<Buffer> run(const RunInputs& in);

    // Shows every op's output, in order.
    void sweep(const RunInputs& in, const Visit& visit);
    // One buffer per op; empty for those that are not in `ops`. Runs what they are computed from, fused as in `run`.
    std::vector<Buffer> some(const RunInputs& in, const std::vector<int>& ops);

    // Loop `index` runs `function`, from the next run with these kernels on; false, and nothing changes, if it gives other bits.
    bool attach(std::size_t index, LoopFunction function, const Kernels& kernels);

    // Gives back what is kept between runs, unless one is under way.
    void rest();

    const Program& program() const { return program_; }
    const std::vector<Loop>& loops() const { return schedule_.loops; }
    // A reason why ops are not fused; empty: they are.
    const std::string& plain() const { return schedule_.plain; }
    const std::shared_ptr<Pool>& pool() const { return pool_; }

private:
    class Run;
    struct Shrunk;

    void prepare(const RunInputs& in, Index arena_words);

    Program program_;
    Schedule schedule_;
    std::optional<Sweep> sweep_;  // planned at its first use
    std::vector<Table> consts_;
    std::shared_ptr<Pool> pool_;
    std::mutex running_;  // the arena serves one run at a time
    Buffer arena_;
    std::set<std::pair<LoopFunction, const Kernels*>> trusted_;  // functions that gave the interpreter's bits
    std::vector<Workspace> workspaces_;  // one per thread
};

}  // namespace lockstep
