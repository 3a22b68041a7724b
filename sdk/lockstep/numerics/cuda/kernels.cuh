// What the kernels of a Program are made of on a CUDA device: products, folds, random words, SHA-256.
//
// generate.py writes one kernel per form of op: a struct of constants and one call of a function in this file. Offsets are words modulo
// 2^32: a view stays inside of its tensor, so the sums that index memory are below 2^31.
//
// Compile with -fmad=false -ftz=false -prec-div=true -prec-sqrt=true. emulation.hpp makes a C++ compiler read the same source.
#pragma once

#include "codes.hpp"
#include "f32.hpp"

namespace lockstep::cuda {

struct alignas(16) Four {
    f32::Word lane[4];
};

}  // namespace lockstep::cuda

#if defined(LOCKSTEP_GPU)
#define LOCKSTEP_MEMBER __device__ __forceinline__
#define LOCKSTEP_KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define LOCKSTEP_EXPORT(kernel)
#else
#include "emulation.hpp"
#endif

namespace lockstep::cuda {

using f32::value;
using f32::Word;
using f32::word;

constexpr Word kChunk = 256;  // terms that are chained before a partial result is taken

namespace unit {
#if defined(LOCKSTEP_GPU)
// True for all threads of the block if it is for one of them. A barrier, before which all that was written is there.
LOCKSTEP_MEMBER bool any(bool own) { return __syncthreads_or(own) != 0; }
#else
using emulation::unit::any;
#endif
}  // namespace unit

// --- products ---------------------------------------------------------------------------------------------------------------

constexpr int kProductThreads = 256;

// Terms of a tile of SIDE rows: four words of each operand for each thread. More of them would not stay in registers.
template <int SIDE>
constexpr int kDepth = 4 * kProductThreads / SIDE;

// A tile of SIDE rows x DEPTH terms of one operand on its way from device memory through registers to shared memory.
// Operand: ROWS, ROW_STRIDE, TERM_STRIDE; VECTOR where four words at a time are aligned and all inside or all outside.
template <class Operand, Word K, int SIDE>
struct Loader {
    static constexpr bool ALONG_TERMS = Operand::TERM_STRIDE == 1;
    static constexpr int DEPTH = kDepth<SIDE>, V = Operand::VECTOR ? 4 : 1, GROUPS = 4 / V;
    Word held[4];

    LOCKSTEP_MEMBER int row(int group) const {
        const int at = static_cast<int>(threadIdx.x) + group * kProductThreads;
        return ALONG_TERMS ? at / (DEPTH / V) : at % (SIDE / V) * V;
    }
    LOCKSTEP_MEMBER int term(int group) const {
        const int at = static_cast<int>(threadIdx.x) + group * kProductThreads;
        return ALONG_TERMS ? at % (DEPTH / V) * V : at / (SIDE / V);
    }
    LOCKSTEP_MEMBER void load(const Word* from, Word first_row, Word first_term) {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const Word r = first_row + static_cast<Word>(row(g)), k = first_term + static_cast<Word>(term(g));
            const bool inside = r < Operand::ROWS && k < K;
            const Word* at = from + static_cast<int>(inside ? r * Operand::ROW_STRIDE + k * Operand::TERM_STRIDE : 0);
            if constexpr (V == 4) {
                Four four{};
                if (inside) four = *reinterpret_cast<const Four*>(at);
#pragma unroll
                for (int v = 0; v < 4; ++v) held[v] = four.lane[v];
            } else {
                held[g] = inside ? *at : 0;
            }
        }
    }
    LOCKSTEP_MEMBER void store(Word (&tile)[DEPTH][SIDE + 4]) const {
#pragma unroll
        for (int g = 0; g < GROUPS; ++g) {
            const int r = row(g), k = term(g);
            if constexpr (V == 4 && !ALONG_TERMS) {
                *reinterpret_cast<Four*>(&tile[k][r]) = Four{{held[0], held[1], held[2], held[3]}};
            } else {
#pragma unroll
                for (int v = 0; v < V; ++v) tile[k + v][r] = held[V * g + v];
            }
        }
    }
};

