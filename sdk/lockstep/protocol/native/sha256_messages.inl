// The protocol's two message shapes, over a `Compress` with one() and two(); included inside each path's own namespace.

constexpr std::uint32_t kInitial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

inline void store_digest(const std::uint32_t* state, std::uint8_t* out) {
    for (int i = 0; i < 8; ++i) {
        out[4 * i] = static_cast<std::uint8_t>(state[i] >> 24);
        out[4 * i + 1] = static_cast<std::uint8_t>(state[i] >> 16);
        out[4 * i + 2] = static_cast<std::uint8_t>(state[i] >> 8);
        out[4 * i + 3] = static_cast<std::uint8_t>(state[i]);
    }
}

// prefix ‖ data, cut into blocks: the first one and the padded tail are copies, what lies between is read in place.
struct Message {
    std::uint8_t first[64];
    std::uint8_t tail[128];
    const std::uint8_t* body;
    std::size_t blocks, tail_from;

    Message(std::uint8_t prefix, const std::uint8_t* data, std::size_t bytes) {
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

template <class Compress>
void hash_one(std::uint8_t prefix, const std::uint8_t* data, std::size_t bytes, std::uint8_t* out) {
    const Message message(prefix, data, bytes);
    std::uint32_t state[8];
    std::memcpy(state, kInitial, sizeof state);
    for (std::size_t i = 0; i < message.blocks; ++i) Compress::one(state, message.block(i));
    store_digest(state, out);
}

// Two messages of one length side by side: the two dependency chains fill each other's gaps.
template <class Compress>
void hash_two(std::uint8_t prefix, const std::uint8_t* data, std::size_t bytes, std::uint8_t* out) {
    const Message a(prefix, data, bytes), b(prefix, data + bytes, bytes);
    std::uint32_t state_a[8], state_b[8];
    std::memcpy(state_a, kInitial, sizeof state_a);
    std::memcpy(state_b, kInitial, sizeof state_b);
    for (std::size_t i = 0; i < a.blocks; ++i) Compress::two(state_a, a.block(i), state_b, b.block(i));
    store_digest(state_a, out);
    store_digest(state_b, out + kHashBytes);
}

template <class Compress>
void hash_leaves(const std::uint8_t* data, std::size_t bytes, std::uint8_t* out) {
    for (; bytes >= 2 * kLeafBytes; data += 2 * kLeafBytes, bytes -= 2 * kLeafBytes, out += 2 * kHashBytes)
        hash_two<Compress>(0x00, data, kLeafBytes, out);
    for (; bytes > 0; out += kHashBytes) {
        const std::size_t leaf = bytes < kLeafBytes ? bytes : kLeafBytes;
        hash_one<Compress>(0x00, data, leaf, out);
        data += leaf;
        bytes -= leaf;
    }
}

template <class Compress>
void hash_nodes(const std::uint8_t* pairs, std::size_t count, std::uint8_t* out) {
    for (; count >= 2; count -= 2, pairs += 4 * kHashBytes, out += 2 * kHashBytes)
        hash_two<Compress>(0x01, pairs, 2 * kHashBytes, out);
    if (count) hash_one<Compress>(0x01, pairs, 2 * kHashBytes, out);
}
