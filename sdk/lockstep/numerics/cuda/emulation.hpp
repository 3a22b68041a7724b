// The part of CUDA that kernels.cuh uses, for a C++ compiler: the same source runs on a machine without a device.
//
// Blocks run one after the other. The threads of a block run in turn, each up to its next barrier, on a stack of its own: what a
// thread reads before the barrier that should order it is not there yet, so a missing barrier changes the result. Warps meet at
// barriers of the block alone: until then each of them runs ahead of those behind it, its lanes in step where they exchange
// registers.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#define __shared__ static
#define __restrict__ __restrict
#define LOCKSTEP_MEMBER inline
#define LOCKSTEP_KERNEL(...) static void
#define LOCKSTEP_EXPORT(kernel)                                                                                              \
    extern "C" void launch_##kernel(unsigned blocks, unsigned threads, unsigned shared, bool descending, void** arguments) { \
        lockstep::emulation::launch(blocks, threads, shared, descending, lockstep::emulation::Called<kernel>::call, arguments); \
    }                                                                                                                        \
    extern "C" unsigned arguments_##kernel() { return lockstep::emulation::Called<kernel>::count; }

namespace lockstep::emulation {

using f32::Word;

struct Position {
    unsigned x;
};
inline Position thread_index, block_index;

constexpr unsigned kLanes = 32, kMostThreads = 1024;

// The shared memory that a launch requests. Accesses beyond it are errors.
struct Pool {
    static constexpr Word kMostBytes = 227 << 10, kPoison = 0xffffffff;
    alignas(1024) unsigned char bytes[kMostBytes];
    alignas(1024) unsigned char shown[kMostBytes];  // what asynchronous products see of it
    alignas(16) unsigned char nowhere[16];
    Word size = 0;

    void* place(Word at) {
        if (at % 16 == 0 && at <= size && size - at >= 16) return bytes + at;
        return std::memset(nowhere, 0xff, sizeof nowhere);
    }
    // Shows the bytes at `to`, a place of this memory.
    void show(const void* to, Word count) {
        const std::ptrdiff_t at = static_cast<const unsigned char*>(to) - bytes;
        if (at >= 0 && at < static_cast<std::ptrdiff_t>(kMostBytes)) std::memcpy(shown + at, to, count);
    }
    Word shown_word(Word at) const {
        Word found = kPoison;
        if (at % 4 == 0 && at <= size && size - at >= 4) std::memcpy(&found, shown + at, sizeof found);
        return found;
    }
};
inline Pool pool;

// What is filled and emptied again and again, and lives as long as the process. <vector> and <memory> would take longer to compile
// than most Programs' kernels.
template <class T>
class List {
public:
    void push_back(const T& item) {
        if (size_ == room_) items_ = static_cast<T*>(std::realloc(items_, (room_ = 2 * room_ + 8) * sizeof(T)));
        items_[size_++] = item;
    }
    void clear() { size_ = 0; }
    bool empty() const { return size_ == 0; }
    T& back() { return items_[size_ - 1]; }
    T* begin() const { return items_; }
    T* end() const { return items_ + size_; }

private:
    T* items_ = nullptr;
    std::size_t size_ = 0, room_ = 0;
};

// A copy to shared memory that a thread has started: made when the thread waits for it, or where threads run in descending order
// at once. A missing wait shows in the one, a place that is still read in the other.
struct Copy {
    void* to;
    const Word* from;  // null: zeros
    Word bytes;

