// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

/// @title IPrecommitted
/// @notice Acts that are paid for what they show: their sender commits to them one block before it shows anything.
///
///   digest = keccak(abi.encode(sender, keccak(the act's transaction data)))
///
/// Whoever copies an act out of the mempool has no commitment of an earlier block, and comes a block late.
interface IPrecommitted {
    /// @notice Notes the block of each digest that is new. Anyone.
    function commit(bytes32[] calldata digests) external;
    /// @notice The block in which a digest was first committed; 0 if it was not.
    function committedAt(bytes32 digest) external view returns (uint256);
}
