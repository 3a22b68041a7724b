// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {keep} from "./OneRole.sol";
import {GameState, Signed, Step, Work} from "../../contracts/interfaces/IDisputeGame.sol";
import {Body, ClaimStatus, Phase, Receipt, Round} from "../../contracts/interfaces/IJobMarket.sol";
import {Evidence, Subject} from "../../contracts/interfaces/IValidator.sol";
import {DutyStatus, Outcome} from "../../contracts/interfaces/IWitnesses.sol";
import {BYTE_GAS, TRANSACTION_GAS} from "../../contracts/libraries/Constants.sol";
import {Draws} from "../../contracts/libraries/Draws.sol";
import {GamesOpen, SlotTaken, WrongPhase} from "../../contracts/libraries/Errors.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {Ids} from "../../contracts/libraries/Ids.sol";
import {ClaimId, GameId} from "../../contracts/types/Ids.sol";
import {CHEATS, dataGas} from "./Cheats.sol";
import {Deployed} from "./Deployed.sol";

/// @title IncentivesTest
/// @notice What nobody earns: prizes, bonds and gas that would go to who did not work for them, on the contracts as deployed.
contract IncentivesTest is Deployed {
    using GameStates for GameState;

    uint256 internal constant REQUESTER = 0;
    uint256 internal constant AGGREGATOR = 1;
    uint256 internal constant ACCOMPLICE = 2;
    uint256 internal constant FINDER = 3;
    uint256 internal constant WORKERS = 10;
    uint256 internal constant DEPOSIT = 2_000e18;

    /// A job of the preset, everybody funded, its gas at a fifth of the cap.
    function _begin(uint16 slots) internal {
        _deploy(14 days);
        for (uint256 i = 0; i < WORKERS; i++) _fund(i, i == REQUESTER ? 0 : DEPOSIT);
        for (uint256 i = 0; i < slots; i++) _fund(WORKERS + i, DEPOSIT);
        keep(terms, _mainnet(slots));
        terms.merge.aggregator = acc(AGGREGATOR);
        CHEATS.fee(20 gwei);
    }

    function _openGame(uint256 who, ClaimId claim) internal watched returns (GameId) {
        Step memory none;
        Body memory said = _opened(claim).body;
        CHEATS.prank(acc(who));
        return game.open(claim, said, 0, 0, 0, new bytes32[](0), none);
    }

    function _refused(address who, address where, bytes memory call, bytes memory why) internal {
        CHEATS.prank(who);
        (bool ok, bytes memory said) = where.call(call);
        require(!ok && keccak256(said) == keccak256(why), "refused otherwise");
    }

    /// @dev Token units for gas at the block's base fee.
    function _cost(uint256 gas) internal view returns (uint256) {
        return gas * terms.prices.gasPrice * block.basefee / terms.prices.feeCap + 1;
    }

    // -- two signatures --------------------------------------------------------------------------------------------

    function _twice(uint32 slot, uint256 key) internal view returns (bytes memory) {
        Round memory ro = market.round(job, 0);
        Work memory w = Work(job, 0, 0, slot, ro.seed, ro.base);
        return abi.encodeCall(game.equivocate, (w, _signed(w, keccak256("one"), key), _signed(w, keccak256("other"), key)));
    }

    /// A liar that is challenged cannot convict itself by two signatures and so take the prize along.
    function test_two_signatures_wait_for_the_games_on_a_claim() external {
        _begin(4);
        _create(REQUESTER, 0);
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        ClaimId lie = market.claimIdOf(job, 0, 0);
        GameId found = _openGame(FINDER, lie);
        bytes memory pair = _twice(0, KEY + WORKERS);
        _refused(acc(ACCOMPLICE), address(game), pair, abi.encodeWithSelector(GamesOpen.selector, 1));
        CHEATS.warp(standingOf(found).deadline() + 1);
        game.resolve(found, standingOf(found));
        require(vault.credits(acc(FINDER)) >= 12e18, "the prize is its finder's");
    }

    /// Where no game is open they convict, and whoever shows them has its gas back and no more.
    function test_two_signatures_pay_their_gas_and_no_prize() external {
        _begin(4);
        _create(REQUESTER, 0);
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        bytes memory pair = _twice(0, KEY + WORKERS);
        CHEATS.prank(acc(ACCOMPLICE));
        uint256 gas = gasleft();
        (bool ok,) = address(game).call(pair);
        gas -= gasleft();
        uint256 paid = vault.credits(acc(ACCOMPLICE));
        require(ok && market.claim(market.claimIdOf(job, 0, 0)).status == ClaimStatus.Convicted, "convicted");
        require(paid > _cost(TRANSACTION_GAS) && paid < _cost(TRANSACTION_GAS + BYTE_GAS * pair.length + gas), "its gas");
        require(vault.credits(acc(REQUESTER)) == 8e18 - paid, "the requester's fifth, less that");
        require(vault.credits(vault.BURN()) == 32e18, "half and the prize");
    }

    // -- gas -------------------------------------------------------------------------------------------------------

    /// Zeros behind a move's arguments are cheap: what a game counts is never more than what the transaction took.
    function testFuzz_a_padded_move_is_counted_at_its_cost(uint16 zeros) external {
        _begin(2);
        _create(REQUESTER, 0);
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        ClaimId claim = market.claimIdOf(job, 0, 0);
        Step memory none;
        bytes memory call = abi.encodeCall(game.open, (claim, _opened(claim).body, 0, 0, 0, new bytes32[](0), none));
        call = bytes.concat(call, new bytes(zeros));
        CHEATS.prank(acc(ACCOMPLICE));
        uint256 gas = gasleft();
        (bool ok, bytes memory id) = address(game).call(call);
        gas -= gasleft();
        require(ok, "taken");
        uint256 spent = game.game(abi.decode(id, (GameId))).spent;
        uint256 data = dataGas(call);
        require(spent > TRANSACTION_GAS + data && spent < TRANSACTION_GAS + data + gas, "what it took");
    }

    // -- what nobody may do any more, or not yet -----------------------------------------------------------------------

    /// One party in every revealed slot speaks at once: payloads can be demanded for a quarter of the window all the same.
    function test_who_holds_every_slot_does_not_end_the_time_of_demands() external {
        _begin(8);
        _create(REQUESTER, 0);
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        uint256 revealed = block.timestamp;
        Receipt[] memory all = new Receipt[](8);
        for (uint32 s = 0; s < 8; s++) all[s] = _receipt(0, s, KEY + WORKERS + s, 0xff);
        market.attest(job, 0, all);
        require(market.phase(job, 0) == Phase.Attesting, "all have spoken");
        CHEATS.warp(revealed + terms.roles[0].attestSeconds / 4 - 1);
        Body[] memory bodies = _bodies(0);
        _refused(acc(WORKERS), address(market), abi.encodeCall(market.freeze, (job, 0, bodies)), _wrongPhase(0));
        CHEATS.prank(acc(FINDER));
        availability.unavailable(job, 0, 0, 0);
        CHEATS.warp(revealed + terms.roles[0].attestSeconds / 4);
        require(market.phase(job, 0) == Phase.Freezing, "over");
    }

    /// Where the window is short, four times the time of an inclusion count.
    function testFuzz_demands_have_time_for_four_inclusions(uint8 more) external {
        _begin(2);
        terms.roles[0].attestSeconds = 12 + more % 60;
        terms.prices.witnessStake = 0;
        _create(REQUESTER, 0);
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        uint256 revealed = block.timestamp;
        Receipt[] memory all = new Receipt[](2);
        for (uint32 s = 0; s < 2; s++) all[s] = _receipt(0, s, KEY + WORKERS + s, 3);
        market.attest(job, 0, all);
        uint256 least = terms.roles[0].attestSeconds < 48 ? terms.roles[0].attestSeconds : 48;
        CHEATS.warp(revealed + least - 1);
        require(market.phase(job, 0) == Phase.Attesting, "still");
        CHEATS.warp(revealed + least);
        require(market.phase(job, 0) == Phase.Freezing, "over");
    }

    function _wrongPhase(uint32 r) private view returns (bytes memory) {
        return abi.encodeWithSelector(WrongPhase.selector, job, r);
    }

    /// Seats of a job that was proven invalid become no work, which its deposit would pay.
    function test_nobody_commits_in_a_void_job() external {
        _begin(8);
        (terms.roles[0].datasetRows, terms.roles[0].rowLength) = (1 << 31, 2);
        _create(REQUESTER, 0);
        uint256 deposit = market.job(job).deposit;
        _joinSeal(0, WORKERS);
        Evidence memory e;
        e.subject = Subject.Dataset;
        bytes32[] memory digests = new bytes32[](1);
        digests[0] = keccak256(abi.encode(address(this), keccak256(abi.encodeCall(validator.proveInvalid, (job, e)))));
        validator.commit(digests);
        CHEATS.roll(block.number + 1);
        validator.proveInvalid(job, e);
        bytes memory call = abi.encodeCall(market.commit, (job, 0, 0, keccak256("garbage")));
        _refused(acc(WORKERS), address(market), call, _wrongPhase(0));
        market.release(job, 0);
        market.finish(job);
        require(_sum(WORKERS, 8) == 0 && vault.credits(address(this)) == deposit * 30 / 100, "the prover's part is whole");
    }

    /// A slot that carries is its owner's in the first half of the join window: nobody takes its carry by taking its slot.
    function test_a_carry_keeps_its_slot_for_half_of_the_window() external {
        _begin(2);
        terms.roles[0].carryPeriod = 4;
        _create(REQUESTER, 0);
        _lead(0, WORKERS, AGGREGATOR);
        market.startRound(job, 1);
        bytes memory call = abi.encodeCall(market.join, (job, 1, 0));
        _refused(acc(ACCOMPLICE), address(market), call, abi.encodeWithSelector(SlotTaken.selector, 0));
        uint256 snapshot = CHEATS.snapshotState();
        CHEATS.prank(acc(WORKERS));
        market.join(job, 1, 0);
        CHEATS.revertToState(snapshot);
        CHEATS.warp(market.round(job, 1).joinEnds - 300);
        CHEATS.prank(acc(ACCOMPLICE));
        market.join(job, 1, 0);
    }

    // -- a round that is drawn again ---------------------------------------------------------------------------------

    uint256 internal constant WITNESSES = 200;

    /// The second round failed after its draw, its base fell, and it is drawn again.
    function _drawnAgain() private {
        _begin(4);
        (terms.roles[0].minSlots, terms.roles[0].witnesses, terms.windows.auditSeconds) = (4, 4, 3600);
        (terms.roles[0].witnessFee, terms.prices.witnessStake, terms.schedule.rounds) = (0.7e18, 14e18, 2);
        _create(REQUESTER, 0);
        for (uint256 w = WITNESSES; w < WITNESSES + 6; w++) {
            _fund(w, 100e18);
            CHEATS.prank(acc(w));
            witnesses.enrol(job, keccak256(abi.encode(w)));
        }
        _lookedAt(0);
        _freeze(0);
        _merge(0, AGGREGATOR);
        _lookedAt(1);
        CHEATS.prank(acc(WORKERS));
        market.attest(job, 1, _namesNobody());
        _freeze(1);
        (Work memory w_, Signed memory a, Signed memory b) = _pair(0, 0, KEY + AGGREGATOR);
        game.equivocate(w_, a, b);
        uint256 who = WORKERS;
        while (acc(who) != market.mergerOf(job, 0)) who++;
        _merge(0, who);
        _joinSeal(1, WORKERS);
        _commitReveal(1, WORKERS);
        witnesses.draw(job, 1);
    }

    function _lookedAt(uint32 r) private {
        _joinSeal(r, WORKERS);
        _commitReveal(r, WORKERS);
        witnesses.draw(job, r);
        CHEATS.roll(block.number + 2);
        witnesses.draw(job, r);
        require(market.round(job, r).witnesses == 4, "four duties");
    }

    /// @dev Of the first slot, which speaks alone: it leaves out all others.
    function _namesNobody() private view returns (Receipt[] memory one) {
        one = new Receipt[](1);
        one[0] = _receipt(1, 0, KEY + WORKERS, 0);
    }

    function _receipt(uint32 r, uint32 who, uint256 key, uint256 mask) private view returns (Receipt memory) {
        bytes32 kind = keccak256("Receipt(bytes32 job,uint32 round,uint32 attempt,uint32 who,uint256 mask)");
        bytes32 said = keccak256(abi.encode(kind, job, r, market.round(job, r).attempt, who, mask));
        (uint8 v, bytes32 sr, bytes32 ss) = CHEATS.sign(key, Ids.typed(address(market), said));
        return Receipt(who, mask, abi.encodePacked(sr, ss, v));
    }

    /// A duty that only gives up its fee waits for no draw, and a round that runs again has its fees back, failed or not.
    function testFuzz_a_round_that_is_drawn_again_has_all_of_its_duties(uint8 given) external {
        _drawnAgain();
        uint16 settled = given % 5;
        for (uint16 i = 0; i < settled; i++) {
            require(witnesses.settle(Draws.auditId(job, 1, 0), i) == Outcome.Void, "before the beacon's block");
        }
        CHEATS.roll(block.number + 2);
        witnesses.draw(job, 1);
        require(market.round(job, 1).witnesses == 4, "paid");
        require(witnesses.audit(Draws.auditId(job, 1, 1)).duties == 4, "and drawn");
        for (uint16 i = 0; i < 4; i++) {
            require(witnesses.duty(Draws.auditId(job, 1, 1), i).status == DutyStatus.Drawn, "all of them");
        }
    }
}
