// SHA-256 in plain C++ (FIPS 180-4, section 6.2).
#include "sha256.hpp"

#include <cstring>

namespace lockstep {
namespace {

#include "sha256_messages.inl"
#include "sha256_rounds.inl"

inline std::uint32_t rotate(std::uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

struct Portable {
    static void compress(std::uint32_t* state, const std::uint8_t* block) {
        std::uint32_t w[64];
        for (int i = 0; i < 16; ++i)
            w[i] = static_cast<std::uint32_t>(block[4 * i]) << 24 | static_cast<std::uint32_t>(block[4 * i + 1]) << 16 |
                   static_cast<std::uint32_t>(block[4 * i + 2]) << 8 | static_cast<std::uint32_t>(block[4 * i + 3]);
        for (int i = 16; i < 64; ++i) {
            const std::uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
            const std::uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
            w[i] = w[i - 16] + s0 + w[i - 7] + s1;
        }
        std::uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
        std::uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        for (int i = 0; i < 64; ++i) {
            const std::uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
            const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[i] + w[i];
            const std::uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
            const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
            h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
    template <int N>
    static void digests(const Message* messages, std::uint8_t* out) {
        for (int n = 0; n < N; ++n, out += kHashBytes) {
            std::uint32_t state[8];
            std::memcpy(state, kInitial, sizeof state);
            for (std::size_t i = 0; i < messages[n].blocks; ++i) compress(state, messages[n].block(i));
            for (int i = 0; i < 32; ++i) out[i] = static_cast<std::uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
        }
    }
};

}  // namespace

const HashPath kPortablePath{"portable", &hash_leaves<Portable>, &hash_nodes<Portable>};

}  // namespace lockstep
