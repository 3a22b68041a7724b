// Runs a Program: one pass over its ops, every op split over the threads, the bits independent of how.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "buffers.hpp"
#include "kernels.hpp"
#include "plain.hpp"
#include "planner.hpp"

namespace lockstep {

// Buffers that outlive a run: a result's memory comes back here when its last reader drops it.
class Pool {
public:
    // Holds at most `most` words that nobody uses.
    explicit Pool(Index most) : most_(most) {}
    Buffer take(Index words);
    void give(Buffer buffer);

private:
    std::mutex mutex_;
    std::vector<Buffer> free_;
    Index most_;
};

struct RunInputs {
    std::vector<const Word*> state;  // null for an EMPTY entry
    Context context;
    Dataset dataset;
    bool keep = false;  // every op's output, not only the Program's
    int threads = 1;
    const Kernels* kernels = nullptr;
    std::vector<std::int64_t>* nanoseconds = nullptr;  // filled with each op's time where there is one
};

// A constant's words, where their owner has them: those of a frozen model are mapped, and never copied.
struct Table {
    const Word* words;
    std::shared_ptr<const void> owner;
};

class Executor {
public:
    Executor(Program program, std::vector<Table> consts);

    // One buffer per op; empty where the op's output was not kept.
    std::vector<Buffer> run(const RunInputs& in);

    // Loop `index` runs `function`, from the next run with these kernels on; false, and nothing changes, if it gives other bits.
    bool attach(std::size_t index, LoopFunction function, const Kernels& kernels);

    const Program& program() const { return program_; }
    const std::vector<Loop>& loops() const { return schedule_.loops; }
    const std::shared_ptr<Pool>& pool() const { return pool_; }

private:
    class Run;

    Program program_;
    Schedule schedule_;
    std::vector<Table> consts_;
    std::shared_ptr<Pool> pool_;
    std::mutex running_;  // the arena serves one run at a time
    Buffer arena_;
    std::set<std::pair<LoopFunction, const Kernels*>> trusted_;  // functions that gave the interpreter's bits
    std::vector<Workspace> workspaces_;  // one per thread
};

}  // namespace lockstep
