// Four floats in a vector register of AArch64.

constexpr int W = 4;
using Float = float32x4_t;
using Int = int32x4_t;

LOCKSTEP_INLINE Int bits(Float a) { return vreinterpretq_s32_f32(a); }
LOCKSTEP_INLINE Float floats(Int a) { return vreinterpretq_f32_s32(a); }
LOCKSTEP_INLINE Float load(const Word* p) { return vreinterpretq_f32_u32(vld1q_u32(p)); }
LOCKSTEP_INLINE void store(Word* p, Float x) { vst1q_u32(p, vreinterpretq_u32_f32(x)); }
// There are no masked loads: word by word, and nothing beyond the last one is touched.
LOCKSTEP_INLINE Float load_first(const Word* p, int n) {
    if (n >= W) return load(p);
    uint32x4_t r = vdupq_n_u32(0);
    if (n > 0) r = vld1q_lane_u32(p, r, 0);
    if (n > 1) r = vld1q_lane_u32(p + 1, r, 1);
    if (n > 2) r = vld1q_lane_u32(p + 2, r, 2);
    return vreinterpretq_f32_u32(r);
}
LOCKSTEP_INLINE void store_first(Word* p, Float x, int n) {
    if (n >= W) return store(p, x);
    const uint32x4_t words = vreinterpretq_u32_f32(x);
    if (n > 0) vst1q_lane_u32(p, words, 0);
    if (n > 1) vst1q_lane_u32(p + 1, words, 1);
    if (n > 2) vst1q_lane_u32(p + 2, words, 2);
}
LOCKSTEP_INLINE Float zero() { return vdupq_n_f32(0.0f); }
LOCKSTEP_INLINE Float splat(const Word* p) { return vreinterpretq_f32_u32(vld1q_dup_u32(p)); }
LOCKSTEP_INLINE Float fma(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
LOCKSTEP_INLINE Float fma_splat(const Word* a, Float b, Float c) { return fma(splat(a), b, c); }
LOCKSTEP_INLINE Float add(Float a, Float b) { return vaddq_f32(a, b); }
// All ones where there is a number.
LOCKSTEP_INLINE uint32x4_t numbers(Float a) { return vceqq_f32(a, a); }
LOCKSTEP_INLINE Float canonical(Float a) {
    return vbslq_f32(numbers(a), a, vreinterpretq_f32_u32(vdupq_n_u32(f32::NOT_A_NUMBER)));
}
LOCKSTEP_INLINE bool any_nan(Float a) { return vminvq_u32(numbers(a)) == 0; }
LOCKSTEP_INLINE Int splat_int(std::int32_t x) { return vdupq_n_s32(x); }
LOCKSTEP_INLINE Int add(Int a, Int b) { return vaddq_s32(a, b); }
LOCKSTEP_INLINE Int max(Int a, Int b) { return vmaxq_s32(a, b); }
LOCKSTEP_INLINE Int both(Int a, Int b) { return vandq_s32(a, b); }
LOCKSTEP_INLINE Int either_not_both(Int a, Int b) { return veorq_s32(a, b); }
LOCKSTEP_INLINE Int either(Int a, Int b) { return vorrq_s32(a, b); }
LOCKSTEP_INLINE unsigned lanes_not_zero(Int a) {
    const uint32x4_t lane = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(vtstq_s32(a, a), lane));
}
LOCKSTEP_INLINE Int signs(Int a) { return vshrq_n_s32(a, 31); }

// Lanes 0, 2, 4, ... of a and then of b.
LOCKSTEP_INLINE Float every_second(Float a, Float b) { return vuzp1q_f32(a, b); }

// r[i] lane j <-> r[j] lane i: pairs of rows, then of pairs.
LOCKSTEP_INLINE void transpose(Float* r) {
    const auto even = [](Float a, Float b) { return vreinterpretq_f64_f32(vtrn1q_f32(a, b)); };
    const auto odd = [](Float a, Float b) { return vreinterpretq_f64_f32(vtrn2q_f32(a, b)); };
    const float64x2_t s0 = even(r[0], r[1]), s1 = odd(r[0], r[1]), s2 = even(r[2], r[3]), s3 = odd(r[2], r[3]);
    r[0] = vreinterpretq_f32_f64(vtrn1q_f64(s0, s2));
    r[1] = vreinterpretq_f32_f64(vtrn1q_f64(s1, s3));
    r[2] = vreinterpretq_f32_f64(vtrn2q_f64(s0, s2));
    r[3] = vreinterpretq_f32_f64(vtrn2q_f64(s1, s3));
}

// --- products of codes ---

