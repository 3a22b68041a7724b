// Ranges of words in one buffer: first fit, merged when given back.
#pragma once

#include <map>

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

}  // namespace lockstep
