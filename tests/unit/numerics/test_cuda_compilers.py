"""The generated source under NVIDIA's compilers, on a machine that has them; neither needs a device."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from benchmarks import inner_loops
from lockstep.numerics.builder import ProgramBuilder
from lockstep.numerics.cuda import wide
from lockstep.numerics.cuda.device import ARITHMETIC, HEADERS, UNITS, compile_source, compiler_version, unit_of
from lockstep.numerics.cuda.generate import generate
from lockstep.numerics.scalar import ARITY, Opcode
from lockstep.protocol.errors import DoctorError, UsageError
from lockstep.protocol.programs.program import F32
from tests.support.random_ops import Maker
from tests.unit.numerics import test_cuda_codes, test_cuda_tiles
from tests.unit.numerics.test_cuda import products

ARCHITECTURES = ("sm_70", "sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_103", "sm_120")
ROUNDED = re.compile(r"\b((?:add|sub|mul|fma|div|sqrt|rcp|ex2|lg2|sin|cos|tanh|mad)(?:\.\w+)*\.f(?:32|64)(?:x2)?)\b")


@pytest.fixture(scope="module")
def source() -> str:
    """Kernels of every kind of op and fold, a product of every layout."""
    wide, narrow = generate(Maker(0).step().program), generate(products())
    return wide.source + narrow.source.replace('#include "kernels.cuh"', "")


@pytest.fixture(params=test_cuda_codes.FORMS)
def codes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Products of codes of every width and layout, in one of their forms."""
    test_cuda_codes.take(request.param, monkeypatch)
    return generate(test_cuda_codes.products(), inner_loops.SHARED_BYTES).source


