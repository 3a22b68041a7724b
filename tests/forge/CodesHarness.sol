// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Codes} from "../../contracts/libraries/Codes.sol";
import {Float32} from "../../contracts/libraries/Float32.sol";

/// @title CodesHarness
/// @notice Many groups of codes in one eth_call. Results are big-endian words.
contract CodesHarness {
    /// Whoever rounds to nearest has no random half.
    uint256 private constant NEAREST = 1 << 16;

    /// @notice The group of a qdot for each item: `size` bytes of codes a, as many of b, and both scales as big-endian words.
    function products(uint256 size, bytes calldata items) external pure returns (bytes memory packed) {
        uint256 n = items.length / (2 * size + 8);
        packed = new bytes(4 * n);
        for (uint256 i = 0; i < n; i++) {
            _store(packed, i, _product(size, _at(items, i * (2 * size + 8))));
        }
    }

    /// @notice The gas of the groups of `products`, each without its scales' and its own being read.
    function gasUsed(uint256 size, bytes calldata items) external view returns (bytes memory packed) {
        uint256 n = items.length / (2 * size + 8);
        packed = new bytes(4 * n);
        for (uint256 i = 0; i < n; i++) {
            uint256 at = _at(items, i * (2 * size + 8));
            uint256 before = gasleft();
            _product(size, at);
            _store(packed, i, before - gasleft());
        }
    }

    /// @notice The scale and `count` codes, a word each, of each group of `count` big-endian words.
    function quants(uint256 count, bool power, uint256 random, bytes calldata items)
        external
        pure
        returns (bytes memory packed)
    {
        uint256 n = items.length / (4 * count);
        packed = new bytes(4 * n * (count + 1));
        for (uint256 i = 0; i < n; i++) {
            uint256 at;
            assembly ("memory-safe") {
                at := mload(0x40)
                mstore(0x40, add(at, add(0x20, mul(4, count))))
                calldatacopy(at, add(items.offset, mul(i, mul(4, count))), mul(4, count))
            }
            _quantise(packed, i * (count + 1), at, count, power, random);
        }
    }

    function _quantise(bytes memory packed, uint256 i, uint256 at, uint256 count, bool power, uint256 random) private pure {
        (uint256 scale, uint256 inverse) = Codes.scaleOf(Codes.magnitude(at, count), power);
        _store(packed, i, scale);
        for (uint256 k = 0; k < count && inverse != 0; k++) {
            uint256 x;
            assembly ("memory-safe") {
                x := shr(224, mload(add(at, mul(4, k))))
            }
            _store(packed, i + 1 + k, random < NEAREST ? Codes.codeOf(x, inverse, random) : Codes.codeOf(x, inverse));
        }
    }

    function _product(uint256 size, uint256 at) private pure returns (uint256) {
        uint256 scales;
        assembly ("memory-safe") {
            scales := shr(192, calldataload(add(at, mul(2, size))))
        }
        uint256 sum = Float32.fromInt(Codes.product(at, at + size, size));
        return Float32.mul(sum, Float32.mul(scales >> 32, scales & 0xffffffff));
    }

    function _at(bytes calldata items, uint256 offset) private pure returns (uint256 at) {
        assembly ("memory-safe") {
            at := add(items.offset, offset)
        }
    }

    /// @dev Result `i`. INVARIANT: a result is a word.
    function _store(bytes memory packed, uint256 i, uint256 word) private pure {
        require(word < 1 << 32, "result is not a word");
        assembly ("memory-safe") {
            let at := add(add(packed, 0x20), mul(4, i))
            mstore(at, or(shl(224, word), and(mload(at), not(shl(224, 0xffffffff)))))
        }
    }
}
