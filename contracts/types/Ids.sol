// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

// The kinds of ids, so that none is taken for another: to the compiler they differ, to the EVM and in the ABI each is a bytes32.
// Their names are those of lockstep/protocol/types.py. libraries/Ids.sol and libraries/Draws.sol make them.
//
// Two ids are compared unwrapped: an operator of ours compiles to other bytes than the EVM's EQ, dearer by up to 18 gas.

/// keccak of (chain id, market, requester, nonce, specHash).
type JobId is bytes32;

/// keccak of (JobId, round, attempt, slot).
type ClaimId is bytes32;

/// keccak of (JobId, round, attempt): one round's audit by drawn witnesses.
type AuditId is bytes32;

/// The first 96 bits of keccak of (ClaimId, challenger, nonce), then the challenger.
type GameId is bytes32;

ClaimId constant NO_CLAIM = ClaimId.wrap(0);
AuditId constant NO_AUDIT = AuditId.wrap(0);
GameId constant NO_GAME = GameId.wrap(0);
