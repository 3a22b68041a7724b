// The kernels in portable C++.
#include "apply_op.hpp"
#include "codes.hpp"
#include "kernels.hpp"

namespace lockstep {
namespace scalar {
namespace {

#include "lanes_scalar.inl"
constexpr int MR = 4, NV = 2;
#include "kernels.inl"

}  // namespace
}  // namespace scalar

const Kernels kScalarKernels = scalar::table("scalar");

}  // namespace lockstep
