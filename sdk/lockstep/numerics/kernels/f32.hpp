// The scalar operations of scalar.py as branch-free functions that a compiler turns into vector code.
//
// Same names without the f, same order of instructions, the same bits on every input; scalar.py is the specification.
// Compile with -ffp-contract=off -fno-math-errno -fno-trapping-math, and hold a FloatEnvironment on every thread.
//
// Every function has internal linkage: files compiled for different instruction sets must not share one body. nvcc and NVRTC
// make device functions of them (-fmad=false -ftz=false -prec-div=true -prec-sqrt=true).
// `raw::` functions leave a NaN as the machine made it. They are for chains in which no min, max, compare, select, cast,
// abs or neg sees the value before a canonical() does; everything outside `raw` returns the canonical NaN.
#pragma once

#if defined(__CUDACC__) || defined(__HIP__)
#define LOCKSTEP_GPU  // this is a device's compiler
#define LOCKSTEP_INLINE static __device__ __forceinline__
#define LOCKSTEP_CONSTANT static __device__ constexpr
#else
#include <cstdint>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif
#define LOCKSTEP_INLINE [[gnu::always_inline]] static inline
#define LOCKSTEP_CONSTANT inline constexpr
#endif

namespace lockstep::f32 {

#if defined(LOCKSTEP_GPU)
using Word = unsigned int;  // NVRTC has no standard headers
using Signed = int;
#else
using Word = std::uint32_t;
using Signed = std::int32_t;
#endif

LOCKSTEP_CONSTANT Word SIGN = 0x80000000, INFINITE = 0x7f800000, NEGATIVE_INFINITE = 0xff800000, NOT_A_NUMBER = 0x7fc00000;
LOCKSTEP_CONSTANT Word SMALLEST_NORMAL = 0x00800000;

// polynomials.py, the same names and the same bits.
LOCKSTEP_CONSTANT Word LOG2_E = 0x3fb8aa3b, LN2_HI = 0x3f317218, LN2_LO = 0xb102e308, ROUND_TO_INTEGER = 0x4b400000;
LOCKSTEP_CONSTANT Word EXP_LOWEST = 0xc2d00000, EXP_HIGHEST = 0x42b20000;
LOCKSTEP_CONSTANT Word EXP[] = {0x3ab526ac, 0x3c091cc7, 0x3d2aac58, 0x3e2aaa49, 0x3efffffe, 0x3f800000, 0x3f800000};
LOCKSTEP_CONSTANT Word SQRT_HALF = 0x3f3504f3;
LOCKSTEP_CONSTANT Word LOG[] = {0xbd9c64ef, 0x3e02af63, 0xbe06c121, 0x3e116c97, 0xbe2a3945,
                                0x3e4cd00e, 0xbe800113, 0x3eaaaaaa, 0xbf000000};
LOCKSTEP_CONSTANT Word TANH_SMALL = 0x3f200000;
LOCKSTEP_CONSTANT Word TANH[] = {0xbbba8672, 0x3ca8fc67, 0xbd5c1ad2, 0x3e08837b, 0xbeaaaa99};

#if !defined(LOCKSTEP_GPU)
// Round to nearest even with subnormals kept, on this thread, until the end of the scope.
class FloatEnvironment {
public:
#if defined(__SSE__)
    FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~FloatEnvironment() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
    // In assembly, because GCC and clang have no builtin in common. Rounding, flushing and whether NaNs keep their payload are all 0.
    FloatEnvironment() {
        asm volatile("mrs %0, fpcr" : "=r"(saved_) : : "memory");
        asm volatile("msr fpcr, xzr" : : : "memory");
    }
    ~FloatEnvironment() { asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory"); }
#else
#error "how is flushing of subnormals switched off on this machine?"
#endif
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

private:
#if defined(__aarch64__)
    std::uint64_t saved_;
#else
    unsigned saved_;
#endif
};
#endif

LOCKSTEP_INLINE Word word(float x) { return __builtin_bit_cast(Word, x); }
LOCKSTEP_INLINE float value(Word x) { return __builtin_bit_cast(float, x); }
LOCKSTEP_INLINE Signed integer(Word x) { return static_cast<Signed>(x); }

LOCKSTEP_INLINE Word select(Word c, Word a, Word b) { return c != 0 ? a : b; }
LOCKSTEP_INLINE Word is_nan(Word x) { return (x & ~SIGN) > INFINITE; }
LOCKSTEP_INLINE float canonical(float x) { return value(is_nan(word(x)) ? NOT_A_NUMBER : word(x)); }

namespace raw {

// a * b + c with one rounding.
LOCKSTEP_INLINE float fma(float a, float b, float c) {
#if defined(LOCKSTEP_GPU)
    return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return __builtin_fmaf(a, b, c);
#else
    // The product of two floats is exact in double. The sum is rounded to odd, which makes the second rounding harmless
    // (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008); the error of the sum is Knuth's TwoSum.
    const double product = static_cast<double>(a) * static_cast<double>(b), addend = c;
    const double sum = product + addend, part = sum - product;
    const double error = (product - (sum - part)) + (addend - part);
    const std::uint64_t bits = __builtin_bit_cast(std::uint64_t, sum);
    const std::uint64_t outward = (error < 0) == (sum < 0) ? 1 : ~std::uint64_t{0};
    const bool inexact = error < 0 || error > 0;  // false where the sum is infinite or NaN
    return static_cast<float>(__builtin_bit_cast(double, inexact && !(bits & 1) ? bits + outward : bits));
#endif
}

#if defined(__CUDACC__)  // HIP's function of this name rounds otherwise; its builtin is correctly rounded
LOCKSTEP_INLINE float sqrt(float a) { return __fsqrt_rn(a); }
#else
LOCKSTEP_INLINE float sqrt(float a) { return __builtin_sqrtf(a); }
#endif

template <int N>
LOCKSTEP_INLINE float horner(const Word (&coefficients)[N], float x) {
    float p = value(coefficients[0]);
#if defined(LOCKSTEP_GPU)
#pragma unroll
#else
#pragma GCC unroll 16
#endif
    for (int i = 1; i < N; ++i) p = raw::fma(p, x, value(coefficients[i]));
    return p;
}

LOCKSTEP_INLINE float exp(float x) {
    x = x > value(EXP_HIGHEST) ? value(EXP_HIGHEST) : x;  // a NaN passes
    // Below the lowest the result is +0. Such lanes (a softmax masks half of its terms) compute exp(0) and drop it: scaling by
    // powers of two down to nothing would cost a microcode assist for each subnormal on the way.
    const Word vanishes = 0 - Word{x < value(EXP_LOWEST)};
    x = value(word(x) & ~vanishes);
    const float shifted = raw::fma(x, value(LOG2_E), value(ROUND_TO_INTEGER));
    const float n = shifted - value(ROUND_TO_INTEGER);
    float r = raw::fma(n, -value(LN2_HI), x);
    r = raw::fma(n, -value(LN2_LO), r);
    const float p = horner(EXP, r);
    const Word k = word(shifted) - ROUND_TO_INTEGER;
    const Word half = static_cast<Word>(integer(k) >> 1), rest = k - half;
    return value(word(p * value((half + 127) << 23) * value((rest + 127) << 23)) & ~vanishes);
}

LOCKSTEP_INLINE float log(float x) {
    const Word w = word(x);
    // A mask, not a condition: GCC makes branches, and no vectors, of two selects by one condition.
    const Word subnormal = 0 - Word{integer(w) < integer(SMALLEST_NORMAL)};
    const Word y = (word(x * 8388608.0f) & subnormal) | (w & ~subnormal);
    const Word k = static_cast<Word>(integer(y - SQRT_HALF) >> 23);
    const float m = value(y - (k << 23));
    const float n = static_cast<float>(integer(k - (23 & subnormal)));
    const float f = m - 1.0f;
    const float p = horner(LOG, f);
    const float tail = raw::fma(f * f, p, n * value(LN2_LO));
    Word r = word(raw::fma(n, value(LN2_HI), f + tail));
    // On the bits: +infinity gives itself, larger or negative patterns give NaN, and both zeros give -infinity.
    r = select(w == INFINITE, INFINITE, r);
    r = select(w > INFINITE, NOT_A_NUMBER, r);
    r = select((w & ~SIGN) == 0, NEGATIVE_INFINITE, r);
    return value(r);
}

LOCKSTEP_INLINE float tanh(float x) {
    const float a = value(word(x) & ~SIGN);
    const float z = a * a;
    const float small = raw::fma(a * z, horner(TANH, z), a);
    const float large = 1.0f - 2.0f / (raw::exp(a + a) + 1.0f);
    // |x| is a NaN or not below the threshold exactly when its word is not below the threshold's.
    const Word r = word(a) < TANH_SMALL ? word(small) : word(large);
    return value(r | (word(x) & SIGN));
}

}  // namespace raw

LOCKSTEP_INLINE float add(float a, float b) { return canonical(a + b); }
LOCKSTEP_INLINE float sub(float a, float b) { return canonical(a - b); }
LOCKSTEP_INLINE float mul(float a, float b) { return canonical(a * b); }
LOCKSTEP_INLINE float div(float a, float b) { return canonical(a / b); }
LOCKSTEP_INLINE float fma(float a, float b, float c) { return canonical(raw::fma(a, b, c)); }
LOCKSTEP_INLINE float sqrt(float a) { return canonical(raw::sqrt(a)); }
LOCKSTEP_INLINE float neg(float a) { return canonical(value(word(a) ^ SIGN)); }
LOCKSTEP_INLINE float abs(float a) { return canonical(value(word(a) & ~SIGN)); }
LOCKSTEP_INLINE float exp(float x) { return canonical(raw::exp(x)); }
LOCKSTEP_INLINE float log(float x) { return canonical(raw::log(x)); }
LOCKSTEP_INLINE float tanh(float x) { return canonical(raw::tanh(x)); }

// An integer that orders floats as docs/numerics.md does: -inf < ... < -0 < +0 < ... < +inf.
LOCKSTEP_INLINE Signed order(float a) {
    return integer(word(a) ^ (static_cast<Word>(integer(word(a)) >> 31) & ~SIGN));
}
// What `order` of it is x.
LOCKSTEP_INLINE Word ordered(Signed x) { return static_cast<Word>(x) ^ (static_cast<Word>(x >> 31) & ~SIGN); }
// Extrema of integers, and no choice between words or truth values: compilers make branches of those, and no vectors.
LOCKSTEP_INLINE Word greater_magnitude(float a, float b) {
    const Word x = word(a) & ~SIGN, y = word(b) & ~SIGN;
    return x < y ? y : x;
}
LOCKSTEP_INLINE float min(float a, float b) {
    const Signed x = order(a), y = order(b);
    return value(is_nan(greater_magnitude(a, b)) ? NOT_A_NUMBER : ordered(x < y ? x : y));
}
LOCKSTEP_INLINE float max(float a, float b) {
    const Signed x = order(a), y = order(b);
    return value(is_nan(greater_magnitude(a, b)) ? NOT_A_NUMBER : ordered(x < y ? y : x));
}
LOCKSTEP_INLINE Word lt(float a, float b) { return a < b ? 1 : 0; }
LOCKSTEP_INLINE Word le(float a, float b) { return a <= b ? 1 : 0; }
LOCKSTEP_INLINE Word eq(float a, float b) { return a == b ? 1 : 0; }

LOCKSTEP_INLINE float from_integer(Word a) { return static_cast<float>(integer(a)); }
LOCKSTEP_INLINE Word to_integer(float a) {
    // Adding and subtracting 2^23 rounds what has a fraction; the cast sees only values that fit.
    const Word size = word(a) & ~SIGN;
    const float magic = value((word(a) & SIGN) | 0x4b000000);
    const float rounded = (a + magic) - magic;
    const Word whole = select(size < 0x4b000000, word(rounded), word(a));
    const bool fits = size < 0x4f000000;
    const Word nearest = static_cast<Word>(static_cast<Signed>(value(select(fits, whole, 0))));
    const Word saturated = ~SIGN + (word(a) >> 31);
    return select(is_nan(word(a)), 0, select(fits, nearest, saturated));
}

}  // namespace lockstep::f32

namespace lockstep::i32 {

using f32::integer;
using f32::Word;

LOCKSTEP_INLINE Word magnitude(Word a) { return integer(a) < 0 ? 0 - a : a; }
LOCKSTEP_INLINE Word div(Word a, Word b) {
    const Word quotient = magnitude(a) / (b == 0 ? 1 : magnitude(b));
    const Word with_sign = integer(a ^ b) < 0 ? 0 - quotient : quotient;
    return b == 0 ? 0 : with_sign;
}
LOCKSTEP_INLINE Word rem(Word a, Word b) {
    const Word remainder = magnitude(a) % (b == 0 ? 1 : magnitude(b));
    const Word with_sign = integer(a) < 0 ? 0 - remainder : remainder;
    return b == 0 ? 0 : with_sign;
}
LOCKSTEP_INLINE Word shl(Word a, Word b) { return a << (b & 31); }
LOCKSTEP_INLINE Word shr(Word a, Word b) { return static_cast<Word>(integer(a) >> (b & 31)); }
LOCKSTEP_INLINE Word ushr(Word a, Word b) { return a >> (b & 31); }
LOCKSTEP_INLINE Word lt(Word a, Word b) { return integer(a) < integer(b) ? 1 : 0; }
LOCKSTEP_INLINE Word le(Word a, Word b) { return integer(a) <= integer(b) ? 1 : 0; }
LOCKSTEP_INLINE Word eq(Word a, Word b) { return a == b ? 1 : 0; }
LOCKSTEP_INLINE Word min(Word a, Word b) { return integer(a) < integer(b) ? a : b; }
LOCKSTEP_INLINE Word max(Word a, Word b) { return integer(a) < integer(b) ? b : a; }

}  // namespace lockstep::i32
