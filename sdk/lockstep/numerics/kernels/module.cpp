// lockstep.numerics._native: the executor and the scalar operations, for Python.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "executor.hpp"
#include "f32.hpp"

namespace nb = nanobind;

namespace {

using namespace lockstep;
using Array = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Writable = nb::ndarray<nb::c_contig, nb::device::cpu>;

#if defined(LOCKSTEP_X86_64) || defined(LOCKSTEP_AARCH64)
Kernels with_codes(Kernels kernels, const char* name, const CodeKernel& codes) {
    kernels.name = name;
    kernels.qdot = codes.qdot;
    kernels.code_units = codes.units;
    return kernels;
}
#endif

#if defined(LOCKSTEP_AARCH64)
bool has_dot_products() {
#if defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#elif defined(__APPLE__)
    int has = 0;
    std::size_t bytes = sizeof has;
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &bytes, nullptr, 0) == 0 && has != 0;
#else
    return false;
#endif
}
#endif

// Of this machine, the widest last.
const std::vector<const Kernels*>& kernel_paths() {
    static const std::vector<const Kernels*> paths = [] {
        std::vector<const Kernels*> found{&kScalarKernels};
#if defined(LOCKSTEP_X86_64)
        __builtin_cpu_init();
        if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return found;
        found.push_back(&kAvx2Kernels);
        if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") || !__builtin_cpu_supports("avx512vl") ||
            !__builtin_cpu_supports("avx512dq"))
            return found;
        found.push_back(&kAvx512Kernels);
        static const Kernels vnni = with_codes(kAvx512Kernels, "vnni", kVnniCodes);
        if (__builtin_cpu_supports("avx512vnni")) found.push_back(&vnni);
#elif defined(LOCKSTEP_AARCH64)
        found.push_back(&kNeonKernels);
        static const Kernels dotprod = with_codes(kNeonKernels, "dotprod", kDotprodCodes);
        if (has_dot_products()) found.push_back(&dotprod);
#endif
        return found;
    }();
    return paths;
}

const Kernels* kernels_named(const std::string& name) {
    if (name == "auto") return kernel_paths().back();
    for (const Kernels* kernels : kernel_paths())
        if (name == kernels->name) return kernels;
    throw nb::value_error("no such kernel path on this machine: auto, scalar, avx2, avx512, vnni, neon, dotprod");
}

std::span<const std::uint8_t> span_of(const nb::bytes& b) {
    return {reinterpret_cast<const std::uint8_t*>(b.c_str()), b.size()};
}

const Word* words_of(const Array& array) {
    if (array.dtype().bits != 32) throw nb::value_error("tensors are arrays of 32-bit elements");
    return static_cast<const Word*>(array.data());
}

// An op's output as a read-only float32 or int32 array that hands its memory back to the executor's pool.
nb::object to_array(const Descriptor& op, Buffer buffer, const std::shared_ptr<Pool>& pool) {
    struct Owner {
        Buffer buffer;
        std::shared_ptr<Pool> pool;
    };
    auto* owner = new Owner{std::move(buffer), pool};
    nb::capsule capsule(owner, [](void* p) noexcept {
        auto* dropped = static_cast<Owner*>(p);
        dropped->pool->give(std::move(dropped->buffer));
        delete dropped;
    });
    std::vector<std::size_t> shape(op.extents.begin(), op.extents.end());
    if (op.dtype == 0)
        return nb::cast(nb::ndarray<nb::numpy, const float>(owner->buffer.data(), shape.size(), shape.data(), capsule));
    return nb::cast(nb::ndarray<nb::numpy, const std::int32_t>(owner->buffer.data(), shape.size(), shape.data(), capsule));
}

std::unique_ptr<Executor> make_executor(const nb::bytes& header, const std::vector<nb::bytes>& descriptors, const std::vector<Array>& consts,
                                        bool plain) {
    std::vector<std::span<const std::uint8_t>> ops;
    for (const nb::bytes& d : descriptors) ops.push_back(span_of(d));
    std::vector<Table> tables;
    std::vector<Index> elements;
    for (const Array& array : consts) {
        tables.push_back({words_of(array), std::make_shared<const Array>(array)});
        elements.push_back(static_cast<Index>(array.size()));
    }
    Program program = decode_program(span_of(header), ops, std::move(elements));
    const nb::gil_scoped_release release;  // planning takes a while
    return std::make_unique<Executor>(std::move(program), std::move(tables), plain);
}

