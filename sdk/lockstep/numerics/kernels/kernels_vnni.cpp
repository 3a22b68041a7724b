// What AVX512-VNNI adds to the kernels for AVX-512: products of bytes, four at a time.
#include "apply_op.hpp"
#include "kernels.hpp"

#include <immintrin.h>

namespace lockstep {
namespace vnni {
namespace {

#define LOCKSTEP_VNNI 1
#include "lanes_avx512.inl"
constexpr int MR = 14, NV = 2;
#include "gemm.inl"
#include "qdot.inl"

}  // namespace
}  // namespace vnni

const CodeKernel kVnniCodes{&vnni::run_qdot, vnni::UNITS};

}  // namespace lockstep
