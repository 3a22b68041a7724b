// Where the words of an arena lie.
#include "plan/arena.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace lockstep {
namespace {

constexpr std::size_t kFitted = 4096;  // number of the largest ranges, which are placed together

}  // namespace

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

Index place_stays(std::vector<Stay>& stays) {
    std::vector<std::size_t> order(stays.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return stays[a].words > stays[b].words; });
    const std::size_t fitted = std::min(order.size(), kFitted);
    std::vector<const Stay*> placed, beside;
    Index size = 0;
    for (std::size_t k = 0; k < fitted; ++k) {
        Stay& stay = stays[order[k]];
        beside.clear();
        for (const Stay* other : placed)
            if (other->begin < stay.end && stay.begin < other->end) beside.push_back(other);
        std::sort(beside.begin(), beside.end(), [](const Stay* a, const Stay* b) { return a->offset < b->offset; });
        for (const Stay* other : beside)
            if (stay.offset + stay.words > other->offset) stay.offset = std::max(stay.offset, other->offset + other->words);
            else break;
        size = std::max(size, stay.offset + stay.words);
        placed.push_back(&stay);
    }
    // Behind them what is small beside them, as time goes.
    std::sort(order.begin() + static_cast<std::ptrdiff_t>(fitted), order.end(), [&](std::size_t a, std::size_t b) { return stays[a].begin < stays[b].begin; });
    std::multimap<std::size_t, const Stay*> ends;
    Arena arena;
    for (std::size_t k = fitted; k < order.size(); ++k) {
        Stay& stay = stays[order[k]];
        for (; !ends.empty() && ends.begin()->first <= stay.begin; ends.erase(ends.begin()))
            arena.give(ends.begin()->second->offset - size, ends.begin()->second->words);
        stay.offset = size + arena.take(stay.words);
        ends.emplace(stay.end, &stay);
    }
    return size + arena.size();
}

}  // namespace lockstep
