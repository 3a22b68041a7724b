// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IJobMarket} from "../interfaces/IJobMarket.sol";

/// @title Terms
/// @notice A job's parameters, written once as the code of a contract that does nothing: cheaper to write and to read than storage.
/// @dev In memory a struct of value types is its fields' words in order, which is also its ABI encoding.
library Terms {
    /// @dev Fields of JobParams; tests compare what is read with what was written.
    uint256 private constant WORDS = 43;
    /// @dev Creation code: return everything after these 11 bytes. The code returned begins with STOP, so nobody can run it.
    ///      PUSH2 size, DUP1, PUSH1 10, PUSH0, CODECOPY, PUSH0, RETURN, STOP; size = 1 + 43 x 32 = 0x0561
    uint256 private constant PREFIX = 0x61056180600a5f395ff300;

    function store(IJobMarket.JobParams memory p) internal returns (address at) {
        assembly ("memory-safe") {
            let free := mload(0x40)
            mstore(free, shl(168, PREFIX))
            for { let i := 0 } lt(i, mul(WORDS, 0x20)) { i := add(i, 0x20) } {
                mstore(add(add(free, 11), i), mload(add(p, i)))
            }
            at := create(0, free, add(11, mul(WORDS, 0x20)))
            if iszero(at) { revert(0x00, 0x00) }
        }
    }

    /// @notice keccak(abi.encode(p)).
    function hash(IJobMarket.JobParams memory p) internal pure returns (bytes32 digest) {
        assembly ("memory-safe") {
            digest := keccak256(p, mul(WORDS, 0x20))
        }
    }

    /// @notice The parameters stored at `at`; all zero for no address.
    function load(address at) internal view returns (IJobMarket.JobParams memory p) {
        assembly ("memory-safe") {
            extcodecopy(at, p, 1, mul(WORDS, 0x20))
        }
    }
}
