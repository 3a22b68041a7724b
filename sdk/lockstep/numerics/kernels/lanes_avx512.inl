// Sixteen floats in a zmm register.

constexpr int W = 16;
using Float = __m512;
using Int = __m512i;

LOCKSTEP_INLINE __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
LOCKSTEP_INLINE Float load(const Word* p) { return _mm512_loadu_ps(p); }
LOCKSTEP_INLINE void store(Word* p, Float x) { _mm512_storeu_ps(p, x); }
LOCKSTEP_INLINE Float load_first(const Word* p, int n) { return _mm512_maskz_loadu_ps(first(n), p); }
LOCKSTEP_INLINE void store_first(Word* p, Float x, int n) { _mm512_mask_storeu_ps(p, first(n), x); }
LOCKSTEP_INLINE Float zero() { return _mm512_setzero_ps(); }
LOCKSTEP_INLINE Float splat(const Word* p) { return _mm512_set1_ps(value(*p)); }
LOCKSTEP_INLINE Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
// The broadcast as part of the instruction: one to issue instead of two, at the price of a load for each use.
LOCKSTEP_INLINE Float fma_splat(const Word* a, Float b, Float c) {
    asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(c) : "v"(b), "m"(*a));
    return c;
}
LOCKSTEP_INLINE Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
LOCKSTEP_INLINE Float canonical(Float a) {
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(static_cast<int>(f32::NOT_A_NUMBER)));
    return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), nan);
}
LOCKSTEP_INLINE bool any_nan(Float a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
LOCKSTEP_INLINE Int bits(Float a) { return _mm512_castps_si512(a); }
LOCKSTEP_INLINE Float floats(Int a) { return _mm512_castsi512_ps(a); }
LOCKSTEP_INLINE Int splat_int(std::int32_t x) { return _mm512_set1_epi32(x); }
LOCKSTEP_INLINE Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }
LOCKSTEP_INLINE Int max(Int a, Int b) { return _mm512_max_epi32(a, b); }
LOCKSTEP_INLINE Int both(Int a, Int b) { return _mm512_and_si512(a, b); }
LOCKSTEP_INLINE Int either_not_both(Int a, Int b) { return _mm512_xor_si512(a, b); }
LOCKSTEP_INLINE Int either(Int a, Int b) { return _mm512_or_si512(a, b); }
LOCKSTEP_INLINE unsigned lanes_not_zero(Int a) { return _mm512_test_epi32_mask(a, a); }
LOCKSTEP_INLINE Int signs(Int a) { return _mm512_srai_epi32(a, 31); }

// Lanes 0, 2, 4, ... of a and then of b.
LOCKSTEP_INLINE Float every_second(Float a, Float b) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_ps(a, even, b);
}

// r[i] lane j <-> r[j] lane i: pairs of rows, pairs of pairs, then 128-bit quarters twice.
LOCKSTEP_INLINE void transpose(Float* r) {
    Float s[16], t[16];
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        t[i] = _mm512_shuffle_ps(s[i], s[i + 2], 0x44);
        t[i + 1] = _mm512_shuffle_ps(s[i], s[i + 2], 0xee);
        t[i + 2] = _mm512_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        t[i + 3] = _mm512_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        s[i] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88);
        s[i + 4] = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        s[i + 8] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
        s[i + 12] = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm512_shuffle_f32x4(s[i], s[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_f32x4(s[i], s[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_f32x4(s[i + 4], s[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_f32x4(s[i + 4], s[i + 12], 0xdd);
    }
}

// --- products of codes ---

LOCKSTEP_INLINE Float times(Float a, Float b) { return _mm512_mul_ps(a, b); }
LOCKSTEP_INLINE Float converted(Int a) { return _mm512_cvtepi32_ps(a); }
#if defined(LOCKSTEP_VNNI)
// Unsigned by signed: b's codes are raised by 128, and each row starts with -128 times the sum of its own.
constexpr int UNITS = 1;
LOCKSTEP_INLINE Int unit_of(Int words, int) { return words; }
LOCKSTEP_INLINE Int biased_unit_of(Int words, int) { return _mm512_xor_si512(words, _mm512_set1_epi32(static_cast<int>(0x80808080))); }
LOCKSTEP_INLINE Int bias_of(Int sum, Int words) {
    return _mm512_sub_epi32(sum, _mm512_slli_epi32(_mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), words), 7));
}
// As in fma_splat.
LOCKSTEP_INLINE Int multiply_codes(Int sum, const Word* a, Int b) {
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(b), "m"(*a));
    return sum;
}
#else
// Codes 0 and 2 of each word, then 1 and 3, extended to 16 bits.
constexpr int UNITS = 2;
LOCKSTEP_INLINE Int unit_of(Int words, int unit) {
    return _mm512_srai_epi16(unit ? words : _mm512_slli_epi16(words, 8), 8);
}
LOCKSTEP_INLINE Int biased_unit_of(Int words, int unit) { return unit_of(words, unit); }
LOCKSTEP_INLINE Int bias_of(Int sum, Int) { return sum; }
LOCKSTEP_INLINE Int multiply_codes(Int sum, const Word* a, Int b) {
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_set1_epi32(static_cast<int>(*a)), b));
}
#endif

