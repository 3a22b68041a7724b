// The ops that move words or make integers, and folds of what is nowhere in memory: element by element.
#pragma once

#include <array>
#include <cstdint>

#include "program.hpp"

namespace lockstep {

// A step's inputs beside its state: the job's seed, and the step's round, slot and number.
struct Context {
    std::array<std::uint8_t, 32> seed;
    Word words[3];  // round, slot, t
};

// A dataset of `rows` x `columns` words; rows is 0 where there is none.
struct Dataset {
    const Word* data = nullptr;
    Index rows = 0, columns = 0;
};

// Outputs [begin, end) of a fold, a gather or a random; bases[i] is operand i's source at its offset (null for an iota).
void fold_plainly(const Descriptor& op, const Word* const* bases, Word* out, Index begin, Index end);
void qdot_plainly(const Descriptor& op, const Word* const* bases, Word* out, Index begin, Index end);
void gather(const Descriptor& op, const Word* const* bases, Word* out, Index begin, Index end);
Draws draws_of(Word stream, const Context& context);
void random_words(const Descriptor& op, const Context& context, Word* out, Index begin, Index end);
// Rows [begin, end) of a draw.
void draw(const Descriptor& op, const Context& context, const Dataset& dataset, Word* out, Index begin, Index end);

}  // namespace lockstep