// The barrier behind what a block's threads have stored: false if its products are zeros, as far as a `sparse` left shows.
template <class Left, class Right>
LOCKSTEP_MEMBER bool stored(bool sparse, const Left& left, const Right& right) {
    if (!sparse) {
        __syncthreads();
        return true;
    }
    bool some = false;
#pragma unroll
    for (int v = 0; v < 4; ++v) some |= (left.held[v] & ~f32::SIGN) != 0 || (right.held[v] & f32::INFINITE) == f32::INFINITE;
    return unit::any(some);
}

// out[batch, m, n] = fold_k left[batch, m, k] right[batch, n, k]. A block owns a tile of SIDE x SIDE outputs, a thread T x T of
// them and with each its chain: no bit depends on the tiling. (Volkov and Demmel, "Benchmarking GPUs to tune dense linear
// algebra", SC 2008.) Blocks are numbered batch, tile of m, tile of n, innermost last; Dot::SPLIT puts the chunk before all of
// them and leaves the chunks' bare results, `ELEMENTS` words apart, to a fold that adds them up.
//
// Dot::SPARSE says that most of left is zeros: rows of an indicator, such as the gradient of an embedding has. A tile of zeros
// times finite words changes no chain, which begins with +0 and whose zero has no sign at a chunk's end: it is not multiplied.
template <class Dot>
LOCKSTEP_INLINE void multiply(const Word* left, const Word* right, Word* out) {
    constexpr int SIDE = Dot::SIDE, T = SIDE / 16, DEPTH = kDepth<SIDE>;
    constexpr Word M = Dot::Left::ROWS, N = Dot::Right::ROWS, K = Dot::K;
    constexpr Word TILES_M = (M + SIDE - 1) / SIDE, TILES_N = (N + SIDE - 1) / SIDE;
    alignas(16) __shared__ Word lefts[2][DEPTH][SIDE + 4], rights[2][DEPTH][SIDE + 4];

    Word block = blockIdx.x;
    const Word n0 = block % TILES_N * SIDE;
    block /= TILES_N;
    const Word m0 = block % TILES_M * SIDE;
    block /= TILES_M;
    const Word batch = Dot::SPLIT ? block % Dot::BATCHES : block, chunk = Dot::SPLIT ? block / Dot::BATCHES : 0;
    left += static_cast<int>(Dot::Left::batch(batch));
    right += static_cast<int>(Dot::Right::batch(batch));
    out += static_cast<int>(Dot::batch(batch)) + static_cast<long long>(chunk) * Dot::ELEMENTS;

    const Word begin = chunk * kChunk, end = Dot::SPLIT && K - begin > kChunk ? begin + kChunk : K;
    // A warp has 4 x 8 threads, so that each read of shared memory has 128 different bytes at most.
    const Word warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Word across = (warp % 2 * 8 + lane % 8) * 4, down = (warp / 2 * 4 + lane / 8) * 4;
    float chain[T][T] = {};
    Loader<typename Dot::Left, K, SIDE> next_left;
    Loader<typename Dot::Right, K, SIDE> next_right;
    next_left.load(left, m0, begin);
    next_right.load(right, n0, begin);
    next_left.store(lefts[0]);
    next_right.store(rights[0]);
    bool counts = stored(Dot::SPARSE, next_left, next_right);
    int held = 0;
    for (Word k0 = begin; k0 < end; k0 += DEPTH, held ^= 1) {
        if (k0 + DEPTH < end) {
            next_left.load(left, m0, k0 + DEPTH);
            next_right.load(right, n0, k0 + DEPTH);
        }
#pragma unroll
        for (int k = 0; k < DEPTH; ++k) {
            if (Dot::SPARSE && !counts) break;
            if (K % DEPTH != 0 && k0 + static_cast<Word>(k) >= end) break;  // padding is never executed
            Four a[T / 4], b[T / 4];
#pragma unroll
            for (int i = 0; i < T / 4; ++i) {
                a[i] = *reinterpret_cast<const Four*>(&lefts[held][k][64 * i + static_cast<int>(down)]);
                b[i] = *reinterpret_cast<const Four*>(&rights[held][k][64 * i + static_cast<int>(across)]);
            }
#pragma unroll
            for (int i = 0; i < T; ++i)
#pragma unroll
                for (int j = 0; j < T; ++j)
                    chain[i][j] = f32::raw::fma(value(a[i / 4].lane[i % 4]), value(b[j / 4].lane[j % 4]), chain[i][j]);
        }
        const bool last = k0 + DEPTH >= end;
        if (last || (k0 + DEPTH) % kChunk == 0) {
            const bool first = k0 < kChunk;
            const auto total = [=](Word before, float own) {
                if constexpr (Dot::SPLIT) return word(own);
                const float sum = value(before) + own;
                return word(last ? f32::canonical(sum) : sum);
            };
#pragma unroll
            for (int half = 0; half < T; half += 4) {
                const auto row = [=](int i) { return m0 + static_cast<Word>(half * 16 + i) + down; };
                const auto column = [=](int j) { return n0 + static_cast<Word>(j * 64) + across; };
                const auto place = [=](int i, int j) { return out + static_cast<int>(row(i) * Dot::ROW_STRIDE + column(j)); };
                const auto inside = [=](int i, int j) { return (M % SIDE == 0 || row(i) < M) && (N % SIDE == 0 || column(j) < N); };
                Four sums[4][T / 4] = {};  // read before any is written: they are under way together
                if (!Dot::SPLIT && !first) {
#pragma unroll
                    for (int i = 0; i < 4; ++i)
#pragma unroll
                        for (int j = 0; j < T / 4; ++j) {
                            if (!inside(i, j)) continue;
                            if constexpr (Dot::VECTOR) {
                                sums[i][j] = *reinterpret_cast<const Four*>(place(i, j));
                            } else {
#pragma unroll
                                for (int v = 0; v < 4; ++v)
                                    if (column(j) + static_cast<Word>(v) < N) sums[i][j].lane[v] = place(i, j)[v];
                            }
                        }
                }
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int j = 0; j < T / 4; ++j) {
#pragma unroll
                        for (int v = 0; v < 4; ++v) sums[i][j].lane[v] = total(sums[i][j].lane[v], chain[half + i][4 * j + v]);
                        if (!inside(i, j)) continue;
                        if constexpr (Dot::VECTOR) {
                            *reinterpret_cast<Four*>(place(i, j)) = sums[i][j];
                        } else {
#pragma unroll
                            for (int v = 0; v < 4; ++v)
                                if (column(j) + static_cast<Word>(v) < N) place(i, j)[v] = sums[i][j].lane[v];
                        }
                    }
            }
#pragma unroll
            for (int i = 0; i < T * T; ++i) chain[i / T][i % T] = 0.0f;
        }
        if (!last) {
            next_left.store(lefts[held ^ 1]);
            next_right.store(rights[held ^ 1]);
        }
        counts = stored(Dot::SPARSE, next_left, next_right);
    }
}