    void make() const {
        if (from) std::memcpy(to, from, bytes);
        else std::memset(to, 0, bytes);
    }
};
inline List<Copy> copies[kMostThreads];
// What a thread has written and not yet shown to asynchronous products.
inline List<Copy> hidden[kMostThreads];

// The asynchronous products that a thread has started and not waited for. Until it has, its sums are poison. The operands are read
// at once, or at the wait where threads run in descending order and copies land at once: operands that are not there yet show in
// the one, a place that is given away too early in the other.
struct Products {
    static constexpr unsigned kSums = 64;
    struct Product {
        std::uint64_t a, b;
        bool add, whole, done;
    };
    List<Product> open, committed;
    Word held[kSums];
    Word* sums = nullptr;  // null: nothing is under way
    unsigned count = 0;
    bool ordered = false;  // by a fence, since the sums were last the thread's own
    // All four warps of a group start the same products: how many there were at each of the last two barriers, since a warp that
    // runs ahead may have met one barrier more than those behind it.
    unsigned started = 0, barriers = 0, at_barrier[2] = {};

    void begin() {
        open.clear();
        committed.clear();
        sums = nullptr;
        ordered = false;
        count = started = barriers = at_barrier[0] = at_barrier[1] = 0;
    }

    void meet_barrier() { at_barrier[++barriers % 2] = started; }
};
inline Products products[kMostThreads];

// The threads of one block. A fiber runs threads until one of them meets a barrier, which parks it there.
class Block {
public:
    using Call = void (*)(void** arguments);

    static void run(unsigned threads, bool descending, Call call, void** arguments) {
        Block block(threads, descending, call, arguments);
        running_ = &block;
        std::size_t fibers = 0, warp = 0;
        while (block.next_ < threads) {
            block.start(fibers++);
            if (block.next_ % kLanes != 0 && block.next_ != threads) continue;
            block.settle(warp, fibers);
            warp = fibers;
        }
        // Every thread has met its first barrier or ended; each round takes those that wait to their next one, warp by warp.
        for (bool waiting = true; waiting;) {
            waiting = false;
            for (std::size_t i = 0, end; i < fibers; i = end) {
                for (end = i; end < fibers && fibers_[end]->warp == fibers_[i]->warp; ++end)
                    if (fibers_[end]->parked == Barrier::kBlock) {
                        block.resume(end);
                        waiting = true;
                    }
                block.settle(i, end);
            }
        }
    }

    static void barrier() {
        products[thread_index.x].meet_barrier();
        running_->park(Barrier::kBlock);
    }

    // What a lane gives to the others of its warp.
    struct Given {
        unsigned time;
        std::size_t count;
        Word words[8];
    };

    // The words that each lane of this warp gives; of a lane that gives none, because it is elsewhere, poison.
    template <std::size_t N>
    class Exchange {
    public:
        explicit Exchange(const Word (&own)[N]) : time_(++times_[thread_index.x]), lanes_(given_[time_ % 2] + thread_index.x / kLanes * kLanes) {
            // A lane may give its next words before another one has read these, but no more than that.
            Given& given = given_[time_ % 2][thread_index.x];
            given.time = time_;
            given.count = N;
            std::memcpy(given.words, own, sizeof own);
            running_->park(Barrier::kWarp);
        }
        Word operator()(unsigned lane, std::size_t i) const {
            const Given& given = lanes_[lane];
            return given.time == time_ && given.count == N ? given.words[i] : Pool::kPoison;
        }

    private:
        const unsigned time_;
        const Given* const lanes_;
    };

    static bool descending() { return running_->descending_; }

private:
    enum class Barrier { kNone, kWarp, kBlock };
    static constexpr std::size_t kStackBytes = 256 << 10;
    struct Fiber {
        jmp_buf place;  // where it goes on
        Barrier parked = Barrier::kNone;
        unsigned warp = 0;
        std::byte stack[kStackBytes];
    };

    Block(unsigned threads, bool descending, Call call, void** arguments)
        : threads_(threads), descending_(descending), call_(call), arguments_(arguments) {
        for (unsigned thread = 0; thread < threads; ++thread) {
            times_[thread] = given_[0][thread].time = given_[1][thread].time = 0;
            copies[thread].clear();
            hidden[thread].clear();
            products[thread].begin();
        }
    }

