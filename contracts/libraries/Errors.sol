// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {ClaimId, JobId} from "../types/Ids.sol";

// The rules of money and rounds that a transaction can break, one error each. The SDK decodes them by these names and adds a hint
// (lockstep/chain/reverts.py).

// -- anywhere

/// A Merkle proof does not lead from the value to the root, or has another depth than the tree.
error ProofInvalid();
/// The caller is not the contract or the account that alone may do this.
error Unauthorized(address caller);
/// The caller has not committed to this act in an earlier block.
error NotCommitted(bytes32 digest);

// -- the vault

/// Free stake does not cover the amount.
error StakeTooLow(address account, uint256 needed, uint256 available);
/// There is nothing to pay out or to take.
error NothingDue();
/// A lock with this key exists already.
error AlreadyLocked(bytes32 key);
/// No lock with this key exists.
error NotLocked(bytes32 key);
/// Another contract made this lock.
error WrongKeeper(bytes32 key);
/// The unbonding delay has not passed.
error Unbonding(uint256 availableAt);
/// The amount does not fit a lock.
error AmountTooLarge(uint256 amount);
/// `owner` alone may do this for the account: its owner, or the account itself where it has none.
error NotOwner(address account, address owner);
/// This address can own nothing.
error OwnerInvalid(address owner);
/// The token delivered another amount than was asked for.
error TokenMismatch(uint256 asked, uint256 received);
/// Credits and refunds would exceed the escrow.
error EscrowTooLow(uint256 needed, uint256 available);

// -- the market

/// A parameter of the job, in the group named, is outside its bounds.
error JobInvalid(bytes32 group);
/// The escrow does not cover every round.
error EscrowInsufficient(uint256 needed, uint256 offered);
/// A job with this id exists already.
error JobExists(JobId job);
/// The job is not in the status that this needs.
error WrongJobStatus(JobId job);
/// The round is not in the phase that this needs.
error WrongPhase(JobId job, uint32 round);
/// Not yet: the chain's time or block is before the one given.
error TooEarly(uint256 notBefore);
/// The round cannot start: not the next one, or its predecessor is unmerged, or too far ahead of the last final round.
error RoundNotStartable(uint32 round);
/// The stake of round q's merge does not cover the pay of the round that is to start.
error NotBacked(uint32 q);
/// A content identifier is longer than any that the SDK writes.
error CidTooLong(uint256 length);
/// The job has no such slot.
error NoSuchSlot(uint32 slot);
/// Somebody holds the slot.
error SlotTaken(uint32 slot);
/// The caller does not hold the slot.
error NotSlotOwner(uint32 slot);
/// The caller has done this already.
error AlreadyDone();
/// The revealed values do not hash to the commitment.
error CommitmentMismatch();
/// The round starts from a zero carry, or the slot's owner has no carry that stands.
error NoCarry(uint32 slot);
/// The receipt is not signed by who is said to give it, nor by its delegate.
error SignatureInvalid(address account);
/// It is another account's turn to merge, or the caller is barred.
error NotYourTurn(address merger);
/// Games are open on the round.
error GamesOpen(uint32 count);
/// Rounds are in flight, or more rounds can start.
error JobUnfinished();
/// The claim cannot be challenged now.
error WindowClosed(ClaimId claim);
/// The claim is void or already convicted: a verdict no longer counts.
error ClaimClosed(ClaimId claim);

// -- the witnesses

/// Another account was drawn for this, or this one is not enrolled.
error NotWitness(address account);
/// The preimage is not the one that the witness's hash chain has for this duty.
error PreimageWrong();
/// The duty's windows are not over, or its claim is not decided yet.
error DutyOpen(ClaimId claim);
