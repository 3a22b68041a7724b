// The kernel table of one instruction set: included by each kernels_<isa>.cpp after its lanes, inside its own namespace.

#include "map.inl"
#include "loop.inl"
#include "fold.inl"
#include "gemm.inl"
#include "turned.inl"
#include "qdot.inl"
#include "quant.inl"

bool run_apply_op(int op, const Word* a, const Word* b, const Word* c, Word* out, std::size_t n) {
    return apply_op(op, a, b, c, out, n);
}

constexpr Kernels table(const char* name) {
    return Kernels{name, &run_map, &run_loop, &run_fold, &run_piecewise_sum, &run_gemm, &run_turned, MR, NR, W, &run_qdot, UNITS, &run_quant, &run_apply_op};
}
