// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {Claim, ClaimStatus, IJobMarket, Job, JobParams, JobStatus, Phase, Round} from "../interfaces/IJobMarket.sol";
import {IStakeVault} from "../interfaces/IStakeVault.sol";
import {GamesOpen, TooEarly, WrongJobStatus, WrongPhase} from "./Errors.sol";
import {Ids} from "./Ids.sol";
import {Rounds} from "./Rounds.sol";
import {ClaimId, JobId} from "../types/Ids.sol";

/// @title Settling
/// @notice How the rounds of JobMarket's jobs end, and what becomes of their stakes: linked code, as Rounds is.
/// @dev The Python twin is lockstep/protocol/market/settling.py: the same names in the same order.
library Settling {
    // -- anyone

    function finalize(Rounds.Book storage b, IStakeVault vault, JobId jobId, uint32 r) external {
        Job storage j = b.jobs[jobId];
        JobParams memory p = Rounds.params(b, jobId);
        Round storage ro = b.rounds[jobId][r];
        // INVARIANT: a void job's rounds are not settled but released.
        if (j.status == JobStatus.Void) revert WrongJobStatus(jobId);
        if (ro.phase == Phase.Merging && Rounds.turn(p, ro) > ro.accepted) {
            if (j.lingering != 0) revert GamesOpen(j.lingering);
            return fail(b, vault, jobId, r);
        }
        // INVARIANT: final iff the challenge window is over, no game is open and the base is final.
        bool decided = ro.phase == Phase.Lead || ro.phase == Phase.Failed;
        if (!decided || r != j.settled) revert WrongPhase(jobId, r);
        _requireOver(b, jobId, p, r);
        if (ro.openGames != 0) revert GamesOpen(ro.openGames);

        ro.phase = Phase.Final;

        emit IJobMarket.RoundFinal(jobId, r);

        (uint256 paid, uint256 burned) = (0, 0);
        for (uint32 s = 0; s < p.roles[0].slots; s++) {
            (ClaimId claimId, Claim storage c) = claimAt(b, jobId, r, ro, s);
            if (c.status == ClaimStatus.Excluded) burned += p.roles[0].slotPrice;
            paid += _judged(b, vault, claimId, c, p.roles[0].slotPrice);
        }
        ClaimId merged = ro.mergeClaim;
        if (ClaimId.unwrap(merged) != 0) {
            paid += _pay(vault, merged, b.claims[merged], ClaimStatus.Final, p.merge.price);
        }
        if (burned != 0) vault.credit(Rounds.BURN, burned);
        j.paid += uint128(paid + burned);
        _settle(b, jobId, j);
        b.rounds[jobId][j.settled - 1].mergeOpens = uint64(block.timestamp);
    }

    function release(Rounds.Book storage b, IStakeVault vault, JobId jobId, uint32 r) external {
        Job storage j = b.jobs[jobId];
        Round storage ro = b.rounds[jobId][r];
        bool voided = Rounds.isVoided(j);
        if (ro.phase == Phase.Void) {
            // INVARIANT: stakes under open games stay locked until the games are over.
            if (!voided && ro.openGames != 0) revert GamesOpen(ro.openGames);
            return releaseAll(b, vault, jobId, r);
        }
        // INVARIANT: a void job's rounds are released in order, each once: what is left of the deposit is then known.
        if (!voided || r != j.settled || r >= j.started) revert WrongPhase(jobId, r);

        ro.phase = Phase.Void;

        emit IJobMarket.RoundVoid(jobId, r, ro.attempt);

        // None of its claims could be defended.
        j.deposit -= uint128(_endAll(b, vault, jobId, r, Rounds.params(b, jobId), ro, true));
        j.settled = r + 1;
        _settle(b, jobId, j);
    }

    // -- the rounds

    /// @dev The checkpoint carries over. What was revealed is judged and paid as in any round; a round without a seed gives the stakes
    ///      back.
    function fail(Rounds.Book storage b, IStakeVault vault, JobId jobId, uint32 r) public {
        Job storage j = b.jobs[jobId];
        Round storage ro = b.rounds[jobId][r];

        ro.phase = Phase.Failed;
        (ro.nextShared, ro.nextOuter) = (ro.base, ro.outer);
        // INVARIANT: what was revealed is judged, whatever becomes of its round.
        ro.mergedAt = ro.revealed == 0 ? 0 : uint64(block.timestamp);
        ro.mergeOpens = uint64(block.timestamp);
        j.failed += 1;

        emit IJobMarket.RoundFailed(jobId, r);

        // With a seed the freeze has said what each claim is.
        uint32 slots = ro.seed == 0 ? Rounds.params(b, jobId).roles[0].slots : 0;
        for (uint32 s = 0; s < slots; s++) {
            (ClaimId claimId, Claim storage c) = claimAt(b, jobId, r, ro, s);
            if (c.status == ClaimStatus.Joined) giveBack(vault, claimId, c, ClaimStatus.Void);
        }
        _settle(b, jobId, j);
    }

    /// @dev Gives back every stake that a Void round still holds; after a rewind pays the work that the slash was to pay.
    function releaseAll(Rounds.Book storage b, IStakeVault vault, JobId jobId, uint32 r) public {
        Round storage ro = b.rounds[jobId][r];
        JobParams memory p = Rounds.params(b, jobId);
        bool due = ro.due;
        ro.due = false;
        uint256 paid = _endAll(b, vault, jobId, r, p, ro, due);
        // INVARIANT: what a slash owes to work is paid to that work or burned.
        if (due) vault.credit(Rounds.BURN, worth(p, ro) - paid);
    }

    // -- inside: rounds

    /// @dev Moves past every leading round that can no more be voided.
    function _settle(Rounds.Book storage b, JobId jobId, Job storage j) private {
        uint32 settled = j.settled;
        while (settled < j.started) {
            if (!_isSettled(b.rounds[jobId][settled])) break;
            settled++;
        }
        j.settled = settled;
    }

    /// @dev A round of which all before it are settled can no more be voided: nothing in it is judged.
    function _isSettled(Round storage ro) private view returns (bool) {
        return ro.phase == Phase.Final || (ro.phase == Phase.Failed && ro.mergedAt == 0);
    }

    /// @dev The pay of a voided round's work: of every claim that was committed, and of its merge.
    function worth(JobParams memory p, Round storage ro) internal view returns (uint256) {
        return ro.committed * uint256(p.roles[0].slotPrice) + (ClaimId.unwrap(ro.mergeClaim) == 0 ? 0 : p.merge.price);
    }

    /// @dev The last round, `r` itself without a carry, whose claims may stand on what claims of `r` carry: of those started, and those
    ///      that failed without claims hold none. And when its window is over, 0 while it is not merged.
    function overAt(Rounds.Book storage b, JobId jobId, JobParams memory p, uint32 r)
        internal
        view
        returns (uint32 last, uint256 over)
    {
        last = r;
        uint32 period = p.roles[0].carryPeriod;
        if (period != 0) {
            uint32 started = b.jobs[jobId].started;
            last = (r / period + 1) * period;
            last = (last < started ? last : started) - 1;
            while (last > r && _isSettled(b.rounds[jobId][last])) last--;
        }
        Round storage ro = b.rounds[jobId][last];
        bool decided = ro.phase == Phase.Lead || ro.phase == Phase.Failed;
        if (!decided || ro.mergedAt == 0) return (last, 0);
        // A merge of r itself may have been made again since.
        uint256 merged = b.rounds[jobId][r].mergedAt;
        over = (merged < ro.mergedAt ? ro.mergedAt : merged) + p.windows.challengeSeconds;
    }

    /// @dev Reverts unless the windows are over of round r and of all whose claims may stand on what its claims carry.
    function _requireOver(Rounds.Book storage b, JobId jobId, JobParams memory p, uint32 r) private view {
        (uint32 last, uint256 over) = overAt(b, jobId, p, r);
        // INVARIANT: no claim is final before the windows of its whole carry period are over.
        if (over == 0) revert WrongPhase(jobId, last);
        if (block.timestamp < over) revert TooEarly(over);
    }

    // -- inside: claims and stakes

    /// @dev The claim of a slot in the round's current attempt.
    function claimAt(Rounds.Book storage b, JobId jobId, uint32 r, Round storage ro, uint32 slot)
        internal
        view
        returns (ClaimId claimId, Claim storage c)
    {
        claimId = Ids.claim(jobId, r, ro.attempt, slot);
        c = b.claims[claimId];
    }

    /// @dev The claim of the same slot in the round before.
    function carriedFrom(Rounds.Book storage b, Claim storage c) internal view returns (Claim storage earlier) {
        (JobId jobId, uint32 r) = (c.job, c.round - 1);
        (, earlier) = claimAt(b, jobId, r, b.rounds[jobId][r], c.slot);
    }

    function giveBack(IStakeVault vault, ClaimId claimId, Claim storage c, ClaimStatus status) internal {
        c.status = status;

        vault.unlock(ClaimId.unwrap(claimId));
    }

    function _holdsStake(ClaimStatus status) private pure returns (bool) {
        return status >= ClaimStatus.Joined && status <= ClaimStatus.Missing;
    }

    /// @dev No reveal: the slot's price of the stake is burned.
    function absent(IStakeVault vault, ClaimId claimId, Claim storage c, uint256 fine) internal {
        c.status = ClaimStatus.Absent;

        vault.slashLiveness(ClaimId.unwrap(claimId), fine);
    }

    /// @dev The end of a claim of a slot that nobody can challenge any more.
    /// @return What it is paid.
    function _judged(
        Rounds.Book storage b,
        IStakeVault vault,
        ClaimId claimId,
        Claim storage c,
        uint256 price
    ) private returns (uint256) {
        ClaimStatus status = c.status;
        // INVARIANT: pay follows from accepted, unconvicted claims, never from what a claimant says.
        if (status == ClaimStatus.Accepted) {
            // INVARIANT: what stands on the carry of a convicted claim is unpaid.
            bool stands = !c.carries || carriedFrom(b, c).status == ClaimStatus.Final;
            if (stands) return _pay(vault, claimId, c, ClaimStatus.Final, price);
            giveBack(vault, claimId, c, ClaimStatus.Void);
        } else if (status == ClaimStatus.Excluded) {
            // INVARIANT: who leaves a claim out of the merge saves nothing by it: its price is burned.
            giveBack(vault, claimId, c, ClaimStatus.Final);
        } else if (status == ClaimStatus.Missing) {
            // INVARIANT: a payload that was demanded in vain costs what silence does, and earns nothing.
            c.status = ClaimStatus.Final;
            vault.slashLiveness(ClaimId.unwrap(claimId), price);
        }
        return 0;
    }

    /// @dev Every claim of a round ends Void: its stake returns, and if `pays` it is paid for what was committed.
    function _endAll(
        Rounds.Book storage b,
        IStakeVault vault,
        JobId jobId,
        uint32 r,
        JobParams memory p,
        Round storage ro,
        bool pays
    ) private returns (uint256 paid) {
        for (uint32 s = 0; s < p.roles[0].slots; s++) {
            (ClaimId claimId, Claim storage c) = claimAt(b, jobId, r, ro, s);
            // INVARIANT: who is silent until revealing is over is not paid.
            bool counts = c.status != ClaimStatus.Committed || ro.committed != ro.revealed;
            paid += _end(vault, claimId, c, pays && counts ? p.roles[0].slotPrice : 0);
        }
        if (ClaimId.unwrap(ro.mergeClaim) != 0) paid += _end(vault, ro.mergeClaim, b.claims[ro.mergeClaim], pays ? p.merge.price : 0);
    }

    function _end(IStakeVault vault, ClaimId claimId, Claim storage c, uint256 price) private returns (uint256) {
        if (!_holdsStake(c.status)) return 0;
        // INVARIANT: a seat is not work: only what was committed, and was not left out, is paid without a verdict.
        bool worked = c.status >= ClaimStatus.Committed && c.status <= ClaimStatus.Accepted;
        if (price != 0 && worked) {
            return _pay(vault, claimId, c, ClaimStatus.Void, price);
        }
        giveBack(vault, claimId, c, ClaimStatus.Void);
        return 0;
    }

    function _pay(
        IStakeVault vault,
        ClaimId claimId,
        Claim storage c,
        ClaimStatus status,
        uint256 amount
    ) private returns (uint256) {
        giveBack(vault, claimId, c, status);

        emit IJobMarket.Paid(c.job, c.round, c.slot, c.worker, amount);

        vault.credit(c.worker, amount);
        return amount;
    }
}
