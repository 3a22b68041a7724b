// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IPrecommitted} from "../interfaces/IPrecommitted.sol";
import {NotCommitted} from "./Errors.sol";

/// @title Precommitted
/// @notice Keeps the block of each commitment, and lets only an act pass that was committed in an earlier one.
/// @dev The Python twin is lockstep/protocol/market/precommitted.py.
abstract contract Precommitted is IPrecommitted {
    /// @inheritdoc IPrecommitted
    mapping(bytes32 digest => uint256) public committedAt;

    /// @inheritdoc IPrecommitted
    function commit(bytes32[] calldata digests) external {
        for (uint256 i = 0; i < digests.length; i++) {
            // INVARIANT: a commitment keeps its first block: nobody makes another's younger.
            if (committedAt[digests[i]] == 0) committedAt[digests[i]] = block.number;
        }
    }

    /// @dev The caller committed to exactly this call.
    function _requireCommitted() internal view {
        bytes32 digest = keccak256(abi.encode(msg.sender, keccak256(msg.data)));
        uint256 at = committedAt[digest];
        // INVARIANT: what is paid for was committed by its sender in an earlier block: a copy comes too late.
        if (at == 0 || at >= block.number) revert NotCommitted(digest);
    }
}
