// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.21;

import {oneRole} from "./OneRole.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";

import {JobMarket} from "../../contracts/JobMarket.sol";
import {StakeVault} from "../../contracts/StakeVault.sol";
import {IAvailability} from "../../contracts/interfaces/IAvailability.sol";
import {Body, ClaimStatus, JobParams, Phase, Receipt, Reveal, Round} from "../../contracts/interfaces/IJobMarket.sol";
import {IWitnesses} from "../../contracts/interfaces/IWitnesses.sol";
import {Ids} from "../../contracts/libraries/Ids.sol";
import {Merkle} from "../../contracts/libraries/Merkle.sol";
import {TestToken} from "../../contracts/test/TestToken.sol";
import {ClaimId, JobId} from "../../contracts/types/Ids.sol";
import {CHEATS} from "./Cheats.sol";

/// @title LoneMarket
/// @notice A market and its vault; whoever inherits this is the game, the witnesses and the demands. It can play a round.
contract LoneMarket {
    uint32 internal constant MERGE = 0xffffffff;
    uint256 public constant ACCOUNTS = 6;
    uint16 internal constant SLOTS = 3;
    uint32 internal constant ROUNDS = 4;

    TestToken public token;
    StakeVault public vault;
    JobMarket public market;
    JobId public job;

    constructor() {
        token = new TestToken();
        address marketAt = address(uint160(uint256(keccak256(abi.encodePacked(bytes2(0xd694), address(this), uint8(3))))));
        vault = new StakeVault(IERC20(address(token)), marketAt, address(this), address(this), address(this), 1 hours);
        market = new JobMarket(
            address(token), vault, address(this), address(this), IWitnesses(address(this)), IAvailability(address(this)), 1, 0
        );
        for (uint256 i = 0; i < ACCOUNTS; i++) {
            token.mint(account(i), 1e9);
            CHEATS.prank(account(i));
            token.approve(address(vault), type(uint256).max);
        }
    }

    function account(uint256 i) public pure returns (address) {
        return CHEATS.addr(0xacc0 + i % 6);
    }

    // -- what the market asks others

    function witnessOf(bytes32, uint32, uint256 i) external pure returns (address) {
        return account(i + 2);
    }

    function missing(ClaimId claim) external pure returns (bool) {
        return uint256(ClaimId.unwrap(claim)) % 8 == 0;
    }

    // -- rounds

    function _back(uint32 r, uint16 rounds) private {
        address merger = _owner(r, MERGE);
        CHEATS.prank(merger);
        market.back(job, r, rounds);
    }

    function _startRound() private {
        market.startRound(job, market.job(job).started);
    }

    /// @notice What the phase of a round asks for, by everybody whose bit in `who` is set (by most: two of three draws each).
    function advance(uint256 back, uint256 who, bytes32 out) external {
        uint32 r = _round(back);
        Phase phase = market.phase(job, r);
        who |= who >> 64;
        if (phase == Phase.Sealing) {
            CHEATS.roll(block.number + 2);
            market.seal(job, r);
        } else if (phase == Phase.Attesting) {
            _speak(r, who, uint256(out));
        } else if (phase == Phase.Freezing) {
            market.freeze(job, r, _bodies(r));
        } else if (phase == Phase.Merging && market.mergerOf(job, r) != address(0)) {
            CHEATS.prank(market.mergerOf(job, r));
            market.merge(job, r, out, out, "", uint16(uint256(out) % 3));
        } else if (phase == Phase.Lead && market.job(job).started < ROUNDS && uint256(out) % 4 != 0) {
            uint16 lacking = uint16(market.job(job).started - r);
            if (market.round(job, r).backed < lacking) _back(r, lacking - market.round(job, r).backed);
            _startRound();
        } else if (phase == Phase.Failed && market.job(job).started < ROUNDS && uint256(out) % 2 != 0) {
            _startRound();
        } else if (phase == Phase.Failed && market.job(job).settled > r) {
            market.finish(job);
        } else if (
            phase == Phase.Merging || phase == Phase.Lead || phase == Phase.Failed
        ) {
            market.finalize(job, r);
        } else if (phase == Phase.Void) {
            market.release(job, r);
        } else if (phase == Phase.None || phase == Phase.Final) {
            market.job(job).started < ROUNDS ? _startRound() : market.finish(job);
        } else {
            for (uint32 s = 0; s < SLOTS; s++) if ((who >> s) & 1 == 1) _act(r, s, phase, account(who >> 8));
        }
    }

    /// @dev Witnesses are drawn, payloads demanded, receipts given: by the owners whose bit is set, and by witnesses.
    function _speak(uint32 r, uint256 who, uint256 luck) private {
        if (!market.round(job, r).drawn && luck % 2 == 0) market.onDrawn(job, r, uint16(luck % 3));
        if (luck % 5 == 0) market.onDemanded(job, r, uint32(luck % SLOTS), false);
        Round memory ro = market.round(job, r);
        for (uint32 s = 0; s < SLOTS + ro.witnesses; s++) {
            uint32 speaker = s < SLOTS ? s : 64 + s - SLOTS;
            address by = s < SLOTS ? _owner(r, s) : account(s - SLOTS + 2);
            if ((who >> s) & 1 == 0 || (ro.spoke >> speaker) & 1 == 1 || by == address(0)) continue;
            uint256 mask = luck % 7 == 0 ? luck >> 8 : type(uint256).max;
            Receipt[] memory given = new Receipt[](1);
            given[0] = Receipt(speaker, mask, _signed(by, _digest(r, ro.attempt, speaker, mask)));
            try market.attest(job, r, given) {} catch {}
        }
    }

    function _digest(uint32 r, uint32 attempt, uint32 who, uint256 mask) internal view returns (bytes32) {
        bytes32 kind = keccak256("Receipt(bytes32 job,uint32 round,uint32 attempt,uint32 who,uint256 mask)");
        return Ids.typed(address(market), keccak256(abi.encode(kind, job, r, attempt, who, mask)));
    }

    function _signed(address by, bytes32 digest) internal pure returns (bytes memory) {
        uint256 key = 0xacc0;
        while (CHEATS.addr(key) != by) key++;
        (uint8 v, bytes32 r, bytes32 s) = CHEATS.sign(key, digest);
        return abi.encodePacked(r, s, v);
    }

    /// @dev Of the revealed slots, in order.
    function _bodies(uint32 r) internal view returns (Body[] memory bodies) {
        bodies = new Body[](SLOTS);
        uint256 count = 0;
        for (uint32 s = 0; s < SLOTS; s++) {
            ClaimId claim = market.claimIdOf(job, r, s);
            if (market.claim(claim).status == ClaimStatus.Revealed) bodies[count++] = _opened(claim).body;
        }
        assembly ("memory-safe") {
            mstore(bodies, count)
        }
    }

    /// @dev A slot's part in a phase. What it may not do, it leaves.
    function _act(uint32 r, uint32 s, Phase phase, address who) private {
        ClaimId claim = market.claimIdOf(job, r, s);
        address worker = _owner(r, s);
        ClaimStatus status = market.claim(claim).status;
        if (phase == Phase.Joining && worker == address(0)) {
            CHEATS.prank(who);
            market.join(job, r, s);
        } else if (phase == Phase.Training && status == ClaimStatus.Joined) {
            Reveal memory o = _opened(claim);
            bytes32 commitment = keccak256(abi.encode(claim, worker, o.body, o.carries, o.nonce));
            CHEATS.prank(worker);
            market.commit(job, r, s, commitment);
        } else if (phase == Phase.Revealing && status == ClaimStatus.Committed) {
            // Computed before the prank: hashing calls a precompile, which the prank would be spent on.
            Reveal memory o = _opened(claim);
            CHEATS.prank(worker);
            market.reveal(job, r, s, o);
        }
    }

    // -- inside

    /// @dev A round that was started, most often the latest.
    function _round(uint256 back) private view returns (uint32) {
        uint32 started = market.job(job).started;
        // The oldest of three in flight, too: where it waits, no other round can start.
        back = back % 3 != 0 ? 1 : back % 2 == 0 ? 2 : 3;
        return started >= back ? started - uint32(back) : 0;
    }

    function _owner(uint32 round, uint32 slot) internal view returns (address) {
        return market.claim(market.claimIdOf(job, round, slot)).worker;
    }

    /// @dev T = 2: one step and the encode.
    function _opened(ClaimId claim) internal view returns (Reveal memory o) {
        bytes32 out = keccak256(abi.encode(claim));
        o.nonce = out;
        o.proofT = new bytes32[](1);
        o.proofT[0] = Merkle.leaf(out);
        o.body = Body(Merkle.node(o.proofT[0], Merkle.leaf(Merkle.node(out, out))), out, out);
    }

    function _merged(bytes32 out, bytes32 out2) internal view returns (Body memory) {
        return Body(Merkle.leaf(Merkle.node(out, out2)), out, out2);
    }

    function _params() internal pure returns (JobParams memory p) {
        oneRole(p);
        bytes32 root = keccak256("root");
        (p.roles[0].stepProgram, p.roles[0].encodeProgram, p.merge.program) = (root, root, root);
        (p.roles[0].datasetRows, p.roles[0].rowLength, p.roles[0].innerSteps, p.schedule.rounds) = (1, 1, 1, ROUNDS);
        (p.roles[0].slots, p.roles[0].minSlots, p.schedule.maxLead, p.schedule.maxFail) = (SLOTS, 2, 3, 3);
        (p.windows.joinSeconds, p.roles[0].trainSeconds, p.roles[0].revealSeconds, p.roles[0].attestSeconds) = (100, 100, 40, 30);
        (p.merge.turnSeconds, p.windows.challengeSeconds, p.windows.clockSeconds, p.windows.stepSeconds) = (100, 100, 60, 1);
        (p.roles[0].slotPrice, p.merge.price, p.roles[0].slotStake, p.merge.stake, p.prices.bond) = (101, 57, 1_013, 1_019, 153);
        (p.roles[0].witnesses, p.windows.auditSeconds, p.roles[0].witnessFee, p.prices.witnessStake) = (2, 10, 11, 223);
        (p.windows.answerSeconds, p.prices.feeCap) = (100, 1e9);
        p.merge.aggregator = account(1);
        (p.spec.profile, p.spec.opset) = (1, 1);
    }
}
