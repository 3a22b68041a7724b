"""The specification of the scalar operations: against exact fractions, the hardware, and IEEE 754's own words."""

import json
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lockstep.numerics import polynomials, scalar
from lockstep.numerics.scalar import ARITY, INFINITY, NAN, NEGATIVE_INFINITY, ONE, SIGN, Opcode, apply
from lockstep.protocol.errors import ProgramInvalid
from tests.support.scalar_vectors import SPECIAL, Words, golden, vectors

WORDS = st.one_of(st.sampled_from(SPECIAL), st.integers(0, 2**32 - 1))
MINUS_ONE, TWO, THREE = 0xBF800000, 0x40000000, 0x40400000
LARGEST = 0x7F7FFFFF
FLOAT_RESULTS = (
    Opcode.FADD,
    Opcode.FSUB,
    Opcode.FMUL,
    Opcode.FDIV,
    Opcode.FFMA,
    Opcode.FSQRT,
    Opcode.FNEG,
    Opcode.FABS,
    Opcode.FMIN,
    Opcode.FMAX,
    Opcode.FEXP,
    Opcode.FLOG,
    Opcode.FTANH,
    Opcode.FCANON,
)


def word(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def exact(w: int) -> Fraction:
    return Fraction(float(np.uint32(w).view(np.float32)))


def is_finite(w: int) -> bool:
    return w & ~SIGN < INFINITY


def canonical(values: np.ndarray) -> Words:
    return np.where(np.isnan(values), np.uint32(NAN), values.view(np.uint32)).astype(np.uint32)


def assert_nearest(result: int, value: Fraction) -> None:
    """`result` is the binary32 nearest to `value`, of two equally near the one whose last bit is 0."""
    magnitude, size = abs(value), result & ~SIGN
    if size == INFINITY:
        assert magnitude >= Fraction(2) ** 128 - Fraction(2) ** 103, "overflows only beyond the last midpoint"
        return
    here = abs(exact(size) - magnitude)
    above = Fraction(2) ** 128 if size == LARGEST else exact(size + 1)
    neighbours = [above, *([exact(size - 1)] if size else [])]
    for neighbour in neighbours:
        there = abs(neighbour - magnitude)
        assert here < there or (here == there and size % 2 == 0), f"{neighbour} is nearer than {result:08x}"
    if value:
        assert (result & SIGN != 0) == (value < 0), "the sign is the exact value's, even of an underflow to zero"


# --- correct rounding -------------------------------------------------------------------------------------------------


@given(WORDS, WORDS, WORDS)
@example(ONE, ONE, 0x33800000)
@example(0x00000001, 0x3F000000, 0x00000000)
def test_fma_rounds_the_exact_value_once(a: int, b: int, c: int) -> None:
    if all(map(is_finite, (a, b, c))):
        assert_nearest(scalar.ffma(a, b, c), exact(a) * exact(b) + exact(c))


def test_fma_is_nearest_on_structured_vectors() -> None:
    for a, b, c in zip(*(w.tolist() for w in vectors(Opcode.FFMA, 3000, seed=1)), strict=True):
        if all(map(is_finite, (a, b, c))):
            assert_nearest(scalar.ffma(a, b, c), exact(a) * exact(b) + exact(c))


@pytest.mark.parametrize(
    ("op", "hardware"),
    [
        (Opcode.FADD, np.add),
        (Opcode.FSUB, np.subtract),
        (Opcode.FMUL, np.multiply),
        (Opcode.FDIV, np.divide),
        (Opcode.FSQRT, np.sqrt),
    ],
)
def test_arithmetic_is_the_hardware_s(op: Opcode, hardware: np.ufunc) -> None:
    operands = vectors(op, 4000, seed=2)
    with np.errstate(all="ignore"):
        want = canonical(hardware(*(w.view(np.float32) for w in operands[: ARITY[op]])))
    got = [apply(op, *words) for words in zip(*(w.tolist() for w in operands), strict=True)]
    np.testing.assert_array_equal(np.array(got, np.uint32), want)


@pytest.mark.parametrize(
    ("op", "hardware"), [(Opcode.FLT, np.less), (Opcode.FLE, np.less_equal), (Opcode.FEQ, np.equal)]
)
def test_comparisons_are_the_hardware_s(op: Opcode, hardware: np.ufunc) -> None:
    a, b, _ = vectors(op, 4000, seed=2)
    got = [apply(op, x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    np.testing.assert_array_equal(got, hardware(a.view(np.float32), b.view(np.float32)).astype(int))


def test_conversion_from_integers_is_the_hardware_s() -> None:
    a, _, _ = vectors(Opcode.I2F, 4000, seed=2)
    want = a.view(np.int32).astype(np.float32).view(np.uint32)
    np.testing.assert_array_equal([scalar.i2f(x) for x in a.tolist()], want)


# --- special values ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", FLOAT_RESULTS, ids=lambda op: op.name)
def test_every_nan_result_is_the_canonical_one(op: Opcode) -> None:
    for nan in (0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFC00000):
        for place in range(ARITY[op]):
            operands = [ONE] * ARITY[op]
            operands[place] = nan
            assert apply(op, *operands) == NAN, f"{op.name} with {nan:08x} as operand {place}"


@pytest.mark.parametrize(
    ("op", "operands", "want"),
    [
        (Opcode.FADD, (INFINITY, NEGATIVE_INFINITY), NAN),
        (Opcode.FMUL, (0, INFINITY), NAN),
        (Opcode.FFMA, (0, INFINITY, ONE), NAN),
        (Opcode.FFMA, (ONE, INFINITY, NEGATIVE_INFINITY), NAN),
        (Opcode.FFMA, (MINUS_ONE, INFINITY, NEGATIVE_INFINITY), NEGATIVE_INFINITY),
        (Opcode.FDIV, (0, SIGN), NAN),
        (Opcode.FDIV, (INFINITY, INFINITY), NAN),
        (Opcode.FDIV, (ONE, SIGN), NEGATIVE_INFINITY),
        (Opcode.FSQRT, (MINUS_ONE,), NAN),
        (Opcode.FSQRT, (SIGN,), SIGN),
        (Opcode.FADD, (ONE, MINUS_ONE), 0),
        (Opcode.FADD, (SIGN, SIGN), SIGN),
        (Opcode.FADD, (0, SIGN), 0),
        (Opcode.FMUL, (SIGN, ONE), SIGN),
        (Opcode.FFMA, (SIGN, ONE, SIGN), SIGN),
        (Opcode.FFMA, (SIGN, ONE, 0), 0),
        (Opcode.FMUL, (1, 0x3F000000), 0),
        (Opcode.FMUL, (3, 0x3F000000), 2),
        (Opcode.FADD, (LARGEST, LARGEST), INFINITY),
        (Opcode.FMIN, (0, SIGN), SIGN),
        (Opcode.FMAX, (SIGN, 0), 0),
        (Opcode.FMIN, (NEGATIVE_INFINITY, ONE), NEGATIVE_INFINITY),
        (Opcode.FMAX, (NEGATIVE_INFINITY, MINUS_ONE), MINUS_ONE),
        (Opcode.FLT, (SIGN, 0), 0),
        (Opcode.FEQ, (SIGN, 0), 1),
        (Opcode.FLE, (NAN, NAN), 0),
        (Opcode.FEXP, (NEGATIVE_INFINITY,), 0),
        (Opcode.FEXP, (INFINITY,), INFINITY),
        (Opcode.FEXP, (0,), ONE),
        (Opcode.FEXP, (SIGN,), ONE),
        (Opcode.FEXP, (word(-103.0),), 1),
        (Opcode.FEXP, (word(88.73),), INFINITY),
        (Opcode.FLOG, (0,), NEGATIVE_INFINITY),
        (Opcode.FLOG, (SIGN,), NEGATIVE_INFINITY),
        (Opcode.FLOG, (MINUS_ONE,), NAN),
        (Opcode.FLOG, (NEGATIVE_INFINITY,), NAN),
        (Opcode.FLOG, (INFINITY,), INFINITY),
        (Opcode.FLOG, (ONE,), 0),
        (Opcode.FTANH, (SIGN,), SIGN),
        (Opcode.FTANH, (NEGATIVE_INFINITY,), MINUS_ONE),
        (Opcode.FTANH, (1,), 1),
        (Opcode.F2I, (word(2.5),), 2),
        (Opcode.F2I, (word(3.5),), 4),
        (Opcode.F2I, (word(-0.5),), 0),
        (Opcode.F2I, (word(-1.5),), 2**32 - 2),
        (Opcode.F2I, (word(3e9),), 0x7FFFFFFF),
        (Opcode.F2I, (word(-3e9),), 0x80000000),
        (Opcode.F2I, (NAN,), 0),
        (Opcode.I2F, (0x01000001,), 0x4B800000),
        (Opcode.I2F, (0x80000000,), 0xCF000000),
        (Opcode.SELECT, (SIGN, 7, 9), 7),
        (Opcode.SELECT, (0, 7, 9), 9),
        (Opcode.MOV, (0xFF800001,), 0xFF800001),
    ],
    ids=lambda x: x.name if isinstance(x, Opcode) else None,
)
def test_special_values(op: Opcode, operands: tuple[int, ...], want: int) -> None:
    assert apply(op, *operands) == want


@given(WORDS)
def test_tanh_is_odd_to_the_last_bit(a: int) -> None:
    if not scalar.is_nan(a):
        assert scalar.ftanh(a ^ SIGN) == scalar.ftanh(a) ^ SIGN


@pytest.mark.parametrize(
    ("op", "a", "b", "want"),
    [
        (Opcode.IDIV, 7, 0, 0),
        (Opcode.IREM, 7, 0, 0),
        (Opcode.IDIV, -(2**31), -1, -(2**31)),
        (Opcode.IREM, -(2**31), -1, 0),
        (Opcode.IDIV, -7, 2, -3),
        (Opcode.IREM, -7, 2, -1),
        (Opcode.IREM, 7, -2, 1),
        (Opcode.IADD, 2**31 - 1, 1, -(2**31)),
        (Opcode.IMUL, 2**31 - 1, 2, -2),
        (Opcode.ISHL, 1, 33, 2),
        (Opcode.ISHR, -8, 34, -2),
        (Opcode.IUSHR, -1, 31, 1),
        (Opcode.ILT, -1, 0, 1),
        (Opcode.ILE, 0, -1, 0),
        (Opcode.IMIN, -1, 1, -1),
        (Opcode.IMAX, -1, 1, 1),
    ],
    ids=lambda x: x.name if isinstance(x, Opcode) else None,
)
def test_integers_wrap_and_nothing_is_undefined(op: Opcode, a: int, b: int, want: int) -> None:
    assert apply(op, a & scalar.MASK, b & scalar.MASK) == want & scalar.MASK


# --- functions --------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("op", "function", "most_ulps"),
    [(Opcode.FEXP, math.exp, 0.9), (Opcode.FLOG, math.log, 0.9), (Opcode.FTANH, math.tanh, 1.4)],
    ids=["exp", "log", "tanh"],
)
def test_functions_are_near_the_true_value(op: Opcode, function: object, most_ulps: float) -> None:
    assert callable(function)
    worst = 0.0
    a, _, _ = vectors(op, 4000, seed=3)
    for x in a.tolist():
        result = apply(op, x)
        if not is_finite(x) or not is_finite(result) or (op is Opcode.FEXP and abs(exact(x)) > 700):
            continue
        true = function(float(exact(x)))
        ulp = max(2.0 ** (math.frexp(true)[1] - 24), 2.0**-149)
        worst = max(worst, abs(float(exact(result)) - true) / ulp)
    assert worst <= most_ulps, f"{op.name} is {worst:.3f} ulp off"


def test_coefficients_are_the_same_bits_in_cpp_and_solidity(repository: Path) -> None:
    cpp = (repository / "sdk/lockstep/numerics/kernels/f32.hpp").read_text()
    solidity = (repository / "contracts/libraries/Float32.sol").read_text()
    names = ["LOG2_E", "LN2_HI", "LN2_LO", "ROUND_TO_INTEGER", "EXP_LOWEST", "EXP_HIGHEST", "SQRT_HALF", "TANH_SMALL"]
    for name in names:
        want = getattr(polynomials, name)
        for language, text in (("C++", cpp), ("Solidity", solidity)):
            found = re.search(rf"\b{name} = (0x[0-9a-f]+)", text)
            assert found is not None, f"{name} in {language}"
            assert int(found[1], 16) == want, f"{name} in {language}"
    for name in ("EXP", "LOG", "TANH"):
        table = re.search(rf"{name}\[\] = {{([^}}]*)}}", cpp)
        assert table is not None, f"{name} in C++"
        assert tuple(int(x, 16) for x in re.findall(r"0x[0-9a-f]+", table[1])) == getattr(polynomials, name), name
        body = re.search(rf"function {name.lower()}\(.*?\n    }}\n", solidity, re.DOTALL)
        assert body is not None, f"{name} in Solidity"
        horner = re.findall(r"fma\((?:(0x[0-9a-f]{8}), )?\w+(?:, \w+)?, (0x[0-9a-f]{8})\)", body[0])
        literals = tuple(int(x, 16) for pair in horner for x in pair if x)
        assert literals == getattr(polynomials, name), f"{name} in Solidity"


# --- the table --------------------------------------------------------------------------------------------------------


def test_every_opcode_has_an_operation_and_an_arity() -> None:
    assert set(ARITY) == set(Opcode)
    assert [int(op) for op in Opcode] == list(range(38)), "the numbers are the protocol's"


@pytest.mark.parametrize("op", [-1, 38, 255])
def test_unknown_opcode_is_an_invalid_program(op: int) -> None:
    with pytest.raises(ProgramInvalid) as refused:
        apply(op, 0)
    assert refused.value.hint


@given(st.sampled_from(list(Opcode)), WORDS, WORDS, WORDS)
def test_every_operation_gives_a_word_for_every_words(op: Opcode, a: int, b: int, c: int) -> None:
    assert 0 <= apply(op, a, b, c) < 2**32


def test_golden_vectors_are_the_specification_s(vectors: Path) -> None:
    committed = (vectors / "float32.json").read_text()
    assert committed == golden(), (
        "regenerate with python -m tests.support.scalar_vectors, and say why the meaning changed"
    )
    for op, a, b, c, result in json.loads(committed)["vectors"]:
        assert apply(Opcode[op.upper()], int(a, 16), int(b, 16), int(c, 16)) == int(result, 16), (op, a, b, c)