    static void run_threads() {
        Block& block = *running_;
        // The lanes of a warp that waits for the rest of them come before those of the next one.
        while (block.starting_ && block.next_ < block.threads_ && !(block.next_ % kLanes == 0 && block.waiting_)) {
            const unsigned turn = block.next_++;
            thread_index.x = block.descending_ ? block.threads_ - 1 - turn : turn;
            block.call_(block.arguments_);
        }
    }
    // Fibers outlive their block: the next one finds them where they return for more threads.
    static void run_fiber() {
        for (;;) {
            run_threads();
            running_->leave();
        }
    }
    void start(std::size_t i) {
        starting_ = true;
        if (i == fibers_made_) make_fiber();
        else resume(i);
        starting_ = false;
    }
    void make_fiber() {
        current_ = fibers_made_++;
        fibers_[current_] = new Fiber;
        ucontext_t context;
        getcontext(&context);
        context.uc_stack.ss_sp = fibers_[current_]->stack;
        context.uc_stack.ss_size = kStackBytes;
        context.uc_link = nullptr;
        makecontext(&context, run_fiber, 0);
        if (_setjmp(scheduler_) == 0) setcontext(&context);
    }
    // Jumps, unlike swapcontext, ask the system for nothing. Threads that exchange registers switch some hundred times a block.
    void resume(std::size_t i) {
        current_ = i;
        fibers_[i]->parked = Barrier::kNone;
        if (_setjmp(scheduler_) == 0) _longjmp(fibers_[i]->place, 1);
    }
    void leave() {
        if (_setjmp(fibers_[current_]->place) == 0) _longjmp(scheduler_, 1);
    }
    void park(Barrier barrier) {
        const unsigned thread = thread_index.x;
        Fiber& own = *fibers_[current_];
        own.parked = barrier;
        own.warp = thread / kLanes;
        waiting_ |= barrier == Barrier::kWarp;
        leave();
        thread_index.x = thread;
    }
    // Takes the fibers of a warp to a barrier of the block.
    void settle(std::size_t begin, std::size_t end) {
        for (bool together = true; together;) {
            waiting_ = together = false;
            for (std::size_t i = begin; i < end; ++i)
                if (fibers_[i]->parked == Barrier::kWarp) {
                    resume(i);
                    together = true;
                }
        }
    }

    static inline Block* running_ = nullptr;
    static inline Fiber* fibers_[kMostThreads];
    static inline std::size_t fibers_made_ = 0;
    static inline unsigned times_[kMostThreads];
    static inline Given given_[2][kMostThreads];
    jmp_buf scheduler_;
    std::size_t current_ = 0;
    unsigned next_ = 0;
    bool starting_ = false;
    bool waiting_ = false;  // a lane of the running warp, for the others
    const unsigned threads_;
    const bool descending_;
    const Call call_;
    void** const arguments_;
};

inline void launch(unsigned blocks, unsigned threads, unsigned shared, bool descending, Block::Call call, void** arguments) {
    const f32::FloatEnvironment environment;
    pool.size = shared < Pool::kMostBytes ? shared : Pool::kMostBytes;
    for (block_index.x = 0; block_index.x < blocks; ++block_index.x) {
        std::memset(pool.bytes, 0xff, pool.size);
        std::memset(pool.shown, 0xff, pool.size);
        Block::run(threads, descending, call, arguments);
    }
}

// Kernel arguments as cuLaunchKernel takes them: the address of each.
template <auto kernel>
struct Called;
template <class... Arguments, void (*kernel)(Arguments...)>
struct Called<kernel> {
    static constexpr unsigned count = sizeof...(Arguments);
    static void call(void** arguments) { spread(arguments, std::make_index_sequence<count>{}); }
    template <std::size_t... I>
    static void spread(void** arguments, std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_reference_t<Arguments>*>(arguments[I])...);
    }
};