LOCKSTEP_INLINE Float times(Float a, Float b) { return vmulq_f32(a, b); }
LOCKSTEP_INLINE Float converted(Int a) { return vcvtq_f32_s32(a); }
LOCKSTEP_INLINE Int bias_of(Int sum, Int) { return sum; }
#if defined(LOCKSTEP_DOTPROD)
constexpr int UNITS = 1;
LOCKSTEP_INLINE Int unit_of(Int words, int) { return words; }
LOCKSTEP_INLINE Int biased_unit_of(Int words, int) { return words; }
LOCKSTEP_INLINE Int multiply_codes(Int sum, const Word* a, Int b) {
    return vdotq_s32(sum, vreinterpretq_s8_u32(vld1q_dup_u32(a)), vreinterpretq_s8_s32(b));
}
#else
// Codes 0 and 2 of each word, then 1 and 3, extended to 16 bits. A row's two stand side by side; of four columns, the first
// codes stand before the second ones, so that each product of a lane widens into its column's sum and none can overflow.
constexpr int UNITS = 2;
LOCKSTEP_INLINE Int unit_of(Int words, int unit) {
    const int16x8_t halves = vreinterpretq_s16_s32(words);
    return vreinterpretq_s32_s16(vshrq_n_s16(unit ? halves : vshlq_n_s16(halves, 8), 8));
}
LOCKSTEP_INLINE Int biased_unit_of(Int words, int unit) {
    const int16x8_t halves = vreinterpretq_s16_s32(unit_of(words, unit));
    return vreinterpretq_s32_s16(vuzp1q_s16(halves, vextq_s16(halves, halves, 1)));
}
LOCKSTEP_INLINE Int multiply_codes(Int sum, const Word* a, Int b) {
    const int16x4_t left = vreinterpret_s16_u32(vld1_dup_u32(a));
    const int16x8_t right = vreinterpretq_s16_s32(b);
    return vmlal_high_lane_s16(vmlal_lane_s16(sum, vget_low_s16(right), left, 0), right, left, 1);
}
#endif

// --- codes of floats ---

LOCKSTEP_INLINE Float minus(Float a, Float b) { return vsubq_f32(a, b); }
LOCKSTEP_INLINE Int nearest(Float a) { return vcvtnq_s32_f32(a); }
LOCKSTEP_INLINE Int clamped(Int a) { return vminq_s32(vmaxq_s32(a, vdupq_n_s32(-127)), vdupq_n_s32(127)); }
template <int N> LOCKSTEP_INLINE Int shifted_up(Int a) { return vshlq_n_s32(a, N); }
template <int N> LOCKSTEP_INLINE Int shifted_down(Int a) { return vshrq_n_s32(a, N); }
template <int N> LOCKSTEP_INLINE Int shifted_down_unsigned(Int a) {
    return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), N));
}
LOCKSTEP_INLINE Int either_not_both(Int a, Int b, Int c) { return either_not_both(either_not_both(a, b), c); }
// The products of the words in even lanes, each in two lanes; odd lanes in the place of the even ones before them; both together.
LOCKSTEP_INLINE Int multiply_even(Int a, Word b) {
    return vreinterpretq_s32_u64(vmull_n_u32(vmovn_u64(vreinterpretq_u64_s32(a)), b));
}
LOCKSTEP_INLINE Int odd_lanes(Int a) { return vreinterpretq_s32_u64(vshrq_n_u64(vreinterpretq_u64_s32(a), 32)); }
LOCKSTEP_INLINE Int even_and_odd(Int even, Int odd) {
    return vreinterpretq_s32_u64(vsliq_n_u64(vreinterpretq_u64_s32(even), vreinterpretq_u64_s32(odd), 32));
}
LOCKSTEP_INLINE Int load_halves(const std::uint16_t* p) {
    uint16x4_t halves;
    __builtin_memcpy(&halves, p, sizeof halves);  // of what was stored as words
    return vreinterpretq_s32_u32(vmovl_u16(halves));
}
LOCKSTEP_INLINE void store_first_bytes(signed char* p, Int a, int n) {
    const int16x4_t halves = vmovn_s32(a);
    signed char all[8];
    vst1_s8(all, vmovn_s16(vcombine_s16(halves, halves)));
    __builtin_memcpy(p, all, static_cast<std::size_t>(n));
}
LOCKSTEP_INLINE void store_bytes(signed char* p, Int a) { store_first_bytes(p, a, W); }
// out[4 i + j] = lane i of c[j].
LOCKSTEP_INLINE void interleave(Word* out, const Int* c) {
    const auto words = [](Int a) { return vreinterpretq_u32_s32(a); };
    const uint32x4x4_t all = {{words(c[0]), words(c[1]), words(c[2]), words(c[3])}};
    vst4q_u32(out, all);
}