// --- folds ------------------------------------------------------------------------------------------------------------------

constexpr int kFoldThreads = 128, kFoldTile = 32;

enum class Mode { kDot, kSum, kMax, kMin, kWrappingSum };

template <Mode MODE>
LOCKSTEP_INLINE Word joined(Word chain, Word a, Word b) {
    if constexpr (MODE == Mode::kDot) return word(f32::raw::fma(value(a), value(b), value(chain)));
    if constexpr (MODE == Mode::kSum) return word(value(chain) + value(a));
    if constexpr (MODE == Mode::kMax) return word(f32::max(value(chain), value(a)));
    if constexpr (MODE == Mode::kMin) return word(f32::min(value(chain), value(a)));
    return chain + a;
}

// Term k of the chunk whose first term lies at `start`.
template <class Terms>
LOCKSTEP_INLINE Word term_at(const Word* from, Word start, Word k) {
    const Word at = start + k * Terms::STRIDE;
    if constexpr (Terms::IOTA) return at;
    else return from[static_cast<int>(at)];
}

// Chunk c of output o, for job o + c OUTPUTS of a thread each: out[job] is its bare result, or where there is one chunk the
// fold's. Terms that are contiguous are staged through shared memory: neighbouring threads then read neighbouring words.
template <class Fold>
LOCKSTEP_INLINE void fold(const Word* first, const Word* second, Word* out) {
    using A = typename Fold::First;
    using B = typename Fold::Second;
    constexpr bool DOT = Fold::MODE == Mode::kDot, SAME = Fold::SAME;  // both operands of a dot are one
    constexpr bool STAGE_A = A::STRIDE == 1 && !A::IOTA, STAGE_B = DOT && !SAME && B::STRIDE == 1 && !B::IOTA;
    constexpr Word CHUNKS = (Fold::K + kChunk - 1) / kChunk, JOBS = Fold::OUTPUTS * CHUNKS;
    constexpr Word IDENTITY = Fold::MODE == Mode::kMax ? f32::NEGATIVE_INFINITE : Fold::MODE == Mode::kMin ? f32::INFINITE : 0;
    __shared__ Word a_tile[STAGE_A ? kFoldThreads : 1][kFoldTile + 1], b_tile[STAGE_B ? kFoldThreads : 1][kFoldTile + 1];
    __shared__ Word a_starts[kFoldThreads], b_starts[kFoldThreads], lengths[kFoldThreads];

    const int thread = static_cast<int>(threadIdx.x);
    const Word job = blockIdx.x * static_cast<Word>(kFoldThreads) + threadIdx.x;
    const Word chunk = job / Fold::OUTPUTS, output = job % Fold::OUTPUTS;
    const Word left = Fold::K - chunk * kChunk, length = job >= JOBS ? 0 : left < kChunk ? left : kChunk;
    const Word a_start = A::start(output) + chunk * kChunk * A::STRIDE, b_start = B::start(output) + chunk * kChunk * B::STRIDE;
    a_starts[thread] = a_start;
    b_starts[thread] = b_start;
    lengths[thread] = length;
    Word chain = IDENTITY;
    constexpr Word LONGEST = Fold::K < kChunk ? Fold::K : kChunk;
    for (Word k0 = 0; k0 < LONGEST; k0 += kFoldTile) {
        if constexpr (STAGE_A || STAGE_B) {
            __syncthreads();
            const Word k = k0 + static_cast<Word>(thread % kFoldTile);
            constexpr int ROWS = kFoldThreads / kFoldTile, HELD = 16;  // reads that are under way together
            for (int j0 = thread / kFoldTile; j0 < kFoldThreads; j0 += HELD * ROWS) {
                Word a[HELD], b[HELD];
#pragma unroll
                for (int h = 0; h < HELD; ++h) {
                    const int j = j0 + h * ROWS;
                    const bool inside = k < lengths[j];
                    if constexpr (STAGE_A) a[h] = inside ? term_at<A>(first, a_starts[j], k) : 0;
                    if constexpr (STAGE_B) b[h] = inside ? term_at<B>(second, b_starts[j], k) : 0;
                }
#pragma unroll
                for (int h = 0; h < HELD; ++h) {
                    if constexpr (STAGE_A) a_tile[j0 + h * ROWS][thread % kFoldTile] = a[h];
                    if constexpr (STAGE_B) b_tile[j0 + h * ROWS][thread % kFoldTile] = b[h];
                }
            }
            __syncthreads();
        }
#pragma unroll 16
        for (Word k = 0; k < kFoldTile; ++k) {
            if (k0 + k >= length) break;
            const Word a = STAGE_A ? a_tile[STAGE_A ? thread : 0][k] : term_at<A>(first, a_start, k0 + k);
            const Word b = !DOT ? 0 : SAME ? a : STAGE_B ? b_tile[STAGE_B ? thread : 0][k] : term_at<B>(second, b_start, k0 + k);
            chain = joined<Fold::MODE>(chain, a, b);
        }
    }
    if (job >= JOBS) return;
    constexpr bool FLOAT_SUM = DOT || Fold::MODE == Mode::kSum;
    if constexpr (CHUNKS == 1 && FLOAT_SUM) chain = word(f32::canonical(0.0f + value(chain)));
    out[job] = chain;
}

}  // namespace lockstep::cuda

