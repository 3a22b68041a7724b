// The kernels for AVX2 and FMA: a tile of 6 rows x 16 columns uses 12 of the 16 registers.
#include "apply_op.hpp"
#include "codes.hpp"
#include "kernels.hpp"

#include <immintrin.h>

namespace lockstep {
namespace avx2 {
namespace {

#include "lanes_avx2.inl"
constexpr int MR = 6, NV = 2;
#include "kernels.inl"

}  // namespace
}  // namespace avx2

const Kernels kAvx2Kernels = avx2::table("avx2");

}  // namespace lockstep
