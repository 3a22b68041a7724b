// The kernel table of one instruction set: included by each kernels_<isa>.cpp after its lanes, inside its own namespace.

#include "map.inl"
#include "loop.inl"
#include "fold.inl"
#include "gemm.inl"

bool run_apply_op(int op, const Word* a, const Word* b, const Word* c, Word* out, std::size_t n) {
    return apply_op(op, a, b, c, out, n);
}

constexpr Kernels table(const char* name, Index m_block) {
    return Kernels{name, &run_map, &run_loop, &run_fold, &run_gemm_pack, &run_gemm, NR, m_block, &run_apply_op};
}
