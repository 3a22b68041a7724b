// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

/// @title IAvailability
/// @notice Bonded demands for data that cannot be had: payloads while receipts are given, dataset rows at any time.
interface IAvailability {
    /// @notice Whether a demand for the claim's payload ended unanswered. Reverts while one is open.
    function missing(bytes32 claim) external view returns (bool);
}