// --- codes of floats ---

LOCKSTEP_INLINE Float minus(Float a, Float b) { return _mm512_sub_ps(a, b); }
LOCKSTEP_INLINE Int nearest(Float a) { return _mm512_cvtps_epi32(a); }
LOCKSTEP_INLINE Int clamped(Int a) { return _mm512_min_epi32(_mm512_max_epi32(a, _mm512_set1_epi32(-127)), _mm512_set1_epi32(127)); }
template <int N> LOCKSTEP_INLINE Int shifted_up(Int a) { return _mm512_slli_epi32(a, N); }
template <int N> LOCKSTEP_INLINE Int shifted_down(Int a) { return _mm512_srai_epi32(a, N); }
template <int N> LOCKSTEP_INLINE Int shifted_down_unsigned(Int a) { return _mm512_srli_epi32(a, N); }
LOCKSTEP_INLINE Int either_not_both(Int a, Int b, Int c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
// The products of the words in even lanes, each in two lanes; odd lanes in the place of the even ones before them; both together.
LOCKSTEP_INLINE Int multiply_even(Int a, Word b) { return _mm512_mul_epu32(a, _mm512_set1_epi64(b)); }
LOCKSTEP_INLINE Int odd_lanes(Int a) { return _mm512_srli_epi64(a, 32); }
LOCKSTEP_INLINE Int even_and_odd(Int even, Int odd) { return _mm512_mask_mov_epi32(even, 0xaaaa, _mm512_slli_epi64(odd, 32)); }
LOCKSTEP_INLINE Int load_halves(const std::uint16_t* p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
LOCKSTEP_INLINE void store_bytes(signed char* p, Int a) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a)); }
LOCKSTEP_INLINE void store_first_bytes(signed char* p, Int a, int n) { _mm512_mask_cvtepi32_storeu_epi8(p, first(n), a); }
// out[4 i + j] = lane i of c[j].
LOCKSTEP_INLINE void interleave(Word* out, const Int* c) {
    const Int a = _mm512_unpacklo_epi32(c[0], c[1]), b = _mm512_unpackhi_epi32(c[0], c[1]);
    const Int d = _mm512_unpacklo_epi32(c[2], c[3]), e = _mm512_unpackhi_epi32(c[2], c[3]);
    const Int r0 = _mm512_unpacklo_epi64(a, d), r1 = _mm512_unpackhi_epi64(a, d), r2 = _mm512_unpacklo_epi64(b, e), r3 = _mm512_unpackhi_epi64(b, e);
    const Int s0 = _mm512_shuffle_i32x4(r0, r1, 0x44), s1 = _mm512_shuffle_i32x4(r2, r3, 0x44);
    const Int s2 = _mm512_shuffle_i32x4(r0, r1, 0xee), s3 = _mm512_shuffle_i32x4(r2, r3, 0xee);
    store(out, floats(_mm512_shuffle_i32x4(s0, s1, 0x88)));
    store(out + 16, floats(_mm512_shuffle_i32x4(s0, s1, 0xdd)));
    store(out + 32, floats(_mm512_shuffle_i32x4(s2, s3, 0x88)));
    store(out + 48, floats(_mm512_shuffle_i32x4(s2, s3, 0xdd)));
}
