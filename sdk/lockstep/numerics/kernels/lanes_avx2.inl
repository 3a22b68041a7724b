// Eight floats in a ymm register.

constexpr int W = 8;
using Float = __m256;
using Int = __m256i;

LOCKSTEP_INLINE __m256i first(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
LOCKSTEP_INLINE Float load(const Word* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
LOCKSTEP_INLINE void store(Word* p, Float x) { _mm256_storeu_ps(reinterpret_cast<float*>(p), x); }
LOCKSTEP_INLINE Float load_first(const Word* p, int n) {
    return _mm256_maskload_ps(reinterpret_cast<const float*>(p), first(n));
}
LOCKSTEP_INLINE void store_first(Word* p, Float x, int n) {
    _mm256_maskstore_ps(reinterpret_cast<float*>(p), first(n), x);
}
LOCKSTEP_INLINE Float zero() { return _mm256_setzero_ps(); }
LOCKSTEP_INLINE Float splat(const Word* p) { return _mm256_set1_ps(value(*p)); }
LOCKSTEP_INLINE Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
LOCKSTEP_INLINE Float fma_splat(const Word* a, Float b, Float c) { return fma(splat(a), b, c); }
LOCKSTEP_INLINE Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
LOCKSTEP_INLINE Float canonical(Float a) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(f32::NOT_A_NUMBER)));
    return _mm256_blendv_ps(a, nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
LOCKSTEP_INLINE bool any_nan(Float a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
LOCKSTEP_INLINE Int bits(Float a) { return _mm256_castps_si256(a); }
LOCKSTEP_INLINE Float floats(Int a) { return _mm256_castsi256_ps(a); }
LOCKSTEP_INLINE Int splat_int(std::int32_t x) { return _mm256_set1_epi32(x); }
LOCKSTEP_INLINE Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }
LOCKSTEP_INLINE Int max(Int a, Int b) { return _mm256_max_epi32(a, b); }
LOCKSTEP_INLINE Int both(Int a, Int b) { return _mm256_and_si256(a, b); }
LOCKSTEP_INLINE Int either_not_both(Int a, Int b) { return _mm256_xor_si256(a, b); }
LOCKSTEP_INLINE Int either(Int a, Int b) { return _mm256_or_si256(a, b); }
LOCKSTEP_INLINE unsigned lanes_not_zero(Int a) {
    return ~static_cast<unsigned>(_mm256_movemask_ps(floats(_mm256_cmpeq_epi32(a, _mm256_setzero_si256())))) & 0xff;
}
LOCKSTEP_INLINE Int signs(Int a) { return _mm256_srai_epi32(a, 31); }

// Lanes 0, 2, 4, ... of a and then of b.
LOCKSTEP_INLINE Float every_second(Float a, Float b) {
    const __m256 halves = _mm256_shuffle_ps(a, b, 0x88);  // by 128 bits: a, b, a, b
    return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(halves), 0xd8));
}

// r[i] lane j <-> r[j] lane i: pairs of rows, then of pairs, then of 128-bit halves.
LOCKSTEP_INLINE void transpose(Float* r) {
    Float s[8], t[8];
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        t[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        t[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
        t[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        t[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
}

// --- products of codes: codes 0 and 2 of each word, then 1 and 3, extended to 16 bits ---

constexpr int UNITS = 2;
LOCKSTEP_INLINE Float times(Float a, Float b) { return _mm256_mul_ps(a, b); }
LOCKSTEP_INLINE Float converted(Int a) { return _mm256_cvtepi32_ps(a); }
LOCKSTEP_INLINE Int unit_of(Int words, int unit) {
    return _mm256_srai_epi16(unit ? words : _mm256_slli_epi16(words, 8), 8);
}
LOCKSTEP_INLINE Int biased_unit_of(Int words, int unit) { return unit_of(words, unit); }
LOCKSTEP_INLINE Int bias_of(Int sum, Int) { return sum; }
LOCKSTEP_INLINE Int multiply_codes(Int sum, const Word* a, Int b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_set1_epi32(static_cast<int>(*a)), b));
}

// --- codes of floats ---

LOCKSTEP_INLINE Float minus(Float a, Float b) { return _mm256_sub_ps(a, b); }
LOCKSTEP_INLINE Int nearest(Float a) { return _mm256_cvtps_epi32(a); }
LOCKSTEP_INLINE Int clamped(Int a) { return _mm256_min_epi32(_mm256_max_epi32(a, _mm256_set1_epi32(-127)), _mm256_set1_epi32(127)); }
template <int N> LOCKSTEP_INLINE Int shifted_up(Int a) { return _mm256_slli_epi32(a, N); }
template <int N> LOCKSTEP_INLINE Int shifted_down(Int a) { return _mm256_srai_epi32(a, N); }
template <int N> LOCKSTEP_INLINE Int shifted_down_unsigned(Int a) { return _mm256_srli_epi32(a, N); }
LOCKSTEP_INLINE Int either_not_both(Int a, Int b, Int c) { return either_not_both(either_not_both(a, b), c); }
// The products of the words in even lanes, each in two lanes; odd lanes in the place of the even ones before them; both together.
LOCKSTEP_INLINE Int multiply_even(Int a, Word b) { return _mm256_mul_epu32(a, _mm256_set1_epi64x(b)); }
LOCKSTEP_INLINE Int odd_lanes(Int a) { return _mm256_srli_epi64(a, 32); }
LOCKSTEP_INLINE Int even_and_odd(Int even, Int odd) { return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa); }
LOCKSTEP_INLINE Int load_halves(const std::uint16_t* p) { return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
LOCKSTEP_INLINE void store_bytes(signed char* p, Int a) {
    const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(halves, halves));
}
LOCKSTEP_INLINE void store_first_bytes(signed char* p, Int a, int n) {
    signed char all[W];
    store_bytes(all, a);
    for (int i = 0; i < n; ++i) p[i] = all[i];
}
// out[4 i + j] = lane i of c[j].
LOCKSTEP_INLINE void interleave(Word* out, const Int* c) {
    const Int a = _mm256_unpacklo_epi32(c[0], c[1]), b = _mm256_unpackhi_epi32(c[0], c[1]);
    const Int d = _mm256_unpacklo_epi32(c[2], c[3]), e = _mm256_unpackhi_epi32(c[2], c[3]);
    const Int r0 = _mm256_unpacklo_epi64(a, d), r1 = _mm256_unpackhi_epi64(a, d), r2 = _mm256_unpacklo_epi64(b, e), r3 = _mm256_unpackhi_epi64(b, e);
    store(out, floats(_mm256_permute2x128_si256(r0, r1, 0x20)));
    store(out + 8, floats(_mm256_permute2x128_si256(r2, r3, 0x20)));
    store(out + 16, floats(_mm256_permute2x128_si256(r0, r1, 0x31)));
    store(out + 24, floats(_mm256_permute2x128_si256(r2, r3, 0x31)));
}
