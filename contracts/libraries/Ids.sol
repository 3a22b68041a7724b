// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.20;

import {IJobMarket} from "../interfaces/IJobMarket.sol";
import {Terms} from "./Terms.sol";

/// @title Ids
/// @notice Identity is content: every id is the hash of what it names (docs/protocol.md, section 4).
library Ids {
    /// @notice The slot of a merge claim.
    uint32 internal constant MERGE = 0xffffffff;

    function job(address requester, uint256 nonce, IJobMarket.JobParams memory params) internal view returns (bytes32) {
        return keccak256(abi.encode(block.chainid, address(this), requester, nonce, Terms.hash(params)));
    }

    function claim(bytes32 jobId, uint32 round, uint32 attempt, uint32 slot) internal pure returns (bytes32) {
        return keccak256(abi.encode(jobId, round, attempt, slot));
    }

    function seed(bytes32 blockHash, bytes32 jobId, uint32 round, uint32 attempt) internal pure returns (bytes32) {
        return keccak256(abi.encode(blockHash, jobId, round, attempt));
    }

    function commitment(bytes32 claimId, address worker, IJobMarket.Reveal calldata opened) internal pure returns (bytes32) {
        return keccak256(abi.encode(claimId, worker, opened.traceRoot, opened.out, opened.out2, opened.nonce));
    }
}
