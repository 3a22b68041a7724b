// SHA-256 with the x86 SHA extensions (Gulley et al., "Intel SHA Extensions", 2013), one or two messages at a time.
#include "sha256.hpp"

#include <immintrin.h>

#include <cstring>

namespace lockstep {
namespace {

#include "sha256_messages.inl"
#include "sha256_rounds.inl"

// The eight state words in the order that the instructions want: ABEF and CDGH, highest word first.
struct Lane {
    __m128i abef, cdgh, abef_in, cdgh_in, w[4];

    inline __attribute__((always_inline)) void load(const std::uint32_t* state, const std::uint8_t* block) {
        const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0bULL, 0x0405060700010203ULL);
        const __m128i dcba = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state)), 0xb1);
        const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4)), 0x1b);
        abef = abef_in = _mm_alignr_epi8(dcba, efgh, 8);
        cdgh = cdgh_in = _mm_blend_epi16(efgh, dcba, 0xf0);
        for (int i = 0; i < 4; ++i)
            w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16 * i)), big_endian);
    }
    // Rounds 4i .. 4i+3, and the message words 16 rounds on.
    template <int I>
    inline __attribute__((always_inline)) void rounds() {
        const __m128i now = w[I & 3];
        __m128i sum = _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * I)));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
        sum = _mm_shuffle_epi32(sum, 0x0e);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, sum);
        if constexpr (I < 12) {
            const __m128i w7 = _mm_alignr_epi8(w[(I + 3) & 3], w[(I + 2) & 3], 4);
            const __m128i partial = _mm_add_epi32(_mm_sha256msg1_epu32(now, w[(I + 1) & 3]), w7);
            w[I & 3] = _mm_sha256msg2_epu32(partial, w[(I + 3) & 3]);
        }
    }
    inline __attribute__((always_inline)) void store(std::uint32_t* state) {
        abef = _mm_add_epi32(abef, abef_in);
        cdgh = _mm_add_epi32(cdgh, cdgh_in);
        const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xf0));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
    }
};

template <int I, class... Lanes>
inline __attribute__((always_inline)) void all_rounds(Lanes&... lanes) {
    (lanes.template rounds<I>(), ...);
    if constexpr (I < 15) all_rounds<I + 1>(lanes...);
}

struct ShaNi {
    static void one(std::uint32_t* state, const std::uint8_t* block) {
        Lane lane;
        lane.load(state, block);
        all_rounds<0>(lane);
        lane.store(state);
    }
    static void two(std::uint32_t* a, const std::uint8_t* block_a, std::uint32_t* b, const std::uint8_t* block_b) {
        Lane lane_a, lane_b;
        lane_a.load(a, block_a);
        lane_b.load(b, block_b);
        all_rounds<0>(lane_a, lane_b);
        lane_a.store(a);
        lane_b.store(b);
    }
};

}  // namespace

const HashPath kShaNiPath{"sha-ni", &hash_leaves<ShaNi>, &hash_nodes<ShaNi>};

}  // namespace lockstep
