"""The CUDA path on the emulated device: the kernels' own source, thread by thread, gives the processor's bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array, StepContext, to_array
from lockstep.numerics.builder import ProgramBuilder, Quantised
from lockstep.numerics.cuda import CudaExecutable, generate, loaded, open_device
from lockstep.numerics.cuda.device import Kernels, RecordedLaunch
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.launches import reads, writes
from lockstep.numerics.cuda.memory import plan
from lockstep.numerics.cuda.selftest import check_device
from lockstep.numerics.trace import layout_root
from lockstep.protocol.errors import Crashed, DoctorError, PayloadInvalid, UsageError
from lockstep.protocol.programs.program import CHUNK, F32, I32, Fold, Kind, Op, Program, Tag, View
from tests.support.emulation import Both, Mutant
from tests.support.random_ops import Maker
from tests.unit.numerics.comparison import CONTEXT, normal, strange, words
from tests.unit.numerics.test_quants import joined, two_limbs

Data = Callable[[np.random.Generator, int], Array]
SHAPES = [(2, 16, 32, 256), (3, 29, 70, 100), (1, 100, 130, 513), (1, 33, 2, 1100), (5, 8, 12, 20)]
"""(B, M, N, K): whole and ragged tiles, one chunk and several, words by four and one at a time."""


def products(shapes: Sequence[tuple[int, int, int, int]] = SHAPES) -> Program:
    """Matrix products in every layout, and dots that are none."""
    b = ProgramBuilder([(F32, size) for B, M, N, K in shapes for size in (B * M * K, B * N * K, K * N)])
    outputs = []
    for s, (B, M, N, K) in enumerate(shapes):
        x, y = b.input(3 * s).reshape(B, M, K), b.input(3 * s + 1).reshape(B, N, K)
        turned = b.map((N, K), [b.input(3 * s + 2).reshape(K, N).permute(1, 0)], name="turned")
        outputs += [
            b.dot(x.unsqueeze(2), y.unsqueeze(1), name=f"batched {s}"),
            b.dot(x.unsqueeze(2), turned, name=f"through a transposing copy {s}"),
            b.dot(turned.unsqueeze(1), x.reshape(B * M, K), name=f"rows and columns exchanged {s}"),
            b.dot(y.unsqueeze(1).permute(1, 0, 2, 3), x.unsqueeze(2).permute(1, 0, 2, 3), name=f"batch inside {s}"),
            b.dot(x, x, name=f"row by row {s}"),
            b.dot(b.word((K,), 0x3F800000, F32), x, name=f"ones {s}"),
        ]
    return b.finish(outputs)


def filled(program: Program, data: Data) -> list[Array | None]:
    """An input state of random contents."""
    rng = np.random.default_rng(1)
    return [
        None if header is None
        else rng.integers(-(2**31), 2**31, header.elements).astype(np.int32) if header.dtype == I32
        else data(rng, header.elements)
        for header in program.inputs
    ]  # fmt: skip


def codes() -> Program:
    """Codes and scales by every rule, their products, and products of any words."""
    b = ProgramBuilder([(F32, 3 * 7 * 300), (I32, 5 * 64), (I32, 270 * 64), (F32, 270)])
    x = b.input(0).reshape(3, 7, 300)
    rules = [(64, 0, False), (16, 1 << 31, False), (1, 0, True), (8, (1 << 32) - 1, True)]
    made = [b.quant(x.permute(1, 0, 2), *rule) for rule in rules]
    outputs = [b.qdot(each.unsqueeze(1), each.unsqueeze(0)) for each in made]
    few = Quantised(b.input(1).reshape(5, 64), b.input(3).slice(0, 0, 5).reshape(5, 1), 64)
    many = Quantised(b.input(2), b.input(3), 64)
    outputs += [b.qdot(few.unsqueeze(1), few), b.qdot(many, many)]
    return b.finish(outputs)


# --- bits ------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("data", [normal, strange])
def test_codes_and_their_products(data: Data) -> None:
    program = codes()
    Both(program).agree(filled(program, data), CONTEXT)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(6))
def test_random_programs(seed: int) -> None:
    step = Maker(seed).step()
    s = step.statement
    state = [None if held is None else to_array(held.header, held.data) for held in step.inputs]
    dataset = to_array(step.data.header, step.data.data)
    both = Both(step.program, descending=seed % 2 == 1)
    both.agree(state, StepContext(bytes(s.seed), s.round, s.slot, s.t), dataset)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("data", [strange, normal])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("side", [64, 128])
def test_products_of_every_tiling(side: int, split: bool, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "_tiling", lambda m, n, batches, k: (side, split and k > CHUNK))
    both = Both(products())
    both.agree(filled(both.program, data), CONTEXT)


def embedding_gradient() -> Program:
    """Rows of a gradient added up by token: 1,000 tokens of a vocabulary of 300."""
    b = ProgramBuilder([(I32, 1000), (F32, 1000 * 40)])
    tokens, gradient = b.input(0), b.input(1).reshape(1000, 40)
    hot = b.map(
        (300, 1000), [b.iota((300, 1000), 0), tokens.unsqueeze(0).expand(300, 1000)],
        lambda e, own, token: e.i2f(e.ieq(own, token)), name="hot",
    )  # fmt: skip
    columns = b.map((40, 1000), [gradient.permute(1, 0)], name="columns")
    return b.finish([b.dot(hot.unsqueeze(1), columns)])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("infinite", [False, True])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("side", [64, 128])
def test_tiles_of_zeros_are_not_multiplied(
    side: int, split: bool, infinite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "_tiling", lambda m, n, batches, k: (side, split))
    program, rng = embedding_gradient(), np.random.default_rng(3)
    assert "SPARSE = true" in generate.generate(program).source
    # In order, so that large tiles have zeros, too.
    tokens, gradient = np.sort(rng.integers(0, 300, 1000)).astype(np.int32), normal(rng, 1000 * 40)
    gradient[::7] = -0.0
    if infinite:  # it meets zeros, which makes it a NaN in every row
        gradient[[37, 20_003]] = np.inf, np.nan
    Both(program).agree([tokens, gradient], CONTEXT)
    if infinite:
        mutant = Mutant("(right.held[v] & f32::INFINITE) == f32::INFINITE", "false")
        found = CudaExecutable(program, device=mutant).run([tokens, gradient], CONTEXT)
        due = paths.compile(program).run([tokens, gradient], CONTEXT)
        assert not np.array_equal(words(found[0]), words(due[0])), "an infinity behind zeros"


@pytest.mark.parametrize(
    ("shape", "form"),
    [
        ((4096, 50_257, 1, 768), (128, False)), ((768, 768, 1, 4096), (128, True)), ((3072, 768, 1, 4096), (128, True)),
        ((1024, 64, 48, 768), (64, False)), ((64, 64, 1, 64), (64, False)), ((4096, 768, 1, 50_257), (128, False)),
    ],
)  # fmt: skip
def test_the_busiest_multiprocessor_decides_a_tiling(shape: tuple[int, ...], form: tuple[int, bool]) -> None:
    """Many whole tiles; few of them cut by chunks, as far as their results fit; small ones for small matrices."""
    assert generate._tiling(*shape) == form


@pytest.mark.sampled(1)
@pytest.mark.parametrize("descending", [False, True])
def test_reductions(descending: bool) -> None:
    B, M, K = 3, 29, 600
    b = ProgramBuilder([(F32, B * M * K), (F32, 70_000), (I32, 700)])
    x = b.input(0).reshape(B, M, K)
    columns = b.map((B, K, M), [x.permute(0, 2, 1)], name="columns")
    outputs = [fold(t) for t in (x, columns, b.input(1)) for fold in (b.sum, b.max, b.min)]
    outputs += [
        b.dot(b.input(1), b.input(1)),
        b.dot(b.input(1).slice(0, 0, 60_000), b.input(1).slice(0, 7, 60_007)),
        b.dot(b.word((700,), 0x3F800001, F32), b.word((700,), 0x3F800001, F32)),
        b.sum(b.input(2)),
        b.sum(b.iota((5, 300), 1)),
        b.sum(b.word((9,), 1, F32)),
    ]
    windows = View(Tag.STATE, 0, 0, (1, 1))
    b.ops.append(Op(Kind.FOLD, F32, (1000,), (windows,), (K,), Fold.SUM))
    b.names.append("overlapping windows")
    both = Both(b.finish(outputs), descending=descending)
    for data in (normal, strange):
        both.agree(filled(both.program, data), CONTEXT)


def test_words_are_moved_as_they_are() -> None:
    rng = np.random.default_rng(3)
    b = ProgramBuilder([(F32, 120), (I32, 60), (F32, 1 << 18)])
    x = b.input(0).reshape(4, 6, 5)
    turned = b.input(0).reshape(5, 6, 4).permute(2, 1, 0)
    outputs = [b.concat([x, turned, x.slice(axis, 1, 2), b.word((4, 6, 5), 0, F32)], axis=axis) for axis in range(3)]
    outputs += [
        b.gather(b.input(1).reshape(12, 5), b.input(0).reshape(12, 10)),
        b.gather(b.iota((20,), 0, start=-2), b.input(0).reshape(12, 10), axis=1),
        b.random((4100,), stream=4),
        b.draw(6, 17),
        b.draw(3, 17, first=6),
        b.map((1 << 18,), [b.input(2)], lambda e, v: e.fexp(v), name="four elements a thread"),
    ]
    dataset = rng.integers(-9, 9, (50, 17)).astype(np.int32)
    index = rng.integers(-3, 14, 60).astype(np.int32)
    Both(b.finish(outputs)).agree([strange(rng, 120), index, strange(rng, 1 << 18), None], CONTEXT, dataset)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("elements", [66_000, 1, 255, 256, 257, 2000])
def test_roots_of_the_device_are_those_of_the_arrays(elements: int) -> None:
    b = ProgramBuilder([(F32, elements), (I32, None)])
    program = b.finish([b.map((elements,), [b.input(0)]), b.input(1)])
    executable = CudaExecutable(program, device=Emulator())
    state = [normal(np.random.default_rng(4), elements), np.array(7, np.int32)]
    resident = executable.step(executable.upload(state), CONTEXT)
    assert executable.root(resident) == layout_root(program.output_layout, executable.download(resident))


# --- what would break them ---------------------------------------------------------------------------------


def test_the_emulated_device_passes_the_self_test() -> None:
    check_device(Emulator())


def test_a_device_that_rounds_twice_is_refused() -> None:
    fma = "f32::raw::fma(value(r0), value(r1), value(r2))"
    with pytest.raises(DoctorError, match="fma"):
        check_device(Mutant(fma, "value(r0) * value(r1) + value(r2)"))


@pytest.mark.slow
def test_a_device_whose_chains_round_twice_is_refused() -> None:
    with pytest.raises(DoctorError, match="chunk"):
        check_device(Mutant("f32::raw::fma(value(a), value(b), value(chain))", "value(a) * value(b) + value(chain)"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("barrier", range(3))
def test_every_barrier_is_needed(barrier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulation would show one that is missing."""
    monkeypatch.setattr(generate, "BUSY_BLOCKS", 1)
    b = ProgramBuilder([(F32, 70 * 300), (F32, 70 * 300)])
    x, y = (b.input(k).reshape(70, 300) for k in range(2))
    program = b.finish([b.dot(x.unsqueeze(1), y), b.sum(x)])
    rng = np.random.default_rng(5)
    state = [normal(rng, 70 * 300), normal(rng, 70 * 300)]
    due = paths.compile(program).run(state, CONTEXT)
    shown = False
    for descending in (False, True):
        mutant = Mutant("__syncthreads();", "", which=barrier, descending=descending)
        got = CudaExecutable(program, device=mutant).run(state, CONTEXT)
        shown |= any((words(own) != words(other)).any() for own, other in zip(due, got, strict=True))
    assert shown, f"the emulation does not miss barrier {barrier}"


