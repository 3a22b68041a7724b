// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {keep} from "./OneRole.sol";
import {GameState, Signed, Step, Work} from "../../contracts/interfaces/IDisputeGame.sol";
import {Body, ClaimStatus, Phase, Receipt} from "../../contracts/interfaces/IJobMarket.sol";
import {Outcome} from "../../contracts/interfaces/IWitnesses.sol";
import {Draws} from "../../contracts/libraries/Draws.sol";
import {NotBacked, TooEarly, WindowClosed} from "../../contracts/libraries/Errors.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {Ids} from "../../contracts/libraries/Ids.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {AuditId, ClaimId, GameId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {Deployed} from "./Deployed.sol";

/// @title FailedRoundsTest
/// @notice Nobody gains by a round that fails, and nobody holds one for ever: on everything as it is deployed.
contract FailedRoundsTest is Deployed {
    using GameStates for GameState;

    uint16 private constant SLOTS = 8;
    uint256 private constant REQUESTER = 0;
    uint256 private constant AGGREGATOR = 1;
    uint256 private constant ACCOMPLICE = 2;
    uint256 private constant CHALLENGER = 3;
    uint256 private constant WORKERS = 10;
    uint256 private constant WITNESSES = 200;
    uint256 private constant DEPOSIT = 1_000e18;
    uint256 private constant ALL = (1 << SLOTS) - 1;

    function setUp() external {
        _deploy(14 days);
        for (uint256 i = 0; i < 4; i++) _fund(i, i == 0 ? 0 : DEPOSIT);
        for (uint256 i = 0; i < SLOTS; i++) _fund(WORKERS + i, DEPOSIT);
        keep(terms, _mainnet(SLOTS));
        terms.merge.aggregator = acc(AGGREGATOR);
        terms.roles[0].minSlots = SLOTS - 1;
    }

    // -- failing a round

    function test_a_third_of_the_receipts_leaves_nobody_out() external {
        terms.roles[0].minSlots = 4;
        _revealed(0);
        for (uint32 s = 0; s < SLOTS; s++) _attest(0, s, s < 3 ? 0 : ALL);
        CHEATS.warp(market.round(job, 0).attestEnds);
        market.freeze(job, 0, _bodies(0));
        require(market.round(job, 0).mask == ALL, "half of the others name everybody");
    }

    function test_who_fails_a_round_pays_the_others_for_their_work() external {
        _create(REQUESTER, 0);
        uint256 before = market.job(job).escrow;
        _fails(0);
        require(market.phase(job, 0) == Phase.Failed, "too few payloads");
        CHEATS.prank(acc(REQUESTER));
        market.cancel(job);
        (bool finished,) = address(market).call(abi.encodeCall(market.finish, (job)));
        require(!finished, "its claims are judged first");
        _final(0);
        market.finish(job);
        uint256 price = terms.roles[0].slotPrice;
        require(_sum(WORKERS + 2, SLOTS - 2) == (SLOTS - 2) * price, "who was named is paid");
        require(_sum(WORKERS, 2) == 0 && vault.credits(vault.BURN()) == 2 * price, "of the others the price is burned");
        require(market.job(job).paid == SLOTS * price, "by the requester");
        require(market.job(job).refunded == before - SLOTS * price, "which has the rest back");
        for (uint256 i = 0; i < SLOTS; i++) require(vault.free(acc(WORKERS + i)) == DEPOSIT, "and all stakes are free");
    }

    function test_a_liar_that_fails_its_round_when_it_sees_the_draw_is_convicted() external {
        AuditId audit = _drawn();
        bytes32[2] memory demands;
        for (uint32 s = 2; s < SLOTS; s++) _attest(0, s, ALL);
        for (uint32 s = 0; s < 2; s++) {
            CHEATS.prank(acc(ACCOMPLICE));
            demands[s] = availability.unavailable(job, 0, s, 0);
        }
        CHEATS.warp(block.timestamp + terms.windows.answerSeconds + 1);
        for (uint32 s = 0; s < 2; s++) availability.settle(demands[s]);
        market.freeze(job, 0, _bodies(0));
        require(market.phase(job, 0) == Phase.Failed, "failed before a witness could speak");
        ClaimId lie = market.claimIdOf(job, 0, 0);
        require(market.claim(lie).status == ClaimStatus.Missing, "missing");
        require(vault.lockOf(ClaimId.unwrap(lie)).amount == terms.roles[0].slotStake, "its stake is locked");
        GameId id = _open(CHALLENGER, lie, 0);
        CHEATS.warp(standingOf(id).deadline() + 1);
        game.resolve(id, standingOf(id));
        require(market.claim(lie).status == ClaimStatus.Convicted, "who finds it an hour later finds it in time");
        require(vault.credits(acc(CHALLENGER)) >= uint256(terms.roles[0].slotStake) * 30 / 100, "and has the prize");
        _final(0);
        require(_sum(WORKERS + 2, SLOTS - 2) == (SLOTS - 2) * uint256(terms.roles[0].slotPrice), "the others are paid");
        require(vault.free(acc(WORKERS + 1)) == DEPOSIT - terms.roles[0].slotPrice, "the other missing one is fined");
        for (uint16 i = 0; i < 2; i++) {
            require(witnesses.settle(audit, i) == Outcome.Fined, "duties run on: silence is fined");
        }
    }

    function test_a_payload_demanded_in_vain_costs_what_silence_does() external {
        terms.roles[0].minSlots = 2;
        _revealed(0);
        CHEATS.prank(acc(ACCOMPLICE));
        bytes32 demand = availability.unavailable(job, 0, 0, 0);
        CHEATS.warp(block.timestamp + terms.windows.answerSeconds + 1);
        availability.settle(demand);
        _freeze(0);
        _merge(0, AGGREGATOR);
        _final(0);
        uint256 price = terms.roles[0].slotPrice;
        require(vault.credits(vault.BURN()) == price && vault.credits(acc(WORKERS)) == 0, "of its own stake");
        require(vault.free(acc(WORKERS)) == DEPOSIT - price && vault.free(acc(ACCOMPLICE)) == DEPOSIT, "bonds return");
        require(market.job(job).paid == (SLOTS - 1) * price + terms.merge.price, "the requester pays for the others");
    }

    function test_work_of_a_failed_round_on_a_convicted_merge_is_paid_from_its_stake() external {
        _create(REQUESTER, 0);
        _lead(0, WORKERS, AGGREGATOR);
        _fails(1);
        (Work memory w, Signed memory a, Signed memory b) = _pair(0, 0, KEY + AGGREGATOR);
        game.equivocate(w, a, b);
        require(market.phase(job, 1) == Phase.Void && market.job(job).failed == 0, "void, as any other");
        uint256 burned = vault.credits(vault.BURN());
        market.release(job, 1);
        uint256 price = terms.roles[0].slotPrice;
        require(_sum(WORKERS + 2, SLOTS - 2) == (SLOTS - 2) * price, "who was named is paid");
        require(_sum(WORKERS, 2) == 0 && vault.credits(vault.BURN()) == burned + 2 * price, "and nobody else");
    }

    function test_a_roster_in_which_few_could_fail_all_others_is_never_sealed() external {
        terms.roles[0].minSlots = 4;
        _create(REQUESTER, 0);
        market.startRound(job, 0);
        for (uint32 s = 0; s < 6; s++) {
            CHEATS.prank(acc(WORKERS + s));
            market.join(job, 0, s);
        }
        CHEATS.warp(block.timestamp + terms.windows.joinSeconds);
        market.seal(job, 0);
        require(market.phase(job, 0) == Phase.Failed && market.job(job).settled == 1, "six of eight, half needed");
        for (uint256 i = 0; i < SLOTS; i++) require(vault.free(acc(WORKERS + i)) == DEPOSIT, "nobody has worked");
    }

    // -- holding one

    function test_false_games_hold_a_carrying_job_no_longer_than_one() external {
        terms.roles[0].carryPeriod = 4;
        _create(REQUESTER, 0);
        for (uint32 r = 0; r < 8; r++) _lead(r, WORKERS, AGGREGATOR);
        ClaimId own = market.claimIdOf(job, 0, 0);
        uint256 over = market.round(job, 3).mergedAt + terms.windows.challengeSeconds;
        CHEATS.warp(over - 1);
        GameId id = _open(ACCOMPLICE, own, 0);
        CHEATS.warp(over);
        require(!market.windowOpen(own), "no second game");
        Step memory none;
        Body memory said = _opened(own).body;
        CHEATS.prank(acc(ACCOMPLICE));
        (bool taken, bytes memory why) =
            address(game).call(abi.encodeCall(game.open, (own, said, 1, 0, 0, new bytes32[](0), none)));
        require(!taken && bytes4(why) == WindowClosed.selector, "refused");
        CHEATS.warp(standingOf(id).deadline());
        _revealTrace(id, own);
        CHEATS.warp(standingOf(id).deadline() + 1);
        game.resolve(id, standingOf(id));
        for (uint32 r = 0; r < 4; r++) market.finalize(job, r);
        require(vault.credits(acc(WORKERS + 7)) == 4 * uint256(terms.roles[0].slotPrice), "a period is final after one game");
    }

    function test_a_claim_can_be_challenged_again_while_a_later_round_may_stand_on_it() external {
        terms.roles[0].carryPeriod = 4;
        _create(REQUESTER, 0);
        _lead(0, WORKERS, AGGREGATOR);
        ClaimId first = market.claimIdOf(job, 0, 0);
        uint256 over = market.round(job, 0).mergedAt + terms.windows.challengeSeconds;
        CHEATS.warp(over);
        require(!market.windowOpen(first), "nothing stands on it");
        _joinSeal(1, WORKERS);
        require(market.windowOpen(first), "something may");
        _commitReveal(1, WORKERS);
        _freeze(1);
        _merge(1, AGGREGATOR);
        uint256 later = market.round(job, 1).mergedAt + terms.windows.challengeSeconds;
        (bool done, bytes memory why) = address(market).call(abi.encodeCall(market.finalize, (job, 0)));
        require(!done && bytes4(why) == TooEarly.selector, "one instant for both");
        CHEATS.warp(later);
        require(!market.windowOpen(first), "closed with the period");
        market.finalize(job, 0);
    }

    // -- a merge that nobody backs

    function test_a_merge_that_nobody_backs_is_merged_again_by_the_next_turn() external {
        _create(REQUESTER, 0);
        uint256 who = _mergedAgain();
        ClaimId first = Ids.claim(job, 0, 0, MERGE);
        require(market.claim(first).status == ClaimStatus.Void && !market.live(first), "the first is void");
        require(vault.free(acc(AGGREGATOR)) == DEPOSIT, "its stake is back");
        market.startRound(job, 1);
        _final(0);
        require(vault.credits(acc(AGGREGATOR)) == 0, "and it is not paid");
        require(vault.credits(acc(who)) == terms.roles[0].slotPrice + terms.merge.price, "the second is");
        require(vault.free(acc(who)) == DEPOSIT, "all stakes are free");
    }

    function test_who_merged_again_answers_for_what_stands_on_it() external {
        _create(REQUESTER, 0);
        uint256 who = _mergedAgain();
        _joinSeal(1, WORKERS);
        _commitReveal(1, WORKERS);
        (Work memory w, Signed memory a, Signed memory b) = _pair(0, 0, KEY + AGGREGATOR);
        (bool taken,) = address(game).call(abi.encodeCall(game.equivocate, (w, a, b)));
        require(!taken, "the first answers for nothing any more");
        (w, a, b) = _pair(0, 1, KEY + who);
        game.equivocate(w, a, b);
        require(market.phase(job, 0) == Phase.Merging && market.barred(job, acc(who)), "it merges again");
        require(market.phase(job, 1) == Phase.Void, "from there");
        uint256 before = _sum(WORKERS, SLOTS);
        market.release(job, 1);
        require(_sum(WORKERS, SLOTS) - before == SLOTS * uint256(terms.roles[0].slotPrice), "from its stake");
    }

    function testFuzz_turns_go_round_in_the_first_half_of_the_window(uint256 seconds_) external {
        _create(REQUESTER, 0);
        backed = 0;
        _lead(0, WORKERS, AGGREGATOR);
        uint256 window = terms.windows.challengeSeconds;
        uint256 passed = seconds_ % (window + 3600);
        CHEATS.warp(block.timestamp + passed);
        uint256 at = passed / terms.merge.turnSeconds % (SLOTS + 1);
        bool open = passed < window / 2 && at != 0;
        uint256 slot = (uint256(market.round(job, 0).seed) + at - 1) % SLOTS;
        require(market.mergerOf(job, 0) == (open ? acc(WORKERS + slot) : address(0)), "another's turn");
    }

    // -- inside

    /// @dev The aggregator backs no round, and when its turn is over the next one in the order backs them all.
    function _mergedAgain() private returns (uint256 who) {
        backed = 0;
        _lead(0, WORKERS, AGGREGATOR);
        (bool started, bytes memory why) = address(market).call(abi.encodeCall(market.startRound, (job, 1)));
        require(!started && keccak256(why) == keccak256(abi.encodeWithSelector(NotBacked.selector, 0)), "not backed");
        CHEATS.warp(block.timestamp + terms.merge.turnSeconds);
        who = WORKERS + uint256(market.round(job, 0).seed) % SLOTS;
        require(market.mergerOf(job, 0) == acc(who), "the first in the order");
        backed = 7;
        _merge(0, who);
    }

    function _revealed(uint32 r) private {
        if (r == 0) _create(REQUESTER, 0);
        _joinSeal(r, WORKERS);
        _commitReveal(r, WORKERS);
    }

    /// @dev The owners of two slots reveal what nobody else has, and the round fails for want of it.
    function _fails(uint32 r) private {
        _joinSeal(r, WORKERS);
        _commitReveal(r, WORKERS);
        for (uint32 s = 0; s < SLOTS; s++) _attest(r, s, s < 2 ? ALL : ALL ^ 3);
        CHEATS.warp(market.round(job, r).attestEnds);
        market.freeze(job, r, _bodies(r));
    }

    function _final(uint32 r) private {
        uint256 over = market.round(job, r).mergedAt + terms.windows.challengeSeconds;
        if (block.timestamp < over) CHEATS.warp(over);
        market.finalize(job, r);
    }

    /// @dev Everybody has revealed, and two witnesses are drawn.
    function _drawn() private returns (AuditId) {
        (terms.roles[0].witnesses, terms.windows.auditSeconds) = (2, 4 * 3600);
        (terms.roles[0].witnessFee, terms.prices.witnessStake) = (0.72e18, 14.4e18);
        _create(REQUESTER, 0);
        for (uint256 w = 0; w < 3; w++) {
            _fund(WITNESSES + w, 100e18);
            CHEATS.prank(acc(WITNESSES + w));
            witnesses.enrol(job, keccak256(abi.encode(w)));
        }
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        witnesses.draw(job, 0);
        CHEATS.roll(block.number + 2);
        witnesses.draw(job, 0);
        return Draws.auditId(job, 0, 0);
    }

    function _attest(uint32 r, uint32 who, uint256 mask) private {
        bytes32 kind = keccak256("Receipt(bytes32 job,uint32 round,uint32 attempt,uint32 who,uint256 mask)");
        bytes32 body = keccak256(abi.encode(kind, job, r, market.round(job, r).attempt, who, mask));
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("Lockstep"), keccak256("1"), block.chainid, address(market)
            )
        );
        (uint8 v, bytes32 x, bytes32 y) = CHEATS.sign(KEY + WORKERS + who, keccak256(abi.encodePacked(hex"1901", domain, body)));
        Receipt[] memory given = new Receipt[](1);
        given[0] = Receipt(who, mask, abi.encodePacked(x, y, v));
        market.attest(job, r, given);
    }

    function _open(uint256 who, ClaimId claim, uint32 nonce) private watched returns (GameId) {
        Step memory none;
        Body memory said = _opened(claim).body;
        CHEATS.prank(acc(who));
        return game.open(claim, said, nonce, 0, 0, new bytes32[](0), none);
    }

    function _revealTrace(GameId id, ClaimId claim) private watched {
        bytes32[] memory children = new bytes32[](2);
        bytes32 out = keccak256(abi.encode(claim));
        (children[0], children[1]) = (_opened(claim).proofT[0], Merkle.leaf(Merkle.node(out, out)));
        GameState memory s = standingOf(id);
        CHEATS.prank(s.defender());
        game.reveal(id, s, children);
    }
}
