// SHA-256 of the protocol's leaves and nodes (FIPS 180-4; docs/protocol.md, section 1).
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

constexpr std::size_t kLeafBytes = 1024;
constexpr std::size_t kHashBytes = 32;

// One implementation of the two hashes; which one runs is decided once, by what the CPU has.
struct HashPath {
    const char* name;
    // out[i] = SHA256(0x00 ‖ leaf i) for the 1 KiB leaves of `data`; the last leaf may be shorter.
    void (*leaves)(const std::uint8_t* data, std::size_t bytes, std::uint8_t* out);
    // out[i] = SHA256(0x01 ‖ pair i) for `count` pairs of 64 bytes.
    void (*nodes)(const std::uint8_t* pairs, std::size_t count, std::uint8_t* out);
};

extern const HashPath kPortablePath;
#if defined(LOCKSTEP_X86_64)
extern const HashPath kShaNiPath;
extern const HashPath kAvx512Path;
#elif defined(LOCKSTEP_AARCH64)
extern const HashPath kSha2Path;
#endif

// The best path for fewer messages than the widest one takes at a time.
const HashPath& narrow_path();

}  // namespace lockstep