def test_a_write_beyond_a_tensor_is_seen() -> None:
    b = ProgramBuilder([(F32, 64)])
    program = b.finish([b.map((64,), [b.input(0)])])
    device = Mutant("out[static_cast<int>(i)] =", "out[static_cast<int>(i) + 1] =")
    CudaExecutable(program, device=device).run([np.ones(64, np.float32)], CONTEXT)
    assert not device.intact


# --- plans -------------------------------------------------------------------------------------------------


def test_layers_share_kernels_and_copies_are_read_through() -> None:
    b = ProgramBuilder([(F32, 4 * 64 * 64), (F32, 64 * 64)])
    x = b.input(1).reshape(64, 64)
    for layer in range(4):
        weights = b.input(0).slice(0, layer * 4096, (layer + 1) * 4096).reshape(64, 64)
        turned = b.map((64, 64), [weights.permute(1, 0)])
        x = b.dot(x.unsqueeze(1), turned)
    program = b.finish([b.map((4096,), [x.reshape(4096)])])
    generated = generate.generate(program)
    assert generated.source.count("LOCKSTEP_EXPORT(product") == 1, "one kernel for four layers"
    needed = plan(program, generated.launches).needed
    assert [i for i, wanted in enumerate(needed) if not wanted] == [0, 2, 4, 6], "nobody reads the transposes"


