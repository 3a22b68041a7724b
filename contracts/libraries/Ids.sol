// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Body, Reveal} from "../interfaces/IJobMarket.sol";
import {ClaimId, JobId} from "../types/Ids.sol";

/// @title Ids
/// @notice Identity is content: every id is the hash of what it names (docs/protocol.md, section 4).
library Ids {
    /// @notice The slot of a merge claim.
    uint32 internal constant MERGE = 0xffffffff;
    bytes32 private constant DOMAIN =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 private constant RECEIPT = keccak256("Receipt(bytes32 job,uint32 round,uint32 attempt,uint32 who,uint256 mask)");

    /// @param specHash keccak(abi.encode(JobParams)).
    function job(address requester, uint256 nonce, bytes32 specHash) internal view returns (JobId) {
        return JobId.wrap(keccak256(abi.encode(block.chainid, address(this), requester, nonce, specHash)));
    }

    function claim(JobId jobId, uint32 round, uint32 attempt, uint32 slot) internal pure returns (ClaimId) {
        return ClaimId.wrap(keccak256(abi.encode(jobId, round, attempt, slot)));
    }

    function seed(bytes32 blockHash, JobId jobId, uint32 round, uint32 attempt) internal pure returns (bytes32) {
        return keccak256(abi.encode(blockHash, jobId, round, attempt));
    }

    function commitment(ClaimId claimId, address worker, Reveal calldata opened) internal pure returns (bytes32) {
        return keccak256(abi.encode(claimId, worker, opened.body, opened.carries, opened.nonce));
    }

    /// @notice What a revealed claim is stored as.
    function body(Body memory said) internal pure returns (bytes32) {
        return keccak256(abi.encode(said));
    }

    /// @notice The digest that a receipt signs (EIP-712).
    function receipt(JobId jobId, uint32 round, uint32 attempt, uint32 who, uint256 mask) internal view returns (bytes32) {
        // address(this): the market, in whose storage and at whose address Rounds runs.
        return typed(address(this), keccak256(abi.encode(RECEIPT, jobId, round, attempt, who, mask)));
    }

    /// @notice The digest that is signed of a struct, in the domain of `market` (EIP-712).
    function typed(address market, bytes32 structHash) internal view returns (bytes32) {
        bytes32 domain = keccak256(abi.encode(DOMAIN, keccak256("Lockstep"), keccak256("1"), block.chainid, market));
        return keccak256(abi.encodePacked(hex"1901", domain, structHash));
    }
}
