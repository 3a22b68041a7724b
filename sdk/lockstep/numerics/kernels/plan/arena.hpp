// Allocates ranges of words in one buffer: one at a time, or all together if their lifetimes are known.
#pragma once

#include <map>
#include <vector>

#include "plans.hpp"

namespace lockstep {

// Words in lines of 64 bytes: where a tensor may begin.
inline Index whole_lines(Index words) { return (words + 15) / 16 * 16; }

class Arena {
public:
    // The offset of a range, aligned to 64 bytes.
    Index take(Index words);
    void give(Index at, Index words);
    // Words that the buffer must have.
    Index size() const { return size_; }

private:
    std::map<Index, Index> free_;  // by offset
    Index size_ = 0;
};

// A tensor in memory, from one time to another one, at which it is gone.
struct Stay {
    std::size_t begin, end;
    Index words, offset = 0;
};

// Lifetimes are known, so places need not be taken in their order: the largest stay first, each in the lowest gap that is free for
// as long as it lasts. Returns the words that all of them take.
Index place_stays(std::vector<Stay>& stays);

}  // namespace lockstep