def test_only_folds_that_keep_their_partial_results_are_bounded() -> None:
    b = ProgramBuilder([(F32, 1 << 30), (F32, 1 << 24)])
    x, y = b.input(0).reshape(1 << 18, 1 << 12), b.input(1).reshape(1 << 12, 1 << 12)
    (launch,) = generate.generate(b.finish([b.dot(x.unsqueeze(1), y)])).launches[0]
    assert launch.blocks == 1 << 16, "2^30 outputs of 16 chunks each, in tiles of 128 x 128"
    b.sum(b.input(1).reshape(1, 1 << 12, 1 << 12).expand(1 << 16, 1 << 12, 1 << 12))
    with pytest.raises(UsageError, match="too many partial results"):
        generate.generate(b.finish([None]))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shown", [False, True])
def test_no_op_lies_where_one_that_is_still_read_does(shown: bool) -> None:
    for own in (products(), Maker(11).step().program, limbs()):
        generated = generate.generate(own)
        launches = generated.shown if shown else generated.launches
        arena = plan(own, launches, shown)
        assert set(arena.offsets) == set(range(len(own.ops))) or not shown, "all ops are shown"
        written, read = list(map(writes, launches)), list(map(reads, launches))
        first = {op: i for i, ops in enumerate(written) if arena.needed[i] for op in ops & set(arena.offsets)}
        assert set(first) == set(arena.offsets), "what has a place is computed"
        last = dict(first)
        for i, ops in enumerate(read):
            if arena.needed[i]:
                last.update(dict.fromkeys(ops & set(last), i))
        for i, at in arena.offsets.items():
            for j, other in arena.offsets.items():
                if i != j and first[i] <= first[j] <= last[i]:
                    sizes = own.ops[i].header.elements, own.ops[j].header.elements
                    assert at + sizes[0] <= other or other + sizes[1] <= at, f"ops {i} and {j} overlap"


