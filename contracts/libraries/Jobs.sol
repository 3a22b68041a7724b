// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IJobMarket, Job, JobParams, JobStatus} from "../interfaces/IJobMarket.sol";
import {IStakeVault} from "../interfaces/IStakeVault.sol";
import {MAX_ESCROW, PROVER_PERCENT} from "./Constants.sol";
import {EscrowInsufficient, JobExists, JobUnfinished, Unauthorized, WrongJobStatus} from "./Errors.sol";
import {Ids} from "./Ids.sol";
import {JobRules} from "./JobRules.sol";
import {Rounds} from "./Rounds.sol";
import {Terms} from "./Terms.sol";
import {JobId} from "../types/Ids.sol";

/// @title Jobs
/// @notice How JobMarket's jobs begin and end: linked code, as Rounds is.
/// @dev The Python twin is lockstep/protocol/market/requester.py: the same names in the same order.
library Jobs {
    // -- the requester

    /// @return jobId The new job.
    /// @return pulled What its requester pays in: escrow and deposit.
    function create(
        Rounds.Book storage b,
        IStakeVault vault,
        JobParams memory p,
        uint256 nonce,
        uint256 escrow,
        uint256 inclusion,
        uint256 censor
    ) external returns (JobId jobId, uint256 pulled) {
        JobRules.check(p, vault.unbondSeconds(), inclusion, censor);
        uint256 pay = JobRules.roundPay(p);
        uint256 needed = p.schedule.rounds * pay;
        // INVARIANT: the escrow covers every slot, every merge and every witness of every round.
        if (escrow < needed || escrow > MAX_ESCROW) revert EscrowInsufficient(needed, escrow);
        (address terms, bytes32 hash) = Terms.store(p);
        jobId = Ids.job(msg.sender, nonce, hash);
        Job storage j = b.jobs[jobId];
        if (j.status != JobStatus.None) revert JobExists(jobId);

        b.terms[jobId] = terms;
        j.requester = msg.sender;
        j.status = JobStatus.Active;
        j.escrow = uint128(escrow);
        // INVARIANT: the deposit pays every round that can be in flight when the job is proven invalid, and one round's pay more, which
        // its requester then loses.
        j.deposit = uint128((uint256(p.schedule.maxLead) + 1) * pay);
        pulled = escrow + j.deposit;

        emit IJobMarket.JobCreated(jobId, msg.sender, p.spec.digest, escrow, j.deposit);
    }

    function cancel(Rounds.Book storage b, IStakeVault vault, JobId jobId) external {
        Job storage j = b.jobs[jobId];
        if (msg.sender != j.requester) revert Unauthorized(msg.sender);
        if (j.status != JobStatus.Active) revert WrongJobStatus(jobId);
        // INVARIANT: what rounds in flight may still pay stays in escrow, and so do the fees of unsettled duties.
        uint256 reserved = uint256(j.started - j.settled) * JobRules.roundPay(Rounds.params(b, jobId));
        uint256 left = uint256(j.escrow) - j.paid - j.feesDue;
        uint256 refund = left > reserved ? left - reserved : 0;

        j.status = JobStatus.Cancelled;
        j.refunded += uint128(refund);

        emit IJobMarket.JobCancelled(jobId, refund);

        vault.credit(j.requester, refund);
    }

    // -- anyone

    function finish(Rounds.Book storage b, IStakeVault vault, JobId jobId) external {
        Job storage j = b.jobs[jobId];
        JobParams memory p = Rounds.params(b, jobId);
        bool voided = j.status == JobStatus.Void;
        bool active = j.status == JobStatus.Active;
        if (!active && j.status != JobStatus.Cancelled && !voided) revert WrongJobStatus(jobId);
        bool startable = active && j.started < p.schedule.rounds && j.failed <= p.schedule.maxFail;
        if (startable || j.settled != j.started) revert JobUnfinished();
        uint256 left = j.deposit;

        j.status = JobStatus.Done;
        j.deposit = 0;
        // INVARIANT: escrow = paid + refunded + fees still due, exactly.
        uint256 refund = uint256(j.escrow) - j.paid - j.refunded - j.feesDue;
        // INVARIANT: what a void job's deposit has not paid goes to the prover and is burned, never to the requester.
        j.refunded += uint128(refund);
        vault.credit(j.requester, voided ? refund : refund + left);
        if (voided) {
            uint256 toProver = left * PROVER_PERCENT / 100;
            vault.credit(j.prover, toProver);
            vault.credit(Rounds.BURN, left - toProver);
        }

        emit IJobMarket.JobDone(jobId, j.paid, j.refunded, voided ? 0 : left);
    }
}
