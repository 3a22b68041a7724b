// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {OpUnknown} from "../interfaces/IArbiter.sol";
import {Float32} from "./Float32.sol";
import {Int32} from "./Int32.sol";

/// @title Expression
/// @notice The opcodes of a map: numerics/scalar.py, the same numbers.
library Expression {
    uint256 internal constant IMM = 1;

    /// @notice The result of `opcode` on words. Opcodes that read fewer than three ignore the others; IMM is the caller's.
    function run(uint256 opcode, uint256 a, uint256 b, uint256 c) internal pure returns (uint256) {
        if (opcode < 15) return _float(opcode, a, b, c);
        if (opcode < 27) return _logic(opcode, a, b, c);
        return _integer(opcode, a, b);
    }

    function _float(uint256 opcode, uint256 a, uint256 b, uint256 c) private pure returns (uint256) {
        if (opcode < 7) {
            if (opcode == 6) return Float32.fma(a, b, c);
            if (opcode == 4) return Float32.mul(a, b);
            if (opcode == 2) return Float32.add(a, b);
            if (opcode == 3) return Float32.sub(a, b);
            if (opcode == 5) return Float32.div(a, b);
            if (opcode == 0) return a;
            revert OpUnknown(opcode);
        }
        if (opcode == 7) return Float32.sqrt(a);
        if (opcode == 8) return Float32.neg(a);
        if (opcode == 9) return Float32.abs(a);
        if (opcode == 10) return Float32.min(a, b);
        if (opcode == 11) return Float32.max(a, b);
        if (opcode == 12) return Float32.exp(a);
        if (opcode == 13) return Float32.log(a);
        return Float32.tanh(a);
    }

    function _logic(uint256 opcode, uint256 a, uint256 b, uint256 c) private pure returns (uint256) {
        if (opcode == 15) return Float32.lt(a, b);
        if (opcode == 16) return Float32.le(a, b);
        if (opcode == 17) return Float32.eq(a, b);
        if (opcode == 18) return a != 0 ? b : c;
        if (opcode == 19) return Int32.add(a, b);
        if (opcode == 20) return Int32.sub(a, b);
        if (opcode == 21) return Int32.mul(a, b);
        if (opcode == 22) return Int32.div(a, b);
        if (opcode == 23) return Int32.rem(a, b);
        if (opcode == 24) return a & b;
        if (opcode == 25) return a | b;
        return a ^ b;
    }

    function _integer(uint256 opcode, uint256 a, uint256 b) private pure returns (uint256) {
        if (opcode == 27) return Int32.shl(a, b);
        if (opcode == 28) return Int32.shr(a, b);
        if (opcode == 29) return Int32.ushr(a, b);
        if (opcode == 30) return Int32.lt(a, b);
        if (opcode == 31) return Int32.le(a, b);
        if (opcode == 32) return Int32.eq(a, b);
        if (opcode == 33) return Int32.min(a, b);
        if (opcode == 34) return Int32.max(a, b);
        if (opcode == 35) return Float32.fromInt(a);
        if (opcode == 36) return Float32.toInt(a);
        if (opcode == 37) return Float32.canonical(a);
        revert OpUnknown(opcode);
    }
}
