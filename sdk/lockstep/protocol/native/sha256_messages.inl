// The protocol's two message shapes, over a `Compress` with digests<N>(messages, out); included inside each path's namespace.

constexpr std::uint32_t kInitial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

// prefix ‖ data, cut into blocks: the first one and the padded tail are copies, the blocks between are read in place.
struct Message {
    std::uint8_t first[64];
    std::uint8_t tail[128];
    const std::uint8_t* body;
    std::size_t blocks, tail_from;

    void set(std::uint8_t prefix, const std::uint8_t* data, std::size_t bytes) {
        const std::size_t length = bytes + 1;
        blocks = (length + 9 + 63) / 64;
        body = data - 1;  // block i >= 1 starts at data[64 i - 1]
        tail_from = length / 64;
        const std::size_t tail_bytes = (blocks - tail_from) * 64, rest = length - tail_from * 64;
        std::memset(tail, 0, sizeof tail);
        if (tail_from == 0) {
            tail[0] = prefix;
            std::memcpy(tail + 1, data, bytes);
        } else {
            first[0] = prefix;
            std::memcpy(first + 1, data, 63);
            std::memcpy(tail, data + (bytes - rest), rest);
        }
        tail[rest] = 0x80;
        const std::uint64_t bits = static_cast<std::uint64_t>(length) * 8;
        for (int i = 0; i < 8; ++i) tail[tail_bytes - 1 - i] = static_cast<std::uint8_t>(bits >> (8 * i));
    }

    const std::uint8_t* block(std::size_t i) const {
        if (i >= tail_from) return tail + (i - tail_from) * 64;
        return i == 0 ? first : body + 64 * i;
    }
};

// N messages of one length, one after the other, side by side: their dependency chains fill each other's gaps.
template <class Compress, int N>
void hash_together(std::uint8_t prefix, const std::uint8_t* data, std::size_t bytes, std::uint8_t* out) {
    Message messages[N];
    for (int i = 0; i < N; ++i) messages[i].set(prefix, data + static_cast<std::size_t>(i) * bytes, bytes);
    Compress::template digests<N>(messages, out);
}

constexpr std::size_t kTogether = 2;

template <class Compress>
void hash_leaves(const std::uint8_t* data, std::size_t bytes, std::uint8_t* out) {
    constexpr std::size_t kBoth = kTogether * kLeafBytes;
    for (; bytes >= kBoth; data += kBoth, bytes -= kBoth, out += kTogether * kHashBytes)
        hash_together<Compress, kTogether>(0x00, data, kLeafBytes, out);
    for (; bytes > 0; out += kHashBytes) {
        const std::size_t leaf = bytes < kLeafBytes ? bytes : kLeafBytes;
        hash_together<Compress, 1>(0x00, data, leaf, out);
        data += leaf;
        bytes -= leaf;
    }
}

template <class Compress>
void hash_nodes(const std::uint8_t* pairs, std::size_t count, std::uint8_t* out) {
    constexpr std::size_t kPair = 2 * kHashBytes;
    for (; count >= kTogether; count -= kTogether, pairs += kTogether * kPair, out += kTogether * kHashBytes)
        hash_together<Compress, kTogether>(0x01, pairs, kPair, out);
    if (count) hash_together<Compress, 1>(0x01, pairs, kPair, out);
}