def limbs() -> Program:
    """Quants that run in the place of the first of them."""
    b = ProgramBuilder([(F32, 4 * 256)])
    x = b.input(0).reshape(4, 256)
    parts = [two_limbs(b, b.map((4, 256), [x]), 16, 1 << 31, str(n)) for n in range(3)]
    left, right = (joined(b, [high, low], name) for name, (high, low) in zip("ab", parts, strict=False))
    return b.finish([b.qdot(left.unsqueeze(1), right), parts[2][1].codes])


# --- the edges ---------------------------------------------------------------------------------------------


def simple() -> Program:
    b = ProgramBuilder([(F32, 4), None, (I32, None)])
    return b.finish([b.map((4,), [b.input(0)], lambda e, x: e.fadd(x, x)), b.input(2)])


def test_the_state_stays_on_the_device() -> None:
    executable = CudaExecutable(simple(), device=Emulator())
    first = executable.upload([np.ones(4, np.float32), None, np.array(3, np.int32), None])
    second = executable.step(first, CONTEXT)
    assert second[1] is first[2], "an alias of the input copies nothing"
    third = executable.step((second[0], None, second[1], None), CONTEXT)
    values = [
        array.tolist() for state in (second, third) for array in executable.download(state)[:1] if array is not None
    ]
    assert values == [[2.0] * 4, [4.0] * 4], "an earlier state stays what it was"


