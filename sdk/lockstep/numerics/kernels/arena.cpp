// Where the words of an arena lie.
#include "arena.hpp"

#include <iterator>

namespace lockstep {

Index Arena::take(Index words) {
    words = whole_lines(words);
    for (auto it = free_.begin(); it != free_.end(); ++it) {
        if (it->second < words) continue;
        const Index at = it->first, left = it->second - words;
        free_.erase(it);
        if (left) free_[at + words] = left;
        return at;
    }
    Index at = size_;
    if (!free_.empty() && std::prev(free_.end())->first + std::prev(free_.end())->second == size_) {
        at = std::prev(free_.end())->first;
        free_.erase(std::prev(free_.end()));
    }
    size_ = at + words;
    return at;
}

void Arena::give(Index at, Index words) {
    words = whole_lines(words);
    auto next = free_.lower_bound(at);
    if (next != free_.end() && at + words == next->first) {
        words += next->second;
        next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == at) {
        std::prev(next)->second += words;
        return;
    }
    free_[at] = words;
}

}  // namespace lockstep
