// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

/// @title IWitnesses
/// @notice The verifier market: staked witnesses, drawn by a later block, replay private parts of claims.
interface IWitnesses {
    /// @notice The account of the i-th duty that was drawn for the round.
    function witnessOf(bytes32 job, uint32 round, uint256 i) external view returns (address);
}
