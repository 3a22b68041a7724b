// The Python face of the native kernels.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

namespace nb = nanobind;

namespace {

// The widest instruction set for which this machine has a kernel path, by its run-time check.
std::string best_isa() {
#if defined(LOCKSTEP_X86_64)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return "avx512";
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "avx2";
#endif
    return "scalar";
}

}  // namespace

NB_MODULE(_native, m) {
    m.doc() = "Native kernels and hashing.";
    m.def("best_isa", &best_isa, "The widest instruction set with a kernel path on this machine.");
}
