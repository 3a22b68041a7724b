"""Generates C++ for the executor's loops: one function per distinct expression, in straight-line code that vectorises.

`_native.Executor.loops()` describes the loops; a function computes a block of rows (kernels/loops.hpp). The source
begins with kernels/f32.hpp, so that each scalar operation has a single implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lockstep.numerics.scalar import Opcode
from lockstep.protocol.programs.opcodes import FUNCTIONS

Form = tuple[str, int]
"""Form of an operand, with an iota's step: "U" is one value, "B" one per row, "C" one per element, "I" an iota."""
Instr = tuple[int, int, int, int, int]
"""Opcode, registers a, b, c (-1 if unused) and immediate; operands occupy the first registers."""


@dataclass(frozen=True)
class LoopExpression:
    """The expression of a loop without the positions of its operands: loops with equal expressions share a function."""

    operands: tuple[Form, ...]
    instrs: tuple[Instr, ...]
    results: tuple[int, ...]
    """Registers whose values are stored."""
    streams: bool = False
    """True if results exceed the cache: they are stored with non-temporal writes, so that no line is read only to be
    overwritten.
    """


FLOATS: dict[Opcode, str] = {
    Opcode.FADD: "{0} + {1}",
    Opcode.FSUB: "{0} - {1}",
    Opcode.FMUL: "{0} * {1}",
    Opcode.FDIV: "{0} / {1}",
    Opcode.FFMA: "raw::fma({0}, {1}, {2})",
    Opcode.FSQRT: "raw::sqrt({0})",
    Opcode.FEXP: "raw::exp({0})",
    Opcode.FLOG: "raw::log({0})",
    Opcode.FTANH: "raw::tanh({0})",
}
"""Float operations whose result may be a non-canonical NaN; canonical() is applied at once or later."""

FUNCTION_COST = 16
"""Compile-time cost of one of FUNCTIONS, in simple instructions."""

OTHERS: dict[Opcode, str] = {
    Opcode.MOV: "{0}",
    Opcode.FNEG: "word(f32::neg(value({0})))",
    Opcode.FABS: "word(f32::abs(value({0})))",
    Opcode.FMIN: "word(f32::min(value({0}), value({1})))",
    Opcode.FMAX: "word(f32::max(value({0}), value({1})))",
    Opcode.FLT: "f32::lt(value({0}), value({1}))",
    Opcode.FLE: "f32::le(value({0}), value({1}))",
    Opcode.FEQ: "f32::eq(value({0}), value({1}))",
    Opcode.SELECT: "f32::select({0}, {1}, {2})",
    Opcode.IADD: "{0} + {1}",
    Opcode.ISUB: "{0} - {1}",
    Opcode.IMUL: "{0} * {1}",
    Opcode.IDIV: "i32::div({0}, {1})",
    Opcode.IREM: "i32::rem({0}, {1})",
    Opcode.IAND: "{0} & {1}",
    Opcode.IOR: "{0} | {1}",
    Opcode.IXOR: "{0} ^ {1}",
    Opcode.ISHL: "i32::shl({0}, {1})",
    Opcode.ISHR: "i32::shr({0}, {1})",
    Opcode.IUSHR: "i32::ushr({0}, {1})",
    Opcode.ILT: "i32::lt({0}, {1})",
    Opcode.ILE: "i32::le({0}, {1})",
    Opcode.IEQ: "i32::eq({0}, {1})",
    Opcode.IMIN: "i32::min({0}, {1})",
    Opcode.IMAX: "i32::max({0}, {1})",
    Opcode.I2F: "word(f32::from_integer({0}))",
    Opcode.F2I: "f32::to_integer(value({0}))",
    Opcode.FCANON: "word(f32::canonical(value({0})))",
}
"""Operations that need canonical NaNs in the floats they read (docs/numerics.md, Words)."""

PREAMBLE = """
namespace {
using namespace lockstep;
using namespace lockstep::f32;
using Index = std::int64_t;

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

// LANES words to an address that is a multiple of as many, past the caches where the machine can.
LOCKSTEP_INLINE void stream(Word* out, const Word* in) {
    typedef float Vector __attribute__((vector_size(4 * LANES)));
    Vector x;
    __builtin_memcpy(&x, in, sizeof x);
#if defined(__clang__)
    __builtin_nontemporal_store(x, reinterpret_cast<Vector*>(out));
#elif defined(__AVX512F__)
    __builtin_ia32_movntps512(reinterpret_cast<float*>(out), x);
#elif defined(__AVX2__)
    __builtin_ia32_movntps256(reinterpret_cast<float*>(out), x);
#elif defined(__SSE__)
    __builtin_ia32_movntps(reinterpret_cast<float*>(out), x);
#else
    __builtin_memcpy(out, &x, sizeof x);
#endif
}

// Before anyone else may read what was streamed.
LOCKSTEP_INLINE void streamed() {
#if defined(__SSE__)
    __builtin_ia32_sfence();
#endif
}

#if defined(__clang__)
#define LOCKSTEP_LANES _Pragma("clang loop vectorize(enable) interleave(enable)")
#else
#define LOCKSTEP_LANES _Pragma("GCC ivdep")
#endif
}  // namespace
"""

SIGNATURE = (
    "(const Word* const* in, [[maybe_unused]] const Index* in_stride, Word* const* out, const Index* out_stride,"
    " Index rows, Index columns)"
)

_UNIFORM, _ROW, _ELEMENT = range(3)
_LEVEL = {"U": _UNIFORM, "B": _ROW, "C": _ELEMENT, "I": _ELEMENT}


