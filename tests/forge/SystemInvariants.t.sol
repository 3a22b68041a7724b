// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {StakeVault} from "../../contracts/StakeVault.sol";
import {Verdict} from "../../contracts/interfaces/IDisputeGame.sol";
import {Job, JobStatus} from "../../contracts/interfaces/IJobMarket.sol";
import {IWitnesses, Outcome, Standing, Witness} from "../../contracts/interfaces/IWitnesses.sol";
import {JobId} from "../../contracts/types/Ids.sol";
import {SystemHandler} from "./SystemHandler.sol";

/// forge-config: default.invariant.depth = 400
/// forge-config: slow.invariant.depth = 400
/// forge-config: default.invariant.runs = 2
/// forge-config: quick.invariant.depth = 200
/// forge-config: quick.invariant.runs = 1
/// forge-config: slow.invariant.runs = 16
/// @title SystemInvariants
/// @notice The rules of tests/search on the contracts themselves, as they are deployed: nothing here is a double.
contract SystemInvariants {
    SystemHandler private handler;

    function setUp() external {
        handler = new SystemHandler();
    }

    /// @dev forge's fuzzer calls these contracts and no other.
    function targetContracts() external view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(handler);
    }

    /// @dev `end` is what comes last.
    function excludeSelectors() external view returns (FuzzSelector[] memory excluded) {
        excluded = new FuzzSelector[](1);
        excluded[0].addr = address(handler);
        excluded[0].selectors = new bytes4[](3);
        excluded[0].selectors[0] = handler.end.selector;
        excluded[0].selectors[1] = handler.behave.selector;
        excluded[0].selectors[2] = handler.settleOne.selector;
    }

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    /// @dev One campaign for all: each would play the same games again.
    function invariant_nobody_honest_loses_and_no_money_is_made() public view {
        _nobodyHonestLostAndTheVaultHoldsExactlyWhatItOwes();
        _escrowIsHeldPaidOrRefunded();
        _everyOpenDutyHasItsFeeReserved();
        _theListIsThatOfTheListed();
        _onlyTheOwnerTakesOutAndHandsOn();
        handler.checkGames();
        require(handler.risen() == 0, "a claim that was dead lives");
        require(handler.wronged() == 0, "a stake fell, or a word, without a reason");
        require(handler.refused() == 0, "an honest act was refused");
        Job memory j = handler.theJob();
        require(j.settled <= j.started && j.started - j.settled <= 3, "too many rounds in flight");
        // What was argued about when a round failed stands until the argument is over.
        bool done = j.status == JobStatus.Done;
        require(!done || handler.idleClaims() == 0, "a claim of a job that is done lives");
    }

    /// @dev At the end of each campaign: whatever was done, it ends, and every lock with it.
    function afterInvariant() public {
        bytes32 held = handler.end();
        require(held == 0, string.concat("locked for ever: ", handler.whatIs(held)));
        this.invariant_nobody_honest_loses_and_no_money_is_made();
    }

    function _nobodyHonestLostAndTheVaultHoldsExactlyWhatItOwes() private view {
        (uint256 owed, uint256[8] memory own) = handler.worth();
        for (uint256 i = 0; i < own.length; i++) {
            require(!handler.isHonest(i) || own[i] >= handler.DEPOSIT(), "somebody honest lost");
        }
        StakeVault vault = handler.theVault();
        owed += vault.totalEscrow();
        require(handler.theToken().balanceOf(address(vault)) == owed, "the token's books differ from the vault's");
        require(handler.deposited() == owed + handler.withdrawn(), "what came in is not what is there and what left");
    }

    function _escrowIsHeldPaidOrRefunded() private view {
        Job memory j = handler.theJob();
        uint256 held = handler.theVault().totalEscrow() - handler.owed();
        require(j.escrow + j.deposit == held + j.paid + j.refunded, "escrow leaks");
        if (j.status == JobStatus.Done) {
            require(j.deposit == 0 && held == j.feesDue, "escrow left behind");
        }
    }

    function _everyOpenDutyHasItsFeeReserved() private view {
        require(handler.theJob().feesDue == handler.openDuties() * handler.FEE(), "fees due differ from open duties");
    }

    function _onlyTheOwnerTakesOutAndHandsOn() private view {
        require(handler.usurped() == 0, "a stolen key did what an owner alone may");
        require(!handler.astray(), "what left the vault for an owned account is not its owner's");
        require(!handler.taken(), "an account is owned by who was not given it");
    }

    function _theListIsThatOfTheListed() private view {
        (IWitnesses witnesses, JobId job) = handler.theWitnesses();
        address[] memory list = witnesses.accounts(job);
        for (uint256 k = 0; k < list.length; k++) {
            Witness memory w = witnesses.witness(job, list[k]);
            require(w.standing == Standing.Listed && w.place == k, "a place is not where the list has it");
        }
    }

    /// @dev Ends that campaigns have come to, of every kind that there is.
    struct Ends {
        uint256 paid;
        uint256 convicted;
        uint256 commanded;
        uint256 replaced;
        uint256[5] verdicts;
        uint256[4] duties;
    }

    /// @dev The fuzzer must get somewhere, or the invariants say nothing: this is what runs of luck reach.
    function test_the_handler_reaches_every_end() external {
        Ends memory ends;
        string memory missing = "no run yet";
        for (uint256 run = 0; run < 16 && bytes(missing).length > 0; run++) {
            handler = new SystemHandler();
            for (uint256 i = 0; i < 300; i++) _try(uint256(keccak256(abi.encode(run, i))));
            afterInvariant();
            for (uint256 v = 0; v < 5; v++) ends.verdicts[v] += handler.verdicts(Verdict(v));
            for (uint256 o = 0; o < 4; o++) ends.duties[o] += handler.ended(Outcome(o));
            ends.convicted += handler.convicted();
            ends.paid += handler.theJob().paid;
            ends.commanded += handler.commanded();
            ends.replaced += handler.replaced();
            missing = _missing(ends);
        }
        require(bytes(missing).length == 0, missing);
    }

    function _missing(Ends memory ends) private pure returns (string memory) {
        if (ends.paid == 0) return "nobody was paid";
        if (ends.convicted == 0) return "nobody was convicted";
        if (ends.commanded == 0) return "no owner did anything";
        if (ends.replaced == 0) return "no merge was made again";
        if (ends.verdicts[uint256(Verdict.Fraud)] == 0) return "nobody by a proof";
        if (ends.verdicts[uint256(Verdict.Timeout)] == 0) return "nobody by its clock";
        if (ends.verdicts[uint256(Verdict.Void)] == 0) return "no game was void";
        if (ends.duties[uint256(Outcome.Paid)] == 0) return "no witness was paid";
        if (ends.duties[uint256(Outcome.Fined)] == 0) return "no witness was fined";
        if (ends.duties[uint256(Outcome.Slashed)] == 0) return "no witness was slashed";
        if (ends.duties[uint256(Outcome.Void)] == 0) return "no duty was void";
        return "";
    }

    function _try(uint256 luck) private {
        uint256 kind = luck % 18;
        if (kind < 5) try handler.advance(luck >> 8, luck >> 32, luck >> 64) {} catch {}
        else if (kind == 5) try handler.aside(luck >> 8, luck >> 32, luck >> 64) {} catch {}
        else if (kind == 6) try handler.open(luck >> 8, luck >> 32, luck >> 64) {} catch {}
        else if (kind < 9) try handler.play(luck >> 8, luck >> 32) {} catch {}
        else if (kind < 11) try handler.say(luck >> 8) {} catch {}
        else if (kind == 11) try handler.settle(luck >> 8) {} catch {}
        else if (kind == 12) try handler.steal(luck >> 8, luck >> 32, luck >> 64) {} catch {}
        else if (kind == 13) try handler.command(luck >> 8, luck >> 32, luck >> 64) {} catch {}
        else handler.pass(luck >> 8, luck >> 32);
        invariant_nobody_honest_loses_and_no_money_is_made();
    }
}
