// The kernels for AArch64: a tile of 4 rows x 16 columns uses 20 of the 32 registers.
#include "apply_op.hpp"
#include "codes.hpp"
#include "kernels.hpp"

#include <arm_neon.h>

namespace lockstep {
namespace neon {
namespace {

#include "lanes_neon.inl"
constexpr int MR = 4, NV = 4;
#include "kernels.inl"

}  // namespace
}  // namespace neon

const Kernels kNeonKernels = neon::table("neon");

}  // namespace lockstep
