// The kernels for AVX-512 (F, BW, VL, DQ): a tile of 14 rows x 32 columns uses 28 of the 32 registers.
#include "apply_op.hpp"
#include "codes.hpp"
#include "kernels.hpp"

#include <immintrin.h>

namespace lockstep {
namespace avx512 {
namespace {

#include "lanes_avx512.inl"
constexpr int MR = 14, NV = 2;
#include "kernels.inl"

}  // namespace
}  // namespace avx512

const Kernels kAvx512Kernels = avx512::table("avx512");

}  // namespace lockstep
