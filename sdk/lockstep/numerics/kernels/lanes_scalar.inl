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
LOCKSTEP_INLINE Int either(Int a, Int b) {
    for (int i = 0; i < W; ++i) a.lane[i] |= b.lane[i];
    return a;
}
LOCKSTEP_INLINE unsigned lanes_not_zero(Int a) {
    unsigned found = 0;
    for (int i = 0; i < W; ++i) found |= (a.lane[i] != 0 ? 1u : 0u) << i;
    return found;
}
LOCKSTEP_INLINE Int signs(Int a) {
    for (int i = 0; i < W; ++i) a.lane[i] >>= 31;
    return a;
}
// Lanes 0, 2, 4, ... of a and then of b.
LOCKSTEP_INLINE Float every_second(Float a, Float b) {
    Float r;
    for (int i = 0; i < W / 2; ++i) {
        r.lane[i] = a.lane[2 * i];
        r.lane[W / 2 + i] = b.lane[2 * i];
    }
    return r;
}

LOCKSTEP_INLINE void transpose(Float* r) {
    for (int i = 0; i < W; ++i)
        for (int j = i + 1; j < W; ++j) {
            const float t = r[i].lane[j];
            r[i].lane[j] = r[j].lane[i];
            r[j].lane[i] = t;
        }
}

// --- products of codes: codes 0 and 2 of each word, then 1 and 3, extended to 16 bits ---

constexpr int UNITS = 2;
LOCKSTEP_INLINE Float times(Float a, Float b) {
    for (int i = 0; i < W; ++i) a.lane[i] *= b.lane[i];
    return a;
}
LOCKSTEP_INLINE Float converted(Int a) {
    Float r;
    for (int i = 0; i < W; ++i) r.lane[i] = static_cast<float>(a.lane[i]);
    return r;
}
LOCKSTEP_INLINE std::int32_t low_half(std::int32_t x) { return static_cast<std::int16_t>(x & 0xffff); }
LOCKSTEP_INLINE Int unit_of(Int words, int unit) {
    for (int i = 0; i < W; ++i) {
        const Word word = static_cast<Word>(words.lane[i]) >> (8 * unit);
        const Word first = static_cast<Word>(static_cast<std::int8_t>(word & 0xff)), second = static_cast<Word>(static_cast<std::int8_t>(word >> 16 & 0xff));
        words.lane[i] = static_cast<std::int32_t>((first & 0xffff) | second << 16);
    }
    return words;
}
LOCKSTEP_INLINE Int biased_unit_of(Int words, int unit) { return unit_of(words, unit); }
LOCKSTEP_INLINE Int bias_of(Int sum, Int) { return sum; }
LOCKSTEP_INLINE Int multiply_codes(Int sum, const Word* a, Int b) {
    const auto all = static_cast<std::int32_t>(*a);
    for (int i = 0; i < W; ++i) sum.lane[i] += low_half(all) * low_half(b.lane[i]) + (all >> 16) * (b.lane[i] >> 16);
    return sum;
}

// --- codes of floats ---

LOCKSTEP_INLINE Float minus(Float a, Float b) {
    for (int i = 0; i < W; ++i) a.lane[i] -= b.lane[i];
    return a;
}
// Something, where it is no number or too large: such a group's codes are 0.
LOCKSTEP_INLINE Int nearest(Float a) {
    Int r;
    for (int i = 0; i < W; ++i) r.lane[i] = a.lane[i] > -8388608.0f && a.lane[i] < 8388608.0f ? codes::nearest(a.lane[i]) : 0;
    return r;
}
LOCKSTEP_INLINE Int clamped(Int a) {
    for (int i = 0; i < W; ++i) a.lane[i] = codes::clamped(a.lane[i]);
    return a;
}
template <int N> LOCKSTEP_INLINE Int shifted_up(Int a) {
    for (int i = 0; i < W; ++i) a.lane[i] = static_cast<std::int32_t>(static_cast<Word>(a.lane[i]) << N);
    return a;
}
template <int N> LOCKSTEP_INLINE Int shifted_down(Int a) {
    for (int i = 0; i < W; ++i) a.lane[i] >>= N;
    return a;
}
template <int N> LOCKSTEP_INLINE Int shifted_down_unsigned(Int a) {
    for (int i = 0; i < W; ++i) a.lane[i] = static_cast<std::int32_t>(static_cast<Word>(a.lane[i]) >> N);
    return a;
}
LOCKSTEP_INLINE Int either_not_both(Int a, Int b, Int c) { return either_not_both(either_not_both(a, b), c); }
// The products of the words in even lanes, each in two lanes; odd lanes in the place of the even ones before them; both together.
LOCKSTEP_INLINE Int multiply_even(Int a, Word b) {
    for (int i = 0; i < W; i += 2) {
        const std::uint64_t product = std::uint64_t{b} * static_cast<Word>(a.lane[i]);
        a.lane[i] = static_cast<std::int32_t>(product & 0xffffffff);
        a.lane[i + 1] = static_cast<std::int32_t>(product >> 32);
    }
    return a;
}
LOCKSTEP_INLINE Int odd_lanes(Int a) {
    for (int i = 0; i < W; i += 2) a.lane[i] = a.lane[i + 1];
    return a;
}
LOCKSTEP_INLINE Int even_and_odd(Int even, Int odd) {
    for (int i = 0; i < W; i += 2) even.lane[i + 1] = odd.lane[i];
    return even;
}
LOCKSTEP_INLINE Int load_halves(const std::uint16_t* p) {
    std::uint16_t halves[W];
    __builtin_memcpy(halves, p, sizeof halves);
    Int r;
    for (int i = 0; i < W; ++i) r.lane[i] = halves[i];
    return r;
}
LOCKSTEP_INLINE void store_first_bytes(signed char* p, Int a, int n) {
    for (int i = 0; i < n; ++i) p[i] = static_cast<signed char>(a.lane[i]);
}
LOCKSTEP_INLINE void store_bytes(signed char* p, Int a) { store_first_bytes(p, a, W); }
// out[4 i + j] = lane i of c[j].
LOCKSTEP_INLINE void interleave(Word* out, const Int* c) {
    for (int i = 0; i < W; ++i)
        for (int j = 0; j < 4; ++j) out[4 * i + j] = static_cast<Word>(c[j].lane[i]);
}
