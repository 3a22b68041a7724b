// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

/// @title Float32
/// @notice IEEE 754 binary32 on words: the operations of numerics/scalar.py, with the same bits on every input.
/// @dev A word is a uint256 below 2^32, and so is every result. Round to nearest even, subnormals and signed zeros kept,
/// every NaN result is 0x7fc00000. Exact integers, rounded once: a finite value is `significand * 2^(e - 350)` until
/// `_round` makes a word of it, where 350 is 2 * (127 + 23) for a product's two operands and 50 places of room to its
/// right. 127 bits hold any sum: whatever lies further apart cannot change the rounded result but by being there.
library Float32 {
    uint256 internal constant NAN = 0x7fc00000;
    uint256 internal constant INFINITE = 0x7f800000;
    uint256 internal constant NEGATIVE_INFINITE = 0xff800000;
    uint256 internal constant ONE = 0x3f800000;

    uint256 private constant SIGN = 0x80000000;
    uint256 private constant MAGNITUDE = 0x7fffffff;
    uint256 private constant FRACTION = 0x007fffff;
    uint256 private constant TWO = 0x40000000;
    uint256 private constant TWO_23 = 0x4b000000;

    // Byte v is the place of the highest bit of v.
    uint256 private constant HIGHEST_BIT = 0x0000010102020202030303030303030304040404040404040404040404040404;
    uint256 private constant HALF = 0x8000000000000000000000000000000000000000000000000000000000000000;

    // numerics/polynomials.py, the same names and the same bits.
    uint256 private constant LOG2_E = 0x3fb8aa3b;
    uint256 private constant LN2_HI = 0x3f317218;
    uint256 private constant LN2_LO = 0xb102e308;
    uint256 private constant ROUND_TO_INTEGER = 0x4b400000;
    uint256 private constant EXP_LOWEST = 0xc2d00000;
    uint256 private constant EXP_HIGHEST = 0x42b20000;
    uint256 private constant SQRT_HALF = 0x3f3504f3;
    uint256 private constant TANH_SMALL = 0x3f200000;

    // ---------------------------------------------------------------------------------- correctly rounded operations

    /// @notice a + b.
    function add(uint256 a, uint256 b) internal pure returns (uint256) {
        uint256 x;
        uint256 e;
        uint256 usual;
        assembly ("memory-safe") {
            // From here on a has the greater magnitude, and therefore the result's sign.
            if lt(and(a, MAGNITUDE), and(b, MAGNITUDE)) {
                x := a
                a := b
                b := x
            }
            e := and(shr(23, a), 0xff)
            let below := and(shr(23, b), 0xff)
            usual := mul(below, lt(e, 0xff))
            below := sub(e, below)
            x := shl(30, or(and(a, FRACTION), 0x800000))
            // More than 30 places below it vanishes: what lies so near to a float rounds to it.
            let y := shl(sub(30, below), or(and(b, FRACTION), 0x800000))
            switch and(xor(a, b), SIGN)
            case 0 { x := add(x, y) }
            default { x := sub(x, y) }
            e := add(e, 170)
        }
        if (usual == 0) return _fmaUnusual(a, ONE, b);
        return _round(x, e, 51, a);
    }

    /// @notice s + x_0 + x_1 + ..., from the left: big-endian words in memory from `at` to `end`, 4 bytes each.
    /// @dev Short for what is the rule in a long sum: a normal x whose exponent is at most 30 below that of s, and that takes
    /// away less than a bit. The sum's 24 bits stay apart from its exponent and sign between one such term and the next.
    function sum(uint256 s, uint256 at, uint256 end) internal pure returns (uint256) {
        while (at < end) {
            assembly ("memory-safe") {
                let e := and(shr(23, s), 0xff)
                // Not the greatest exponent: a sum that is rounded up to 2^24 is finite.
                if lt(sub(e, 1), 0xfd) {
                    let sign := and(s, SIGN)
                    // 2^24, too, when it was rounded up to that.
                    s := or(and(s, FRACTION), 0x800000)
                    for { } lt(at, end) { at := add(at, 4) } {
                        let x := xor(shr(224, mload(at)), sign)
                        // How many places of the exact sum are dropped.
                        let places := sub(e, and(shr(23, x), 0xff))
                        if or(gt(places, 30), iszero(and(x, INFINITE))) { break }
                        let y := or(and(x, FRACTION), 0x800000)
                        switch gt(x, MAGNITUDE)
                        case 0 {
                            y := add(shl(places, s), y)
                            if shr(add(places, 24), y) {
                                if eq(e, 0xfd) { break }
                                e := add(e, 1)
                                places := add(places, 1)
                            }
                        }
                        default {
                            y := sub(shl(places, s), y)
                            // Fewer bits are left, or the sign changes.
                            if iszero(eq(shr(add(places, 23), y), 1)) { break }
                        }
                        s := shr(places, y)
                        // As in `_round`.
                        s := add(s, gt(add(shl(sub(256, places), y), and(s, 1)), HALF))
                    }
                    // The leading bit completes the exponent, which is one short without it.
                    s := or(sign, add(shl(23, sub(e, 1)), s))
                }
            }
            if (at == end) break;
            s = add(s, _wordAt(at));
            at += 4;
        }
        return s;
    }

    /// @notice s + a_0 * b_0 + a_1 * b_1 + ..., from the left, each product added with one rounding: big-endian words in memory from
    /// `a` and `b`, the next ones `stepA` and `stepB` bytes further.
    /// @dev As `sum`: short for normal factors whose product does not lead the sum, and takes away less than a bit of it.
    function dot(uint256 s, uint256 a, uint256 stepA, uint256 b, uint256 stepB, uint256 count)
        internal
        pure
        returns (uint256)
    {
        while (count != 0) {
            assembly ("memory-safe") {
                let e := and(shr(23, s), 0xff)
                if lt(sub(e, 1), 0xfd) {
                    let sign := and(s, SIGN)
                    s := or(and(s, FRACTION), 0x800000)
                    for { } count { count := sub(count, 1) } {
                        let x := shr(224, mload(a))
                        let y := shr(224, mload(b))
                        let places := and(shr(23, x), 0xff)
                        let ey := and(shr(23, y), 0xff)
                        // 0 where an exponent is 0 or 255.
                        let usual := mul(and(add(places, 1), 0xfe), and(add(ey, 1), 0xfe))
                        // How far to the left of the product's last place the last of s is; less than 22 cannot be.
                        places := sub(add(e, 150), add(places, ey))
                        if or(gt(places, 200), iszero(usual)) { break }
                        ey := and(xor(xor(x, y), sign), SIGN)
                        y := mul(or(and(x, FRACTION), 0x800000), or(and(y, FRACTION), 0x800000))
                        switch ey
                        case 0 { y := add(shl(places, s), y) }
                        default { y := sub(shl(places, s), y) }
                        x := shr(add(places, 23), y)
                        if iszero(eq(x, 1)) {
                            // More bits by one, or by many; fewer; or the sign changes.
                            if or(gt(sub(x, 2), 1), eq(e, 0xfd)) { break }
                            e := add(e, 1)
                            places := add(places, 1)
                        }
                        s := shr(places, y)
                        s := add(s, gt(add(shl(sub(256, places), y), and(s, 1)), HALF))
                        a := add(a, stepA)
                        b := add(b, stepB)
                    }
                    s := or(sign, add(shl(23, sub(e, 1)), s))
                }
            }
            if (count == 0) break;
            s = fma(_wordAt(a), _wordAt(b), s);
            (a, b, count) = (a + stepA, b + stepB, count - 1);
        }
        return s;
    }

    /// @notice a - b.
    function sub(uint256 a, uint256 b) internal pure returns (uint256) {
        return add(a, b ^ SIGN);
    }

    /// @notice a * b.
    function mul(uint256 a, uint256 b) internal pure returns (uint256) {
        uint256 x;
        uint256 e;
        uint256 usual;
        assembly ("memory-safe") {
            let ea := and(shr(23, a), 0xff)
            let eb := and(shr(23, b), 0xff)
            // 0 where an exponent is 0 or 255.
            usual := mul(and(add(ea, 1), 0xfe), and(add(eb, 1), 0xfe))
            x := shl(50, mul(or(and(a, FRACTION), 0x800000), or(and(b, FRACTION), 0x800000)))
            e := add(ea, eb)
        }
        // Adding a zero of the product's own sign changes nothing, not even the sign of a zero.
        if (usual == 0) return _fmaUnusual(a, b, (a ^ b) & SIGN);
        return _round(x, e, 94, a ^ b);
    }

    /// @notice a * b + c with one rounding.
    /// @dev The hot path of every fold: `_round` is written out in it.
    function fma(uint256 a, uint256 b, uint256 c) internal pure returns (uint256 r) {
        uint256 x;
        uint256 y;
        uint256 e;
        uint256 place;
        assembly ("memory-safe") {
            e := and(shr(23, a), 0xff)
            let eb := and(shr(23, b), 0xff)
            place := and(shr(23, c), 0xff)
            // 0 where an exponent is 0 or 255.
            y := mul(mul(and(add(e, 1), 0xfe), and(add(eb, 1), 0xfe)), and(add(place, 1), 0xfe))
            e := add(e, eb)
        }
        if (y == 0) return _fmaUnusual(a, b, c);
        assembly ("memory-safe") {
            x := shl(50, mul(or(and(a, FRACTION), 0x800000), or(and(b, FRACTION), 0x800000)))
            // How far to the left of the sum's last place the addend belongs: within [0, 102] it fits as it is.
            place := sub(add(place, 200), e)
            if gt(place, 102) {
                switch slt(place, 0)
                // Far below the product's last place, anything that is not zero rounds alike.
                case 1 { place := 0 }
                // So does the product when it is far below the addend's last place.
                default {
                    e := sub(add(e, place), 102)
                    place := 102
                }
            }
            y := shl(place, or(and(c, FRACTION), 0x800000))
            // From here on b has the sign.
            b := xor(a, b)
            switch and(xor(b, c), SIGN)
            case 0 { x := add(x, y) }
            default {
                x := sub(x, y)
                if slt(x, 0) {
                    b := c
                    x := sub(0, x)
                }
            }
            // The higher of the two leading bits, less two, is where one to five bits are left of.
            place := add(place, 21)
            if lt(place, 94) { place := 94 }
            if iszero(shr(place, x)) {
                if iszero(x) {
                    b := 0
                    e := 0
                }
                place := shl(6, gt(x, 0xffffffffffffffff))
                place := or(place, shl(5, gt(shr(place, x), 0xffffffff)))
                place := or(place, shl(4, gt(shr(place, x), 0xffff)))
                place := or(place, shl(3, gt(shr(place, x), 0xff)))
                place := or(place, shl(2, gt(shr(place, x), 0x1f)))
            }
            place := sub(add(add(place, byte(shr(place, x), HIGHEST_BIT)), e), 224)
            if gt(place, 253) {
                switch slt(place, 0)
                case 1 { place := 0 }
                default {
                    place := 255
                    x := 0
                }
            }
            e := sub(add(place, 201), e)
            r := shr(e, x)
            r := or(and(b, SIGN), add(shl(23, place), add(r, gt(add(shl(sub(256, e), x), and(r, 1)), HALF))))
        }
    }

    /// @notice a / b.
    function div(uint256 a, uint256 b) internal pure returns (uint256) {
        uint256 significand;
        uint256 e;
        uint256 low;
        bool finite;
        assembly ("memory-safe") {
            let ea := and(shr(23, a), 0xff)
            let eb := and(shr(23, b), 0xff)
            let x := shl(80, or(and(a, FRACTION), shl(23, iszero(iszero(ea)))))
            let y := or(and(b, FRACTION), shl(23, iszero(iszero(eb))))
            finite := and(lt(ea, 0xff), and(lt(eb, 0xff), iszero(iszero(mul(x, y)))))
            // 56 places at least. The expansion of a quotient by 24 bits has no run of 24 zeros before its end, so 25
            // places that look like a tie are one: what is cut off never decides.
            significand := div(x, y)
            e := sub(add(add(ea, iszero(ea)), 270), add(eb, iszero(eb)))
            // Two normal numbers give 80 or 81 bits, a subnormal divisor up to 104.
            low := add(78, mul(22, iszero(iszero(shr(83, significand)))))
        }
        if (finite) return _round(significand, e, low, a ^ b);
        return _divSpecial(a, b);
    }

    /// @notice The square root; sqrt(-0) = -0, and NaN below zero.
    function sqrt(uint256 a) internal pure returns (uint256 r) {
        if (a & MAGNITUDE == 0) return a;
        if (a > 0x7f7fffff) return a == INFINITE ? INFINITE : NAN;
        assembly ("memory-safe") {
            let e := shr(23, a)
            a := or(and(a, FRACTION), shl(23, iszero(iszero(e))))
            if iszero(e) {
                // A subnormal, moved up to 24 bits.
                let high := shl(4, gt(a, 0xffff))
                high := or(high, shl(3, gt(shr(high, a), 0xff)))
                high := or(high, shl(2, gt(shr(high, a), 0x1f)))
                high := add(high, byte(shr(high, a), HIGHEST_BIT))
                a := shl(sub(23, high), a)
                e := sub(high, 22)
            }
            // The radicand has 51 or 52 bits and an even exponent, the root 26: two more than the result.
            a := shl(add(27, and(not(e), 1)), a)
            // A line that is never more than 4.2 % off, then Newton's iteration: 2^-10, 2^-21, 2^-43.
            r := add(div(a, 0x6000000), 0x16aaaab)
            r := shr(1, add(r, div(a, r)))
            r := shr(1, add(r, div(a, r)))
            r := shr(1, add(r, div(a, r)))
            r := sub(r, lt(div(a, r), r))
            // A root is never half way between two floats, so the bits below the root cannot matter.
            r := add(shl(23, sub(shr(1, add(e, 127)), 1)), shr(2, add(r, 2)))
        }
    }

    /// @notice -a.
    function neg(uint256 a) internal pure returns (uint256) {
        return canonical(a ^ SIGN);
    }

    /// @notice |a|.
    function abs(uint256 a) internal pure returns (uint256) {
        return canonical(a & MAGNITUDE);
    }

    /// @notice a itself; a NaN becomes the canonical one.
    function canonical(uint256 a) internal pure returns (uint256) {
        return a & MAGNITUDE > INFINITE ? NAN : a;
    }

    // --------------------------------------------------------------------------------------------------------- order

    /// @notice The lesser in the total order (-0 < +0); NaN if either is NaN.
    function min(uint256 a, uint256 b) internal pure returns (uint256) {
        if (_anyNaN(a, b)) return NAN;
        return _order(a) < _order(b) ? a : b;
    }

    /// @notice The greater in the total order (-0 < +0); NaN if either is NaN.
    function max(uint256 a, uint256 b) internal pure returns (uint256) {
        if (_anyNaN(a, b)) return NAN;
        return _order(a) < _order(b) ? b : a;
    }

    /// @notice 1 if a < b, else 0; 0 with a NaN; -0 == +0.
    function lt(uint256 a, uint256 b) internal pure returns (uint256 r) {
        if (_anyNaN(a, b) || (a | b) & MAGNITUDE == 0) return 0;
        uint256 x = _order(a);
        uint256 y = _order(b);
        assembly ("memory-safe") {
            r := lt(x, y)
        }
    }

    /// @notice 1 if a <= b, else 0; 0 with a NaN; -0 == +0.
    function le(uint256 a, uint256 b) internal pure returns (uint256) {
        return lt(a, b) | eq(a, b);
    }

    /// @notice 1 if a == b, else 0; 0 with a NaN; -0 == +0.
    function eq(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := or(and(eq(a, b), lt(and(a, MAGNITUDE), 0x7f800001)), iszero(and(or(a, b), MAGNITUDE)))
        }
    }

    // --------------------------------------------------------------------------------------------------- conversions

    /// @notice The float nearest to a signed integer, ties to even; 0 gives +0.
    function fromInt(uint256 a) internal pure returns (uint256) {
        if (a == 0) return 0;
        uint256 magnitude = a;
        assembly ("memory-safe") {
            if gt(a, MAGNITUDE) { magnitude := sub(0x100000000, a) }
        }
        return _round(magnitude << 50, 300, 126, a);
    }

    /// @notice The signed integer nearest to a float, ties to even; saturates, and NaN gives 0.
    function toInt(uint256 a) internal pure returns (uint256 r) {
        uint256 e = (a >> 23) & 0xff;
        if (e < 126) return 0;
        if (e > 157) {
            if (a & MAGNITUDE > INFINITE) return 0;
            return a > MAGNITUDE ? SIGN : MAGNITUDE;
        }
        assembly ("memory-safe") {
            // 32 places to the right of the point.
            let fixedPoint := shl(sub(e, 118), or(and(a, FRACTION), 0x800000))
            r := shr(32, fixedPoint)
            r := add(r, gt(add(and(fixedPoint, 0xffffffff), and(r, 1)), SIGN))
            if gt(a, MAGNITUDE) { r := and(sub(0, r), 0xffffffff) }
        }
    }

    // ----------------------------------------------------- functions: the sequence of operations is their definition

    /// @notice exp(x) within 0.9 ulp: exp(-inf) = +0, overflow gives +inf, tiny results are subnormal.
    function exp(uint256 x) internal pure returns (uint256) {
        x = max(min(x, EXP_HIGHEST), EXP_LOWEST);
        uint256 shifted = fma(x, LOG2_E, ROUND_TO_INTEGER);
        uint256 n = sub(shifted, ROUND_TO_INTEGER);
        uint256 r = fma(n, LN2_HI ^ SIGN, x);
        r = fma(n, LN2_LO ^ SIGN, r);
        x = fma(0x3ab526ac, r, 0x3c091cc7);
        x = fma(x, r, 0x3d2aac58);
        x = fma(x, r, 0x3e2aaa49);
        x = fma(x, r, 0x3efffffe);
        x = fma(x, r, 0x3f800000);
        x = fma(x, r, 0x3f800000);
        uint256 half;
        uint256 rest;
        assembly ("memory-safe") {
            let k := sub(shifted, ROUND_TO_INTEGER)
            half := sar(1, k)
            rest := and(shl(23, add(sub(k, half), 127)), 0xffffffff)
            half := and(shl(23, add(half, 127)), 0xffffffff)
        }
        return mul(mul(x, half), rest);
    }

    /// @notice log(x) within 0.9 ulp: NaN below zero, log(+-0) = -inf, log(+inf) = +inf, log(1) = +0.
    function log(uint256 x) internal pure returns (uint256) {
        if (x & MAGNITUDE == 0) return NEGATIVE_INFINITE;
        if (x >= INFINITE) return x == INFINITE ? INFINITE : NAN;
        uint256 n = 0;
        if (x < 0x00800000) {
            x = mul(x, TWO_23);
            n = 23;
        }
        uint256 f;
        assembly ("memory-safe") {
            let k := sar(23, sub(x, SQRT_HALF))
            f := sub(x, shl(23, k))
            n := and(sub(k, n), 0xffffffff)
        }
        n = fromInt(n);
        f = sub(f, ONE);
        x = fma(0xbd9c64ef, f, 0x3e02af63);
        x = fma(x, f, 0xbe06c121);
        x = fma(x, f, 0x3e116c97);
        x = fma(x, f, 0xbe2a3945);
        x = fma(x, f, 0x3e4cd00e);
        x = fma(x, f, 0xbe800113);
        x = fma(x, f, 0x3eaaaaaa);
        x = fma(x, f, 0xbf000000);
        x = fma(mul(f, f), x, mul(n, LN2_LO));
        return fma(n, LN2_HI, add(f, x));
    }

    /// @notice tanh(x) within 1.4 ulp; odd to the last bit, tanh(-0) = -0.
    function tanh(uint256 x) internal pure returns (uint256) {
        uint256 sign = x & SIGN;
        x = x & MAGNITUDE;
        if (x < TANH_SMALL) {
            uint256 z = mul(x, x);
            uint256 p = fma(0xbbba8672, z, 0x3ca8fc67);
            p = fma(p, z, 0xbd5c1ad2);
            p = fma(p, z, 0x3e08837b);
            p = fma(p, z, 0xbeaaaa99);
            return sign | fma(mul(x, z), p, x);
        }
        return canonical(sign | sub(ONE, div(TWO, add(exp(add(x, x)), ONE))));
    }

    // ------------------------------------------------------------------------------------------------------- private

    function _wordAt(uint256 at) private pure returns (uint256 word) {
        assembly ("memory-safe") {
            word := shr(224, mload(at))
        }
    }

    /// @dev x * 2^(e - 350) + c with one rounding, c finite, where 2^50 <= x < 2^98 is a multiple of 2^50 and `sign` has x's
    /// sign bit: the slow twin of the sum in `fma`.
    function _accumulate(uint256 x, uint256 e, uint256 sign, uint256 c) private pure returns (uint256 r) {
        uint256 low;
        assembly ("memory-safe") {
            let place := and(shr(23, c), 0xff)
            let y := or(and(c, FRACTION), shl(23, iszero(iszero(place))))
            // How far to the left of the sum's last place the addend belongs: within [0, 102] it fits as it is.
            place := sub(add(add(place, iszero(place)), 200), e)
            if gt(place, 102) {
                switch slt(place, 0)
                // Far below the product's last place, anything that is not zero rounds alike.
                case 1 { place := 0 }
                // So does the product when it is far below the addend's last place.
                default {
                    if y {
                        e := sub(add(e, place), 102)
                        place := 102
                    }
                }
            }
            // The higher of the two leading bits, less two.
            low := add(place, 21)
            if lt(low, 94) { low := 94 }
            y := shl(place, y)
            switch and(xor(sign, c), SIGN)
            case 0 { x := add(x, y) }
            default {
                x := sub(x, y)
                if slt(x, 0) {
                    x := sub(0, x)
                    sign := c
                }
            }
        }
        return _round(x, e, low, sign);
    }

    /// @dev The word nearest to x * 2^(e - 350), ties to even, with the sign bit of `sign`; x < 2^127. `low` is a guess,
    /// x < 2^(low + 5): the leading bit is quickly found if it is one of the five from there on.
    function _round(uint256 x, uint256 e, uint256 low, uint256 sign) private pure returns (uint256 r) {
        assembly ("memory-safe") {
            if iszero(shr(low, x)) {
                // Exact cancellation gives +0, the least of the subnormals.
                if iszero(x) {
                    sign := 0
                    e := 0
                }
                low := shl(6, gt(x, 0xffffffffffffffff))
                low := or(low, shl(5, gt(shr(low, x), 0xffffffff)))
                low := or(low, shl(4, gt(shr(low, x), 0xffff)))
                low := or(low, shl(3, gt(shr(low, x), 0xff)))
                low := or(low, shl(2, gt(shr(low, x), 0x1f)))
            }
            // The biased exponent less one.
            low := sub(add(add(low, byte(shr(low, x), HIGHEST_BIT)), e), 224)
            if gt(low, 253) {
                switch slt(low, 0)
                // A subnormal's last place is that of the least normal numbers.
                case 1 { low := 0 }
                // Infinity.
                default {
                    low := 255
                    x := 0
                }
            }
            // How many places are dropped: at least one.
            e := sub(add(low, 201), e)
            r := shr(e, x)
            // What is dropped, as a fraction of 2^256; its last bit is free to carry the tie-breaker. A normal number's
            // leading bit completes the exponent, and a carry out of it, even to infinity, is right as well.
            r := or(
                and(sign, SIGN), add(shl(23, low), add(r, gt(add(shl(sub(256, e), x), and(r, 1)), HALF)))
            )
        }
    }

    /// @dev a * b + c where a or b is zero, subnormal, infinite or NaN.
    function _fmaUnusual(uint256 a, uint256 b, uint256 c) private pure returns (uint256) {
        uint256 x;
        uint256 e;
        bool finite;
        assembly ("memory-safe") {
            let ea := and(shr(23, a), 0xff)
            let eb := and(shr(23, b), 0xff)
            finite := iszero(or(or(eq(ea, 0xff), eq(eb, 0xff)), eq(and(c, INFINITE), INFINITE)))
            x :=
                shl(50, mul(
                    or(and(a, FRACTION), shl(23, iszero(iszero(ea)))), or(and(b, FRACTION), shl(23, iszero(iszero(eb))))
                ))
            e := add(add(ea, iszero(ea)), add(eb, iszero(eb)))
        }
        if (!finite) return _fmaSpecial(a, b, c);
        if (x == 0) return c & MAGNITUDE == 0 ? (a ^ b) & c : c;
        return _accumulate(x, e, a ^ b, c);
    }

    /// @dev a * b + c where at least one is infinite or NaN.
    function _fmaSpecial(uint256 a, uint256 b, uint256 c) private pure returns (uint256) {
        uint256 x = a & MAGNITUDE;
        uint256 y = b & MAGNITUDE;
        if (x > INFINITE || y > INFINITE || c & MAGNITUDE > INFINITE) return NAN;
        if (x != INFINITE && y != INFINITE) return c;
        uint256 product = ((a ^ b) & SIGN) | INFINITE;
        if (x == 0 || y == 0 || c == product ^ SIGN) return NAN;
        return product;
    }

    /// @dev a / b where one is zero, infinite or NaN.
    function _divSpecial(uint256 a, uint256 b) private pure returns (uint256) {
        uint256 x = a & MAGNITUDE;
        uint256 y = b & MAGNITUDE;
        if (x > INFINITE || y > INFINITE || (x == y)) return NAN;
        if (x == INFINITE || y == 0) return ((a ^ b) & SIGN) | INFINITE;
        return (a ^ b) & SIGN;
    }

    /// @dev Whether either is a NaN.
    function _anyNaN(uint256 a, uint256 b) private pure returns (bool r) {
        assembly ("memory-safe") {
            r := or(gt(and(a, MAGNITUDE), INFINITE), gt(and(b, MAGNITUDE), INFINITE))
        }
    }

    /// @dev A number that orders words as docs/numerics.md does: -inf < ... < -0 < +0 < ... < +inf.
    function _order(uint256 a) private pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := xor(a, or(SIGN, mul(shr(31, a), MAGNITUDE)))
        }
    }
}
