// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {IJobMarket} from "../../contracts/interfaces/IJobMarket.sol";
import {IStakeVault} from "../../contracts/interfaces/IStakeVault.sol";
import "../../contracts/libraries/Errors.sol";
import {ClaimId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {LoneMarket} from "./LoneMarket.sol";

/// @title JobEndsTest
/// @notice What the end of a job pays, to the unit, and who may speak to the market; the job has its escrow and not one unit more.
contract JobEndsTest is LoneMarket {
    uint256 private constant SLOT_PRICE = 101;
    uint256 private constant MERGE_PRICE = 57;
    uint256 private constant FEE = 11;
    /// @dev Three slots, a merge, two witnesses.
    uint256 private constant ROUND_PAY = 3 * SLOT_PRICE + MERGE_PRICE + 2 * FEE;
    uint256 private constant PAID = 3 * SLOT_PRICE + MERGE_PRICE;
    uint256 private constant DEPOSIT = 4 * ROUND_PAY;
    address private constant BURN = 0x000000000000000000000000000000000000dEaD;

    function setUp() external {
        _create(0);
        for (uint256 i = 1; i < ACCOUNTS; i++) {
            CHEATS.prank(account(i));
            vault.deposit(100_000);
        }
    }

    // -- how a job ends --------------------------------------------------------------------------------------------

    function test_a_cancelled_job_refunds_what_no_round_can_still_earn() external {
        _create(13);
        _lead(0, false);
        _final(0);
        _lead(1, false);
        uint256 before = vault.credits(account(0));
        uint256 refund = 4 * ROUND_PAY + 13 - PAID - ROUND_PAY;
        _cancel();
        require(market.job(job).refunded == refund, "all but the pay of the round in flight");
        require(vault.credits(account(0)) == before + refund, "credited to the requester");
        _finishRefused();
        _final(1);
        market.finish(job);
        require(market.job(job).paid == 2 * PAID, "both rounds are paid");
        require(vault.credits(account(0)) == before + 4 * ROUND_PAY + 13 - 2 * PAID + DEPOSIT, "the rest is the requester's");
        require(market.job(job).deposit == 0, "the deposit went back");
    }

    function test_a_cancelled_job_with_every_round_in_flight_refunds_nothing() external {
        _lead(0, true);
        _final(0);
        for (uint32 r = 1; r < 4; r++) _lead(r, true);
        uint256 before = vault.credits(account(0));
        uint256 held = vault.totalEscrow();
        _cancel();
        require(market.job(job).refunded == 0 && vault.credits(account(0)) == before, "fees that are due leave less than rounds may cost");
        require(vault.totalEscrow() == held, "nothing moved");
        for (uint32 r = 1; r < 4; r++) _final(r);
        market.finish(job);
        IJobMarket.Job memory j = market.job(job);
        require(j.paid == 4 * PAID && j.feesDue == 8 * FEE && j.refunded == 0, "four rounds paid, eight fees due");
        market.onWitnessed(job, address(0));
        require(vault.credits(account(0)) == before + DEPOSIT + FEE, "a fee that nobody earned");
        market.onWitnessed(job, account(5));
        require(market.job(job).paid == 4 * PAID + FEE && market.job(job).feesDue == 6 * FEE, "a fee that was earned");
    }

    function test_a_job_that_goes_on_is_not_finished() external {
        _finishRefused();
        _lead(0, false);
        _finishRefused();
        _final(0);
        _finishRefused();
        _cancel();
        market.finish(job);
        _reverts(address(this), abi.encodeCall(market.finish, (job)), abi.encodeWithSelector(WrongJobStatus.selector, job));
        _reverts(account(0), abi.encodeCall(market.cancel, (job)), abi.encodeWithSelector(WrongJobStatus.selector, job));
    }

    function test_a_void_jobs_deposit_pays_whoever_worked_then_the_prover() external {
        _lead(0, false);
        market.onInvalid(job, account(5));
        uint256 before = vault.credits(account(5));
        uint256 worker = vault.credits(_owner(0, 0));
        market.release(job, 0);
        require(vault.credits(_owner(0, 0)) == worker + 3 * SLOT_PRICE, "one account had the three slots");
        market.finish(job);
        uint256 left = DEPOSIT - PAID;
        require(vault.credits(account(5)) == before + left * 30 / 100, "30 % to who proved it");
        require(vault.credits(BURN) == left - left * 30 / 100, "the rest is burned");
        require(market.job(job).refunded == 4 * ROUND_PAY, "the escrow went back");
    }

    // -- who may ---------------------------------------------------------------------------------------------------

    function testFuzz_verdicts_duties_and_demands_are_not_for_strangers(address who) external {
        if (who == address(this)) return;
        _to(0, IJobMarket.Phase.Attesting, false);
        ClaimId claim = market.claimIdOf(job, 0, 0);
        bytes memory refused = abi.encodeWithSelector(Unauthorized.selector, who);
        address[] memory winners = new address[](1);
        _reverts(who, abi.encodeCall(market.onOpen, (claim, _opened(claim).body)), refused);
        _reverts(who, abi.encodeCall(market.onRejected, (claim)), refused);
        _reverts(who, abi.encodeCall(market.onConvicted, (claim, 1, winners, new IStakeVault.Refund[](0))), refused);
        _reverts(who, abi.encodeCall(market.onInvalid, (job, who)), refused);
        _reverts(who, abi.encodeCall(market.onDrawn, (job, 0, 2)), refused);
        _reverts(who, abi.encodeCall(market.onDemanded, (job, 0, 0, false)), refused);
        market.onDrawn(job, 0, 2);
        _reverts(who, abi.encodeCall(market.onWitnessed, (job, who)), refused);
        if (who != account(0)) _reverts(who, abi.encodeCall(market.cancel, (job)), refused);
    }

    // -- inside ----------------------------------------------------------------------------------------------------

    function _create(uint256 more) private {
        CHEATS.prank(account(0));
        job = market.create(_params(), 1 + more, 4 * ROUND_PAY + more);
    }

    /// @dev Starts round `r` and goes on until it is merged; its witnesses are drawn or never asked for.
    function _lead(uint32 r, bool drawn) private {
        _to(r, IJobMarket.Phase.Lead, drawn);
    }

    function _to(uint32 r, IJobMarket.Phase phase, bool drawn) private {
        market.startRound(job, r);
        // What `advance` takes for luck: 2 draws both witnesses, 1 none; neither demands anything nor names fewer than all.
        for (uint256 i = 0; market.phase(job, r) != phase; i++) {
            require(i < 20, "a round that goes nowhere");
            if (market.phase(job, r) == IJobMarket.Phase.Attesting && i > 5) CHEATS.warp(block.timestamp + 100);
            else this.advance(1, type(uint256).max, bytes32(uint256(drawn ? 2 : 1)));
        }
    }

    function _final(uint32 r) private {
        CHEATS.warp(block.timestamp + 100);
        market.finalize(job, r);
    }

    function _cancel() private {
        CHEATS.prank(account(0));
        market.cancel(job);
    }

    function _finishRefused() private {
        _reverts(address(this), abi.encodeCall(market.finish, (job)), abi.encodeWithSelector(JobUnfinished.selector));
    }

    function _reverts(address sender, bytes memory call, bytes memory expected) private {
        CHEATS.prank(sender);
        (bool success, bytes memory returned) = address(market).call(call);
        require(!success && keccak256(returned) == keccak256(expected), "reverts for this reason");
    }
}
