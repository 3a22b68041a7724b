// SHA-256 with the instructions of AArch64 (FEAT_SHA256), one or two messages at a time.
#include "sha256.hpp"

#include <arm_neon.h>

#include <cstring>

namespace lockstep {
namespace {

#include "sha256_messages.inl"
#include "sha256_rounds.inl"

struct Lane {
    uint32x4_t abcd, efgh, abcd_in, efgh_in, w[4];

    [[gnu::always_inline]] void start() {
        abcd = vld1q_u32(kInitial);
        efgh = vld1q_u32(kInitial + 4);
    }
    [[gnu::always_inline]] void take(const std::uint8_t* block) {
        abcd_in = abcd;
        efgh_in = efgh;
        for (int i = 0; i < 4; ++i) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(block + 16 * i)));
    }
    // Rounds 4i .. 4i+3, and the message words 16 rounds on.
    template <int I>
    [[gnu::always_inline]] void rounds() {
        const uint32x4_t now = w[I & 3], sum = vaddq_u32(now, vld1q_u32(kRound + 4 * I)), before = abcd;
        abcd = vsha256hq_u32(abcd, efgh, sum);
        efgh = vsha256h2q_u32(efgh, before, sum);
        if constexpr (I < 12) w[I & 3] = vsha256su1q_u32(vsha256su0q_u32(now, w[(I + 1) & 3]), w[(I + 2) & 3], w[(I + 3) & 3]);
    }
    [[gnu::always_inline]] void add() {
        abcd = vaddq_u32(abcd, abcd_in);
        efgh = vaddq_u32(efgh, efgh_in);
    }
    [[gnu::always_inline]] void finish(std::uint8_t* out) const {
        vst1q_u8(out, vrev32q_u8(vreinterpretq_u8_u32(abcd)));
        vst1q_u8(out + 16, vrev32q_u8(vreinterpretq_u8_u32(efgh)));
    }
};

#include "sha256_lanes.inl"

}  // namespace

const HashPath kSha2Path{"sha2", &hash_leaves<Lanes>, &hash_nodes<Lanes>};

}  // namespace lockstep