// The functions of integers.cuh that a device has in hardware, lane by lane in the layouts of the PTX manual.
namespace unit {

inline unsigned lane() { return thread_index.x % kLanes; }
inline Word kept(Word x) { return x; }
inline cuda::Four* place(Word at) { return static_cast<cuda::Four*>(pool.place(at)); }
inline Word word_at(Word at) { return place(at / 16 * 16)->lane[at / 4 % 4]; }
inline Word& cell(Word at) { return place(at / 16 * 16)->lane[at / 4 % 4]; }

// Three barriers where a device has one: threads that run ahead must not see the votes of those behind them.
inline bool any(bool own) {
    static bool found;
    Block::barrier();
    found = false;
    Block::barrier();
    found |= own;
    Block::barrier();
    return found;
}

// What this thread has written is hidden until it shows it, or shown at once where threads run in descending order: a missing
// fence shows in the one, a place that is still read in the other.
inline void written(const Copy& own) {
#if LOCKSTEP_UNIT == 3
    if (Block::descending()) pool.show(own.to, own.bytes);
    else hidden[thread_index.x].push_back(own);
#else
    (void)own;
#endif
}
inline void store(Word at, const cuda::Four& four) {
    *place(at) = four;
    written({place(at), nullptr, sizeof four});
}
inline void show_to_products() {
    for (const Copy& own : hidden[thread_index.x]) pool.show(own.to, own.bytes);
    hidden[thread_index.x].clear();
}

inline void load_matrices(Word (&to)[4], Word at) {
    const Word own[1] = {at};
    const Block::Exchange rows(own);
    for (unsigned m = 0; m < 4; ++m) to[m] = place(rows(8 * m + lane() / 4, 0))->lane[lane() % 4];
}

// Element (row, k) of a is byte k % 4 of register row / 8 + k / 16 * 2 of lane 4 (row % 8) + k % 16 / 4; element (k, column) of b
// is that of register k / 16 of lane 4 column + k % 16 / 4; register v of c is row g + v / 2 * 8, column 2 t + v % 2 of lane 4 g + t.
inline void multiply_16_8_32(Word (&c)[4], const Word (&a)[4], const Word (&b)[2], const Word (&from)[4]) {
    const Word own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const Block::Exchange held(own);
    for (unsigned v = 0; v < 4; ++v) {
        const unsigned row = lane() / 4 + v / 2 * 8, column = lane() % 4 * 2 + v % 2;
        Word sum = from[v];
        for (unsigned k = 0; k < 32; k += 4)
            sum += static_cast<Word>(codes::product(held(row % 8 * 4 + k % 16 / 4, row / 8 + k / 16 * 2),
                                                    held(column * 4 + k % 16 / 4, 4 + k / 16)));
        c[v] = sum;
    }
}

// Element (row, k) of a is byte k % 4 of lane 4 row + k / 4, element (k, column) of b that of lane 4 column + k / 4; register v of c
// is row g, column 2 t + v of lane 4 g + t.
inline void multiply_8_8_16(Word& c0, Word& c1, Word a, Word b, Word from0, Word from1) {
    const Word own[2] = {a, b};
    const Block::Exchange held(own);
    Word* const c[2] = {&c0, &c1};
    const Word from[2] = {from0, from1};
    for (unsigned v = 0; v < 2; ++v) {
        const unsigned row = lane() / 4, column = lane() % 4 * 2 + v;
        Word sum = from[v];
        for (unsigned k = 0; k < 16; k += 4) sum += static_cast<Word>(codes::product(held(row * 4 + k / 4, 0), held(column * 4 + k / 4, 1)));
        *c[v] = sum;
    }
}

// The word at byte k of a row of a matrix in shared memory (PTX manual, "Matrix descriptor", major-ness K): bits 0 to 13 the first
// byte, 16 to 29 and 32 to 45 the distances between pieces of 16 bytes and between eight rows, all by 16 bytes; bits 49 to 51 an
// offset of the pattern, here 0; bits 62 and 63 the layout: 0 pieces of eight rows side by side, 1 rows of 128 bytes whose address
// has bits 7 to 9 added to bits 4 to 6 without carry.
inline Word described_word(std::uint64_t matrix, unsigned row, unsigned k) {
    const auto field = [=](unsigned bit) { return static_cast<Word>(matrix >> bit & 0x3fff) << 4; };
    const unsigned layout = static_cast<unsigned>(matrix >> 62);
    if (layout > 1 || (matrix >> 49 & 7) != 0) return Pool::kPoison;
    Word at = field(0) + row / 8 * field(32);
    if (layout == 0) return pool.shown_word(at + row % 8 * 16 + k / 16 * field(16) + k % 16);
    at += row % 8 * 128 + k;
    return pool.shown_word(at ^ (at >> 7 & 7) << 4);
}
inline std::uint64_t described(Word at) { return (at & 0x3ffff) >> 4; }

template <int N>
void begin_products(Word (&)[1][N][4]) {
    products[thread_index.x].ordered = true;
}

// Register 4 j + v of a thread is row 16 w + g + v / 2 * 8, column 8 j + 2 t + v % 2, for lane 4 g + t of warp w of four.
inline void make(Products& own, Products::Product& product) {
    if (product.done) return;
    product.done = true;
    const unsigned first = thread_index.x / kLanes % 4 * 16 + lane() / 4;
    Word a[2][8];
    for (unsigned half = 0; half < 2; ++half)
        for (unsigned k = 0; k < 8; ++k) a[half][k] = described_word(product.a, first + 8 * half, 4 * k);
    for (unsigned i = 0; i < own.count; i += 4)
        for (unsigned e = 0; e < 2; ++e) {
            Word b[8];
            for (unsigned k = 0; k < 8; ++k) b[k] = described_word(product.b, 2 * i + lane() % 4 * 2 + e, 4 * k);
            for (unsigned half = 0; half < 2; ++half) {
                Word& sum = own.held[i + 2 * half + e];
                if (!product.add) sum = 0;
                for (unsigned k = 0; k < 8; ++k) sum += static_cast<Word>(codes::product(a[half][k], b[k]));
                if (!product.whole) sum = Pool::kPoison;
            }
        }
}
template <int N>
void multiply_64(Word (&sums)[1][N][4], std::uint64_t a, std::uint64_t b, bool add) {
    static_assert(4 * N <= Products::kSums);
    Products& own = products[thread_index.x];
    const Word words[5] = {static_cast<Word>(a), static_cast<Word>(a >> 32), static_cast<Word>(b), static_cast<Word>(b >> 32), add};
    const Block::Exchange given(words);
    const Products* const group = products + thread_index.x / (4 * kLanes) * (4 * kLanes);
    bool whole = own.ordered;  // and all lanes of all four warps start this product
    for (unsigned other = 0; other < kLanes; ++other)
        for (unsigned i = 0; i < 5; ++i) whole &= given(other, i) == words[i];
    for (unsigned other = 0; other < 4 * kLanes; ++other)
        whole &= group[other].at_barrier[own.barriers % 2] == own.at_barrier[own.barriers % 2];
    ++own.started;
    if (!own.sums) {
        own.sums = &sums[0][0][0];
        own.count = 4 * N;
        std::memcpy(own.held, sums, sizeof sums);
        std::memset(sums, 0xff, sizeof sums);
    }
    own.open.push_back({a, b, add, whole, false});
    if (!Block::descending()) make(own, own.open.back());
}
inline void commit_products() {
    Products& own = products[thread_index.x];
    for (const Products::Product& product : own.open) own.committed.push_back(product);
    own.open.clear();
}
template <int N>
void await_products(Word (&sums)[1][N][4]) {
    Products& own = products[thread_index.x];
    for (Products::Product& product : own.committed) make(own, product);
    own.committed.clear();
    own.ordered = false;
    if (!own.open.empty() || !own.sums) return;
    std::memcpy(sums, own.held, sizeof sums);
    own.sums = nullptr;
}

// A float of a half, and the half nearest to a float, ties to even.
inline float of_half(Word half) {
    const Word sign = (half & 0x8000) << 16, bits = half & 0x7fff;
    if (bits >= 0x7c00) return f32::value(sign | f32::INFINITE | (bits & 0x3ff) << 13);
    return f32::value(sign | f32::word(f32::value(bits << 13) * 0x1p112f));
}
inline Word half_of(float x) {
    const Word sign = f32::word(x) >> 16 & 0x8000, bits = f32::word(x) & ~f32::SIGN;
    if (bits > f32::INFINITE) return 0x7fff;
    if (bits >= f32::word(65520.0f)) return sign | 0x7c00;
    const Word least = f32::word(0x1p-14f), exponent = (bits > least ? bits : least) & f32::INFINITE;  // of the half's last bit: 10 less
    const float shift = f32::value(exponent) * 0x1p13f, rounded = (f32::value(bits) + shift) - shift;
    return sign | f32::word(rounded * 0x1p-112f) >> 13;
}
inline Word even_bytes() { return 0x00ff00ff; }
inline Word add_halves(Word a, Word b) {
    Word sums = 0;
    for (unsigned at = 0; at < 32; at += 16) sums |= half_of(of_half(a >> at & 0xffff) + of_half(b >> at & 0xffff)) << at;
    return sums;
}

// Element (row, k) of a is half k % 2 of register row / 8 + k / 8 * 2 of lane 4 (row % 8) + k % 8 / 2; element (k, column) of b that of
// register k / 8 of lane 4 column + k % 8 / 2; register v of c is row g + v / 2 * 8, column 2 t + v % 2 of lane 4 g + t.
inline void multiply_16_8_16(Word (&c)[4], const Word (&a)[4], const Word (&b)[2], const Word (&from)[4]) {
    const Word own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    const Block::Exchange held(own);
    for (unsigned v = 0; v < 4; ++v) {
        const unsigned row = lane() / 4 + v / 2 * 8, column = lane() % 4 * 2 + v % 2;
        float sum = f32::value(from[v]);
        for (unsigned k = 0; k < 16; ++k) {
            const Word left = held(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2), right = held(column * 4 + k % 8 / 2, 4 + k / 8);
            sum += of_half(left >> k % 2 * 16 & 0xffff) * of_half(right >> k % 2 * 16 & 0xffff);
        }
        c[v] = f32::word(sum);
    }
}

inline Word dot_4(Word a, Word b, Word sum) { return sum + static_cast<Word>(codes::product(a, b)); }

inline void copy(Word to, const Word* from, Word bytes, bool inside) {
    static constexpr Word kNothing[4] = {Pool::kPoison, Pool::kPoison, Pool::kPoison, Pool::kPoison};
    if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0) from = kNothing;
    const Copy own{reinterpret_cast<unsigned char*>(place(to / 16 * 16)) + to % 16, inside ? from : nullptr, bytes};
    if (Block::descending()) {
        own.make();
        written(own);
    } else copies[thread_index.x].push_back(own);
}
template <int OFFSET>
void copy_16(Word to, const Word* from, bool inside) {
    copy(to, from + OFFSET / 4, 16, inside);
}
inline void copy_4(Word to, const Word* from, bool inside) { copy(to, from, 4, inside); }
inline void await_copies() {
    for (const Copy& own : copies[thread_index.x]) {
        own.make();
        written(own);
    }
    copies[thread_index.x].clear();
}

}  // namespace unit
}  // namespace lockstep::emulation

#define threadIdx lockstep::emulation::thread_index
#define blockIdx lockstep::emulation::block_index
#define __syncthreads lockstep::emulation::Block::barrier