#include "integers.cuh"

namespace lockstep::cuda {

// --- random words -----------------------------------------------------------------------------------------------------------

LOCKSTEP_INLINE Word high_product(Word a, Word b) { return static_cast<Word>(static_cast<unsigned long long>(a) * b >> 32); }

// Words 4 c .. 4 c + 3 of a stream: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// `context` holds round, slot, t, then the seed.
LOCKSTEP_INLINE Four philox_block(const Word* context, Word stream, Word c) {
    Word c0 = c, c1 = context[0], c2 = context[1], c3 = context[2];
    Word k0 = context[3] ^ stream, k1 = context[4];
    for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
        const Word left = 0xd2511f53 * c0, left_high = high_product(0xd2511f53, c0);
        const Word right = 0xcd9e8d57 * c2, right_high = high_product(0xcd9e8d57, c2);
        c0 = right_high ^ c1 ^ k0;
        c1 = right;
        c2 = left_high ^ c3 ^ k1;
        c3 = left;
    }
    return Four{{c0, c1, c2, c3}};
}

// Word `at` of a stream.
LOCKSTEP_INLINE Word philox(const Word* context, Word stream, Word at) {
    const Four block = philox_block(context, stream, at >> 2);
    const Word lane = at & 3;
    return lane == 0 ? block.lane[0] : lane == 1 ? block.lane[1] : lane == 2 ? block.lane[2] : block.lane[3];
}

