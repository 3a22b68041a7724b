// Memory of the executor: aligned words, and what each thread keeps between ops.
#pragma once

#include <cstddef>
#include <memory>

#include "plans.hpp"

namespace lockstep {

// Builds that look for what reads or writes where nothing is (`make test-sanitized`): every output has memory of its own and of its
// length, which begins as NaNs that no op makes.
#if defined(LOCKSTEP_CHECKED)
constexpr bool kChecked = true;
#else
constexpr bool kChecked = false;
#endif

// 64-byte aligned words, uninitialised; large ones in huge pages where the system has them.
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(Index words);
    Word* data() const { return data_.get(); }
    Index words() const { return words_; }
    // What a buffer of so many words takes, rounded to its pages.
    static Index bytes_of(Index words);

private:
    struct Free {
        void operator()(Word* p) const;
    };
    std::unique_ptr<Word[], Free> data_;
    Index words_ = 0;
};

// The buffer's memory, new where it is shorter than `words`.
inline Word* at_least(Buffer& buffer, Index words) {
    if (buffer.words() < words) buffer = Buffer(words);
    return buffer.data();
}

// Buffers of one thread: packed operands, and what a kernel requests.
struct Workspace {
    Buffer scratch, packed;
};

}  // namespace lockstep