// A Program without the words of its constants, to be planned.
Program planned(const nb::bytes& header, const std::vector<nb::bytes>& descriptors, std::vector<Index> const_elements) {
    std::vector<std::span<const std::uint8_t>> ops;
    for (const nb::bytes& d : descriptors) ops.push_back(span_of(d));
    return decode_program(span_of(header), ops, std::move(const_elements));
}

// What a run holds beside its inputs, in bytes: the arena, what it leaves, and what a game holds in the place of both: a sweep, or
// the op whose output and operands are largest, by itself. Nothing is allocated.
nb::tuple bytes_of_run(const nb::bytes& header, const std::vector<nb::bytes>& descriptors, std::vector<Index> const_elements) {
    const Program program = planned(header, descriptors, std::move(const_elements));
    std::optional<nb::gil_scoped_release> release(std::in_place);
    const Schedule schedule = make_schedule(program);
    const auto held = [&](const Schedule& planned) {
        Index bytes = 0;
        for (std::size_t i = 0; i < program.ops.size(); ++i)
            if (planned.needed[planned.at(i)] && planned.kept[planned.at(i)]) bytes += Buffer::bytes_of(program.ops[i].elements);
        return bytes;
    };
    Index most = 0;
    std::vector<int> dearest;
    for (std::size_t i = 0; i < program.ops.size(); ++i) {
        std::vector<int> asked = ops_read(program.ops[i].views);
        asked.push_back(static_cast<int>(i));
        Index words = 0;
        for (const int op : asked) words += program.ops[static_cast<std::size_t>(op)].elements;
        if (words > most) std::tie(most, dearest) = std::tuple(words, std::move(asked));
    }
    const Schedule one = make_schedule(asked_for(program, dearest));
    // The arena of an ordinary step exists when a game begins, and is freed before a single op is requested.
    const Index swept = std::max(make_sweep(program, schedule).words, schedule.arena_words);
    const Index arena = Buffer::bytes_of(schedule.arena_words), results = held(schedule);
    const Index shown = std::max(Buffer::bytes_of(swept), Buffer::bytes_of(one.arena_words) + held(one));
    release.reset();
    return nb::make_tuple(arena, results, shown);
}

// What a run computes: the multiply-adds of its products, and the terms of its other ops: each of an element's instructions, and
// writing it, is one. The gradient of an embedding is a product in the Program and no product here.
nb::tuple work_of_run(const nb::bytes& header, const std::vector<nb::bytes>& descriptors, std::vector<Index> const_elements) {
    const Program program = planned(header, descriptors, std::move(const_elements));
    std::optional<nb::gil_scoped_release> release(std::in_place);
    const Schedule schedule = make_schedule(program);
    double products = 0, terms = 0;
    for (std::size_t i = 0; i < schedule.steps.size(); ++i) {
        const Descriptor& op = schedule.planned.program.ops[i];
        const auto* gemm = std::get_if<GemmStep>(&schedule.steps[i]);
        if (const auto* scatter = std::get_if<ScatterPlan>(&schedule.fused[i]))
            terms += static_cast<double>(op.elements) + static_cast<double>(scatter->columns) * static_cast<double>(scatter->k);
        else if (op.is_qdot())
            products += static_cast<double>(op.elements) * static_cast<double>(4 * op.k * op.p0);
        else if (op.kind == Kind::kQuant)
            terms += static_cast<double>(op.elements) * static_cast<double>(4 * op.p0);
        else if (gemm)
            products += static_cast<double>(op.elements) * static_cast<double>(op.k);
        else
            terms += static_cast<double>(op.elements) * static_cast<double>(1 + op.k + static_cast<Index>(op.instrs.size()));
    }
    release.reset();
    return nb::make_tuple(products, terms);
}