def again() -> Program:
    """A step whose state has three tensors of one size, which a launch of each op computes."""
    b = ProgramBuilder([(F32, 300)] * 3)
    x, y, z = (b.input(k) for k in range(3))
    return b.finish(
        [
            b.map((300,), [x, y], lambda e, x, y: e.fadd(e.fmul(x, e.f32(0.5)), y), name="sum"),
            b.map((300,), [y, z], lambda e, y, z: e.fsub(y, z), name="difference"),
            b.map((300,), [z, x], lambda e, z, x: e.fmul(z, x), name="product"),
        ]
    )


class Counting(Emulator):
    """A device that counts what is launched by itself, and what was recorded before."""

    def __init__(self) -> None:
        super().__init__()
        self.alone, self.together, self.recorded = 0, 0, 0

    def load(self, source: str) -> CountedKernels:
        return CountedKernels(self, super().load(source))


class CountedKernels:
    def __init__(self, device: Counting, kernels: Kernels) -> None:
        self._device, self._kernels = device, kernels

    def launch(self, name: str, blocks: int, threads: int, shared: int, arguments: int) -> None:
        self._device.alone += 1
        self._kernels.launch(name, blocks, threads, shared, arguments)

    def record(self, nodes: Sequence[RecordedLaunch]) -> Callable[[], None]:
        start = self._kernels.record(nodes)
        self._device.recorded += 1

        def counted() -> None:
            self._device.together += 1
            start()

        return counted


def test_a_step_whose_tensors_lie_where_they_did_is_started_at_once() -> None:
    program, device = again(), Counting()
    executable, processor = CudaExecutable(program, device=device), paths.compile(program)
    state: Sequence[Array | None] = filled(program, normal)
    resident = executable.upload(state)
    for _ in range(20):
        resident = executable.step(resident, CONTEXT)
        state = processor.run(state, CONTEXT)
        for own, other in zip(executable.download(resident), state, strict=True):
            assert (own is None) == (other is None)
            if own is not None and other is not None:
                np.testing.assert_array_equal(words(own), words(other))
    assert device.recorded <= loaded.GRAPHS
    assert device.together >= 12
    assert device.alone + 3 * device.together == 3 * 20


