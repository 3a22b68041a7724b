"""The reference against what others published: Philox, Keccak, and folds written out by hand."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest
from Crypto.Hash import keccak

from lockstep.numerics import codes, reference, scalar
from lockstep.numerics.reference import Operands, Rows
from lockstep.protocol.errors import Mismatch
from lockstep.protocol.programs.program import CHUNK, F32, I32, Fold, Instr, Kind, Op, Quant, Tag, View


def word(x: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", x))[0])


def operands_of(values: Sequence[int], dataset: Rows | None = None) -> Operands:
    """State entry 0 holds the values."""
    return Operands(lambda tag, index, at: values[at], bytes(range(32)), (7, 8, 9), dataset)


def seed_of(k0: int, k1: int) -> bytes:
    return struct.pack("<II", k0, k1) + bytes(24)


@pytest.mark.parametrize(
    ("counter", "key", "due"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_known_answers(counter: tuple[int, ...], key: tuple[int, int], due: tuple[int, ...]) -> None:
    """kat_vectors of Random123, philox4x32-10."""
    context = counter[1], counter[2], counter[3]
    got = [reference.philox(seed_of(*key), 0, (counter[0] << 2) + i, context) for i in range(4)]
    assert got == list(due)


def test_philox_streams_differ_in_the_key() -> None:
    assert reference.philox(seed_of(5 ^ 3, 6), 0, 9, (1, 2, 3)) == reference.philox(seed_of(5, 6), 3, 9, (1, 2, 3))


def test_a_draw_reads_the_row_that_keccak_names() -> None:
    dataset = Rows(1000, lambda row, column: 10 * row + column)
    op = Op(Kind.DRAW, I32, (2, 3), (), p0=40)
    message = bytes(range(32)) + struct.pack(">4I", 7, 8, 9, 41)
    row = int.from_bytes(keccak.new(digest_bits=256, data=message).digest(), "big") % 1000
    assert reference.element(op, 5, operands_of([], dataset)) == 10 * row + 2
    with pytest.raises(Mismatch, match="dataset"):
        reference.element(op, 5, operands_of([]))


def test_a_chunk_starts_at_plus_zero_and_is_fused() -> None:
    values = [word(x) for x in (1.5, -2.25, 3.0, 0.1)]
    view = View(Tag.STATE, 0, 0, (1,))
    op = Op(Kind.FOLD, F32, (), (view, view), (4,), Fold.DOT)
    chain = 0
    for value in values:
        chain = scalar.ffma(value, value, chain)
    assert reference.chunk(op, 0, 0, operands_of(values)) == chain
    assert reference.element(op, 0, operands_of(values)) == scalar.fadd(0, chain)


def test_a_single_chunk_still_passes_one_level() -> None:
    """A chain that ends in -0 gives +0."""
    least = word(-1e-40)
    views = (View(Tag.STATE, 0, 0, (1,)), View(Tag.IOTA, 0, word(1e-10), (0,)))
    op = Op(Kind.FOLD, F32, (), views, (3,), Fold.DOT)
    operands = operands_of([least] * 3)
    assert reference.chunk(op, 0, 0, operands) == scalar.SIGN, "the chain"
    assert reference.element(op, 0, operands) == 0, "the element"


@pytest.mark.parametrize(
    ("k", "levels", "widths"),
    [
        (1, 1, [1, 1]),
        (257, 1, [2, 1]),
        (65536, 1, [256, 1]),
        (65537, 2, [257, 2, 1]),
        (1 << 24, 2, [65536, 256, 1]),
    ],
)
def test_levels_of_partials(k: int, levels: int, widths: list[int]) -> None:
    op = Op(Kind.FOLD, F32, (), (View(Tag.IOTA, 0, 0, (0,)),), (k,), Fold.SUM)
    assert reference.levels(op) == levels
    assert [reference.width(op, level) for level in range(levels + 1)] == widths


def test_two_levels_add_up_in_groups_of_256_chunks() -> None:
    k = CHUNK * CHUNK + 1
    op = Op(Kind.FOLD, I32, (), (View(Tag.IOTA, 0, 5, (1,)),), (k,), Fold.ISUM)
    operands = operands_of([])
    top = reference.partials(op, 0, 2, 0, operands)
    first, last = CHUNK * CHUNK, 5 + CHUNK * CHUNK
    assert top == [(5 * first + first * (first - 1) // 2) & scalar.MASK, last]
    assert reference.element(op, 0, operands) == sum(top) & scalar.MASK


@pytest.mark.parametrize(("mode", "due"), [(Fold.MAX, 0x00000000), (Fold.MIN, 0x80000000)])
def test_extremes_order_the_zeros_and_show_a_nan(mode: Fold, due: int) -> None:
    op = Op(Kind.FOLD, F32, (), (View(Tag.STATE, 0, 0, (1,)),), (3,), mode)
    assert reference.element(op, 0, operands_of([0x80000000, 0, 0x80000000])) == due
    assert reference.element(op, 0, operands_of([0x80000000, 0xFF800001, 0])) == scalar.NAN


def test_context_is_round_slot_t() -> None:
    views = tuple(View(Tag.CONTEXT, 0, i, ()) for i in range(3))
    instrs = (Instr(scalar.Opcode.ISHL, 0, 2), Instr(scalar.Opcode.IADD, 1, 3))
    assert reference.element(Op(Kind.MAP, I32, (), views, instrs=instrs), 0, operands_of([])) == (7 << 9) + 8


def test_iota_wraps_and_is_the_value_itself() -> None:
    op = Op(Kind.MAP, I32, (4,), (View(Tag.IOTA, 0, -2, (1,)),))
    assert [reference.element(op, at, operands_of([])) for at in range(4)] == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]


def test_concat_reads_each_part_from_its_own_start() -> None:
    views = (View(Tag.STATE, 0, 0, (0, 1)), View(Tag.STATE, 0, 4, (2, 1)))
    op = Op(Kind.CONCAT, I32, (3, 2), views, p0=0, sizes=(1, 2))
    assert [reference.element(op, at, operands_of(range(10))) for at in range(6)] == [0, 1, 4, 5, 6, 7]


@pytest.mark.parametrize(("index", "due"), [(0, 3), (2, 7), (3, 0), (0xFFFFFFFF, 0)])
def test_gather_outside_of_the_table_is_zero(index: int, due: int) -> None:
    views = (View(Tag.IOTA, 0, index - (1 << 32) if index >> 31 else index, ()), View(Tag.STATE, 0, 3, ()))
    op = Op(Kind.GATHER, I32, (), views, p0=3, p1=2)
    assert reference.element(op, 0, operands_of(range(10))) == due


def a_quant(k: int, words: int, mode: Quant = Quant.CODES, stream: int = 0) -> Op:
    groups = -(-k // (4 * words))
    wants_codes = mode in (Quant.CODES, Quant.CODES_POWER)
    extents = (groups * words,) if wants_codes else (groups,)
    return Op(Kind.QUANT, I32 if wants_codes else F32, extents, (View(Tag.STATE, 0, 0, (0, 1)),), (k,), mode,
              p0=words, p1=stream)  # fmt: skip


def quantised(values: Sequence[int], words: int = 1, power: bool = False, stream: int = 0) -> tuple[list[int], int]:
    """The codes and the scale of one group."""
    wanted = (Quant.CODES_POWER, Quant.SCALES_POWER) if power else (Quant.CODES, Quant.SCALES)
    operands = operands_of(values)
    op = a_quant(len(values), words, wanted[0], stream)
    found = [code for at in range(words) for code in codes.unpacked(reference.element(op, at, operands))]
    return found, reference.element(a_quant(len(values), words, wanted[1]), 0, operands)


@pytest.mark.parametrize(
    ("values", "power", "due", "scale"),
    [
        ([127.0, -127.0, 63.5, 62.5], False, [127, -127, 64, 62], 1.0),
        ([2.0, 1.0, -0.5], False, [127, 64, -32, 0], 2.0 / 127),
        ([1.0, -1.0, 0.5, 2.0**-7], True, [64, -64, 32, 0], 2.0**-6),
        ([1.9999, -1.9999, 1.5 * 2.0**-6], True, [127, -127, 2, 0], 2.0**-6),
        ([0.0, -0.0], False, [0] * 4, 0.0),
        ([2.0**-100, 2.0**-101], False, [127, 64, 0, 0], 2.0**-100 / 127),
        ([2.0**-100 * (1 - 2.0**-24), 0.0], True, [0] * 4, 0.0),
        ([2.0**127, -(2.0**126)], False, [127, -64, 0, 0], 2.0**127 / 127),
        ([3.4028234e38], True, [127, 0, 0, 0], 2.0**121),
    ],
)
def test_codes_and_scale_of_a_group(values: list[float], power: bool, due: list[int], scale: float) -> None:
    assert quantised([word(x) for x in values], power=power) == (due, word(scale))


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("bad", [scalar.NAN, 0xFFFFFFFF, scalar.INFINITY, scalar.NEGATIVE_INFINITY])
def test_a_group_with_a_nan_or_an_infinity_is_poisoned(bad: int, power: bool) -> None:
    assert quantised([word(1.0), bad, word(-2.0), 1], power=power) == ([0] * 4, scalar.NAN)


def test_stochastic_codes_lie_around_the_value_and_never_beyond_127() -> None:
    values = [word(x) for x in (127.0, -127.0, 10.25, -10.25)] * 64
    found, scale = quantised(values, words=64, stream=1 << 31)
    assert scale == word(1.0)
    assert [set(found[j::4]) for j in range(4)] == [{127}, {-127}, {10, 11}, {-10, -11}]
    assert 4 <= sum(code == 11 for code in found[2::4]) <= 30, "a quarter of 64 is rounded up"
    assert quantised(values, words=64, stream=(1 << 31) + 1)[0] != found, "another stream"
    assert codes.code_of(word(127.4), word(1.0), 0xFFFF) == 127, "what would be 128 is clamped"


def test_random_halves_of_codes_follow_from_their_number() -> None:
    half = (0x3EFFFFFF, 0x3F000000, 0x3F000001, 0x3F800000)
    rng = operands_of([word(127.0), *half, *half, word(0.5)])
    op = a_quant(10, 1, stream=1 << 31)
    for at in range(3):
        own = codes.unpacked(reference.element(op, at, rng))
        _, inverse = codes.scale_of(
            codes.magnitude([rng.word(Tag.STATE, 0, k) for k in range(4 * at, min(4 * at + 4, 10))]), False
        )
        for j in range(4):
            n = 4 * at + j
            drawn = reference.philox(rng.seed, 1 << 31, n >> 1, rng.context) >> 16 * (n & 1) & 0xFFFF
            assert own[j] == (codes.code_of(rng.word(Tag.STATE, 0, n), inverse, drawn) if n < 10 else 0), n


def a_qdot(groups: int, words: int) -> Op:
    codes_at = View(Tag.STATE, 0, 0, (words,)), View(Tag.STATE, 0, groups * words, (words,))
    scales_at = View(Tag.STATE, 0, 2 * groups * words, (1,)), View(Tag.STATE, 0, 2 * groups * words, (0,))
    return Op(Kind.FOLD, F32, (), (*codes_at, *scales_at), (groups,), Fold.QDOT, p0=words)


def test_a_group_of_the_least_bytes_is_exact() -> None:
    """(-128) x (-128), 256 times: 2^22."""
    op = a_qdot(1, 64)
    operands = operands_of([0x80808080] * 128 + [word(1.0)])
    assert reference.element(op, 0, operands) == word(2.0**22)


def test_a_qdot_adds_its_groups_from_the_left() -> None:
    op = a_qdot(2, 1)
    held = [
        codes.packed([1, 2, 3, 4]),
        codes.packed([-1, 0, 0, 5]),
        codes.packed([1, 1, 1, -1]),
        codes.packed([7, 0, 0, 2]),
    ]
    operands = operands_of([*held, word(0.5), word(2.0)])
    assert [reference.chunk(op, 0, c, operands) for c in (0, 1)] == [word(2 * 0.25), word(3 * 0.5 * 2)]
    assert reference.element(op, 0, operands) == word(3.5)
    assert reference.element(op, 0, operands_of([*held, scalar.NAN, 0])) == scalar.NAN, "a poisoned scale"


def test_a_qdot_has_the_levels_of_a_fold_of_256_terms_a_group() -> None:
    for groups, levels in ((1, 1), (256, 1), (257, 2), (1 << 16, 2)):
        op = a_qdot(groups, 1)
        assert (reference.levels(op), op.chunks, op.k_terms) == (levels, groups, 256 * groups)
