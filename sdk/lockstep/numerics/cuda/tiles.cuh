// Reductions of tensors that are nowhere in memory: softmax attention, forward and backward.
//
// The scores of attention are products of a few terms, then maps. A reduction of them, one that is a fold or a product with another
// matrix, computes them again: a block owns kOwn rows of the scores (or columns: `own` is what the reduction keeps) and takes
// kSweep terms along the axis that is folded (`sweep`) at a time. These are one chunk of every chain, so that no bit depends on the
// tiles. (Dao et al., "FlashAttention", 2022, section 3; the maxima and the sums are reductions of their own here, since the
// Program divides by the sum before it multiplies.)
#pragma once

namespace lockstep::cuda {

constexpr int kTileThreads = 256;
constexpr Word kOwn = 32, kSweep = kChunk;
constexpr Word kValueRow = 4 * (kSweep + 4), kValues = kOwn * kValueRow;  // bytes of a row of values, and of a tile
constexpr Word kTerms = 16;                                                // of floats that are staged at a time
constexpr Word kCodeRow = 80;                                              // bytes of a row of kSlice words, padded
constexpr Word kWideRow = kSweep + 16;                                     // bytes of a row of a tile's codes, padded
constexpr int kOwned = kOwn * kSweep / kTileThreads;                       // elements of a thread

// Which elements of a tile are a thread's. Products of floats: 4 x 8, of which four are neighbours. Products of codes: register v
// of fragments (i, j), as in Warp of integers.cuh, of a warp's 32 x 32.
template <bool CODES>
struct Owned {
    Word own0, sweep0;
    LOCKSTEP_MEMBER Owned() {
        const Word warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        own0 = CODES ? lane / 4 : warp / 2 * 8 + lane / 16 * 4;
        sweep0 = CODES ? warp * 32 + lane % 4 * 2 : warp % 2 * 128 + lane % 16 * 4;
    }
    LOCKSTEP_MEMBER Word own(int e) const { return own0 + static_cast<Word>(CODES ? e / 16 * 16 + e % 4 / 2 * 8 : e / 8); }
    LOCKSTEP_MEMBER Word sweep(int e) const { return sweep0 + static_cast<Word>(CODES ? e / 4 % 4 * 8 + e % 2 : e % 8 / 4 * 64 + e % 4); }
};

// kTerms terms of SIDE rows of a matrix of floats to shared memory, [term][row]; zeros beyond its end.
template <class Side, Word SIDE>
LOCKSTEP_INLINE void stage_floats(Word to, const Word* from, Word first_row, Word first_term) {
    constexpr Word V = Side::VECTOR ? 4 : 1;
    for (Word at = threadIdx.x; at < SIDE * kTerms / V; at += kTileThreads) {
        const Word r = Side::ALONG_TERMS ? at / (kTerms / V) : at % (SIDE / V) * V;
        const Word k = Side::ALONG_TERMS ? at % (kTerms / V) * V : at / (SIDE / V);
        const bool inside = first_row + r < Side::ROWS && first_term + k < Side::TERMS;
        const Word* source = from + static_cast<int>(inside ? Side::row(first_row + r) + Side::term(first_term + k) : 0);
        const Word place = to + 4 * (k * (SIDE + 4) + r);
        if constexpr (V == 4) {
            Four four{};
            if (inside) four = *reinterpret_cast<const Four*>(source);
            if constexpr (Side::ALONG_TERMS) {
#pragma unroll
                for (Word v = 0; v < 4; ++v) unit::cell(place + 4 * v * (SIDE + 4)) = four.lane[v];
            } else {
                *unit::place(place) = four;
            }
        } else {
            unit::cell(place) = inside ? *source : 0;
        }
    }
}

// COUNT words of codes of SIDE rows to shared memory; zeros beyond `limit` words and beyond the last row.
template <class Side, Word SIDE, Word COUNT>
LOCKSTEP_INLINE void stage_codes(Word to, Word pitch, const Word* from, Word first_row, Word first_word, Word limit) {
    for (Word at = threadIdx.x; at < SIDE * COUNT / 4; at += kTileThreads) {
        const Word r = at / (COUNT / 4), q = at % (COUNT / 4) * 4;
        const bool inside = first_row + r < Side::ROWS;
        const Word* source = from + static_cast<int>(inside ? Side::row(first_row + r) + first_word + q : 0);
        Four four{};
        if constexpr (Side::VECTOR) {
            if (inside && q < limit) four = *reinterpret_cast<const Four*>(source);
        } else {
#pragma unroll
            for (Word j = 0; j < 4; ++j)
                if (inside && q + j < limit) four.lane[j] = source[j];
        }
        *unit::place(to + r * pitch + 4 * q) = four;
    }
}

// Adds the products of 32 codes of 32 rows at `a` and of 8 N rows at `b`, `apart` bytes from eight to eight, to the fragments' sums.
template <int N>
LOCKSTEP_INLINE void multiply_rows(Word (&sums)[2][N][4], Word a, Word a_row, Word b, Word b_row, Word apart) {
    const Word lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#if LOCKSTEP_UNIT >= 1
    Word left[2][4];
#pragma unroll
    for (Word i = 0; i < 2; ++i)
#pragma unroll
        for (Word v = 0; v < 4; ++v) left[i][v] = unit::cell(a + (16 * i + v % 2 * 8 + g) * a_row + v / 2 * 16 + 4 * t);
#pragma unroll
    for (Word j = 0; j < N; ++j) {
        const Word at = b + j * apart + g * b_row + 4 * t, right[2] = {unit::cell(at), unit::cell(at + 16)};
#pragma unroll
        for (int i = 0; i < 2; ++i) unit::multiply_16_8_32(sums[i][j], left[i], right, sums[i][j]);
    }
#else
#pragma unroll
    for (Word k = 0; k < 32; k += 16)
#pragma unroll
        for (Word j = 0; j < N; ++j)
#pragma unroll
            for (Word e = 0; e < 2; ++e) {
                const Four right = *unit::place(b + j * apart + (2 * t + e) * b_row + k);
#pragma unroll
                for (Word m = 0; m < 4; ++m) {
                    const Four own = *unit::place(a + (8 * m + g) * a_row + k);
                    Word& sum = sums[m / 2][j][m % 2 * 2 + e];
#pragma unroll
                    for (int w = 0; w < 4; ++w) sum = unit::dot_4(own.lane[w], right.lane[w], sum);
                }
            }
#endif
}
LOCKSTEP_INLINE float exact_sum(Word sum) { return value(sum) - value(kExact); }

// The products that a thread's elements are made of, of floats: one chain each.
template <class Base>
LOCKSTEP_INLINE void multiply_base(const Base& base, Word batch, Word own0, Word sweep0, Word (&to)[kOwned]) {
    if constexpr (!Base::CODES) {
        constexpr Word RIGHT = 4 * kTerms * (kOwn + 4);
        const Owned<false> owned;
        const Word* left = base.own + static_cast<int>(Base::Own::batch(batch));
        const Word* right = base.sweep + static_cast<int>(Base::Sweep::batch(batch));
        float chains[kOwned] = {};
        for (Word k0 = 0; k0 < Base::TERMS; k0 += kTerms) {
            __syncthreads();
            stage_floats<typename Base::Own, kOwn>(0, left, own0, k0);
            stage_floats<typename Base::Sweep, kSweep>(RIGHT, right, sweep0, k0);
            __syncthreads();
#pragma unroll
            for (Word k = 0; k < kTerms; ++k) {
                if (Base::TERMS % kTerms != 0 && k0 + k >= Base::TERMS) break;
                const Four a = *unit::place(4 * (k * (kOwn + 4) + owned.own0));
                Four b[2];
#pragma unroll
                for (Word j = 0; j < 2; ++j) b[j] = *unit::place(RIGHT + 4 * (k * (kSweep + 4) + owned.sweep0 + 64 * j));
#pragma unroll
                for (int e = 0; e < kOwned; ++e)
                    chains[e] = f32::raw::fma(value(a.lane[e / 8]), value(b[e % 8 / 4].lane[e % 4]), chains[e]);
            }
        }
#pragma unroll
        for (int e = 0; e < kOwned; ++e) to[e] = word(f32::canonical(0.0f + chains[e]));
    } else {
        constexpr Word RIGHT = kOwn * kCodeRow, SLICES = (Base::WORDS + kSlice - 1) / kSlice;
        const Owned<true> owned;
        const Word* left = base.own + static_cast<int>(Base::Own::batch(batch));
        const Word* right = base.sweep + static_cast<int>(Base::Sweep::batch(batch));
        const Word* left_scales = base.own_scales + static_cast<int>(Base::Own::scale_batch(batch));
        const Word* right_scales = base.sweep_scales + static_cast<int>(Base::Sweep::scale_batch(batch));
        float chains[kOwned] = {};
        for (Word c = 0; c < Base::GROUPS; ++c) {
            Word sums[2][4][4];
#pragma unroll
            for (int e = 0; e < kOwned; ++e) sums[e / 16][e / 4 % 4][e % 4] = kExact;
            for (Word slice = 0; slice < SLICES; ++slice) {
                const Word first = c * Base::WORDS + slice * kSlice, limit = Base::WORDS - slice * kSlice;
                __syncthreads();
                stage_codes<typename Base::Own, kOwn, kSlice>(0, kCodeRow, left, own0, first, limit);
                stage_codes<typename Base::Sweep, kSweep, kSlice>(RIGHT, kCodeRow, right, sweep0, first, limit);
                __syncthreads();
#pragma unroll
                for (Word k = 0; k < (Base::WORDS <= 8 ? 32 : 64); k += 32)
                    multiply_rows(sums, k, kCodeRow, RIGHT + threadIdx.x / 32 * 32 * kCodeRow + k, kCodeRow, 8 * kCodeRow);
            }
            float rows[4], columns[8];
#pragma unroll
            for (Word m = 0; m < 4; ++m) {
                const Word o = own0 + owned.own0 + 8 * m;
                rows[m] = o < Base::Own::ROWS ? value(left_scales[static_cast<int>(Base::Own::scale(o) + c * Base::Own::SCALE_STEP)]) : 0.0f;
            }
#pragma unroll
            for (Word n = 0; n < 8; ++n) {
                const Word s = sweep0 + owned.sweep0 + n / 2 * 8 + n % 2;
                columns[n] = s < Base::Sweep::ROWS ? value(right_scales[static_cast<int>(Base::Sweep::scale(s) + c * Base::Sweep::SCALE_STEP)]) : 0.0f;
            }
#pragma unroll
            for (int e = 0; e < kOwned; ++e) {
                const float scale = rows[e / 16 * 2 + e % 4 / 2] * columns[e / 4 % 4 * 2 + e % 2];
                chains[e] = chains[e] + exact_sum(sums[e / 16][e / 4 % 4][e % 4]) * scale;
            }
        }
#pragma unroll
        for (int e = 0; e < kOwned; ++e) to[e] = word(f32::canonical(0.0f + chains[e]));
    }
}

// A block's tiles: `batch`, and the first of the rows that it owns.
template <class Form>
struct Tiles {
    Word batch, own0;
    const Owned<Form::CODES> owned;