@pytest.fixture(params=[test_cuda_tiles.FLOATS, test_cuda_tiles.CODES])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Attention in tiles, forward and backward, with heads that share keys."""
    monkeypatch.setattr(wide, "LEAST_WORDS", 1)
    monkeypatch.setattr(wide, "LEAST_BLOCKS", 1)
    program = test_cuda_tiles.attention(test_cuda_tiles.Shape(2, 2, 33, 530, 64), request.param)
    source = generate(program, inner_loops.SHARED_BYTES).source
    assert source.count("_tiles{") == len(test_cuda_tiles.REDUCTIONS)
    return source


@pytest.fixture(scope="module")
def nvcc() -> str:
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("no nvcc on this machine")
    return found


def compiled(nvcc: str, source: str, folder: Path, options: Sequence[str]) -> Path:
    unit, out = folder / "program.cu", folder / "program.out"
    unit.write_text(source)
    folders = [f"-I{path.parent}" for path in HEADERS]
    command = [nvcc, "-std=c++20", *ARITHMETIC, *folders, *options, str(unit), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr, done.stderr
    return out


EACH = pytest.mark.parametrize(
    "architecture", [a if a == "sm_90" else pytest.param(a, marks=pytest.mark.slow) for a in ARCHITECTURES]
)


@pytest.mark.slow
@EACH
def test_nvcc_makes_machine_code(nvcc: str, source: str, architecture: str, tmp_path: Path) -> None:
    _check_machine_code(nvcc, source, architecture, tmp_path)


@pytest.mark.slow
@EACH
def test_nvcc_makes_machine_code_of_products_of_codes(nvcc: str, codes: str, architecture: str, tmp_path: Path) -> None:
    _check_machine_code(nvcc, codes, architecture, tmp_path)


@pytest.mark.parametrize(
    "architecture", [a if a == "sm_90a" else pytest.param(a, marks=pytest.mark.slow) for a in inner_loops.ARCHITECTURES]
)
def test_nvrtc_takes_attention_in_tiles(tiles: str, architecture: str) -> None:
    try:
        assert compile_source(tiles, architecture)[:4] == b"\x7fELF"
    except UsageError as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_attention_in_tiles_has_no_other_float_operation_than_products_have(
    nvcc: str, tiles: str, tmp_path: Path
) -> None:
    found = set(ROUNDED.findall(compiled(nvcc, tiles, tmp_path, ["-ptx", "-arch=compute_90"]).read_text()))
    assert found == {"add.rn.f32", "sub.rn.f32", "mul.rn.f32", "fma.rn.f32", "div.rn.f32"}


@pytest.mark.slow
@pytest.mark.parametrize("unit", range(len(UNITS)))
def test_nvcc_takes_every_unit(nvcc: str, codes: str, unit: int, tmp_path: Path) -> None:
    """Also those of devices for which this nvcc makes no code."""
    assert compiled(nvcc, codes, tmp_path, ["-cubin", "-arch=sm_90a", f"-DLOCKSTEP_UNIT={unit}"]).stat().st_size > 0


def _check_machine_code(nvcc: str, source: str, architecture: str, tmp_path: Path) -> None:
    known = subprocess.run([nvcc, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    if architecture.rstrip("a") not in known:
        pytest.skip(f"this nvcc knows no {architecture}")
    assert compiled(nvcc, source, tmp_path, ["-cubin", f"-arch={architecture}"]).stat().st_size > 0


def every_opcode() -> str:
    """A map of each opcode, as source that follows another one."""
    b = ProgramBuilder([(F32, 9), (F32, 9), (F32, 9)])
    opcodes = [op for op in Opcode if op != Opcode.IMM]
    operands = [b.input(k) for k in range(3)]
    results = [b.map((9,), operands[: ARITY[op]], lambda e, *r, op=op: e.apply(op, *r)) for op in opcodes]
    return generate(b.finish(results)).source.replace('#include "kernels.cuh"', "")


@pytest.mark.slow
def test_every_float_operation_rounds_to_nearest_and_keeps_subnormals(nvcc: str, source: str, tmp_path: Path) -> None:
    """For every opcode beside products and folds: nothing is flushed, approximated or widened."""
    text = compiled(nvcc, source + every_opcode(), tmp_path, ["-ptx", "-arch=compute_90"]).read_text()
    found = set(ROUNDED.findall(text))
    assert found == {"add.rn.f32", "sub.rn.f32", "mul.rn.f32", "fma.rn.f32", "div.rn.f32", "sqrt.rn.f32"}


@pytest.mark.slow
def test_floats_by_two_round_as_one_by_one(nvcc: str, tmp_path: Path) -> None:
    source = generate(test_cuda_codes.products(test_cuda_codes.SHAPES[:1])).source
    found = set(ROUNDED.findall(compiled(nvcc, source, tmp_path, ["-ptx", "-arch=compute_100"]).read_text()))
    assert found == {"add.rn.f32x2", "mul.rn.f32x2", "add.rn.f32"}, "the last sum joins an empty level"


@pytest.mark.parametrize(
    "architecture", [a if a == "sm_90a" else pytest.param(a, marks=pytest.mark.slow) for a in inner_loops.ARCHITECTURES]
)
def test_inner_loops_of_products_of_codes_do_not_spill(architecture: str) -> None:
    try:
        loop, lines = inner_loops.count(architecture)
    except UsageError as error:
        pytest.skip(str(error))
    name, tensor, fragments = {
        "mma.m8n8k16": ("IMMA.8816", 512, 48),
        "mma.m16n8k32": ("IMMA.16832", 128, 48),
        "wgmma.m64k32": ("IGMMA.64x128x32", 8, 0),
        "mma.m16n8k16.f16": ("HMMA.16816.F32", 256, 48),
    }[loop.unit]
    assert unit_of(architecture) == loop.unit
    assert sum(name in line for line in lines) == loop.tensor
    assert (loop.tensor, loop.fragments) == (tensor, fragments), "one tile of 128 x 128 x 256 by 8 warps"
    assert loop.spills == 0
    assert loop.slots <= inner_loops.SLOTS[architecture]
    if compiler_version() == DOCUMENTED:
        stated = column(DOCUMENT.read_text().splitlines(), architecture)
        assert column(inner_loops.table([loop]), architecture) == stated


@pytest.mark.parametrize(
    "architecture", [a if a == "sm_90a" else pytest.param(a, marks=pytest.mark.slow) for a in inner_loops.ARCHITECTURES]
)
def test_loops_of_products_of_floats_are_products(architecture: str) -> None:
    try:
        loop, _ = inner_loops.count_floats(architecture)
    except UsageError as error:
        pytest.skip(str(error))
    assert loop.fma == 512, "8 x 8 outputs of a thread, 8 terms"
    assert loop.memory <= 50, "outputs are read and written by fours"
    assert loop.instructions <= 1100, "with the end of a chunk in all its forms"
    assert loop.spills <= 3
    if compiler_version() == DOCUMENTED:
        rows = inner_loops.FLOAT_ROWS
        stated = column(DOCUMENT.read_text().splitlines(), architecture, rows)
        assert column(inner_loops.table([loop], rows), architecture, rows) == stated


DOCUMENT, DOCUMENTED = Path(__file__).parents[3] / "docs" / "cuda.md", "13.5"
"""The document with the loops' tables, and the NVRTC that it counts with."""


