"""Compiled loops: the interpreter's bits on every path, in every layout, for every opcode; and no compiler, no harm."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from lockstep.numerics import arrays, executor, fused, libraries, loops, paths
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import Expression, ProgramBuilder
from lockstep.numerics.scalar import ARITY, Opcode
from lockstep.protocol.errors import DoctorError, UsageError
from lockstep.protocol.merkle import TensorHeader
from lockstep.protocol.programs.program import F32, Alias, Kind, Program
from tests.support.random_ops import SIZES, Maker
from tests.unit.numerics.comparison import CONTEXT, PATHS, compare, normal, strange, words

pytestmark = pytest.mark.skipif(libraries.find_compiler() is None, reason="no C++ compiler on this machine")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path_factory.getbasetemp() / "loops"
    monkeypatch.setenv("LOCKSTEP_CACHE", str(place))
    monkeypatch.delenv("LOCKSTEP_FUSED", raising=False)


def compare_fused(program: Program, state: Sequence[Array | None], *, on: Sequence[str] = PATHS) -> None:
    """Asserts the interpreter's bits of every output on each path, at one thread and at three."""
    due = paths.compile(program, path="scalar", fused="off").run(state, CONTEXT)
    for path in on:
        for threads in (1, 3):
            executable = paths.compile(program, path=path, threads=threads, fused="require")
            assert executable.compiled
            for k, (got, wanted) in enumerate(zip(executable.run(state, CONTEXT), due, strict=True)):
                label = f"output {k} ({program.name_of(program.outputs[k].index)}) on {path} with {threads} threads"
                if wanted is not None:
                    np.testing.assert_array_equal(words(got), words(wanted), err_msg=label)


def blend(e: Expression, *x: int) -> int:
    acc = x[0]
    for register in x[1:]:
        acc = e.fadd(e.fmul(acc, e.f32(0.5)), register)
    return acc


# --- the bits ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_each_opcode_alone_and_after_those_that_defer_their_nan(pairs: str) -> None:
    n = 1100
    b = ProgramBuilder([(F32, n), (F32, n), (F32, n)])
    x = [b.input(k) for k in range(3)]
    outputs = []
    for op in Opcode:
        if op == Opcode.IMM:
            continue
        reads = ARITY[op]
        outputs.append(b.map((n,), x, lambda e, *r, op=op, reads=reads: e.apply(op, *r[:reads]), name=op.name))
        for k, before in enumerate(loops.FLOATS):
            if pairs == "some" and k != op % len(loops.FLOATS):
                continue

            def chain(e: Expression, *r: int, op: Opcode = op, before: Opcode = before, reads: int = reads) -> int:
                return e.apply(op, *[e.apply(before, *r[: ARITY[before]]), *r[1:]][:reads])

            outputs.append(b.map((n,), x, chain, name=f"{op.name} of {before.name}"))
    rng = np.random.default_rng(1)
    state = [strange(rng, n), strange(rng, n), rng.integers(-40, 40, n).astype(np.int32).view(np.float32)]
    compare_fused(b.finish(outputs), [*state, None])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_random_maps_of_random_views(seed: int) -> None:
    """Sixty maps, each of views of the state, of constants and of maps before it; every other one is an output."""
    rng, maker = np.random.default_rng(seed), Maker(seed)
    for _ in range(60):
        maker.ops.append(maker.op(Kind.MAP))
    shapes = [() if n == 1 else (n,) for n in SIZES]
    state = [strange(rng, n).reshape(shape) for n, shape in zip(SIZES, shapes, strict=True)]
    program = Program(
        tuple(maker.ops),
        tuple(TensorHeader(F32, shape) for shape in shapes),
        tuple(Alias(Alias.OP_KIND, min(i, 59)) for i in range(1, 65, 2)),
        tuple(arrays.const(array) for array in state),
    )
    compare_fused(program, state)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "shape",
    [(), (1,), (1025,), (40000,), (3, 5), (70, 33), (2, 40, 9), (2, 3, 4, 5), (1, 300, 1), (9, 1030), (5, 20, 64)],
)
def test_operands_of_every_layout(shape: tuple[int, ...]) -> None:
    """Contiguous, transposed, reversed, strided, broadcast along each axis, iota, context; alone and shared."""
    rng = np.random.default_rng((7, *shape))
    size, rank = int(np.prod(shape, dtype=int)), len(shape)
    b = ProgramBuilder([(F32, 2 * size), (F32, None)])
    whole = b.input(0).slice(0, 0, size).reshape(*shape)
    turned = b.input(0).slice(0, 0, size).reshape(*reversed(shape)).permute(*reversed(range(rank)))
    strided = whole if not rank else b.input(0)._with(shape, [2 * s for s in whole.strides])
    reverse = whole._with(shape, [-s for s in whole.strides], size - 1)
    broadcast = [whole.slice(axis, 0, 1).expand(*shape) for axis in range(rank)]
    iota = [b.iota(shape, axis, start=-3, step=axis + 1) for axis in range(rank)] or [b.word((), 9)]
    first = b.map(shape, [whole, turned, strided, reverse], blend, name="layouts")
    second = b.map(shape, [first, *broadcast[:5]], blend, name="broadcasts")
    third = b.map(shape, [second, whole, b.input(1)], blend, name="of both")
    flat = b.map((size,), [third.reshape(size)], lambda e, x: e.fmul(x, e.f32(3.0)), name="flattened")
    computed = b.map(shape, [*iota[:4], b.context(2)], lambda e, *v: e.ilt(v[0], e.iadd(v[-1], v[-2])), name="computed")
    mirrored = b.map(shape, [third._with(shape, [-s for s in third.strides], size - 1)], blend, name="mirrored")
    constant = b.map(shape, [b.input(1)], lambda e, x: e.fmul(x, e.f32(0.25)), name="a value for all")
    program = b.finish([second, flat, computed, mirrored, constant])
    state = [strange(rng, 2 * size), np.array(1.5, np.float32)]
    compare_fused(program, state)
    compare(program, state)