    LOCKSTEP_MEMBER Tiles() {
        constexpr Word TILES = (Form::OWN + kOwn - 1) / kOwn;
        batch = blockIdx.x / TILES;
        own0 = blockIdx.x % TILES * kOwn;
    }
    LOCKSTEP_MEMBER bool inside(int e, Word sweep0) const {
        return (Form::OWN % kOwn == 0 || own0 + owned.own(e) < Form::OWN) && (Form::SWEEP % kSweep == 0 || sweep0 + owned.sweep(e) < Form::SWEEP);
    }
    // A product that a mask leaves nothing of, in the whole tile, is not computed: nobody reads its words.
    template <int B>
    LOCKSTEP_MEMBER void multiply(const Form& form, Word sweep0, Word (&to)[kOwned]) const {
        if constexpr (B < Form::BASES) {
            if constexpr (Form::template MASKED<B>) {
                bool needed = false;
#pragma unroll
                for (int e = 0; e < kOwned; ++e)
                    if (inside(e, sweep0)) needed |= form.template needs<B>(batch, own0 + owned.own(e), sweep0 + owned.sweep(e));
                if (!unit::any(needed)) {
#pragma unroll
                    for (int e = 0; e < kOwned; ++e) to[e] = 0;
                    return;
                }
            }
            multiply_base(form.template base<B>(), batch, own0, sweep0, to);
        }
    }
    // The values of a thread's elements, and those of a second tensor; +0 beyond the end.
    LOCKSTEP_MEMBER void compute(const Form& form, Word sweep0, Word (&first)[kOwned], [[maybe_unused]] Word (&second)[Form::SECOND ? kOwned : 1]) const {
        Word products[2][kOwned];
        multiply<0>(form, sweep0, products[0]);
        multiply<1>(form, sweep0, products[1]);
#pragma unroll
        for (int e = 0; e < kOwned; ++e) {
            const Word o = own0 + owned.own(e), s = sweep0 + owned.sweep(e), b0 = products[0][e], b1 = Form::BASES > 1 ? products[1][e] : 0;
            const bool there = inside(e, sweep0);
            first[e] = there ? form.first(batch, o, s, b0, b1) : 0;
            if constexpr (Form::SECOND) second[e] = there ? form.second(batch, o, s, b0, b1) : 0;
        }
    }
    LOCKSTEP_MEMBER void store(const Word (&values)[kOwned], Word column) const {
        if constexpr (Form::CODES) {
#pragma unroll
            for (int e = 0; e < kOwned; ++e) unit::cell(owned.own(e) * kValueRow + 4 * (owned.sweep(e) + column)) = values[e];
        } else {
#pragma unroll
            for (int e = 0; e < kOwned; e += 4)
                *unit::place(owned.own(e) * kValueRow + 4 * (owned.sweep(e) + column)) = Four{{values[e], values[e + 1], values[e + 2], values[e + 3]}};
        }
    }
    // Computes a tile into shared memory, where others find it after the next barrier; false if all of its values are zeros.
    LOCKSTEP_MEMBER bool fill(const Form& form, Word sweep0) const {
        Word values[kOwned], none[1];
        compute(form, sweep0, values, none);
        Word bits = 0;
#pragma unroll
        for (int e = 0; e < kOwned; ++e) bits |= values[e];
        const bool some = unit::any((bits & ~f32::SIGN) != 0);  // and everybody has read what the values replace
        store(values, 0);
        return some;
    }
};

// out[batch, own] = the fold along the sweep. A thread has the chain of a row.
template <class Form>
LOCKSTEP_INLINE void fold_tiles(const Form& form, Word* out) {
    constexpr Mode MODE = Form::MODE, ABOVE = MODE == Mode::kDot ? Mode::kSum : MODE;
    constexpr Word IDENTITY = MODE == Mode::kMax ? f32::NEGATIVE_INFINITE : MODE == Mode::kMin ? f32::INFINITE : 0;
    constexpr Word PARTS = Form::SECOND ? 2 : 1, PART = kSweep / PARTS;  // two tensors take half a tile each
    const Tiles<Form> tiles;
    Word total = IDENTITY;
    for (Word s0 = 0; s0 < Form::SWEEP; s0 += kSweep) {
        Word first[kOwned], second[Form::SECOND ? kOwned : 1];
        tiles.compute(form, s0, first, second);
        Word chain = IDENTITY;
        for (Word part = 0; part < PARTS; ++part) {
            __syncthreads();
            if (PARTS == 1 || tiles.owned.sweep0 / PART == part) {
                tiles.store(first, 0u - part * PART);
                if constexpr (Form::SECOND) tiles.store(second, PART - part * PART);
            }
            __syncthreads();
            const Word row = threadIdx.x * kValueRow, begin = s0 + part * PART;
            if (threadIdx.x >= kOwn || begin >= Form::SWEEP) continue;
            const Word length = Form::SWEEP - begin < PART ? Form::SWEEP - begin : PART;
#pragma unroll 4
            for (Word s = 0; s < length; s += 4) {
                const Four a = *unit::place(row + 4 * s), b = Form::SECOND ? *unit::place(row + 4 * (PART + s)) : Four{};
#pragma unroll
                for (Word j = 0; j < 4; ++j)
                    if (Form::SWEEP % 4 == 0 || s + j < length) chain = joined<MODE>(chain, a.lane[j], b.lane[j]);
            }
        }
        total = joined<ABOVE>(total, chain, 0);
    }
    const Word o = tiles.own0 + threadIdx.x;
    if (threadIdx.x >= kOwn || o >= Form::OWN) return;
    constexpr bool FLOAT_SUM = MODE == Mode::kDot || MODE == Mode::kSum;
    out[static_cast<int>(Form::out(tiles.batch, o))] = FLOAT_SUM ? word(f32::canonical(value(total))) : total;
}

// out[batch, own, n] = sum over the sweep of value[own, s] right[s, n]. Zeros times what is finite change no chain, which begins
// with +0 and never is -0 at a chunk's end: a tile that a mask leaves nothing of is left out, unless it meets an infinity.
template <class Form>
LOCKSTEP_INLINE void multiply_tiles(const Form& form, Word* out) {
    using Right = typename Form::Right;
    constexpr Word N = Right::ROWS, NT = (N + 31) / 32, SIDE = NT * 32;
    const Tiles<Form> tiles;
    const Word* right = form.right() + static_cast<int>(Right::batch(tiles.batch));
    const Word lane = threadIdx.x % 32, own = threadIdx.x / 32 * 4;
    out += static_cast<int>(Form::out(tiles.batch, 0));
    for (Word s0 = 0; s0 < Form::SWEEP; s0 += kSweep) {
        const Word length = Form::SWEEP - s0 < kSweep ? Form::SWEEP - s0 : kSweep;
        float chains[4][NT] = {};
        bool some = tiles.fill(form, s0);
        if (!some) {
            bool infinite = false;
            for (Word at = threadIdx.x; at < length * N; at += kTileThreads)
                infinite |= (right[static_cast<int>(Right::row(at % N) + Right::term(s0 + at / N))] & f32::INFINITE) == f32::INFINITE;
            some = unit::any(infinite);
        }
        for (Word t0 = 0; some && t0 < length; t0 += kTerms) {
            if (t0 > 0) __syncthreads();
            stage_floats<Right, SIDE>(kValues, right, 0, s0 + t0);
            __syncthreads();
#pragma unroll
            for (Word t = 0; t < kTerms; t += 4) {
                Four a[4];
#pragma unroll
                for (Word i = 0; i < 4; ++i) a[i] = *unit::place((own + i) * kValueRow + 4 * (t0 + t));
#pragma unroll
                for (Word k = 0; k < 4; ++k) {
                    if (Form::SWEEP % kTerms != 0 && t0 + t + k >= length) break;
#pragma unroll
                    for (Word j = 0; j < NT; ++j) {
                        const float b = value(unit::cell(kValues + 4 * ((t + k) * (SIDE + 4) + lane + 32 * j)));
#pragma unroll
                        for (Word i = 0; i < 4; ++i) chains[i][j] = f32::raw::fma(value(a[i].lane[k]), b, chains[i][j]);
                    }
                }
            }
        }
#pragma unroll
        for (Word i = 0; i < 4; ++i)
#pragma unroll
            for (Word j = 0; j < NT; ++j) {
                const Word o = tiles.own0 + own + i, n = lane + 32 * j;
                if (o >= Form::OWN || n >= N) continue;
                Word& to = out[static_cast<int>(o * Form::OUT_OWN + n * Form::OUT_N)];
                const float sum = (s0 == 0 ? 0.0f : value(to)) + chains[i][j];
                to = word(s0 + kSweep >= Form::SWEEP ? f32::canonical(sum) : sum);
            }
    }
}

// The codes of a tile's values and their scales, in groups of WORDS words along the sweep, as `quantise` makes them: those of the
// values, or of what the first codes and scales leave of them.
template <class Form>
struct TileCodes {
    static constexpr Word WORDS = Form::WORDS, GROUPS = kSweep / 4 / WORDS, NT = (Form::Right::ROWS + 63) / 64;
    static constexpr Word RIGHT = NT * 64 * kWideRow;  // right codes take the place of values
    static constexpr Word CODES = RIGHT > kValues ? RIGHT : kValues, SCALES = CODES + kOwn * kWideRow;
    static constexpr Word MAXIMA = SCALES + 4 * GROUPS * kOwn, BYTES = MAXIMA + 4 * GROUPS * kTileThreads;

