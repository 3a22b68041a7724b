// Four floats by plain loops: the portable path, and the one that every other path must equal.

constexpr int W = 4;
struct Float { float lane[W]; };
struct Int { std::int32_t lane[W]; };

LOCKSTEP_INLINE Float load(const Word* p) { Float r; __builtin_memcpy(&r, p, sizeof r); return r; }
LOCKSTEP_INLINE void store(Word* p, Float x) { __builtin_memcpy(p, &x, sizeof x); }
LOCKSTEP_INLINE Float load_first(const Word* p, int n) {
    Float r{};
    for (int i = 0; i < n; ++i) r.lane[i] = value(p[i]);
    return r;
}
LOCKSTEP_INLINE void store_first(Word* p, Float x, int n) {
    for (int i = 0; i < n; ++i) p[i] = word(x.lane[i]);
}
LOCKSTEP_INLINE Float zero() { return Float{}; }
LOCKSTEP_INLINE Float splat(const Word* p) {
    Float r;
    for (int i = 0; i < W; ++i) r.lane[i] = value(*p);
    return r;
}
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
LOCKSTEP_INLINE Float fma(Float a, Float b, Float c) {
    for (int i = 0; i < W; ++i) c.lane[i] = __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]);
    return c;
}
#else
// Without the instruction: the double sum of the exact product rounds to the right float unless it was itself rounded onto a
// tie between two floats, whose low 29 bits are 100...0 above the subnormals. Those few go the long way.
LOCKSTEP_INLINE Float fma(Float a, Float b, Float c) {
    Float quick;
    bool risky = false;
    for (int i = 0; i < W; ++i) {
        const double sum = static_cast<double>(a.lane[i]) * static_cast<double>(b.lane[i]) + static_cast<double>(c.lane[i]);
        const auto bits = __builtin_bit_cast(std::uint64_t, sum);
        const auto magnitude = static_cast<std::uint32_t>(bits >> 32) & 0x7fffffff;
        risky |= (bits & 0x1fffffff) == 0x10000000 || magnitude - 1 < 0x38100000 - 1;  // |sum| in (0, 2^-126)
        quick.lane[i] = static_cast<float>(sum);
    }
    if (__builtin_expect(!risky, 1)) return quick;
    for (int i = 0; i < W; ++i) c.lane[i] = f32::raw::fma(a.lane[i], b.lane[i], c.lane[i]);
    return c;
}
#endif
LOCKSTEP_INLINE Float fma_splat(const Word* a, Float b, Float c) { return fma(splat(a), b, c); }
LOCKSTEP_INLINE Float add(Float a, Float b) {
    for (int i = 0; i < W; ++i) a.lane[i] += b.lane[i];
    return a;
}
LOCKSTEP_INLINE Float canonical(Float a) {
    for (int i = 0; i < W; ++i) a.lane[i] = f32::canonical(a.lane[i]);
    return a;
}
LOCKSTEP_INLINE bool any_nan(Float a) {
    bool found = false;
    for (int i = 0; i < W; ++i) found |= a.lane[i] != a.lane[i];
    return found;
}
LOCKSTEP_INLINE Int bits(Float a) { return __builtin_bit_cast(Int, a); }
LOCKSTEP_INLINE Float floats(Int a) { return __builtin_bit_cast(Float, a); }
LOCKSTEP_INLINE Int splat_int(std::int32_t x) { return Int{{x, x, x, x}}; }
LOCKSTEP_INLINE Int add(Int a, Int b) {
    for (int i = 0; i < W; ++i) a.lane[i] = static_cast<std::int32_t>(static_cast<Word>(a.lane[i]) + static_cast<Word>(b.lane[i]));
    return a;
}
LOCKSTEP_INLINE Int max(Int a, Int b) {
    for (int i = 0; i < W; ++i) a.lane[i] = a.lane[i] < b.lane[i] ? b.lane[i] : a.lane[i];
    return a;
}
LOCKSTEP_INLINE Int both(Int a, Int b) {
    for (int i = 0; i < W; ++i) a.lane[i] &= b.lane[i];
    return a;
}
LOCKSTEP_INLINE Int either_not_both(Int a, Int b) {
    for (int i = 0; i < W; ++i) a.lane[i] ^= b.lane[i];
    return a;
}
LOCKSTEP_INLINE Int signs(Int a) {
    for (int i = 0; i < W; ++i) a.lane[i] >>= 31;
    return a;
}
LOCKSTEP_INLINE void transpose(Float* r) {
    for (int i = 0; i < W; ++i)
        for (int j = i + 1; j < W; ++j) {
            const float t = r[i].lane[j];
            r[i].lane[j] = r[j].lane[i];
            r[j].lane[i] = t;
        }
}
