// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Float32} from "./Float32.sol";

/// @title Codes
/// @notice Small integer codes of floats, and exact sums of their products: numerics/codes.py, the same names and the same bits.
library Codes {
    uint256 private constant MAGNITUDE = 0x7fffffff;
    /// 2^-100.
    uint256 private constant TINY = 0x0d800000;
    uint256 private constant LARGEST = 0x42fe0000;
    uint256 private constant TWO_16 = 0x47800000;

    uint256 private constant BIAS = 0x8080808080808080808080808080808080808080808080808080808080808080;
    uint256 private constant LANES = 0x0000000100000001000000010000000100000001000000010000000100000001;
    uint256 private constant BYTES = 0x000000ff000000ff000000ff000000ff000000ff000000ff000000ff000000ff;
    uint256 private constant LOW_64 = 0x0000000000000000ffffffffffffffff0000000000000000ffffffffffffffff;
    uint256 private constant LOW_32 = 0x00000000ffffffff00000000ffffffff00000000ffffffff00000000ffffffff;

    /// @notice (scale, its inverse) of a group of greatest magnitude `a`; the inverse is +0 where all codes are 0.
    function scaleOf(uint256 a, bool power) internal pure returns (uint256, uint256) {
        if (a >= Float32.INFINITE) return (Float32.NAN, 0);
        if (a < TINY) return (0, 0);
        uint256 exponent = a >> 23;
        if (power) return ((exponent - 6) << 23, (260 - exponent) << 23);
        return (Float32.div(a, LARGEST), Float32.div(LARGEST, a));
    }

    /// @notice The code of one finite value, a byte: x * inverse rounded to nearest.
    function codeOf(uint256 x, uint256 inverse) internal pure returns (uint256 code) {
        code = Float32.toInt(Float32.mul(x, inverse));
        assembly ("memory-safe") {
            code := signextend(3, code)
        }
        return _clamped(code);
    }

    /// @notice The code of one finite value, a byte: x * inverse rounded down or up by 16 random bits.
    function codeOf(uint256 x, uint256 inverse, uint256 random) internal pure returns (uint256 code) {
        code = Float32.toInt(Float32.mul(Float32.mul(x, inverse), TWO_16));
        assembly ("memory-safe") {
            code := sar(16, add(signextend(3, code), random))
        }
        return _clamped(code);
    }

    /// @notice max |x| over `count` big-endian words in memory from `at` on; a NaN counts as greater than infinity.
    function magnitude(uint256 at, uint256 count) internal pure returns (uint256 most) {
        assembly ("memory-safe") {
            for { let end := add(at, mul(4, count)) } lt(at, end) { at := add(at, 4) } {
                let x := and(shr(224, mload(at)), MAGNITUDE)
                if gt(x, most) { most := x }
            }
        }
    }

    /// @notice The sum of the products of `size` signed bytes each in the calldata from `a` and `b` on, a 32-bit word; size <= 256.
    /// @dev Bytes are raised by 128. In a block of 32 there are four times eight lanes of one byte; with b's lanes in reverse the
    /// product of two such numbers has, in its highest lane, the sum of the eight products. No lane overflows into the next.
    function product(uint256 a, uint256 b, uint256 size) internal pure returns (uint256 sum) {
        assembly ("memory-safe") {
            let lanes := 0
            let i := 0
            for { } lt(i, size) { i := add(i, 0x20) } {
                let x := calldataload(add(a, i))
                let y := calldataload(add(b, i))
                let beyond := sub(add(i, 0x20), size)
                if sgt(beyond, 0) {
                    // Codes beyond the end are 0.
                    beyond := mul(8, beyond)
                    x := shl(beyond, shr(beyond, x))
                    y := shl(beyond, shr(beyond, y))
                }
                x := xor(x, BIAS)
                y := xor(y, BIAS)
                y := or(shl(128, y), shr(128, y))
                y := or(shl(64, and(y, LOW_64)), and(shr(64, y), LOW_64))
                y := or(shl(32, and(y, LOW_32)), and(shr(32, y), LOW_32))
                let u := and(x, BYTES)
                let v := and(y, BYTES)
                sum := add(sum, mul(u, v))
                lanes := add(lanes, add(u, v))
                u := and(shr(8, x), BYTES)
                v := and(shr(8, y), BYTES)
                sum := add(sum, mul(u, v))
                lanes := add(lanes, add(u, v))
                u := and(shr(16, x), BYTES)
                v := and(shr(16, y), BYTES)
                sum := add(sum, mul(u, v))
                lanes := add(lanes, add(u, v))
                u := and(shr(24, x), BYTES)
                v := and(shr(24, y), BYTES)
                sum := add(sum, mul(u, v))
                lanes := add(lanes, add(u, v))
            }
            // (u - 128)(v - 128) = u v - 128 (u + v) + 128^2.
            lanes := shr(224, mul(lanes, LANES))
            sum := and(sub(add(shr(224, sum), mul(i, 0x4000)), shl(7, lanes)), 0xffffffff)
        }
    }

    function _clamped(uint256 code) private pure returns (uint256) {
        assembly ("memory-safe") {
            if sgt(code, 127) { code := 127 }
            if slt(code, sub(0, 127)) { code := sub(0, 127) }
            code := and(code, 0xff)
        }
        return code;
    }
}
