// lockstep.protocol._hash: the Merkle trees of docs/protocol.md, section 1, over buffers.
#include "sha256.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#if defined(LOCKSTEP_X86_64)
#include <cpuid.h>
#elif defined(LOCKSTEP_AARCH64) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(LOCKSTEP_AARCH64) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(_OPENMP)
#include <omp.h>
#endif

namespace nb = nanobind;

namespace {

using lockstep::HashPath;
using lockstep::kHashBytes;
using lockstep::kLeafBytes;
using Bytes = std::vector<std::uint8_t>;
using Digest = std::array<std::uint8_t, kHashBytes>;

constexpr int kMaxLevels = 64;
constexpr int kMostThreads = 1024;
constexpr std::size_t kMessagesAtOnce = 16;    // of the widest path
constexpr std::size_t kLeastPerThread = 1024;  // blocks of 64 bytes below which a second thread costs more than it saves

// A path, and how many threads share its work: none of the hashes depends on either.
class Hasher {
public:
    Hasher(const HashPath& path, int threads) : path_(path), threads_(threads) {
        if (threads < 1 || threads > kMostThreads) throw nb::value_error("threads: 1 to 1024");
    }
    void leaves(const std::uint8_t* data, std::size_t bytes, std::uint8_t* out) const {
        split((bytes + kLeafBytes - 1) / kLeafBytes, kLeafBytes / 64 + 1, [&](std::size_t begin, std::size_t end) {
            path_.leaves(data + begin * kLeafBytes, std::min(bytes, end * kLeafBytes) - begin * kLeafBytes, out + begin * kHashBytes);
        });
    }
    void nodes(const std::uint8_t* pairs, std::size_t count, std::uint8_t* out) const {
        split(count, 2, [&](std::size_t begin, std::size_t end) {
            path_.nodes(pairs + begin * 2 * kHashBytes, end - begin, out + begin * kHashBytes);
        });
    }

private:
    // Calls part(begin, end) on shares of [0, messages) of whole sixteens, each on a thread of its own.
    template <class Part>
    void split(std::size_t messages, std::size_t blocks_per_message, Part part) const {
        const std::size_t useful = std::min<std::size_t>(static_cast<std::size_t>(threads_), messages * blocks_per_message / kLeastPerThread);
#if defined(_OPENMP)
        if (useful > 1) {
            const std::size_t groups = (messages + kMessagesAtOnce - 1) / kMessagesAtOnce;
#pragma omp parallel num_threads(static_cast<int>(useful))
            {
                const auto all = static_cast<std::size_t>(omp_get_num_threads()), own = static_cast<std::size_t>(omp_get_thread_num());
                const std::size_t begin = groups * own / all * kMessagesAtOnce, end = std::min(messages, groups * (own + 1) / all * kMessagesAtOnce);
                if (begin < end) part(begin, end);
            }
            return;
        }
#endif
        if (messages) part(0, messages);
    }

    const HashPath& path_;
    int threads_;
};

#if defined(LOCKSTEP_X86_64)
bool has_sha_ni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_SSE4_1) || !(c & bit_SSSE3)) return false;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}

bool has_avx512() {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
}
#elif defined(LOCKSTEP_AARCH64)
bool has_sha2() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_SHA2;
#elif defined(__APPLE__)
    int has = 0;
    std::size_t bytes = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_SHA256", &has, &bytes, nullptr, 0) == 0 && has != 0;
#else
    return false;
#endif
}
#endif

const HashPath& best_path() {
#if defined(LOCKSTEP_X86_64)
    static const HashPath& path = has_avx512() ? lockstep::kAvx512Path : lockstep::narrow_path();
    return path;
#else
    return lockstep::narrow_path();
#endif
}

const HashPath& path_named(const std::string& name) {
    if (name == "auto") return best_path();
    if (name == lockstep::kPortablePath.name) return lockstep::kPortablePath;
#if defined(LOCKSTEP_X86_64)
    if (name == lockstep::kShaNiPath.name && has_sha_ni()) return lockstep::kShaNiPath;
    if (name == lockstep::kAvx512Path.name && has_avx512()) return lockstep::kAvx512Path;
#elif defined(LOCKSTEP_AARCH64)
    if (name == lockstep::kSha2Path.name && has_sha2()) return lockstep::kSha2Path;
#endif
    throw nb::value_error("no such SHA-256 path on this machine: auto, portable, sha-ni, avx512, sha2");
}

// Z_k: the root of a tree of 2^k empty leaves.
const std::array<Digest, kMaxLevels>& zero_hashes() {
    static const auto zeros = [] {
        std::array<Digest, kMaxLevels> z{};
        for (int k = 1; k < kMaxLevels; ++k) {
            std::uint8_t pair[2 * kHashBytes];
            std::memcpy(pair, z[k - 1].data(), kHashBytes);
            std::memcpy(pair + kHashBytes, z[k - 1].data(), kHashBytes);
            best_path().nodes(pair, 1, z[k].data());
        }
        return z;
    }();
    return zeros;
}

// The level above `below`, whose missing right sibling is Z_k.
Bytes next_level(const Hasher& hash, Bytes& below, int k) {
    std::size_t count = below.size() / kHashBytes;
    if (count & 1) {
        below.insert(below.end(), zero_hashes()[k].begin(), zero_hashes()[k].end());
        ++count;
    }
    Bytes above(count / 2 * kHashBytes);
    hash.nodes(below.data(), count / 2, above.data());
    return above;
}

