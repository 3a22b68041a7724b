// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {oneRole} from "./OneRole.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {Arbiter} from "../../contracts/Arbiter.sol";
import {Availability} from "../../contracts/Availability.sol";
import {DisputeGame} from "../../contracts/DisputeGame.sol";
import {JobMarket} from "../../contracts/JobMarket.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {Validator} from "../../contracts/Validator.sol";
import {Witnesses} from "../../contracts/Witnesses.sol";
import {IAvailability} from "../../contracts/interfaces/IAvailability.sol";
import {Signed, Work} from "../../contracts/interfaces/IDisputeGame.sol";
import {Body, JobParams, Reveal} from "../../contracts/interfaces/IJobMarket.sol";
import {IWitnesses} from "../../contracts/interfaces/IWitnesses.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {ClaimId, JobId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";
import {Constant} from "./Constant.sol";
import {Watching} from "./Watching.sol";

/// @title Deployed
/// @notice The whole system, as it is deployed: nothing is a double.
contract Deployed is Watching {
    uint32 internal constant MERGE = 0xffffffff;
    uint256 internal constant KEY = 0xacc0;
    TestToken internal token;
    StakeVault internal vault;
    JobMarket internal market;
    Validator internal validator;
    Witnesses internal witnesses;
    Availability internal availability;
    JobParams internal terms;
    /// Rounds that a merger backs at once.
    uint16 internal backed = 7;
    JobId internal job;

    function _deploy(uint256 unbond) internal {
        token = new TestToken();
        Arbiter arbiter = new Arbiter();
        vault = new StakeVault(IERC20(address(token)), _at(4), _at(5), _at(7), _at(8), unbond);
        market = new JobMarket(
            address(token), vault, _at(5), _at(6), IWitnesses(_at(7)), IAvailability(_at(8)),
            12,
            0
        );
        game = new DisputeGame(market, vault, arbiter);
        validator = new Validator(market);
        witnesses = new Witnesses(market, vault);
        availability = new Availability(market, vault);
        require(address(availability) == _at(8), "addresses");
        CHEATS.warp(1_700_000_000);
        CHEATS.roll(1_000);
        CHEATS.fee(1 gwei);
    }

    function _at(uint8 nonce) internal view returns (address) {
        return address(uint160(uint256(keccak256(abi.encodePacked(bytes2(0xd694), address(this), nonce)))));
    }

    function acc(uint256 i) internal pure returns (address) {
        return CHEATS.addr(KEY + i);
    }

    function _fund(uint256 i, uint256 stake) internal {
        token.mint(acc(i), 1e27);
        CHEATS.prank(acc(i));
        token.approve(address(vault), type(uint256).max);
        if (stake == 0) return;
        CHEATS.prank(acc(i));
        vault.deposit(stake);
    }

    /// @dev MAINNET of sdk/lockstep/presets.py, with `slots` slots.
    function _mainnet(uint16 slots) internal pure returns (JobParams memory p) {
        oneRole(p);
        (p.roles[0].stepProgram, p.roles[0].encodeProgram, p.merge.program) = (Constant.programRoot(Constant.Kind.Step), keccak256("encode"), keccak256("merge"));
        p.roles[0].datasetRoot = keccak256("dataset");
        (p.roles[0].datasetRows, p.roles[0].rowLength, p.roles[0].innerSteps, p.schedule.rounds) = (5, 7, 1, 100);
        (p.roles[0].slots, p.roles[0].minSlots, p.schedule.maxLead, p.schedule.maxFail) = (slots, 2, 8, 2);
        (p.windows.joinSeconds, p.roles[0].trainSeconds, p.roles[0].revealSeconds, p.roles[0].attestSeconds) = (600, 4 * 3600, 900, 900);
        (p.merge.turnSeconds, p.windows.challengeSeconds, p.windows.clockSeconds, p.windows.stepSeconds) = (900, 3 * 86400, 86400, 600);
        (p.roles[0].slotPrice, p.merge.price, p.roles[0].slotStake, p.merge.stake, p.prices.bond) = (1e18, 0.5e18, 40e18, 20e18, 1e18);
        (p.prices.gasPrice, p.prices.feeCap) = (uint128(1e18) / 2_000_000, 100e9);
        p.windows.answerSeconds = 3600;
        (p.spec.profile, p.spec.opset) = (1, 1);
    }

    function _create(uint256 requester, uint256 nonce) internal {
        uint256 pay = uint256(terms.roles[0].slots) * terms.roles[0].slotPrice + terms.merge.price + uint256(terms.roles[0].witnesses) * terms.roles[0].witnessFee;
        CHEATS.prank(acc(requester));
        job = market.create(terms, nonce, uint256(terms.schedule.rounds) * pay);
    }

    /// @dev What a claim has in S_1: the one state whose contents anybody asks for.
    function _first(ClaimId claim) internal pure returns (Constant.Claim memory) {
        return Constant.Claim(Constant.Lie.None, false, keccak256(abi.encode(claim)), 0);
    }

    /// T = 2: one step and the encode. The outputs are arbitrary: what is behind them does not matter here.
    function _opened(ClaimId claim) internal view returns (Reveal memory o) {
        bytes32 out = keccak256(abi.encode(claim));
        o.nonce = out;
        o.proofT = new bytes32[](1);
        o.proofT[0] = Merkle.leaf(Constant.state(_first(claim), 1));
        o.body = Body(Merkle.node(o.proofT[0], Merkle.leaf(Merkle.node(out, out))), out, out);
    }

    function _joinSeal(uint32 r, uint256 first) internal {
        market.startRound(job, r);
        for (uint32 s = 0; s < terms.roles[0].slots; s++) {
            CHEATS.prank(acc(first + s));
            market.join(job, r, s);
        }
        CHEATS.roll(block.number + 2);
        CHEATS.warp(block.timestamp + 24);
        market.seal(job, r);
    }

    function _commitReveal(uint32 r, uint256 first) internal {
        for (uint32 s = 0; s < terms.roles[0].slots; s++) {
            ClaimId c = market.claimIdOf(job, r, s);
            Reveal memory o = _opened(c);
            CHEATS.prank(acc(first + s));
            market.commit(job, r, s, keccak256(abi.encode(c, acc(first + s), o.body, o.carries, o.nonce)));
        }
        for (uint32 s = 0; s < terms.roles[0].slots; s++) {
            ClaimId c = market.claimIdOf(job, r, s);
            Reveal memory o = _opened(c);
            CHEATS.prank(acc(first + s));
            market.reveal(job, r, s, o);
        }
    }

    function _bodies(uint32 r) internal view returns (Body[] memory b) {
        b = new Body[](terms.roles[0].slots);
        for (uint32 s = 0; s < terms.roles[0].slots; s++) b[s] = _opened(market.claimIdOf(job, r, s)).body;
    }

    function _freeze(uint32 r) internal {
        CHEATS.warp(market.round(job, r).attestEnds);
        market.freeze(job, r, _bodies(r));
    }

    function _merge(uint32 r, uint256 who) internal returns (ClaimId) {
        CHEATS.prank(acc(who));
        market.merge(job, r, keccak256(abi.encode("shared", r)), keccak256(abi.encode("outer", r)), "", backed);
        return market.claimIdOf(job, r, MERGE);
    }

    function _lead(uint32 r, uint256 first, uint256 merger) internal {
        _joinSeal(r, first);
        _commitReveal(r, first);
        _freeze(r);
        _merge(r, merger);
    }

    function _sum(uint256 first, uint256 n) internal view returns (uint256 s) {
        for (uint256 i = 0; i < n; i++) s += vault.credits(acc(first + i));
    }

    bytes32 private constant CLAIM_TYPE = keccak256(
        "Claim(bytes32 job,uint32 round,uint32 attempt,uint32 slot,bytes32 seed,bytes32 base,bytes32 traceRoot,uint32 transitions,bytes32 out,bytes32 out2)"
    );

    /// Two signatures of `key` over the claim of a merge: the pair that `equivocate` takes.
    function _pair(uint32 r, uint32 attempt, uint256 key)
        internal
        view
        returns (Work memory w, Signed memory a, Signed memory b)
    {
        w = Work(job, r, attempt, MERGE, market.round(job, r).seed, market.round(job, r).mergeIn);
        a = _signed(w, keccak256("one"), key);
        b = _signed(w, keccak256("other"), key);
    }

    function _signed(Work memory w, bytes32 root, uint256 key) internal view returns (Signed memory s) {
        s.traceRoot = root;
        s.transitions = 1;
        bytes32 body = keccak256(
            bytes.concat(
                abi.encode(CLAIM_TYPE, w.job, w.round, w.attempt, w.slot, w.seed, w.base),
                abi.encode(s.traceRoot, s.transitions, s.out, s.out2)
            )
        );
        bytes32 domain = keccak256(
            abi.encode(
                keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)"),
                keccak256("Lockstep"), keccak256("1"), block.chainid, address(market)
            )
        );
        (uint8 v, bytes32 rr, bytes32 ss) = CHEATS.sign(key, keccak256(abi.encodePacked(hex"1901", domain, body)));
        s.signature = abi.encodePacked(rr, ss, v);
    }
}
