// Codes and scales of groups, and those of what they leave of a value: each value is read from memory once.
//
// Where k is contiguous, lanes are neighbours along k. Where the rows are, a tile of kRowsAtOnce rows is copied together, lanes are
// rows, and the words of codes are transposed: a quarter of the values. A block of Philox has the halves of eight neighbours along k.

// A stream's words: two keys for each round, and the counters' three last words.
struct Keys {
    Word rounds[20], words[3];

    explicit Keys(const Draws& draws) : words{draws.words[0], draws.words[1], draws.words[2]} {
        for (Word i = 0; i < 10; ++i) {
            rounds[2 * i] = draws.key[0] + i * 0x9e3779b9;
            rounds[2 * i + 1] = draws.key[1] + i * 0xbb67ae85;
        }
    }
};

// The four words of W blocks of Philox 4x32-10, whose first counters are c[0]. Lanes with even and odd numbers are apart, so that
// a product of 64 bits fits; the bits above a word are zero.
LOCKSTEP_INLINE void philox(const Keys& keys, Int* c) {
    Int parts[2][4] = {{c[0]}, {odd_lanes(c[0])}};
    for (auto& part : parts)
        for (int j = 0; j < 3; ++j) part[j + 1] = bits(splat(keys.words + j));
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
        const Int first = bits(splat(keys.rounds + 2 * round)), second = bits(splat(keys.rounds + 2 * round + 1));
#pragma GCC unroll 2
        for (auto& part : parts) {
            const Int left = multiply_even(part[0], 0xd2511f53), right = multiply_even(part[2], 0xcd9e8d57);
            part[0] = either_not_both(odd_lanes(right), part[1], first);
            part[1] = right;
            part[2] = either_not_both(odd_lanes(left), part[3], second);
            part[3] = left;
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) c[j] = even_and_odd(parts[0][j], parts[1][j]);
}

LOCKSTEP_INLINE Int counted(Index first, Index step) {
    Word lanes[W];
    for (int i = 0; i < W; ++i) lanes[i] = static_cast<Word>(first + i * step);
    return bits(load(lanes));
}

// The halves of words [first, first + count) at the result, which lies within `words`: 4 W + count words.
inline const std::uint16_t* halves_of(const Keys& keys, Index first, Index count, Word* words) {
    const Index begin = first >> 2, blocks = ((first + count + 3) >> 2) - begin;
    for (Index b = 0; b < blocks; b += W) {
        Int c[4];
        c[0] = counted(begin + b, 1);
        philox(keys, c);
        interleave(words + 4 * b, c);
    }
    return reinterpret_cast<const std::uint16_t*>(words + (first - 4 * begin));
}

LOCKSTEP_INLINE Int magnitude(Float x) { return both(bits(x), splat_int(0x7fffffff)); }

// Codes of finite values, to nearest, or by `random` halves down or up.
LOCKSTEP_INLINE Int codes_of(Float x, Float inverse) { return clamped(nearest(times(x, inverse))); }
LOCKSTEP_INLINE Int codes_of(Float x, Float inverse, Float shift, Int random) {
    return clamped(shifted_down<16>(add(nearest(times(times(x, inverse), shift)), random)));
}

struct QuantOutputs {
    const QuantTarget* targets;
    int count;

    // `words` of a row and group.
    void store_codes(int limb, Index row, Index group, Index size, const Word* words) const {
        for (int t = 0; t < count; ++t)
            if (targets[t].array == 2 * limb) copy(targets[t].out + row * targets[t].pitch + group * size, words, size);
    }
    void store_scale(int limb, Index row, Index group, float scale) const {
        for (int t = 0; t < count; ++t)
            if (targets[t].array == 2 * limb + 1) targets[t].out[row * targets[t].pitch + group] = f32::word(scale);
    }
    bool wants_codes(int limb) const {
        for (int t = 0; t < count; ++t)
            if (targets[t].array == 2 * limb) return true;
        return false;
    }
};