// The arguments of a run, and the arrays that they point into.
struct Arguments {
    RunInputs in;
    std::vector<Array> held;
};

Arguments arguments(const Executor& executor, const nb::list& state, const nb::bytes& seed, Word round, Word slot, Word t, const nb::object& dataset,
                    int threads, const std::string& path) {
    const Program& program = executor.program();
    if (state.size() != program.inputs.size()) throw nb::value_error("the state has another number of entries than the Program");
    if (seed.size() != 32) throw nb::value_error("a seed is 32 bytes");
    if (threads < 1 || threads > 1024) throw nb::value_error("threads: 1 to 1024");
    Arguments result;
    RunInputs& in = result.in;
    std::vector<Array>& held = result.held;
    for (std::size_t i = 0; i < state.size(); ++i) {
        in.state.push_back(nullptr);
        if (program.inputs[i].kind == 0) continue;
        held.push_back(nb::cast<Array>(state[i]));
        if (static_cast<Index>(held.back().size()) != program.inputs[i].elements)
            throw nb::value_error(("state entry " + std::to_string(i) + " has another number of elements than the Program").c_str());
        in.state.back() = words_of(held.back());
    }
    if (!dataset.is_none()) {
        held.push_back(nb::cast<Array>(dataset));
        if (held.back().ndim() != 2) throw nb::value_error("a dataset has two axes");
        in.dataset = Dataset{words_of(held.back()), static_cast<Index>(held.back().shape(0)), static_cast<Index>(held.back().shape(1))};
    }
    std::memcpy(in.context.seed.data(), seed.c_str(), 32);
    in.context.words[0] = round;
    in.context.words[1] = slot;
    in.context.words[2] = t;
    in.threads = threads;
    in.kernels = kernels_named(path);
    return result;
}

nb::list to_arrays(const Executor& executor, std::vector<Buffer> results) {
    nb::list out;
    for (std::size_t i = 0; i < results.size(); ++i) {
        if (results[i].data()) out.append(to_array(executor.program().ops[i], std::move(results[i]), executor.pool()));
        else out.append(nb::none());
    }
    return out;
}

nb::list run(Executor& executor, const nb::list& state, const nb::bytes& seed, Word round, Word slot, Word t, const nb::object& dataset,
             bool keep, int threads, const std::string& path, const nb::object& nanoseconds, const nb::dict& into) {
    Arguments given = arguments(executor, state, seed, round, slot, t, dataset, threads, path);
    given.in.keep = keep;
    std::vector<Writable> targets;
    if (!into.empty()) given.in.into.resize(executor.program().ops.size());
    for (const auto& [op, array] : into) {
        const auto i = nb::cast<std::size_t>(op);
        targets.push_back(nb::cast<Writable>(array));
        if (i >= given.in.into.size()) throw nb::value_error("no such op");
        if (targets.back().itemsize() != sizeof(Word) || static_cast<Index>(targets.back().size()) != executor.program().ops[i].elements)
            throw nb::value_error(("the memory for op " + std::to_string(i) + " has another number of words than its output").c_str());
        given.in.into[i] = static_cast<Word*>(targets.back().data());
    }
    std::vector<std::int64_t> spent(executor.program().ops.size());
    if (!nanoseconds.is_none()) given.in.nanoseconds = &spent;
    std::vector<Buffer> results;
    {
        nb::gil_scoped_release release;
        results = executor.run(given.in);
    }
    if (given.in.nanoseconds)
        for (const std::int64_t ns : spent) nb::cast<nb::list>(nanoseconds).append(ns);
    return to_arrays(executor, std::move(results));
}

// visit(op, bytes) for every op in order; the bytes can be read during the call alone.
void sweep(Executor& executor, const nb::list& state, const nb::bytes& seed, Word round, Word slot, Word t, const nb::object& dataset, int threads,
           const std::string& path, const nb::callable& visit) {
    const Arguments given = arguments(executor, state, seed, round, slot, t, dataset, threads, path);
    nb::gil_scoped_release release;
    executor.sweep(given.in, [&](std::size_t op, const Word* words) {
        nb::gil_scoped_acquire acquire;
        const auto bytes = static_cast<Py_ssize_t>(executor.program().ops[op].elements) * static_cast<Py_ssize_t>(sizeof(Word));
        char* begin = const_cast<char*>(reinterpret_cast<const char*>(words));
        const nb::object view = nb::steal(PyMemoryView_FromMemory(begin, bytes, PyBUF_READ));
        visit(op, view);
        view.attr("release")();
    });
}

