"""Products of codes on the emulated device: every unit, tile and shape has the processor's words, and defects show."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from lockstep.numerics import paths
from lockstep.numerics.arrays import Array
from lockstep.numerics.builder import ProgramBuilder, Quantised, Tensor
from lockstep.numerics.cuda import CudaExecutable, generate
from lockstep.numerics.cuda.device import HALVES, UNITS, WGMMA, Device, addresses, unit_of
from lockstep.numerics.cuda.emulator import Emulator
from lockstep.numerics.cuda.selftest import check_device
from lockstep.protocol.errors import DoctorError
from lockstep.protocol.programs.program import F32, I32, Program
from tests.support.emulation import Both, Mutant
from tests.unit.numerics.comparison import CONTEXT, normal, strange, words

SHAPES = [
    (1, 128, 128, 2, 64), (2, 70, 33, 3, 64), (1, 5, 130, 3, 32), (3, 17, 40, 5, 16), (2, 66, 9, 1, 16),
    (1, 40, 20, 3, 8), (2, 9, 35, 2, 4), (1, 12, 10, 3, 2), (1, 20, 30, 1, 1), (1, 3, 5, 270, 4),
]  # fmt: skip
"""(B, M, N, groups, words of a group): whole and ragged tiles, even and odd stages, padded groups, two levels."""
Data = Callable[[np.random.Generator, int], Array]
LARGE, SMALL = 1, 10**9
"""`BUSY_BLOCKS` for tiles of 128 x 128, and of 64 x 64."""
FORMS = {"large tiles": (LARGE, SMALL), "small tiles": (SMALL, SMALL), "groups apart": (SMALL, 2)}
"""`BUSY_BLOCKS` and `LEAST_SPLIT` of each form; the last one has tiles of 64 x 64 and a block for each group."""


def take(form: str, patch: pytest.MonkeyPatch) -> None:
    """Has products of codes take one of `FORMS`, however many tiles they have."""
    busy, least = FORMS[form]
    patch.setattr(generate, "BUSY_BLOCKS", busy)
    patch.setattr(generate, "FEW_TILES", SMALL)
    patch.setattr(generate, "LEAST_SPLIT", least)


def products(shapes: Sequence[tuple[int, int, int, int, int]] = SHAPES) -> Program:
    """Matrix products of any words as codes, in several layouts, and products that are no matrix products."""
    b = ProgramBuilder(
        [
            h
            for B, M, N, G, w in shapes
            for h in ((I32, B * M * G * w), (I32, B * N * G * w), (F32, B * M * G), (F32, B * N * G))
        ]
    )
    outputs: list[Tensor | None] = []
    for s, (B, M, N, G, w) in enumerate(shapes):
        codes_a, codes_b, scales_a, scales_b = (b.input(4 * s + j) for j in range(4))
        x = Quantised(codes_a.reshape(B, M, G * w), scales_a.reshape(B, M, G), w)
        y = Quantised(codes_b.reshape(B, N, G * w), scales_b.reshape(B, N, G), w)
        outputs += [
            b.qdot(x.unsqueeze(2), y.unsqueeze(1), name=f"batched {s}"),
            b.qdot(y.unsqueeze(1), x.unsqueeze(2), name=f"operands exchanged {s}"),
        ]
        if s in (1, 3):
            turned = x.unsqueeze(2).permute(1, 0, 2), y.unsqueeze(1).permute(1, 0, 2)
            same = Quantised(x.codes, scales_a.slice(0, 0, 1).reshape(1, 1, 1).expand(B, M, G), w)
            outputs += [
                b.qdot(*turned, name=f"batch inside {s}"),
                b.qdot(same.unsqueeze(2), y.unsqueeze(1), name=f"one scale for all {s}"),
                b.qdot(x, x, name=f"row by row {s}"),
            ]
    return b.finish(outputs)


def state(program: Program, data: Data = normal, byte: int | None = None) -> list[Array | None]:
    """Codes of any bytes, or of one; scales by `data`."""
    rng = np.random.default_rng(7)
    found: list[Array | None] = []
    for header in program.inputs:
        if header is None:
            found.append(None)
        elif header.dtype == F32:
            found.append(data(rng, header.elements))
        elif byte is None:
            found.append(rng.integers(-(2**31), 2**31, header.elements).astype(np.int32))
        else:
            found.append(np.full(4 * header.elements, byte, np.int8).view(np.int32))
    return found


# --- words -----------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("byte", [None, -128])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_form_and_shape_has_the_processors_words(
    unit: str, form: str, descending: bool, byte: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(form, monkeypatch)
    program = products()
    data = normal if byte else strange
    Both(program, unit=unit, descending=descending).agree(state(program, data, byte), CONTEXT)


def test_matrix_products_are_tiled_and_others_are_not() -> None:
    program = products()
    launches = generate.generate(program).launches
    kinds = {name: own[0].kernel.split("_")[0] for name, own in zip(program.names, launches, strict=True)}
    assert {name for name, kind in kinds.items() if kind == "qdot"} == {"row by row 1", "row by row 3"}


def test_a_device_without_the_shared_memory_takes_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generate, "BUSY_BLOCKS", LARGE)
    program = products(SHAPES[:1])
    (large,), (small,) = (generate.generate(program, size).launches[0] for size in (99 << 10, 48 << 10))
    assert (large.blocks, small.blocks) == (1, 4)
    assert small.shared <= 48 << 10 < large.shared <= 99 << 10


def test_few_tiles_over_a_long_k_have_a_block_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(*shape: int) -> list[tuple[str, int]]:
        (own, *_) = generate.generate(products([shape])).launches  # type: ignore[list-item]
        return [(launch.kernel.split("_")[0], launch.blocks) for launch in own]

    assert launched(3, 40, 70, 16, 64) == [("codes", 3 * 2 * 16), ("fold", 66)]
    assert launched(3, 40, 70, 300, 4) == [("codes", 3 * 2 * 300), ("fold", 132), ("fold", 66)], "two levels"
    assert launched(3, 40, 70, generate.LEAST_SPLIT - 1, 64) == [("codes", 6)], "few groups"
    assert launched(generate.FEW_TILES, 40, 60, 16, 64) == [("codes", generate.FEW_TILES)], "enough tiles"
    monkeypatch.setattr(generate, "MOST_SPLIT_WORDS", 3 * 40 * 70 * 16 - 1)
    assert launched(3, 40, 70, 16, 64) == [("codes", 6)], "much memory"


def test_pieces_of_eight_rows_lie_in_different_banks() -> None:
    """Rows are read eight at a time at one piece (ldmatrix) and written a row at a time: 8 x 16 bytes."""
    device = Emulator()
    kernels = device.load(
        '#include "kernels.cuh"\n'
        "LOCKSTEP_KERNEL(512) pieces(Word* out) { out[threadIdx.x] = piece_at(threadIdx.x / 8, threadIdx.x % 8); }\n"
        "LOCKSTEP_EXPORT(pieces)\n"
    )
    at = np.empty((64, 8), np.uint32)
    place = device.allocate(at.size)
    cells = np.array([place], np.uint64)
    pointers = addresses(cells)
    kernels.launch("pieces", 1, 512, 0, pointers.ctypes.data)
    device.read(place, at)
    assert sorted(at.ravel().tolist()) == list(range(0, 64 * 128, 16)), "every piece has a place of its own"
    banks = at // 16 % 8
    for piece in range(8):
        for first in range(0, 64, 8):
            assert len(set(banks[first : first + 8, piece].tolist())) == 8
    assert all(len(set(row.tolist())) == 8 for row in banks)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("descending", [False, True])
def test_quants_of_every_width_and_alignment(descending: bool) -> None:
    """Rows of whole fours and others, read by fours or one by one; groups that fill a block and that do not."""
    b = ProgramBuilder([(F32, 12 * 300), (F32, 9 * 131)])
    whole, odd = b.input(0).reshape(12, 300), b.input(1).reshape(9, 131)
    turned = whole.reshape(3, 4, 300).permute(1, 0, 2)
    for words_ in (1, 2, 8, 64):
        for x in (whole, odd, turned, whole.slice(1, 1, 298)):
            b.quant(x, words_, power=words_ == 8)
            b.quant(x, words_, (1 << 31) + words_)
    program = b.finish([None])
    Both(program, descending=descending).agree(state(program, strange), CONTEXT)


# --- what would break them ---------------------------------------------------------------------------------

DEFECTS = {
    "a barrier less": ("            __syncthreads();\n            if (stage + 1", "            if (stage + 1"),
    "copies that nobody waits for": ("            unit::await_copies();\n", ""),
    "the buffer that is read": ("bring(buffer ^ 1)", "bring(buffer)"),
    "registers of b exchanged": (
        "{b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]}",
        "{b[j / 2][j % 2 * 2 + 1], b[j / 2][j % 2 * 2]}",
    ),
    "registers of a from other rows": (
        "P::HIGH + lane % 16, lane / 16)",
        "P::HIGH + lane % 8 * 2 + lane / 16, lane / 8 % 2)",
    ),
    "fragments of b exchanged": ("lane / 16 * 8 + lane % 8, lane / 8 % 2", "lane / 8 % 2 * 8 + lane % 8, lane / 16"),
    "another swizzle for reading": ("(left ^ static_cast<Word>(step) << 5)", "(left + (static_cast<Word>(step) << 5))"),
    "sums that go on": ("if (begin && step % 2 == 0)", "if (begin && step < 0)"),
    "another column's scale": ("2 * eighth + lane % 2", "2 * eighth + 1 - lane % 2"),
    "another row's output": ("* 16 + v / 2 * 8);", "* 16 + v % 2 * 8);"),
    "one rounding less": (
        "Pair chain = Pair(chains[i][j][v], chains[i][j][v + 1]) + exact * (rows * columns);",
        "Pair s = rows * columns, chain(f32::raw::fma(exact.low, s.low, chains[i][j][v]), chains[i][j][v + 1]);",
    ),
    "scales one after the other": ("exact * (rows * columns)", "exact * rows * columns"),
    "one level of partials": ("LEVELS = Product::GROUPS > kChunk", "LEVELS = false"),
}


@pytest.fixture(scope="module")
def small() -> Program:
    """Both limits of a tile, two stages that follow each other, two levels."""
    return products([(1, 70, 70, 3, 64), (1, 20, 20, 300, 1)])


def differs(program: Program, device: Device) -> bool:
    given = state(program)
    due = paths.compile(program, fused="off").run(given, CONTEXT)
    got = CudaExecutable(program, device=device).run(given, CONTEXT)
    return any(own is not None and (words(own) != words(other)).any() for own, other in zip(due, got, strict=True))


SPLIT_DEFECTS = {
    "codes of another group": ("        left += group * P::WORDS;\n", ""),
    "scales of another group": ("        right_scales += group * R::SCALE_STEP;\n", ""),
    "terms one upon the other": ("        out += static_cast<long long>(group) * Product::ELEMENTS;\n", ""),
    "another batch": ("block % Product::BATCHES : block", "block / 2 % Product::BATCHES : block"),
    "terms from the last one on": (
        "term_at<A>(first, a_start, k0 + k)",
        "term_at<A>(first, a_start, length - 1 - (k0 + k))",
    ),
}
"""Groups that are blocks of their own, and the order in which their terms become an output."""


@pytest.mark.slow
@pytest.mark.parametrize("defect", SPLIT_DEFECTS)
def test_a_defect_of_groups_apart_shows(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take("groups apart", monkeypatch)
    before, after = SPLIT_DEFECTS[defect]
    assert differs(products([(2, 20, 70, 9, 16)]), Mutant(before, after)), f"the emulation does not show {defect}"


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_shows(defect: str, small: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    take("small tiles", monkeypatch)
    before, after = DEFECTS[defect]
    shown = (differs(small, Mutant(before, after, descending=descending)) for descending in (False, True))
    assert any(shown), f"the emulation does not show {defect}"


WARP_GROUP_DEFECTS = {
    "a barrier less": DEFECTS["a barrier less"],
    "copies that nobody waits for": DEFECTS["copies that nobody waits for"],
    "the buffer that is read": DEFECTS["the buffer that is read"],
    "writes that are not shown": ("            unit::show_to_products();\n", ""),
    "registers that are not ordered": ("        unit::begin_products(sums);\n", ""),
    "products that nobody commits": ("        unit::commit_products();\n", ""),
    "sums that nobody waits for": ("                warp.finish(sums);\n", ""),
    "a buffer given away before its products end": (
        "            if (P::SLICES == 4 && buffer == 0) warp.finish(sums);",
        "",
    ),
    "another stride of eight rows": ("(8 * kRow / 16) << 32", "(4 * kRow / 16) << 32"),
    "another layout of rows": ("LAYOUT = 1ull << 62 |", "LAYOUT = 2ull << 62 |"),
    "no layout of rows": ("LAYOUT = 1ull << 62 |", "LAYOUT ="),
    "another swizzle for writing": ("(piece ^ (row & 7))", "(piece ^ (row & 3))"),
    "another k": ("static_cast<Word>(step) * 32) / 16", "static_cast<Word>(step) * 16) / 16"),
    "sums that go on": ("!(begin && step % 2 == 0)", "true"),
    "rows of another warp": ("warp % 4 * 16 + lane / 4;", "warp % 4 + lane / 4 * 4;"),
    "columns of another lane": ("column = before + lane % 4 * 2;", "column = before + lane / 8 * 2;"),
    "another column's scale": ("eighth % 2 * 2 + lane % 2 : row", "eighth % 2 * 2 + 1 - lane % 2 : row"),
    "another row's scale": ("scales + left_scales + i * 32", "scales + left_scales + i * 16"),
    "lanes that part": ("if (!computes) continue;", "if (!computes || threadIdx.x % 32 == 5) continue;"),
    "warps of a group that part": ("if (!computes) continue;", "if (!computes || threadIdx.x / 32 == 1) continue;"),
}
"""Of asynchronous products: descriptors, their layout, the order of copies, products and reads of their sums."""


@pytest.mark.slow
@pytest.mark.parametrize("defect", WARP_GROUP_DEFECTS)
def test_a_defect_of_warp_groups_shows(defect: str, small: Program) -> None:
    before, after = WARP_GROUP_DEFECTS[defect]
    shown = (differs(small, Mutant(before, after, descending=descending, unit=WGMMA)) for descending in (False, True))
    assert any(shown), f"the emulation does not show {defect}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("descending", [False, True])
def test_without_a_defect_warp_groups_have_the_processors_words(descending: bool, small: Program) -> None:
    assert not differs(small, Emulator(descending=descending, unit=WGMMA))


HALVES_DEFECTS = {
    "signs that are not moved": ("(codes & mask) ^ 0x64806480", "(codes & mask) ^ 0x64006400"),
    "a code one less": ("(codes >> 8 & mask) ^ 0x64806480, 0xe480e480", "(codes >> 8 & mask) ^ 0x64806480, 0xe481e481"),
    "the even codes twice": ("codes >> 8 & mask", "codes & mask"),
    "rows of halves exchanged": ("left[half][1], left[half][3]", "left[half][3], left[half][1]"),
    "codes of a in another order": ("left[half][0], left[half][2]", "left[half][2], left[half][0]"),
    "one half of k twice": ("multiply_16_8_16(c, left[1], right[1], c)", "multiply_16_8_16(c, left[1], right[0], c)"),
    "sums that begin anew": ("left[1], right[1], c)", "left[1], right[1], from)"),
    "sums as integers": (
        "const Pair exact(value(sums[i][j][v]), value(sums[i][j][v + 1]));",
        "const Pair exact(integer(sums[i][j][v]), integer(sums[i][j][v + 1]));",
    ),
    "sums that begin elsewhere": ("constexpr Word kExact = 0;", "constexpr Word kExact = 0x4b400000;"),
    "lanes that part": ("if (!computes) continue;", "if (!computes || threadIdx.x % 32 == 5) continue;"),
}
"""Of codes as halves: what becomes of a word, where its halves go, sums that are floats."""


@pytest.mark.slow
@pytest.mark.parametrize("defect", HALVES_DEFECTS)
def test_a_defect_of_halves_shows(defect: str, small: Program) -> None:
    before, after = HALVES_DEFECTS[defect]
    assert differs(small, Mutant(before, after, unit=HALVES)), f"the emulation does not show {defect}"


def test_devices_with_few_integer_units_multiply_halves() -> None:
    others = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_110", "sm_120", "sm_121")
    assert unit_of("sm_103") == HALVES
    assert all(unit_of(name) != HALVES for name in others)


@pytest.mark.slow
def test_magnitudes_that_nobody_waits_for_show() -> None:
    b = ProgramBuilder([(F32, 4000)])
    made = b.quant(b.input(0).reshape(2, 2000))
    program = b.finish([made.codes, made.scales])
    for before in ("all[threadIdx.x] = own;\n        __syncthreads();", "/ 8] = own;\n            __syncthreads();"):
        after = before.split("\n")[0]
        assert any(differs(program, Mutant(before, after, descending=descending)) for descending in (False, True))


@pytest.mark.slow
def test_lanes_that_part_show(small: Program) -> None:
    """A matrix instruction needs all lanes of its warp."""
    assert differs(small, Mutant("if (!computes) continue;", "if (!computes || threadIdx.x % 32 == 5) continue;"))


@pytest.mark.slow
def test_exchanged_halves_of_the_older_unit_show(small: Program) -> None:
    assert differs(small, Mutant("a[half], b[0]", "a[half], b[1]", unit="mma.m8n8k16"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("unit", "before", "after"),
    [
        ("dp4a", "unit::dot_4(a.lane[k],", "unit::dot_4(a.lane[k] & 0x7f7f7f7f,"),
        ("mma.m8n8k16", "a[half + 2], b[1]", "a[half + 2] | 0x80808080, b[1]"),
        (
            "wgmma.m64k32",
            "for (int step = 2 * slice; step < 2 * slice + 2;",
            "for (int step = 2 * slice; step < 2 * slice + 1;",
        ),
        ("mma.m16n8k32", "sums[i][j], a[i], own, zero", "sums[i][j], a[i], {own[0] & 0x7f7f7f7f, own[1]}, zero"),
        ("mma.m16n8k16.f16", "(codes & mask) ^ 0x64806480", "(codes & mask & 0x007f007f) ^ 0x64806480"),
        # Sums of 21 bits, one less than 2^22 needs: only a row of large codes and one small one shows it.
        ("mma.m16n8k16.f16", "left[1], right[1], c);", "left[1], right[1], c);\n    for (Word& sum : c) sum &= ~7u;"),
    ],
)
def test_a_device_whose_unit_multiplies_otherwise_is_refused_by_its_name(unit: str, before: str, after: str) -> None:
    with pytest.raises(DoctorError, match=rf"product \d+ of groups of codes by {unit}: got"):
        check_device(Mutant(before, after, unit=unit))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("unit", UNITS)
def test_every_unit_passes_the_self_test(unit: str) -> None:
    check_device(Emulator(unit=unit))
