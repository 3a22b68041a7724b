// SHA-256 with the x86 SHA extensions (Gulley et al., "Intel SHA Extensions", 2013), one or two messages at a time.
#include "sha256.hpp"

#include <immintrin.h>

#include <cstring>

namespace lockstep {
namespace {

#include "sha256_messages.inl"
#include "sha256_rounds.inl"

[[gnu::always_inline]] static inline __m128i load(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
[[gnu::always_inline]] static inline void store(std::uint8_t* to, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }
[[gnu::always_inline]] static inline __m128i big_endian(__m128i x) {
    return _mm_shuffle_epi8(x, _mm_set_epi64x(0x0c0d0e0f08090a0bULL, 0x0405060700010203ULL));
}

// The eight state words in the order that the instructions want: ABEF and CDGH, highest word first.
struct Lane {
    __m128i abef, cdgh, abef_in, cdgh_in, w[4];

    [[gnu::always_inline]] void start() {
        const __m128i cdab = _mm_shuffle_epi32(load(kInitial), 0xb1), efgh = _mm_shuffle_epi32(load(kInitial + 4), 0x1b);
        abef = _mm_alignr_epi8(cdab, efgh, 8);
        cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    }
    [[gnu::always_inline]] void take(const std::uint8_t* block) {
        abef_in = abef;
        cdgh_in = cdgh;
        for (int i = 0; i < 4; ++i) w[i] = big_endian(load(block + 16 * i));
    }
    // Rounds 4i .. 4i+3, and the message words 16 rounds on.
    template <int I>
    [[gnu::always_inline]] void rounds() {
        const __m128i now = w[I & 3];
        __m128i sum = _mm_add_epi32(now, load(kRound + 4 * I));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
        sum = _mm_shuffle_epi32(sum, 0x0e);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, sum);
        if constexpr (I < 12) {
            const __m128i w7 = _mm_alignr_epi8(w[(I + 3) & 3], w[(I + 2) & 3], 4);
            const __m128i partial = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(I + 1) & 3]), w7);
            w[I & 3] = _mm_sha256msg2_epu32(partial, w[(I + 3) & 3]);
        }
    }
    [[gnu::always_inline]] void add() {
        abef = _mm_add_epi32(abef, abef_in);
        cdgh = _mm_add_epi32(cdgh, cdgh_in);
    }
    [[gnu::always_inline]] void finish(std::uint8_t* out) const {
        const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
        store(out, big_endian(_mm_blend_epi16(feba, dchg, 0xf0)));
        store(out + 16, big_endian(_mm_alignr_epi8(dchg, feba, 8)));
    }
};

#include "sha256_lanes.inl"

}  // namespace

const HashPath kShaNiPath{"sha-ni", &hash_leaves<Lanes>, &hash_nodes<Lanes>};

}  // namespace lockstep
