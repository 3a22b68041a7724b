// Matrix products on threads.
#include "multiply.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "threads.hpp"

namespace lockstep {
namespace {

constexpr Index kTasksPerThread = 2;  // as a machine's other work slows one thread, the others take its tasks
constexpr Index kLeastTiles = 4;      // along each side of a task, or packing would show

constexpr Index ceil_div(Index a, Index b) { return (a + b - 1) / b; }

// Words of packed columns that stay in a core's L2 beside rows and output: half of it.
Index resident_words() {
    static const Index words = [] {
        long bytes = -1;
#if defined(_SC_LEVEL2_CACHE_SIZE)
        bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
        return std::clamp<Index>(bytes, 256 << 10, 4 << 20) / 2 / static_cast<Index>(sizeof(Word));
    }();
    return words;
}

Index float_panel(const GemmPlan& plan, const Kernels& kernels) { return kernels.gemm_nr * std::min(plan.k, kChunk); }

struct Operands {
    const Word *a, *b;
    Word* out;
};

Operands at_batch(const GemmPlan& plan, Operands at, Index batch) {
    for (int ax = plan.batch_axes - 1; ax >= 0; --ax) {
        const Index i = batch % plan.batch[ax];
        batch /= plan.batch[ax];
        at.a += i * plan.a.batch[ax];
        at.b += i * plan.b.batch[ax];
        at.out += i * plan.out_batch[ax];
    }
    return at;
}

// One product cut into row_parts x column_parts tasks.
struct Cut {
    Index row_parts = 1, column_parts = 1, columns;