nb::list some(Executor& executor, const nb::list& state, const nb::bytes& seed, Word round, Word slot, Word t, const nb::object& dataset, int threads,
              const std::string& path, const std::vector<int>& ops) {
    for (const int op : ops)
        if (op < 0 || static_cast<std::size_t>(op) >= executor.program().ops.size()) throw nb::value_error("no such op");
    const Arguments given = arguments(executor, state, seed, round, slot, t, dataset, threads, path);
    std::vector<Buffer> results;
    {
        nb::gil_scoped_release release;
        results = executor.some(given.in, ops);
    }
    return to_arrays(executor, std::move(results));
}

// What a compiler has to know of a loop: elements, per operand (form, step), instructions, registers of the results, whether
// they are written past the caches.
nb::list loops_of(const Executor& executor) {
    nb::list loops;
    for (const Loop& loop : executor.loops()) {
        nb::list operands, instrs, results;
        for (int v = 0; v < loop.plan.operands; ++v) {
            const LoopOperand& operand = loop.plan.operand[v];
            operands.append(nb::make_tuple(std::string(1, static_cast<char>(operand.form)), operand.form == Form::kIota ? operand.step : 0));
        }
        for (const LoopInstr& i : loop.instrs) instrs.append(nb::make_tuple(i.op, i.a, i.b, i.c, i.imm));
        for (const int r : loop.results) results.append(r);
        loops.append(nb::make_tuple(loop.plan.elements, nb::tuple(operands), nb::tuple(instrs), nb::tuple(results), loop.plan.streams));
    }
    return loops;
}

bool attach(Executor& executor, std::size_t index, std::uintptr_t address, const std::string& path) {
    if (index >= executor.loops().size() || address == 0) throw nb::value_error("no such loop");
    const Kernels* kernels = kernels_named(path);
    nb::gil_scoped_release release;
    return executor.attach(index, reinterpret_cast<LoopFunction>(address), *kernels);
}

nb::object words_array(Word* owned, std::size_t n) {
    nb::capsule owner(owned, [](void* p) noexcept { delete[] static_cast<Word*>(p); });
    return nb::cast(nb::ndarray<nb::numpy, Word, nb::ndim<1>>(owned, {n}, owner));
}

// The bare results of a fold's chunks over flat operands: what the first level of partials adds up.
nb::object chunk_results(int mode, const Array& a, const Array& b, const std::string& path) {
    if (mode < 0 || mode > 4) throw nb::value_error("no such fold");
    if (a.size() == 0 || b.size() != a.size()) throw nb::value_error("a and b have the same length, 1 at least");
    const Kernels* kernels = kernels_named(path);
    const auto terms = static_cast<Index>(a.size());
    const Index full = terms / kChunk, chunks = (terms + kChunk - 1) / kChunk;
    FoldPlan plan{};
    plan.mode = static_cast<FoldMode>(mode);
    plan.axes = 1;
    plan.extents[0] = plan.outputs = full;
    plan.strides[0][0] = plan.strides[1][0] = kChunk;
    plan.k_stride[0] = plan.k_stride[1] = 1;
    plan.k = kChunk;
    plan.partial = true;
    const Word* bases[2] = {words_of(a), words_of(b)};
    auto* result = new Word[static_cast<std::size_t>(chunks)];
    nb::object array = words_array(result, static_cast<std::size_t>(chunks));
    const f32::FloatEnvironment environment;
    kernels->fold(plan, bases, result, 0, full);
    if (chunks > full) {
        const Word* tails[2] = {bases[0] + full * kChunk, bases[1] + full * kChunk};
        plan.k = terms - full * kChunk;
        plan.extents[0] = plan.outputs = 1;
        kernels->fold(plan, tails, result + full, 0, 1);
    }
    return array;
}