// --- codes ------------------------------------------------------------------------------------------------------------------

// An element of a qdot: GROUPS groups of WORDS words from a and b on, with scales STEP_A and STEP_B words apart.
template <Word GROUPS, Word WORDS, Word STEP_A, Word STEP_B>
LOCKSTEP_INLINE Word product_of_codes(const Word* a, const Word* b, const Word* scale_a, const Word* scale_b) {
    float sum = 0.0f, total = 0.0f;
    for (Word c = 0; c < GROUPS; ++c) {
        codes::Signed exact = 0;
        for (Word j = 0; j < WORDS; ++j) exact += codes::product(a[c * WORDS + j], b[c * WORDS + j]);
        sum = sum + static_cast<float>(exact) * (value(scale_a[c * STEP_A]) * value(scale_b[c * STEP_B]));
        if ((c + 1) % kChunk != 0 && c + 1 != GROUPS) continue;
        total = total + sum;
        sum = 0.0f;
    }
    return word(f32::canonical(total));
}

constexpr int kQuantThreads = 256;

// Codes of rows of K values, in ROW words, and the scales of their groups; where there are TWO limbs, also those of what the first
// ones leave of the values. Thread i reads the four values of word i, and finds the group's greatest magnitude with the threads of
// its other words, which all are in its block. `Quant` writes word `at` of a row, or a scale's, wherever it is wanted.
template <Word N>
LOCKSTEP_INLINE Word greatest_of(const Word* of) {
    Word most = 0;
    if constexpr (N % 4 == 0) {
#pragma unroll
        for (Word j = 0; j < N; j += 4) {
            const Four four = *reinterpret_cast<const Four*>(of + j);
#pragma unroll
            for (const Word x : four.lane) most = x > most ? x : most;
        }
    } else {
#pragma unroll
        for (Word j = 0; j < N; ++j) most = of[j] > most ? of[j] : most;
    }
    return most;
}

