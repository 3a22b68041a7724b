// What an op of a Program becomes before it runs: plain values that the kernels of every instruction set read.
//
// Strides count words. A plan's axes are the op's output axes with those of extent 1 dropped and neighbours merged wherever
// every operand allows it; the last one is the innermost.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

using Word = std::uint32_t;
using Index = std::int64_t;

constexpr int kMaxAxes = 8;
constexpr int kMaxOperands = 8;
constexpr int kMaxInstrs = 32;
constexpr Index kChunk = 256;         // terms of a fold that are chained before a partial result is taken
constexpr Index kMaxGroupWords = 64;  // of codes, four a word
constexpr Index kBlock = 1024;        // elements that a map evaluates at a time: a register is 4 KiB and stays in L1

struct MapOperand {
    Index strides[kMaxAxes];
    bool iota;     // the value is offset + sum(stride x coordinate), not a word in memory
    bool uniform;  // one value for the whole op
    Word offset;   // of an iota
};

struct MapInstr {
    std::uint8_t op, a, b, c;  // registers: operands first, then one per instruction
    Word imm;
    bool uniform;  // reads uniform registers alone: computed once per run
    std::uint8_t buffer;  // where the result goes
};

// A map, or one part of a concat (no instructions, the output strides of the whole).
struct MapPlan {
    int axes, operands, instrs, buffers;
    Index extents[kMaxAxes], out_strides[kMaxAxes];
    Index box[kMaxAxes];    // extents of one block, <= kBlock elements in all
    Index blocks;
    Index elements;
    MapOperand operand[kMaxOperands];
    MapInstr instr[kMaxInstrs];
    std::uint8_t operand_buffer[kMaxOperands];
};

// Where row i and term k of an operand lie that no two strides tell: in[row[i] + k_at[k]], as in the overlapping windows of a
// convolution. The runs count how many neighbours from there on lie side by side; a run of terms is negative where they lie in
// descending order, as the taps of a turned weight.
struct Places {
    const Index *row, *row_run, *k_at, *k_run;
};

// An operand of a product: where each row's term k lies, by strides or by places and never by both. Whoever reads it asks `from`:
// nothing can move by a stride where places tell all. (Always inlined: kernels of every instruction set call it.)
class Factor {
public:
    Index batch[kMaxAxes] = {};

    static Factor strided(Index row, Index k) {
        Factor factor;
        factor.row_ = row;
        factor.k_ = k;
        return factor;
    }
    void place(const Places& places) {
        row_ = k_ = 0;
        places_ = places;
    }
    [[gnu::always_inline]] bool placed() const { return places_.row != nullptr; }

    // Returns the operand from a row and a term on: at[row * i + k * j], or at[places.row[i] + places.k_at[j]].
    struct Part {
        const Word* at;
        Index row, k;
        Places places;
        bool placed;
    };
    [[gnu::always_inline]] Part from(const Word* base, Index row, Index k) const {
        if (placed()) return {base, 0, 0, {places_.row + row, places_.row_run + row, places_.k_at + k, places_.k_run + k}, true};
        return {base + row * row_ + k * k_, row_, k_, {}, false};
    }

private:
    Index row_ = 0, k_ = 0;
    Places places_ = {};
};

// The rows of a table come in runs of `length`, each `step` words after the one before; 0: there is no table.
struct Runs {
    int length, step;
};

// dot as a matrix product: out[batch, m, n] = fold_k a[batch, m, k] b[batch, n, k]; n is the output's innermost axis.
struct GemmPlan {
    int batch_axes;
    Index batch[kMaxAxes], out_batch[kMaxAxes];
    Index batches;
    Index m, n, k;
    Index out_m;
    bool begun;   // `out` holds the sum of earlier chunks
    Factor a, b;  // of rows m, and of rows n
    Runs b_runs;
};

enum class FoldMode : int { kDot, kSum, kMax, kMin, kWrappingSum };
constexpr int kQdotMode = 5;  // a fold of codes, whose partial results are added

// A qdot as a matrix product. The codes are `shape`'s a and b, by strides and contiguous along k, of k words; `scale_a` and `scale_b` are strides.
struct QdotPlan {
    GemmPlan shape;
    Index words;   // of a group
    Index groups;  // along k
    Index period, last_words;  // every `period` groups one has this many words, and padding; 0: none has
    Index scale_a_m, scale_a_k, scale_b_n, scale_b_k;
    Index scale_a_batch[kMaxAxes], scale_b_batch[kMaxAxes];
};

constexpr Index kGroupsAtOnce = kChunk;  // the groups of one chain of a qdot: those that are packed together
constexpr Index groups_packed(const QdotPlan& plan) { return plan.groups < kGroupsAtOnce ? plan.groups : kGroupsAtOnce; }

// Where the four operands of a qdot lie.
struct QdotOperands {
    const Word *a, *b, *scale_a, *scale_b;
};

// Quants of one tensor: rows of k values, each in groups of 4 x words.
struct QuantPlan {
    int axes;
    Index extents[kMaxAxes], strides[kMaxAxes];  // of the rows
    Index k, k_stride, words, groups;            // groups of a row
    bool columns;  // the rows of the innermost axis lie side by side, and are taken in blocks
    Index blocks;  // of the innermost axis: rows, or kRowsAtOnce of them
    Index items;   // blocks x groups of all rows
    bool power;
    int limbs;       // 2: what the codes and scales leave of the values has some, too
    Word stream[2];  // of each limb's codes; 0: to nearest
};
constexpr Index kRowsAtOnce = 16;

// Where one array of a quant goes: codes, scales, then those of what is left; `pitch` words from row to row.
struct QuantTarget {
    Word* out;
    Index pitch;
    int array;
};

// What random words depend on beside their number: the key of their stream, and round, slot, t.
struct Draws {
    Word key[2], words[3];
};

// A fold with one chain per output element, outputs numbered row-major over `extents`.
struct FoldPlan {
    FoldMode mode;
    int axes;
    Index extents[kMaxAxes];
    Index strides[2][kMaxAxes];
    Index k_stride[2];
    Index outputs, k;
    bool partial;  // the bare chunk result of k <= 256 terms, without the level that adds it to +0
};

// A sum whose terms lie in pieces, as those of a channel of several images: term k of row o is in[o * row + piece_at[k / kPiece] +
// k % kPiece], or the product of two operands' words.
constexpr Index kPiece = 16;
struct PiecewiseSum {
    Index outputs, k;  // k is a multiple of kPiece
    int operands;
    Index row[2];
    const Index* piece_at[2];
};

}  // namespace lockstep
