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
LOCKSTEP_INLINE Int signs(Int a) { return _mm512_srai_epi32(a, 31); }

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