def test_a_recorded_step_is_given_up_for_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sets of places in turn, and room for one."""
    monkeypatch.setattr(loaded, "GRAPHS", 1)
    program, device = again(), Counting()
    executable = CudaExecutable(program, device=device)
    resident = executable.upload(filled(program, normal))
    for _ in range(8):
        resident = executable.step(resident, CONTEXT)
    assert (device.recorded, device.together) == (0, 0)
    assert len(executable._loaded._step._recorded) == 1


def test_an_executable_keeps_few_recorded_steps() -> None:
    """A caller that keeps all its states gives every step other places, and nothing is recorded."""
    program, device = again(), Counting()
    executable = CudaExecutable(program, device=device)
    states = [executable.upload(filled(program, normal))]
    for _ in range(loaded.GRAPHS + 3):
        states.append(executable.step(states[-1], CONTEXT))
    assert (device.recorded, device.together) == (0, 0)
    first = executable.step(states[0], CONTEXT)
    assert [words(a).tolist() for a in executable.download(first) if a is not None] == [
        words(a).tolist() for a in executable.download(states[1]) if a is not None
    ]


def test_a_profile_names_the_ops_that_run() -> None:
    program = products(SHAPES[1:2])
    spent = CudaExecutable(program, device=Emulator()).profile(filled(program, normal), CONTEXT)
    unread = [i for i, nanoseconds in enumerate(spent) if nanoseconds == 0]
    assert unread == [i for i, name in enumerate(program.names) if name == "turned"], "copies that are read through"


def test_a_tensor_of_another_header_is_refused() -> None:
    executable = CudaExecutable(simple(), device=Emulator())
    with pytest.raises(PayloadInvalid, match="state entry 0"):
        executable.upload([np.ones(5, np.float32), None, np.array(3, np.int32), None])


def test_a_dataset_that_changes_is_copied_again() -> None:
    b = ProgramBuilder([])
    executable = CudaExecutable(b.finish([b.draw(1, 3)]), device=Emulator())
    dataset = np.zeros((4, 3), np.int32)
    assert not executable.run([None], CONTEXT, dataset)[0].any()  # type: ignore[union-attr]
    dataset += 1
    assert executable.run([None], CONTEXT, dataset)[0].all()  # type: ignore[union-attr]


def test_without_a_device_the_path_is_refused() -> None:
    try:
        open_device()
    except UsageError:
        with pytest.raises(UsageError, match=r"cuda|CUDA") as refused:
            paths.compile(simple(), path="cuda")
        assert refused.value.hint
    else:
        pytest.skip("this machine has a CUDA device")


def test_without_the_bindings_the_hint_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_bindings(name: str) -> object:
        raise ImportError(name) if name.startswith("cuda.") else AssertionError(name)

    monkeypatch.setattr("lockstep.numerics.cuda.device.import_module", no_bindings)
    open_device.cache_clear()
    with pytest.raises(UsageError) as refused:
        paths.compile(simple(), path="cuda")
    assert "lockstep-compute[cuda]" in refused.value.hint


class Choosy(Emulator):
    """A device whose compiler takes its own sources, or not even those."""

    def __init__(self, own: bool) -> None:
        super().__init__()
        self.own, self.asked = own, list[str]()

    def load(self, source: str) -> Any:
        self.asked.append(source)
        if source == loaded.OWN_SOURCE and self.own:
            return None
        raise DoctorError("NVRTC compiles no kernels for sm_90: the source nests too deep", hint="")


def test_a_program_that_does_not_compile_is_refused_and_ends_nothing() -> None:
    device = Choosy(own=True)
    with pytest.raises(Crashed, match=r"do not compile: .*nests too deep") as refused:
        CudaExecutable(products(SHAPES[:1]), device=device)
    assert refused.value.code == "crashed", "as a job that ends its child"
    assert device.asked[1:] == [loaded.OWN_SOURCE]
    assert Emulator().load(loaded.OWN_SOURCE), "a compiler that works takes it"


def test_a_compiler_that_takes_not_even_our_own_source_is_broken() -> None:
    with pytest.raises(DoctorError) as broken:
        CudaExecutable(products(SHAPES[:1]), device=Choosy(own=False))
    assert broken.value.code == "doctor"
    for own in (True, False):
        with pytest.raises(DoctorError) as broken:
            check_device(Choosy(own=own))
        assert broken.value.code == "doctor", "the self-test's Program is ours"


def test_more_source_than_is_compiled_is_left_to_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded, "MOST_SOURCE", 1000)
    device = Choosy(own=True)
    with pytest.raises(UsageError, match="more than the limit of 1,000"):
        CudaExecutable(products(SHAPES[:1]), device=device)
    assert device.asked == [], "no compiler sees it"