nb::object apply_op(int op, const Array& a, const Array& b, const Array& c, const std::string& path) {
    const auto n = a.size();
    if (b.size() != n || c.size() != n) throw nb::value_error("a, b and c have the same length");
    const Kernels* kernels = kernels_named(path);
    auto* result = new Word[n + 1];
    nb::object array = words_array(result, n);
    if (!kernels->apply_op(op, words_of(a), words_of(b), words_of(c), result, n)) throw nb::value_error("no such opcode");
    return array;
}

}  // namespace

NB_MODULE(_native, m) {
    nb::set_leak_warnings(false);  // a thread that compiles loops may outlive the interpreter
    m.doc() = "The native executor of Programs (profile F32-C256).";
    m.def("best_isa", [] { return std::string(kernels_named("auto")->name); }, "The widest instruction set with a kernel path on this machine.");
    m.def(
        "paths",
        [] {
            std::vector<std::string> names;
            for (const Kernels* kernels : kernel_paths()) names.emplace_back(kernels->name);
            return names;
        },
        "The kernel paths of this machine, the widest last.");
    m.def("apply_op", &apply_op, nb::arg("op"), nb::arg("a"), nb::arg("b"), nb::arg("c"), nb::arg("path") = "auto",
          "op(a, b, c) element by element: flat arrays of 32-bit words of one length.");
    m.def("chunk_results", &chunk_results, nb::arg("mode"), nb::arg("a"), nb::arg("b"), nb::arg("path") = "auto",
          "The chunks of a fold (Fold's number) over flat operands of one length; b is read by a dot alone.");
    m.def("bytes_of_run", &bytes_of_run, nb::arg("header"), nb::arg("descriptors"), nb::arg("const_elements"),
          "(arena, results, what a game holds in their place), in bytes: what a run holds beside its inputs. ValueError as Executor.");
    m.def("work_of_run", &work_of_run, nb::arg("header"), nb::arg("descriptors"), nb::arg("const_elements"),
          "(multiply-adds of products, terms of other ops) that a run computes. ValueError as Executor.");
    nb::class_<Executor>(m, "Executor", "A Program ready to run. ValueError if its bytes do not parse or reach outside of a tensor.")
        .def(nb::new_(&make_executor), nb::arg("header"), nb::arg("descriptors"), nb::arg("consts"), nb::arg("plain") = false)
        .def("run", &run, nb::arg("state"), nb::arg("seed"), nb::arg("round"), nb::arg("slot"), nb::arg("t"), nb::arg("dataset").none(),
             nb::arg("keep"), nb::arg("threads"), nb::arg("path"), nb::arg("nanoseconds").none() = nb::none(), nb::arg("into") = nb::dict(),
             "One output array per op, None where it was not kept or lies in an array of `into`. Releases the interpreter while it computes.")
        .def("sweep", &sweep, nb::arg("state"), nb::arg("seed"), nb::arg("round"), nb::arg("slot"), nb::arg("t"), nb::arg("dataset").none(),
             nb::arg("threads"), nb::arg("path"), nb::arg("visit"),
             "Calls visit(op, bytes) with every op's output, in order; the bytes can be read during the call alone.")
        .def("some", &some, nb::arg("state"), nb::arg("seed"), nb::arg("round"), nb::arg("slot"), nb::arg("t"), nb::arg("dataset").none(),
             nb::arg("threads"), nb::arg("path"), nb::arg("ops"), "One output array per op, None for those that are not in `ops`.")
        .def_prop_ro("plain", &Executor::plain, "A reason why every op is run by itself, or \"\": the planner fused them.")
        .def("rest", &Executor::rest, nb::call_guard<nb::gil_scoped_release>(),
             "Gives back the memory that is kept from run to run, unless one is under way.")
        .def("loops", &loops_of, "Per loop: elements, operands (form, step), instructions (op, a, b, c, imm), registers of the results, streams.")
        .def("attach", &attach, nb::arg("loop"), nb::arg("address"), nb::arg("path"),
             "Lets a loop run the function at an address; False, and nothing changes, if it gives other bits than the interpreter.");
}
