// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Float32} from "../../contracts/libraries/Float32.sol";

/// @title Float32Test
/// @notice What Float32 does for many words at once beside the same thing word by word.
/// @dev `add` itself is compared with IEEE 754 by tests/differential/test_float32.py.
contract Float32Test {
    uint256 private constant WORDS = 8;
    uint256 private constant NORMAL = 0x00800000;
    uint256 private constant SIGN = 0x80000000;
    uint256 private constant SIGNS = SIGN * 0x0000000100000001000000010000000100000001000000010000000100000001;

    uint256[] private _corners = [
        0, 0x80000000, 1, 0x80000001, 0x007fffff, 0x00800000, 0x00800001, 0x00ffffff, 0x3f800000, 0xbf800000, 0x3f800001,
        0x3fffffff, 0x40000000, 0x4b7fffff, 0x4b800000, 0x4b800001, 0x7dffffff, 0x7e000000, 0x7e7fffff, 0x7e800000, 0x7effffff,
        0x7f000000, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0x7f800001, 0xffffffff
    ];

    /// @dev Any words at all.
    function testFuzz_a_sum_is_one_addition_after_another(uint32 start, uint256 terms, uint8 count) external pure {
        _compare(start, terms, count % (WORDS + 1));
    }

    /// @dev Positive words whose exponents lie a few apart: every distance that rounding sees, with carries and ties.
    function testFuzz_sums_of_one_sign(uint256 words, uint256 ends, uint8 exponent, uint8 apart) external pure {
        uint256 top = 1 + exponent % 254;
        uint256 spread = 1 + apart % 30;
        uint256 terms = 0;
        for (uint256 i = 0; i < WORDS; i++) terms = terms << 32 | _near(words >> (32 * i), ends >> (3 * i), top, spread);
        _compare(_near(words >> 4, ends >> 29, top, 1), terms, WORDS);
        // Signs, too: at random, all negative, all but the first.
        _compare(_near(words >> 4, ends >> 29, top, 1), terms ^ (ends & SIGNS), WORDS);
        _compare(_near(words >> 4, ends >> 29, top, 1), terms | SIGNS, WORDS);
        _compare(SIGN | _near(words >> 4, ends >> 29, top, 1), terms | SIGNS, WORDS);
    }

    /// @dev As a fold's partials come: +0 first, then ever less against what is there already.
    function testFuzz_a_long_sum(uint256 luck, uint8 exponent, bool signs) external pure {
        uint256 s = 0;
        bytes memory all;
        for (uint256 i = 0; i < 32; i++) {
            uint256 terms = 0;
            uint256 random = uint256(keccak256(abi.encode(luck, i)));
            for (uint256 k = 0; k < WORDS; k++) {
                terms = terms << 32 | _near(random >> (32 * k), random >> (3 * k), 1 + exponent % 254, 4);
            }
            if (signs) terms ^= random & SIGNS;
            all = bytes.concat(all, bytes32(terms));
            s = _slow(s, terms, WORDS);
            if (i % 8 == 7) require(_sum(0, all, 8 * (i + 1)) == s, "another sum");
        }
    }

    function test_every_corner_after_every_corner() external view {
        for (uint256 i = 0; i < _corners.length; i++) {
            for (uint256 k = 0; k < _corners.length; k++) {
                // The second term meets what the first has left.
                _compare(_corners[i], _corners[k] << 224 | _corners[(k + i) % _corners.length] << 192, 2);
                _compare(_corners[i], _corners[k] << 224 | (NORMAL + k) << 192, 2);
            }
        }
    }

    /// @dev Every distance of two exponents, at both ends of the fraction: the last bit, ties, and what vanishes.
    function test_every_distance_of_exponents() external pure {
        uint256[6] memory fractions = [uint256(0), 1, 0x3fffff, 0x400000, 0x7ffffe, 0x7fffff];
        for (uint256 e = 1; e < 255; e = e < 244 ? e + 27 : e + 1) {
            for (uint256 below = 0; below < e; below = below < 32 ? below + 1 : below + 23) {
                for (uint256 i = 0; i < 36; i++) {
                    uint256 x = (e - below) << 247 | fractions[i % 6] << 224;
                    _compare(e << 23 | fractions[i / 6], x, 1);
                    _compare(e << 23 | fractions[i / 6], x | SIGN << 224, 1);
                }
            }
        }
    }

    /// @dev Any words at all, next to each other or one of them again and again.
    function testFuzz_a_dot_is_one_fma_after_another(uint32 start, uint256 x, uint256 y, uint8 count) external pure {
        _compareDot(start, bytes.concat(bytes32(x)), bytes.concat(bytes32(y)), count % (WORDS + 1));
    }

    /// @dev Factors whose exponents lie a few apart, a start near their products.
    function testFuzz_dots_of_like_factors(uint256 luck, uint8 left, uint8 right, uint8 apart, bool signs) external pure {
        (bytes memory x, bytes memory y) = (_factors(luck, 0, left, apart, signs), _factors(luck, 1, right, apart, signs));
        uint256 product = Float32.mul(uint32(bytes4(x)), uint32(bytes4(y))) & 0x7fffffff;
        _compareDot(0, x, y, 64);
        _compareDot(product, x, y, 64);
        _compareDot(SIGN | product, x, y, 64);
        _compareDot(uint256(uint32(bytes4(x))) << 1 & 0x7fffffff, x, y, 64);
        // Squares.
        _compareDot(0, x, x, 64);
    }

    /// @dev Every distance of a sum from a product, with products at both ends of [2^46, 2^48).
    function test_every_distance_of_a_product() external pure {
        uint256[5] memory fractions = [uint256(0), 1, 0x400000, 0x3504f3, 0x7fffff];
        for (uint256 e = 1; e < 255; e = e < 110 ? e + 20 : e < 170 ? e + 1 : e + 12) {
            for (uint256 i = 0; i < 25; i++) {
                bytes memory x = bytes.concat(bytes4(uint32(127 << 23 | fractions[i / 5])), bytes28(0));
                bytes memory y = bytes.concat(bytes4(uint32(140 << 23 | fractions[i % 5])), bytes28(0));
                for (uint256 k = 0; k < 5; k++) {
                    _compareDot(e << 23 | fractions[k], x, y, 1);
                    _compareDot(SIGN | e << 23 | fractions[k], x, y, 1);
                }
            }
        }
    }

    function test_every_corner_times_every_corner() external view {
        for (uint256 i = 0; i < _corners.length; i++) {
            for (uint256 k = 0; k < _corners.length; k++) {
                bytes memory x = bytes.concat(bytes32(_corners[i] << 224 | _corners[(i + k) % _corners.length] << 192));
                bytes memory y = bytes.concat(bytes32(_corners[k] << 224 | _corners[(i + 3 * k) % _corners.length] << 192));
                for (uint256 s = 0; s < _corners.length; s += 2 + (i + k) % 3) _compareDot(_corners[s], x, y, 2);
            }
        }
    }

    /// @dev Normal numbers never go the long way round, which would give the same bits: half as much again is too much.
    function testFuzz_normal_numbers_go_the_short_way(uint256 luck) external view {
        uint256[3] memory x;
        for (uint256 i = 0; i < 3; i++) x[i] = _near(luck >> (32 * i), 0, 130, 6) | (luck >> (200 + i) & 1) << 31;
        uint256[4] memory gas;
        gas[0] = gasleft();
        uint256 r = Float32.add(x[0], x[1]);
        gas[1] = gasleft();
        r ^= Float32.mul(x[0], x[1]);
        gas[2] = gasleft();
        r ^= Float32.fma(x[0], x[1], x[2]);
        gas[3] = gasleft();
        require(r >> 32 == 0, "a word");
        require(gas[0] - gas[1] < 900 && gas[1] - gas[2] < 700 && gas[2] - gas[3] < 900, "the long way");
    }

    function _factors(uint256 luck, uint256 side, uint256 exponent, uint256 apart, bool signs)
        private
        pure
        returns (bytes memory words)
    {
        for (uint256 i = 0; i < 64; i++) {
            uint256 random = uint256(keccak256(abi.encode(luck, side, i)));
            uint256 word = _near(random, random >> 64, 1 + exponent % 254, 1 + apart % 30);
            if (signs) word |= (random >> 100) & 1 << 31;
            words = bytes.concat(words, bytes4(uint32(word)));
        }
    }

    function _compareDot(uint256 s, bytes memory x, bytes memory y, uint256 count) private pure {
        (uint256 a, uint256 b) = (_start(x), _start(y));
        for (uint256 steps = 0; steps < 4; steps++) {
            (uint256 stepA, uint256 stepB) = (steps % 2 * 4, steps / 2 * 4);
            uint256 slow = s;
            for (uint256 i = 0; i < count; i++) slow = Float32.fma(_load(a + i * stepA), _load(b + i * stepB), slow);
            require(Float32.dot(s, a, stepA, b, stepB, count) == slow, "another dot");
        }
    }

    function _start(bytes memory words) private pure returns (uint256 at) {
        assembly ("memory-safe") {
            at := add(words, 0x20)
        }
    }

    function _load(uint256 at) private pure returns (uint256 word) {
        assembly ("memory-safe") {
            word := shr(224, mload(at))
        }
    }

    function _compare(uint256 s, uint256 terms, uint256 count) private pure {
        require(_sum(s, bytes.concat(bytes32(terms)), count) == _slow(s, terms, count), "another sum");
    }

    function _sum(uint256 s, bytes memory words, uint256 count) private pure returns (uint256) {
        return Float32.sum(s, _start(words), _start(words) + 4 * count);
    }

    function _slow(uint256 s, uint256 terms, uint256 count) private pure returns (uint256) {
        for (uint256 i = 0; i < count; i++) s = Float32.add(s, (terms >> (224 - 32 * i)) & 0xffffffff);
        return s;
    }

    /// @dev A positive word with an exponent at most `spread - 1` below `top`; its last bits are often all 0 or all 1.
    function _near(uint256 word, uint256 ends, uint256 top, uint256 spread) private pure returns (uint256) {
        uint256 below = (word >> 23) % spread;
        uint256 fraction = word & 0x7fffff;
        if (ends & 3 == 1) fraction &= 0x7ff000;
        if (ends & 3 == 2) fraction |= 0x000fff;
        if (ends & 7 == 7) fraction &= 0x400000;
        return (top > below ? top - below : 0) << 23 | fraction;
    }
}