inline Word greatest(Int magnitudes) {
    Word lanes[W], most = 0;
    store(lanes, floats(magnitudes));
    for (int i = 0; i < W; ++i) most = lanes[i] > most ? lanes[i] : most;
    return most;
}

constexpr Index kGroupCodes = 4 * kMaxGroupWords;

// One group of a row of contiguous values.
inline void quantise_row(const QuantPlan& plan, const Word* values, Index row, Index group, const Keys* keys, const QuantOutputs& outputs) {
    const Index first = group * 4 * plan.words, count = plan.k - first < 4 * plan.words ? plan.k - first : 4 * plan.words;
    Float x[kGroupCodes / W];
    const int whole = static_cast<int>(count / W), vectors = static_cast<int>((count + W - 1) / W);
    Int most = splat_int(0);
    for (int v = 0; v < whole; ++v) most = max(most, magnitude(x[v] = load(values + v * W)));
    if (whole < vectors) most = max(most, magnitude(x[whole] = load_first(values + whole * W, static_cast<int>(count - whole * W))));
    const Word shift_word = 0x47800000;
    const Float shift = splat(&shift_word);
    for (int limb = 0; limb < plan.limbs; ++limb) {
        const codes::Scale scale = codes::scale_of(greatest(most), plan.power);
        outputs.store_scale(limb, row, group, scale.scale);
        const bool last = limb + 1 == plan.limbs;
        if (last && !outputs.wants_codes(limb)) return;
        alignas(64) Word words[kMaxGroupWords] = {};
        if (scale.inverse == 0.0f) {
            outputs.store_codes(limb, row, group, plan.words, words);
            continue;  // nothing is left but what gives the same scale
        }
        signed char* found = reinterpret_cast<signed char*>(words);
        const Word inverse_word = f32::word(scale.inverse), scale_word = f32::word(scale.scale);
        const Float inverse = splat(&inverse_word), factor = splat(&scale_word);
        const bool stochastic = plan.stream[limb] != 0;
        alignas(64) Word random[4 * W + 2 * kMaxGroupWords + 4];
        const std::uint16_t* halves = nullptr;
        if (stochastic) halves = halves_of(keys[limb], (row * plan.groups + group) * 2 * plan.words, 2 * plan.words, random);
        most = splat_int(0);
        for (int v = 0; v < vectors; ++v) {
            const Int code = stochastic ? codes_of(x[v], inverse, shift, load_halves(halves + v * W)) : codes_of(x[v], inverse);
            if (W <= 4 * plan.words) store_bytes(found + v * W, code);
            else store_first_bytes(found, code, static_cast<int>(4 * plan.words));
            if (!last) most = max(most, magnitude(x[v] = minus(x[v], times(converted(code), factor))));
        }
        outputs.store_codes(limb, row, group, plan.words, words);
    }
}

