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
LOCKSTEP_INLINE Int signs(Int a) { return _mm256_srai_epi32(a, 31); }

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
