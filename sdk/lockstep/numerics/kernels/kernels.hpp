// The kernels of one instruction set. Callers hold a FloatEnvironment; nothing here allocates or starts threads.
#pragma once

#include "loops.hpp"
#include "plans.hpp"

namespace lockstep {

// Rows [m0, m1) and columns [n0, n1) of a product, of which `columns` (a multiple of the tile's) are packed at a time.
struct GemmPart {
    Index m0, m1, n0, n1, columns;
};

// Rows [row0, row1) of b's windows by rows [column0, column1) of a, at most the tile's columns. What is packed of a `keeps` for
// further images, for which it is `packed` already.
struct TurnedPart {
    Index row0, row1, column0, column1;
    bool keeps, packed;
};
constexpr Index kMostLanes = 16;     // of a vector, on any path
constexpr Index kWindowsPerRow = 4;  // a row of a is packed for a quarter as many windows at least
constexpr Index kTurnedRows = 1152;  // summed up before they are stored: a multiple of every run and vector

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

    // Outputs [begin, end) of a sum.
    void (*piecewise_sum)(const PiecewiseSum& plan, const Word* const* bases, Word* out, Index begin, Index end);

    // One part of one product; `scratch` holds gemm_scratch() words.
    void (*gemm)(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const GemmPart& part, Word* scratch);
    // One part of one product with windows; `scratch` holds turned_scratch() words.
    void (*turned)(const GemmPlan& plan, const Word* a, const Word* b, Word* out, const TurnedPart& part, Word* scratch);
    Index gemm_mr, gemm_nr, lanes;  // rows and columns of a register tile, words of a vector

    // One part of one product of codes; `scratch` holds qdot_scratch() words.
    void (*qdot)(const QdotPlan& plan, const QdotOperands& at, Word* out, const GemmPart& part, Word* scratch);
    int code_units;  // of a word of codes, once it is packed

    // Items [begin, end) of a quant; `draws` has each limb's, `scratch` holds quant_scratch() words.
    void (*quant)(const QuantPlan& plan, const Word* x, const Draws* draws, const QuantTarget* targets, int count, Index begin, Index end,
                  Word* scratch);

    // op(a, b, c) over arrays: see apply_op.hpp.
    bool (*apply_op)(int op, const Word* a, const Word* b, const Word* c, Word* out, std::size_t n);
};

constexpr Index map_scratch(const MapPlan& plan) { return (plan.buffers + 1) * (kBlock + 16); }
constexpr Index gemm_scratch(const GemmPlan& plan, Index columns) { return columns * (plan.k < kChunk ? plan.k : kChunk) + 64 * (kChunk + 1); }
constexpr Index turned_scratch(const GemmPlan& plan, const Kernels& kernels, bool keeps) {
    return kernels.gemm_nr * (kTurnedRows + (keeps || plan.k < kChunk ? plan.k : kChunk)) + 64;
}

// Words of a register tile's columns, and of a block of `columns`, with all groups of a chain.
constexpr Index qdot_panel(const QdotPlan& plan, const Kernels& kernels) {
    return kernels.gemm_nr * groups_packed(plan) * (plan.words * kernels.code_units + 1);
}
constexpr Index qdot_scratch(const QdotPlan& plan, const Kernels& kernels, Index columns) {
    const Index strip = 16 * (groups_packed(plan) * (plan.words * kernels.code_units + 3) + 2);
    return (columns + kernels.gemm_nr - 1) / kernels.gemm_nr * qdot_panel(plan, kernels) + strip + 64;
}

constexpr Index quant_scratch(const QuantPlan& plan) { return plan.columns ? 6 * plan.words * kRowsAtOnce : 0; }

// What instructions for products of bytes have of their own: the product of codes.
struct CodeKernel {
    void (*qdot)(const QdotPlan& plan, const QdotOperands& at, Word* out, const GemmPart& part, Word* scratch);
    int units;
};

extern const Kernels kScalarKernels;
#if defined(LOCKSTEP_X86_64)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
extern const CodeKernel kVnniCodes;
#elif defined(LOCKSTEP_AARCH64)
extern const Kernels kNeonKernels;
extern const CodeKernel kDotprodCodes;
#endif

}  // namespace lockstep
