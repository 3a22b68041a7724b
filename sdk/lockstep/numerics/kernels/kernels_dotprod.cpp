// What AArch64's dot products (FEAT_DotProd) add to the kernels for NEON: products of bytes, four at a time.
#include "apply_op.hpp"
#include "kernels.hpp"

#include <arm_neon.h>

namespace lockstep {
namespace dotprod {
namespace {

#define LOCKSTEP_DOTPROD 1
#include "lanes_neon.inl"
constexpr int MR = 4, NV = 4;
#include "gemm.inl"
#include "qdot.inl"

}  // namespace
}  // namespace dotprod

const CodeKernel kDotprodCodes{&dotprod::run_qdot, dotprod::UNITS};

}  // namespace lockstep