def column(lines: Sequence[str], architecture: str, names: Collection[str] = tuple(inner_loops.ROWS)) -> dict[str, str]:
    """The cells below an architecture in the lines' table of rows with these names."""
    first = next(i for i, line in enumerate(lines) if line.startswith(f"| {next(iter(names))} |")) - 2
    head, _, *rows = (line.split(" | ") for line in lines[first : first + 2 + len(names)])
    at = [cell.strip(" |") for cell in head].index(architecture)
    return {row[0].strip(" |"): row[at].strip(" |") for row in rows}


def test_fma_stands_only_where_the_program_says_so(nvcc: str, tmp_path: Path) -> None:
    source = """#include "kernels.cuh"
    LOCKSTEP_KERNEL(32) plain(const Word* a, Word* out) {
        out[threadIdx.x] = word(f32::add(f32::mul(value(a[0]), value(a[1])), value(a[2])));
    }"""
    text = compiled(nvcc, source, tmp_path, ["-ptx", "-arch=compute_90"]).read_text()
    assert ROUNDED.findall(text) == ["mul.rn.f32", "add.rn.f32"]


@pytest.fixture(scope="module")
def hipcc() -> str:
    found = shutil.which("hipcc")
    if found is None:
        pytest.skip("no hipcc on this machine")
    return found


def compiled_as_hip(hipcc: str, source: str, folder: Path, *options: str) -> Path:
    unit, out = folder / "program.hip", folder / "program.out"
    unit.write_text(source)
    command = [
        hipcc, "-x", "hip", "--cuda-device-only", "--offload-arch=gfx90a", "-std=c++20", "-O1", "-ffp-contract=off",
        "-include", "hip/hip_runtime.h", *(f"-I{path.parent}" for path in HEADERS), *options, "-c", str(unit),
        "-o", str(out),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out


def test_hip_takes_the_source_and_rounds_each_float_operation_once(hipcc: str, source: str, tmp_path: Path) -> None:
    text = compiled_as_hip(hipcc, source + every_opcode(), tmp_path, "-S", "-emit-llvm").read_text()
    assert "fpmath" not in text, "divisions and square roots are rounded correctly"
    found = set(re.findall(r"= (f(?:add|sub|mul|div)(?: \w+)*) float", text))
    assert found == {"fadd", "fsub", "fmul", "fdiv"}, "nothing is contracted or reordered"
    assert set(re.findall(r"call float @([\w.]+)", text)) == {"llvm.fma.f32", "llvm.sqrt.f32"}


@pytest.mark.slow
def test_hip_makes_machine_code_of_products_of_codes(hipcc: str, tmp_path: Path) -> None:
    source = generate(test_cuda_codes.products(), LOCAL_BYTES).source
    assert compiled_as_hip(hipcc, source, tmp_path).stat().st_size > 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_hip_makes_machine_code_of_attention_in_tiles(hipcc: str, tiles: str, tmp_path: Path) -> None:
    assert compiled_as_hip(hipcc, tiles, tmp_path).stat().st_size > 0


LOCAL_BYTES = 64 << 10
"""Shared memory of a block on AMD's devices."""


def test_nvrtc_makes_machine_code(source: str) -> None:
    try:
        assert compile_source(source, "sm_90")[:4] == b"\x7fELF"
    except UsageError as error:
        pytest.skip(str(error))


def test_nvrtc_says_what_it_does_not_understand() -> None:
    try:
        with pytest.raises(DoctorError, match=r"no kernels for sm_90.*undefined"):
            compile_source("__global__ void broken() { nothing(); }", "sm_90")
    except UsageError as error:
        pytest.skip(str(error))