@pytest.mark.slow
def test_results_too_large_for_a_cache() -> None:
    """Written past it, in rows that begin anywhere in a line."""
    shape = (2052, 2047)
    n = shape[0] * shape[1]
    b = ProgramBuilder([(F32, n), (F32, n), (F32, shape[0])])
    x, y = b.input(0).reshape(*shape), b.input(1).reshape(*shape)
    scaled = b.map(shape, [x, b.input(2).unsqueeze(1).expand(*shape)], lambda e, v, w: e.fmul(v, w), name="scaled")
    both = b.map(shape, [scaled, y, b.iota(shape, 1)], lambda e, v, w, i: e.ffma(v, w, e.i2f(i)), name="both")
    turned = b.map(shape, [b.input(1).reshape(*reversed(shape)).permute(1, 0)], lambda e, v: e.fneg(v), name="turned")
    program = b.finish([scaled, both, turned])
    rng = np.random.default_rng(8)
    assert all(streams for *_, streams in paths.compile(program)._executor.loops())
    compare_fused(program, [strange(rng, n), strange(rng, n), strange(rng, shape[0]), None])


def test_a_loop_stores_what_is_read_elsewhere_and_nothing_else() -> None:
    b = ProgramBuilder([(F32, 5000), (F32, 5000)])
    x, y = b.input(0), b.input(1)
    scaled = b.map((5000,), [x], lambda e, v: e.fmul(v, e.f32(0.5)), name="inside")
    moment = b.map((5000,), [scaled, y], lambda e, v, w: e.fadd(v, w), name="read by a fold, too")
    moved = b.map((5000,), [moment, y], lambda e, v, w: e.fmul(v, w), name="output")
    program = b.finish([moved, b.sum(moment)])
    told = paths.compile(program)._executor.loops()
    assert [(len(operands), len(results)) for _, operands, _, results, _ in told] == [(2, 2)]
    rng = np.random.default_rng(2)
    compare_fused(program, [strange(rng, 5000), strange(rng, 5000)])


def test_what_a_fold_reads_in_between_is_computed_before_it() -> None:
    """x -> a -> sum(a) -> b: a and b cover the same elements, but b waits for the sum."""
    b = ProgramBuilder([(F32, 6000)])
    a = b.map((20, 300), [b.input(0).reshape(20, 300)], lambda e, v: e.fmul(v, v), name="a")
    total = b.sum(a)
    c = b.map((20, 300), [a, total.unsqueeze(1).expand(20, 300)], lambda e, v, s: e.fdiv(v, s), name="b")
    program = b.finish([c])
    assert len(paths.compile(program)._executor.loops()) == 2
    compare_fused(program, [strange(np.random.default_rng(3), 6000)])


def test_memory_of_a_delayed_map_is_not_reused_too_early() -> None:
    """Maps in chains that share operands, with unrelated ops between them."""
    b = ProgramBuilder([(F32, 4096)])
    x, outputs = b.input(0), []
    for i in range(6):
        left = b.map((4096,), [x], lambda e, v, i=i: e.fadd(v, e.f32(i)), name=f"left {i}")
        other = b.map((64, 64), [b.input(0).reshape(64, 64).permute(1, 0)], lambda e, v: e.fneg(v), name=f"other {i}")
        right = b.map((4096,), [x, left], lambda e, v, w: e.fmul(v, w), name=f"right {i}")
        outputs.append(b.sum(other))
        x = b.map((4096,), [right, left], lambda e, v, w: e.fsub(v, w), name=f"joined {i}")
    compare_fused(b.finish([x, *outputs]), [normal(np.random.default_rng(4), 4096)])


# --- when code is compiled, and when not -------------------------------------------------------------------


def large() -> Program:
    """A Program whose maps are worth compiling."""
    b = ProgramBuilder([(F32, 1 << 20)])
    return b.finish([b.map((1 << 20,), [b.input(0)], lambda e, x: e.fadd(e.fmul(e.fmul(x, x), x), e.fexp(x)))])


def small() -> Program:
    b = ProgramBuilder([(F32, 100)])
    return b.finish([b.map((100,), [b.input(0)], lambda e, x: e.fadd(x, x))])