// One group of up to W rows that lie side by side, the first one at `values`.
inline void quantise_columns(const QuantPlan& plan, const Word* values, Index row, int rows, Index group, const Keys* keys,
                             const QuantOutputs& outputs, Word* scratch) {
    const Index size = 4 * plan.words, first = group * size, count = plan.k - first < size ? plan.k - first : size;
    Word *tile = scratch, *words = tile + size * W, *turned = words + plan.words * W;
    Int most = splat_int(0);
    if (rows == W)
        for (Index k = 0; k < count; ++k) {
            const Float x = load(values + k * plan.k_stride);
            most = max(most, magnitude(x));
            store(tile + k * W, x);
        }
    else
        for (Index k = 0; k < count; ++k) {
            const Float x = load_first(values + k * plan.k_stride, rows);
            most = max(most, magnitude(x));
            store(tile + k * W, x);
        }
    for (Index k = count; k < size; ++k) store(tile + k * W, zero());
    const Word shift_word = 0x47800000;
    const Float shift = splat(&shift_word);
    const Int byte = splat_int(0xff), half = splat_int(0xffff);
    for (int limb = 0; limb < plan.limbs; ++limb) {
        Word magnitudes[W], scales[W], inverses[W], all[W];
        store(magnitudes, floats(most));
        for (int i = 0; i < W; ++i) {
            const codes::Scale scale = codes::scale_of(magnitudes[i], plan.power);
            scales[i] = f32::word(scale.scale);
            inverses[i] = f32::word(scale.inverse);
            all[i] = scale.inverse == 0.0f ? 0 : ~Word{0};
        }
        for (int i = 0; i < rows; ++i) outputs.store_scale(limb, row + i, group, f32::value(scales[i]));
        const bool last = limb + 1 == plan.limbs;
        if (last && !outputs.wants_codes(limb)) return;
        const Float inverse = load(inverses), factor = load(scales);
        const Int kept = bits(load(all));
        const bool stochastic = plan.stream[limb] != 0;
        const Int blocks = counted((row * plan.groups + group) * (plan.words / 2), plan.groups * (plan.words / 2));
        most = splat_int(0);
        Int c[4];
        for (Index i = 0; i < plan.words; ++i) {
            Int code[4];
            if (stochastic) {
                if (i % 2 == 0) {
                    c[0] = add(blocks, splat_int(static_cast<std::int32_t>(i / 2)));
                    philox(keys[limb], c);
                }
                for (int j = 0; j < 4; ++j) {
                    const Int word = c[2 * (i % 2) + j / 2];
                    code[j] = codes_of(load(tile + (4 * i + j) * W), inverse, shift, j % 2 ? shifted_down_unsigned<16>(word) : both(word, half));
                }
            } else {
                for (int j = 0; j < 4; ++j) code[j] = codes_of(load(tile + (4 * i + j) * W), inverse);
            }
            for (int j = 0; j < 4; ++j) code[j] = both(code[j], kept);
            if (!last)
                for (int j = 0; j < 4; ++j) {
                    Word* at = tile + (4 * i + j) * W;
                    const Float rest = minus(load(at), times(converted(code[j]), factor));
                    if (4 * i + j < count) most = max(most, magnitude(rest));
                    store(at, 4 * i + j < count ? rest : zero());
                }
            const Int low = either(both(code[0], byte), shifted_up<8>(both(code[1], byte)));
            store(words + i * W, floats(either(either(low, shifted_up<16>(both(code[2], byte))), shifted_up<24>(code[3]))));
        }
        copy_transposed(turned, words, W, W, plan.words);
        for (int i = 0; i < rows; ++i) outputs.store_codes(limb, row + i, group, plan.words, turned + i * plan.words);
    }
}

void run_quant(const QuantPlan& plan, const Word* x, const Draws* draws, const QuantTarget* targets, int count, Index begin, Index end,
               Word* scratch) {
    const QuantOutputs outputs{targets, count};
    const Keys keys[2] = {Keys(draws[0]), Keys(draws[1])};
    const int inner_axis = plan.axes - 1;
    const Index inner = plan.axes ? plan.extents[inner_axis] : 1, per_outer = plan.blocks * plan.groups;
    Index outer = -1;
    const Word* at = nullptr;
    for (Index item = begin; item < end; ++item) {
        if (item / per_outer != outer) {
            outer = item / per_outer;
            at = x;
            Index rest = outer;
            for (int ax = inner_axis - 1; ax >= 0; --ax) {
                at += rest % plan.extents[ax] * plan.strides[ax];
                rest /= plan.extents[ax];
            }
        }
        const Index own = item % per_outer;
        if (!plan.columns) {
            const Index i = own / plan.groups, group = own % plan.groups;
            quantise_row(plan, at + (plan.axes ? i * plan.strides[inner_axis] : 0) + group * 4 * plan.words, outer * inner + i, group, keys, outputs);
            continue;
        }
        const Index group = own / plan.blocks, from = own % plan.blocks * kRowsAtOnce;
        const Index to = from + kRowsAtOnce < inner ? from + kRowsAtOnce : inner;
        for (Index i = from; i < to; i += W)
            quantise_columns(plan, at + i + group * 4 * plan.words * plan.k_stride, outer * inner + i, static_cast<int>(to - i < W ? to - i : W),
                             group, keys, outputs, scratch);
    }
}
