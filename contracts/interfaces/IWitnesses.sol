// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Body} from "./IJobMarket.sol";
import {Code} from "./IValidator.sol";
import {AuditId, ClaimId, JobId} from "../types/Ids.sol";

enum Standing { None, Listed, Leaving, Slashed }

enum AuditStatus { None, Drawing, Drawn, Skipped }

enum DutyStatus { None, Drawn, Committed, Agreed, Differed, Closed }

enum Outcome { Paid, Fined, Slashed, Void }

/// @param place In the job's list, while Listed.
/// @param head The deepest value of its hash chain that is known.
/// @param spent How deep `head` lies: 0 at enrolment.
/// @param drawn Duties drawn so far; each takes the next preimage.
/// @param open Duties not closed.
struct Witness {
    Standing standing;
    uint32 place;
    bytes32 head;
    uint32 spent;
    uint32 drawn;
    uint32 open;
}

struct Audit {
    AuditStatus status;
    JobId job;
    uint32 round;
    uint32 attempt;
    uint64 beaconBlock;
    bytes32 beacon;
    uint64 commitEnds;
    uint64 revealEnds;
    uint16 duties;
    uint16 committed;
}

/// @param serial Which preimage of the witness's chain it takes: 1, 2, ...
/// @param t t*, once revealed.
struct Duty {
    address account;
    uint32 slot;
    uint32 serial;
    DutyStatus status;
    uint32 t;
    bytes32 commitment;
}

/// @notice A leaf of a state, which no list of state roots holds: of the tensors that every step computes, without the clock.
/// @param digest The leaf's hash. Differing, this alone counts; agreeing, it is proven:
/// @param code The step Program's parts.
/// @param leafProof From the leaf to the tensor's tree.
/// @param entryProof From the tensor's root to the state.
struct Leaf {
    bytes32 digest;
    Code code;
    bytes32[] leafProof;
    bytes32[] entryProof;
}

/// @notice A witness's verdict, opened.
/// @param preimage Of its hash chain: fixed at enrolment, before any beacon.
/// @param state Its own S_u, u = min(t*, T - 1): S_T is public with the claim.
/// @param leaf Its own, of this state, where the preimage says.
/// @param agrees Whether every root of the published trace up to t* is its own.
/// @param proof Agreeing: leaf(state) is at position u - 1 of the trace. Differing: empty.
struct Word {
    bytes32 preimage;
    bytes32 state;
    Leaf leaf;
    bytes32 salt;
    bool agrees;
    Body body;
    bytes32[] proof;
}

/// @title IWitnesses
/// @notice The market of witnesses: who audits which claim, what it says, what its word costs (docs/protocol.md, section 7).
///
///   witness   enrol -> Listed -> Leaving | Slashed -> gone
///   audit     Drawing -> Drawn | Skipped
///   duty      Drawn -> Committed -> Agreed | Differed -> Closed (Paid | Fined | Slashed | Void)
///
/// A block after the last reveal draws who looks at which slot; how far each looks only it knows until it has said what it saw. Anyone
/// may call `draw` and `settle`: every wait has a default.
interface IWitnesses {
    event Enrolled(JobId indexed job, address indexed account, bytes32 head);
    event Retired(JobId indexed job, address indexed account);
    event AuditOpened(AuditId indexed audit, JobId indexed job, uint32 indexed round, uint32 attempt, uint64 beaconBlock);
    event DutyDrawn(AuditId indexed audit, uint16 i, address indexed account, uint32 slot, uint32 serial);
    event AuditDrawn(AuditId indexed audit, bytes32 beacon, uint16 duties, uint64 commitEnds, uint64 revealEnds);
    event AuditSkipped(AuditId indexed audit);
    event VerdictCommitted(AuditId indexed audit, uint16 i, bytes32 commitment);
    /// @dev Every duty is committed: the windows that follow begin now.
    event CommitsEnded(AuditId indexed audit, uint64 commitEnds, uint64 revealEnds);
    event TracePublished(JobId indexed job, uint32 indexed round, uint32 indexed slot, ClaimId claim, bytes traceCid);
    event VerdictRevealed(AuditId indexed audit, uint16 i, uint32 t, bytes32 state, bool agrees);
    event DutyClosed(AuditId indexed audit, uint16 i, address indexed account, Outcome outcome, uint256 amount);

    // -- witnesses

    /// @notice Joins the job's list; locks witnessStake. `head` is the top of a keccak chain: each duty takes the next preimage.
    function enrol(JobId job, bytes32 head) external;
    /// @notice Leaves the list; the stake is free once no duty is open.
    function retire(JobId job) external;
    /// @notice commitment = keccak(abi.encode(claim, account, S_u, leaf.digest, preimage, salt)): see Word.
    function commit(AuditId audit, uint16 i, bytes32 commitment) external;
    function reveal(AuditId audit, uint16 i, Word calldata word) external;

    // -- workers

    /// @notice Names the list of a claim's state roots, once no witness can copy from it.
    function publish(JobId job, uint32 round, uint32 slot, bytes calldata traceCid) external;

    // -- anyone

    /// @notice First call after the reveals: fixes the beacon's block. Call after that block: draws; 256 blocks later: skips.
    function draw(JobId job, uint32 round) external;
    /// @notice Closes a duty: pays, fines, slashes, or none of it. Reverts `DutyOpen` while that is undecided.
    function settle(AuditId audit, uint16 i) external returns (Outcome);

    // -- views

    function witness(JobId job, address account) external view returns (Witness memory);
    function accounts(JobId job) external view returns (address[] memory);
    function audit(AuditId audit) external view returns (Audit memory);
    function duty(AuditId audit, uint16 i) external view returns (Duty memory);
    function auditIdOf(JobId job, uint32 round, uint32 attempt) external pure returns (AuditId);
    /// @notice The account of the i-th duty that was drawn for the round.
    function witnessOf(JobId job, uint32 round, uint256 i) external view returns (address);
}