    // `panel`: the words of a register tile's columns that stay packed.
    Cut(const GemmPlan& plan, const Kernels& kernels, Index tasks, Index panel) {
        const Index strips = ceil_div(plan.m, kernels.gemm_mr), panels = ceil_div(plan.n, kernels.gemm_nr);
        while (row_parts * column_parts < tasks) {
            const Index rows = plan.m / row_parts, width = plan.n / column_parts;
            const bool rows_can = strips / (row_parts + 1) >= kLeastTiles, columns_can = panels / (column_parts + 1) >= kLeastTiles;
            if (rows_can && (rows >= width || !columns_can)) ++row_parts;
            else if (columns_can) ++column_parts;
            else break;
        }
        const Index most = std::max<Index>(1, resident_words() / panel);
        const Index own = ceil_div(panels, column_parts);
        columns = ceil_div(own, ceil_div(own, most)) * kernels.gemm_nr;
    }
    Index tasks() const { return row_parts * column_parts; }
    GemmPart part(const GemmPlan& plan, const Kernels& kernels, Index task) const {
        const Index row = task / column_parts, column = task % column_parts, panels = ceil_div(plan.n, kernels.gemm_nr);
        const auto column_at = [&](Index i) { return std::min(plan.n, panels * i / column_parts * kernels.gemm_nr); };
        return {plan.m * row / row_parts, plan.m * (row + 1) / row_parts, column_at(column), column_at(column + 1), columns};
    }
};

}  // namespace

void multiply_alone(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const Kernels& kernels, Word* scratch) {
    kernels.gemm(plan, a, b, out, Cut(plan, kernels, 1, float_panel(plan, kernels)).part(plan, kernels, 0), scratch);
}

Index multiply_scratch(const GemmPlan& plan, const Kernels& kernels) {
    const Index depth = std::min(plan.k, kChunk), panel = kernels.gemm_nr * depth;
    return gemm_scratch(plan, ceil_div(std::min(ceil_div(plan.n, kernels.gemm_nr) * panel, std::max(resident_words(), panel)), depth));
}

namespace {

bool shares_a(const GemmPlan& plan) { return std::all_of(plan.a.batch, plan.a.batch + plan.batch_axes, [](Index stride) { return stride == 0; }); }

// Lanes of a's rows pay where a is packed for many windows and fills them.
bool turning_pays(const GemmPlan& plan, const Kernels& kernels) {
    if (!plan.b_runs.length || plan.begun) return false;
    const Index windows = plan.n * (shares_a(plan) ? plan.batches : 1);
    return plan.m <= kWindowsPerRow * windows && 4 * ceil_div(plan.m, kernels.lanes) * kernels.lanes <= 5 * plan.m;
}

// Panels of columns, and where these are fewer than tasks, ranges of images; shares of the rows where there is one image.
void multiply_turned(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const Kernels& kernels, std::span<Workspace> workspaces,
                     Index threads) {
    constexpr Index kRowsTogether = 48;  // a multiple of runs and vectors
    const Index panels = ceil_div(plan.m, kernels.gemm_nr);
    const Index ranges = threads == 1 ? 1 : std::min(plan.batches, ceil_div(kTasksPerThread * threads, panels));
    const Index shares = std::clamp<Index>(ceil_div(threads, panels * ranges), 1, ceil_div(plan.n, kRowsTogether));
    const bool keeps = shares_a(plan) && plan.batches > 1;
    const auto row_at = [&](Index share) { return std::min(plan.n, ceil_div(plan.n, kRowsTogether) * share / shares * kRowsTogether); };
    std::atomic<Index> next = 0;
    on_threads(static_cast<int>(threads), [&](int own, int) {
        Word* scratch = at_least(workspaces[static_cast<std::size_t>(own)].scratch, turned_scratch(plan, kernels, keeps));
        for (Index task = next++; task < panels * ranges * shares; task = next++) {
            const Index share = task % shares, range = task / shares % ranges, column = task / shares / ranges * kernels.gemm_nr;
            const Index first = plan.batches * range / ranges, last = plan.batches * (range + 1) / ranges;
            for (Index batch = first; batch < last; ++batch) {
                const Operands at = at_batch(plan, {a, b, out}, batch);
                const TurnedPart part{row_at(share), row_at(share + 1), column, std::min(plan.m, column + kernels.gemm_nr), keeps, batch > first};
                kernels.turned(plan, at.a, at.b, at.out, part, scratch);
            }
        }
    });
}

}  // namespace

void multiply(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const Kernels& kernels, std::span<Workspace> workspaces) {
    const Index most = static_cast<Index>(workspaces.size()), work = plan.batches * plan.m * plan.n * plan.k / 16;
    const Index threads = std::clamp<Index>(work / kLeastWork, 1, most);
    if (turning_pays(plan, kernels)) return multiply_turned(plan, a, b, out, kernels, workspaces, threads);
    const Cut cut(plan, kernels, threads == 1 ? 1 : ceil_div(kTasksPerThread * threads, plan.batches), float_panel(plan, kernels));
    std::atomic<Index> next = 0;
    on_threads(static_cast<int>(threads), [&](int own, int) {
        Word* scratch = at_least(workspaces[static_cast<std::size_t>(own)].scratch, gemm_scratch(plan, cut.columns));
        for (Index task = next++; task < plan.batches * cut.tasks(); task = next++) {
            const Operands at = at_batch(plan, {a, b, out}, task / cut.tasks());
            kernels.gemm(plan, at.a, at.b, at.out, cut.part(plan, kernels, task % cut.tasks()), scratch);
        }
    });
}

namespace {

void multiply_codes(const QdotPlan& plan, QdotOperands at, Word* out, const Kernels& kernels, Index batch, const GemmPart& part, Word* scratch) {
    const GemmPlan& shape = plan.shape;
    for (int ax = shape.batch_axes - 1; ax >= 0; --ax) {
        const Index i = batch % shape.batch[ax];
        batch /= shape.batch[ax];
        at.a += i * shape.a.batch[ax];
        at.b += i * shape.b.batch[ax];
        at.scale_a += i * plan.scale_a_batch[ax];
        at.scale_b += i * plan.scale_b_batch[ax];
        out += i * shape.out_batch[ax];
    }
    kernels.qdot(plan, at, out, part, scratch);
}

}  // namespace

void multiply_codes_alone(const QdotPlan& plan, const QdotOperands& at, Word* out, const Kernels& kernels, Index batch, Word* scratch) {
    multiply_codes(plan, at, out, kernels, batch, Cut(plan.shape, kernels, 1, qdot_panel(plan, kernels)).part(plan.shape, kernels, 0), scratch);
}

Index multiply_codes_scratch(const QdotPlan& plan, const Kernels& kernels) {
    return qdot_scratch(plan, kernels, Cut(plan.shape, kernels, 1, qdot_panel(plan, kernels)).columns);
}

void multiply_codes(const QdotPlan& plan, const QdotOperands& at, Word* out, const Kernels& kernels, std::span<Workspace> workspaces) {
    const GemmPlan& shape = plan.shape;
    const Index most = static_cast<Index>(workspaces.size()), work = shape.batches * shape.m * shape.n * shape.k / 16;
    const Index threads = std::clamp<Index>(work / kLeastWork, 1, most);
    const Cut cut(shape, kernels, threads == 1 ? 1 : ceil_div(kTasksPerThread * threads, shape.batches), qdot_panel(plan, kernels));
    std::atomic<Index> next = 0;
    on_threads(static_cast<int>(threads), [&](int own, int) {
        Word* scratch = at_least(workspaces[static_cast<std::size_t>(own)].scratch, qdot_scratch(plan, kernels, cut.columns));
        for (Index task = next++; task < shape.batches * cut.tasks(); task = next++)
            multiply_codes(plan, at, out, kernels, task / cut.tasks(), cut.part(shape, kernels, task % cut.tasks()), scratch);
    });
}

}  // namespace lockstep
