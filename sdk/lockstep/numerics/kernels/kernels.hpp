// The kernels of one instruction set. Callers hold a FloatEnvironment; nothing here allocates or starts threads.
#pragma once

#include "loops.hpp"
#include "plans.hpp"

namespace lockstep {

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

    // b's columns [panel x nr, (panel + 1) x nr) of all chunks, as gemm() reads them: nr x k words at `packed`.
    void (*gemm_pack)(const GemmPlan& plan, const Word* b, Index panel, Word* packed);
    // Rows [m_begin, m_end) of one product against `panels` packed panels of which the first is `first_panel`;
    // `scratch` holds gemm_scratch() words.
    void (*gemm)(const GemmPlan& plan, const Word* a, const Word* packed, Word* out, Index m_begin, Index m_end,
                 Index first_panel, Index panels, Word* scratch);
    Index gemm_nr;       // columns of a panel
    Index gemm_m_block;  // rows that gemm() wants at a time

    // op(a, b, c) over arrays: see apply_op.hpp.
    bool (*apply_op)(int op, const Word* a, const Word* b, const Word* c, Word* out, std::size_t n);
};

constexpr Index map_scratch(const MapPlan& plan) { return (plan.buffers + 1) * (kBlock + 16); }
constexpr Index kGemmScratch = 128 * kChunk + 64;

extern const Kernels kScalarKernels;
#if defined(LOCKSTEP_X86_64)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace lockstep
