// Work shared out over threads; every thread holds the profile's float environment.
#pragma once

#include <algorithm>

#if defined(_OPENMP)
#include <omp.h>
#endif

#include "f32.hpp"
#include "plans.hpp"

namespace lockstep {

constexpr Index kLeastWork = 1 << 14;  // words or terms below which a second thread costs more than it saves

// Calls part(thread, threads) on up to `threads` threads at once; the second argument is their number.
template <class Part>
void on_threads(int threads, Part part) {
#if defined(_OPENMP)
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            const f32::FloatEnvironment environment;
            part(omp_get_thread_num(), omp_get_num_threads());
        }
        return;
    }
#endif
    part(0, 1);
}

// Inside on_threads: nobody passes before all have come.
inline void wait_for_all() {
#if defined(_OPENMP)
#pragma omp barrier
#endif
}

// Calls part(begin, end, thread) on consecutive shares of [0, items), on up to `threads` threads.
template <class Part>
void split(Index items, Index least_per_thread, int threads, Part part) {
    const Index useful = std::min<Index>(threads, std::max<Index>(1, items / std::max<Index>(1, least_per_thread)));
    on_threads(static_cast<int>(useful), [&](int own, int all) { part(items * own / all, items * (own + 1) / all, own); });
}

}  // namespace lockstep
