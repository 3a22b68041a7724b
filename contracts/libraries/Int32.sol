// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

/// @title Int32
/// @notice Two's complement 32-bit integers on words: the operations of numerics/scalar.py, with the same bits.
/// @dev A word is a uint256 below 2^32, and so is every result. Everything wraps; nothing reverts.
library Int32 {
    uint256 private constant MASK = 0xffffffff;

    /// @notice a + b, wrapping.
    function add(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := and(add(a, b), MASK)
        }
    }

    /// @notice a - b, wrapping.
    function sub(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := and(sub(a, b), MASK)
        }
    }

    /// @notice a * b, wrapping.
    function mul(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := and(mul(a, b), MASK)
        }
    }

    /// @notice a / b rounded towards zero; x / 0 = 0 and INT_MIN / -1 = INT_MIN.
    function div(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := and(sdiv(signextend(3, a), signextend(3, b)), MASK)
        }
    }

    /// @notice a - (a / b) * b, of a's sign; x rem 0 = 0 and INT_MIN rem -1 = 0.
    function rem(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := and(smod(signextend(3, a), signextend(3, b)), MASK)
        }
    }

    /// @notice a shifted left by b mod 32.
    function shl(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := and(shl(and(b, 31), a), MASK)
        }
    }

    /// @notice a shifted right by b mod 32, copies of the sign coming in.
    function shr(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := and(sar(and(b, 31), signextend(3, a)), MASK)
        }
    }

    /// @notice a shifted right by b mod 32, zeros coming in.
    function ushr(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := shr(and(b, 31), a)
        }
    }

    /// @notice 1 if a < b as signed integers, else 0.
    function lt(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := slt(signextend(3, a), signextend(3, b))
        }
    }

    /// @notice 1 if a <= b as signed integers, else 0.
    function le(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := iszero(sgt(signextend(3, a), signextend(3, b)))
        }
    }

    /// @notice 1 if the words are the same, else 0.
    function eq(uint256 a, uint256 b) internal pure returns (uint256 r) {
        assembly ("memory-safe") {
            r := eq(a, b)
        }
    }

    /// @notice The lesser as signed integers.
    function min(uint256 a, uint256 b) internal pure returns (uint256) {
        return lt(a, b) == 1 ? a : b;
    }

    /// @notice The greater as signed integers.
    function max(uint256 a, uint256 b) internal pure returns (uint256) {
        return lt(a, b) == 1 ? b : a;
    }
}
