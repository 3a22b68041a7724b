// One scalar operation over arrays of words: the opcodes of scalar.py, one vectorised loop each.
#pragma once

#include <cstddef>

#include "f32.hpp"

namespace lockstep {

using f32::value;
using f32::Word;
using f32::word;

// scalar.Op, the same numbers.
enum class Op : int {
    MOV, IMM, FADD, FSUB, FMUL, FDIV, FFMA, FSQRT, FNEG, FABS, FMIN, FMAX, FEXP, FLOG, FTANH, FLT, FLE, FEQ, SELECT,
    IADD, ISUB, IMUL, IDIV, IREM, IAND, IOR, IXOR, ISHL, ISHR, IUSHR, ILT, ILE, IEQ, IMIN, IMAX, I2F, F2I, FCANON,
};
inline constexpr int OP_COUNT = static_cast<int>(Op::FCANON) + 1;

template <class Function>
LOCKSTEP_INLINE void each(const Word* a, Word* __restrict out, std::size_t n, Function function) {
    for (std::size_t i = 0; i < n; ++i) out[i] = function(a[i]);
}
template <class Function>
LOCKSTEP_INLINE void each(const Word* a, const Word* b, Word* __restrict out, std::size_t n, Function function) {
    for (std::size_t i = 0; i < n; ++i) out[i] = function(a[i], b[i]);
}
template <class Function>
LOCKSTEP_INLINE void each(const Word* a, const Word* b, const Word* c, Word* __restrict out, std::size_t n, Function function) {
    for (std::size_t i = 0; i < n; ++i) out[i] = function(a[i], b[i], c[i]);
}

// out[i] = op(a[i], b[i], c[i]) for i < n; false if op is no opcode. An operand that the operation does not read may be
// null; out overlaps none of them. IMM copies a, which holds its immediate. The caller holds a FloatEnvironment.
static inline bool apply_op_inside(int op, const Word* a, const Word* b, const Word* c, Word* out, std::size_t n) {
    namespace f = f32;
    namespace i = i32;
    switch (static_cast<Op>(op)) {
    case Op::MOV:
    case Op::IMM: each(a, out, n, [](Word x) { return x; }); return true;
    case Op::FADD: each(a, b, out, n, [](Word x, Word y) { return word(f::add(value(x), value(y))); }); return true;
    case Op::FSUB: each(a, b, out, n, [](Word x, Word y) { return word(f::sub(value(x), value(y))); }); return true;
    case Op::FMUL: each(a, b, out, n, [](Word x, Word y) { return word(f::mul(value(x), value(y))); }); return true;
    case Op::FDIV: each(a, b, out, n, [](Word x, Word y) { return word(f::div(value(x), value(y))); }); return true;
    case Op::FFMA:
        each(a, b, c, out, n, [](Word x, Word y, Word z) { return word(f::fma(value(x), value(y), value(z))); });
        return true;
    case Op::FSQRT: each(a, out, n, [](Word x) { return word(f::sqrt(value(x))); }); return true;
    case Op::FNEG: each(a, out, n, [](Word x) { return word(f::neg(value(x))); }); return true;
    case Op::FABS: each(a, out, n, [](Word x) { return word(f::abs(value(x))); }); return true;
    case Op::FMIN: each(a, b, out, n, [](Word x, Word y) { return word(f::min(value(x), value(y))); }); return true;
    case Op::FMAX: each(a, b, out, n, [](Word x, Word y) { return word(f::max(value(x), value(y))); }); return true;
    case Op::FEXP: each(a, out, n, [](Word x) { return word(f::exp(value(x))); }); return true;
    case Op::FLOG: each(a, out, n, [](Word x) { return word(f::log(value(x))); }); return true;
    case Op::FTANH: each(a, out, n, [](Word x) { return word(f::tanh(value(x))); }); return true;
    case Op::FLT: each(a, b, out, n, [](Word x, Word y) { return f::lt(value(x), value(y)); }); return true;
    case Op::FLE: each(a, b, out, n, [](Word x, Word y) { return f::le(value(x), value(y)); }); return true;
    case Op::FEQ: each(a, b, out, n, [](Word x, Word y) { return f::eq(value(x), value(y)); }); return true;
    case Op::SELECT: each(a, b, c, out, n, [](Word x, Word y, Word z) { return f::select(x, y, z); }); return true;
    case Op::IADD: each(a, b, out, n, [](Word x, Word y) { return x + y; }); return true;
    case Op::ISUB: each(a, b, out, n, [](Word x, Word y) { return x - y; }); return true;
    case Op::IMUL: each(a, b, out, n, [](Word x, Word y) { return x * y; }); return true;
    case Op::IDIV: each(a, b, out, n, [](Word x, Word y) { return i::div(x, y); }); return true;
    case Op::IREM: each(a, b, out, n, [](Word x, Word y) { return i::rem(x, y); }); return true;
    case Op::IAND: each(a, b, out, n, [](Word x, Word y) { return x & y; }); return true;
    case Op::IOR: each(a, b, out, n, [](Word x, Word y) { return x | y; }); return true;
    case Op::IXOR: each(a, b, out, n, [](Word x, Word y) { return x ^ y; }); return true;
    case Op::ISHL: each(a, b, out, n, [](Word x, Word y) { return i::shl(x, y); }); return true;
    case Op::ISHR: each(a, b, out, n, [](Word x, Word y) { return i::shr(x, y); }); return true;
    case Op::IUSHR: each(a, b, out, n, [](Word x, Word y) { return i::ushr(x, y); }); return true;
    case Op::ILT: each(a, b, out, n, [](Word x, Word y) { return i::lt(x, y); }); return true;
    case Op::ILE: each(a, b, out, n, [](Word x, Word y) { return i::le(x, y); }); return true;
    case Op::IEQ: each(a, b, out, n, [](Word x, Word y) { return i::eq(x, y); }); return true;
    case Op::IMIN: each(a, b, out, n, [](Word x, Word y) { return i::min(x, y); }); return true;
    case Op::IMAX: each(a, b, out, n, [](Word x, Word y) { return i::max(x, y); }); return true;
    case Op::I2F: each(a, out, n, [](Word x) { return word(f::from_integer(x)); }); return true;
    case Op::F2I: each(a, out, n, [](Word x) { return f::to_integer(value(x)); }); return true;
    case Op::FCANON: each(a, out, n, [](Word x) { return word(f::canonical(value(x))); }); return true;
    }
    return false;
}

// The same for a caller that holds none.
static inline bool apply_op(int op, const Word* a, const Word* b, const Word* c, Word* out, std::size_t n) {
    const f32::FloatEnvironment environment;
    return apply_op_inside(op, a, b, c, out, n);
}

}  // namespace lockstep