// What the threads of a group find among their magnitudes: by eights, then among the eights.
template <Word WORDS>
struct Magnitudes {
    static constexpr bool EIGHTS = WORDS > 8;
    Word (&all)[kQuantThreads];
    Word (&eights)[kQuantThreads / 8];

    LOCKSTEP_MEMBER Word greatest(Word own) const {
        constexpr Word NEAR = EIGHTS ? 8 : WORDS;
        all[threadIdx.x] = own;
        __syncthreads();
        own = greatest_of<NEAR>(all + threadIdx.x / NEAR * NEAR);
        if constexpr (EIGHTS) {
            if (threadIdx.x % 8 == 0) eights[threadIdx.x / 8] = own;
            __syncthreads();
            own = greatest_of<WORDS / NEAR>(eights + threadIdx.x / WORDS * (WORDS / NEAR));
        }
        return own;
    }
    // Gives the magnitudes away; where they are read before the eights, that barrier has done so.
    LOCKSTEP_MEMBER void release() const {
        if constexpr (!EIGHTS) __syncthreads();
    }
};

// Four values of a row of K, of which the first is number `first`; VECTOR where they are aligned, and all inside or all outside.
template <Word K, bool VECTOR>
LOCKSTEP_INLINE Four four_of(const Word* from, Word first) {
    Four four{};
    if constexpr (VECTOR) {
        if (first < K) four = *reinterpret_cast<const Four*>(from);
    } else {
#pragma unroll
        for (Word j = 0; j < 4; ++j)
            if (first + j < K) four.lane[j] = from[j];
    }
    return four;
}
template <Word K>
LOCKSTEP_INLINE void store_four(Word* to, Word first, const Four& four) {
    if constexpr (K % 4 == 0) {
        if (first < K) *reinterpret_cast<Four*>(to) = four;
    } else {
#pragma unroll
        for (Word j = 0; j < 4; ++j)
            if (first + j < K) to[j] = four.lane[j];
    }
}

template <class Quant>
LOCKSTEP_INLINE void quantise(const Word* context, Word high_stream, Word low_stream, const Quant& to) {
    alignas(16) __shared__ Word all[kQuantThreads];
    alignas(16) __shared__ Word eights[kQuantThreads / 8];
    const Magnitudes<Quant::WORDS> magnitudes{all, eights};
    const Word i = blockIdx.x * static_cast<Word>(kQuantThreads) + threadIdx.x, row = i / Quant::ROW, at = i % Quant::ROW, first = 4 * at;
    const bool inside = i < Quant::ALL;
    Four own{};
    if (inside) own = to.read(i, first);
    Four random{};
#pragma unroll
    for (int limb = 0; limb < (Quant::TWO ? 2 : 1); ++limb) {
        if (limb > 0) magnitudes.release();
        Word most = 0;
#pragma unroll
        for (const Word x : own.lane) most = (x & ~f32::SIGN) > most ? x & ~f32::SIGN : most;
        most = magnitudes.greatest(most);
        if (!inside) continue;
        const codes::Scale scale = codes::scale_of(most, Quant::POWER);
        if (at % Quant::WORDS == 0) {
            if (limb == 0) to.scale_0(row, at / Quant::WORDS, word(scale.scale));
            else to.scale_1(row, at / Quant::WORDS, word(scale.scale));
        }
        const Word stream = limb == 0 ? high_stream : low_stream;
        const bool stochastic = stream != 0;
        if (stochastic) random = philox_block(context, stream, i >> 1);
        Word found = 0;
#pragma unroll
        for (Word j = 0; j < 4; ++j) {
            if (first + j >= Quant::K) continue;
            // Two codes take the halves of one of the words 2 i and 2 i + 1.
            const Word half = (i % 2 == 0 ? random.lane[j / 2] : random.lane[2 + j / 2]) >> (16 * (j & 1)) & 0xffff;
            const float x = value(own.lane[j]);
            codes::Signed code = 0;
            if (scale.inverse != 0.0f) code = stochastic ? codes::code_of(x, scale.inverse, half) : codes::code_of(x, scale.inverse);
            found |= (static_cast<Word>(code) & 0xff) << (8 * j);
            if (limb == 0 && Quant::TWO) own.lane[j] = word(f32::sub(x, f32::mul(static_cast<float>(code), scale.scale)));
        }
        if (limb == 0) to.codes_0(row, at, found);
        else to.codes_1(row, at, found);
    }
}