@cache
def float_source() -> str:
    """Returns the text of the installed kernels/f32.hpp."""
    return (Path(__file__).parent / "kernels/f32.hpp").read_text().replace("#pragma once", "")


def cost(expression: LoopExpression) -> int:
    """Estimates the work of a compiler for a function, in simple instructions."""
    return sum(FUNCTION_COST if op in FUNCTIONS else 1 for op, *_ in expression.instrs)


def name(i: int) -> str:
    """Returns the name of the function for expression i."""
    return f"loop_{i}"


def source(expressions: Sequence[LoopExpression]) -> str:
    """Returns a translation unit with a function for each expression."""
    functions = (_function(name(i), expression) for i, expression in enumerate(expressions))
    return float_source() + PREAMBLE + "".join(functions)


def deferred(expression: LoopExpression) -> frozenset[int]:
    """Returns the registers that may hold a non-canonical NaN: float results that are only read by float arithmetic and
    not stored.
    """
    first = len(expression.operands)
    wanted = set(expression.results)
    for op, *registers, _ in expression.instrs:
        if Opcode(op) not in FLOATS:
            wanted.update(registers)
    return frozenset(
        first + i for i, (op, *_) in enumerate(expression.instrs) if Opcode(op) in FLOATS and first + i not in wanted
    )


def _function(called: str, expression: LoopExpression) -> str:
    levels, lines = _levels(expression), _instructions(expression)
    first = len(expression.operands)

    def at(level: int) -> list[str]:
        return [line for i, line in enumerate(lines) if levels[first + i] == level]

    uniform, rows, elements = [], [], []
    for v, (form, step) in enumerate(expression.operands):
        place = f"in[{v}] + r * in_stride[{v}]"
        if form == "U":
            uniform.append(f"const Word r{v} = *in[{v}];")
        elif form == "B":
            rows.append(f"const Word r{v} = *({place});")
        elif form == "C":
            rows.append(f"const Word* __restrict p{v} = {place};")
            elements.append(f"const Word r{v} = p{v}[c];")
        else:
            rows.append(f"const Word s{v} = *in[{v}] + static_cast<Word>(r * in_stride[{v}]);")
            elements.append(f"const Word r{v} = s{v} + {step}u * static_cast<Word>(c);")
    rows += [f"Word* __restrict o{j} = out[{j}] + r * out_stride[{j}];" for j in range(len(expression.results))]
    elements += at(_ELEMENT)
    reads = [v for v, (form, _) in enumerate(expression.operands) if form == "C"]
    row = (_streaming if expression.streams else _loop)(elements, expression.results, reads)
    return "\n".join(
        (
            f'\nextern "C" void {called}{SIGNATURE} {{',
            *(*uniform, *at(_UNIFORM), "const int n = static_cast<int>(columns);"),
            *("for (Index r = 0; r < rows; ++r) {", *rows, *at(_ROW), *row, "}"),
            *(["streamed();"] if expression.streams else []),
            "}\n",
        )
    )


def _loop(elements: Sequence[str], results: Sequence[int], _: Sequence[int]) -> list[str]:
    """Returns C++ that computes and stores one row element by element."""
    stores = [f"o{j}[c] = r{result};" for j, result in enumerate(results)]
    return ["LOCKSTEP_LANES", "for (int c = 0; c < n; ++c) {", *elements, *stores, "}"]


AHEAD = 128
"""Number of words by which a streaming loop prefetches ahead."""


def _streaming(elements: Sequence[str], results: Sequence[int], reads: Sequence[int]) -> list[str]:
    """Returns C++ that computes one row in vectors: whole vectors are built on the stack and stored at once, the ends
    element by element.
    """
    stores = [f"o{j}[c] = r{result};" for j, result in enumerate(results)]
    tiles = [f"t{j}[c - begin] = r{result};" for j, result in enumerate(results)]
    return [
        "for (int begin = 0, end; begin < n; begin = end) {",
        "end = begin + LANES - static_cast<int>(reinterpret_cast<std::uintptr_t>(o0 + begin) / sizeof(Word) % LANES);",
        "if (end > n || end < begin + LANES) {",
        "end = end < n ? end : n;",
        *("for (int c = begin; c < end; ++c) {", *elements, *stores, "}"),
        "continue;",
        "}",
        *(f"__builtin_prefetch(p{v} + begin + {AHEAD});" for v in reads),
        *(f"alignas(64) Word t{j}[LANES];" for j in range(len(results))),
        "LOCKSTEP_LANES",
        *("for (int c = begin; c < begin + LANES; ++c) {", *elements, *tiles, "}"),
        *(f"stream(o{j} + begin, t{j});" for j in range(len(results))),
        "}",
    ]


def _levels(expression: LoopExpression) -> list[int]:
    """Returns per register the loop level at which its value changes."""
    levels = [_LEVEL[form] for form, _ in expression.operands]
    for _, *registers, _ in expression.instrs:
        levels.append(max((levels[r] for r in registers if r >= 0), default=_UNIFORM))
    return levels


def _instructions(expression: LoopExpression) -> list[str]:
    """Returns per instruction the C++ definition of its register."""
    first, loose = len(expression.operands), deferred(expression)
    lines = []
    for i, (code, a, b, c, imm) in enumerate(expression.instrs):
        op, names = Opcode(code), [f"r{r}" for r in (a, b, c)]
        if op == Opcode.IMM:
            result = f"{imm:#010x}u"
        elif op in FLOATS:
            result = FLOATS[op].format(*(f"value({name})" for name in names))
            result = f"word({result})" if first + i in loose else f"word(canonical({result}))"
        else:
            result = OTHERS[op].format(*names)
        lines.append(f"const Word r{first + i} = {result};")
    return lines
