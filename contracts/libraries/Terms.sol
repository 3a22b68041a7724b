// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {JobParams} from "../interfaces/IJobMarket.sol";

/// @title Terms
/// @notice A job's parameters, written once as the code of a contract that does nothing: cheaper to write and to read than storage.
/// @dev The code is STOP, then the words of abi.encode(JobParams) without its two offsets and the number of roles: the groups of
///      fixed size one after the other, then the roles. In memory a struct of value types is its fields' words in order.
library Terms {
    /// @dev Words of the six groups of fixed size together, and of one role; tests compare what is read with what was written.
    uint256 private constant FIXED = 25;
    uint256 private constant ROLE = 23;
    /// @dev Creation code: return everything after these 11 bytes but the last, a STOP, with which the code returned begins, so that
    ///      nobody can run it. PUSH2 size, DUP1, PUSH1 10, PUSH0, CODECOPY, PUSH0, RETURN, STOP; size is filled in.
    uint256 private constant PREFIX = 0x61000080600a5f395ff300;

    /// @return at Where the parameters are.
    /// @return hash keccak(abi.encode(p)).
    function store(JobParams memory p) internal returns (address at, bytes32 hash) {
        bytes memory encoded = abi.encode(p);
        hash = keccak256(encoded);
        assembly ("memory-safe") {
            // Encoded: length, offset of p, the groups, offset of the roles, their number, the roles. The groups move up to the roles.
            let words := add(encoded, 0x40)
            for { let i := mul(FIXED, 0x20) } i {} {
                i := sub(i, 0x20)
                mstore(add(add(words, 0x40), i), mload(add(words, i)))
            }
            let size := sub(add(mload(encoded), 1), 0x60)
            mstore(add(words, 0x20), or(PREFIX, shl(64, size)))
            at := create(0, add(words, 53), add(size, 10))
            if iszero(at) { revert(0x00, 0x00) }
        }
    }

    /// @notice The parameters stored at `at`; for no address, those of one role, all zero.
    function load(address at) internal view returns (JobParams memory p) {
        assembly ("memory-safe") {
            let roles := 1
            let size := extcodesize(at)
            if size { roles := div(sub(size, mul(FIXED, 0x20)), mul(ROLE, 0x20)) }
            // In memory: seven pointers, the number of roles, a pointer to each; then the words as they are stored.
            p := mload(0x40)
            let list := add(p, 0xe0)
            let word := add(list, mul(add(roles, 1), 0x20))
            extcodecopy(at, word, 1, mul(add(FIXED, mul(ROLE, roles)), 0x20))
            mstore(p, word)
            mstore(add(p, 0x20), add(word, 0x60))
            mstore(add(p, 0x40), add(word, 0xc0))
            mstore(add(p, 0x60), add(word, 0x140))
            mstore(add(p, 0x80), add(word, 0x200))
            mstore(add(p, 0xa0), add(word, 0x2a0))
            mstore(add(p, 0xc0), list)
            mstore(list, roles)
            word := add(word, mul(FIXED, 0x20))
            for {} roles { roles := sub(roles, 1) } {
                list := add(list, 0x20)
                mstore(list, word)
                word := add(word, mul(ROLE, 0x20))
            }
            mstore(0x40, word)
        }
    }
}