// --- SHA-256 (FIPS 180-4) ---------------------------------------------------------------------------------------------------

LOCKSTEP_CONSTANT Word kSha[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

LOCKSTEP_INLINE Word turned(Word x, int n) { return x >> n | x << (32 - n); }
LOCKSTEP_INLINE Word swapped(Word x) { return x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24; }

LOCKSTEP_INLINE void compress(Word (&state)[8], Word (&w)[16]) {
    Word a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        if (i >= 16) {
            const Word x = w[(i + 1) % 16], y = w[(i + 14) % 16];
            w[i % 16] += (turned(x, 7) ^ turned(x, 18) ^ x >> 3) + w[(i + 9) % 16] + (turned(y, 17) ^ turned(y, 19) ^ y >> 10);
        }
        const Word t1 = h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + kSha[i] + w[i % 16];
        const Word t2 = (turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

// SHA-256 of the byte `prefix` and then `n` words as they lie in memory: read(i) for i < n.
template <class Read>
LOCKSTEP_INLINE void sha256(Word prefix, Word n, Read read, Word* digest) {
    Word state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const Word total = (n + 3 + 15) / 16 * 16;  // one byte and the end mark in a word, two words of length
    Word before = prefix;
    for (Word first = 0; first < total; first += 16) {
        Word w[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const Word at = first + static_cast<Word>(i);
            const Word own = at < n ? swapped(read(at)) : at == n ? 0x80000000 : 0;
            w[i] = at == total - 1 ? 32 * n + 8 : before << 24 | own >> 8;
            before = own;
        }
        compress(state, w);
    }
    for (int i = 0; i < 8; ++i) digest[i] = swapped(state[i]);
}

}  // namespace lockstep::cuda

using namespace lockstep;
using namespace lockstep::cuda;

// Thread i hashes leaf i: 256 words, the last leaf what is left.
LOCKSTEP_KERNEL(128) hash_leaves(const Word* __restrict__ data, Word* __restrict__ out, Word words) {
    const Word leaf = blockIdx.x * 128u + threadIdx.x, leaves = (words + 255u) / 256u;
    if (leaf >= leaves) return;
    const Word left = words - 256u * leaf, n = left < 256u ? left : 256u;
    sha256(0, n, [&](Word i) { return data[256u * leaf + i]; }, out + 8u * leaf);
}
LOCKSTEP_EXPORT(hash_leaves)

// Thread i hashes nodes 2i and 2i + 1 of a level of `count`; `empty` replaces a missing last sibling.
LOCKSTEP_KERNEL(128) hash_nodes(const Word* __restrict__ level, Word* __restrict__ out, const Word* __restrict__ empty, Word count) {
    const Word node = blockIdx.x * 128u + threadIdx.x;
    if (2u * node >= count) return;
    const Word* right = 2u * node + 1u < count ? level + 16u * node + 8u : empty;
    sha256(1, 16, [&](Word i) { return i < 8u ? level[16u * node + i] : right[i - 8u]; }, out + 8u * node);
}
LOCKSTEP_EXPORT(hash_nodes)

#include "tiles.cuh"
