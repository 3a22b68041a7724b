// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {keep} from "./OneRole.sol";
import {GameState, Signed, Step, Verdict, Work} from "../../contracts/interfaces/IDisputeGame.sol";
import {Body, Phase, Reveal} from "../../contracts/interfaces/IJobMarket.sol";
import {Evidence, Subject} from "../../contracts/interfaces/IValidator.sol";
import {Outcome, Word} from "../../contracts/interfaces/IWitnesses.sol";
import {Draws} from "../../contracts/libraries/Draws.sol";
import {DutyOpen, GamesOpen, JobInvalid} from "../../contracts/libraries/Errors.sol";
import {GameStates} from "../../contracts/libraries/GameStates.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {AuditId, ClaimId, GameId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {Constant} from "./Constant.sol";
import {Deployed} from "./Deployed.sol";

/// @title HonestPartiesTest
/// @notice Nobody loses by what others send, time or withhold: the attacks of an audit, on everything as it is deployed.
contract HonestPartiesTest is Deployed {
    using GameStates for GameState;

    uint16 private constant SLOTS = 8;
    uint256 private constant REQUESTER = 0;
    uint256 private constant AGGREGATOR = 1;
    uint256 private constant ACCOMPLICE = 2;
    uint256 private constant CHALLENGER = 3;
    uint256 private constant WITNESS = 4;
    uint256 private constant WORKERS = 10;
    uint256 private constant DEPOSIT = 1_000e18;

    function setUp() external {
        _deploy(7 days);
        for (uint256 i = 0; i < 5; i++) _fund(i, i == 0 ? 0 : DEPOSIT);
        for (uint256 i = 0; i < SLOTS; i++) _fund(WORKERS + i, DEPOSIT);
        keep(terms, _mainnet(SLOTS));
        terms.merge.aggregator = acc(AGGREGATOR);
    }

    // -- a merger that convicts itself

    function test_work_on_a_merge_that_convicts_itself_is_paid() external {
        _create(REQUESTER, 0);
        for (uint32 r = 0; r < 8; r++) _lead(r, WORKERS, AGGREGATOR);
        uint256 stake = vault.lockOf(ClaimId.unwrap(market.claimIdOf(job, 0, MERGE))).amount;
        _equivocate(0);
        for (uint32 r = 1; r < 8; r++) {
            require(market.phase(job, r) == Phase.Void, "void without fault");
            market.release(job, r);
        }
        uint256 pay = SLOTS * uint256(terms.roles[0].slotPrice);
        require(_sum(WORKERS, SLOTS) == 7 * pay, "seven rounds of work are paid all the same");
        require(vault.credits(acc(AGGREGATOR)) == 7 * uint256(terms.merge.price), "and seven right merges");
        uint256 owed = 7 * (pay + terms.merge.price);
        require(stake >= terms.merge.stake + owed, "by the merger");
        require(2 * vault.credits(vault.BURN()) >= stake - owed && stake - owed >= terms.merge.stake, "half of the rest is burned");
        for (uint256 i = 0; i < SLOTS; i++) {
            require(vault.free(acc(WORKERS + i)) == DEPOSIT - terms.roles[0].slotStake, "all but round 0's lock is free");
        }
    }

    function test_a_liar_does_not_escape_by_voiding_its_base() external {
        _create(REQUESTER, 0);
        _lead(0, WORKERS, AGGREGATOR);
        _joinSeal(1, WORKERS);
        _commitReveal(1, WORKERS);
        ClaimId lie = market.claimIdOf(job, 1, 0);
        GameId id = _open(CHALLENGER, lie, 0);
        CHEATS.warp(standingOf(id).deadline());
        _equivocate(0);
        require(market.live(lie), "its game goes on");
        (bool released, bytes memory reason) = address(market).call(abi.encodeCall(market.release, (job, 1)));
        require(!released && keccak256(reason) == keccak256(abi.encodeWithSelector(GamesOpen.selector, 1)), "stakes stay");
        CHEATS.warp(block.timestamp + 1);
        game.resolve(id, standingOf(id));
        require(game.game(id).verdict == Verdict.Timeout, "convicted");
        market.release(job, 1);
        require(vault.free(acc(WORKERS)) == DEPOSIT - 2 * uint256(terms.roles[0].slotStake), "its stake is gone");
        require(vault.credits(acc(WORKERS)) == 0, "and it is not paid");
        require(vault.credits(acc(CHALLENGER)) >= terms.roles[0].slotStake * 30 / 100, "who caught it is");
        require(vault.credits(acc(WORKERS + 1)) == terms.roles[0].slotPrice, "as is who was honest");
    }

    /// @dev Words about voided work are paid; one about a claim whose game goes on waits for its end.
    function test_a_word_for_a_liar_earns_nothing_by_voiding_its_base() external {
        (terms.roles[0].witnesses, terms.windows.auditSeconds, terms.roles[0].witnessFee, terms.prices.witnessStake) = (1, 600, 0.1e18, 10e18);
        _create(REQUESTER, 0);
        bytes32 preimage = keccak256("preimage");
        CHEATS.prank(acc(WITNESS));
        witnesses.enrol(job, Draws.chained(preimage, 1));
        _lead(0, WORKERS, AGGREGATOR);
        _joinSeal(1, WORKERS);
        _commitReveal(1, WORKERS);
        AuditId audit = _drawn(1);
        ClaimId lie = _agree(audit, preimage);
        GameId id = _open(CHALLENGER, lie, 0);
        _equivocate(0);
        require(market.rewound(audit) && market.live(lie), "words of this round are paid, and a game goes on");
        bytes memory call = abi.encodeCall(witnesses.settle, (audit, 0));
        _refused(address(witnesses), call, abi.encodeWithSelector(DutyOpen.selector, lie));
        CHEATS.warp(standingOf(id).deadline() + 1);
        game.resolve(id, standingOf(id));
        require(game.game(id).verdict == Verdict.Timeout, "convicted");
        require(witnesses.settle(audit, 0) == Outcome.Void, "its word is worth nothing");
        require(vault.credits(acc(WITNESS)) == 0 && market.job(job).feesDue == 0, "and the fee is the job's again");
    }

    // -- stakes, clocks

    function test_clocks_that_no_honest_party_can_keep_are_refused() external {
        terms.windows.stepSeconds = 40;
        terms.windows.clockSeconds = 16 * 12 - 1;
        _createRefused("clocks");
        terms.windows.clockSeconds = 16 * 12;
        _create(REQUESTER, 0);
        terms.windows.stepSeconds = 49;
        _createRefused("clocks");
        (terms.windows.stepSeconds, terms.windows.joinSeconds) = (40, 11);
        _createRefused("windows");
    }

    function test_games_with_oneself_lock_nobodys_stake_for_long() external {
        terms.windows.stepSeconds = terms.windows.clockSeconds / 4;
        _create(REQUESTER, 0);
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        ClaimId own = market.claimIdOf(job, 0, 0);
        GameId id;
        for (uint32 n = 0; n < 200; n++) id = _open(ACCOMPLICE, own, n);
        require(standingOf(id).leftDefender() <= terms.windows.clockSeconds + 30 days, "thirty days, and not years");
        require(game.defending(acc(WORKERS)) == 200, "counted");
    }

    function test_games_on_all_of_an_owners_claims_lengthen_its_clock() external {
        _create(REQUESTER, 0);
        market.startRound(job, 0);
        for (uint32 s = 0; s < SLOTS; s++) {
            CHEATS.prank(acc(WORKERS));
            market.join(job, 0, s);
        }
        CHEATS.roll(block.number + 2);
        market.seal(job, 0);
        for (uint32 s = 0; s < SLOTS; s++) {
            ClaimId c = market.claimIdOf(job, 0, s);
            Reveal memory o = _opened(c);
            CHEATS.prank(acc(WORKERS));
            market.commit(job, 0, s, keccak256(abi.encode(c, acc(WORKERS), o.body, o.carries, o.nonce)));
        }
        for (uint32 s = 0; s < SLOTS; s++) {
            Reveal memory o = _opened(market.claimIdOf(job, 0, s));
            CHEATS.prank(acc(WORKERS));
            market.reveal(job, 0, s, o);
        }
        GameId first;
        for (uint32 s = 0; s < SLOTS; s++) {
            GameId id = _open(ACCOMPLICE, market.claimIdOf(job, 0, s), 0);
            if (s == 0) first = id;
            require(standingOf(id).leftDefender() == terms.windows.clockSeconds + s * terms.windows.stepSeconds, "one more each");
        }
        CHEATS.warp(standingOf(first).deadline() + 1);
        game.resolve(first, standingOf(first));
        require(game.defending(acc(WORKERS)) == SLOTS - 1, "a game that is over counts no more");
    }

    // -- a void job

    function test_a_void_job_that_is_done_has_no_live_claims() external {
        (terms.schedule.rounds, terms.schedule.maxLead, terms.schedule.maxFail, terms.roles[0].minSlots) = (1, 1, 0, SLOTS);
        (terms.roles[0].datasetRows, terms.roles[0].rowLength) = (1 << 31, 2);
        _create(REQUESTER, 0);
        _joinSeal(0, WORKERS);
        _commitReveal(0, WORKERS);
        ClaimId honest = market.claimIdOf(job, 0, 0);
        GameId id = _open(ACCOMPLICE, honest, 0);
        _void();
        market.release(job, 0);
        market.finish(job);
        require(!market.live(honest), "void for good");
        CHEATS.warp(standingOf(id).deadline() + 1);
        game.resolve(id, standingOf(id));
        require(game.game(id).verdict == Verdict.Void, "nobody is convicted");
        require(vault.free(acc(WORKERS)) == DEPOSIT && vault.free(acc(ACCOMPLICE)) == DEPOSIT, "stake and bond are back");
    }

    // -- inside

    function _open(uint256 who, ClaimId claim, uint32 nonce) private watched returns (GameId) {
        Step memory none;
        Body memory said = _opened(claim).body;
        CHEATS.prank(acc(who));
        return game.open(claim, said, nonce, 0, 0, new bytes32[](0), none);
    }

    /// @dev Draws the one witness of a round in which everybody has revealed.
    function _drawn(uint32 r) private returns (AuditId audit) {
        witnesses.draw(job, r);
        CHEATS.roll(block.number + 2);
        witnesses.draw(job, r);
        audit = Draws.auditId(job, r, 0);
        require(witnesses.duty(audit, 0).account == acc(WITNESS), "there is no other");
    }

    /// @dev The witness says what the claim says.
    function _agree(AuditId audit, bytes32 preimage) private returns (ClaimId claim) {
        claim = market.claimIdOf(job, witnesses.audit(audit).round, witnesses.duty(audit, 0).slot);
        Word memory word;
        word.body = _opened(claim).body;
        (word.agrees, word.state, word.preimage) = (true, Constant.state(_first(claim), 1), preimage);
        word.leaf = Constant.leaf(_first(claim));
        word.proof = new bytes32[](1);
        word.proof[0] = Merkle.leaf(Merkle.node(word.body.out, word.body.out2));
        bytes32 digest = word.leaf.digest;
        CHEATS.prank(acc(WITNESS));
        witnesses.commit(audit, 0, Draws.commitment(claim, acc(WITNESS), word.state, digest, preimage, word.salt));
        CHEATS.prank(acc(WITNESS));
        witnesses.reveal(audit, 0, word);
    }

    /// @dev The aggregator signs two claims for its merge; an accomplice shows them.
    function _equivocate(uint32 r) private {
        (Work memory w, Signed memory a, Signed memory b) =
            _pair(r, 0, KEY + AGGREGATOR);
        CHEATS.prank(acc(ACCOMPLICE));
        game.equivocate(w, a, b);
    }

    function _void() private {
        Evidence memory e;
        e.subject = Subject.Dataset;
        bytes memory call = abi.encodeCall(validator.proveInvalid, (job, e));
        bytes32[] memory digests = new bytes32[](1);
        digests[0] = keccak256(abi.encode(address(this), keccak256(call)));
        validator.commit(digests);
        CHEATS.roll(block.number + 1);
        validator.proveInvalid(job, e);
    }

    function _createRefused(bytes32 group) private {
        uint256 pay = uint256(terms.roles[0].slots) * terms.roles[0].slotPrice + terms.merge.price;
        CHEATS.prank(acc(REQUESTER));
        _refused(abi.encodeCall(market.create, (terms, 9, terms.schedule.rounds * pay)), abi.encodeWithSelector(JobInvalid.selector, group));
    }

    function _refused(bytes memory call, bytes memory reason) private {
        _refused(address(market), call, reason);
    }

    function _refused(address target, bytes memory call, bytes memory reason) private {
        (bool accepted, bytes memory given) = target.call(call);
        require(!accepted && keccak256(given) == keccak256(reason), "refused for this reason");
    }
}
