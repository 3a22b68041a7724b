// The part of CUDA that kernels.cuh uses, for a C++ compiler: the same source runs on a machine without a device.
//
// Blocks run one after the other. The threads of a block run in turn, each up to its next barrier, on a stack of its own: what a
// thread reads before the barrier that should order it is not there yet, so a missing barrier changes the result.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#define __shared__ static
#define __restrict__ __restrict
#define LOCKSTEP_MEMBER inline
#define LOCKSTEP_KERNEL(...) static void
#define LOCKSTEP_EXPORT(kernel)                                                                                      \
    extern "C" void launch_##kernel(unsigned blocks, unsigned threads, bool descending, void** arguments) {          \
        lockstep::emulation::launch(blocks, threads, descending, [=] { lockstep::emulation::call(kernel, arguments); }); \
    }

namespace lockstep::emulation {

struct Position {
    unsigned x;
};
inline Position thread_index, block_index;

// The threads of one block. A fiber runs threads until one of them meets a barrier, which parks it there.
class Block {
public:
    template <class Kernel>
    static void run(unsigned threads, bool descending, const Kernel& kernel) {
        Block block(threads, descending, [](const void* k) { (*static_cast<const Kernel*>(k))(); }, &kernel);
        running_ = &block;
        std::size_t fibers = 0;
        while (block.next_ < threads) block.start(fibers++);
        // Every thread has met its first barrier or ended; each round takes those that wait to their next one.
        for (bool waiting = true; waiting;) {
            waiting = false;
            for (std::size_t i = 0; i < fibers; ++i)
                if (fibers_[i]->parked) {
                    block.resume(i);
                    waiting = true;
                }
        }
    }

    static void barrier() {
        const unsigned thread = thread_index.x;
        Fiber& own = *fibers_[running_->current_];
        own.parked = true;
        swapcontext(&own.context, &running_->scheduler_);
        thread_index.x = thread;
    }

private:
    static constexpr std::size_t kStackBytes = 256 << 10;
    struct Fiber {
        ucontext_t context;
        bool parked = false;
        std::unique_ptr<std::byte[]> stack{new std::byte[kStackBytes]};
    };

    Block(unsigned threads, bool descending, void (*call)(const void*), const void* kernel)
        : threads_(threads), descending_(descending), call_(call), kernel_(kernel) {}

    static void run_threads() {
        Block& block = *running_;
        while (block.next_ < block.threads_) {
            const unsigned turn = block.next_++;
            thread_index.x = block.descending_ ? block.threads_ - 1 - turn : turn;
            block.call_(block.kernel_);
        }
    }
    void start(std::size_t i) {
        if (i == fibers_.size()) fibers_.push_back(std::make_unique<Fiber>());
        ucontext_t& context = fibers_[i]->context;
        getcontext(&context);
        context.uc_stack.ss_sp = fibers_[i]->stack.get();
        context.uc_stack.ss_size = kStackBytes;
        context.uc_link = &scheduler_;
        makecontext(&context, run_threads, 0);
        resume(i);
    }
    void resume(std::size_t i) {
        current_ = i;
        fibers_[i]->parked = false;
        swapcontext(&scheduler_, &fibers_[i]->context);
    }

    static inline Block* running_ = nullptr;
    static inline std::vector<std::unique_ptr<Fiber>> fibers_;
    ucontext_t scheduler_;
    std::size_t current_ = 0;
    unsigned next_ = 0;
    const unsigned threads_;
    const bool descending_;
    void (*const call_)(const void*);
    const void* const kernel_;
};

template <class Kernel>
void launch(unsigned blocks, unsigned threads, bool descending, const Kernel& kernel) {
    const f32::FloatEnvironment environment;
    for (block_index.x = 0; block_index.x < blocks; ++block_index.x) Block::run(threads, descending, kernel);
}

// Kernel arguments as cuLaunchKernel takes them: the address of each.
template <class... Arguments>
void call(void (*kernel)(Arguments...), void** arguments) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_reference_t<Arguments>*>(arguments[I])...);
    }(std::index_sequence_for<Arguments...>{});
}

}  // namespace lockstep::emulation

#define threadIdx lockstep::emulation::thread_index
#define blockIdx lockstep::emulation::block_index
#define __syncthreads lockstep::emulation::Block::barrier
