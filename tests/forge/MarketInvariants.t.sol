// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {StakeVault} from "../../contracts/StakeVault.sol";
import {IJobMarket} from "../../contracts/interfaces/IJobMarket.sol";
import {MarketHandler} from "./MarketHandler.sol";

/// forge-config: default.invariant.depth = 160
/// @title MarketInvariants
/// @notice Whatever is done to a job, by whomever and whenever, money is neither made nor lost.
contract MarketInvariants {
    MarketHandler private handler;

    function setUp() external {
        handler = new MarketHandler();
    }

    /// @dev forge's fuzzer calls these contracts and no other.
    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    function invariant_the_vault_holds_exactly_what_it_owes() external view {
        StakeVault vault = handler.vault();
        uint256 owed = vault.totalEscrow() + handler.locked() + vault.credits(vault.BURN());
        for (uint256 i = 0; i < handler.ACCOUNTS(); i++) {
            address account = handler.account(i);
            (uint256 unbonding,) = vault.unbonding(account);
            owed += vault.free(account) + vault.credits(account) + unbonding;
        }
        require(handler.token().balanceOf(address(vault)) == owed, "the token's books differ from the vault's");
        require(handler.deposited() == owed + handler.withdrawn(), "what came in is not what is there and what left");
    }

    function invariant_escrow_is_held_paid_or_refunded() external view {
        IJobMarket.Job memory j = handler.market().job(handler.job());
        uint256 held = handler.vault().totalEscrow() - handler.owed();
        require(j.escrow + j.deposit == held + j.paid + j.refunded, "escrow leaks");
        if (j.status == IJobMarket.JobStatus.Done) {
            require(j.deposit == 0 && held == j.feesDue, "escrow left behind");
            require(j.escrow == j.paid + j.refunded + j.feesDue, "escrow is not paid, refunded or due");
        }
    }

    function invariant_what_is_slashed_arrives() external view {
        require(handler.slashed() == handler.slashedTo(), "slashed differs from burned and credited");
    }

    /// @dev The fuzzer must get somewhere, or the invariants say nothing: this is what a run of luck reaches.
    function test_the_handler_reaches_the_end_of_a_job() external {
        for (uint256 i = 0; i < 200; i++) {
            uint256 luck = uint256(keccak256(abi.encode(i)));
            if (i % 7 == 6) handler.pass(69, 1);
            try handler.advance(luck % 5, type(uint256).max, bytes32(luck)) {} catch {}
            if (i % 5 == 3) try handler.open(3, 1, luck) {} catch {}
            if (i % 5 == 4) try handler.verdict(i / 5, luck % 4 == 0) {} catch {}
        }
        IJobMarket.Job memory j = handler.market().job(handler.job());
        require(j.status == IJobMarket.JobStatus.Done, "the job did not end");
        require(j.paid > 0, "nobody was paid");
        require(handler.slashed() > 0, "nobody was slashed");
        this.invariant_the_vault_holds_exactly_what_it_owes();
        this.invariant_escrow_is_held_paid_or_refunded();
        this.invariant_what_is_slashed_arrives();
    }

    function invariant_rounds_in_flight_are_within_the_lead() external view {
        IJobMarket.Job memory j = handler.market().job(handler.job());
        require(j.settled <= j.started && j.started - j.settled <= 3, "too many rounds in flight");
    }
}
