// Where the executor's words lie.
#include "buffers.hpp"

#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace lockstep {
namespace {

constexpr std::size_t kLine = 64, kHugePage = std::size_t{2} << 20;

std::size_t rounded(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t bytes_for(Index words) { return static_cast<std::size_t>(words + (kChecked ? 0 : 16)) * sizeof(Word); }

// A pass over many large tensors misses few translations in huge pages, and a new buffer few faults.
std::size_t page_for(Index words) { return bytes_for(words) >= 2 * kHugePage ? kHugePage : kLine; }

Word* allocate(Index words) {
    if constexpr (kChecked) {
        void* found = std::malloc(std::max<std::size_t>(1, bytes_for(words)));  // aligned, its end would be rounded
        if (!found) throw std::bad_alloc();
        std::fill_n(static_cast<Word*>(found), words, 0xffbadbad);
        return static_cast<Word*>(found);
    }
    const std::size_t bytes = bytes_for(words), page = page_for(words);
    void* found = std::aligned_alloc(page, rounded(bytes, page));
    if (!found) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    if (page == kHugePage) madvise(found, rounded(bytes, page), MADV_HUGEPAGE);
#endif
    return static_cast<Word*>(found);
}

}  // namespace

Index Buffer::bytes_of(Index words) { return static_cast<Index>(rounded(bytes_for(words), page_for(words))); }

Buffer::Buffer(Index words) : data_(allocate(words)), words_(words) {}

void Buffer::Free::operator()(Word* p) const { std::free(p); }

}  // namespace lockstep