    LOCKSTEP_MEMBER static void make(const Form& form, Word row, Word sweep0, int limb) {
        const Word own = threadIdx.x / 8, eighth = threadIdx.x % 8;
        Four held[8];
#pragma unroll
        for (Word k = 0; k < 8; ++k) held[k] = *unit::place(own * kValueRow + 16 * (eighth + 8 * k));
        for (int at = 0; at <= limb; ++at) {
            Word most[GROUPS] = {};
#pragma unroll
            for (Word k = 0; k < 8; ++k)
#pragma unroll
                for (const Word x : held[k].lane) most[8 * k / WORDS] = (x & ~f32::SIGN) > most[8 * k / WORDS] ? x & ~f32::SIGN : most[8 * k / WORDS];
            if (at > 0) __syncthreads();
#pragma unroll
            for (Word g = 0; g < GROUPS; ++g) unit::cell(MAXIMA + 4 * (g * kTileThreads + threadIdx.x)) = most[g];
            __syncthreads();
            codes::Scale scales[GROUPS];
#pragma unroll
            for (Word g = 0; g < GROUPS; ++g) {
#pragma unroll
                for (Word j = 0; j < 8; j += 4) {
                    const Four four = *unit::place(MAXIMA + 4 * (g * kTileThreads + own * 8 + j));
#pragma unroll
                    for (const Word x : four.lane) most[g] = x > most[g] ? x : most[g];
                }
                scales[g] = codes::scale_of(most[g], Form::POWER);
                if (at == limb && eighth == 0) unit::cell(SCALES + 4 * (g * kOwn + own)) = word(scales[g].scale);
            }
            const Word stream = form.stream(at);
#pragma unroll
            for (Word k = 0; k < 8; ++k) {
                const Word in_tile = eighth + 8 * k, at_word = sweep0 / 4 + in_tile, i = row * Form::ROW + at_word;
                const codes::Scale& scale = scales[8 * k / WORDS];
                Four random{};
                if (stream != 0) random = philox_block(form.context, stream, i >> 1);
                Word found = 0;
#pragma unroll
                for (Word j = 0; j < 4; ++j) {
                    if (4 * at_word + j >= Form::SWEEP) continue;
                    const Word half = (i % 2 == 0 ? random.lane[j / 2] : random.lane[2 + j / 2]) >> (16 * (j & 1)) & 0xffff;
                    const float x = value(held[k].lane[j]);
                    codes::Signed code = 0;
                    if (scale.inverse != 0.0f) code = stream != 0 ? codes::code_of(x, scale.inverse, half) : codes::code_of(x, scale.inverse);
                    found |= (static_cast<Word>(code) & 0xff) << (8 * j);
                    if (at < limb) held[k].lane[j] = word(f32::sub(x, f32::mul(static_cast<float>(code), scale.scale)));
                }
                if (at == limb) unit::cell(CODES + own * kWideRow + 4 * in_tile) = found;
            }
        }
    }
};

// out[batch, own, n] = the sum over PARTS x GROUPS groups of the exact sums of products of codes, times both scales. The parts are
// limbs of the same values, one behind the other; the codes of right are PARTS x GROUPS groups in memory.
template <class Form>
LOCKSTEP_INLINE void multiply_code_tiles(const Form& form, Word* out) {
    using Right = typename Form::Right;
    using Own = TileCodes<Form>;
    constexpr Word N = Right::ROWS, GROUPS = (Form::SWEEP / 4 + (Form::SWEEP % 4 != 0) + Form::WORDS - 1) / Form::WORDS;
    const Tiles<Form> tiles;
    const Word lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32;
    const Word* right = form.right() + static_cast<int>(Right::batch(tiles.batch));
    const Word* scales = form.right_scales() + static_cast<int>(Right::scale_batch(tiles.batch));
    out += static_cast<int>(Form::out(tiles.batch, 0));
    float chains[2][Own::NT][4] = {};
    for (Word part = 0; part < Form::PARTS; ++part) {
        for (Word s0 = 0, c0 = 0; s0 < Form::SWEEP; s0 += kSweep, c0 += Own::GROUPS) {
            const Word first = part * GROUPS + c0, many = GROUPS - c0 < Own::GROUPS ? GROUPS - c0 : Own::GROUPS;
            if (!tiles.fill(form, s0)) {
                // Codes and scales are zeros: nothing is added unless a scale of right is no number.
                bool infinite = false;
                for (Word at = threadIdx.x; at < many * N; at += kTileThreads)
                    infinite |= (scales[static_cast<int>(Right::scale(at % N) + (first + at / N) * Right::SCALE_STEP)] & f32::INFINITE) == f32::INFINITE;
                if (!unit::any(infinite)) continue;
            }
            __syncthreads();
            const Word own = tiles.own0 + threadIdx.x / 8;
            Own::make(form, Form::quant_row(tiles.batch, own), s0, Form::limb(part));
            stage_codes<Right, Own::NT * 64, kSweep / 4>(0, kWideRow, right, 0, first * Form::WORDS, many * Form::WORDS);
            __syncthreads();
            for (Word c = 0; c < many; ++c) {
#pragma unroll
                for (Word j = 0; j < Own::NT; ++j) {
                    const Word n0 = 8 * (warp + 8 * j);
                    if (n0 >= N) continue;
                    Word sums[2][1][4] = {{{kExact, kExact, kExact, kExact}}, {{kExact, kExact, kExact, kExact}}};
#pragma unroll
                    for (Word k = 0; k < Form::WORDS / 8; ++k) {
                        const Word at = 4 * c * Form::WORDS + 32 * k;
                        multiply_rows(sums, Own::CODES + at, kWideRow, n0 * kWideRow + at, kWideRow, 0);
                    }
                    float columns[2];
#pragma unroll
                    for (Word e = 0; e < 2; ++e) {
                        const Word n = n0 + 2 * t + e;
                        columns[e] = n < N ? value(scales[static_cast<int>(Right::scale(n) + (first + c) * Right::SCALE_STEP)]) : 0.0f;
                    }
#pragma unroll
                    for (Word m = 0; m < 4; ++m) {
                        const float row = value(unit::cell(Own::SCALES + 4 * (c * kOwn + 8 * m + g)));
#pragma unroll
                        for (Word e = 0; e < 2; ++e) {
                            float& chain = chains[m / 2][j][m % 2 * 2 + e];
                            chain = chain + exact_sum(sums[m / 2][0][m % 2 * 2 + e]) * (row * columns[e]);
                        }
                    }
                }
            }
        }
    }
#pragma unroll
    for (Word m = 0; m < 4; ++m)
#pragma unroll
        for (Word j = 0; j < Own::NT; ++j)
#pragma unroll
            for (Word e = 0; e < 2; ++e) {
                const Word o = tiles.own0 + 8 * m + g, n = 8 * (warp + 8 * j) + 2 * t + e;
                if (o >= Form::OWN || n >= N) continue;
                out[static_cast<int>(o * Form::OUT_OWN + n * Form::OUT_N)] = word(f32::canonical(0.0f + chains[m / 2][j][m % 2 * 2 + e]));
            }
}

}  // namespace lockstep::cuda
