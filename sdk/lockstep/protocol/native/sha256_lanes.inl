// Digests by instructions for four rounds, of messages side by side; included after a path's Lane, inside its own namespace.

template <int I, int N>
[[gnu::always_inline]] static inline void all_rounds(Lane (&lanes)[N]) {
    for (Lane& lane : lanes) lane.template rounds<I>();
    if constexpr (I < 15) all_rounds<I + 1>(lanes);
}

struct Lanes {
    template <int N>
    static void digests(const Message* messages, std::uint8_t* out) {
        Lane lanes[N];
        for (Lane& lane : lanes) lane.start();
        for (std::size_t block = 0; block < messages[0].blocks; ++block) {
            for (int n = 0; n < N; ++n) lanes[n].take(messages[n].block(block));
            all_rounds<0>(lanes);
            for (Lane& lane : lanes) lane.add();
        }
        for (int n = 0; n < N; ++n) lanes[n].finish(out + static_cast<std::size_t>(n) * kHashBytes);
    }
};
