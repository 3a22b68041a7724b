// SHA-256 of sixteen messages of one length at a time, one in each 32-bit lane.
#include "sha256.hpp"

#include <immintrin.h>

namespace lockstep {
namespace {

#include "sha256_rounds.inl"

constexpr std::size_t kLanes = 16;
constexpr std::uint32_t kInitial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

#define LOCKSTEP_INLINE [[gnu::always_inline]] static inline

// Row i lane j <-> row j lane i.
LOCKSTEP_INLINE void transpose(__m512i* r) {
    __m512i s[16], t[16];
    for (int i = 0; i < 16; i += 2) {
        s[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        s[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        t[i] = _mm512_unpacklo_epi64(s[i], s[i + 2]);
        t[i + 1] = _mm512_unpackhi_epi64(s[i], s[i + 2]);
        t[i + 2] = _mm512_unpacklo_epi64(s[i + 1], s[i + 3]);
        t[i + 3] = _mm512_unpackhi_epi64(s[i + 1], s[i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
        s[i] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
        s[i + 4] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        s[i + 8] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        s[i + 12] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; ++i) {
        r[i] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(s[i], s[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(s[i + 4], s[i + 12], 0xdd);
    }
}

LOCKSTEP_INLINE __m512i exclusive_or(__m512i a, __m512i b, __m512i c) { return _mm512_ternarylogic_epi32(a, b, c, 0x96); }

struct State {
    __m512i word[8];

    State() {
        for (int i = 0; i < 8; ++i) word[i] = _mm512_set1_epi32(static_cast<int>(kInitial[i]));
    }

    // FIPS 180-4, section 6.2.2, on sixteen blocks whose i-th words are w[i].
    void compress(__m512i* w) {
        __m512i a = word[0], b = word[1], c = word[2], d = word[3], e = word[4], f = word[5], g = word[6], h = word[7];
#pragma GCC unroll 64
        for (int i = 0; i < 64; ++i) {
            if (i >= 16) {
                const __m512i x = w[(i + 1) & 15], y = w[(i + 14) & 15];
                const __m512i s0 = exclusive_or(_mm512_ror_epi32(x, 7), _mm512_ror_epi32(x, 18), _mm512_srli_epi32(x, 3));
                const __m512i s1 = exclusive_or(_mm512_ror_epi32(y, 17), _mm512_ror_epi32(y, 19), _mm512_srli_epi32(y, 10));
                w[i & 15] = _mm512_add_epi32(_mm512_add_epi32(w[i & 15], s0), _mm512_add_epi32(w[(i + 9) & 15], s1));
            }
            const __m512i s1 = exclusive_or(_mm512_ror_epi32(e, 6), _mm512_ror_epi32(e, 11), _mm512_ror_epi32(e, 25));
            const __m512i chosen = _mm512_ternarylogic_epi32(e, f, g, 0xca);
            const __m512i given = _mm512_add_epi32(h, _mm512_add_epi32(w[i & 15], _mm512_set1_epi32(static_cast<int>(kRound[i]))));
            const __m512i t1 = _mm512_add_epi32(_mm512_add_epi32(given, chosen), s1);
            const __m512i s0 = exclusive_or(_mm512_ror_epi32(a, 2), _mm512_ror_epi32(a, 13), _mm512_ror_epi32(a, 22));
            const __m512i t2 = _mm512_add_epi32(s0, _mm512_ternarylogic_epi32(a, b, c, 0xe8));
            h = g, g = f, f = e;
            e = _mm512_add_epi32(d, t1);
            d = c, c = b, b = a;
            a = _mm512_add_epi32(t1, t2);
        }
        const __m512i add[8] = {a, b, c, d, e, f, g, h};
        for (int i = 0; i < 8; ++i) word[i] = _mm512_add_epi32(word[i], add[i]);
    }

    // Blocks at `first`, `first + stride`, ...
    void compress_at(const std::uint8_t* first, std::size_t stride) {
        compress_loaded([&](std::size_t lane) { return _mm512_loadu_si512(first + lane * stride); });
    }

    // The same blocks with the first byte of each replaced, which is not read.
    void compress_behind(std::uint8_t prefix, const std::uint8_t* first, std::size_t stride) {
        const __m512i before = _mm512_set1_epi8(static_cast<char>(prefix));
        compress_loaded([&](std::size_t lane) { return _mm512_mask_loadu_epi8(before, ~__mmask64{1}, first + lane * stride); });
    }

    template <class Load>
    void compress_loaded(Load load) {
        __m512i w[16];
        for (std::size_t lane = 0; lane < kLanes; ++lane) w[lane] = big_endian(load(lane));
        transpose(w);
        compress(w);
    }

    // 32 bytes for each message, one after the other.
    void store(std::uint8_t* out) const {
        __m512i rows[16];
        for (int i = 0; i < 8; ++i) rows[i] = big_endian(word[i]);
        for (int i = 8; i < 16; ++i) rows[i] = _mm512_setzero_si512();
        transpose(rows);
        for (std::size_t lane = 0; lane < kLanes; ++lane)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + lane * kHashBytes), _mm512_castsi512_si256(rows[lane]));
    }

    LOCKSTEP_INLINE __m512i big_endian(__m512i x) {
        const __m512i reversed = _mm512_broadcast_i32x4(_mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL));
        return _mm512_shuffle_epi8(x, reversed);
    }
};

// SHA256(prefix ‖ message) of sixteen messages of `bytes` bytes, a multiple of 64, one after the other.
void hash_sixteen(std::uint8_t prefix, const std::uint8_t* data, std::size_t bytes, std::uint8_t* out) {
    State state;
    alignas(64) std::uint32_t last[kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane)
        last[lane] = static_cast<std::uint32_t>(data[(lane + 1) * bytes - 1]) << 24 | 0x800000;
    state.compress_behind(prefix, data - 1, bytes);
    // The prefix shifts the rest by one: block i starts at byte 64 i - 1. The sixteen messages after these are asked for
    // meanwhile, in order: sixteen streams 1 KiB apart are more than the processor recognises by itself.
    for (std::size_t at = 63; at + 64 < bytes; at += 64) {
        for (std::size_t line = 0; line < kLanes; ++line) _mm_prefetch(data + kLanes * (bytes + at - 63) + 64 * line, _MM_HINT_T0);
        state.compress_at(data + at, bytes);
    }
    __m512i tail[16];
    for (int i = 1; i < 15; ++i) tail[i] = _mm512_setzero_si512();
    tail[0] = _mm512_load_si512(last);
    tail[15] = _mm512_set1_epi32(static_cast<int>((bytes + 1) * 8));
    state.compress(tail);
    state.store(out);
}

void hash_leaves(const std::uint8_t* data, std::size_t bytes, std::uint8_t* out) {
    constexpr std::size_t kSixteen = kLanes * kLeafBytes;
    for (; bytes >= kSixteen; data += kSixteen, bytes -= kSixteen, out += kLanes * kHashBytes)
        hash_sixteen(0x00, data, kLeafBytes, out);
    if (bytes) narrow_path().leaves(data, bytes, out);
}

void hash_nodes(const std::uint8_t* pairs, std::size_t count, std::uint8_t* out) {
    for (; count >= kLanes; count -= kLanes, pairs += kLanes * 2 * kHashBytes, out += kLanes * kHashBytes)
        hash_sixteen(0x01, pairs, 2 * kHashBytes, out);
    if (count) narrow_path().nodes(pairs, count, out);
}

}  // namespace

const HashPath kAvx512Path{"avx512", &hash_leaves, &hash_nodes};

}  // namespace lockstep
