// Gather, random and draw, and the fold that any operand allows.
#include "plain.hpp"

#include <cstring>

#include "apply_op.hpp"
#include "codes.hpp"
#include "keccak.hpp"

namespace lockstep {
namespace {

using f32::value;
using f32::word;

// Output coordinates in row-major order.
class Coordinates {
public:
    Coordinates(const std::vector<Index>& extents, Index first) : extents_(extents) {
        for (std::size_t axis = extents.size(); axis-- > 0; first /= extents[axis]) at_[axis] = first % extents[axis];
    }
    void advance(Index steps) {
        for (std::size_t axis = extents_.size(); axis-- > 0;) {
            at_[axis] += steps;
            if (at_[axis] < extents_[axis]) return;
            steps = at_[axis] / extents_[axis];
            at_[axis] %= extents_[axis];
        }
    }
    Index along(const View& view) const {
        Index offset = 0;
        for (std::size_t axis = 0; axis < extents_.size(); ++axis) offset += at_[axis] * view.strides[axis];
        return offset;
    }

private:
    const std::vector<Index>& extents_;
    std::array<Index, kMaxAxes> at_{};
};

Word read(const View& view, const Word* base, Index offset) {
    return view.tag == Tag::kIota ? static_cast<Word>(view.offset + offset) : base[offset];
}

Word join(FoldMode mode, Word x, Word y) {
    switch (mode) {
    case FoldMode::kDot:
    case FoldMode::kSum: return word(f32::add(value(x), value(y)));
    case FoldMode::kMax: return word(f32::max(value(x), value(y)));
    case FoldMode::kMin: return word(f32::min(value(x), value(y)));
    case FoldMode::kWrappingSum: return x + y;
    }
    return 0;
}

Word identity(FoldMode mode) {
    return mode == FoldMode::kMax ? f32::NEGATIVE_INFINITE : mode == FoldMode::kMin ? f32::INFINITE : 0;
}

// `words` joined in chunks of 256 until one is left, once at least.
Word joined(FoldMode mode, std::vector<Word> words) {
    do {
        std::vector<Word> above;
        for (std::size_t i = 0; i < words.size(); ++i) {
            if (i % kChunk == 0) above.push_back(identity(mode));
            above.back() = join(mode, above.back(), words[i]);
        }
        words = std::move(above);
    } while (words.size() > 1);
    return words[0];
}

}  // namespace

void fold_plainly(const Descriptor& op, const Word* const* bases, Word* out, Index begin, Index end) {
    const auto mode = static_cast<FoldMode>(op.mode);
    const auto rank = op.extents.size();
    Coordinates o(op.extents, begin);
    for (Index i = begin; i < end; ++i, o.advance(1)) {
        const Index first = o.along(op.views[0]), second = mode == FoldMode::kDot ? o.along(op.views[1]) : 0;
        std::vector<Word> chunks;
        for (Index k = 0; k < op.k; ++k) {
            if (k % kChunk == 0) chunks.push_back(identity(mode));
            const Word a = read(op.views[0], bases[0], first + k * op.views[0].strides[rank]);
            if (mode != FoldMode::kDot) {
                chunks.back() = join(mode, chunks.back(), a);
                continue;
            }
            const Word b = read(op.views[1], bases[1], second + k * op.views[1].strides[rank]);
            chunks.back() = word(f32::fma(value(a), value(b), value(chunks.back())));
        }
        out[i] = joined(mode, std::move(chunks));
    }
}

void qdot_plainly(const Descriptor& op, const Word* const* bases, Word* out, Index begin, Index end) {
    const auto rank = op.extents.size();
    Coordinates o(op.extents, begin);
    for (Index i = begin; i < end; ++i, o.advance(1)) {
        const Word* at[4];
        for (std::size_t v = 0; v < 4; ++v) at[v] = bases[v] + o.along(op.views[v]);
        std::vector<Word> chunks;
        for (Index c = 0; c < op.k; ++c) {
            f32::Signed sum = 0;
            for (Index j = 0; j < op.p0; ++j) sum += codes::product(at[0][c * op.p0 + j], at[1][c * op.p0 + j]);
            const float scale = f32::mul(value(at[2][c * op.views[2].strides[rank]]), value(at[3][c * op.views[3].strides[rank]]));
            chunks.push_back(word(f32::mul(static_cast<float>(sum), scale)));
        }
        out[i] = joined(FoldMode::kSum, std::move(chunks));
    }
}

void gather(const Descriptor& op, const Word* const* bases, Word* out, Index begin, Index end) {
    const View &index_view = op.views[0], &table = op.views[1];
    const Index rows = op.p0, row_stride = op.p1;
    // A run of outputs along the last axis shares its index and lies in one row of the table: an embedding.
    const auto rank = op.extents.size();
    const bool by_rows = rank > 0 && index_view.strides[rank - 1] == 0 && table.strides[rank - 1] == 1 && table.tag != Tag::kIota;
    const Index run = by_rows ? op.extents[rank - 1] : 1;
    Coordinates o(op.extents, begin);
    for (Index i = begin; i < end;) {
        const Index wanted = run - i % run, n = wanted < end - i ? wanted : end - i;
        const Index row = read(index_view, bases[0], o.along(index_view));
        const Index offset = o.along(table) + row * row_stride;
        if (row >= rows) std::memset(out + i, 0, static_cast<std::size_t>(n) * sizeof(Word));
        else if (by_rows) std::memcpy(out + i, bases[1] + offset, static_cast<std::size_t>(n) * sizeof(Word));
        else out[i] = read(table, bases[1], offset);
        i += n;
        o.advance(n);
    }
}

Draws draws_of(Word stream, const Context& context) {
    Draws draws{{}, {context.words[0], context.words[1], context.words[2]}};
    std::memcpy(draws.key, context.seed.data(), sizeof draws.key);
    draws.key[0] ^= stream;
    return draws;
}

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
void random_words(const Descriptor& op, const Context& context, Word* out, Index begin, Index end) {
    const Draws draws = draws_of(op.p0, context);
    for (Index i = begin; i < end;) {
        Word c[4] = {static_cast<Word>(i >> 2), context.words[0], context.words[1], context.words[2]};
        Word k0 = draws.key[0], k1 = draws.key[1];
        for (int round = 0; round < 10; ++round, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
            const std::uint64_t left = std::uint64_t{0xd2511f53} * c[0], right = std::uint64_t{0xcd9e8d57} * c[2];
            const Word next[4] = {static_cast<Word>(right >> 32) ^ c[1] ^ k0, static_cast<Word>(right),
                                  static_cast<Word>(left >> 32) ^ c[3] ^ k1, static_cast<Word>(left)};
            std::memcpy(c, next, sizeof c);
        }
        do out[i] = c[i & 3];
        while (++i < end && (i & 3));
    }
}

void draw(const Descriptor& op, const Context& context, const Dataset& dataset, Word* out, Index begin, Index end) {
    for (Index j = begin; j < end; ++j) {
        std::uint8_t message[48];
        std::memcpy(message, context.seed.data(), 32);
        const Word fields[4] = {context.words[0], context.words[1], context.words[2], op.p0 + static_cast<Word>(j)};
        for (int i = 0; i < 16; ++i) message[32 + i] = static_cast<std::uint8_t>(fields[i / 4] >> (24 - 8 * (i % 4)));
        std::uint64_t row = 0;  // the digest, a big-endian number, mod rows < 2^32
        for (const std::uint8_t byte : keccak256(message)) row = (row << 8 | byte) % static_cast<std::uint64_t>(dataset.rows);
        std::memcpy(out + j * dataset.columns, dataset.data + static_cast<Index>(row) * dataset.columns,
                    static_cast<std::size_t>(dataset.columns) * sizeof(Word));
    }
}

}  // namespace lockstep