// Levels from the leaves' hashes to the root, each without its padding.
std::vector<Bytes> levels_of(const Hasher& hash, Bytes hashes) {
    if (hashes.empty()) hashes.assign(kHashBytes, 0);
    std::vector<Bytes> levels;
    for (int k = 0; hashes.size() > kHashBytes; ++k) {
        const std::size_t real = hashes.size();
        Bytes above = next_level(hash, hashes, k);
        hashes.resize(real);
        levels.push_back(std::move(hashes));
        hashes = std::move(above);
    }
    levels.push_back(std::move(hashes));
    return levels;
}

Bytes root_of(const Hasher& hash, Bytes hashes) {
    if (hashes.empty()) hashes.assign(kHashBytes, 0);
    for (int k = 0; hashes.size() > kHashBytes; ++k) hashes = next_level(hash, hashes, k);
    return hashes;
}

// A C-contiguous buffer held for as long as the hashing takes.
class View {
public:
    explicit View(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) nb::raise_python_error();
    }
    ~View() { PyBuffer_Release(&view_); }
    View(const View&) = delete;
    View& operator=(const View&) = delete;
    const std::uint8_t* data() const { return static_cast<const std::uint8_t*>(view_.buf); }
    std::size_t size() const { return static_cast<std::size_t>(view_.len); }

private:
    Py_buffer view_;
};

nb::bytes to_python(const Bytes& b) { return nb::bytes(reinterpret_cast<const char*>(b.data()), b.size()); }

nb::list to_python(const std::vector<Bytes>& levels) {
    nb::list list;
    for (const Bytes& level : levels) list.append(to_python(level));
    return list;
}

Bytes hash_leaves(const Hasher& hash, const View& view) {
    Bytes out((view.size() + kLeafBytes - 1) / kLeafBytes * kHashBytes);
    hash.leaves(view.data(), view.size(), out.data());
    return out;
}

Bytes hashes_in(const View& view) {
    if (view.size() % kHashBytes) throw nb::value_error("hashes are 32 bytes each");
    return Bytes(view.data(), view.data() + view.size());
}

template <class Compute>
auto without_gil(Compute compute) {
    nb::gil_scoped_release release;
    return compute();
}

}  // namespace

const HashPath& lockstep::narrow_path() {
#if defined(LOCKSTEP_X86_64)
    static const HashPath& path = has_sha_ni() ? kShaNiPath : kPortablePath;
    return path;
#elif defined(LOCKSTEP_AARCH64)
    static const HashPath& path = has_sha2() ? kSha2Path : kPortablePath;
    return path;
#else
    return kPortablePath;
#endif
}

NB_MODULE(_hash, m) {
    m.doc() = "SHA-256 Merkle trees over buffers. Every level is given without its padding: a missing right sibling at level k is Z_k.";
    m.def("isa", [] { return std::string(best_path().name); }, "The SHA-256 path that this machine runs: avx512, sha-ni, sha2 or portable.");
    m.def(
        "leaf_hashes",
        [](nb::handle buf, const std::string& path, int threads) {
            const Hasher hash(path_named(path), threads);
            const View view(buf);
            return to_python(without_gil([&] { return hash_leaves(hash, view); }));
        },
        nb::arg("buf"), nb::arg("path") = "auto", nb::arg("threads") = 1, "leaf(.) of every 1 KiB leaf of `buf` (the last may be short), 32 bytes each.");
    m.def(
        "tree_root",
        [](nb::handle buf, const std::string& path, int threads) {
            const Hasher hash(path_named(path), threads);
            const View view(buf);
            return to_python(without_gil([&] { return root_of(hash, hash_leaves(hash, view)); }));
        },
        nb::arg("buf"), nb::arg("path") = "auto", nb::arg("threads") = 1, "tree(1 KiB leaves of `buf`), 32 bytes.");
    m.def(
        "tree_levels",
        [](nb::handle buf, const std::string& path, int threads) {
            const Hasher hash(path_named(path), threads);
            const View view(buf);
            return to_python(without_gil([&] { return levels_of(hash, hash_leaves(hash, view)); }));
        },
        nb::arg("buf"), nb::arg("path") = "auto", nb::arg("threads") = 1,
        "Levels of tree(1 KiB leaves of `buf`): [leaf hashes, ..., root], concatenated hashes each, without padding.");
    m.def(
        "merkle_root",
        [](nb::handle hashes, const std::string& path, int threads) {
            const Hasher hash(path_named(path), threads);
            const View view(hashes);
            return to_python(without_gil([&] { return root_of(hash, hashes_in(view)); }));
        },
        nb::arg("hashes"), nb::arg("path") = "auto", nb::arg("threads") = 1, "tree(hashes) of concatenated 32-byte hashes; Z_0 for none.");
    m.def(
        "merkle_levels",
        [](nb::handle hashes, const std::string& path, int threads) {
            const Hasher hash(path_named(path), threads);
            const View view(hashes);
            return to_python(without_gil([&] { return levels_of(hash, hashes_in(view)); }));
        },
        nb::arg("hashes"), nb::arg("path") = "auto", nb::arg("threads") = 1, "Levels of tree(hashes): [hashes, ..., root], without padding.");
}
