// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {StakeVault} from "../../contracts/StakeVault.sol";
import {IWitnesses} from "../../contracts/interfaces/IWitnesses.sol";
import {WitnessHandler} from "./WitnessHandler.sol";

/// forge-config: default.invariant.depth = 160
/// @title WitnessInvariants
/// @notice Whatever is done to audits, by whomever and whenever: no honest witness loses, money is kept, and every duty can end.
contract WitnessInvariants {
    WitnessHandler private handler;

    function setUp() external {
        handler = new WitnessHandler();
    }

    /// @dev forge's fuzzer calls these contracts and no other.
    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    /// @dev One campaign for all: each would play the same games again.
    function invariant_audits_wrong_nobody_and_keep_their_books() public view {
        _noHonestWitnessLosesAndNoTrueWordIsSlashed();
        _theVaultHoldsExactlyWhatItOwes();
        _everyOpenDutyHasItsFeeReserved();
        _theListIsThatOfTheListed();
    }

    function _noHonestWitnessLosesAndNoTrueWordIsSlashed() private view {
        require(handler.wronged() == 0, "somebody was wronged");
        for (uint256 i = 0; i < 2; i++) {
            address honest = handler.account(handler.FIRST_WITNESS() + i);
            require(handler.wealth(honest) >= handler.DEPOSIT(), "an honest witness lost stake");
        }
    }

    function _theVaultHoldsExactlyWhatItOwes() private view {
        StakeVault vault = handler.vault();
        uint256 owed = vault.totalEscrow() + handler.locked() + vault.credits(vault.BURN());
        for (uint256 i = 0; i < handler.ACCOUNTS(); i++) {
            owed += vault.free(handler.account(i)) + vault.credits(handler.account(i));
        }
        require(handler.token().balanceOf(address(vault)) == owed, "the token's books differ from the vault's");
    }

    function _everyOpenDutyHasItsFeeReserved() private view {
        uint256 due = handler.market().job(handler.job()).feesDue;
        require(due == handler.open() * handler.FEE(), "fees due differ from open duties");
    }

    function _theListIsThatOfTheListed() private view {
        address[] memory list = handler.witnesses().accounts(handler.job());
        for (uint256 k = 0; k < list.length; k++) {
            IWitnesses.Witness memory w = handler.witnesses().witness(handler.job(), list[k]);
            require(w.standing == IWitnesses.Standing.Listed && w.place == k, "a place is not where the list has it");
        }
    }

    /// @dev The fuzzer must get somewhere, or the invariants say nothing: this is what runs of luck reach.
    function test_the_handler_reaches_every_end_of_a_duty() external {
        uint256[4] memory ended;
        for (uint256 k = 0; k < 12; k++) {
            handler = new WitnessHandler();
            for (uint256 i = 0; i < 400; i++) _try(uint256(keccak256(abi.encode(20 + k, i))));
            invariant_audits_wrong_nobody_and_keep_their_books();
            for (uint256 o = 0; o < 4; o++) ended[o] += handler.ended(IWitnesses.Outcome(o));
        }
        require(ended[uint256(IWitnesses.Outcome.Paid)] > 0, "nobody was paid");
        require(ended[uint256(IWitnesses.Outcome.Fined)] > 0, "nobody was fined");
        require(ended[uint256(IWitnesses.Outcome.Slashed)] > 0, "nobody was slashed");
        require(ended[uint256(IWitnesses.Outcome.Void)] > 0, "nothing was void");
    }

    function _try(uint256 luck) private {
        try handler.advance(luck % 5, luck, bytes32(luck)) {} catch {}
        if (luck % 3 != 0) try handler.lie(luck >> 32, luck >> 64, bytes32(luck)) {} catch {}
        if (luck % 29 == 0) try handler.convict(luck >> 128, uint32(luck >> 96), luck % 2 == 0) {} catch {}
        if (luck % 4 == 1) try handler.settle(luck >> 160) {} catch {}
        if (luck % 4 == 2) handler.pass(luck >> 16, luck >> 24);
    }
}
