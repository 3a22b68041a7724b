// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Float32} from "../../contracts/libraries/Float32.sol";
import {Int32} from "../../contracts/libraries/Int32.sol";

/// @title Float32Harness
/// @notice One operation of Float32 or Int32 on many operands in one eth_call.
/// @dev Opcodes are those of numerics/scalar.py. Operands are packed as 12 bytes (a, b, c: big-endian words) each,
/// results as 4 bytes each.
contract Float32Harness {
    error NoSuchOperation(uint256 op);

    /// @notice op(a, b, c) of each operand triple.
    function results(uint256 op, bytes calldata operands) external pure returns (bytes memory packed) {
        function(uint256, uint256, uint256) internal pure returns (uint256) f = _operation(op);
        uint256 n = operands.length / 12;
        packed = new bytes(4 * n);
        for (uint256 i = 0; i < n; i++) {
            (uint256 a, uint256 b, uint256 c) = _operands(operands, i);
            _store(packed, i, f(a, b, c));
        }
    }

    /// @notice The gas of each call, less that of an empty function called in the same way; 0 if it is even less.
    function gasUsed(uint256 op, bytes calldata operands) external view returns (bytes memory packed) {
        function(uint256, uint256, uint256) internal pure returns (uint256) f = _operation(op);
        uint256 n = operands.length / 12;
        packed = new bytes(4 * n);
        uint256 overhead;
        for (uint256 i = 0; i < n; i++) {
            (uint256 a, uint256 b, uint256 c) = _operands(operands, i);
            if (i == 0) overhead = _gasOf(op == 6 ? _mov : _nothing, a, b, c);
            uint256 used = _gasOf(f, a, b, c);
            _store(packed, i, used > overhead ? used - overhead : 0);
        }
    }

    function _gasOf(function(uint256, uint256, uint256) internal pure returns (uint256) f, uint256 a, uint256 b, uint256 c)
        private
        view
        returns (uint256)
    {
        uint256 before = gasleft();
        f(a, b, c);
        return before - gasleft();
    }

    function _operands(bytes calldata operands, uint256 i) private pure returns (uint256 a, uint256 b, uint256 c) {
        assembly ("memory-safe") {
            let packed := shr(160, calldataload(add(operands.offset, mul(12, i))))
            a := shr(64, packed)
            b := and(shr(32, packed), 0xffffffff)
            c := and(packed, 0xffffffff)
        }
    }

    /// @dev Result `i`. INVARIANT: a result is a word.
    function _store(bytes memory packed, uint256 i, uint256 word) private pure {
        require(word < 1 << 32, "result is not a word");
        assembly ("memory-safe") {
            let at := add(packed, add(32, mul(4, i)))
            mstore(at, or(shl(224, word), shr(32, shl(32, mload(at)))))
        }
    }

    function _operation(uint256 op)
        private
        pure
        returns (function(uint256, uint256, uint256) internal pure returns (uint256))
    {
        if (op == 0) return _mov;
        if (op == 2) return _fadd;
        if (op == 3) return _fsub;
        if (op == 4) return _fmul;
        if (op == 5) return _fdiv;
        if (op == 6) return Float32.fma;
        if (op == 7) return _fsqrt;
        if (op == 8) return _fneg;
        if (op == 9) return _fabs;
        if (op == 10) return _fmin;
        if (op == 11) return _fmax;
        if (op == 12) return _fexp;
        if (op == 13) return _flog;
        if (op == 14) return _ftanh;
        if (op == 15) return _flt;
        if (op == 16) return _fle;
        if (op == 17) return _feq;
        if (op == 19) return _iadd;
        if (op == 20) return _isub;
        if (op == 21) return _imul;
        if (op == 22) return _idiv;
        if (op == 23) return _irem;
        if (op == 27) return _ishl;
        if (op == 28) return _ishr;
        if (op == 29) return _iushr;
        if (op == 30) return _ilt;
        if (op == 31) return _ile;
        if (op == 32) return _ieq;
        if (op == 33) return _imin;
        if (op == 34) return _imax;
        if (op == 35) return _i2f;
        if (op == 36) return _f2i;
        if (op == 37) return _fcanon;
        revert NoSuchOperation(op);
    }

    function _mov(uint256 a, uint256, uint256) private pure returns (uint256) {
        return a;
    }

    function _nothing(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return _keep(a, b);
    }

    function _keep(uint256 a, uint256) private pure returns (uint256) {
        return a;
    }

    function _fadd(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Float32.add(a, b);
    }

    function _fsub(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Float32.sub(a, b);
    }

    function _fmul(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Float32.mul(a, b);
    }

    function _fdiv(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Float32.div(a, b);
    }

    function _fmin(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Float32.min(a, b);
    }

    function _fmax(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Float32.max(a, b);
    }

    function _flt(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Float32.lt(a, b);
    }

    function _fle(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Float32.le(a, b);
    }

    function _feq(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Float32.eq(a, b);
    }

    function _iadd(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.add(a, b);
    }

    function _isub(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.sub(a, b);
    }

    function _imul(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.mul(a, b);
    }

    function _idiv(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.div(a, b);
    }

    function _irem(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.rem(a, b);
    }

    function _ishl(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.shl(a, b);
    }

    function _ishr(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.shr(a, b);
    }

    function _iushr(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.ushr(a, b);
    }

    function _ilt(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.lt(a, b);
    }

    function _ile(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.le(a, b);
    }

    function _ieq(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.eq(a, b);
    }

    function _imin(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.min(a, b);
    }

    function _imax(uint256 a, uint256 b, uint256) private pure returns (uint256) {
        return Int32.max(a, b);
    }

    function _fsqrt(uint256 a, uint256, uint256) private pure returns (uint256) {
        return Float32.sqrt(a);
    }

    function _fneg(uint256 a, uint256, uint256) private pure returns (uint256) {
        return Float32.neg(a);
    }

    function _fabs(uint256 a, uint256, uint256) private pure returns (uint256) {
        return Float32.abs(a);
    }

    function _fexp(uint256 a, uint256, uint256) private pure returns (uint256) {
        return Float32.exp(a);
    }

    function _flog(uint256 a, uint256, uint256) private pure returns (uint256) {
        return Float32.log(a);
    }

    function _ftanh(uint256 a, uint256, uint256) private pure returns (uint256) {
        return Float32.tanh(a);
    }

    function _i2f(uint256 a, uint256, uint256) private pure returns (uint256) {
        return Float32.fromInt(a);
    }

    function _f2i(uint256 a, uint256, uint256) private pure returns (uint256) {
        return Float32.toInt(a);
    }

    function _fcanon(uint256 a, uint256, uint256) private pure returns (uint256) {
        return Float32.canonical(a);
    }
}
