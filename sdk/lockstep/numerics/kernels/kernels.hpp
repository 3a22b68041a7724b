// The kernels of one instruction set. Callers hold a FloatEnvironment; nothing here allocates or starts threads.
#pragma once

#include "loops.hpp"
#include "plans.hpp"

namespace lockstep {

// Rows [m0, m1) and columns [n0, n1) of a product, of which `columns` (a multiple of the tile's) are packed at a time.
struct GemmPart {
    Index m0, m1, n0, n1, columns;
};

struct Kernels {
    const char* name;

    // Blocks [begin, end) of a map. `bases[i]` is operand i's source at its offset (null for an iota), `scratch` holds
    // map_scratch() words.
    void (*map)(const MapPlan& plan, const Word* const* bases, Word* out, Index begin, Index end, Word* scratch);

    // Blocks [begin, end) of a loop: `bases` as above, `outs[j]` is output j's memory, `scratch` holds loop_scratch() words.
    void (*loop)(const LoopPlan& plan, LoopFunction function, const Word* const* bases, Word* const* outs, Index begin, Index end,
                 Word* scratch);

    // Outputs [begin, end) of a fold; `bases` as above.
    void (*fold)(const FoldPlan& plan, const Word* const* bases, Word* out, Index begin, Index end);

    // One part of one product; `scratch` holds gemm_scratch() words.
    void (*gemm)(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const GemmPart& part, Word* scratch);
    Index gemm_mr, gemm_nr;  // rows and columns of a register tile

    // op(a, b, c) over arrays: see apply_op.hpp.
    bool (*apply_op)(int op, const Word* a, const Word* b, const Word* c, Word* out, std::size_t n);
};

constexpr Index map_scratch(const MapPlan& plan) { return (plan.buffers + 1) * (kBlock + 16); }
constexpr Index gemm_scratch(const GemmPlan& plan, Index columns) { return columns * (plan.k < kChunk ? plan.k : kChunk) + 64 * (kChunk + 1); }

extern const Kernels kScalarKernels;
#if defined(LOCKSTEP_X86_64)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace lockstep