def settled(executable: executor.Executable, state: Sequence[Array | None]) -> bool:
    """Whether compiled code takes over within two minutes."""
    end = time.monotonic() + 120
    while not executable.compiled and time.monotonic() < end:
        executable.run(state, CONTEXT)
        time.sleep(0.02)
    return executable.compiled


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_compiled_code_takes_over_between_runs_and_another_executable_finds_it(empty: Path) -> None:
    state = [normal(np.random.default_rng(5), 1 << 20)]
    executable = paths.compile(large())
    first = executable.run(state, CONTEXT)[0]
    assert not executable.compiled
    assert not list(empty.glob("*.so")), "what runs once is not compiled for"
    assert settled(executable, state)
    np.testing.assert_array_equal(words(executable.run(state, CONTEXT)[0]), words(first))
    another = paths.compile(large())
    another.run(state, CONTEXT)
    assert another.compiled, "a library that is there is taken at once"


def test_small_programs_are_not_compiled(empty: Path) -> None:
    executable = paths.compile(small())
    for _ in range(4):
        executable.run([np.ones(100, np.float32)], CONTEXT)
    assert not any(thread.name == "lockstep-fuse" for thread in threading.enumerate())
    assert not empty.exists()


def test_off_compiles_nothing(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_FUSED", "off")
    executable = paths.compile(large())
    state = [normal(np.random.default_rng(6), 1 << 20)]
    for _ in range(3):
        executable.run(state, CONTEXT)
    assert not executable.compiled
    assert not empty.exists()


def test_a_compiler_is_given_what_is_worth_most_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 1 << 20
    b = ProgramBuilder([(F32, n), (F32, 4 * n)])
    dear = b.map((n,), [b.input(0)], lambda e, x: e.fexp(e.flog(x)))
    much = b.map((4 * n,), [b.input(1)], lambda e, x: e.fadd(e.fmul(x, x), x))
    executor = paths.compile(b.finish([dear, much]), fused="off")._executor

    def compiled() -> list[int]:
        return sorted(loops.cost(e) for e in fused.Fusion(executor, "auto", "auto")._found.values())

    both = compiled()
    assert len(both) == 2
    assert both[0] < loops.FUNCTION_COST < both[1], "the one with transcendental functions costs more and is worth less"
    monkeypatch.setattr(fused, "MOST_COST", sum(both) - 1)
    assert compiled() == both[:1]
    monkeypatch.setattr(fused, "MOST_COST", both[0] - 1)
    assert compiled() == []


def test_an_unknown_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="sometimes"):
        paths.compile(small(), fused="sometimes")
    monkeypatch.setenv("LOCKSTEP_FUSED", "perhaps")
    with pytest.raises(UsageError, match="perhaps"):
        paths.compile(small())


def test_without_a_compiler_maps_are_interpreted(
    empty: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "a-compiler-that-is-not-there")
    with pytest.raises(DoctorError, match="no C\\+\\+ compiler"):
        paths.compile(small(), fused="require")
    executable = paths.compile(large())
    state = [normal(np.random.default_rng(7), 1 << 20)]
    with caplog.at_level(logging.DEBUG, logger=fused.__name__):
        outputs = [executable.run(state, CONTEXT)[0] for _ in range(4)]
    assert not executable.compiled
    assert len({words(output).tobytes() for output in outputs}) == 1
    assert [record.levelname for record in caplog.records] == ["DEBUG"], "one line, and only for who asks"


def test_a_compiler_that_fails_is_named(empty: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken-c++"
    broken.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && exec echo broken 1.0\necho again >> {tmp_path}/asked\n'
        'echo "out of ideas" >&2\nexit 1\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    for _ in range(3):
        with pytest.raises(DoctorError, match="out of ideas"):
            paths.compile(small(), fused="require")
    assert (tmp_path / "asked").read_text() == "again\n", "a failure is not tried again"


@pytest.mark.parametrize("path", PATHS)
def test_a_compiler_that_errs_is_found_out(empty: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """A sum whose product was contracted into it gives other bits in a few places, and is not taken."""
    n = 1 << 20
    b = ProgramBuilder([(F32, n), (F32, n)])
    program = b.finish([b.map((n,), [b.input(0), b.input(1)], lambda e, x, y: e.ffma(x, y, e.f32(1.0)))])
    monkeypatch.setitem(loops.FLOATS, Opcode.FFMA, "{0} * {1} + {2}")
    with pytest.raises(DoctorError, match="other bits"):
        paths.compile(program, path=path, fused="require")
    state = [normal(np.random.default_rng(9), n), normal(np.random.default_rng(10), n)]
    executable = paths.compile(program, path=path)
    outputs = [words(executable.run(state, CONTEXT)[0])]
    monkeypatch.undo()
    outputs.append(words(paths.compile(program, path=path, fused="off").run(state, CONTEXT)[0]))
    np.testing.assert_array_equal(*outputs)


def test_every_opcode_has_one_form() -> None:
    for op in Opcode:
        assert (op in loops.FLOATS) + (op in loops.OTHERS) + (op == Opcode.IMM) == 1, op.name
