// Keccak-256 as Ethereum uses it: rate 136, domain byte 0x01 (Bertoni et al., "The Keccak reference", 2011).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

namespace lockstep {

inline void keccak_permute(std::uint64_t (&s)[25]) {
    static constexpr std::uint64_t kRound[24] = {
        0x0000000000000001, 0x0000000000008082, 0x800000000000808a, 0x8000000080008000, 0x000000000000808b, 0x0000000080000001,
        0x8000000080008081, 0x8000000000008009, 0x000000000000008a, 0x0000000000000088, 0x0000000080008009, 0x000000008000000a,
        0x000000008000808b, 0x800000000000008b, 0x8000000000008089, 0x8000000000008003, 0x8000000000008002, 0x8000000000000080,
        0x000000000000800a, 0x800000008000000a, 0x8000000080008081, 0x8000000000008080, 0x0000000080000001, 0x8000000080008008};
    for (const std::uint64_t constant : kRound) {
        std::uint64_t column[5];
        for (int x = 0; x < 5; ++x) column[x] = s[x] ^ s[x + 5] ^ s[x + 10] ^ s[x + 15] ^ s[x + 20];
        for (int x = 0; x < 5; ++x) {
            const std::uint64_t d = column[(x + 4) % 5] ^ std::rotl(column[(x + 1) % 5], 1);
            for (int y = 0; y < 25; y += 5) s[x + y] ^= d;
        }
        // rho and pi together: lane (x, y) rotates by the t-th triangular number and moves to (y, 2x + 3y).
        std::uint64_t carried = s[1];
        for (int t = 0, x = 1, y = 0; t < 24; ++t) {
            const int to_x = y, to_y = (2 * x + 3 * y) % 5;
            const std::uint64_t displaced = s[to_x + 5 * to_y];
            s[to_x + 5 * to_y] = std::rotl(carried, (t + 1) * (t + 2) / 2 % 64);
            carried = displaced;
            x = to_x;
            y = to_y;
        }
        for (int y = 0; y < 25; y += 5) {
            std::uint64_t row[5];
            std::memcpy(row, s + y, sizeof row);
            for (int x = 0; x < 5; ++x) s[x + y] = row[x] ^ (~row[(x + 1) % 5] & row[(x + 2) % 5]);
        }
        s[0] ^= constant;
    }
}

inline std::array<std::uint8_t, 32> keccak256(std::span<const std::uint8_t> message) {
    constexpr std::size_t kRate = 136;
    std::uint64_t state[25] = {};
    auto* bytes = reinterpret_cast<std::uint8_t*>(state);  // the lanes are little-endian, as this machine is
    static_assert(std::endian::native == std::endian::little);
    std::size_t at = 0;
    for (const std::uint8_t byte : message) {
        bytes[at++] ^= byte;
        if (at == kRate) {
            keccak_permute(state);
            at = 0;
        }
    }
    bytes[at] ^= 0x01;
    bytes[kRate - 1] ^= 0x80;
    keccak_permute(state);
    std::array<std::uint8_t, 32> digest;
    std::memcpy(digest.data(), state, 32);
    return digest;
}

}  // namespace lockstep
