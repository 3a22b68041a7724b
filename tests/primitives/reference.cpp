// scalar.py once more, in C++ and in integers alone: compiled with -mgeneral-regs-only there is no float instruction in it.
//
// Written from scalar.py and IEEE 754-2019, not from kernels/f32.hpp, which it judges: every sum and product is exact in
// 128 bits and rounded once, in round_to_nearest(). The tables of exp, log and tanh are passed in by the caller.
//
// With -DMUTANT=n one line is wrong: a battery that does not notice is no battery.
#include <cstddef>
#include <cstdint>

#if !defined(MUTANT)
#define MUTANT 0
#endif

namespace {

using Word = std::uint32_t;
using Wide = unsigned __int128;

constexpr bool mutant(int n) { return MUTANT == n; }

constexpr Word SIGN = 0x80000000, INFINITE = 0x7f800000, NOT_A_NUMBER = 0x7fc00000, ONE = 0x3f800000, TWO = 0x40000000;

// polynomials.py, in the order of battery.TABLE.
struct Table {
    Word log2_e, ln2_hi, ln2_lo, round_to_integer, exp_lowest, exp_highest, exp[7], sqrt_half, log[9], tanh_small, tanh[5];
};
Table table;

// scalar.Op, the same numbers.
enum Op : int {
    MOV, IMM, FADD, FSUB, FMUL, FDIV, FFMA, FSQRT, FNEG, FABS, FMIN, FMAX, FEXP, FLOG, FTANH, FLT, FLE, FEQ, SELECT,
    IADD, ISUB, IMUL, IDIV, IREM, IAND, IOR, IXOR, ISHL, ISHR, IUSHR, ILT, ILE, IEQ, IMIN, IMAX, I2F, F2I, FCANON,
};

// -- binary32: words to exact numbers and back

bool is_nan(Word a) { return (a & ~SIGN) > INFINITE; }
bool is_infinite(Word a) { return (a & ~SIGN) == INFINITE; }
bool is_zero(Word a) { return (a & ~SIGN) == 0; }

// The magnitude of a finite word is significand * 2^exponent.
struct Number {
    std::uint32_t significand;
    int exponent;
};
Number unpack(Word a) {
    const Word biased = a >> 23 & 0xff;
    return {(a & 0x7fffff) | (biased ? Word{1} << 23 : 0), static_cast<int>(biased ? biased : 1) - 150};
}

int bits_of(std::uint64_t x) { return x ? 64 - __builtin_clzll(x) : 0; }
int bits_of(Wide x) {
    const auto high = static_cast<std::uint64_t>(x >> 64), low = static_cast<std::uint64_t>(x);
    return high ? 64 + bits_of(high) : bits_of(low);
}

// The word nearest to +-significand * 2^exponent, ties to even.
template <class Integer>
Word round_to_nearest(Integer significand, int exponent, Word sign) {
    if (significand == 0) return sign;
    int last_place = bits_of(significand) - 24 + exponent;
    if (last_place < -149) {
        if (mutant(1)) return sign;  // 1: subnormals are flushed
        last_place = -149;
    }
    const int shift = last_place - exponent;
    Integer kept;
    if (shift <= 0) {
        kept = significand << -shift;
    } else if (shift >= static_cast<int>(8 * sizeof(Integer))) {
        kept = 0;  // less than half of the least subnormal
    } else {
        // Half a unit less one carries into the last place from above the tie on; with the last bit set from the tie on.
        const Integer half = Integer{1} << (shift - 1), odd = significand >> shift & 1;
        if (mutant(2)) kept = (significand + half) >> shift;                                            // 2: ties away from zero
        else if (mutant(3)) kept = (significand + half - 1) >> shift;                                   // 3: ties towards zero
        else if (mutant(4)) kept = ((significand & ~((half >> 1) - (half > 1))) + half - 1 + odd) >> shift;  // 4: one sticky bit
        else kept = (significand + half - 1 + odd) >> shift;
    }
    const std::uint64_t word = (static_cast<std::uint64_t>(last_place + 149) << 23) + static_cast<std::uint64_t>(kept);
    if (mutant(5)) return sign | static_cast<Word>(word >= INFINITE ? INFINITE - 1 : word);  // 5: overflow stays finite
    return sign | static_cast<Word>(word < INFINITE ? word : INFINITE);
}

// The rounded sum of two numbers other than zero, p with its sign and q with its own.
template <class Integer>
Word round_sum(Integer p, Word sign, Integer q, Word its_sign, int exponent) {
    if (sign == its_sign) return round_to_nearest(p + q, exponent, sign);
    const bool less = p < q;
    if (mutant(9)) return p == q ? 0 : round_to_nearest(less ? q - p : p - q, exponent, sign);  // 9: the product's sign
    return p == q ? 0 : round_to_nearest(less ? q - p : p - q, exponent, less ? its_sign : sign);
}

// -- binary32: the correctly rounded operations

Word ffma(Word a, Word b, Word c) {
    if (is_nan(a) || is_nan(b) || is_nan(c)) return mutant(6) ? (is_nan(a) ? a : is_nan(b) ? b : c) : NOT_A_NUMBER;  // 6: payloads
    const Word sign = (a ^ b) & SIGN;
    if (is_infinite(a) || is_infinite(b)) {
        const bool invalid = is_zero(a) || is_zero(b) || c == (INFINITE | (sign ^ SIGN));
        return invalid ? NOT_A_NUMBER : sign | INFINITE;
    }
    if (is_infinite(c)) return c;
    const Number x = unpack(a), y = unpack(b), z = unpack(c);
    const std::uint64_t product = std::uint64_t{x.significand} * y.significand, addend = z.significand;
    const int product_exponent = x.exponent + y.exponent, apart = product_exponent - z.exponent;
    if (product == 0) return is_zero(c) ? (mutant(7) ? c : sign & c) : c;  // 7: the sign of a zero sum
    if (addend == 0) return round_to_nearest(product, product_exponent, sign);
    // Both at the lower exponent: 48 and 24 bits, in 64 where they fit.
    const Word its_sign = c & SIGN;
    if (0 <= apart && apart <= 14) return round_sum(product << apart, sign, addend, its_sign, z.exponent);
    if (-38 <= apart && apart < 0) return round_sum(product, sign, addend << -apart, its_sign, product_exponent);
    // More than `far` places below a product, c is one sticky bit: far from every bit that decides the rounding. As far below
    // c, a product is nothing: c is a float already.
    constexpr int far = 76;
    if (apart > far) return round_sum(Wide{product} << far, sign, Wide{mutant(8) ? 0 : 1}, its_sign, product_exponent - far);  // 8: no trace
    if (apart < -far) return c;
    if (apart >= 0) return round_sum(Wide{product} << apart, sign, Wide{addend}, its_sign, z.exponent);
    return round_sum(Wide{product}, sign, Wide{addend} << -apart, its_sign, product_exponent);
}

Word fadd(Word a, Word b) { return ffma(a, ONE, b); }
Word fsub(Word a, Word b) { return fadd(a, is_nan(b) ? b : b ^ SIGN); }
Word fmul(Word a, Word b) { return ffma(a, b, (a ^ b) & SIGN); }

Word fdiv(Word a, Word b) {
    if (is_nan(a) || is_nan(b)) return NOT_A_NUMBER;
    const Word sign = (a ^ b) & SIGN;
    if ((is_zero(a) && is_zero(b)) || (is_infinite(a) && is_infinite(b))) return NOT_A_NUMBER;
    if (is_infinite(a) || is_zero(b)) return sign | INFINITE;
    if (is_zero(a) || is_infinite(b)) return sign;
    const Number x = unpack(a), y = unpack(b);
    // Both with their leading bit at 23: the quotient then has 39 or 40 bits.
    const int up = __builtin_clz(x.significand) - 8, down = __builtin_clz(y.significand) - 8;
    const std::uint64_t dividend = std::uint64_t{x.significand} << up << 39, divisor = std::uint64_t{y.significand} << down;
    const std::uint64_t quotient = dividend / divisor, sticky = mutant(10) ? 0 : dividend % divisor != 0;  // 10: no remainder
    return round_to_nearest(quotient << 1 | sticky, x.exponent - up - (y.exponent - down) - 40, sign);
}

Word fcanon(Word a) { return is_nan(a) ? NOT_A_NUMBER : a; }

Word fsqrt(Word a) {
    if (is_nan(a) || is_zero(a)) return fcanon(a);
    if (a & SIGN) return NOT_A_NUMBER;
    if (is_infinite(a)) return a;
    Number x = unpack(a);
    int up = __builtin_clz(x.significand) - 8 + 38;  // the leading bit at 61, the exponent even
    if ((x.exponent - up) & 1) ++up;
    std::uint64_t rest = std::uint64_t{x.significand} << up, root = 0;
    // Digit by digit: (root + bit)^2 = root^2 + bit (2 root + bit).
    for (std::uint64_t bit = std::uint64_t{1} << 62; bit; bit >>= 2) {
        const std::uint64_t taken = 0 - std::uint64_t{rest >= root + bit};
        rest -= (root + bit) & taken;
        root = (root >> 1) + (bit & taken);
    }
    const std::uint64_t sticky = mutant(11) ? 0 : rest != 0;  // 11: an inexact root that looks exact
    return round_to_nearest(root << 1 | sticky, (x.exponent - up) / 2 - 1, 0);
}

Word fneg(Word a) { return is_nan(a) ? NOT_A_NUMBER : a ^ SIGN; }
Word fabs_(Word a) { return is_nan(a) ? NOT_A_NUMBER : a & ~SIGN; }

// -- binary32: order

// -inf < ... < -0 < +0 < ... < +inf
std::int64_t order(Word a) { return a & SIGN ? -std::int64_t{a & ~SIGN} - 1 : std::int64_t{a}; }

Word fmin_(Word a, Word b) {
    if (is_nan(a) || is_nan(b)) return mutant(12) ? (is_nan(a) ? b : a) : NOT_A_NUMBER;  // 12: the number, as minNum has it
    return order(a) < order(b) ? a : b;
}
Word fmax_(Word a, Word b) {
    if (is_nan(a) || is_nan(b)) return NOT_A_NUMBER;
    if (mutant(13) && is_zero(a) && is_zero(b)) return a;  // 13: -0 = +0
    return order(a) < order(b) ? b : a;
}
bool unordered(Word a, Word b) { return is_nan(a) || is_nan(b); }
Word feq(Word a, Word b) { return !unordered(a, b) && (a == b || (is_zero(a) && is_zero(b))); }
Word fle(Word a, Word b) { return !unordered(a, b) && (order(a) <= order(b) || feq(a, b)); }
Word flt(Word a, Word b) { return fle(a, b) && !feq(a, b); }

// -- integers

std::int64_t as_signed(Word a) { return a & SIGN ? std::int64_t{a} - (std::int64_t{1} << 32) : std::int64_t{a}; }
Word as_word(std::int64_t a) { return static_cast<Word>(static_cast<std::uint64_t>(a)); }

Word idiv(Word a, Word b) { return b == 0 ? 0 : as_word(as_signed(a) / as_signed(b)); }
Word irem(Word a, Word b) { return b == 0 ? 0 : as_word(as_signed(a) % as_signed(b)); }
Word ishl(Word a, Word b) { return as_word(as_signed(a) * (std::int64_t{1} << (b & 31))); }
Word ishr(Word a, Word b) {
    const std::int64_t unit = std::int64_t{1} << (b & 31), x = as_signed(a);
    return as_word(x >= 0 ? x / unit : -((-x + unit - 1) / unit));
}
Word iushr(Word a, Word b) { return a / (Word{1} << (b & 31)); }

// -- between the two

Word i2f(Word a) {
    const std::int64_t x = as_signed(a);
    return round_to_nearest(static_cast<std::uint64_t>(x < 0 ? -x : x), 0, a & SIGN);
}
Word f2i(Word a) {
    if (is_nan(a)) return 0;
    if ((a & ~SIGN) >= 0x4f000000) return a & SIGN ? SIGN : ~SIGN;
    const Number x = unpack(a);
    std::uint64_t whole;
    if (x.exponent >= 0) {
        whole = std::uint64_t{x.significand} << x.exponent;
    } else if (x.exponent < -25) {
        whole = 0;
    } else {
        const int shift = -x.exponent;
        const std::uint64_t rest = x.significand & ((std::uint64_t{1} << shift) - 1), half = std::uint64_t{1} << (shift - 1);
        whole = x.significand >> shift;
        if (mutant(14)) whole += rest >= half;  // 14: halves away from zero
        else whole += rest > half || (rest == half && (whole & 1));
    }
    return as_word(a & SIGN ? -static_cast<std::int64_t>(whole) : static_cast<std::int64_t>(whole));
}
Word select(Word c, Word a, Word b) { return c ? a : b; }

// -- functions: scalar.py's lines, in its order

template <int N>
Word horner(const Word (&coefficients)[N], Word x) {
    Word p = coefficients[0];
    for (int i = 1; i < N; ++i) p = mutant(15) ? fadd(fmul(p, x), coefficients[i]) : ffma(p, x, coefficients[i]);  // 15: two roundings
    return p;
}

Word fexp(Word x) {
    x = fmax_(fmin_(x, table.exp_highest), table.exp_lowest);
    const Word shifted = ffma(x, table.log2_e, table.round_to_integer), n = fsub(shifted, table.round_to_integer);
    Word r = ffma(n, fneg(table.ln2_hi), x);
    r = ffma(n, fneg(table.ln2_lo), r);
    const Word p = horner(table.exp, r), k = shifted - table.round_to_integer, half = ishr(k, 1), rest = k - half;
    const Word scaled = fmul(p, ishl(half + 127, 23));
    return fmul(scaled, ishl(rest + 127, 23));
}

Word flog(Word x) {
    const bool subnormal = as_signed(x) < 0x00800000;
    const Word y = subnormal ? fmul(x, 0x4b000000) : x;
    const Word k = ishr(y - table.sqrt_half, 23), m = y - ishl(k, 23);
    const Word n = i2f(k - (subnormal ? (mutant(16) ? 24 : 23) : 0));  // 16: subnormals are scaled by another power
    const Word f = fsub(m, ONE), p = horner(table.log, f);
    const Word tail = ffma(fmul(f, f), p, fmul(n, table.ln2_lo));
    Word r = ffma(n, table.ln2_hi, fadd(f, tail));
    if (x == INFINITE) r = INFINITE;
    if (flt(x, ONE) && fle(x, 0)) r = NOT_A_NUMBER;
    if (feq(x, 0)) r = SIGN | INFINITE;
    return is_nan(x) ? NOT_A_NUMBER : r;
}

Word ftanh(Word x) {
    const Word a = fabs_(x), z = fmul(a, a);
    const Word small = ffma(fmul(a, z), horner(table.tanh, z), a);
    const Word large = fsub(ONE, fdiv(TWO, fadd(fexp(fadd(a, a)), ONE)));
    const Word r = (mutant(17) ? fle(a, table.tanh_small) : flt(a, table.tanh_small)) ? small : large;  // 17: the threshold itself
    return fcanon(r | (x & SIGN));
}

Word apply(int op, Word a, Word b, Word c) {
    switch (op) {
    case FADD: return fadd(a, b);
    case FSUB: return fsub(a, b);
    case FMUL: return fmul(a, b);
    case FDIV: return fdiv(a, b);
    case FFMA: return ffma(a, b, c);
    case FSQRT: return fsqrt(a);
    case FNEG: return fneg(a);
    case FABS: return fabs_(a);
    case FMIN: return fmin_(a, b);
    case FMAX: return fmax_(a, b);
    case FEXP: return fexp(a);
    case FLOG: return flog(a);
    case FTANH: return ftanh(a);
    case FLT: return flt(a, b);
    case FLE: return fle(a, b);
    case FEQ: return feq(a, b);
    case SELECT: return select(a, b, c);
    case IADD: return as_word(as_signed(a) + as_signed(b));
    case ISUB: return as_word(as_signed(a) - as_signed(b));
    case IMUL: return as_word(as_signed(a) * as_signed(b));
    case IDIV: return idiv(a, b);
    case IREM: return irem(a, b);
    case IAND: return a & b;
    case IOR: return a | b;
    case IXOR: return a ^ b;
    case ISHL: return ishl(a, b);
    case ISHR: return ishr(a, b);
    case IUSHR: return iushr(a, b);
    case ILT: return as_signed(a) < as_signed(b);
    case ILE: return as_signed(a) <= as_signed(b);
    case IEQ: return a == b;
    case IMIN: return as_signed(a) < as_signed(b) ? a : b;
    case IMAX: return as_signed(a) < as_signed(b) ? b : a;
    case I2F: return i2f(a);
    case F2I: return f2i(a);
    case FCANON: return fcanon(a);
    default: return a;  // MOV, IMM
    }
}

}  // namespace

// The words of polynomials.py, which apply_reference() reads.
extern "C" void set_table(const std::uint32_t* words) {
    auto* place = reinterpret_cast<Word*>(&table);
    for (std::size_t i = 0; i < sizeof table / sizeof(Word); ++i) place[i] = words[i];
}

// out[i] = op(a[i], b[i], c[i]).
extern "C" void apply_reference(int op, const std::uint32_t* a, const std::uint32_t* b, const std::uint32_t* c, std::uint32_t* out,
                                std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) out[i] = apply(op, a[i], b[i], c[i]);
}

// out[i] = op(first + i), of an operation of one operand.
extern "C" void apply_reference_from(int op, std::uint32_t first, std::uint32_t* out, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) out[i] = apply(op, first + static_cast<Word>(i), 0, 0);
}
